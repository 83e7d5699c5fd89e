package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// RL-06: a message that closes its channel is found and blamed, its neighbours are not, nor those of other calls.
func testSuspects(t *testing.T, broker *testenv.RabbitMQServer) {
	t.Helper()
	bus := dial(t, vhost(t, broker).URL, rabbitmq.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}, Prefetch: 1000})
	const n = 200
	batch := envelopes(n, "a.b")
	bad := map[int]bool{0: true, 70: true, 71: true, n - 1: true}
	for i := range bad {
		batch[i].Body = make([]byte, 100_001)
	}
	var wg sync.WaitGroup
	wg.Go(func() { // a neighbour on the same channel
		for i := range 20 {
			if err := bus.Publish(t.Context(), []waybill.Envelope{envelope(fmt.Sprintf("n%05d", i), "a.c")}).FirstErr(); err != nil {
				t.Errorf("neighbour %d: %v", i, err)
			}
		}
	})
	for i, err := range bus.Publish(t.Context(), batch) {
		switch {
		case bad[i] && (waybill.ClassOf(err) != waybill.ClassPermanent || waybill.ReasonOf(err) != waybill.ReasonTooLarge):
			t.Errorf("slot %d: class %s, reason %q: %v", i, waybill.ClassOf(err), waybill.ReasonOf(err), err)
		case !bad[i] && err != nil:
			t.Errorf("slot %d: %v", i, err)
		}
	}
	wg.Wait()
	seen := map[string]bool{}
	for len(seen) < n-len(bad)+20 {
		for _, d := range receive(t, r, 1) {
			seen[d.Envelope.ID] = true
			settle(t, r, core.AckDone(d))
		}
	}
}

// TR-08, RL-06: testRefusedAlone lowers the broker's limit of a message. Only new channels have it.
func testRefusedAlone(t *testing.T, broker *testenv.RabbitMQServer) {
	t.Helper()
	const limit, before = "max_message_size", 100_000
	mq := vhost(t, broker)
	set := func(ctx context.Context, bytes int) error {
		return broker.Ctl(ctx, "eval", fmt.Sprintf("application:set_env(rabbit, %s, %d), "+
			`rabbit_networking:close_connections(rabbit_networking:connections(), "the limit has changed").`, limit, bytes))
	}
	opts := rabbitmq.Options{MaxBodyBytes: before * 9 / 10}
	h := harness(t, mq, dial(t, mq.URL, opts), opts)
	h.Refuse, h.SizeLimit = func(ctx context.Context, what transporttest.Refused) (func() error, error) {
		if what != transporttest.RefuseLarge {
			return nil, transporttest.ErrNotDeclared
		}
		return func() error { return set(context.WithoutCancel(ctx), before) }, set(ctx, 4096)
	}, limit
	for _, c := range transporttest.Checks() {
		if c.Name == "refused-alone" {
			if err := c.Run(t.Context(), h); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// RL-03, TR-03, CO-20: a publisher does not make an exchange again that was deleted, since nothing would be bound to
// it: that is an outage. A consumer does, with its bindings. A user that may not write is told so, at no cost to the
// message.
func TestMissingAndForbidden(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus, consumer := dial(t, mq.URL, rabbitmq.Options{}), dial(t, mq.URL, rabbitmq.Options{})
	r := subscribe(t, consumer, core.Subscription{Queue: "q", Bindings: []string{"#"}})
	if err := testenv.Channel(t, mq.URL).ExchangeDelete("waybill", false, false); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for i, err := range bus.Publish(t.Context(), envelopes(10, "a")) {
			if waybill.ClassOf(err) != waybill.ClassOutage || !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "was deleted") {
				t.Errorf("slot %d: %v", i, err)
			}
		}
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	keeper := dial(t, mq.URL, rabbitmq.Options{})
	keeper.AssertEvery(50 * time.Millisecond)
	subscribe(t, keeper, core.Subscription{Queue: "q", Bindings: []string{"#"}})
	if err := bus.Publish(t.Context(), envelopes(10, "a")).FirstErr(); err != nil {
		t.Error(err)
	}
	if err := testenv.Channel(t, mq.URL).ExchangeDelete("waybill", false, false); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "the running consumer brings exchange and binding back", func() bool {
		return bus.Publish(t.Context(), envelopes(10, "a")).FirstErr() == nil
	})
	user := "u" + waybill.NewID()
	if err := mq.CreateUser(t.Context(), user, "secret-password"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mq.DeleteUser(context.WithoutCancel(t.Context()), user) })
	permit := func(configure, write, read string) {
		t.Helper()
		if err := mq.SetPermissions(t.Context(), mq.VHost, user, configure, write, read); err != nil {
			t.Fatal(err)
		}
	}
	permit("^$", "^waybill$", "")
	// an existing object need not be configured
	restricted := dial(t, mq.URLFor(user, "secret-password"), rabbitmq.Options{})
	if err := restricted.Publish(t.Context(), envelopes(3, "a")).FirstErr(); err != nil {
		t.Error(err)
	}
	if _, err := restricted.Subscribe(t.Context(), core.Subscription{Queue: "other"}); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("subscribe to a missing queue: %v", err)
	}
	permit("^$", "^$", "")
	patience.Until(t, "forbidden", func() bool {
		err := restricted.Publish(t.Context(), envelopes(3, "a")).FirstErr()
		if errors.Is(err, waybill.ErrMisconfigured) && waybill.ClassOf(err) == waybill.ClassOutage {
			return true
		}
		// Connections cache permissions; young ones are not listed yet.
		if _, err := mq.CloseConnections(t.Context(), mq.VHost); err != nil {
			t.Fatal(err)
		}
		return false
	})
}

