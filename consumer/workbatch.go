package consumer

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A batch handler gets its messages as a whole. The table says where each goes:
//
//   the batch handler             | each message
//   ------------------------------|-----------------------------------------------------------
//   returns statuses              | gets its verdict; one that it left out is handled alone
//   fails: a dependency is down   | goes back, or waits in its place where the order is kept
//   fails: the run ends           | goes back
//   fails: a message is lost      | is handled alone, as far as it is still held here
//   does not begin, since a       | is handled alone, as far as it is still held here
//   message is lost already       |
//   fails otherwise               | is handled alone, so that only the culprit fails

// workBatch handles a batch and returns the next job. First the handler gets the batch as a whole. Then the members
// without a verdict are handled one by one: all of them if the batch failed and no dependency was down, else those that
// the handler left out. A pause or a stop that began meanwhile ends that (startAlone).
func (r *runner) workBatch(j job) job {
	t := j.batch
	verdicts := r.processBatch(t.members)
	r.announce(r.applyAll(t, verdicts))
	for n, m := range t.members {
		if !t.open(n) || !r.startAlone(t, n) {
			continue
		}
		v := r.process(m)
		r.mu.Lock()
		turn := r.applyMember(t, n, &v)
		r.mu.Unlock()
		r.announce(turn)
	}
	return r.finishBatch(j)
}

// finishBatch ends j, whose members are all decided, and returns the next job.
func (r *runner) finishBatch(j job) job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proceed(j)
}

// applyAll applies the verdicts of a batch. Members without one stay open.
func (r *runner) applyAll(t *batch, verdicts []verdict) (last turn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range verdicts {
		if t.open(n) && verdicts[n].ack.Verdict != core.VerdictNone {
			if turn := r.applyMember(t, n, &verdicts[n]); turn.changed {
				last = turn
			}
		}
	}
	return last
}

// applyMember is apply for member n of a batch. mu is held.
func (r *runner) applyMember(t *batch, n int, v *verdict) turn {
	held, turn := r.apply(t.members[n], v)
	if held || t.members[n].storing {
		r.holdMember(t, n)
	} else {
		t.states[n] = memberEnded
	}
	return turn
}

// startAlone reports whether the leftover member n may be handled now. If not, it is released or held.
func (r *runner) startAlone(t *batch, n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := t.members[n]
	switch {
	case r.stopping, r.pause.state == paused && !r.sub.InOrder:
		r.settle(m, core.AckRelease(m.d))
		t.states[n] = memberEnded
	case r.pause.state == paused:
		r.delayRetry(m, time.Until(r.pause.until))
		r.holdMember(t, n)
	default:
		return true
	}
	return false
}

// processBatch runs the batch handler of ms and returns a verdict for each; none for those that must be handled one by
// one.
func (r *runner) processBatch(ms []*message) []verdict {
	verdicts := make([]verdict, len(ms))
	ds := make([]*waybill.Delivery, len(ms))
	for i, m := range ms {
		ds[i] = m.d
		m.begun = r.load.blames.outages.Load()
		r.merge(m)
	}
	ctx, done := r.owned(r.handlerCtx, ms...)
	defer done()
	if isLost(ctx) { // already
		return verdicts // one by one, as far as they are ours
	}
	statuses, err := r.callBatch(ctx, ms[0].h, ds)
	if err != nil && isLost(ctx) {
		r.logBatch(r.handlerCtx, len(ds), fmt.Errorf("%w: one of its messages is another consumer's (%w)", waybill.ErrLeaseLost, err))
		return verdicts // one by one, as far as they are ours
	}
	if err != nil {
		switch v := r.judge.decide(r.handlerCtx, ds[0], waybill.HandlerProcessed, err); {
		case v.outage, v.ack.Verdict == core.VerdictRelease:
			// A dependency is down, or the run ends: no message is at fault.
			for i, d := range ds {
				verdicts[i] = v
				verdicts[i].ack.Delivery = d
				verdicts[i].inPlace = v.outage && r.sub.InOrder
			}
			if v.outage {
				r.blameAll(ms)
			}
			r.reportAll(ds, verdicts)
		default:
			r.logBatch(r.handlerCtx, len(ds), err)
		}
		return verdicts
	}
	for i, d := range ds {
		if statuses[i] != waybill.HandlerLeftOut {
			verdicts[i] = r.judge.decide(r.handlerCtx, d, statuses[i], nil)
		}
	}
	r.reportAll(ds, verdicts)
	return verdicts
}

// callBatch runs a batch handler, with its span and its time.
func (r *runner) callBatch(ctx context.Context, h *entry, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
	ctx, span := r.tel.startBatch(ctx, ds)
	r.tel.active.Add(ctx, 1, r.tel.plain...)
	begin := time.Now()
	statuses, err := r.attemptBatch(ctx, h, ds)
	took := time.Since(begin)
	r.tel.active.Add(ctx, -1, r.tel.plain...)
	r.tel.duration.Record(ctx, took.Seconds(), r.tel.plainRecord...)
	if err == nil && len(statuses) != len(ds) {
		err = fmt.Errorf("the batch handler returned %d statuses for %d messages", len(statuses), len(ds))
	}
	endSpan(span, err)
	return statuses, err
}

// attemptBatch runs a batch handler within the time limit.
func (r *runner) attemptBatch(ctx context.Context, h *entry, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
	if r.sub.Timeout < 0 {
		return callBatch(ctx, h, ds)
	}
	limit := cmp.Or(r.sub.Timeout, DefaultTimeout)
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	statuses, err := callBatch(limited, h, ds)
	return statuses, overrun(ctx, limited, err, tooLong, limit)
}

// callBatch runs the batch handler; a panic is an error.
func callBatch(ctx context.Context, h *entry, ds []*waybill.Delivery) (st []waybill.HandlerStatus, err error) {
	defer recovered(&err)
	st, err = h.batch(ctx, ds)
	callMethods(err)
	return st, err
}
