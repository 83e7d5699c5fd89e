package rabbitmq_test

import (
	"context"
	"sync"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// TestStopsHandleNothingTwice: a consumer of many handlers, without an inbox, is stopped again and again while its
// prefetch grows. No message is handled twice: the broker's channel holds acknowledgements beyond some tens back for a
// moment, and forgets them if it is closed before a quorum queue has stored the others.
func TestStopsHandleNothingTwice(t *testing.T) {
	t.Parallel()
	const n, stops, together = 10_000, 20, 40
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	sub := core.Subscription{Queue: "q", Bindings: []string{"a"}}
	if err := subscribe(t, bus, sub).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := bus.Publish(t.Context(), envelopes(n, "a")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	handled, twice := map[string]bool{}, 0
	gate, waiting := make(chan struct{}), 0 // handlers end together
	run := func(upTo int) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		c, err := consumer.New(bus, consumer.Options{Concurrency: 100, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		err = c.Handle(waybill.Subscription{Queue: "q", Bindings: []string{"a"}}, waybill.Handler{Name: waybill.AnyMessage, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			mu.Lock()
			if handled[d.Envelope.ID] {
				twice++
			}
			handled[d.Envelope.ID] = true
			if waiting++; len(handled) >= upTo || waiting == together {
				waiting = 0
				close(gate)
				gate = make(chan struct{})
			}
			if len(handled) >= upTo {
				stop()
			}
			wait := gate
			stopped := len(handled) >= upTo || waiting == 0
			mu.Unlock()
			if !stopped {
				<-wait
			}
			return waybill.HandlerProcessed, nil
		}})
		if err == nil {
			err = c.Run(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range stops {
		run((i + 1) * n / stops)
	}
	if twice > 0 {
		t.Errorf("%d of %d messages were handled twice in %d stops", twice, n, stops)
	}
}
