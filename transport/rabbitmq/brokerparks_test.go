package rabbitmq_test

import (
	"errors"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// CO-18: a message that the broker parks, since no copy of it can be made, is not lost when the dead-letter queue was
// deleted. A classic queue would drop it. A quorum queue would hold it back for minutes.
func TestBrokerParksIntoANewQueue(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kind    topology.QueueType
		headers amqp.Table
		refused bool // the broker refuses its copies
	}{
		"unreadable, quorum":  {topology.Quorum, deep(), false},
		"unreadable, classic": {topology.Classic, deep(), false},
		"refused, quorum":     {topology.Quorum, nil, true},
		"refused, classic":    {topology.Classic, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mq := testenv.RabbitMQ(t)
			bus := dial(t, mq.URL, rabbitmq.Options{QueueType: tc.kind})
			r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
			ch := testenv.Channel(t, mq.URL)
			if err := ch.PublishWithContext(t.Context(), "waybill", "a", true, false, amqp.Publishing{MessageId: "m", Headers: tc.headers}); err != nil {
				t.Fatal(err)
			}
			d := receive(t, r, 1)[0]
			if tc.refused {
				refuseTwice(t, r, d)
			}
			if _, err := ch.QueueDelete("q.dlq", false, false, false); err != nil {
				t.Fatal(err)
			}
			settle(t, r, core.AckReject(d, waybill.ReasonRejected, errors.New("no")))
			if _, err := ch.QueueDeclarePassive("q.dlq", true, false, false, false, nil); err != nil {
				t.Fatalf("the message was rejected without a dead-letter queue: %v", err)
			}
			parkedCount(t, bus, "q", 1)
		})
	}
}

// refuseTwice has the broker refuse the copy of d twice. It takes no message with this reply-to from a channel without
// a consumer for replies.
func refuseTwice(t *testing.T, r core.Receiver, d *waybill.Delivery) {
	t.Helper()
	rabbitmq.SetReplyTo(d, "amq.rabbitmq.reply-to")
	for range 2 {
		err := r.Settle(t.Context(), []core.Ack{core.AckReject(d, waybill.ReasonRejected, errors.New("no"))})[0]
		if waybill.ClassOf(err) != waybill.ClassRejected {
			t.Fatal(err)
		}
	}
}

// CO-18 RM-05: with Options.Passive a message that the broker is to park stays with the receiver while the dead-letter
// queue is not there. The queue here is an operator's, and dead-letters at most once: it would drop the message.
func TestBrokerParksNothingWithoutAQueue(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	ch := testenv.Channel(t, mq.URL)
	args := amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "waybill.dlx.q", "x-dead-letter-routing-key": "q"}
	_, err := ch.QueueDeclare("q", true, false, false, false, args)
	dlq := func() error {
		_, err := ch.QueueDeclare("q.dlq", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		return errors.Join(err, ch.QueueBind("q.dlq", "q", "waybill.dlx.q", false, nil))
	}
	for _, err := range []error{
		err,
		ch.ExchangeDeclare("waybill", "topic", true, false, false, false, nil),
		ch.ExchangeDeclare("waybill.dlx.q", "direct", true, false, false, false, nil),
		dlq(),
		ch.PublishWithContext(t.Context(), "", "q", true, false, amqp.Publishing{MessageId: "deep", Headers: deep()}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	bus := dial(t, mq.URL, rabbitmq.Options{Passive: true})
	r := subscribe(t, bus, core.Subscription{Queue: "q"})
	park := core.AckReject(receive(t, r, 1)[0], waybill.ReasonUndecodable, errors.New("no"))
	if _, err := ch.QueueDelete("q.dlq", false, false, false); err != nil {
		t.Fatal(err)
	}
	err = r.Settle(t.Context(), []core.Ack{park})[0]
	if waybill.ClassOf(err) != waybill.ClassOutage || !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), `"q.dlq"`) {
		t.Fatalf("the message was rejected without a dead-letter queue: %v", err)
	}
	if err := dlq(); err != nil {
		t.Fatal(err)
	}
	settle(t, r, park)
	parkedCount(t, bus, "q", 1)
}
