package mistakes_test

import (
	"context"
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// depth returns the number of ready messages in a queue.
func depth(tb testing.TB, ch *amqp.Channel, queue string) int {
	tb.Helper()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return q.Messages
}

// parked waits for n messages in the dead-letter queue of queue and returns their headers by message id.
func parked(tb testing.TB, ch *amqp.Channel, queue string, n int) map[string]amqp.Table {
	tb.Helper()
	got := map[string]amqp.Table{}
	patience.Until(tb, "parked messages", func() bool {
		d, ok, err := ch.Get(queue+".dlq", true)
		if err != nil {
			tb.Fatal(err)
		}
		if ok {
			got[d.MessageId] = d.Headers
		}
		return len(got) == n
	})
	return got
}

func TestWrongBrokerAddress(t *testing.T) { // TR-08
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	edit := func(f func(u *url.URL)) string { return changed(t, mq.URL, f) }
	for _, tc := range []struct {
		name, url string
		want      want
	}{
		{"bad scheme", "http://guest:" + secretPassword + "@host:5672/", want{is: waybill.ErrInvalid, says: []string{"url: ", "scheme is not amqp", "amqp://user:password@host"}}},
		{"no scheme", "guest:" + secretPassword + "@host:5672/", want{is: waybill.ErrInvalid, says: []string{"url: has no scheme; put amqp://", "amqp://user:password@host"}}},
		{"only an address", "127.0.0.1:55472", want{is: waybill.ErrInvalid, says: []string{"url: has no scheme; put amqp://"}}},
		{"unparsable", "amqp://guest:" + secretPassword + "%zz@host:port/", want{is: waybill.ErrInvalid, says: []string{"url: cannot be read", "escape special characters"}}},
		{"slash in the password", "amqp://guest:" + secretPassword + "/x@host:5672/", want{is: waybill.ErrInvalid, says: []string{"url: ", "escape special characters"}}},
		{"empty", "", want{is: waybill.ErrInvalid, says: []string{"url: ", "amqp://user:password@host"}}},
		{"no host", "amqp:///x", want{is: waybill.ErrInvalid, says: []string{"url: names no host"}}},
		{"no such host", "amqp://guest:" + secretPassword + "@no-such-host.invalid/", want{class: waybill.ClassOutage, says: []string{"cannot reach no-such-host.invalid:5672", "check "}}},
		{"nobody listens", "amqp://guest:" + secretPassword + "@127.0.0.1:1/", want{class: waybill.ClassOutage, says: []string{"cannot reach 127.0.0.1:1", "refused", "check "}}},
		{
			"bad password", edit(func(u *url.URL) { u.User = url.UserPassword(mq.User, secretPassword) }),
			want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"refused the user or its password: check both"}},
		},
		{
			"bad virtual host", edit(func(u *url.URL) { u.Path = "/nowhere" }),
			want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"virtual host", "nowhere", "create it"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			log, _ := newLog(t)
			err := ends(t, func() error {
				_, err := rabbitmq.Dial(t.Context(), tc.url, rabbitmq.Options{Logger: log})
				return err
			})
			tc.want.says = append(tc.want.says, "rabbitmq: ")
			check(t, err, tc.want)
			if tc.want.is != waybill.ErrMisconfigured { //nolint:errorlint // one of ours
				return
			}
			// Lazy, the same ends Run on first contact.
			bus := dial(t, tc.url, rabbitmq.Options{Lazy: true})
			store := outboxes(t, waybill.Limits{})[2].store
			check(t, start(t, newRelay(t, store, bus, relay.Options{})).end(), want{is: tc.want.is, class: tc.want.class, says: tc.want.says})
			c := newConsumer(t, bus, consumer.Options{})
			if err := c.Handle(waybill.Subscription{Queue: "q"}, waybill.HandlerFor(waybill.NewTopic("a.b", waybill.JSON[string]()), ignore)); err != nil {
				t.Fatal(err)
			}
			check(t, start(t, c).end(), want{is: tc.want.is, class: tc.want.class, says: tc.want.says})
		})
	}
}

