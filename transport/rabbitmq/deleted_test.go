package rabbitmq_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// TR-03: the exchange is deleted again and again, also while the running consumer binds its queue to it. Each time the
// consumer brings back the binding with its route. RabbitMQ 4.3 kept about one binding in thirty without one.
func TestExchangeIsDeletedAgainAndAgain(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus, keeper := dial(t, mq.URL, rabbitmq.Options{}), dial(t, mq.URL, rabbitmq.Options{})
	keeper.AssertEvery(20 * time.Millisecond)
	subscribe(t, keeper, core.Subscription{Queue: "q", Bindings: []string{"#"}})
	admin := testenv.Channel(t, mq.URL)
	for range 80 {
		if err := admin.ExchangeDelete("waybill", false, false); err != nil {
			t.Fatal(err)
		}
		patience.Until(t, "exchange and binding are back", func() bool {
			return bus.Publish(t.Context(), envelopes(1, "a")).FirstErr() == nil
		})
		select {
		case <-time.After(rand.N(20 * time.Millisecond)): // anywhere between two looks
		case <-t.Context().Done():
		}
	}
}

// RM-05: consumers that start at once on a broker without their exchanges make them together. None takes the queue that
// another one has just made for an old one, and unbinds it. And none fails because the broker is still making the queue
// for another: RabbitMQ 3.10 then ends the connection with an internal error (541).
func TestConsumersStartTogether(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	const groups, consumers = 10, 4
	begin, started := make(chan struct{}), make(chan error)
	for g := range groups { // at once, since a busy broker takes longer to make a queue
		opts := rabbitmq.Options{Exchange: fmt.Sprint("new", g), ManagementURL: mq.ManagementURL, Logger: quiet()}
		sub := core.Subscription{Queue: fmt.Sprint("q", g), Bindings: []string{"#"}}
		for range consumers {
			tr := dial(t, mq.URL, opts)
			go func() {
				<-begin
				r, err := tr.Subscribe(t.Context(), sub)
				if err == nil {
					closeLater(t, r)
				}
				started <- err
			}()
		}
	}
	close(begin)
	for range groups * consumers {
		if err := <-started; err != nil {
			t.Error(err)
		}
	}
}
