package rabbitmq_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// CO-20: a message that is held longer than the broker allows comes again, and is counted each time, on every version
// of the broker: so its runs are bounded. Other messages are not. A verdict ends the count.
func TestHeldTooLongIsCounted(t *testing.T) {
	tier.Nightly(t, "a broker of its own, whose time limit ends: 10 s")
	t.Parallel()
	mq := testenv.OwnRabbitMQ(t, testenv.RabbitMQOptions{Config: []string{"consumer_timeout = 1000"}})
	// it looks once a minute
	if err := mq.Ctl(t.Context(), "eval", "application:set_env(rabbit, channel_tick_interval, 300)."); err != nil {
		t.Fatal(err)
	}
	bus := dial(t, mq.AMQPURL("/"), rabbitmq.Options{ConsumerTimeout: time.Second})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}, Prefetch: 1})
	if err := bus.Publish(t.Context(), envelopes(2, "a.b")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for want := range 3 {
		d := receive(t, r, 1)[0] // and nothing more: it is held until the broker takes it back
		if d.Envelope.ID != "m00000" || d.Redeliveries < want {
			t.Fatalf("%s comes with %d redeliveries, want %d", d.Envelope.ID, d.Redeliveries, want)
		}
	}
	d := receive(t, r, 1)[0]
	settle(t, r, core.AckDone(d))
	if next := receive(t, r, 1)[0]; next.Envelope.ID != "m00001" || next.Redeliveries != 0 {
		t.Errorf("%s comes with %d redeliveries", next.Envelope.ID, next.Redeliveries)
	}
}
