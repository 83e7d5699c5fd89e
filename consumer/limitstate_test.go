package consumer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/patience"
)

// at is a time of the limiter's clock.
func at(seconds float64) time.Time {
	return time.Unix(1_800_000_000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

// A state that another program wrote is a misconfiguration with a cure; one of a clock that went back does not stop the
// limit.
func TestLimitStateOfOthers(t *testing.T) {
	t.Parallel()
	var s limitState
	if err := s.decode(`{"next": "soon"}`); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "delete it") {
		t.Errorf("a broken state: %v", err)
	}
	l := waybill.SharedLimit{Rate: 1, Burst: 2, Concurrency: 2}
	ask := func(id string, now time.Time) limitGrant {
		text := s.encode()
		if err := s.decode(text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return s.ask(&l, &limitAsk{id: id, starts: 10, hold: time.Second / 10, wants: 10}, now)
	}
	s = limitState{Holders: map[string]limitHolder{}}
	if g := ask("a", at(1e6)); g.slots != 2 || g.starts != 1 { // the hold takes a part of the burst
		t.Errorf("at first: %+v", g)
	}
	if g := ask("b", at(0)); g.slots != 2 || g.starts != 0 || g.wait > 2*time.Second {
		t.Errorf("after the clock went back: %+v", g)
	}
	ask("a", at(1e6))
	if g := ask("a", at(1e6-60)); g.wait > 2*time.Second {
		t.Errorf("after the clock went back by a minute: %+v", g)
	}
}

// A process that waits and dies holds up a slot for two seconds only; more processes than can be listed wait.
func TestLimitWaiters(t *testing.T) {
	t.Parallel()
	s := limitState{Holders: map[string]limitHolder{}}
	l := waybill.SharedLimit{Concurrency: 1}
	ask := func(id string, busy int, now float64) limitGrant {
		return s.ask(&l, &limitAsk{id: id, busy: busy, wants: 1}, at(now))
	}
	ask("a", 0, 0)
	if g := ask("b", 0, 6); g.slots != 0 {
		t.Errorf("b: %+v", g)
	}
	if g := ask("a", 1, 7); g.slots != 0 || g.held != 1 {
		t.Errorf("a, whose turn is over: %+v", g)
	}
	if g := ask("a", 0, 7.5); g.slots != 0 || g.held != 0 {
		t.Errorf("a, when its handler ended: %+v", g)
	}
	if g := ask("a", 0, 9); g.slots != 1 {
		t.Errorf("a, after b did not come back: %+v", g)
	}
	both := waybill.SharedLimit{Concurrency: 1, Rate: 1, Burst: 5}
	if g := s.ask(&both, &limitAsk{id: "b", wants: 1, starts: 5, hold: firstHold}, at(9)); g.slots != 0 || g.starts != 0 || s.Next > at(0).UnixMicro() {
		t.Errorf("permits to begin, but no slot: %+v", g)
	}
	for i := range maxHolders + 10 {
		ask(fmt.Sprint("w", i), 0, 9)
	}
	if len(s.Holders) != maxHolders || s.Holders["a"].Slots != 1 {
		t.Errorf("%d are listed", len(s.Holders))
	}
	if n := len(s.encode()); n > 1<<20 {
		t.Errorf("the state has %d bytes", n)
	}
}

// For any requests of processes: they never have more slots together than there are, and all are in use if they are
// wanted.
func TestLimitShares(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.IntRange(1, 8).Draw(rt, "limit")
		n := rapid.IntRange(1, 12).Draw(rt, "processes")
		s := limitState{Holders: map[string]limitHolder{}}
		type process struct{ busy, slots, wants int }
		ps := make([]process, n)
		for i := range ps {
			ps[i].wants = rapid.IntRange(0, 8).Draw(rt, "wants")
		}
		now, served := 0.0, make([]bool, n)
		for range 60 * n { // each asks every quarter of a second, for a quarter of a minute and longer
			i := rapid.IntRange(0, n-1).Draw(rt, "who")
			now += 0.25 / float64(n)
			p := &ps[i]
			p.busy = rapid.IntRange(0, p.busy).Draw(rt, "left")
			g := s.ask(&waybill.SharedLimit{Concurrency: limit}, &limitAsk{id: strconv.Itoa(i), busy: p.busy, wants: max(p.wants, p.busy)}, at(now))
			p.slots = g.slots
			p.busy = max(p.busy, g.slots)
			served[i] = served[i] || g.slots > 0
			total := 0
			for _, p := range ps {
				total += max(p.slots, p.busy)
			}
			if total > limit {
				rt.Fatalf("%d slots of %d are taken at %g: %+v", total, limit, now, ps)
			}
		}
		if len(s.Holders) == 0 {
			return
		}
		// with handlers that end at once everybody who wants has a turn
		wanted := 0
		for round := range 2000 {
			now += 0.25 / float64(n)
			p := &ps[round%n]
			g := s.ask(&waybill.SharedLimit{Concurrency: limit}, &limitAsk{id: strconv.Itoa(round % n), wants: p.wants}, at(now))
			p.slots, p.busy = g.slots, 0
			served[round%n] = served[round%n] || g.slots > 0
		}
		total := 0
		for i, p := range ps {
			wanted += p.wants
			total += p.slots
			if p.wants > 0 && !served[i] && float64(n) < float64(limit)*8 {
				rt.Errorf("process %d of %d had no turn", i, n)
			}
		}
		if free := limit - total; free > 0 && wanted-total > 0 && n <= limit {
			rt.Errorf("%d of %d slots are free, %d wanted: %+v", free, limit, wanted, ps)
		}
	})
}

