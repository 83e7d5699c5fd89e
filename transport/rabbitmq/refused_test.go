package rabbitmq_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
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
	eventually(t, "the queue is full", func() bool {
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
	eventually(t, "all are there", func() bool {
		q, err := ch.QueueDeclarePassive("free", true, false, false, false, nil)
		return err == nil && q.Messages == 700
	})
}
