package consumer_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// asked is a transport that notes how many messages a consumer asks for, and how many it holds by then.
type asked struct {
	*bus
	mu     sync.Mutex
	limits []int
	held   int
	most   int // limit and what was held, at most
}

func (a *asked) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	rcv, err := a.bus.Subscribe(ctx, sub)
	return &askedReceiver{Receiver: rcv, a: a}, err
}

type askedReceiver struct {
	core.Receiver
	a *asked
}

func (r *askedReceiver) note(f func()) {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	f()
}

func (r *askedReceiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	r.note(func() {
		r.a.limits = append(r.a.limits, limit)
		r.a.most = max(r.a.most, limit+r.a.held)
	})
	ds, err := r.Receiver.Receive(ctx, limit)
	r.note(func() { r.a.held += len(ds) })
	return ds, err
}

func (r *askedReceiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	defer r.note(func() { r.a.held -= len(acks) })
	return r.Receiver.Settle(ctx, acks)
}

// CO-03: a consumer asks for no more than its prefetch less what it holds, and, while no handler is free, for a
// worthwhile number at a time.
func TestAsksForWhatItHasRoomFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(102*time.Second, "100 messages of a second, one at a time")
		a := &asked{bus: declared(t)}
		const prefetch, n = 20, 100
		a.publish(t, n)
		stop := start(t, a, consumer.Options{}, waybill.Subscription{Concurrency: 1, Prefetch: prefetch}, handle(func(context.Context, *waybill.Delivery) error {
			time.Sleep(time.Second) // virtual time
			return nil
		}))
		queued(t, a.bus, memtransport.Depth{})
		settle()
		wantDepth(t, a.bus, memtransport.Depth{})
		stop()
		if a.most > prefetch {
			t.Errorf("asked for %d with what it had", a.most)
		}
		if calls := len(a.limits); calls > n/(prefetch/4)+5 {
			t.Errorf("asked %d times for %d messages: %v", calls, n, a.limits)
		}
	})
}

// short is a transport whose first Settle returns no results.
type short struct{ *bus }

func (s *short) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	rcv, err := s.bus.Subscribe(ctx, sub)
	return &shortReceiver{Receiver: rcv}, err
}

type shortReceiver struct {
	core.Receiver
	calls int
}

func (r *shortReceiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	if r.calls++; r.calls == 1 {
		return nil
	}
	return r.Receiver.Settle(ctx, acks)
}

// A verdict for which the transport returned no result is not taken for stored.
func TestMissingResultIsNoSuccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		b.publish(t, 1)
		var ran seen[string]
		stop := start(t, &short{b}, consumer.Options{}, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
			ran.add(d.Envelope.ID)
			return nil
		}))
		queued(t, b, memtransport.Depth{})
		settle()
		wantDepth(t, b, memtransport.Depth{})
		stop()
		if n := len(ran.all()); n != 1 {
			t.Errorf("it was handled %d times", n)
		}
	})
}

// IN-08: no batch is larger than its handler wants, also of messages that wait behind each other in their key.
func TestBatchesOfAKeyAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		const size, n = 3, 11
		b.publish(t, n, waybill.Key("k"))
		var sizes seen[int]
		h := handle(func(context.Context, *waybill.Delivery) error { return nil })
		h.BatchSize = size
		h.Batch = func(_ context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
			sizes.add(len(ds))
			return make([]waybill.HandlerStatus, len(ds)), nil
		}
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, h)
		settle()
		stop()
		wantDepth(t, b, memtransport.Depth{})
		for _, got := range sizes.all() {
			if got > size {
				t.Errorf("batches of %v", sizes.all())
			}
		}
	})
}

// IN-08: batches do not wait to fill once the consumer holds as much as it may: no more can come.
func TestBatchesGoWhenNothingMoreCanCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		other := waybill.NewTopic("note.removed", waybill.JSON[note]())
		var handled seen[string]
		batch := func(name string) waybill.Handler {
			h := waybill.Handler{Name: name, BatchSize: 4, BatchWait: time.Minute}
			h.Handle = func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
				handled.add(d.Envelope.ID)
				return waybill.HandlerProcessed, nil
			}
			h.Batch = func(_ context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
				for _, d := range ds {
					handled.add(d.Envelope.ID)
				}
				return make([]waybill.HandlerStatus, len(ds)), nil
			}
			return h
		}
		list := messages(4) // two for each handler
		for i := range 2 {
			list[i].Topic, list[i].Type = other.Name(), other.Name()
		}
		b.send(t, list...)
		stop := start(t, b, consumer.Options{}, waybill.Subscription{Prefetch: 4}, batch(topic.Name()), batch(other.Name()))
		settle()
		if n := len(handled.all()); n < 2 {
			t.Errorf("%d were handled at once", n)
		}
		stop()
	})
}
