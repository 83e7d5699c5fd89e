package rabbitmq_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// In an outage of a handler's dependency the consumer releases a message at each probe. While the broker takes no
// copies, because it blocks publishers or its dead-letter exchange is gone, these releases count no more than others:
// the first one may, and one more if the message was on its way to a consumer that a pause ended.
func TestReleaseWithoutACopy(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	sub := core.Subscription{Queue: "q", Bindings: []string{"a"}, MaxDeliveries: 20, RetryDelays: []time.Duration{time.Second}}
	if err := subscribe(t, dial(t, mq.URL, rabbitmq.Options{}), sub).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	bus := dial(t, mq.URL, rabbitmq.Options{Passive: true})
	r := subscribe(t, bus, sub)
	if err := bus.Publish(t.Context(), []waybill.Envelope{envelope("a", "a"), envelope("b", "a")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := testenv.Channel(t, mq.URL).ExchangeDelete("waybill.dlx.q", false, false); err != nil {
		t.Fatal(err)
	}
	pauser, _ := core.As[core.Pauser](r)
	for n := range 6 { // a pause between two probes
		ds := receive(t, r, 2)
		for _, d := range ds {
			if d.Redeliveries > 2 {
				t.Fatalf("%s after %d releases: %d redeliveries", d.Envelope.ID, n, d.Redeliveries)
			}
		}
		settle(t, r, core.AckRelease(ds[0]))
		if err := pauser.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		settle(t, r, core.AckRelease(ds[1]))
		if err := pauser.Resume(t.Context(), 2+n%2); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range receive(t, r, 2) {
		settle(t, r, core.AckDone(d))
	}
	if n := rabbitmq.UnackedOf(r); n != 0 {
		t.Errorf("%d are held", n)
	}
}
