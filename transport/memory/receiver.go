package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// receiver is guarded by its transport's lock.
type receiver struct {
	q        *queue
	prefetch int
	bytes    int // that one Receive returns; 0 = any number
	drop     bool
	inOrder  bool // only the first of the queue's receivers gets deliveries
	closed   bool
	held     map[*holding]struct{}
	unwatch  func() bool // ends the wait for the end of the subscription's context
}

// holding is one delivery of an item: a Delivery's Handle.
type holding struct {
	r   *receiver
	msg *item
}

// Receive waits for deliveries; see core.Receiver. Deliveries are taken from the queue only as it returns them.
func (r *receiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	if limit < 1 {
		return nil, waybill.Invalid("waybill/memory: receive", fmt.Sprintf("limit: %d is less than 1", limit))
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("waybill/memory: receive: %w", err)
		}
		got, changed, due, err := r.take(limit)
		if err != nil || len(got) > 0 {
			return got, err
		}
		if err := wait(ctx, changed, due); err != nil {
			return nil, fmt.Errorf("waybill/memory: receive: %w", err)
		}
	}
}

// take returns up to limit deliveries. If there are none it returns a channel that is closed at the next change, and
// the time until the next retry is due, or less than 0.
func (r *receiver) take(limit int) (got []*waybill.Delivery, changed <-chan struct{}, due time.Duration, err error) {
	q := r.q
	q.t.mu.Lock()
	defer q.t.mu.Unlock()
	if r.closed {
		return nil, nil, 0, closed("receive")
	}
	if r.inOrder && q.receivers[0] != r {
		return nil, q.waiting(), -1, nil
	}
	now := time.Now()
	q.promote(now)
	bytes := 0
	for len(q.ready) > 0 && len(got) < limit && len(r.held) < r.prefetch && (r.bytes <= 0 || bytes < r.bytes) {
		msg := q.ready.pop()
		if msg.receipt.gone() {
			continue
		}
		h := &holding{r: r, msg: msg}
		r.held[h] = struct{}{}
		q.held++
		bytes += len(msg.env.Body)
		got = append(got, &waybill.Delivery{
			Envelope: msg.env.Clone(), Queue: q.name, Attempt: msg.attempt, Redeliveries: msg.redeliveries, Handle: h,
		})
	}
	if len(got) > 0 {
		return got, nil, 0, nil
	}
	due = -1
	if len(q.delayed) > 0 && len(r.held) < r.prefetch {
		due = q.delayed[0].due.Sub(now)
	}
	return nil, q.waiting(), due, nil
}

func wait(ctx context.Context, changed <-chan struct{}, due time.Duration) error {
	var timer <-chan time.Time
	if due >= 0 {
		t := time.NewTimer(due)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-changed:
	case <-timer:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// Settle ends deliveries; see core.Receiver. It never blocks.
func (r *receiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	if err := ctx.Err(); err != nil {
		return core.AllFailed(len(acks), &waybill.Error{Op: "waybill/memory: settle", Class: waybill.ClassOutage, Err: err})
	}
	r.q.t.mu.Lock()
	defer r.q.t.mu.Unlock()
	if r.closed {
		return core.AllFailed(len(acks), closed("settle"))
	}
	results := make(core.Results, len(acks))
	now := time.Now()
	for i := range acks {
		if err := r.settle(&acks[i], now); err != nil {
			results[i] = &waybill.Error{Op: "waybill/memory: settle", Class: waybill.ClassRejected, Err: err}
		}
	}
	r.q.wakeAll()
	return results
}

func (r *receiver) settle(a *core.Ack, now time.Time) error {
	var h *holding
	if a.Delivery != nil {
		h, _ = a.Delivery.Handle.(*holding)
	}
	if h == nil || h.r != r {
		return fmt.Errorf("%w: the delivery is not of this receiver", waybill.ErrInvalid)
	}
	if _, ok := r.held[h]; !ok {
		return waybill.ErrLeaseLost
	}
	q, msg := r.q, h.msg
	switch a.Verdict {
	case core.VerdictDone:
		msg.receipt.settle(nil)
	case core.VerdictRetry:
		if msg.receipt != nil {
			msg.receipt.settle(retryLater(a))
			break
		}
		if !a.SameAttempt {
			msg.attempt++
		}
		msg.redeliveries = 0
		msg.due = now.Add(max(a.Delay, 0))
		msg.place = q.t.nextPlace()
		q.delayed.push(msg)
	case core.VerdictReject:
		switch {
		case r.drop:
			msg.receipt.settle(nil)
		case msg.receipt != nil:
			msg.receipt.settle(rejected(a))
		default:
			attempt := max(msg.attempt, a.Delivery.Attempt) // retries in place count, too
			q.park(Parked{Envelope: msg.env.Clone(), Queue: q.name, Attempt: attempt, Reason: a.Reason, Err: a.Err, At: now})
		}
	case core.VerdictRelease:
		q.ready.push(msg)
	case core.VerdictNone:
		return errors.Join(waybill.ErrInvalid, errors.New("the ack has no verdict: build it with core.AckDone and the like"))
	default:
		return fmt.Errorf("%w: verdict %d is unknown", waybill.ErrInvalid, a.Verdict)
	}
	delete(r.held, h)
	q.held--
	return nil
}

// Close returns unsettled messages to the queue, each to its old place and counted as a redelivery.
func (r *receiver) Close(context.Context) error {
	q := r.q
	q.t.mu.Lock()
	defer q.t.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	r.unwatch()
	for h := range r.held {
		h.msg.redeliveries++
		q.ready.push(h.msg)
	}
	q.held -= len(r.held)
	clear(r.held)
	q.receivers = slices.DeleteFunc(q.receivers, func(other *receiver) bool { return other == r })
	q.wakeAll()
	return nil
}