// RM-02, RM-05: a queue that is there with other arguments is named, with the cure.
func TestOtherArguments(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	if _, err := testenv.Channel(t, mq.URL).QueueDeclare("q", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	_, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "q"})
	if !errors.Is(err, waybill.ErrMisconfigured) {
		t.Fatal(err)
	}
	t.Log(err)
}

// TR-03: a message in flight when the connection was cut is an outage, never a success; then it works again, with its
// consumers.
func TestConnectionCut(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	proxy := testenv.NewProxy(t, hostOf(t, mq.URL))
	bus := dial(t, proxy.URL(mq.URL), rabbitmq.Options{ReconnectMax: 200 * time.Millisecond})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}, Prefetch: 100})
	published := map[string]bool{}
	for round := range 5 {
		batch := envelopes(50, "a")
		for i := range batch {
			batch[i].ID = fmt.Sprintf("r%d-%d", round, i)
		}
		switch round {
		case 1: // confirms are lost
			proxy.Blackhole(testenv.Down)
			time.AfterFunc(300*time.Millisecond, func() { proxy.Cut(); proxy.Heal() })
		case 2: // in the middle of a body
			proxy.CutAfter(testenv.Up, 3000)
		case 3:
			proxy.CutAfter(testenv.Down, 100)
		}
		for pass := 0; len(batch) > 0; pass++ {
			var again []waybill.Envelope
			for i, err := range bus.Publish(t.Context(), batch) {
				switch {
				case err == nil:
					published[batch[i].ID] = true
				case waybill.ClassOf(err) != waybill.ClassOutage:
					t.Fatalf("round %d: %v", round, err)
				default:
					again = append(again, batch[i])
				}
			}
			if round == 1 && pass == 0 && len(again) < 50 {
				t.Error("success without a confirm")
			}
			batch = again
		}
	}
	for len(published) > 0 {
		d := receive(t, r, 1)[0]
		delete(published, d.Envelope.ID)
		_ = r.Settle(t.Context(), []core.Ack{core.AckDone(d)}) // may be stale
	}
}

// TR-03: a stale delivery is not settled, and comes again; the receiver goes on by itself.
func TestStaleDelivery(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	proxy := testenv.NewProxy(t, hostOf(t, mq.URL))
	bus := dial(t, proxy.URL(mq.URL), rabbitmq.Options{ReconnectMax: 200 * time.Millisecond})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}})
	if err := bus.Publish(t.Context(), envelopes(2, "a")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	old := receive(t, r, 2)
	proxy.Cut()
	again := receive(t, r, 2)
	if err := r.Settle(t.Context(), []core.Ack{core.AckDone(old[0])}).FirstErr(); waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("settle of a stale delivery: %v", err)
	}
	if again[0].Redeliveries != 1 || again[0].Attempt != 1 {
		t.Errorf("redeliveries %d, attempt %d", again[0].Redeliveries, again[0].Attempt)
	}
	settle(t, r, core.AckDone(again[0]), core.AckDone(again[1]))
	if err := r.Settle(t.Context(), []core.Ack{core.AckDone(again[0])}).FirstErr(); err == nil {
		t.Error("settled twice")
	}
	nothing(t, bus, r, "a")
}

