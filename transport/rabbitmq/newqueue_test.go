package rabbitmq_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// A subscription moves to a queue with other arguments as docs/rabbitmq.md says, while messages wait and arrive: each
// has its effect once, and the old queue can be deleted.
func TestMovingToANewQueue(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	before, after := dial(t, mq.URL, rabbitmq.Options{QueueType: topology.Classic}), dial(t, mq.URL, rabbitmq.Options{})
	store, err := memory.New(memory.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	box, err := inbox.New(store, "billing", inbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	effects := map[string]int{}
	topic := waybill.NewTopic("orders.placed", waybill.JSON[struct{ ID string }]())
	handler := inbox.Handler(box, topic, func(_ context.Context, _ *memory.Tx, o struct{ ID string }) error {
		mu.Lock()
		defer mu.Unlock()
		effects[o.ID]++
		return nil
	})
	run := func(bus *rabbitmq.Transport, sub waybill.Subscription) (stop func()) {
		t.Helper()
		c, err := consumer.New(bus, consumer.Options{Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Handle(sub, handler); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		patience.Until(t, sub.Queue+" has its consumer", func() bool {
			ch := testenv.Channel(t, mq.URL) // a question about a queue that does not exist ends it
			q, err := ch.QueueDeclarePassive(sub.Queue, true, false, false, false, nil)
			return err == nil && q.Consumers == 1
		})
		return sync.OnceFunc(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	published := 0
	publish := func() {
		t.Helper()
		var batch []waybill.Envelope
		for range 50 {
			batch = append(batch, envelope(fmt.Sprint("m", published), topic.Name()))
			published++
		}
		if err := after.Publish(t.Context(), batch).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	done := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(effects) == published
	}
	ch := testenv.Channel(t, mq.URL)
	left := func(queue string) int {
		t.Helper()
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		return q.Messages
	}

	stop := run(before, waybill.Subscription{Queue: "billing", Bindings: []string{"orders.*"}})
	publish()
	patience.Until(t, "the old queue works", done)
	stop()
	publish() // they wait

	stopNew := run(after, waybill.Subscription{Queue: "billing2", Bindings: []string{"orders.*"}}) // step 1
	defer stopNew()
	stopOld := run(before, waybill.Subscription{Queue: "billing"})
	defer stopOld()
	patience.Until(t, "what waited is handled", done)
	publish()                                                                                    // it comes to both
	if err := ch.QueueUnbind("billing", "orders.*", rabbitmq.DefaultExchange, nil); err != nil { // step 2
		t.Fatal(err)
	}
	publish()
	patience.Until(t, "all are handled, and the old queue is empty", func() bool { return done() && left("billing") == 0 && left("billing2") == 0 })
	stopOld() // step 4
	if _, err := ch.QueueDelete("billing", true, true, false); err != nil {
		t.Error("the old queue cannot be deleted:", err)
	}
	publish()
	patience.Until(t, "the new queue works", done)
	mu.Lock()
	defer mu.Unlock()
	for id, n := range effects {
		if n != 1 {
			t.Errorf("%s had its effect %d times", id, n)
		}
	}
}
