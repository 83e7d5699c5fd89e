package rabbitmq_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// TR-08: a channel on which a queue refused a message is replaced by a new one. Calls that are under way on it come to
// their end, and none fails for that.
func TestRefusalHarmsNoOtherCall(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{PublishConnections: 1})
	if err := mq.SetPolicy(t.Context(), mq.VHost, "full", "^full$", "queues", map[string]any{"max-length": 1}); err != nil {
		t.Fatal(err)
	}
	full := subscribe(t, bus, core.Subscription{Queue: "full", Bindings: []string{"full"}})
	free := subscribe(t, bus, core.Subscription{Queue: "free", Bindings: []string{"free"}})
	for _, r := range []core.Receiver{full, free} {
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	patience.Until(t, "the queue is full", func() bool {
		return bus.Publish(t.Context(), []waybill.Envelope{envelope("a", "full")}).FirstErr() != nil
	})
	var all sync.WaitGroup
	for caller := range 8 {
		all.Go(func() {
			for i := range 100 {
				if caller == 0 {
					if err := bus.Publish(t.Context(), []waybill.Envelope{envelope(fmt.Sprint("f", i), "full")}).FirstErr(); err == nil {
						t.Error("the full queue took a message")
					}
					continue
				}
				if err := bus.Publish(t.Context(), []waybill.Envelope{envelope(fmt.Sprint(caller, "-", i), "free")}).FirstErr(); err != nil {
					t.Errorf("another call failed: %v", err)
				}
			}
		})
	}
	all.Wait()
	ch := testenv.Channel(t, mq.URL)
	patience.Until(t, "all are there", func() bool {
		q, err := ch.QueueDeclarePassive("free", true, false, false, false, nil)
		return err == nil && q.Messages == 700
	})
}

// A message of which the broker never takes a copy is dead-lettered by the broker itself, once. The log has the reason.
// Here the dead-letter exchange is an operator's: of the kind topic, and the user may not publish the key.
func TestRefusedCopyIsParkedByTheBroker(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	ch := testenv.Channel(t, mq.URL)
	queue := func(name string, args amqp.Table) error {
		args["x-queue-type"] = "quorum"
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		return err
	}
	user := newUser(t, mq, "consumer")
	for _, err := range []error{
		ch.ExchangeDeclare("waybill", "topic", true, false, false, false, nil),
		ch.ExchangeDeclare("waybill.dlx.q", "topic", true, false, false, false, nil),
		queue("q", amqp.Table{"x-dead-letter-exchange": "waybill.dlx.q", "x-dead-letter-routing-key": "q"}),
		queue("q.dlq", amqp.Table{}),
		ch.QueueBind("q.dlq", "q", "waybill.dlx.q", false, nil),
		mq.SetPermissions(t.Context(), mq.VHost, user, "", `^waybill\.dlx\.q$`, "^q$"),
		mq.Do(t.Context(), http.MethodPut, "/api/topic-permissions/"+url.PathEscape(mq.VHost)+"/"+user,
			map[string]string{"exchange": "waybill.dlx.q", "write": "^$", "read": ""}, nil),
		ch.Publish("", "q", true, false, amqp.Publishing{MessageId: "a", Body: []byte("body")}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var log sharedtest.Log
	bus := dial(t, mq.URLFor(user, password), rabbitmq.Options{Passive: true, Logger: log.Logger(slog.LevelInfo)})
	r := subscribe(t, bus, core.Subscription{Queue: "q"})
	settle(t, r, core.AckReject(receive(t, r, 1)[0], waybill.ReasonRejected, errors.New("no such order")))
	operator := dial(t, mq.URL, rabbitmq.Options{Passive: true})
	parkedCount(t, operator, "q", 1)
	p, err := operator.InspectParked(t.Context(), "q", admin.ParkedFilter{})
	if err != nil || p.Envelope.ID != "a" || string(p.Envelope.Body) != "body" {
		t.Errorf("%+v %v", p, err)
	}
	text := log.String()
	for _, want := range []string{"event=rabbitmq.parked_without_reason", "queue=q", "id=a", "verdict=reject", "no such order", "topic permissions"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in the log: %s", want, text)
		}
	}
}
