package transport

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// receiver is an open subscription.
type receiver struct {
	t      *Transport
	q      *queue
	drop   bool
	bytes  int                // that a Receive returns; see core.Subscription
	held   map[*item]struct{} // handed out and not settled
	closed chan struct{}
}

// Subscribe makes the queue if there is none, and adds the bindings. The end of ctx closes the receiver.
func (t *Transport) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case sub.Queue == "":
		return nil, waybill.Invalid("skeleton: subscribe", "Queue: is empty; name it")
	case ctx.Err() != nil:
		return nil, failure("subscribe", waybill.ClassOutage, ctx.Err())
	case t.closed:
		return nil, failure("subscribe", waybill.ClassOutage, waybill.ErrClosed)
	}
	q := t.queues[sub.Queue]
	if q == nil {
		q = &queue{name: sub.Queue}
		t.queues[sub.Queue] = q
	}
	for _, b := range sub.Bindings {
		if !slices.Contains(q.bindings, b) {
			q.bindings = append(q.bindings, b)
		}
	}
	r := &receiver{t: t, q: q, drop: sub.DropFailed, bytes: sub.ReceiveBytes, held: map[*item]struct{}{}, closed: make(chan struct{})}
	t.receivers[r] = struct{}{}
	context.AfterFunc(ctx, func() { _ = r.Close(context.WithoutCancel(ctx)) })
	return r, nil
}

// Receive waits for messages and takes up to limit. Nothing is taken before it is returned, so a cancelled call loses
// nothing. BROKER: a fetch that is under way when ctx ends must give back what it brings.
func (r *receiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	for {
		ds, next, changed := r.take(limit)
		if len(ds) > 0 {
			return ds, nil
		}
		var due <-chan time.Time
		if next > 0 {
			timer := time.NewTimer(next)
			defer timer.Stop()
			due = timer.C
		}
		select {
		case <-changed:
		case <-due:
		case <-r.closed:
			return nil, failure("receive", waybill.ClassOutage, waybill.ErrClosed)
		case <-ctx.Done():
			return nil, failure("receive", waybill.ClassOutage, ctx.Err())
		}
	}
}

// take takes due deliveries. If there is none, it returns the time until the next retry, and a channel that closes at a
// change.
func (r *receiver) take(limit int) (ds []*waybill.Delivery, next time.Duration, changed <-chan struct{}) {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	select {
	case <-r.closed:
		return nil, 0, r.t.changed
	default:
	}
	now, bytes := time.Now(), 0
	r.q.items = slices.DeleteFunc(r.q.items, func(m *item) bool {
		if in := m.due.Sub(now); in > 0 {
			if next == 0 || in < next {
				next = in
			}
			return false
		}
		if len(ds) >= limit || r.bytes > 0 && bytes >= r.bytes {
			return false
		}
		bytes += len(m.env.Body)
		r.held[m] = struct{}{}
		ds = append(ds, &waybill.Delivery{
			Envelope: m.env.Clone(), Queue: r.q.name, Attempt: m.attempt, Redeliveries: m.redeliveries, Handle: m,
		})
		return true
	})
	return ds, next, r.t.changed
}

// Settle ends deliveries. BROKER: a slot is nil only after the broker has answered.
func (r *receiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	if ctx.Err() != nil {
		return core.AllFailed(len(acks), failure("settle", waybill.ClassOutage, ctx.Err()))
	}
	res := make(core.Results, len(acks))
	for i := range acks {
		res[i] = r.settle(&acks[i])
	}
	return res
}

func (r *receiver) settle(a *core.Ack) error {
	if a.Delivery == nil {
		return failure("settle", waybill.ClassRejected, errors.Join(waybill.ErrInvalid, errors.New("the ack has no delivery")))
	}
	m, ours := a.Delivery.Handle.(*item)
	if !ours {
		return failure("settle", waybill.ClassRejected, errors.Join(waybill.ErrInvalid, errors.New("the delivery is not of this transport")))
	}
	if _, held := r.held[m]; !held {
		return failure("settle", waybill.ClassRejected, waybill.ErrLeaseLost)
	}
	switch a.Verdict {
	case core.VerdictDone:
	case core.VerdictRetry:
		if !a.SameAttempt && a.Delivery.NotBefore.IsZero() {
			m.attempt++
		}
		m.redeliveries, m.due = 0, time.Now().Add(a.Delay)
		r.t.put(r.q, m)
	case core.VerdictReject:
		if !r.drop {
			r.q.parked = append(r.q.parked, Parked{Envelope: m.env, Reason: a.Reason, Err: a.Err})
		}
	case core.VerdictRelease: // at no cost: no count rises
		r.t.putBack(r.q, m)
	case core.VerdictNone:
		fallthrough
	default:
		return failure("settle", waybill.ClassRejected, errors.Join(waybill.ErrInvalid, errors.New("the ack has no verdict")))
	}
	delete(r.held, m)
	return nil
}

// Close gives back what was not settled. That counts as a delivery without an outcome.
func (r *receiver) Close(context.Context) error {
	r.t.mu.Lock()
	delete(r.t.receivers, r)
	r.t.mu.Unlock()
	r.close()
	return nil
}

func (r *receiver) close() {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	select {
	case <-r.closed:
		return
	default:
		close(r.closed)
	}
	for m := range r.held {
		m.redeliveries++
		r.t.putBack(r.q, m)
	}
	clear(r.held)
}
