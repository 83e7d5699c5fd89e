package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
)

// slow is a route that may send something every ten minutes, and another one.
var slow = relay.Options{Routes: []relay.Route{{Name: "slow", RatePerSecond: 1. / 600}, {Name: "other"}}}

// RL-13: a suspect that goes alone, of a route that may not send it yet, does not hold up another route.
func TestLoneSuspectHoldsUpNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(10*time.Minute, "a message in ten minutes")
		mem, b := newStore(t), newBus()
		stage(t, mem, msg("suspect", "", waybill.Routes("slow")))
		for range 7 { // so many relays die with it: it goes alone
			crash(t, mem, "slow")
		}
		stage(t, mem, msg("first", "", waybill.Routes("slow")))
		stop := begin(t, newRelay(t, mem, b, slow))
		patience.Pass(t, 20*time.Second)
		stage(t, mem, msg("other", "", waybill.Routes("other")))
		within(t, 10*time.Second, "the other route's message", func() bool { return slices.Contains(b.ids(), "other") })
		within(t, time.Hour, "all", func() bool { return b.count() == 3 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-13: nor does a probe, or hold up a record.
func TestSlowRouteHoldsUpNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(10*time.Minute, "a message in ten minutes")
		mem, b := newStore(t), newBus()
		b.answer = func(_ *waybill.Envelope, nth int) error {
			if nth == 1 {
				return down()
			}
			return nil
		}
		stage(t, mem, msg("first", "", waybill.Routes("slow")))
		stop := begin(t, newRelay(t, mem, b, slow))
		patience.Pass(t, 20*time.Second)
		if s := states(mem); s[core.StateProcessing] > 0 {
			t.Errorf("held, with its next token minutes away: %v", s)
		}
		within(t, time.Hour, "it", func() bool { return b.count() == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-05: a custom back-off may take its time, and may pause the route.
func TestCustomBackoffMayPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.answer = func(*waybill.Envelope, int) error { return errNo }
		var r *relay.Relay
		custom := &waybill.Backoff{Kind: waybill.BackoffCustom, Custom: func(int, error) (time.Duration, bool) {
			return time.Minute, r.Pause(waybill.DefaultRoute) == nil
		}}
		r = newRelay(t, mem, b, relay.Options{Routes: []relay.Route{{Backoff: custom}}})
		stage(t, mem, msg("m0", ""))
		stop := begin(t, r)
		within(t, time.Minute, "a retry", func() bool { return states(mem)[core.StateFailed] == 1 })
		expect(t, r.Health(t.Context()), "route default", waybill.HealthDegraded, "paused")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-13 ST-19: a limited route reads few records at a time; its lanes get their parts all the same.
func TestLanesOfALimitedRoute(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{0.5, 3, 10, 20} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t).Time(time.Duration(210/rate*float64(time.Second)), "200 messages at that rate")
				mem, b := newStore(t), newBus()
				b.latency = time.Millisecond
				fillLanes(t, mem, "r", 400, waybill.LaneHigh, waybill.LaneNormal, waybill.LaneLow)
				stop := begin(t, newRelay(t, mem, b, relay.Options{Routes: []relay.Route{{Name: "r", Lanes: true, RatePerSecond: rate}}}))
				within(t, time.Hour, "two hundred", func() bool { return b.count() >= 200 })
				got := map[string]int{}
				for _, id := range b.ids()[:200] {
					lane, _, _ := strings.Cut(id, "-")
					got[lane]++
				}
				// 120 and 60 are their parts
				if high, normal := got["lane"+string(waybill.LaneHigh)], got["lane"+string(waybill.LaneNormal)]; high < 105 || normal < 50 {
					t.Errorf("%v of 200", got)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// RL-07: an error that is a nil pointer of its type, from a check or from the store, ends nothing.
func TestNilPointersAsErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.answer = func(_ *waybill.Envelope, nth int) error {
			if nth == 1 {
				return down()
			}
			return nil
		}
		checks := 0
		p := asked{b, func() error {
			if checks++; checks == 2 { // not the one at the start
				var err *nilError
				return err
			}
			return nil
		}}
		s := &faulty{OutboxStore: mem}
		reads := 0
		s.read = func(_ core.ReadRequest, next func() (core.ReadResult, error)) (core.ReadResult, error) {
			if reads++; reads == 2 {
				var err *nilError
				return core.ReadResult{}, err
			}
			return next()
		}
		stage(t, mem, msg("m0", ""))
		stop := begin(t, newRelay(t, s, p, relay.Options{}))
		within(t, time.Minute, "it", func() bool { return b.count() == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// hanging can be asked whether it works, once.
type hanging struct {
	*bus
	checks int
}

func (h *hanging) Check(ctx context.Context) error {
	if h.checks++; h.checks == 1 {
		return nil
	}
	<-ctx.Done() // a host that does not answer
	return ctx.Err()
}

// RL-01: a stop waits for publishes in flight, not for a breaker's check.
func TestStopDoesNotWaitForACheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.answer = func(*waybill.Envelope, int) error { return down() }
		stage(t, mem, msg("m0", ""))
		stop := begin(t, newRelay(t, mem, &hanging{bus: b}, relay.Options{}))
		patience.Pass(t, 5*time.Second) // the check is in progress, and nothing is held
		begun := time.Now()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if d := time.Since(begun); d > time.Second {
			t.Errorf("Run returned after %s, with nothing in flight", d)
		}
	})
}

// RL-13: a relay that has no reason to ask its store is ready, and a caller that does not wait says nothing about the
// loop.
func TestHealthOfAPausedRelay(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &faulty{OutboxStore: newStore(t)}
			var down atomic.Bool
			down.Store(fails)
			s.read = func(_ core.ReadRequest, next func() (core.ReadResult, error)) (core.ReadResult, error) {
				if down.Load() {
					return core.ReadResult{}, errors.New("restarting")
				}
				return next()
			}
			r := newRelay(t, s, newBus(), relay.Options{})
			pause := func() {
				if err := r.Pause(waybill.DefaultRoute); err != nil {
					t.Error(err)
				}
			}
			if !fails {
				pause()
			}
			stop := begin(t, r)
			patience.Pass(t, time.Second)
			pause()
			down.Store(false) // the store works again
			patience.Pass(t, time.Hour)
			if h := r.Health(t.Context()); !h.Ready {
				t.Errorf("not ready, though the store works:\n%s", h)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			for range 50 {
				if h := r.Health(ended); !h.Live {
					t.Fatalf("not live, since the caller did not wait:\n%s", h)
				}
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}
