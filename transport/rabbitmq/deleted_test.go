package rabbitmq_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
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
		eventually(t, "exchange and binding are back", func() bool {
			return bus.Publish(t.Context(), envelopes(1, "a")).FirstErr() == nil
		})
		select {
		case <-time.After(rand.N(20 * time.Millisecond)): // anywhere between two looks
		case <-t.Context().Done():
		}
	}
}
