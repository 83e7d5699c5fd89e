package consumer

import (
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/chance"
)

// This file is a limit over all processes, as one process sees it. The limiter gives permits to begin, which are good
// for a moment, and slots for running handlers, which are good for limitLease. The way of a question:
//
//  1. open finds no permit at hand for a message. The message stays ready, and the bell rings.
//  2. plan says what to ask, and not before when. permits.go asks.
//  3. limitstate.go decides, on the state that the limiter stores.
//  4. answer takes in the permits, and the runner looks again for messages that may begin.

const (
	// firstHold is how long permits to begin are good for, until the limiter turns out to be slower.
	firstHold = 100 * time.Millisecond
	// leastAskGap and mostAskGap bound the time between two questions while the rate is used up: permits then come
	// together. It is an eighth of the time in which the burst comes back, so that none of the rate is lost.
	leastAskGap, mostAskGap = 50 * time.Millisecond, 250 * time.Millisecond
	// waiterGap is how often a process without a free slot asks again.
	waiterGap = 250 * time.Millisecond
	// renewEvery is how often a process with slots asks, to keep them and to learn who waits.
	renewEvery = time.Second
	// idleAfter is how long a process keeps slots that it has no use for.
	idleAfter = 250 * time.Millisecond
	// giveBackGap is the least time between two returns of slots that others wait for.
	giveBackGap = 20 * time.Millisecond
)

// gate holds the permits of a [waybill.SharedLimit] that this process has at hand. The runner's mu guards it, but for
// what never changes.
type gate struct {
	limit *waybill.SharedLimit
	id    string        // of this run among the processes that share the limit
	bell  chan struct{} // rings when there is something new to ask

	starts  int       // so many messages may begin
	granted int       // of so many that came together
	lapse   time.Time // until then
	slots   int       // so many handlers may run
	held    int       // so many slots are this process's
	until   time.Time // until then
	// While a question is under way no more handlers run than it says: the answer may leave no slots for others.
	asking bool
	said   int

	listed   bool          // the limiter knows this process
	gap      time.Duration // between questions while the rate is used up
	hold     time.Duration // how long permits to begin are good for
	asked    time.Time     // the latest question
	earliest time.Time     // asking for more is of no use before
	failures int           // questions in a row without an answer

	blocked bool          // a message would run, were it not for the limit
	since   time.Time     // when that began
	waited  time.Duration // such times, not counted yet
}

// newGate returns the gate of a completed limit; nil if there is none.
func newGate(l *waybill.SharedLimit) *gate {
	if !limited(l) {
		return nil
	}
	g := &gate{limit: l, id: waybill.NewID(), bell: make(chan struct{}, 1), hold: firstHold}
	if l.Rate > 0 {
		g.gap = min(max(newPace(l.Rate, l.Burst).slack/8, leastAskGap), mostAskGap)
	}
	return g
}

// ring has the permits looked at again.
func (g *gate) ring() {
	select {
	case g.bell <- struct{}{}:
	default:
	}
}

// open reports whether a handler may begin beside those that run. If not, permits are asked for.
func (g *gate) open(running int) bool {
	now := time.Now()
	ok := (g.limit.Rate == 0 || g.starts > 0 && now.Before(g.lapse)) &&
		(g.limit.Concurrency == 0 || running < g.slots && (!g.asking || running < g.said) && now.Before(g.until))
	switch {
	case !ok && !g.blocked:
		g.blocked = true
		if g.since.IsZero() {
			g.since = now
		}
		g.ring()
	case ok:
		g.unblock(now)
	}
	return ok
}

// unblock notes that nothing waits for the limit any more.
func (g *gate) unblock(now time.Time) {
	g.blocked = false
	if !g.since.IsZero() {
		g.waited += now.Sub(g.since)
		g.since = time.Time{}
	}
}

// room returns how many messages a batch of at most size may have.
func (g *gate) room(size int) int {
	if g.limit.Rate > 0 {
		return max(min(size, g.starts), 1)
	}
	return size
}