// TR-03: a broker that blocks publishers or hangs does not hang a publish; acknowledgements still work; a killed one
// costs time only.
func testBrokerTrouble(t *testing.T, broker *testenv.RabbitMQServer) {
	t.Helper()
	mq := vhost(t, broker)
	bus := dial(t, mq.URL, rabbitmq.Options{
		Connection: rabbitmq.ConnectionOptions{Heartbeat: time.Second}, ReconnectMax: 300 * time.Millisecond,
		ConnectTimeout: 2 * time.Second,
	})
	// Deliveries held while the broker blocks are on a connection that a busy machine does not end by its
	// heartbeat.
	calm := subscribe(t, dial(t, mq.URL, rabbitmq.Options{}), core.Subscription{Queue: "calm", Bindings: []string{"#"}})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}})
	declared := time.Now()
	publish := func(step string, limit time.Duration, want waybill.Class) error {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		start := time.Now()
		err := bus.Publish(ctx, envelopes(5, "a")).FirstErr()
		if took := time.Since(start); took > limit+patience.For(10*time.Second) { // nightly
			t.Errorf("%s: publish hangs: it took %s with a limit of %s", step, took, limit)
		}
		if (err == nil) != (want == waybill.ClassUnknown) || waybill.ClassOf(err) != want {
			t.Errorf("%s: class %s, want %s: %v", step, waybill.ClassOf(err), want, err)
		}
		return err
	}
	_ = publish("at first", time.Minute, waybill.ClassUnknown)
	held := receive(t, calm, 5)
	large := dial(t, vhost(t, broker).URL, rabbitmq.Options{PublishConnections: 1, PublishTimeout: time.Minute})

	if err := broker.RaiseMemoryAlarm(t.Context()); err != nil {
		t.Fatal(err)
	}
	const blocked = "the broker blocks publishers" // else it was the time limit that ended the call
	// more than the sockets and the buffer hold, before the broker says that it blocks
	list := envelopes(64, "a")
	for i, body := 0, make([]byte, 1<<20); i < len(list); i++ {
		list[i].Body = body
	}
	err := large.Publish(t.Context(), append(list, envelopes(1, "a")...))[len(list)]
	if waybill.ClassOf(err) != waybill.ClassOutage || !strings.Contains(err.Error(), blocked) {
		t.Errorf("a large publish to a broker that blocks: %v", err)
	}
	// the broker blocks a connection at its first publish after the alarm, which may still be confirmed
	patience.Until(t, "the broker blocks the connection", func() bool {
		err := bus.Publish(t.Context(), envelopes(1, "a")).FirstErr()
		return err != nil && strings.Contains(err.Error(), blocked)
	})
	for range 3 {
		if err := publish("while it blocks", time.Minute, waybill.ClassOutage); err != nil && !strings.Contains(err.Error(), blocked) {
			t.Errorf("a publish to a blocked broker ended by its time limit: %v", err)
		}
	}
	for _, d := range held {
		settle(t, calm, core.AckDone(d))
	}
	if err := broker.ClearMemoryAlarm(t.Context()); err != nil {
		t.Fatal(err)
	}
	working := func(what string) {
		t.Helper()
		patience.Until(t, "publish after "+what, func() bool {
			return bus.Publish(t.Context(), []waybill.Envelope{envelope(what, "a")}).FirstErr() == nil
		})
		for {
			d := receive(t, r, 1)[0]
			_ = r.Settle(t.Context(), []core.Ack{core.AckDone(d)})
			if d.Envelope.ID == what {
				return
			}
		}
	}
	working("alarm")

	broker.Pause()
	_ = publish("while it hangs", time.Second, waybill.ClassOutage)
	_ = publish("while it hangs, again", time.Second, waybill.ClassOutage)
	broker.Resume()
	working("pause")

	<-time.After(testenv.DefinitionsOnDisk - time.Since(declared))
	_ = publish("before the kill", time.Minute, waybill.ClassUnknown)
	broker.Kill()
	_ = publish("after the kill", time.Second, waybill.ClassOutage)
	if err := broker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	working("kill")
}