func ignore(context.Context, string) error { return nil }

func TestNoPermissionAtTheBroker(t *testing.T) { // RM-05
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	user := "u" + strings.TrimPrefix(mq.VHost, "waybill_test")
	bg := context.WithoutCancel(t.Context())
	if err := mq.CreateUser(t.Context(), user, secretPassword); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mq.DeleteUser(bg, user) })
	permit := func(configure, write, read string) {
		t.Helper()
		if err := mq.SetPermissions(t.Context(), mq.VHost, user, configure, write, read); err != nil {
			t.Fatal(err)
		}
	}
	limited := mq.URLFor(user, secretPassword)
	handler := waybill.HandlerFor(waybill.NewTopic("a.b", waybill.JSON[string]()), ignore)
	consume := func() error {
		c := newConsumer(t, dial(t, limited, rabbitmq.Options{Lazy: true}), consumer.Options{})
		if err := c.Handle(waybill.Subscription{Queue: "q", Bindings: []string{"a.b"}}, handler); err != nil {
			t.Fatal(err)
		}
		return start(t, c).end()
	}
	log, _ := newLog(t)
	_, err := rabbitmq.Dial(t.Context(), limited, rabbitmq.Options{Logger: log})
	check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"virtual host", mq.VHost, "permission"}})

	permit("", "", "")
	_, err = rabbitmq.Dial(t.Context(), limited, rabbitmq.Options{Logger: log})
	check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{`topic exchange "waybill"`, "create it, or permit the user to configure it"}})
	check(t, consume(), want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{`topic exchange "waybill"`, "create it, or permit"}})

	// Everything is there, but the user may not use it.
	admin := dial(t, mq.URL, rabbitmq.Options{})
	rcv, err := admin.Subscribe(t.Context(), core.Subscription{Queue: "q", Bindings: []string{"a.b"}, RetryDelays: consumer.DefaultRetry().Delays})
	if err != nil {
		t.Fatal(err)
	}
	if err := rcv.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// RabbitMQ 4.3 tells a user without any permission on an exchange not even that it is there
	permit("", "", "^waybill$")
	bus := dial(t, limited, rabbitmq.Options{})
	err = bus.Publish(t.Context(), []waybill.Envelope{{ID: "1", Topic: "a.b", Body: []byte(secretPayload)}}).FirstErr()
	check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{`exchange "waybill"`, "extend its write permission"}})
	permit("", ".*", "^waybill.*")
	check(t, consume(), want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{`queue "q"`, "read"}})
}

func TestQueueWithOtherArguments(t *testing.T) { // RM-05
	t.Parallel()
	handler := waybill.HandlerFor(waybill.NewTopic("a.b", waybill.JSON[string]()), ignore)
	for _, tc := range []struct {
		name    string
		prepare func(ch *amqp.Channel) error
		says    []string
	}{
		{"classic queue", func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare("q", true, false, false, false, nil)
			return err
		}, []string{`queue "q"`, "inequivalent arg", "change the options to match, or delete it"}},
		{"queue with a time to live", func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare("q.dlq", true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-message-ttl": 1000})
			return err
		}, []string{`queue "q.dlq"`, "x-", "change the options to match, or delete it"}},
		{"exchange of another type", func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare("waybill", "fanout", true, false, false, false, nil)
		}, []string{`exchange "waybill"`, "type", "change the options to match, or delete it"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			mq := testenv.RabbitMQ(t)
			ch := testenv.Channel(t, mq.URL)
			if err := tc.prepare(ch); err != nil {
				t.Fatal(err)
			}
			c := newConsumer(t, dial(t, mq.URL, rabbitmq.Options{Lazy: true}), consumer.Options{})
			if err := c.Handle(waybill.Subscription{Queue: "q"}, handler); err != nil {
				t.Fatal(err)
			}
			check(t, start(t, c).end(), want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: append(tc.says, "waybill/rabbitmq: declare")})
		})
	}
}

