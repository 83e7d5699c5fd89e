package e2e_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
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

// CO-18: the broker is short of memory and blocks publishers. Messages that are to be parked wait; no handler runs a
// second time.
func TestMemoryAlarmRunsHandlersOnce(t *testing.T) {
	t.Parallel()
	broker := testenv.OwnRabbitMQ(t, testenv.RabbitMQOptions{})
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
	patience.Until(t, "all are parked", func() bool { return depth(t, ch, "q") == 0 && depth(t, ch, "q.dlq") >= len(ids) })
	got := strings.Fields(saw.String())
	slices.Sort(got)
	if !slices.Equal(got, ids) {
		t.Errorf("handled: %s", saw)
	}
	run.stop()
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
