package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/waybill-go/waybill"
)

// RedriveOptions says how RedriveAll goes on from step to step.
type RedriveOptions struct {
	// PerSecond bounds the rate at which records are put back, so that brokers and handlers can follow; 0 = no
	// bound. A step then has at most a tenth of a second's worth, at least one record.
	PerSecond float64
	// Progress, if not nil, is called after each step with the sum so far.
	Progress func(sum Redriven)
}

// RedriveAll calls Redrive step by step until the end is reached, and returns the sum. Each step is a transaction of
// its own, with [MaxPageLimit] records unless req says otherwise. So what was put back stays so when ctx ends, or a
// step fails. To go on after that, pass the sum's Next as PageRequest.After. Dry runs do not wait.
func RedriveAll(ctx context.Context, store Redriver, req RedriveRequest, opts RedriveOptions) (sum Redriven, err error) {
	if !(opts.PerSecond >= 0) || math.IsInf(opts.PerSecond, 0) { // not a number is refused too
		return sum, waybill.Invalid("waybill: redrive", fmt.Sprintf("PerSecond: %v is not a rate; leave it 0 for no bound", opts.PerSecond))
	}
	perSecond := opts.PerSecond
	if req.DryRun {
		perSecond = 0
	}
	req.Page.Limit = cmp.Or(req.Page.Limit, MaxPageLimit)
	if perSecond > 0 {
		req.Page.Limit = min(req.Page.Limit, max(int(min(perSecond/10, MaxPageLimit)), 1))
	}
	pace := ParkedRequest{PerSecond: perSecond}
	sum.Next = req.Page.After
	for started := time.Now(); ; {
		step, err := store.Redrive(ctx, req)
		if err != nil {
			return sum, err
		}
		sum.add(&step)
		if opts.Progress != nil {
			shown := sum
			shown.Refused = maps.Clone(sum.Refused)
			opts.Progress(shown)
		}
		if sum.Next == 0 {
			return sum, nil
		}
		req.Page.After = sum.Next
		timer := time.NewTimer(pace.Pace(sum.Changed, started, time.Now()))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return sum, fmt.Errorf("waybill: redrive: %w", ctx.Err())
		}
	}
}

func (r *Redriven) add(step *Redriven) {
	r.Matched += step.Matched
	r.Changed += step.Changed
	r.Next = step.Next
	for cause, n := range step.Refused {
		if r.Refused == nil {
			r.Refused = map[string]int{}
		}
		r.Refused[cause] += n
	}
}
