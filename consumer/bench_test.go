package consumer_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/store/memory"
)

// feed delivers n messages and ends ctx when they are settled. It costs next to nothing.
type feed struct {
	ds   []waybill.Delivery
	next int
	left atomic.Int64
	done context.CancelFunc
}

func newFeed(n, keys int) *feed {
	f := &feed{ds: make([]waybill.Delivery, n)}
	e := topic.Message(note{N: 1}).Envelope
	e.Type, e.Source = e.Topic, "/notes"
	for i := range f.ds {
		e.ID = "id-" + strconv.Itoa(i)
		if keys > 0 {
			e.Key = "key-" + strconv.Itoa(i%keys)
		}
		f.ds[i] = waybill.Delivery{Envelope: e, Queue: queue, Attempt: 1}
	}
	f.left.Store(int64(n))
	return f
}

func (f *feed) Subscribe(context.Context, core.Subscription) (core.Receiver, error) { return f, nil }

func (*feed) SubscriberTraits() core.SubscriberTraits {
	return core.SubscriberTraits{DelaysRetries: true, Parks: true}
}
func (*feed) Close(context.Context) error { return nil }

func (f *feed) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	if f.next == len(f.ds) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	ds := make([]*waybill.Delivery, min(limit, len(f.ds)-f.next))
	for i := range ds {
		ds[i] = &f.ds[f.next]
		f.next++
	}
	return ds, nil
}

func (f *feed) Settle(_ context.Context, acks []core.Ack) core.Results {
	if f.left.Add(-int64(len(acks))) == 0 {
		f.done()
	}
	return make(core.Results, len(acks))
}

func benchConsumer(b *testing.B, keys int, h waybill.Handler) {
	b.Helper()
	b.ReportAllocs()
	f := newFeed(b.N, keys)
	c, err := consumer.New(f, consumer.Options{Logger: quiet, Prefetch: 200})
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Handle(waybill.Subscription{Queue: queue}, h); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	f.done = cancel
	b.ResetTimer()
	if err := c.Run(ctx); err != nil {
		b.Fatal(err)
	}
}

// The engine's own cost a message.
func BenchmarkConsumer(b *testing.B) {
	h := handle(func(context.Context, *waybill.Delivery) error { return nil })
	b.Run("unkeyed", func(b *testing.B) { benchConsumer(b, 0, h) })
	b.Run("100 keys", func(b *testing.B) { benchConsumer(b, 100, h) })
	b.Run("1 key", func(b *testing.B) { benchConsumer(b, 1, h) })
}

// The same with batches of 100.
func BenchmarkConsumerBatch(b *testing.B) {
	h := handle(func(context.Context, *waybill.Delivery) error { return nil })
	h.Batch = func(_ context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
		return make([]waybill.HandlerStatus, len(ds)), nil
	}
	b.Run("unkeyed", func(b *testing.B) { benchConsumer(b, 0, h) })
	b.Run("100 keys", func(b *testing.B) { benchConsumer(b, 100, h) })
}

// Decoding and the inbox in memory too.
func BenchmarkConsumerInbox(b *testing.B) {
	store, err := memory.New(memory.Options{Source: "/bench"})
	if err != nil {
		b.Fatal(err)
	}
	box, err := inbox.New(store, "c", inbox.Options{})
	if err != nil {
		b.Fatal(err)
	}
	benchConsumer(b, 0, inbox.Handler(box, topic, func(context.Context, *memory.Tx, note) error { return nil }))
}

// The loop that an application would write by hand: ten goroutines, each receives, decodes, runs the transaction, acks.
func BenchmarkHandWrittenInbox(b *testing.B) {
	store, err := memory.New(memory.Options{Source: "/bench"})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	f := newFeed(b.N, 0)
	ctx, cancel := context.WithCancel(b.Context())
	f.done = cancel
	b.ResetTimer()
	work := make(chan *waybill.Delivery, 200)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for d := range work {
				if _, err := topic.Decode(&d.Envelope); err != nil {
					panic(err)
				}
				_, err := store.Do(ctx, core.InboxKey{Consumer: "c", Source: d.Envelope.Source, ID: d.Envelope.ID}, func(context.Context, *memory.Tx) error { return nil })
				if err != nil {
					panic(err)
				}
				f.Settle(ctx, []core.Ack{core.AckDone(d)})
			}
		})
	}
	for {
		ds, err := f.Receive(ctx, 200)
		if errors.Is(err, context.Canceled) {
			break
		}
		for _, d := range ds {
			work <- d
		}
	}
	close(work)
	wg.Wait()
}