func TestTooLargeAndUnroutable(t *testing.T) { // RL-03 RL-06
	t.Parallel()
	pool := openPool(t, testenv.Postgres(t).DSN)
	migrate(t, pool)
	mq := testenv.RabbitMQ(t)
	o := newOutbox(t, pool, postgres.Options{})
	const limit = 1000
	bus := dial(t, mq.URL, rabbitmq.Options{MaxBodyBytes: limit})
	rcv, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "q", Bindings: []string{"a.b"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rcv.Close(t.Context()) }()

	// 300 MB straight to the transport, between two others.
	ok := waybill.Envelope{ID: "1", Topic: "a.b", Body: make([]byte, limit-len("1a.b"))}
	huge := waybill.Envelope{ID: "2", Topic: "a.b", Body: make([]byte, 300<<20)}
	res := ends(t, func() core.Results {
		return bus.Publish(t.Context(), []waybill.Envelope{ok, huge, {ID: "3", Topic: "a.b"}, {ID: "4", Topic: "no\xffwhere"}, {ID: "5", Topic: strings.Repeat("x", 256)}, {ID: "6", Topic: "no.where"}})
	})
	if res[0] != nil || res[2] != nil {
		t.Errorf("%v, %v", res[0], res[2])
	}
	check(t, res[1], want{class: waybill.ClassPermanent, says: []string{`"a.b"`, "314572800 bytes", "Options.MaxBodyBytes", "raise"}})
	if got := waybill.ReasonOf(res[1]); got != waybill.ReasonTooLarge {
		t.Errorf("reason %q", got)
	}
	// AMQP takes any bytes; Stage does not
	check(t, res[3], want{is: waybill.ErrUnroutable, class: waybill.ClassRejected, says: []string{`"no\xffwhere"`}})
	check(t, res[4], want{class: waybill.ClassPermanent, says: []string{"topic has 256 bytes", "at most 255"}})
	check(t, res[5], want{is: waybill.ErrUnroutable, class: waybill.ClassRejected, says: []string{`"no.where"`, `bind one to exchange "waybill"`}})

	// The same through the outbox.
	msgs := []waybill.Message{
		raw("a.b", waybill.Key("k")), waybill.RawMessage("a.b", "text/plain", []byte(strings.Repeat(secretPayload, 100)), waybill.Key("k")), raw("a.b", waybill.Key("k")),
		raw("c.d", waybill.ID("unroutable")), raw("a.b", waybill.Key("other")),
	}
	if _, err := stageOn(t, pool, o, msgs...); err != nil {
		t.Fatal(err)
	}
	fast := &waybill.Backoff{Kind: waybill.BackoffConstant, Base: 200 * time.Millisecond, Jitter: waybill.JitterNone}
	run := start(t, newRelay(t, o, bus, relay.Options{Routes: []relay.Route{{Backoff: fast}}}))
	patience.Until(t, "three published", func() bool {
		return number(t, pool, "SELECT count(*) FROM waybill.waybill_outbox") == 2 &&
			number(t, pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE id = 'unroutable' AND state IN (2, 4) AND attempts > 0") == 1
	})
	texts := map[string]string{}
	rows, err := pool.Query(t.Context(), "SELECT ARRAY[coalesce(reason, '') || '/' || id, last_error] FROM waybill.waybill_outbox")
	if err != nil {
		t.Fatal(err)
	}
	pairs, err := pgx.CollectRows(rows, pgx.RowTo[[2]string])
	if err != nil {
		t.Fatal(err)
	}
	for _, pair := range pairs {
		k, v := pair[0], pair[1]
		t.Logf("%s: %s", k, v)
		clean(t, v)
		reason, _, _ := strings.Cut(k, "/")
		texts[reason] = v
	}
	if !strings.Contains(texts["too_large"], "its body 2700") || !strings.Contains(texts[""], "no queue") {
		t.Errorf("%v", texts)
	}
	// It is published once a queue is bound.
	if err := testenv.Channel(t, mq.URL).QueueBind("q", "c.d", "waybill", false, nil); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "the unroutable one is published", func() bool {
		return number(t, pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE id = 'unroutable'") == 0
	})
	run.stop()
}

func TestForeignMessages(t *testing.T) { // CO-01 IN-06
	t.Parallel()
	pool := openPool(t, testenv.Postgres(t).DSN)
	migrate(t, pool)
	exec(t, pool, "CREATE TABLE seen (id text, n int)")
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	c := newConsumer(t, bus, consumer.Options{})
	handler, _ := inboxHandler(t, pool)
	if err := c.Handle(waybill.Subscription{Queue: "q", Bindings: []string{"#"}}, handler); err != nil {
		t.Fatal(err)
	}
	run := start(t, c)
	ch := testenv.Channel(t, mq.URL)
	patience.Until(t, "the queue", func() bool {
		ch := testenv.Channel(t, mq.URL)
		q, err := ch.QueueDeclarePassive("q", true, false, false, false, nil)
		return err == nil && q.Consumers > 0
	})
	odd := amqp.Table{
		"bool": true, "i8": int8(-1), "i16": int16(2), "i32": int32(3), "i64": int64(math.MinInt64), "u8": uint8(255), "f32": float32(1.5), "f64": math.MaxFloat64,
		"decimal": amqp.Decimal{Scale: 2, Value: 314}, "time": time.Unix(1, 0), "bytes": []byte{0xff, 0xfe}, "nil": nil, "text": "a\x00b\xff",
		"table": amqp.Table{"a": []any{int32(1), amqp.Table{"b": nil, "f": 1e300}}}, "list": []any{true, "x", []byte{1}},
		"cloudEvents_time": int64(5), "cloudEvents_hlc": amqp.Table{"a": "b"}, "cloudEvents:expirytime": "tomorrow", "cloudEvents_lineage": []any{"a"},
		"cloudEvents_source": int32(7), "traceparent": true, "x-waybill-attempt": "many", "waybill-attempt": amqp.Table{}, "x-death": "yes", "x-delivery-count": "lots",
	}
	for _, m := range []struct {
		id      string
		headers amqp.Table
		body    string
		key     string
	}{
		{"odd", odd, `{"n":1}`, "a.b"},
		{"cut", nil, `{"n":1,"x":"` + secretPayload, "a.b"},
		{"type", nil, `{"n":"` + secretPayload + `"}`, "a.b"},
		{"", nil, `{"n":2}`, "a.b"},
		{"two", amqp.Table{"cloudEvents_id": "other"}, `{"n":3}`, "a.b"},
		{strings.Repeat("i", 255), amqp.Table{"cloudEvents_source": strings.Repeat("s", 300)}, `{"n":4}`, "a.b"},
		{"media", nil, `{"n":5}`, "a.b"},
		{"nobody", nil, `{"n":6}`, "x.y"},
		{"utf8", nil, "{\"n\":8,\"x\":\"\xff\xfe\"", "a.b"},
		{"large", amqp.Table{"big": strings.Repeat("h", 128_000)}, `{"n":"x"}`, "a.b"},
		{"last", nil, `{"n":7}`, "a.b"},
	} {
		p := amqp.Publishing{MessageId: m.id, Headers: m.headers, Body: []byte(m.body), ContentType: "application/json"}
		if m.id == "media" {
			p.ContentType = "text/xml"
		}
		if err := ch.PublishWithContext(t.Context(), "waybill", m.key, true, false, p); err != nil {
			t.Fatal(err)
		}
	}
	got := parked(t, ch, "q", 9)
	for id, want := range map[string][]string{
		"cut": {"undecodable", `topic "a.b"`, "invalid JSON at byte"}, "type": {"undecodable", "does not fit int", `field "n"`},
		"": {"no_id", "let the producer set one", "Options.ID"}, "two": {"id_conflict", "both alike", `"two"`, `"other"`},
		strings.Repeat("i", 255): {"no_id", "source", "300 bytes"}, "media": {"undecodable", `"text/xml"`, `"application/json"`},
		"nobody": {"no_handler", "register one", `"x.y"`, `queue "q"`},
		"utf8":   {"undecodable", `topic "a.b"`, "invalid JSON at byte"}, "large": {"undecodable", "does not fit int"},
	} {
		h, ok := got[id]
		if !ok {
			t.Errorf("%.20s was not parked", id)
			continue
		}
		text := ""
		for _, name := range []string{"waybill-reason", "waybill-error"} {
			s, _ := h[name].(string)
			text += name + "=" + s + " " //nolint:perfsprint // two of them
		}
		t.Logf("%.20s: %s", id, text)
		clean(t, text)
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%.20s does not say %q: %s", id, w, text)
			}
		}
	}
	patience.Until(t, "the neighbours", func() bool { return number(t, pool, "SELECT count(*) FROM seen") == 2 })
	run.stop()
	if n := depth(t, ch, "q"); n != 0 {
		t.Errorf("%d left", n)
	}
}

