package admin_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/patience"
)

// backlog redrives numbers from 1 on, of which every tenth is refused.
type backlog struct {
	n     int64
	steps []int       // how many each step put back
	at    []time.Time // when
	fail  int64       // the step at this number fails, once
}

func (b *backlog) Redrive(_ context.Context, req admin.RedriveRequest) (out admin.Redriven, err error) {
	if req.Page.Limit == 0 {
		req.Page.Limit = admin.DefaultPageLimit
	}
	if b.fail > 0 && req.Page.After >= b.fail {
		b.fail = 0
		return out, errors.New("the database is away")
	}
	for i := req.Page.After + 1; i <= b.n && out.Matched < req.Page.Limit; i++ {
		cause := ""
		if i%10 == 0 {
			cause = admin.RefusedExpired
		}
		out.Count(cause)
		if i < b.n {
			out.Next = i
		} else {
			out.Next = 0
		}
	}
	b.steps, b.at = append(b.steps, out.Changed), append(b.at, time.Now())
	return out, nil
}

// A redrive of everything keeps to its rate, in every second, and a step that fails can be gone on from.
func TestRedriveAll(t *testing.T) { // DB-12
	t.Parallel()
	for name, perSecond := range map[string]float64{"fast": 1000, "slow": 2.5, "unbounded": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t).Time(7*time.Minute, "900 records at 2.5 a second")
				b := &backlog{n: 1000, fail: 500}
				begun := time.Now()
				var seen []admin.Redriven
				opts := admin.RedriveOptions{PerSecond: perSecond, Progress: func(sum admin.Redriven) { seen = append(seen, sum) }}
				first, err := admin.RedriveAll(t.Context(), b, admin.RedriveRequest{All: true, Page: admin.PageRequest{Limit: 100}}, opts)
				if err == nil || first.Next < 500 || first.Next >= 600 || first.Matched != int(first.Next) {
					t.Fatalf("%+v, %v", first, err)
				}
				req := admin.RedriveRequest{All: true, Page: admin.PageRequest{Limit: 100}}
				req.Page.After = first.Next
				second, err := admin.RedriveAll(t.Context(), b, req, opts)
				if err != nil || second.Next != 0 || first.Changed+second.Changed != 900 ||
					first.Refused[admin.RefusedExpired]+second.Refused[admin.RefusedExpired] != 100 {
					t.Fatalf("%+v, then %+v, %v", first, second, err)
				}
				if len(seen) != len(b.steps) || seen[0].Changed != b.steps[0] {
					t.Errorf("%d of %d steps told", len(seen), len(b.steps))
				}
				if perSecond == 0 {
					if time.Since(begun) > 0 {
						t.Errorf("it waited for %s", time.Since(begun))
					}
					return
				}
				window := max(time.Second, time.Duration(2/perSecond*float64(time.Second)))
				for i := range b.at {
					changed := 0
					for j := i; j < len(b.at) && b.at[j].Sub(b.at[i]) < window; j++ {
						changed += b.steps[j]
					}
					// two steps more: the one that a window begins with, and the first one of the
					// second call
					if most := perSecond*window.Seconds() + 2*max(perSecond/10, 1); float64(changed) > most {
						t.Fatalf("%d records in %s, want at most %.0f", changed, window, most)
					}
				}
				if ideal := 900 / perSecond; time.Since(begun).Seconds() > 1.1*ideal+2 {
					t.Errorf("it took %s, want about %.0f s", time.Since(begun), ideal)
				}
			})
		})
	}
}

func TestRedriveAllStopsAndRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		b := &backlog{n: 1000}
		sum, err := admin.RedriveAll(ctx, b, admin.RedriveRequest{All: true}, admin.RedriveOptions{PerSecond: 10})
		if !errors.Is(err, context.DeadlineExceeded) || sum.Changed < 90 || sum.Changed > 110 || sum.Next == 0 {
			t.Errorf("%+v, %v", sum, err)
		}
		b = &backlog{n: 1000}
		begun := time.Now()
		if sum, err := admin.RedriveAll(t.Context(), b, admin.RedriveRequest{All: true, DryRun: true}, admin.RedriveOptions{PerSecond: 1}); err != nil ||
			sum.Changed != 900 || time.Since(begun) > 0 {
			t.Errorf("a dry run: %+v, %v, after %s", sum, err, time.Since(begun))
		}
	})
	for _, rate := range []float64{-1, math.NaN(), math.Inf(1)} {
		if _, err := admin.RedriveAll(t.Context(), &backlog{}, admin.RedriveRequest{All: true}, admin.RedriveOptions{PerSecond: rate}); !errors.Is(err, waybill.ErrInvalid) {
			t.Errorf("%v: %v", rate, err)
		}
	}
}

// Without a rate a step has as many records as a page can have.
func TestRedriveAllTakesWholePages(t *testing.T) {
	t.Parallel()
	b := &backlog{n: 3 * admin.MaxPageLimit}
	if _, err := admin.RedriveAll(t.Context(), b, admin.RedriveRequest{All: true}, admin.RedriveOptions{}); err != nil || len(b.steps) != 3 {
		t.Errorf("%d steps, %v", len(b.steps), err)
	}
}
