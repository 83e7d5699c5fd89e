package consumer

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// An outage can be the fault of one message: a handler calls an address that stands in it, say. Such a message must not
// stop the others. So a message that has failed as a probe lets another one probe. A message can meet an outage again
// although others that began after its first one were handled. Then the subscription goes on: the message waits aside,
// and is parked after Options.OutageLimit. As long as all messages meet the outage, none is at fault.

const (
	// maxBlames bounds the messages that are remembered.
	maxBlames = 1000
	// sureFor is the number of probes for which no message waits aside, after all that could have probed in vain.
	sureFor = 100
)

// identity is what tells messages apart.
type identity struct{ source, id string }

func identityOf(m *message) identity { return identity{m.d.Envelope.Source, m.d.Envelope.ID} }

// blame is what is known of a message that has met an outage, since it was last handled.
type blame struct {
	since time.Time // its first outage
	at    uint64    // the number of its latest one
	alone int       // how many since it is known that others do not meet them
	aside bool      // it has let another one probe since the latest doubt
}

// asides are the messages that are to blame for outages, as far as one can tell. The runner's mu guards them, but for
// outages.
type asides struct {
	outages atomic.Uint64 // how many there were
	blames  map[identity]*blame
	well    uint64                   // the greatest begun of a message that met no outage
	waiting map[*message]*time.Timer // those that wait aside: they are held, and their key goes on
	cause   string                   // the latest outage of one message alone
	sure    int                      // how many probes more the outage counts as one of all messages
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
		for old := range a.blames { // any of them: who floods the queue must not fill the memory
			if len(a.blames) < maxBlames {
				break
			}
			delete(a.blames, old)
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

// blame completes the verdict about m, which met an outage by itself: it is parked if that is so for too long.
func (r *runner) blame(m *message, v *verdict) {
	if !v.outage {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var since time.Time
	v.of, since = r.load.aside.met(m)
	limit := r.opts.OutageLimit
	if v.of.alone == 0 || limit < 0 || time.Since(since) < limit || r.pause.state != open {
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

// letsProbe reports whether m, which has failed as a probe again, waits aside so that another one probes. If it has
// done so already, or there is no room, the outage is one of all messages. Then nothing is held, so that other
// processes get every message, and after many probes it is tried again.
func (a *asides) letsProbe(m *message, room bool) bool {
	b := a.blames[identityOf(m)]
	switch {
	case a.sure > 0:
		a.sure--
		return false
	case room && b != nil && !b.aside:
		b.aside = true
		return true
	}
	a.sure = sureFor
	for _, b := range a.blames {
		b.aside = false
	}
	return false
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
	room := len(r.load.aside.waiting) < r.load.roomAside()
	if v.of.alone > 0 && room {
		return true
	}
	if v.of.alone > 0 {
		v.of.alone = 0
		return false
	}
	if r.load.aside.letsProbe(m, room) {
		return true
	}
	r.releaseAside()
	return false
}

// putAside keeps m: for a pause of its own, or until another message could probe. mu is held.
func (r *runner) putAside(m *message, v *verdict) {
	delay := r.pauseDelay(max(v.of.alone, 1))
	if v.of.alone == 0 {
		delay = time.Until(r.pause.until) + r.opts.Pause.Base
	} else {
		r.load.aside.cause = core.ErrorText(v.err)
	}
	if most := r.judge.traits.MaxHold / 2; most > 0 && time.Since(m.since)+delay > most {
		r.settle(m, core.AckRelease(m.d)) // the broker would take it back
		return
	}
	r.waitAside(m, delay)
}

// waitAside has m come back after delay. mu is held.
func (r *runner) waitAside(m *message, delay time.Duration) {
	if r.load.aside.waiting == nil {
		r.load.aside.waiting = map[*message]*time.Timer{}
	}
	r.load.aside.waiting[m] = time.AfterFunc(delay, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if _, ok := r.load.aside.waiting[m]; ok {
			r.comeBack(m)
		}
	})
	r.bell.ring() // there is room for another one
}

// comeBack runs m, which has waited aside, unless another message probes or may do so first. mu is held.
func (r *runner) comeBack(m *message) {
	p := &r.pause
	switch {
	case r.unstored.any(), p.state != open && p.probe != nil: // others go first
		r.waitAside(m, r.opts.Pause.Base)
		return
	case p.waits():
		r.waitAside(m, time.Until(p.until)+r.opts.Pause.Base)
		return
	case p.state != open && !r.sub.InOrder:
		p.state, p.probe = probing, m // no other one has come
	}
	delete(r.load.aside.waiting, m)
	m.h = m.h.one
	r.add(m)
	r.kick()
}

// releaseAside releases what waits aside. mu is held.
func (r *runner) releaseAside() {
	for m, timer := range r.load.aside.waiting {
		timer.Stop()
		delete(r.load.aside.waiting, m)
		r.settle(m, core.AckRelease(m.d))
	}
}
