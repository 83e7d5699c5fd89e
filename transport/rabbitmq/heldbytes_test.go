package rabbitmq_test

// A container that its backlog kills is killed at each start, and each kill counts a delivery. So a consumer without
// options holds a bounded number of bytes.

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// counted is a transport that counts the bodies which its receiver and the consumer hold.
type counted struct {
	*rabbitmq.Transport
	rcv    core.Receiver
	copies atomic.Int64 // bytes that Receive has returned and that are not settled
	mu     sync.Mutex
	most   int64
}

func (c *counted) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	r, err := c.Transport.Subscribe(ctx, sub)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rcv = r
	return &countedReceiver{r, c}, err
}

// held returns the bytes that are held now.
func (c *counted) held() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rcv == nil {
		return 0
	}
	n := rabbitmq.BytesOf(c.rcv) + c.copies.Load()
	c.most = max(c.most, n)
	return n
}

type countedReceiver struct {
	core.Receiver
	c *counted
}

func (r *countedReceiver) Unwrap() any { return r.Receiver }

func (r *countedReceiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	ds, err := r.Receiver.Receive(ctx, limit)
	for _, d := range ds {
		r.c.copies.Add(int64(len(d.Envelope.Body)))
	}
	r.c.held()
	return ds, err
}

func (r *countedReceiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	r.c.held()
	for _, a := range acks {
		r.c.copies.Add(-int64(len(a.Delivery.Envelope.Body)))
	}
	return r.Receiver.Settle(ctx, acks)
}

// CO-03, CO-26, IN-08: a consumer holds at most 128 MiB of messages of 700 KB, for any handlers, and with any Prefetch
// unless it keeps the order.
func TestConsumerHoldsFewBytes(t *testing.T) {
	const size, limit = 700_000, 128 << 20
	mq := testenv.RabbitMQ(t)
	for name, tt := range map[string]struct {
		inOrder, batch bool
		prefetch       int
		n              int   // messages
		first          int64 // how many come before one is handled
	}{
		"single": {false, false, 0, 60, 10}, "batches": {false, true, 0, 200, 64},
		"in order": {true, false, 0, 60, 20}, "batches in order": {true, true, 0, 200, 64},
		"a prefetch": {false, false, 1000, 200, 64}, "batches with a prefetch": {false, true, 1000, 200, 64},
	} {
		t.Run(name, func(t *testing.T) {
			bus := &counted{Transport: dial(t, mq.URL, rabbitmq.Options{})}
			queue := fmt.Sprintf("q-%t-%t-%d", tt.inOrder, tt.batch, tt.prefetch)
			c, err := consumer.New(bus, consumer.Options{Logger: quiet(), Prefetch: tt.prefetch})
			if err != nil {
				t.Fatal(err)
			}
			var handled atomic.Int64
			begin := make(chan struct{})
			h := waybill.Handler{Name: queue, Handle: func(ctx context.Context, _ *waybill.Delivery) (waybill.HandlerStatus, error) {
				<-begin
				handled.Add(1)
				return waybill.HandlerProcessed, nil
			}}
			if tt.batch {
				h.Batch = func(_ context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
					<-begin
					handled.Add(int64(len(ds)))
					return make([]waybill.HandlerStatus, len(ds)), nil
				}
			}
			if err := c.Handle(waybill.Subscription{Queue: queue, Bindings: []string{queue}, InOrder: tt.inOrder}, h); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { ended <- c.Run(ctx) }()
			patience.Until(t, "the subscription is open", func() bool { return c.Health(t.Context()).Ready })
			batch := sized("m", tt.n, size)
			for i := range batch {
				batch[i].Topic, batch[i].Body = queue, batch[0].Body
			}
			if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
				t.Fatal(err)
			}
			patience.Until(t, "the first ones are here", func() bool { bus.held(); return rabbitmq.BytesOf(bus.rcv) >= tt.first*size })
			close(begin)
			patience.Moving(t, "all are handled", func() (int64, bool) {
				bus.held()
				return handled.Load(), handled.Load() >= int64(tt.n)
			})
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			t.Logf("%d MiB were held at most", bus.most>>20)
			if bus.most > limit {
				t.Errorf("%d MiB were held, want at most %d", bus.most>>20, limit>>20)
			}
		})
	}
}
