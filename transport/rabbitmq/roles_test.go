package rabbitmq_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

const password = "hunter2-secret"

// newUser makes a user that may use the management API but has no permission, and deletes it at the end.
func newUser(t *testing.T, mq *testenv.MQ, role string) string {
	t.Helper()
	user := role + "-" + waybill.NewID()
	properties := map[string]string{"password": password, "tags": "management"}
	if err := mq.Do(t.Context(), http.MethodPut, "/api/users/"+user, properties, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mq.DeleteUser(context.WithoutCancel(t.Context()), user) })
	return user
}

// provision imports the definitions of a topology, permissions included, as a pipeline would, and returns the users'
// AMQP URLs.
func provision(t *testing.T, mq *testenv.MQ, want topology.Topology) (users topology.Users, relay, consumer, operator string) {
	t.Helper()
	users = topology.Users{Relay: newUser(t, mq, "relay"), Consumer: newUser(t, mq, "consumer"), Operator: newUser(t, mq, "operator")}
	file, err := want.Definitions(mq.VHost, users)
	if err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "the definitions are imported", func() bool { // a busy broker answers with 500
		err = mq.Do(t.Context(), http.MethodPost, "/api/definitions", json.RawMessage(file), nil)
		return err == nil || !strings.Contains(err.Error(), "status 500")
	})
	if err != nil {
		t.Fatalf("import: %v\n%s", err, file)
	}
	return users, mq.URLFor(users.Relay, password), mq.URLFor(users.Consumer, password), mq.URLFor(users.Operator, password)
}

// RM-06, RM-07: definitions are imported into a real broker; then a relay, a consumer and an operator, each with the
// permissions that were generated and no right to configure anything, do all of their work.
func TestRolesDoTheirJob(t *testing.T) {
	t.Parallel()
	for _, opts := range []rabbitmq.Options{{}, {Prefix: "test (1).", Exchange: "sh.p|$+", QueueType: topology.Classic}} {
		t.Run(opts.Prefix, func(t *testing.T) {
			t.Parallel()
			mq := testenv.RabbitMQ(t)
			sub := core.Subscription{
				Queue: "bill[ing]", Bindings: []string{"orders.*"},
				RetryDelays: []time.Duration{50 * time.Millisecond},
			}
			_, relayURL, consumerURL, operatorURL := provision(t, mq, topology.Of(opts.TopologyOptions(), sub))
			opts.Passive, opts.ManagementURL = true, mq.ManagementURL
			relay, consumer, operator := dial(t, relayURL, opts), dial(t, consumerURL, opts), dial(t, operatorURL, opts)

			r := subscribe(t, consumer, sub)
			if err := relay.Publish(t.Context(), envelopes(5, "orders.placed")).FirstErr(); err != nil {
				t.Fatal(err)
			}
			ds := receive(t, r, 5)
			settle(t, r, core.AckDone(ds[0]), core.AckRetry(ds[1], 40*time.Millisecond, nil), core.AckRetry(ds[2], 0, nil),
				core.AckRelease(ds[3]), core.AckReject(ds[4], waybill.ReasonRejected, errors.New("no")))
			for range 2 { // given back twice, a copy is made
				for _, d := range receive(t, r, 1) {
					settle(t, r, core.AckRelease(d))
				}
			}
			for _, d := range receive(t, r, 3) {
				if d.Envelope.Topic != "orders.placed" {
					t.Errorf("topic %s", d.Envelope.Topic)
				}
				settle(t, r, core.AckDone(d))
			}
			patience.Until(t, "parked", func() bool {
				n, err := operator.ParkedDepth(t.Context(), sub.Queue)
				return err == nil && n == 1
			})
			if list, err := operator.ListParked(t.Context(), sub.Queue, admin.ParkedFilter{}, 10); err != nil || len(list) != 1 ||
				list[0].Envelope.Topic != "orders.placed" {
				t.Fatalf("%v, %v", list, err)
			}
			if n, err := operator.ReplayParked(t.Context(), admin.ParkedRequest{Queue: sub.Queue, All: true}); err != nil || n != 1 {
				t.Fatalf("%d, %v", n, err)
			}
			settle(t, r, core.AckReject(receive(t, r, 1)[0], waybill.ReasonRejected, nil))
			patience.Until(t, "purged", func() bool {
				n, err := operator.PurgeParked(t.Context(), admin.ParkedRequest{Queue: sub.Queue, All: true})
				if err != nil {
					t.Fatal(err)
				}
				return n == 1
			})

			// And no role does another one's.
			if _, err := relay.Subscribe(t.Context(), sub); !errors.Is(err, waybill.ErrMisconfigured) {
				t.Errorf("the relay subscribed: %v", err)
			}
			if err := consumer.Publish(t.Context(), envelopes(1, "orders.placed")).FirstErr(); !errors.Is(err, waybill.ErrMisconfigured) {
				t.Errorf("the consumer published: %v", err)
			}
			_, err := consumer.ListParked(t.Context(), sub.Queue, admin.ParkedFilter{}, 1)
			if !errors.Is(err, waybill.ErrMisconfigured) && !empty(t, mq, opts.Prefix+sub.Queue+".dlq") {
				t.Errorf("the consumer listed what is parked: %v", err)
			}
		})
	}
}

