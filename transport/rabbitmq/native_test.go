package rabbitmq_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// CO-02: the broker's own message has what an envelope has no field for, and settles nothing.
func TestNative(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}, Prefetch: 1})
	conn, err := amqp.Dial(mq.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	sent := amqp.Publishing{ReplyTo: "answers", Headers: amqp.Table{"n": int32(7)}, Body: []byte("body")}
	if err := ch.PublishWithContext(t.Context(), rabbitmq.DefaultExchange, "a", false, false, sent); err != nil {
		t.Fatal(err)
	}
	d := receive(t, r, 1)[0]
	m, ok := waybill.Native[amqp.Delivery](d)
	if !ok || m.ReplyTo != "answers" || m.Headers["n"] != int32(7) || string(m.Body) != "body" || m.RoutingKey != "a" {
		t.Errorf("%t, %+v", ok, m)
	}
	if m.Acknowledger != nil || m.Ack(false) == nil {
		t.Error("a handler can settle it")
	}
	settle(t, r, core.AckDone(d))
}
