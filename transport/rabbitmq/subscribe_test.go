package rabbitmq_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// CO-08, CO-05: being given back again and again, at stops or in an outage, does not look like killing consumers; real
// losses do.
func TestGivenBackIsNotACrash(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	sub := core.Subscription{Queue: "q", Bindings: []string{"#"}}
	r := subscribe(t, bus, sub)
	if err := bus.Publish(t.Context(), []waybill.Envelope{envelope("m", "a.b")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for i := range 25 {
		d := receive(t, r, 1)[0]
		if d.Redeliveries > 1 || d.Attempt != 1 || d.Envelope.Topic != "a.b" {
			t.Fatalf("after %d give-backs: redeliveries %d, attempt %d, topic %s", i, d.Redeliveries, d.Attempt, d.Envelope.Topic)
		}
		settle(t, r, core.AckRelease(d))
		if i%5 == 4 { // a stop with the message prefetched, and not seen
			// One that is pushed while the consumer stops counts as lost.
			patience.Until(t, "the message is here again", func() bool { return rabbitmq.Pushed(r) == 1 })
			if err := r.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			r = subscribe(t, bus, sub)
		}
	}
	for range 6 { // taken, and lost with the channel
		receive(t, r, 1)
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		r = subscribe(t, bus, sub)
	}
	d := receive(t, r, 1)[0]
	if d.Redeliveries < 6 || d.Redeliveries > 7 {
		t.Errorf("redeliveries %d after 6 losses", d.Redeliveries)
	}
	settle(t, r, core.AckRelease(d)) // takes the count along
	d = receive(t, r, 1)[0]
	if d.Redeliveries < 5 || d.Redeliveries > 7 {
		t.Errorf("redeliveries %d after 6 losses and a give-back", d.Redeliveries)
	}
	settle(t, r, core.AckRetry(d, 0, errors.New("again"))) // a new attempt begins at zero
	d = receive(t, r, 1)[0]
	if d.Redeliveries != 0 || d.Attempt != 2 {
		t.Errorf("attempt %d, redeliveries %d", d.Attempt, d.Redeliveries)
	}
	settle(t, r, core.AckDone(d))
}

// RM-01, RM-02, RM-04: each subscription has its delay queues, or they share them. A retry goes to the failing one
// only, with its key.
func TestRetryGoesToOneQueue(t *testing.T) {
	t.Parallel()
	t.Run("own delays", func(t *testing.T) {
		t.Parallel()
		retryGoesToOneQueue(t, false, "test.a.delay_20ms", "test.a.delay_100ms", "test.b.delay_20ms", "test.b.delay_100ms")
	})
	t.Run("shared delays", func(t *testing.T) {
		t.Parallel()
		retryGoesToOneQueue(t, true, "test.shop.delay_20ms", "test.shop.delay_100ms")
	})
}

func retryGoesToOneQueue(t *testing.T, shared bool, delayQueues ...string) {
	t.Helper()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{Exchange: "shop", Prefix: "test.", SharedDelays: shared})
	delays := []time.Duration{20 * time.Millisecond, 100 * time.Millisecond}
	a := subscribe(t, bus, core.Subscription{Queue: "a", Bindings: []string{"user.*"}, RetryDelays: delays})
	b := subscribe(t, bus, core.Subscription{Queue: "b", Bindings: []string{"#"}, RetryDelays: delays})
	if err := bus.Publish(t.Context(), []waybill.Envelope{envelope("m", "user.created")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	settle(t, b, core.AckDone(receive(t, b, 1)[0]))
	d := receive(t, a, 1)[0]
	start := time.Now()
	for attempt := 2; attempt < 6; attempt++ {
		settle(t, a, core.AckRetry(d, 70*time.Millisecond, errors.New("no")))
		d = receive(t, a, 1)[0]
		if d.Attempt != attempt || d.Envelope.Topic != "user.created" || d.Queue != "a" {
			t.Errorf("attempt %d: attempt %d, topic %s, queue %s", attempt, d.Attempt, d.Envelope.Topic, d.Queue)
		}
	}
	if took := time.Since(start); took < 400*time.Millisecond {
		t.Errorf("four retries after 100 ms each took %s", took)
	}
	settle(t, a, core.AckDone(d))
	nothing(t, bus, b, "elsewhere")
	for _, q := range append([]string{"test.a", "test.a.dlq", "test.b"}, delayQueues...) {
		if _, err := testenv.Channel(t, mq.URL).QueueDeclarePassive(q, true, false, false, false, nil); err != nil {
			t.Errorf("queue %s: %v", q, err)
		}
	}
}

// ST-11 on the wire: a message whose time ends at the head of a delay queue comes back then, not later; one whose time
// ends in its queue is parked.
func TestExpiry(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	sub := core.Subscription{Queue: "q", Bindings: []string{"#"}, RetryDelays: []time.Duration{time.Hour}}
	r := subscribe(t, bus, sub)
	over := envelope("over", "a")
	over.Expires = time.Now().Add(-time.Second)
	err := bus.Publish(t.Context(), []waybill.Envelope{over}).FirstErr()
	if waybill.ReasonOf(err) != waybill.ReasonExpired || waybill.ClassOf(err) != waybill.ClassPermanent {
		t.Fatal(err)
	}
	ch := testenv.Channel(t, mq.URL)
	// The time is in a header only, so that the message does not end in its queue. TestRetriedOnTheWire has the
	// time of the copy.
	headers := amqp.Table{"cloudEvents_expirytime": time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano)}
	if err := ch.Publish("waybill", "a", true, false, amqp.Publishing{MessageId: "short", Headers: headers}); err != nil {
		t.Fatal(err)
	}
	settle(t, r, core.AckRetry(receive(t, r, 1)[0], time.Hour, nil))
	d := receive(t, r, 1)[0] // not in an hour
	if !d.Envelope.Expired(time.Now()) || d.Attempt != 2 {
		t.Errorf("came back %s after its expiry, attempt %d", time.Since(d.Envelope.Expires), d.Attempt)
	}
	settle(t, r, core.AckReject(d, waybill.ReasonExpired, nil))
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	publishExpiring(t, bus, envelope("short", "a"))
	for i := range 2 {
		patience.Until(t, fmt.Sprintf("parked message %d", i), func() bool {
			_, ok, err := ch.Get("q.dlq", true)
			return ok && err == nil
		})
	}
}

// CO-17: the messages of a consumer whose connection dies reach another, at once.
func TestDeadConsumer(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	sub := core.Subscription{Queue: "q", Bindings: []string{"#"}, Prefetch: 10}
	proxy := testenv.NewProxy(t, hostOf(t, mq.URL))
	dying := subscribe(t, dial(t, proxy.URL(mq.URL), rabbitmq.Options{}), sub)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	if err := bus.Publish(t.Context(), envelopes(10, "a")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	receive(t, dying, 5) // holds ten
	living := subscribe(t, bus, sub)
	proxy.Refuse()
	proxy.Cut()
	for _, d := range receive(t, living, 10) {
		settle(t, living, core.AckDone(d))
	}
}

// A queue that is deleted under its consumer is made again, and nothing is left of the consumer before.
func TestQueueDeleted(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}})
	first := rabbitmq.ChannelOf(r)
	if _, err := testenv.Channel(t, mq.URL).QueueDelete("q", false, false, false); err != nil {
		t.Fatal(err)
	}
	settle(t, r, core.AckDone(comesBack(t, bus, r, "a")))
	patience.Until(t, "the first consumer's channel is closed", first.IsClosed)
}

