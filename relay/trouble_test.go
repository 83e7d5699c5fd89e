package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
)

// RL-13: neither a suspect nor a probe of a route that may send something every ten minutes holds up another route, or a
// record.
func TestSlowRouteHoldsUpNothing(t *testing.T) {
	t.Parallel()
	slow := relay.Options{Routes: []relay.Route{{Name: "slow", RatePerSecond: 1. / 600}, {Name: "other"}}}
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		stage(t, mem, msg("suspect", "", core.Routes("slow")))
		for range 2 { // two relays die with it
			if _, err := mem.Claim(t.Context(), core.ClaimRequest{Routes: []core.RouteOrder{{Route: "slow"}}, MaxRecords: 1, Lease: time.Millisecond}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		stage(t, mem, msg("first", "", core.Routes("slow")))
		stop := begin(t, newRelay(t, mem, b, slow))
		time.Sleep(20 * time.Second)
		stage(t, mem, msg("other", "", core.Routes("other")))
		within(t, 10*time.Second, "the other route's message", func() bool { return slices.Contains(b.ids(), "other") })
		within(t, time.Hour, "all", func() bool { return b.count() == 3 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.answer = func(_ *core.Envelope, nth int) error {
			if nth == 1 {
				return down()
			}
			return nil
		}
		stage(t, mem, msg("first", "", core.Routes("slow")))
		stop := begin(t, newRelay(t, mem, b, slow))
		time.Sleep(20 * time.Second)
		if s := states(mem); s[core.StateProcessing] > 0 {
			t.Errorf("held, with its next token minutes away: %v", s)
		}
		within(t, time.Hour, "it", func() bool { return b.count() == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// forgetful is a memory store that forgot the claim of one record, as a database does that crashed after a claim.
type forgetful struct {
	*memory.Store
	id         string
	extensions int
}

func (f *forgetful) ExtendLeases(ctx context.Context, rs []core.Record, d time.Duration) core.Results {
	f.extensions++
	res := f.Store.ExtendLeases(ctx, rs, d)
	for i := range rs {
		if rs[i].Envelope.ID == f.id {
			res[i] = core.ErrLeaseLost
		}
	}
	return res
}

// P4, RL-05: a run of a key leaves out what has an outcome already, such as a lease that was found lost while the key's
// head was on its way.
func TestPipelinedRunLeavesOutWhatIsDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.traits.KeyOrder = core.KeyOrderPipelinedPrefix
		b.before = func(_ context.Context, batch []core.Envelope) {
			if batch[0].ID == "m0" {
				time.Sleep(25 * time.Second)
			}
		}
		s := &forgetful{Store: mem, id: "m2"}
		stage(t, mem, msg("m0", "k"))
		r := newRelay(t, s, b, relay.Options{Lease: 40 * time.Second})
		stop := begin(t, r)
		time.Sleep(time.Second) // m0 is in flight
		stage(t, mem, msg("m1", "k"), msg("m2", "k"), msg("m3", "k"))
		time.Sleep(28 * time.Second) // at half of their lease m2 is found lost and m3 cut; then m0 is confirmed and m1 sent
		if slices.Contains(b.ids(), "m2") {
			t.Errorf("sent %s: the lease of m2 was known to be lost", b.ids())
		}
		h := r.Health(t.Context())
		if run, _ := h.Check("run"); strings.Contains(run.Text, "-") {
			t.Error(run.Text)
		}
		n := s.extensions
		time.Sleep(time.Hour)
		if s.extensions > n+20 {
			t.Errorf("%d extensions of nothing", s.extensions-n)
		}
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
		b.answer = func(*core.Envelope, int) error { return errNo }
		var r *relay.Relay
		custom := &core.Backoff{Kind: core.BackoffCustom, Custom: func(int, error) (time.Duration, bool) {
			return time.Minute, r.Pause(core.DefaultRoute) == nil
		}}
		r = newRelay(t, mem, b, relay.Options{Routes: []relay.Route{{Backoff: custom}}})
		stage(t, mem, msg("m0", ""))
		stop := begin(t, r)
		within(t, time.Minute, "a retry", func() bool { return states(mem)[core.StateFailed] == 1 })
		expect(t, r.Health(t.Context()), "route default", core.HealthDegraded, "paused")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-13 ST-19: a limited route claims few records at a time; its lanes get their parts all the same.
func TestLanesOfALimitedRoute(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{0.5, 3, 10, 20} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				mem, b := newStore(t), newBus()
				b.latency = time.Millisecond
				fillLanes(t, mem, "r", 400, core.LaneHigh, core.LaneNormal, core.LaneLow)
				stop := begin(t, newRelay(t, mem, b, relay.Options{Routes: []relay.Route{{Name: "r", Lanes: true, RatePerSecond: rate}}}))
				within(t, time.Hour, "two hundred", func() bool { return b.count() >= 200 })
				got := map[string]int{}
				for _, id := range b.ids()[:200] {
					lane, _, _ := strings.Cut(id, "-")
					got[lane]++
				}
				if high, normal := got["lane"+string(core.LaneHigh)], got["lane"+string(core.LaneNormal)]; high < 105 || normal < 50 { // 120 and 60 are their parts
					t.Errorf("%v of 200", got)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// RL-04: an error that is a nil pointer of its type, from a check or from the store, ends nothing.
func TestNilPointersAsErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.answer = func(_ *core.Envelope, nth int) error {
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
		claims := 0
		s.claim = func(_ core.ClaimRequest, next func() (core.Claim, error)) (core.Claim, error) {
			if claims++; claims == 2 {
				var err *nilError
				return core.Claim{}, err
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

// RL-09: a stop waits for what is in flight, not for a breaker's check.
func TestStopDoesNotWaitForACheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.answer = func(*core.Envelope, int) error { return down() }
		stage(t, mem, msg("m0", ""))
		stop := begin(t, newRelay(t, mem, &hanging{bus: b}, relay.Options{}))
		time.Sleep(5 * time.Second) // the check is in progress, and nothing is held
		begun := time.Now()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if d := time.Since(begun); d > time.Second {
			t.Errorf("Run returned after %s, with nothing in flight", d)
		}
	})
}

// OP-04: a relay that has no reason to ask its store is ready, and a caller that does not wait says nothing about the loop.
func TestHealthOfAPausedRelay(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &faulty{OutboxStore: newStore(t)}
			down := fails
			s.claim = func(_ core.ClaimRequest, next func() (core.Claim, error)) (core.Claim, error) {
				if down {
					return core.Claim{}, errors.New("restarting")
				}
				return next()
			}
			r := newRelay(t, s, newBus(), relay.Options{})
			pause := func() {
				if err := r.Pause(core.DefaultRoute); err != nil {
					t.Error(err)
				}
			}
			if !fails {
				pause()
			}
			stop := begin(t, r)
			time.Sleep(time.Second)
			pause()
			down = false // the store works again
			time.Sleep(time.Hour)
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
