package rabbitmq_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// RM-08: a message that was purged or replayed does not come back, be it all messages, the first ones, or every second
// one. The broker tells a quorum queue of 32 acknowledgements that the queue has not seen, and forgets the next ones if
// their channel ends.
func TestRemovedStaysRemoved(t *testing.T) {
	t.Parallel()
	const each = 200
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	var second []string
	for i := 0; i < each; i += 2 {
		second = append(second, strconv.Itoa(i))
	}
	for name, tc := range map[string]struct {
		remove func(context.Context, admin.ParkedRequest) (int, error)
		req    admin.ParkedRequest
		want   int
	}{
		"purge":  {bus.PurgeParked, admin.ParkedRequest{All: true}, each},
		"replay": {bus.ReplayParked, admin.ParkedRequest{All: true}, each},
		"first":  {bus.PurgeParked, admin.ParkedRequest{All: true, Limit: each / 2}, each / 2},
		"second": {bus.PurgeParked, admin.ParkedRequest{Filter: admin.ParkedFilter{IDs: second}}, len(second)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			tc.req.Queue = name
			var batch []waybill.Envelope
			for i := range each {
				batch = append(batch, envelope(strconv.Itoa(i), name))
			}
			if err := park(t, mq, bus, core.Subscription{Queue: name, Bindings: []string{name}}, batch).Close(ctx); err != nil {
				t.Fatal(err)
			}
			if n, err := tc.remove(ctx, tc.req); n != tc.want || err != nil {
				t.Fatalf("%d were removed, want %d: %v", n, tc.want, err)
			}
			// One more shows that the queue has seen the end of the channel.
			if err := testenv.Channel(t, mq.URL).PublishWithContext(ctx, "", name+".dlq", true, false, amqp.Publishing{MessageId: "last"}); err != nil {
				t.Fatal(err)
			}
			want := each - tc.want + 1
			patience.Until(t, fmt.Sprintf("%d are parked", want), func() bool {
				n, err := bus.ParkedDepth(ctx, name)
				return err == nil && n >= want
			})
			if n, err := bus.PurgeParked(ctx, admin.ParkedRequest{Queue: name, All: true}); n != want || err != nil {
				t.Errorf("%d are there afterwards, want %d: %v", n, want, err)
			}
		})
	}
}

// A dead letter of another system that a person moves into a subscription's queue, as a shovel does, has its topic.
// MV-01
func TestMovedDeadLetterHasItsTopic(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"none"}})
	ch := testenv.Channel(t, mq.URL)
	dead := amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "old.dlq"}
	_, err := ch.QueueDeclare("old.dlq", true, false, false, false, nil)
	if err == nil {
		_, err = ch.QueueDeclare("old", true, false, false, false, dead)
	}
	if err == nil {
		err = ch.QueueBind("old", "#", "waybill", false, nil)
	}
	if err == nil {
		err = ch.PublishWithContext(ctx, "waybill", "a.b", true, false, amqp.Publishing{MessageId: "m"})
	}
	if err != nil {
		t.Fatal(err)
	}
	take := func(queue string) (d amqp.Delivery) {
		patience.Until(t, "a message in "+queue, func() (ok bool) {
			if d, ok, err = ch.Get(queue, false); err != nil {
				t.Fatal(err)
			}
			return ok
		})
		return d
	}
	old := take("old")
	if err := old.Nack(false, false); err != nil {
		t.Fatal(err)
	}
	d := take("old.dlq")
	if err := ch.PublishWithContext(ctx, "", "q", true, false, amqp.Publishing{MessageId: d.MessageId, Headers: d.Headers}); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, r, 1)[0].Envelope; got.Topic != "a.b" || got.ID != "m" {
		t.Errorf("%+v", got)
	}
}
