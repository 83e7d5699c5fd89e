package rabbitmq_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// CO-08: a message that ends each process before the consumer has looked at it is parked by the broker itself, with a
// reason that can be read; the next one comes. A consumer whose own bound is not below the broker's is refused.
func TestBrokerParksWhatEndsProcesses(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{DeliveryLimit: 4})
	sub := core.Subscription{Queue: "q", Bindings: []string{"#"}, MaxDeliveries: 3, Prefetch: 1}
	r := subscribe(t, bus, sub)
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	batch := envelopes(1, "a.b")
	if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ch := testenv.Channel(t, mq.URL)
	parked := func() bool {
		n, err := bus.ParkedDepth(t.Context(), "q")
		return err == nil && n == 1
	}
	patience.Until(t, "the broker parks it", func() bool {
		for range 3 { // it is pushed, and the process dies
			if _, ok, err := ch.Get("q", false); err != nil || !ok {
				break
			}
			if err := ch.Close(); err != nil {
				t.Fatal(err)
			}
			ch = testenv.Channel(t, mq.URL)
		}
		return parked()
	})
	p, err := bus.InspectParked(t.Context(), "q", admin.ParkedFilter{})
	if err != nil || p.Envelope.ID != batch[0].ID || p.Reason != waybill.ReasonDeliveries || p.Error == "" {
		t.Errorf("%+v %v", p, err)
	}
	next := envelopes(2, "a.b")[1:]
	if err := bus.Publish(t.Context(), next).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r = subscribe(t, bus, sub)
	d := receive(t, r, 1)[0]
	if d.Envelope.ID != next[0].ID {
		t.Errorf("%s comes", d.Envelope.ID)
	}
	settle(t, r, core.AckDone(d))
	sub.Queue = "other"
	for _, sub.MaxDeliveries = range []int{4, -1} {
		if _, err := bus.Subscribe(t.Context(), sub); err == nil || !strings.Contains(err.Error(), "is not below Options.DeliveryLimit, 4") {
			t.Error("accepted:", err)
		}
	}
}

// OP-15: parked messages have a retention if a policy gives them one. The queue itself keeps its messages.
func TestRetentionOfParkedMessages(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	sub := core.Subscription{Queue: "q", Bindings: []string{"#"}}
	r := subscribe(t, bus, sub)
	if err := mq.SetPolicy(t.Context(), mq.VHost, "parked", `\.dlq$`, "queues", map[string]any{"message-ttl": 500}); err != nil {
		t.Fatal(err)
	}
	batch := envelopes(4, "a.b")
	if err := bus.Publish(t.Context(), batch[:3]).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		settle(t, r, core.AckReject(receive(t, r, 1)[0], waybill.ReasonRejected, errors.New("no")))
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := bus.Publish(t.Context(), batch[3:]).FirstErr(); err != nil {
		t.Fatal(err)
	}
	parkedCount(t, bus, "q", 0)
	r = subscribe(t, bus, sub)
	settle(t, r, core.AckDone(receive(t, r, 1)[0]))
}
