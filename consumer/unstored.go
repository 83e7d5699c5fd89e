package consumer

import (
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// unstored are the verdicts that the transport could not store, although it still holds their messages. They are stored
// again; no handler runs again for them. Meanwhile the subscription is paused. The runner's mu guards them.
type unstored struct {
	messages int           // how many have such a verdict
	waiting  []unstoredAck // of these, those that wait for the end of the pause
	releases []unstoredAck // releases, which decide nothing: each is tried again by itself, without a pause
}

type unstoredAck struct {
	m   *message
	ack core.Ack
	at  time.Time // of the next try, if it is a release
}

// any reports whether a verdict could not be stored yet.
func (o *unstored) any() bool { return o.messages > 0 }

// keep takes in ack, which could not be stored.
func (o *unstored) keep(m *message, ack core.Ack) {
	if !m.unstored {
		m.unstored = true
		o.messages++
	}
	o.waiting = append(o.waiting, unstoredAck{m: m, ack: ack})
}

// stored notes that the verdict about m is stored, or need not be stored any more.
func (o *unstored) stored(m *message) {
	if m.unstored {
		m.unstored = false
		o.messages--
	}
}

// retrySettle has the verdict about m stored again, after its settle failed with err. It reports false if the verdict
// is dropped. mu is held.
//
//	failure and verdict                | the verdict
//	-----------------------------------|-------------------------------------------------------------
//	lease lost, invalid, closed        | is dropped: the receiver does not hold the message
//	locked by another program          | is stored by a settle of its own, which others do not wait for
//	a retry that costs no attempt      | becomes a release that is tried after a delay: it decides nothing
//	at a stop: done, release           | is dropped: the receiver releases the message when it closes
//	release                            | is tried again by itself, after a delay
//	any other, also of a yielding key  | is kept until the pause that it begins is over
//	at a stop: retry, reject           | becomes a release: messages behind it must not go back before it
func (r *runner) retrySettle(m *message, ack core.Ack, err error) bool {
	switch {
	case errors.Is(err, waybill.ErrLeaseLost), errors.Is(err, waybill.ErrInvalid), errors.Is(err, waybill.ErrClosed):
		return false // the receiver does not hold it
	case errors.Is(err, core.ErrLocked):
		r.settleAlone(m, ack)
		return true
	case ack.SameAttempt: // a broker that takes no copies lets the message go back
		return r.retrySettle(m, core.AckRelease(m.d), err)
	case r.stopping && (ack.Verdict == core.VerdictRelease || ack.Verdict == core.VerdictDone):
		return false // the receiver releases it when it is closed
	case ack.Verdict == core.VerdictRelease && m.yields == nil:
		m.releases++
		r.load.unsettled-- // until it is tried again: the receiver may refuse it for long
		at := time.Now().Add(r.pauseDelay(m.releases))
		r.unstored.releases = append(r.unstored.releases, unstoredAck{m, ack, at})
		r.kickAt(at)
		return true
	case !r.stopping:
		r.unstored.keep(m, ack)
		return true
	default:
		r.queueSettle(m, core.AckRelease(m.d)) // messages behind it must not go back before it
		return true
	}
}

// pauseUnstored pauses after verdicts could not be stored, because of err. mu is held.
func (r *runner) pauseUnstored(err error) turn {
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
	return turn{changed: true, state: paused, unstored: true, delay: p.delay, err: err}
}

// retryReleases tries the releases again whose time has come. mu is held.
func (r *runner) retryReleases() {
	var later []unstoredAck
	for _, o := range r.unstored.releases {
		if !r.stopping && time.Now().Before(o.at) {
			later = append(later, o)
			r.kickAt(o.at)
			continue
		}
		r.settle(o.m, o.ack)
	}
	r.unstored.releases = later
}

// storeAgain stores unstored verdicts again if the pause is over. mu is held.
func (r *runner) storeAgain() {
	r.retryReleases()
	if len(r.unstored.waiting) == 0 {
		return
	}
	if !r.stopping {
		if r.pause.waits() {
			r.kickAt(r.pause.until)
			return
		}
		r.pause.state = probing
	}
	list := r.unstored.waiting
	r.unstored.waiting = nil
	for i := range list {
		r.queueSettle(list[i].m, list[i].ack)
	}
}

// allStored ends the pause after the last verdict was stored. If a handler had reported an outage, too, a message
// probes next. mu is held.
func (r *runner) allStored() turn {
	p := &r.pause
	if p.handlers {
		p.state = probing
		return turn{}
	}
	*p = pause{probe: p.probe}
	return turn{changed: true, state: open}
}