// Permits are used at any time within their hold, and the rate holds.
func TestLimitRateWheneverUsed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		rate := rapid.SampledFrom([]float64{1, 3, 7.3, 1000}).Draw(rt, "rate")
		l := waybill.SharedLimit{Rate: rate, Burst: int(rate/2+1) + rapid.IntRange(0, 3).Draw(rt, "burst")}
		var s limitState
		now := at(0)
		var starts []time.Time
		for range 60 {
			now = now.Add(time.Duration(rapid.IntRange(0, int(2e9/rate)).Draw(rt, "later")))
			hold := rapid.SampledFrom([]time.Duration{1, firstHold, maxHold}).Draw(rt, "hold")
			if err := s.decode(s.encode()); err != nil {
				rt.Fatal(err)
			}
			g := s.ask(&l, &limitAsk{starts: rapid.IntRange(0, 5).Draw(rt, "starts"), hold: hold}, now)
			for range g.starts {
				starts = append(starts, now.Add(time.Duration(rapid.Int64Range(0, int64(hold)).Draw(rt, "used after"))))
			}
			if g.starts == 0 && g.wait > 0 {
				if g := new(s).ask(&l, &limitAsk{starts: 1, hold: hold}, now.Add(g.wait+time.Microsecond)); g.starts != 1 {
					rt.Errorf("nothing after the wait of %s", g.wait)
				}
			}
		}
		for i, from := range starts {
			for j := range starts {
				to, n := starts[j], 0
				if to.Before(from) {
					continue
				}
				for _, s := range starts {
					if !s.Before(from) && !s.After(to) {
						n++
					}
				}
				if allowed := float64(l.Burst) + rate*to.Sub(from).Seconds() + 1e-3; float64(n) > allowed {
					rt.Fatalf("%d begin in %s from start %d on; %g are allowed", n, to.Sub(from), i, allowed)
				}
			}
		}
	})
}

// Permits lapse by the time at which they were asked for, and slots by that too.
func TestPermitsLapse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		g := newGate(&waybill.SharedLimit{Rate: 10, Burst: 10})
		sent := time.Now()
		patience.Pass(t, 80*time.Millisecond)
		g.answer(sent, &limitAsk{starts: 5, hold: g.hold}, &limitGrant{starts: 5})
		patience.Pass(t, 19*time.Millisecond)
		before := g.open(0)
		patience.Pass(t, time.Millisecond)
		if !before || g.open(0) {
			t.Errorf("permits of 100ms: good after 99ms: %t, and then: %t", before, g.open(0))
		}
		g = newGate(&waybill.SharedLimit{Concurrency: 2})
		sent = time.Now()
		patience.Pass(t, time.Second)
		g.answer(sent, &limitAsk{wants: 1}, &limitGrant{slots: 1, held: 1})
		patience.Pass(t, limitLease-time.Second-1)
		before = g.open(0)
		if beside := g.open(1); beside {
			t.Error("a second handler begins in one slot")
		}
		patience.Pass(t, time.Nanosecond)
		if !before || g.open(0) {
			t.Errorf("a slot: good at the end of its lease: %t, and then: %t", before, g.open(0))
		}
	})
}

// While a question is under way, and when its answer is lost, no more handlers run than it said: the limiter may
// have given the other slots away.
func TestSlotsWhileAsking(t *testing.T) {
	t.Parallel()
	for name, answered := range map[string]bool{"answered": true, "lost": false} {
		g := newGate(&waybill.SharedLimit{Concurrency: 5})
		g.answer(time.Now(), &limitAsk{wants: 5}, &limitGrant{slots: 5, held: 5})
		a := limitAsk{busy: 2, wants: 2}
		g.ask(&a)
		if !g.open(1) || g.open(2) || g.open(4) {
			t.Errorf("%s: while two are said to run: a second begins: %t, a third: %t", name, g.open(1), g.open(2))
		}
		if answered {
			g.answer(time.Now(), &a, &limitGrant{slots: 3, held: 3})
		} else {
			g.fail(time.Now())
		}
		if want := answered; g.open(2) != want || g.open(3) || !g.open(1) {
			t.Errorf("%s: a third begins: %t, a fourth: %t", name, g.open(2), g.open(3))
		}
	}
}

// Groups that have nothing to do are forgotten.
func TestGroupsAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		for _, l := range []waybill.GroupLimit{{Concurrency: 1}, {Rate: 1, Burst: 3}, {Rate: 1, Burst: 1, Concurrency: 2}} {
			b := batching{limit: 1 << 20, schedule: schedule{keys: map[string]keyQueue{}, groups: newGroups(&l)}}
			for i := range 1000 {
				b.add(&message{d: &waybill.Delivery{}, h: &entry{}, place: &place{group: strconv.Itoa(i % 300)}})
			}
			begun := 0
			for p := b.next(); begun < 1000; p = b.next() {
				if p.job.none() {
					patience.Pass(t, time.Until(p.again))
					continue
				}
				begun++
				b.done(p.job)
			}
			patience.Pass(t, time.Minute)
			b.next()
			if len(b.groups.known) > 0 || len(b.groups.timed) > 0 || b.groups.waiting > 0 {
				t.Errorf("%+v: %d groups are known, %d wait for their time, %d messages wait", l, len(b.groups.known), len(b.groups.timed), b.groups.waiting)
			}
		}
	})
}