// RM-04, CO-05, CO-18: while a message cannot be parked it stays with its receiver, and can be settled again. It does
// not come again, and does not look like one that kills its consumers. A receiver that closes meanwhile leaves it to
// the next one.
func TestFailedCopyIsSettledAgain(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	sub := core.Subscription{Queue: "q", Bindings: []string{"#"}, Prefetch: 10}
	r := subscribe(t, bus, sub)
	if err := mq.SetPolicy(t.Context(), mq.VHost, "full", `^q\.dlq$`, "queues", map[string]any{"max-length": 1}); err != nil {
		t.Fatal(err)
	}
	ch := testenv.Channel(t, mq.URL)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "a full dead-letter queue", func() bool {
		confirm, err := ch.PublishWithDeferredConfirm("", "q.dlq", true, false, amqp.Publishing{MessageId: "filler"})
		if err != nil {
			t.Fatal(err)
		}
		return !confirm.Wait()
	})
	if err := bus.Publish(t.Context(), envelopes(2, "a")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	reject := func(d *waybill.Delivery) {
		t.Helper()
		reject := core.AckReject(d, waybill.ReasonRejected, errors.New("no"))
		if err := r.Settle(t.Context(), []core.Ack{reject}).FirstErr(); waybill.ClassOf(err) != waybill.ClassOutage {
			t.Fatalf("parked in a full queue: %v", err)
		}
	}
	ds := receive(t, r, 2)
	const tries = 2
	for range tries {
		reject(ds[0])
	}
	nothing(t, bus, r, "a") // it stays where it is
	settle(t, r, core.AckDone(ds[1]))
	reject(ds[0])
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r = subscribe(t, bus, sub)
	ds = receive(t, r, 1)
	if ds[0].Envelope.ID != "m00000" || ds[0].Redeliveries > 1 {
		t.Errorf("%s came, redeliveries %d", ds[0].Envelope.ID, ds[0].Redeliveries)
	}
	if _, err := ch.QueuePurge("q.dlq", false); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "parked", func() bool {
		return r.Settle(t.Context(), []core.Ack{core.AckReject(ds[0], waybill.ReasonRejected, errors.New("no"))}).FirstErr() == nil
	})
	nothing(t, bus, r, "a")
	if n, err := bus.ParkedDepth(t.Context(), "q"); err != nil || n != 1 {
		t.Errorf("%d are parked: %v", n, err)
	}
}

// CO-18: exchanges and queues of the subscription that disappeared are declared again when a copy needs them.
func TestCopyDeclaresAgain(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}, RetryDelays: []time.Duration{500 * time.Millisecond}})
	if err := bus.Publish(t.Context(), envelopes(4, "a")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ds := receive(t, r, 4)
	park := func(d *waybill.Delivery) core.Ack { return core.AckReject(d, waybill.ReasonRejected, errors.New("no")) }
	retry := func(d *waybill.Delivery) core.Ack { return core.AckRetry(d, 500*time.Millisecond, errors.New("no")) }
	exchange := func(name string) func(*amqp.Channel) error {
		return func(ch *amqp.Channel) error { return ch.ExchangeDelete(name, false, false) }
	}
	dropQueue := func(name string) func(*amqp.Channel) error {
		return func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(name, false, false, false)
			return err
		}
	}
	for i, tc := range []struct {
		name string
		drop func(*amqp.Channel) error
		ack  core.Ack
	}{
		{"dead-letter exchange", exchange("waybill.dlx.q"), park(ds[0])},
		{"dead-letter queue", dropQueue("q.dlq"), park(ds[1])},
		{"dead-letter exchange, for a retry", exchange("waybill.dlx.q"), retry(ds[2])},
		{"delay queue", dropQueue("q.delay_500ms"), retry(ds[3])},
	} {
		if err := tc.drop(testenv.Channel(t, mq.URL)); err != nil {
			t.Fatal(err)
		}
		if err := r.Settle(t.Context(), []core.Ack{tc.ack}).FirstErr(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if i < 2 {
			if n, err := bus.ParkedDepth(t.Context(), "q"); err != nil || n != 1 {
				t.Errorf("%s: %d are parked: %v", tc.name, n, err)
			}
			continue
		}
		if d := receive(t, r, 1)[0]; d.Envelope.ID != tc.ack.Delivery.Envelope.ID || d.Attempt != 2 {
			t.Errorf("%s: %s came, attempt %d", tc.name, d.Envelope.ID, d.Attempt)
		}
	}
}

