package transporttest_test

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// leased is a receiver that holds a delivery for a second, unless it is renewed: a core.DeliveryRenewer.
type leased struct {
	core.Receiver
	*link
	f leaseFaults

	mu     sync.Mutex
	held   map[*waybill.Delivery]*time.Timer
	others []*waybill.Delivery
}

// leaseFaults are ways to get it wrong.
type leaseFaults struct {
	forever, neverRenews, knowsNothing bool
}

func (r *leased) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	ds, err := r.Receiver.Receive(ctx, limit)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range ds {
		r.held[d] = time.AfterFunc(time.Second, func() { r.expire(d) })
	}
	return ds, err
}

func (r *leased) expire(d *waybill.Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held[d] == nil || r.f.forever {
		return
	}
	delete(r.held, d)
	if r.f.knowsNothing {
		r.others = append(r.others, d)
	}
	r.link.mu.Lock()
	r.expired[d.Envelope.ID]++
	r.link.mu.Unlock()
	r.Receiver.Settle(context.Background(), []core.Ack{core.AckRelease(d)})
}

func (r *leased) RenewDeliveries(_ context.Context, ds []*waybill.Delivery, d time.Duration) core.Results {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := make(core.Results, len(ds))
	for i := range ds {
		switch t := r.held[ds[i]]; {
		case t == nil:
			res[i] = waybill.ErrLeaseLost
		case !r.f.neverRenews:
			t.Reset(d)
		}
	}
	return res
}

func (r *leased) Settle(ctx context.Context, acks []core.Ack) core.Results {
	res := r.Receiver.Settle(ctx, acks)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.others) > 0 && slices.Contains(r.others, acks[0].Delivery) {
		return core.Results{errCut} // neither settled nor another's
	}
	for i, a := range acks {
		if t := r.held[a.Delivery]; t != nil && res[i] == nil {
			t.Stop()
			delete(r.held, a.Delivery)
		}
	}
	return res
}

// Close stops the timers.
func (r *leased) Close(ctx context.Context) error {
	r.mu.Lock()
	for _, t := range r.held {
		t.Stop()
	}
	clear(r.held)
	r.mu.Unlock()
	return r.Receiver.Close(ctx)
}
