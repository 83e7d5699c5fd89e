package consumer

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// An outage can be the fault of one message: a handler calls an address that stands in it, say. Such a message must not
// stop the others, and most brokers give what comes back before all others. So a message that has failed as a probe
// twice is held: it waits aside, and the broker has to offer the next one. The rules:
//
//	state of the subscription | a message that waits aside
//	--------------------------|-----------------------------------------------------------------------------
//	paused                    | waits
//	probing                   | probes if no other message has come for Pause.Base, or no more can wait aside;
//	                          | the one that has waited for longest goes first
//	open                      | runs again when its own delay is over, but only one at a time as long as these
//	                          | fail; each one that is handled doubles the number
//
// Why that ends: behind k messages that always fail the next one probes after 2·k failed probes, since none of the k
// probes a third time before. When it is handled, the others have failed by themselves: met blames them, so that they
// pause nothing any more. If it fails, too, it is one of the k. Nothing tells whether all messages fail or only those
// that came so far, so both look the same here. In an outage of all as many messages are held as have probed twice, up
// to mostAside and mostAsideBytes. After asideFor they go back, for other processes; the ones that come here again wait
// aside at once, and do not probe. The first message that is handled ends the outage, and all run again.
//
// A failing message can take long. So the next one runs at the earliest when as much time has passed: messages that
// wait aside take half of one handler's time, however many there are.

const (
	// maxBlames bounds the messages that are remembered.
	maxBlames = 1000
	// mostAside and mostAsideBytes bound the messages that wait aside, and their bodies. They do not count for
	// Prefetch: such a bound would stop the queue. They are less than maxBlames, so that all are remembered.
	mostAside, mostAsideBytes = 500, mostHeldBytes / 2
	// asideFor is how long a message waits aside during a pause before other processes can have it.
	asideFor = 5 * time.Minute
)

// identity is what tells messages apart.
type identity struct{ source, id string }

func identityOf(m *message) identity { return identity{m.d.Envelope.Source, m.d.Envelope.ID} }

// blame is what is known of a message that has met an outage, since it was last handled.
type blame struct {
	since time.Time // its first outage
	at    uint64    // the number of its latest one
	alone int       // how many since it is known that others do not meet them
	aside bool      // it has waited aside, and waits aside again when it comes
	held  bool      // it waits aside, or runs again after that
	due   time.Time // it may run again
}

// asides are the messages that are to blame for outages, as far as one can tell. The runner's mu guards them, but for
// outages.
type asides struct {
	outages atomic.Uint64 // how many there were
	blames  map[identity]*blame
	well    uint64              // the greatest begun of a message that met no outage
	waiting map[*message]*blame // those that wait aside: they are held, and their key goes on
	bytes   int64               // of their bodies
	cause   string              // the latest outage of one that waits aside
	trials  map[*message]bool   // those that run again
	most    int                 // how many may
	next    time.Time           // when the next one may, after one has failed
	quiet   time.Time           // the latest one that came again and did not probe
	full    bool                // the latest one had no room
	timer   alarm
}

// outage is what the runner must know of an outage.
type outage struct {
	again bool // the message has met one before
	alone int  // it is the message's own, since others that began later were handled: which one in a row
}

// met notes that m met an outage. It is the message's own if another one that began after m's latest outage was handled
// (well), or if that was known before.
func (a *asides) met(m *message) (o outage, since time.Time) {
	id, at := identityOf(m), a.outages.Add(1)
	b := a.blames[id]
	if b == nil {
		if a.blames == nil {
			a.blames = map[identity]*blame{}
		}
		for old, b := range a.blames { // any of them: who floods the queue must not fill the memory
			if len(a.blames) < maxBlames {
				break
			}
			if !b.held {
				delete(a.blames, old)
			}
		}
		b = &blame{since: time.Now(), at: at}
		a.blames[id] = b
		return outage{}, b.since
	}
	if b.alone > 0 || a.well >= b.at {
		b.alone++
	}
	b.at = at
	return outage{again: true, alone: b.alone}, b.since
}