// RM-09: a subscription whose queue is full does not hold up the retries of another one.
func TestRetriesDoNotWaitForAnotherQueue(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	delays := []time.Duration{2 * time.Second}
	full := subscribe(t, bus, core.Subscription{Queue: "full", Bindings: []string{"full"}, RetryDelays: delays, Prefetch: 100})
	free := subscribe(t, bus, core.Subscription{Queue: "free", Bindings: []string{"free"}, RetryDelays: delays})
	if err := bus.Publish(t.Context(), envelopes(60, "full")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	held := receive(t, full, 60)
	if err := mq.SetPolicy(t.Context(), mq.VHost, "full", "^full$", "queues", map[string]any{"max-length": 1}); err != nil {
		t.Fatal(err)
	}
	acks := make([]core.Ack, len(held))
	for i, d := range held {
		acks[i] = core.AckRetry(d, delays[0], nil)
	}
	settle(t, full, acks...)
	if err := full.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// those that are retried come back to a full queue: the broker has 32 of a delay queue on their way at most
	patience.Until(t, "the queue is full", func() bool {
		return bus.Publish(t.Context(), envelopes(1, "full")).FirstErr() != nil
	})
	if err := bus.Publish(t.Context(), envelopes(1, "free")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for attempt := 1; attempt < 4; attempt++ {
		d := receive(t, free, 1)[0] // within 20 s
		if d.Attempt != attempt {
			t.Errorf("attempt %d, want %d", d.Attempt, attempt)
		}
		settle(t, free, core.AckRetry(d, delays[0], nil))
	}
}

// A message whose headers fill a frame has no room for those of a copy. It is parked all the same, with its reason. The
// connection lives on.
func TestHugeHeadersAreParked(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	var log sharedtest.Log
	bus := dial(t, mq.URL, rabbitmq.Options{Logger: log.Logger(slog.LevelInfo)})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}, RetryDelays: []time.Duration{time.Second}})
	ch := testenv.Channel(t, mq.URL)
	headers := amqp.Table{"small": "s", "large": strings.Repeat("x", 60_000), "larger": strings.Repeat("x", 70_990)}
	for _, id := range []string{"a", "b"} {
		if err := ch.Publish("waybill", "t", true, false, amqp.Publishing{MessageId: id, Headers: headers, Body: []byte("body")}); err != nil {
			t.Fatal(err)
		}
	}
	ds := receive(t, r, 2)
	acks := []core.Ack{
		core.AckReject(ds[0], waybill.ReasonRejected, errors.New("no such order")),
		core.AckRetry(ds[1], time.Second, errors.New("later")),
	}
	if err := r.Settle(t.Context(), acks).FirstErr(); err != nil {
		t.Fatal(err)
	}
	parked, err := bus.ListParked(t.Context(), "q", admin.ParkedFilter{}, 10)
	if err != nil || len(parked) != 2 {
		t.Fatalf("%d are parked: %v", len(parked), err)
	}
	for i, want := range []waybill.Reason{waybill.ReasonRejected, waybill.ReasonTooLarge} {
		p := parked[i]
		if p.Reason != want || p.Envelope.Headers["small"] != "s" || p.Envelope.Headers["larger"] != "" {
			t.Errorf("%s: reason %q, %d headers", p.Envelope.ID, p.Reason, len(p.Envelope.Headers))
		}
	}
	text := log.String()
	if strings.Contains(text, "rabbitmq.lost") || strings.Count(text, "event=rabbitmq.headers_left_out") != 2 || !strings.Contains(text, "larger") {
		t.Error(text)
	}
	// A message of a relay that is too large fails alone, and costs no connection.
	e := envelope("c", "t")
	e.Headers = map[string]string{"h": strings.Repeat("x", 140_000)}
	res := bus.Publish(t.Context(), []waybill.Envelope{e, envelope("d", "t")})
	if waybill.ReasonOf(res[0]) != waybill.ReasonTooLarge || !strings.Contains(res[0].Error(), "frame_max") || res[1] != nil {
		t.Errorf("%v, %v", res[0], res[1])
	}
	if strings.Contains(log.String(), "rabbitmq.lost") {
		t.Error(log.String())
	}
}

// A queue that is full is an outage of its topic; other topics go on.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	if err := mq.SetPolicy(t.Context(), mq.VHost, "full", "^full$", "queues", map[string]any{"max-length": 1}); err != nil {
		t.Fatal(err)
	}
	full := subscribe(t, bus, core.Subscription{Queue: "full", Bindings: []string{"full"}})
	subscribe(t, bus, core.Subscription{Queue: "free", Bindings: []string{"free"}})
	if err := full.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "a nack", func() bool {
		res := bus.Publish(t.Context(), []waybill.Envelope{envelope("a", "full"), envelope("b", "free"), envelope("c", "full")})
		var e *waybill.Error
		return res[1] == nil && errors.As(res[2], &e) && e.Class == waybill.ClassOutage && e.TopicOnly
	})
}
