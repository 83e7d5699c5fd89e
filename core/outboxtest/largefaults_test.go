package outboxtest_test

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

var largeFaults = []faulty{
	{"holds the first 100", "take-holds-many", fault{take: func(ctx context.Context, b *broken, self core.Session, w core.Want) ([]core.Taken, error) {
		all := w.Refs
		w.Refs = all[:min(len(all), 100)]
		ts, err := b.grip(ctx, self, w)
		for _, ref := range all[len(w.Refs):] {
			ts = append(ts, core.Taken{Ref: ref, Grip: core.GripHeld})
		}
		return ts, err
	}}},
	{"leaves out the last of more than 16 units", "roster-has-many-units", fault{roster: func(_ *broken, _ *core.Meeting, r *core.Roster) {
		if len(r.Units) > 16 {
			r.Units = slices.Clone(r.Units[:len(r.Units)-1])
		}
	}}},
	{"has no more than 100 units", "roster-has-many-units", fault{roster: func(_ *broken, _ *core.Meeting, r *core.Roster) {
		r.Units = slices.Clone(r.Units[:min(len(r.Units), 128)])
	}}},
	{"stops counting at three", "attempts-count-to-ten", dues(func(_ *broken, _ core.Session, p *core.DuePage) {
		for i := range p.Retries {
			p.Retries[i].Attempts = min(p.Retries[i].Attempts, 3)
		}
	})},
	{"cuts times to 10 ms", "next-in-is-not-zero-in-vain", dues(func(_ *broken, _ core.Session, p *core.DuePage) {
		if p.NextIn > 0 {
			p.NextIn = p.NextIn.Truncate(10 * time.Millisecond)
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
	{"takes the end of a context for a success", "give-up-of-an-ended-context", giveUps(
		func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
			if ctx.Err() != nil {
				return true, nil
			}
			return b.store.GiveUp(ctx, self, u, out)
		})},
	{"takes in spite of an ended context", "give-up-of-an-ended-context", fault{
		take: func(ctx context.Context, b *broken, self core.Session, w core.Want) ([]core.Taken, error) {
			return b.grip(context.WithoutCancel(ctx), self, w)
		},
	}},
	{"accepts one fenced outcome in fifty", "lost-unit-fences-but-published", fault{
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