// handled notes that m met no outage.
func (a *asides) handled(m *message) {
	if a.well = max(a.well, m.begun); len(a.blames) > 0 {
		delete(a.blames, identityOf(m))
	}
}

// blamed reports whether m has met an outage since it was last handled.
func (a *asides) blamed(m *message) bool {
	return len(a.blames) > 0 && a.blames[identityOf(m)] != nil
}

// blame completes the verdict about m, which met an outage by itself: it is parked if that is so for too long. In a
// pause the outage can be one of all; it counts only if no other message could probe.
func (r *runner) blame(m *message, v *verdict) {
	if !v.outage {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var since time.Time
	v.of, since = r.load.aside.met(m)
	limit, own := r.opts.OutageLimit, r.pause.state == open || r.load.aside.trials[m] && r.load.aside.full
	if v.of.alone == 0 || limit < 0 || time.Since(since) < limit || !own {
		return
	}
	*v = r.judge.park(m.d, orElse(waybill.ReasonOf(v.err), waybill.ReasonDeliveries), fmt.Errorf("it has met outages for %s, while other messages of the queue "+
		"were handled: %w", time.Since(since).Round(time.Second), v.err))
	delete(r.load.aside.blames, identityOf(m))
}

// blameAll notes that a batch met an outage, which can be the fault of any of its messages.
func (r *runner) blameAll(ms []*message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range ms {
		if !r.load.aside.blamed(m) {
			r.load.aside.met(m)
		}
	}
}

// room reports whether m may wait aside. One always may.
func (a *asides) room(m *message) bool {
	n := len(a.waiting) + len(a.trials)
	return n == 0 || n < mostAside && a.bytes+m.bytes <= mostAsideBytes
}

// goesAside decides whether m, which met an outage, waits aside instead of going back. If there is no room for its own
// outage, that is one of all. mu is held.
func (r *runner) goesAside(m *message, v *verdict) bool {
	switch {
	case !v.outage || v.inPlace:
		return false
	case r.stopping, len(r.suspects) > 0, r.alone: // if a suspect ends the process, this would count against m
		return false
	case v.of.alone == 0 && (!v.of.again || r.pause.probe != m):
		return false
	}
	a := &r.load.aside
	if a.full = !a.room(m); a.full {
		v.of.alone = 0
	}
	return !a.full
}

// putAside keeps m, which met an outage, for a pause of its own. mu is held.
func (r *runner) putAside(m *message, v *verdict) {
	b := r.load.aside.blames[identityOf(m)]
	b.due = time.Now()
	if v.of.alone > 0 {
		b.due = b.due.Add(r.pauseDelay(v.of.alone))
	}
	r.load.aside.cause = core.ErrorText(v.err)
	r.waitAside(m, b)
}

// waitsAgain reports whether m has waited aside, and now does so again instead of probing. mu is held.
func (r *runner) waitsAgain(m *message) bool {
	a := &r.load.aside
	if len(a.blames) == 0 || m.suspect || r.sub.InOrder || len(r.suspects) > 0 || r.alone {
		return false
	}
	b := a.blames[identityOf(m)]
	if b == nil || !b.aside || b.held || !a.room(m) {
		return false
	}
	a.quiet = time.Now()
	r.waitAside(m, b)
	return true
}

// waitAside has m wait aside. mu is held.
func (r *runner) waitAside(m *message, b *blame) {
	a := &r.load.aside
	if a.waiting == nil {
		a.waiting = map[*message]*blame{}
	}
	a.waiting[m], b.aside, b.held = b, true, true
	a.bytes += m.bytes
	r.bell.ring() // there is room for another one
	r.turnAside()
}

// leave takes m, which waits aside, out.
func (a *asides) leave(m *message) {
	b := a.waiting[m]
	delete(a.waiting, m)
	a.bytes -= m.bytes
	b.held = false
}

// turnAside has messages that wait aside run again, or go back, if it is their turn, and looks again when it is the
// turn of others. mu is held.
func (r *runner) turnAside() {
	a, p, now := &r.load.aside, &r.pause, time.Now()
	a.timer.stop()
	if len(a.waiting) == 0 || r.stopping {
		return
	}
	again := r.backAside(now)
	look := func(at time.Time) {
		if again.IsZero() || at.Before(again) {
			again = at
		}
	}
	base := r.opts.Pause.Base
	switch first := a.first(); {
	case first == nil:
		return
	case r.unstored.any(), p.state != open && p.probe != nil: // others go first
		look(now.Add(base))
	case p.waits():
		look(p.until.Add(base)) // the loop that receives is first, unless there is no room
	case p.state != open:
		quiet := later(p.until, a.quiet).Add(base)
		if !a.full && now.Before(quiet) {
			look(quiet)
			break
		}
		p.state, p.probe = probing, first // no other one has come
		r.comeBack(first)
		look(now.Add(base))
	default:
		for first != nil && len(a.trials) < max(a.most, 1) {
			if at := later(a.waiting[first].due, a.next); now.Before(at) {
				look(at)
				break
			}
			r.comeBack(first)
			first = a.first()
		}
	}
	if !again.IsZero() {
		r.lookAside(again)
	}
}

// first returns the message that waits aside and whose turn is next; nil if there is none.
func (a *asides) first() (first *message) {
	for m, b := range a.waiting {
		if first == nil || b.due.Before(a.waiting[first].due) {
			first = m
		}
	}
	return first
}

// backAside releases messages that have waited aside for too long, and returns when the next one has. The broker would
// take a message back after MaxHold. For others it goes back while a pause lasts, since later it would come here again.
// It stays if a release is charged to it. mu is held.
func (r *runner) backAside(now time.Time) (again time.Time) {
	most := r.judge.traits.MaxHold / 2
	if r.pause.waits() && !r.load.keeps && (most == 0 || most > asideFor) {
		most = asideFor
	}
	if most == 0 {
		return again
	}
	for m := range r.load.aside.waiting {
		at := m.since.Add(most)
		switch {
		case !now.Before(at):
			r.load.aside.leave(m)
			r.settle(m, core.AckRelease(m.d))
		case again.IsZero() || at.Before(again):
			again = at
		}
	}
	return again
}

// lookAside looks at the messages that wait aside at the time at. mu is held.
func (r *runner) lookAside(at time.Time) {
	t := &r.load.aside.timer
	t.at = at
	t.timer = time.AfterFunc(time.Until(at), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.turnAside()
	})
}

// comeBack runs m, which has waited aside. mu is held.
func (r *runner) comeBack(m *message) {
	a := &r.load.aside
	b := a.waiting[m]
	a.leave(m)
	if a.trials == nil {
		a.trials = map[*message]bool{}
	}
	a.trials[m], b.held = true, true
	m.h = m.h.one
	r.add(m)
	r.kick()
}

// endTrial notes that m, which has waited aside, has run again. V is nil if it went back before. mu is held.
func (r *runner) endTrial(m *message, v *verdict) {
	a := &r.load.aside
	if !a.trials[m] {
		return
	}
	delete(a.trials, m)
	if b := a.blames[identityOf(m)]; b != nil {
		b.held = false
	}
	switch {
	case v == nil:
	case v.healthy:
		a.most = min(2*max(a.most, 1), mostAside)
	case v.outage:
		a.most, a.next = 1, time.Now().Add(max(r.opts.Pause.Base, v.took))
	}
}

// releaseAside releases what waits aside. mu is held.
func (r *runner) releaseAside() {
	r.load.aside.timer.stop()
	for m := range r.load.aside.waiting {
		r.load.aside.leave(m)
		r.settle(m, core.AckRelease(m.d))
	}
}

// later returns the later one of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