func TestInboxTableMissing(t *testing.T) { // RL-07
	t.Parallel()
	pool := openPool(t, testenv.Postgres(t).DSN)
	exec(t, pool, "CREATE TABLE seen (id text, n int)")
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	sub := core.Subscription{Queue: "q", Bindings: []string{"a.b"}, RetryDelays: consumer.DefaultRetry().Delays}
	rcv, err := bus.Subscribe(t.Context(), sub)
	if err != nil {
		t.Fatal(err)
	}
	if err := rcv.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var batch []waybill.Envelope
	for range 5 {
		batch = append(batch, waybill.Envelope{ID: waybill.NewID(), Topic: "a.b", Source: "/s", ContentType: "application/json", Body: []byte(`{"n":1}`)})
	}
	if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
		t.Fatal(err)
	}
	handler, calls := inboxHandler(t, pool)
	c := newConsumer(t, bus, consumer.Options{})
	if err := c.Handle(waybill.Subscription{Queue: sub.Queue, Bindings: sub.Bindings}, handler); err != nil {
		t.Fatal(err)
	}
	err = start(t, c).end()
	check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"waybill/consumer: queue q: ", `schema "waybill"`, "run the migrations"}})
	ch := testenv.Channel(t, mq.URL)
	patience.Until(t, "the messages are in the queue", func() bool { return depth(t, ch, "q") == len(batch) })
	if calls.len() > 0 {
		t.Errorf("handled %s", calls)
	}
	migrate(t, pool)
	run := start(t, c)
	patience.Until(t, "all are handled", func() bool { return number(t, pool, "SELECT count(*) FROM seen") == len(batch) })
	// The table goes away while it runs: nothing is lost, nothing is parked.
	exec(t, pool, "ALTER TABLE waybill.waybill_inbox RENAME TO gone")
	for i := range batch {
		batch[i].ID = waybill.NewID()
	}
	if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "the subscription is paused, and has probed", func() bool {
		check, _ := c.Health(t.Context()).Check("queue q")
		return strings.Contains(check.Text, "paused, as something") && !strings.Contains(check.Text, " 0 probes")
	})
	exec(t, pool, "ALTER TABLE waybill.gone RENAME TO waybill_inbox")
	patience.Until(t, "the rest is handled", func() bool { return number(t, pool, "SELECT count(*) FROM seen") == 2*len(batch) })
	run.stop()
	if n := depth(t, ch, "q.dlq"); n != 0 {
		t.Errorf("%d parked", n)
	}
}
