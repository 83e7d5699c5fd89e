package consumer

import (
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// owed are the verdicts that the transport could not store, although it still holds their messages. They are stored
// again; no handler runs again for them. Meanwhile the subscription is paused. The runner's mu guards them.
type owed struct {
	messages int       // how many have such a verdict
	waiting  []owedAck // of these, those that wait for the end of the pause
	releases []owedAck // releases, which decide nothing: each is tried again for itself, without a pause
}

type owedAck struct {
	m   *message
	ack core.Ack
	at  time.Time // of the next try, if it is a release
}

// any reports whether a verdict is owed.
func (o *owed) any() bool { return o.messages > 0 }

// keep takes in ack, which could not be stored.
func (o *owed) keep(m *message, ack core.Ack) {
	if !m.owed {
		m.owed = true
		o.messages++
	}
	o.waiting = append(o.waiting, owedAck{m: m, ack: ack})
}

// stored notes that the verdict about m is stored, or need not be stored any more.
func (o *owed) stored(m *message) {
	if m.owed {
		m.owed = false
		o.messages--
	}
}

// again reports whether the verdict about m is still to be stored, after its settle failed with err. mu is held.
func (r *runner) again(m *message, ack core.Ack, err error) bool {
	switch {
	case errors.Is(err, waybill.ErrLeaseLost), errors.Is(err, waybill.ErrInvalid), errors.Is(err, waybill.ErrClosed):
		return false // the receiver does not hold it
	case r.stopping && (ack.Verdict == core.VerdictRelease || ack.Verdict == core.VerdictDone):
		return false // the receiver releases it when it is closed
	case ack.Verdict == core.VerdictRelease && m.yields == nil:
		m.releases++
		r.load.unsettled-- // until it is tried again: the receiver may refuse it for long
		at := time.Now().Add(r.pauseDelay(m.releases))
		r.owed.releases = append(r.owed.releases, owedAck{m, ack, at})
		r.kickAt(at)
		return true
	case !r.stopping:
		r.owed.keep(m, ack)
		return true
	default:
		r.queue(m, core.AckRelease(m.d)) // messages behind it must not go back before it
		return true
	}
}

// owe pauses after verdicts could not be stored, because of err. mu is held.
func (r *runner) owe(err error) turn {
	p := &r.pause
	switch {
	case r.stopping:
		return turn{}
	case p.waits():
		r.kickAt(p.until)
		return turn{}
	}
	p.begin(r.pauseDelay(p.n+1), err)
	if !r.sub.InOrder { // else everything stays where it is
		r.releaseWaiting()
	}
	r.kickAt(p.until)
	return turn{changed: true, state: paused, owed: true, delay: p.delay, err: err}
}

// releaseOwed tries the releases again whose time has come. mu is held.
func (r *runner) releaseOwed() {
	var later []owedAck
	for _, o := range r.owed.releases {
		if !r.stopping && time.Now().Before(o.at) {
			later = append(later, o)
			r.kickAt(o.at)
			continue
		}
		r.settle(o.m, o.ack)
	}
	r.owed.releases = later
}

// storeOwed stores owed verdicts again if the pause is over. mu is held.
func (r *runner) storeOwed() {
	r.releaseOwed()
	if len(r.owed.waiting) == 0 {
		return
	}
	if !r.stopping {
		if r.pause.waits() {
			r.kickAt(r.pause.until)
			return
		}
		r.pause.state = probing
	}
	list := r.owed.waiting
	r.owed.waiting = nil
	for i := range list {
		r.queue(list[i].m, list[i].ack)
	}
}

// paid ends the pause after the last owed verdict was stored. If a handler had reported an outage, too, a message
// probes next. mu is held.
func (r *runner) paid() turn {
	p := &r.pause
	if p.handlers {
		p.state = probing
		return turn{}
	}
	*p = pause{probe: p.probe}
	return turn{changed: true, state: open}
}