// use takes permits for n messages that begin.
func (g *gate) use(n int) { g.starts = max(g.starts-n, 0) }

// ended notes that a handler ended, and running are left.
func (g *gate) ended(running int) {
	if g.listed && (running == 0 || g.held > max(g.slots, running)) {
		g.ring()
	}
}

// plan returns what to ask, and when; zero = not before something changes. Ready messages could begin if the limit let
// them, besides the running ones; most is how many handlers may run. A question is due
//
//   - when a message waits for the limit, but not before the limiter can have more (earliest);
//   - while the limiter knows this process: every second, to keep the slots; sooner when slots are left over, since
//     others may wait for them.
func (g *gate) plan(now time.Time, running, ready, most int) (a limitAsk, at time.Time) {
	free := min(ready, most-running)
	if free <= 0 {
		g.unblock(now)
	}
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if g.blocked {
		sooner(now.Add(max(g.earliest.Sub(now), 0)))
	}
	switch {
	case !g.listed:
	case running == 0 && ready == 0:
		sooner(g.asked.Add(idleAfter))
	case g.held > max(g.slots, running):
		sooner(g.asked.Add(giveBackGap))
	default:
		sooner(g.asked.Add(renewEvery))
	}
	a = limitAsk{id: g.id, hold: g.hold, busy: running, wants: running + max(free, 0)}
	if g.blocked && (g.starts == 0 || !now.Before(g.lapse)) {
		a.starts = free
		if g.starts == 0 { // what came was used: more can be used
			a.starts = max(free, min(2*g.granted, int(g.limit.Rate*(g.hold+g.gap).Seconds())))
		}
	}
	return a, at
}

// ask notes that a is asked.
func (g *gate) ask(a *limitAsk) { g.asking, g.said = true, a.busy }

// answer takes in the answer to a, which was sent at sent. It reports whether it came too late to be of use. Permits to
// begin lapse hold after the question was sent, since the limiter counts from a later moment. If the answer took that
// long, the next question asks for twice the time; if it took less than an eighth, for half of it. When the rate is
// used up, the next question waits until there can be more permits (earliest).
func (g *gate) answer(sent time.Time, a *limitAsk, got *limitGrant) (late bool) {
	now := time.Now()
	g.asked, g.earliest, g.failures = now, now, 0
	g.blocked, g.asking = false, false
	if a.starts > 0 {
		g.starts, g.granted, g.lapse = got.starts, got.starts, sent.Add(a.hold)
		took := now.Sub(sent)
		switch {
		case took >= a.hold && got.starts > 0:
			late = a.hold >= maxHold
			g.starts, g.hold = 0, min(2*a.hold, maxHold)
		case took < a.hold/8:
			g.hold = max(a.hold/2, firstHold)
		}
		switch {
		case got.starts == 0:
			g.earliest = now.Add(spread(max(got.wait, g.gap)))
		case got.starts < a.starts:
			g.earliest = now.Add(spread(g.gap))
		}
	}
	if g.limit.Concurrency > 0 {
		g.slots, g.held, g.until = got.slots, got.held, sent.Add(limitLease)
		g.listed = a.busy > 0 || a.wants > 0
		if got.slots < a.wants {
			if t := now.Add(spread(waiterGap)); t.After(g.earliest) {
				g.earliest = t
			}
		}
	}
	return late
}

// fail notes that a question was not answered. The limiter may have stored what it said all the same.
func (g *gate) fail(now time.Time) {
	g.failures++
	g.asked = now
	g.starts, g.asking = 0, false
	g.slots, g.held = min(g.slots, g.said), min(g.held, g.said)
}

// spread returns d and up to a sixteenth more, but not more than waiterGap more: of several processes that wait for one
// permit each has its chance.
func spread(d time.Duration) time.Duration { return d + chance.N(min(d/16, waiterGap)+1) }