// TR-02: two messages with one id in flight are not confused.
func TestSameIDInFlight(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"bound"}})
	batch := make([]waybill.Envelope, 300)
	for i := range batch {
		batch[i] = envelope("same", "bound")
		if i%3 == 1 {
			batch[i].Topic = "unbound"
		}
	}
	for i, err := range bus.Publish(t.Context(), batch) {
		if errors.Is(err, waybill.ErrUnroutable) != (i%3 == 1) || i%3 != 1 && err != nil {
			t.Errorf("slot %d: %v", i, err)
		}
	}
}

// New refuses what it cannot work with.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	if _, err := rabbitmq.New(nil, rabbitmq.Options{}); !errors.Is(err, waybill.ErrInvalid) {
		t.Error(err)
	}
	mq := testenv.RabbitMQ(t)
	conn, err := amqp.DialConfig(mq.URL, amqp.Config{Recovery: &amqp.Recovery{}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := rabbitmq.New(conn, rabbitmq.Options{}); !errors.Is(err, waybill.ErrInvalid) {
		t.Error(err)
	}
}

// CO-21: a delivery that is held for more than half of the broker's consumer_timeout is logged.
func TestHeldLongIsLogged(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	var log sharedtest.Log
	bus := dial(t, mq.URL, rabbitmq.Options{Logger: log.Logger(slog.LevelInfo), ConsumerTimeout: time.Second})
	bus.AssertEvery(100 * time.Millisecond)
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	if err := bus.Publish(t.Context(), envelopes(2, "a")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ds := receive(t, r, 2)
	settle(t, r, core.AckDone(ds[0]))
	patience.Until(t, "it is logged", func() bool {
		return strings.Contains(log.String(), "queue=q messages=1 ") && strings.Contains(log.String(), "event=rabbitmq.held_long")
	})
	settle(t, r, core.AckDone(ds[1]))
}
