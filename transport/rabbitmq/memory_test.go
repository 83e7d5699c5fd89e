package rabbitmq_test

import (
	"runtime"
	"testing"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// A body that the broker sent ahead is held once. Only that of a delivery at a handler is held twice, since a copy for
// a retry must be the body that the broker sent. The test has the process to itself.
func TestPrefetchedBodiesAreHeldOnce(t *testing.T) {
	mq := testenv.RabbitMQ(t)
	r := subscribe(t, dial(t, mq.URL, rabbitmq.Options{}), core.Subscription{Queue: "q", Bindings: []string{"#"}})
	const n, size = 16, 2 << 20
	before := liveHeap()
	publishLarge(t, mq, n, size)
	patience.Until(t, "all of them are here", func() bool { return rabbitmq.UnackedOf(r) == n })
	times := float64(int64(liveHeap())-int64(before)) / (n * size)
	t.Logf("%d bodies of %d MiB take %.2f times their size", n, size>>20, times)
	if times > 1.5 || times < 1 {
		t.Errorf("they take %.2f times their size", times)
	}
	for _, d := range receive(t, r, n) {
		if len(d.Envelope.Body) != size {
			t.Errorf("a body of %d bytes", len(d.Envelope.Body))
		}
		settle(t, r, core.AckDone(d))
	}
	runtime.KeepAlive(r)
}

// publishLarge publishes n messages with bodies of size bytes, over a transport of its own.
func publishLarge(t *testing.T, mq *testenv.MQ, n, size int) {
	t.Helper()
	bus := dial(t, mq.URL, rabbitmq.Options{})
	batch := envelopes(n, "a")
	for i := range batch {
		batch[i].Body = make([]byte, size)
	}
	if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := bus.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
