//go:build !race

package costs_test

import (
	"context"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// TestRabbitMQ: the frames that Waybill sends to RabbitMQ. Frames of the broker do not count: it confirms as many
// messages at a time as it likes. Not parallel: allocations are those of the process.
func TestRabbitMQ(t *testing.T) {
	var sent atomic.Int64
	u, err := url.Parse(testenv.RabbitMQ(t).URL)
	must(t, err)
	u.Host = tap(t, u.Host, &sent)
	bus, err := rabbitmq.Dial(t.Context(), u.String(), rabbitmq.Options{Logger: quiet})
	must(t, err)
	defer bus.Close(context.WithoutCancel(t.Context()))
	const batch = 500
	var receiver core.Receiver
	if receiver, err = bus.Subscribe(t.Context(), core.Subscription{Queue: queue, Bindings: []string{"orders.#"}, Prefetch: 200}); err != nil {
		t.Fatal(err)
	}
	defer func() { must(t, receiver.Close(context.WithoutCancel(t.Context()))) }()
	publish := func(all []waybill.Envelope) {
		for ; len(all) > 0; all = all[batch:] {
			must(t, bus.Publish(t.Context(), all[:batch]).FirstErr())
		}
	}
	consume := func(n int) {
		for ; n > 0; n -= 100 {
			var acks []core.Ack
			for len(acks) < 100 {
				ds, err := receiver.Receive(t.Context(), 100-len(acks))
				must(t, err)
				for _, d := range ds {
					acks = append(acks, core.AckDone(d))
				}
			}
			must(t, receiver.Settle(t.Context(), acks).FirstErr())
		}
	}
	meter := func() counts { return counts{frames: float64(sent.Load())} }
	is := table{}
	publish(envelopes(1000))
	consume(1000)
	all := envelopes(many)
	is["rabbitmq: publish, batches of 500"] = count(t, many, meter, func() { publish(all) })
	is["rabbitmq: receive and settle, batches of 100"] = count(t, many, meter, func() { consume(many) })
	check(t, "rabbitmq: ", is, "")
}
