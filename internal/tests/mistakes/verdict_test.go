package mistakes_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// order is what a handler saw, in order.
type order struct {
	mu  sync.Mutex
	ids []string
}

func (o *order) add(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ids = append(o.ids, id)
}

func (o *order) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.ids)
}

func (o *order) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.ids, " ")
}

// rejecting returns a handler that rejects the messages named, and the order of the messages that it saw.
func rejecting(ids ...string) (waybill.Handler, *order) {
	saw := &order{}
	return waybill.Handler{Name: waybill.AnyMessage, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		saw.add(d.Envelope.ID)
		if slices.Contains(ids, d.Envelope.ID) {
			return waybill.HandlerProcessed, waybill.Reject(errors.New("no such account"))
		}
		return waybill.HandlerProcessed, nil
	}}, saw
}

// OR-09, CO-18: the dead-letter queue is full. A message that cannot be parked is not handled again. The next one of
// its key waits until it is parked. Health says why.
func TestFullDeadLetterQueueKeepsOrder(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	c := newConsumer(t, bus, consumer.Options{})
	h, saw := rejecting("1")
	sub := waybill.Subscription{Queue: "q", Bindings: []string{"a"}, InOrder: true}
	if err := c.Handle(sub, h); err != nil {
		t.Fatal(err)
	}
	declare(t, bus, sub)
	if err := mq.SetPolicy(t.Context(), mq.VHost, "full", `^q\.dlq$`, "queues", map[string]any{"max-length": 1}); err != nil {
		t.Fatal(err)
	}
	ch := testenv.Channel(t, mq.URL)
	fill(t, ch, "q.dlq")
	publish(t, bus, "k", "1", "2", "3", "4")
	run := start(t, c)
	patience.Until(t, "health says that nothing can be parked", func() bool {
		return degraded(c.Health(t.Context()), "basic.nack")
	})
	if got := saw.String(); got != "1" {
		t.Errorf("handled: %s", got)
	}
	if _, err := ch.QueuePurge("q.dlq", false); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "all are handled", func() bool { return strings.HasSuffix(saw.String(), "4") })
	if got := saw.String(); got != "1 2 3 4" {
		t.Errorf("handled: %s", got)
	}
	patience.Until(t, "it is parked", func() bool { return depth(t, ch, "q.dlq") == 1 })
	run.stop()
}

// CO-18: the broker is short of memory and blocks publishers. The tests share a broker, one after the other: a start
// takes six seconds of CPU.
func TestMemoryAlarm(t *testing.T) { //nolint:tparallel // in this order
	t.Parallel()
	broker := testenv.OwnRabbitMQ(t, testenv.RabbitMQOptions{})
	t.Run("handlers run once", func(t *testing.T) { testAlarmRunsHandlersOnce(t, broker) })
	t.Run("nobody is blamed for an outage", func(t *testing.T) { testOutageBesideAnAlarm(t, broker) })
}

