package outboxtest_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// retriesInStepsOf rounds the delays of retries down.
func retriesInStepsOf(step time.Duration) fault {
	return outcomes(func(o core.Outcome, r *core.Record) core.Outcome {
		if o.Event() != core.EventAttemptFailed {
			return o
		}
		return core.Retry(r, errors.New(o.Error()), o.In().Truncate(step))
	})
}

var largeFaults = []faulty{
	{"holds the first 100", "hold-holds-many", fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
		all := w.Refs
		w.Refs = all[:min(len(all), 100)]
		ts, err := b.holdStatus(ctx, self, w)
		for _, ref := range all[len(w.Refs):] {
			ts = append(ts, core.HoldResult{Ref: ref, Status: core.HoldGranted})
		}
		return ts, err
	}}},
	{"leaves out the last of more than 16 partitions", "membership-has-many-partitions", fault{membership: func(_ *broken, _ *core.HeartbeatRequest, r *core.Membership) {
		if len(r.Partitions) > 16 {
			r.Partitions = slices.Clone(r.Partitions[:len(r.Partitions)-1])
		}
	}}},
	{"has no more than 100 partitions", "membership-has-many-partitions", fault{membership: func(_ *broken, _ *core.HeartbeatRequest, r *core.Membership) {
		r.Partitions = slices.Clone(r.Partitions[:min(len(r.Partitions), 128)])
	}}},
	{"stops counting at three", "attempts-count-to-ten", eachRetry(func(r *core.Record) { r.Attempts = min(r.Attempts, 3) })},
	{"cuts times to 10 ms", "next-in-is-not-zero-in-vain", dues(func(p *core.DueResult) {
		if p.NextIn > 0 {
			p.NextIn = p.NextIn.Truncate(10 * time.Millisecond)
		}
	})},
	{"takes a retry in 1 ms for one at once", "short-delays-are-kept", retriesInStepsOf(2 * time.Millisecond)},
	{"takes a timer of 1 ms for one of none", "short-delays-are-kept", eachRow(func(r *core.StagedRow) { r.Delay = r.Delay.Truncate(2 * time.Millisecond) })},
	{"waits 50 ms or not at all", "short-delays-are-kept", retriesInStepsOf(50 * time.Millisecond)},
	{"says 0 for the time until a record is due in 1 ms", "short-delays-are-kept", dues(func(p *core.DueResult) {
		if p.NextIn > 0 {
			p.NextIn = p.NextIn.Truncate(2 * time.Millisecond)
		}
	})},
	{"takes the end of a context for a success", "settle-of-an-ended-context", fault{
		settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
			if ctx.Err() != nil {
				return make(core.Results, len(os))
			}
			return b.store.Settle(ctx, self, os)
		},
	}},
	{"refuses for good when the context ends", "settle-of-an-ended-context", fault{
		settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
			if ctx.Err() != nil {
				return core.AllFailed(len(os), core.ErrChanged)
			}
			return b.store.Settle(ctx, self, os)
		},
	}},
	{"takes the end of a context for a success", "release-of-an-ended-context", fault{release: func(ctx context.Context, r *releaseCall) (bool, error) {
		if ctx.Err() != nil {
			return true, nil
		}
		return r.pass(ctx)
	}}},
	{"takes in spite of an ended context", "release-of-an-ended-context", fault{
		hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
			return b.holdStatus(context.WithoutCancel(ctx), self, w)
		},
	}},
	{"accepts one fenced outcome in fifty", "lost-partition-fences-but-published", fault{
		settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
			res := b.store.Settle(ctx, self, os)
			b.mu.Lock()
			defer b.mu.Unlock()
			for i, err := range res {
				if err == nil {
					continue
				}
				if b.count++; b.count%50 == 0 {
					res[i] = nil
				}
			}
			return res
		},
	}},
}