func empty(t *testing.T, mq *testenv.MQ, queue string) bool {
	t.Helper()
	q, err := testenv.Channel(t, mq.URL).QueueDeclarePassive(queue, true, false, false, false, nil)
	return err == nil && q.Messages == 0
}

// RM-06: every role is refused everything but its job, for every object of the topology and for names that look like
// them.
func TestRolesDoNothingElse(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	subs := []core.Subscription{
		{Queue: "billing.orders", Bindings: []string{"#"}, RetryDelays: []time.Duration{time.Second, time.Minute}},
		{Queue: "mail", Bindings: []string{"#"}, RetryDelays: []time.Duration{time.Second}},
	}
	shop := topology.Of(topology.Options{Exchange: "shop"}, subs...)
	users, _, _, _ := provision(t, mq, shop)
	admin := testenv.Channel(t, mq.URL)
	exchanges, queues := []string{"", "amq.topic", "shopX", "Xshop", "shop.dlx", "shop.dlx.other", "shop.dlx.mailX", "shop.delay_1sX", "shopXdlxXmail", "shop.delay_1m1s"},
		[]string{"billing.ordersX", "billingXorders", "Xmail", "mail.dlqX", "other"}
	for _, e := range exchanges[2:] {
		if err := admin.ExchangeDeclare(e, "fanout", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range queues {
		if _, err := admin.QueueDeclare(q, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range shop.Exchanges {
		exchanges = append(exchanges, e.Name)
	}
	for _, q := range shop.Queues {
		queues = append(queues, q.Name)
	}
	for _, c := range []struct {
		user        string
		write, read []string
	}{
		{users.Relay, []string{"shop"}, nil},
		{users.Consumer, []string{"shop.dlx.billing.orders", "shop.dlx.mail"}, []string{"billing.orders", "mail"}},
		{users.Operator, []string{"shop.dlx.billing.orders", "shop.dlx.mail"}, []string{"billing.orders.dlq", "mail.dlq"}},
	} {
		conn, err := amqp.Dial(mq.URLFor(c.user, password))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		try := func(what string, do func(*amqp.Channel) error) bool { return permitted(t, conn, c.user+", "+what, do) }
		for _, e := range exchanges {
			may := try("write "+e, func(ch *amqp.Channel) error {
				return ch.PublishWithContext(t.Context(), e, "nobody", false, false, amqp.Publishing{})
			})
			if may != slices.Contains(c.write, e) {
				t.Errorf("%s may write to exchange %q: %t", c.user, e, may)
			}
			if e != "" && try("configure "+e, func(ch *amqp.Channel) error { return ch.ExchangeDelete(e, true, false) }) {
				t.Errorf("%s may delete exchange %q", c.user, e)
			}
		}
		for _, q := range queues {
			may := try("read "+q, func(ch *amqp.Channel) error { _, _, err := ch.Get(q, true); return err })
			if may != slices.Contains(c.read, q) {
				t.Errorf("%s may read queue %q: %t", c.user, q, may)
			}
			for what, do := range map[string]func(*amqp.Channel) error{
				"delete": func(ch *amqp.Channel) error { _, err := ch.QueueDelete(q, false, false, false); return err },
				"bind":   func(ch *amqp.Channel) error { return ch.QueueBind(q, "x", "shop", false, nil) },
				"make": func(ch *amqp.Channel) error {
					_, err := ch.QueueDeclare(q+"2", true, false, false, false, nil)
					return err
				},
			} {
				if try(what+" "+q, do) {
					t.Errorf("%s may %s queue %q", c.user, what, q)
				}
			}
		}
	}
}

// permitted reports whether the broker permits what do does on a new channel.
func permitted(t *testing.T, conn *amqp.Connection, what string, do func(*amqp.Channel) error) bool {
	t.Helper()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	err = do(ch)
	if err == nil { // a publish is answered by a later question
		err = ch.Qos(1, 0, false)
	}
	if err == nil {
		_ = ch.Close()
		return true
	}
	if e := <-closed; e == nil || e.Code != amqp.AccessRefused {
		t.Errorf("%s: %v", what, err)
	}
	return false
}

// RM-06, SE-02: two services share an exchange. With the permissions of one, its consumer and its operator put no
// message into a queue of the other, by no exchange and no key. They read, bind, empty and delete nothing of the other.
// The other receives what its relay published, and no more.
func TestServicesDoNotForge(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	opts := rabbitmq.Options{Exchange: "shop", Passive: true}
	pay := core.Subscription{Queue: "pay", Bindings: []string{"payments.*"}, RetryDelays: []time.Duration{50 * time.Millisecond}}
	mail := core.Subscription{Queue: "mail", Bindings: []string{"mails.*"}, RetryDelays: []time.Duration{50 * time.Millisecond}}
	theirs, ours := topology.Of(opts.TopologyOptions(), mail), topology.Of(opts.TopologyOptions(), pay)
	mails, _, _, _ := provision(t, mq, theirs)
	_, relayURL, consumerURL, operatorURL := provision(t, mq, ours)
	for _, user := range []string{mails.Consumer, mails.Operator} {
		conn, err := amqp.Dial(mq.URLFor(user, password))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		for _, e := range append([]topology.Exchange{{Name: ""}, {Name: "amq.topic"}, {Name: "shop.dlx"}}, append(ours.Exchanges, theirs.Exchanges...)...) {
			for _, key := range []string{"pay", "pay.return", "pay.dlq", "pay.delay_50ms", "payments.made"} {
				may := permitted(t, conn, user+" forges by "+e.Name, func(ch *amqp.Channel) error {
					return ch.PublishWithContext(t.Context(), e.Name, key, false, false, amqp.Publishing{
						MessageId: "pay-77", Body: []byte("forged"),
						Headers: amqp.Table{"cloudEvents_topic": "payments.made", "cloudEvents_source": "/payments", "waybill-attempt": int64(3)},
					})
				})
				if own := e.Name == "shop.dlx.mail"; may != own {
					t.Errorf("%s may write to exchange %q: %t", user, e.Name, may)
				}
			}
		}
		for _, q := range ours.Queues {
			for what, do := range map[string]func(*amqp.Channel) error{
				"read":   func(ch *amqp.Channel) error { _, _, err := ch.Get(q.Name, true); return err },
				"empty":  func(ch *amqp.Channel) error { _, err := ch.QueuePurge(q.Name, false); return err },
				"delete": func(ch *amqp.Channel) error { _, err := ch.QueueDelete(q.Name, false, false, false); return err },
				"unbind": func(ch *amqp.Channel) error { return ch.QueueUnbind(q.Name, "payments.*", "shop", nil) },
			} {
				if permitted(t, conn, user+" "+what, do) {
					t.Errorf("%s may %s queue %q", user, what, q.Name)
				}
			}
		}
		for _, e := range ours.Exchanges {
			if permitted(t, conn, user+" binds", func(ch *amqp.Channel) error { return ch.QueueBind("mail", "pay.return", e.Name, false, nil) }) {
				t.Errorf("%s may bind to exchange %q", user, e.Name)
			}
		}
	}
	relay, consumer, operator := dial(t, relayURL, opts), dial(t, consumerURL, opts), dial(t, operatorURL, opts)
	if err := relay.Publish(t.Context(), envelopes(1, "payments.made")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r := subscribe(t, consumer, pay)
	for attempt := 1; attempt <= 2; attempt++ { // a forged one would have come before it
		d := receive(t, r, 1)[0]
		if d.Attempt != attempt || string(d.Envelope.Body) == "forged" {
			t.Fatalf("attempt %d of message %q came, want attempt %d of what was published", d.Attempt, d.Envelope.ID, attempt)
		}
		settle(t, r, map[int]core.Ack{1: core.AckRetry(d, 50*time.Millisecond, nil), 2: core.AckReject(d, waybill.ReasonRejected, nil)}[attempt])
	}
	parkedCount(t, operator, "pay", 1)
}

// SE-02: the relays of two services publish to one exchange, and the topic permissions of docs/rabbitmq.md bound each
// to its own topics. None puts a message of another topic into a queue: not by the key, not by more keys in the headers
// CC and BCC, and not by the header of the topic. A message that comes by CC has the topic that its sender may send, so
// that Subscription.Sources refuses it.
func TestRelaysKeepToTheirTopics(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	opts := rabbitmq.Options{Exchange: "shop", Passive: true}
	pay := core.Subscription{Queue: "pay", Bindings: []string{"payments.*"}}
	mail := core.Subscription{Queue: "mail", Bindings: []string{"mails.*"}}
	mails, _, _, _ := provision(t, mq, topology.Of(opts.TopologyOptions(), mail))
	pays, relayURL, consumerURL, _ := provision(t, mq, topology.Of(opts.TopologyOptions(), pay))
	for user, topics := range map[string]string{mails.Relay: `^mails\.`, pays.Relay: `^payments\.`} {
		err := mq.Do(t.Context(), http.MethodPut, "/api/topic-permissions/"+url.PathEscape(mq.VHost)+"/"+user, map[string]string{"exchange": "shop", "write": topics, "read": "^$"}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	evil := dial(t, mq.URLFor(mails.Relay, password), opts)
	if err := evil.Publish(t.Context(), envelopes(1, "payments.made"))[0]; waybill.ReasonOf(err) != waybill.ReasonForbidden {
		t.Errorf("it publishes a topic of the other: %v", err)
	}
	if err := evil.Publish(t.Context(), envelopes(1, "mails.opened")).FirstErr(); err != nil {
		t.Errorf("it does not publish its own: %v", err)
	}
	conn, err := amqp.Dial(mq.URLFor(mails.Relay, password))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	send := func(key string, more amqp.Table) bool {
		headers := amqp.Table{"cloudEvents_topic": "payments.made", "cloudEvents_source": "/payments", "waybill-attempt": int64(3)}
		maps.Copy(headers, more)
		return permitted(t, conn, "forges by "+key, func(ch *amqp.Channel) error {
			return ch.PublishWithContext(t.Context(), "shop", key, false, false, amqp.Publishing{MessageId: "forged", Headers: headers, Body: []byte("forged")})
		})
	}
	if send("payments.made", nil) || send("payments.made", amqp.Table{"CC": []any{"mails.opened"}}) {
		t.Error("it may publish the key of another topic")
	}
	send("mails.opened", nil)
	forged := 0
	for _, name := range []string{"CC", "BCC"} {
		if send("mails.opened", amqp.Table{name: []any{"payments.made"}}) {
			forged++
		}
	}
	relay, consumer := dial(t, relayURL, opts), dial(t, consumerURL, opts)
	if err := relay.Publish(t.Context(), envelopes(1, "payments.made")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r := subscribe(t, consumer, pay)
	for _, d := range receive(t, r, forged+1) {
		if want := map[bool]string{true: "mails.opened", false: "payments.made"}[d.Envelope.ID == "forged"]; d.Envelope.Topic != want || d.Attempt != 1 {
			t.Errorf("message %q came with topic %q, attempt %d; want %q", d.Envelope.ID, d.Envelope.Topic, d.Attempt, want)
		}
		settle(t, r, core.AckDone(d))
	}
}

// managementURL returns the address of the management API with a user.
func managementURL(t *testing.T, mq *testenv.MQ, user, password string) string {
	t.Helper()
	u, err := url.Parse(mq.ManagementURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

// RM-07: rabbitmqctl imports the file too.
func testImportByRabbitmqctl(t *testing.T, broker *testenv.RabbitMQServer) {
	t.Helper()
	sub := core.Subscription{Queue: "q", Bindings: []string{"#"}, RetryDelays: []time.Duration{time.Second}}
	file, err := topology.Of(topology.Options{}, sub).Definitions("fresh",
		topology.Users{Relay: broker.User, Consumer: broker.User, Operator: broker.User})
	if err != nil {
		t.Fatal(err)
	}
	if err := broker.Ctl(t.Context(), "import_definitions", writeFile(t, file)); err != nil {
		t.Fatal(err)
	}
	bus := dial(t, broker.AMQPURL("fresh"), rabbitmq.Options{Passive: true, ManagementURL: broker.ManagementURL})
	r := subscribe(t, bus, sub)
	if err := bus.Publish(t.Context(), envelopes(1, "a")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	settle(t, r, core.AckDone(receive(t, r, 1)[0]))
	if drift, err := bus.Drift(t.Context()); err != nil || len(drift) > 0 {
		t.Errorf("%v, %v", drift, err)
	}
}

func writeFile(t *testing.T, content []byte) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "waybill-definitions-") //nolint:usetesting // readable for the broker's tools, unlike t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "definitions.json")
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
