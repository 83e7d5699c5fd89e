package memory

import (
	"context"
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// receipt is what a publish waits for with Options.ConfirmHandled. It is guarded by its transport's lock; a nil receipt
// ignores everything.
type receipt struct {
	open      int // copies not settled
	err       error
	cancelled bool          // nobody waits any more
	settled   chan struct{} // closed when open is 0
}

// settle notes what became of one copy. The first error is the message's.
func (r *receipt) settle(err error) {
	if r == nil || r.open == 0 {
		return
	}
	if r.err == nil {
		r.err = err
	}
	if r.open--; r.open == 0 {
		close(r.settled)
	}
}

// gone reports whether a copy need not be delivered any more: the message will be published again.
func (r *receipt) gone() bool { return r != nil && r.cancelled }

// await waits until all copies are settled. If ctx ends first, copies that were not delivered yet are cancelled.
func (t *Transport) await(ctx context.Context, r *receipt) error {
	select {
	case <-r.settled:
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.open == 0 {
		return r.err
	}
	r.cancelled = true
	return &waybill.Error{Op: "waybill/memory: publish", Class: waybill.ClassOutage, Err: errors.Join(errors.New("not handled in time"), ctx.Err())}
}

// forget fails the publishes that wait for messages of the queue, those in receivers' hands included.
func (q *queue) forget() {
	for _, items := range [][]*item{q.ready, q.delayed} {
		for _, msg := range items {
			msg.receipt.settle(closed("publish"))
		}
	}
	for _, r := range q.receivers {
		for h := range r.held {
			h.msg.receipt.settle(closed("publish"))
		}
	}
}

func retryLater(a *core.Ack) error {
	return &waybill.Error{
		Op: "waybill/memory: handle", Class: waybill.ClassRejected, After: max(a.Delay, time.Millisecond), Err: errors.New(cause(a, "the handler asked to retry")),
	}
}

func rejected(a *core.Ack) error {
	return &waybill.Error{Op: "waybill/memory: handle", Class: waybill.ClassPermanent, Reason: a.Reason, Err: errors.New(cause(a, "rejected by the handler"))}
}

func cause(a *core.Ack, otherwise string) string {
	if a.Err == "" {
		return otherwise
	}
	return a.Err
}
