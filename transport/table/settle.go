package table

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
)

// A verdict of the consumer becomes an outcome of the dispatcher, which stores it with those of other handlers in one
// call. So Settle waits for a result that another goroutine brings. A caller that stops waiting gets an outage for each
// verdict without a result, and the verdict is stored all the same: the message comes again only if that fails. A
// verdict whose record a transaction has locked is answered with core.ErrLocked, once, so that no other one waits for
// that lock. In both cases another Settle of the delivery waits for the result, or gets it.

// request is one call of Settle.
type request struct {
	results core.Results  // of the call, in the order of its acks
	open    int           // results that are not there yet
	done    chan struct{} // closed with the last result
}

// settling is one outcome on its way to the store.
type settling struct {
	h     *holding
	ack   *core.Ack
	delay time.Duration
	back  bool // the record comes again: it is retried or released
	retry bool
	req   *request // nil = no caller waits
	slot  int      // in the results of req
	known bool     // the result is, and err has it
	err   error
}

// ask has q wait for the result.
func (s *settling) ask(q *request, slot int) {
	s.req, s.slot = q, slot
	q.open++
}

// answer gives the caller, if one waits, a result.
func (s *settling) answer(err error) {
	q := s.req
	if q == nil {
		return
	}
	s.req = nil
	q.results[s.slot] = err
	if q.open--; q.open == 0 {
		close(q.done)
	}
}

// end answers with the result, or keeps it for a caller that comes later.
func (s *settling) end(err error) {
	if s.req == nil {
		s.known, s.err = true, err
		return
	}
	s.h.pending = nil
	s.answer(err)
}

