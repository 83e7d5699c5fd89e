package cli_test

import (
	"fmt"
	"strconv"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
)

// OP-15: a list of a few of many parked messages asks the broker for those few, and says how many there are. The others
// are not delivered meanwhile: the broker would mark them.
func TestDLQListOfMany(t *testing.T) {
	t.Parallel()
	const parked, shown = 12_000, 20 // more than a look keeps in their order
	r := newRabbit(t, "q")
	r.run("topology", "declare").is(t, 0)
	ch := testenv.Channel(t, r.mq.URL)
	for i := range parked {
		id := fmt.Sprint("m", i+1)
		err := ch.PublishWithContext(t.Context(), "", "q.dlq", false, false, amqp.Publishing{
			MessageId: id, DeliveryMode: amqp.Persistent, Headers: amqp.Table{"waybill-reason": "rejected", "cloudEvents:id": id, "cloudEvents:source": "/shop"},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	patience.Moving(t, "all are parked", func() (int, bool) {
		n, err := r.bus.ParkedDepth(t.Context(), "q")
		if err != nil {
			t.Fatal(err)
		}
		return n, n == parked
	})
	r.run("dlq", "list", "q", "--limit", strconv.Itoa(shown)).is(t, 0, "12,000 messages parked", "of the 20 below", "rejected: 20", "m1 ", "there may be more")
	if err := ch.Qos(parked, 0, false); err != nil {
		t.Fatal(err)
	}
	got, err := ch.ConsumeWithContext(t.Context(), "q.dlq", "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for range parked {
		if d := <-got; d.Redelivered {
			looked++
		}
	}
	if looked != shown {
		t.Errorf("%d messages were looked at, want %d", looked, shown)
	}
}
