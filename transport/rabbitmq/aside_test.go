package rabbitmq_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// CO-05: a message that meets an outage each time stops no other one, although the broker always gives it back first:
// those behind it are handled, and those that come later. It is parked after Options.OutageLimit.
func TestOutageOfOneMessage(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	for _, concurrency := range []int{1, 8} {
		t.Run(strconv.Itoa(concurrency), func(t *testing.T) {
			t.Parallel()
			bus := dial(t, mq.URL, rabbitmq.Options{})
			queue, topic := fmt.Sprint("aside-", concurrency), fmt.Sprint("aside.", concurrency)
			// the limit is real time: the broker's messages live outside of any bubble
			c, err := consumer.New(bus, consumer.Options{
				Logger: quiet(), OutageLimit: time.Second, Pause: waybill.Backoff{Base: 20 * time.Millisecond, Cap: 100 * time.Millisecond},
			})
			if err != nil {
				t.Fatal(err)
			}
			var good atomic.Int64
			sub := waybill.Subscription{Queue: queue, Bindings: []string{topic}, Concurrency: concurrency}
			err = c.Handle(sub, waybill.Handler{Name: topic, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
				if d.Envelope.ID == "bad" {
					return 0, waybill.Outage(nil)
				}
				good.Add(1)
				return waybill.HandlerProcessed, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			patience.Until(t, "the subscription is open", func() bool { return c.Health(t.Context()).Ready })
			publish := func(ids ...string) {
				t.Helper()
				var batch []waybill.Envelope
				for _, id := range ids {
					batch = append(batch, envelope(id, topic))
				}
				if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			all := []string{"bad"}
			for i := range 100 {
				all = append(all, fmt.Sprint("good-", i))
			}
			publish(all...)
			handled := func(n int64) {
				t.Helper()
				patience.Moving(t, fmt.Sprint(n, " messages are handled"), func() (int64, bool) { return good.Load(), good.Load() >= n })
			}
			handled(100)
			publish("later-1", "later-2")
			handled(102)
			var parked []admin.Parked
			patience.Until(t, "the message is parked", func() bool {
				parked, err = bus.ListParked(t.Context(), queue, admin.ParkedFilter{}, 10)
				return err == nil && len(parked) > 0
			})
			if len(parked) != 1 || parked[0].Envelope.ID != "bad" || parked[0].Reason != waybill.ReasonDeliveries || parked[0].Attempts > 1 {
				t.Errorf("parked: %+v", parked)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if n := good.Load(); n != 102 {
				t.Errorf("%d handled, want 102", n)
			}
		})
	}
}