// Settle ends deliveries; see core.Receiver. Calls that come together share one call to the store. While the store
// cannot be reached Settle waits for it, until ctx ends or the receiver is closed. A delivery whose record a
// transaction has locked is answered with core.ErrLocked, once, and is settled when that transaction ends. A second
// Settle of the delivery waits for that, and no other one does. The steps:
//
//  1. accept checks each ack. It begins a settle, or finds the one that an earlier call has begun.
//  2. conclude hands the outcomes to the dispatcher, which stores them.
//  3. The dispatcher calls settled with each result, and the last one ends the wait.
func (r *receiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	outage := func(err error) error {
		return &waybill.Error{Op: "waybill/table: settle", Class: waybill.ClassOutage, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return core.AllFailed(len(acks), outage(err))
	}
	q := &request{results: make(core.Results, len(acks)), done: make(chan struct{})}
	t := r.t
	t.mu.Lock()
	if r.closed {
		t.mu.Unlock()
		return core.AllFailed(len(acks), errClosed("settle"))
	}
	all, begun := make([]*settling, 0, len(acks)), make([]*settling, 0, len(acks))
	for i := range acks {
		s, known, err := r.accept(&acks[i])
		switch {
		case err != nil:
			q.results[i] = &waybill.Error{Op: "waybill/table: settle", Class: waybill.ClassRejected, Err: err}
			continue
		case known && s.known:
			q.results[i], s.h.pending = s.err, nil
			continue
		case !known:
			begun = append(begun, s)
		}
		s.ask(q, i)
		all = append(all, s)
	}
	r.conclude(begun)
	waiting := q.open > 0
	r.pump()
	t.mu.Unlock()
	if !waiting {
		return q.results
	}
	select {
	case <-q.done:
		return q.results
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range all { // what is not known now will be settled, or come again
		if s.req == q {
			s.answer(outage(ctx.Err()))
		}
	}
	return q.results
}

// accept checks one ack. It returns the settle that it begins, or the known one that no caller waits for. A delivery
// whose settle has begun, and has a caller that waits, is lost for this one. mu is held.
func (r *receiver) accept(a *core.Ack) (s *settling, known bool, err error) {
	var h *holding
	if a.Delivery != nil {
		h, _ = a.Delivery.Handle.(*holding)
	}
	switch {
	case h == nil || h.r != r:
		return nil, false, fmt.Errorf("%w: the delivery is not of this receiver", waybill.ErrInvalid)
	case h.pending != nil && h.pending.req == nil:
		return h.pending, true, nil
	case h.state != handed:
		return nil, false, waybill.ErrLeaseLost
	case a.Verdict == core.VerdictNone:
		return nil, false, fmt.Errorf("%w: the ack has no verdict: build it with core.AckDone and the like", waybill.ErrInvalid)
	case a.Verdict > core.VerdictRelease:
		return nil, false, fmt.Errorf("%w: verdict %d is unknown", waybill.ErrInvalid, a.Verdict)
	case h.lost: // known since it was
		r.forget(h)
		return nil, false, waybill.ErrLeaseLost
	}
	s = &settling{h: h, ack: a, retry: a.Verdict == core.VerdictRetry}
	s.back = s.retry || a.Verdict == core.VerdictRelease
	if s.retry {
		s.delay = a.Delay
	}
	r.busy--
	h.state, h.pending = settle, s
	return s, false, nil
}

// conclude hands the results of settles to the dispatcher. Messages that follow a failed one of their key, and wait,
// are taken back first. mu is held.
func (r *receiver) conclude(all []*settling) {
	now := time.Now()
	slices.SortStableFunc(all, func(a, b *settling) int { // of those that come again, the last of a key first
		x, y := 0, 0
		if a.back {
			x = 1
		}
		if b.back {
			y = 1
		}
		if x+y < 2 {
			return x - y
		}
		return cmp.Compare(b.h.item.Record.Seq, a.h.item.Record.Seq)
	})
	for _, s := range all {
		r.d.Conclude(now, s.h.item, s.outcome(r.drop))
	}
}

// outcome translates a verdict. A subscription that drops failed messages has nothing to keep of a rejected one.
func (s *settling) outcome(drop bool) core.Outcome {
	rec := &s.h.item.Record
	var cause error
	if s.ack.Err != "" {
		cause = errors.New(s.ack.Err)
	}
	switch s.ack.Verdict {
	case core.VerdictRetry:
		o := core.Retry(rec, cause, s.ack.Delay)
		if s.ack.SameAttempt {
			o = o.WithoutAttempt()
		}
		return o
	case core.VerdictReject:
		if !drop {
			return core.Abandon(rec, s.ack.Reason, cause)
		}
	case core.VerdictRelease:
		return core.Release(rec, 0, false)
	case core.VerdictDone, core.VerdictNone:
	}
	return core.Published(rec)
}

// settled is called by the dispatcher with the result for a delivery. Without a pending settle the process was taken
// for dead, and the handler's context ends. mu is held.
func (r *receiver) settled(item *dispatch.Item, err error) {
	h := r.out[item]
	if h == nil {
		return // it was not handed out
	}
	s := h.pending
	switch {
	case errors.Is(err, core.ErrLocked):
		s.answer(core.NewOutcomeError("waybill/table: settle", item.Record.Ref, core.ErrLocked))
		return
	case s == nil: // the process was taken for dead
		if !h.lost {
			h.lost = true
			r.t.stats.LostAtRenew++
			if h.onLoss != nil {
				go h.onLoss() // without the lock
			}
		}
		return
	case err == nil:
		if s.back && !r.closed {
			r.t.stir(r, s.delay)
		}
	default:
		if s.retry {
			r.t.stats.LostAtRetry++
		} else {
			r.t.stats.LostAtSettle++
		}
		err = &waybill.Error{Op: "waybill/table: settle", Class: waybill.ClassRejected, Err: waybill.ErrLeaseLost}
	}
	r.forget(h)
	s.end(err)
}

// ofRecord names a record that has been held for some time in a log line.
func ofRecord(rec *core.Record, queue string, held time.Duration) []slog.Attr {
	attrs := []slog.Attr{
		slog.String("id", rec.Envelope.ID), slog.String("topic", rec.Envelope.Topic), slog.String("queue", queue),
		slog.Int("attempt", rec.Attempts+1), slog.Duration("held", held.Round(time.Millisecond)),
	}
	if rec.Envelope.Key != "" {
		attrs = append(attrs, slog.String("key", rec.Envelope.Key))
	}
	if rec.Envelope.Tenant != "" {
		attrs = append(attrs, slog.String("tenant", rec.Envelope.Tenant))
	}
	return attrs
}
