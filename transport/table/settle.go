package table

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill/core"
)

// maxSettle bounds the outcomes of one settle.
const maxSettle = 1000

// settling is one outcome on its way to the store.
type settling struct {
	h       *holding
	outcome core.Outcome
	retry   bool     // the outcome asks for a retry
	req     *request // who asked; nil = the transport itself
	slot    int
}

// request is one call of Settle.
type request struct {
	ctx     context.Context //nolint:containedctx // of the call; it says whether its caller still waits
	results core.Results
	open    int
	left    bool // the caller did not wait
	done    chan struct{}
}

func (q *request) answer(slot int, err error) {
	if q == nil {
		return
	}
	if !q.left {
		q.results[slot] = err
	}
	if q.open--; q.open == 0 {
		close(q.done)
	}
}

// Settle ends deliveries; see core.Receiver. Calls that come together share one call to the store. While the store cannot
// be reached Settle waits for it, until ctx ends or the receiver is closed.
func (r *receiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	outage := func(err error) error {
		return &core.Error{Op: "waybill/table: settle", Class: core.ClassOutage, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return core.AllFailed(len(acks), outage(err))
	}
	q := &request{ctx: ctx, results: make(core.Results, len(acks)), done: make(chan struct{})}
	t := r.t
	t.mu.Lock()
	if r.closed {
		t.mu.Unlock()
		return core.AllFailed(len(acks), errClosed("settle"))
	}
	for i := range acks {
		if err := r.settle(q, i, &acks[i]); err != nil {
			q.results[i] = &core.Error{Op: "waybill/table: settle", Class: core.ClassRejected, Err: err}
		}
	}
	waiting := q.open > 0
	t.flush()
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
	if q.open > 0 {
		q.left = true
		t.unstick()
		for i := range acks { // what is not known now will be settled, or come again
			if acks[i].Delivery == nil || q.results[i] != nil {
				continue
			}
			if h, ok := acks[i].Delivery.Handle.(*holding); ok && h.state == settle {
				q.results[i] = outage(ctx.Err())
			}
		}
	}
	return q.results
}

// settle queues the outcome of one ack. mu is held.
func (r *receiver) settle(q *request, slot int, a *core.Ack) error {
	var h *holding
	if a.Delivery != nil {
		h, _ = a.Delivery.Handle.(*holding)
	}
	switch {
	case h == nil || h.r != r:
		return fmt.Errorf("%w: the delivery is not of this receiver", core.ErrInvalid)
	case h.state != handed:
		return core.ErrLeaseLost
	case a.Verdict == core.VerdictNone:
		return fmt.Errorf("%w: the ack has no verdict: build it with core.AckDone and the like", core.ErrInvalid)
	case a.Verdict > core.VerdictGiveBack:
		return fmt.Errorf("%w: verdict %d is unknown", core.ErrInvalid, a.Verdict)
	}
	var cause error
	if a.Err != "" {
		cause = errors.New(a.Err)
	}
	s := &settling{h: h, req: q, slot: slot}
	keep := true // the lane goes on
	switch a.Verdict {
	case core.VerdictRetry:
		s.outcome, s.retry, keep = core.Retry(&h.rec, cause, a.Delay), true, false
	case core.VerdictReject:
		reason := a.Reason
		if reason == core.ReasonNone {
			reason = core.ReasonRejected
		}
		s.outcome, keep = core.Abandon(&h.rec, reason, cause), !r.route.BlockAfterAbandon
		if r.drop {
			s.outcome, keep = core.Published(&h.rec), true
		}
	case core.VerdictGiveBack:
		s.outcome, keep = core.Release(&h.rec, 0), false
	case core.VerdictDone, core.VerdictNone:
		s.outcome = core.Published(&h.rec)
	}
	if h.lost { // known from a renewal
		r.letGo(h)
		return core.ErrLeaseLost
	}
	h.state = settle
	q.open++
	r.t.pending = append(r.t.pending, s)
	if !keep {
		for _, f := range r.cut(h) {
			r.t.release(f)
		}
	}
	return nil
}

// letGo forgets h and releases what waits behind it. mu is held.
func (r *receiver) letGo(h *holding) {
	for _, f := range r.cut(h) {
		r.t.release(f)
	}
	r.forget(h)
}

// release hands h back to the store, at no cost. mu is held.
func (t *Transport) release(h *holding) {
	if h.state == waits {
		h.r.out++ // forget takes it off again
	}
	h.state, h.delivery = settle, nil
	t.pending = append(t.pending, &settling{h: h, outcome: core.Release(&h.rec, 0)})
	t.flush()
}

// unstick ends the pause before a settle is tried again. mu is held.
func (t *Transport) unstick() {
	select {
	case t.stir <- struct{}{}:
	default:
	}
}

// flush settles until nothing is pending. One settle is in progress at a time; what comes meanwhile goes with the next. mu
// is held.
func (t *Transport) flush() {
	if t.flushing || len(t.pending) == 0 {
		return
	}
	t.flushing = true
	go func() {
		for fails := 0; ; {
			t.mu.Lock()
			if len(t.pending) == 0 {
				t.flushing = false
				t.mu.Unlock()
				return
			}
			batch := t.pending
			if len(batch) > maxSettle {
				batch = batch[:maxSettle:maxSettle]
			}
			t.pending = t.pending[len(batch):]
			base := t.base
			t.mu.Unlock()

			outcomes := make([]core.Outcome, len(batch))
			for i, s := range batch {
				outcomes[i] = s.outcome
			}
			t.writeSlot <- struct{}{}
			ctx, cancel := context.WithTimeout(base, t.callLimit)
			res := t.store.Settle(ctx, outcomes)
			cancel()
			<-t.writeSlot
			if len(res) != len(batch) {
				res = core.AllFailed(len(batch), fmt.Errorf("the store returned %d results for %d outcomes", len(res), len(batch)))
			}
			t.mu.Lock()
			again, err := t.settled(batch, res)
			t.mu.Unlock()
			if !again {
				fails = 0
				continue
			}
			fails++
			d, _, _ := (&core.Backoff{Base: 100 * time.Millisecond, Cap: 5 * time.Second, Attempts: -1}).Next(fails, err)
			t.log.Warn("settling failed; trying again", "event", "settle_retry", "retry_in", d, "error", core.ErrorText(err))
			_ = await(base, t.stir, d)
		}
	}()
}

// settled takes in the results of a settle, and reports whether an outage made it queue some of them again. mu is held.
func (t *Transport) settled(batch []*settling, res core.Results) (bool, error) {
	t.stats.Settles++
	var again []*settling
	var cause error
	for i, s := range batch {
		h, r := s.h, s.h.r
		switch err := res[i]; {
		case err == nil:
			if h.state == settle {
				r.forget(h)
				r.advance(h)
			}
			switch s.outcome.State() {
			case core.StatePending, core.StateFailed:
				t.wake(r.route.Route, s.outcome.RetryIn())
			case core.StateNone, core.StateProcessing, core.StatePublished, core.StateAbandoned:
			}
			s.req.answer(s.slot, nil)
		case core.ClassOf(err) == core.ClassOutage && !errors.Is(err, core.ErrLeaseLost) && !r.closed && (s.req == nil || s.req.ctx.Err() == nil):
			cause = err
			again = append(again, s)
		default:
			if errors.Is(err, core.ErrLeaseLost) && s.req != nil {
				phase := "settle"
				if s.retry {
					phase = "retry"
				}
				t.leaseLost(h, phase)
			}
			if h.state == settle {
				r.letGo(h)
			}
			s.req.answer(s.slot, core.Within("waybill/table: settle", err))
		}
	}
	t.pending = append(again, t.pending...)
	return len(again) > 0, cause
}

// wake makes the receivers of a queue claim after d. mu is held.
func (t *Transport) wake(queue string, d time.Duration) {
	for _, r := range t.receivers {
		if r.route.Route == queue {
			now := time.Now()
			r.wakeBy(r.floor(now.Add(d)))
		}
	}
}

// leaseLost tells and counts that another claim holds h. mu is held.
func (t *Transport) leaseLost(h *holding, phase string) {
	switch phase {
	case "retry":
		t.stats.LostAtRetry++
	case "renew":
		t.stats.LostAtRenew++
	default:
		t.stats.LostAtSettle++
	}
	t.log.LogAttrs(t.base, slog.LevelWarn, "another claim holds the message", slog.String("event", "lease_lost"), slog.String("phase", phase),
		slog.String("id", h.rec.Envelope.ID), slog.String("queue", h.r.route.Route), slog.Int("attempt", h.rec.Attempts+1),
		slog.Duration("held", time.Since(h.claimed)))
}