// Messages that are to be parked wait; no handler runs a second time.
func testAlarmRunsHandlersOnce(t *testing.T, broker *testenv.RabbitMQServer) {
	t.Helper()
	mq, err := broker.OpenVHost(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bus := dial(t, mq.URL, rabbitmq.Options{})
	c := newConsumer(t, bus, consumer.Options{})
	ids := strings.Split("abcdefghijklmnopqrst", "")
	h, saw := rejecting(ids...)
	sub := waybill.Subscription{Queue: "q", Bindings: []string{"a"}}
	if err := c.Handle(sub, h); err != nil {
		t.Fatal(err)
	}
	declare(t, bus, sub)
	publish(t, bus, "", ids...)
	if err := broker.RaiseMemoryAlarm(t.Context()); err != nil {
		t.Fatal(err)
	}
	run := start(t, c)
	patience.Until(t, "health says that nothing can be parked", func() bool {
		return degraded(c.Health(t.Context()), "blocks publishers")
	})
	if err := broker.ClearMemoryAlarm(t.Context()); err != nil {
		t.Fatal(err)
	}
	ch := testenv.Channel(t, mq.URL)
	// a copy that was sent when the alarm rose, and not confirmed, may be there twice
	patience.Until(t, "all are handled and parked", func() bool {
		return len(strings.Fields(saw.String())) >= len(ids) && depth(t, ch, "q") == 0 && depth(t, ch, "q.dlq") >= len(ids)
	})
	got := strings.Fields(saw.String())
	slices.Sort(got)
	if !slices.Equal(got, ids) {
		t.Errorf("handled: %s", saw)
	}
	run.stop()
}

// A dependency of the handlers is down, too. The copies of what is handed back cannot be published. No message is
// blamed for that, however often it comes back: none is parked. When the dependency is there again all are handled,
// beside the alarm. The relay waits and says why, and loses nothing.
func testOutageBesideAnAlarm(t *testing.T, broker *testenv.RabbitMQServer) {
	t.Helper()
	mq, err := broker.OpenVHost(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bus := dial(t, mq.URL, rabbitmq.Options{})
	c := newConsumer(t, bus, consumer.Options{Pause: waybill.Backoff{Base: 20 * time.Millisecond, Cap: 50 * time.Millisecond}})
	var down atomic.Bool
	var probes atomic.Int64
	saw := &order{}
	sub := waybill.Subscription{Queue: "q", Bindings: []string{"a"}, MaxDeliveries: 3}
	h := waybill.Handler{Name: waybill.AnyMessage, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		if down.Load() {
			probes.Add(1)
			return waybill.HandlerProcessed, waybill.Outage(errors.New("the database is down"))
		}
		saw.add(d.Envelope.ID)
		return waybill.HandlerProcessed, nil
	}}
	if err := c.Handle(sub, h); err != nil {
		t.Fatal(err)
	}
	declare(t, bus, sub)
	ids := strings.Split("abcdefghij", "")
	publish(t, bus, "", ids...)
	down.Store(true)
	if err := broker.RaiseMemoryAlarm(t.Context()); err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	later := []string{"k", "l", "m"}
	for _, id := range later {
		tx := store.Begin()
		if _, err := store.Stage(t.Context(), tx, raw("a", waybill.ID(id))); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	r := newRelay(t, store, bus, relay.Options{})
	relays, consumes := start(t, r), start(t, c)
	patience.Until(t, "the relay's health says why nothing goes", func() bool {
		return strings.Contains(r.Health(t.Context()).String(), "blocks publishers")
	})
	patience.Until(t, "each message has come back more often than it may be delivered", func() bool { return probes.Load() > int64(4*len(ids)*sub.MaxDeliveries) })
	down.Store(false)
	patience.Until(t, "all are handled beside the alarm", func() bool { return saw.len() >= len(ids) })
	if err := broker.ClearMemoryAlarm(t.Context()); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "what the relay kept arrives", func() bool { return saw.len() >= len(ids)+len(later) && stored(t, store) == 0 })
	ch := testenv.Channel(t, mq.URL)
	patience.Until(t, "nothing is left", func() bool { return depth(t, ch, "q") == 0 })
	got := strings.Fields(saw.String())
	slices.Sort(got)
	// A publish that the alarm met, and whose result is unknown, is made again.
	if got = slices.Compact(got); !slices.Equal(got, append(ids, later...)) || depth(t, ch, "q.dlq") != 0 {
		t.Errorf("handled: %s; %d are parked", saw, depth(t, ch, "q.dlq"))
	}
	relays.stop()
	consumes.stop()
}

// declare declares what sub needs.
func declare(tb testing.TB, bus *rabbitmq.Transport, sub waybill.Subscription) {
	tb.Helper()
	sub.Retry = consumer.DefaultRetry()
	want, err := topology.New(rabbitmq.Options{}.TopologyOptions(), sub)
	if err != nil {
		tb.Fatal(err)
	}
	if err := bus.Declare(tb.Context(), want); err != nil {
		tb.Fatal(err)
	}
}

// fill publishes to a queue until it takes no more.
func fill(tb testing.TB, ch *amqp.Channel, queue string) {
	tb.Helper()
	if err := ch.Confirm(false); err != nil {
		tb.Fatal(err)
	}
	patience.Until(tb, "the queue is full", func() bool {
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{})
		if err != nil {
			tb.Fatal(err)
		}
		return !confirm.Wait()
	})
}

// publish publishes messages of topic a and of one key, or of none.
func publish(tb testing.TB, bus *rabbitmq.Transport, key string, ids ...string) {
	tb.Helper()
	var es []waybill.Envelope
	for _, id := range ids {
		es = append(es, waybill.Envelope{ID: id, Topic: "a", Type: "a", Source: "/test", Key: key})
	}
	if err := bus.Publish(tb.Context(), es).FirstErr(); err != nil {
		tb.Fatal(err)
	}
}

// degraded reports whether the queue's check is degraded, with a text that contains why.
func degraded(h waybill.Health, why string) bool {
	check, _ := h.Check("queue q")
	return check.Status == waybill.HealthDegraded && strings.Contains(check.Text, why)
}
