package consumer

import (
	"log/slog"
	"time"

	"github.com/waybill-go/waybill/core"
)

// The states of a subscription with regard to outages.
type pauseState uint8

const (
	open    pauseState = iota // everything runs
	paused                    // nothing is received until the delay is over
	probing                   // one message at a time, until one shows no outage
)

// pause is an outage of something the handlers need. The runner's mu guards it.
type pause struct {
	state pauseState
	n     int           // pauses in a row
	delay time.Duration // of the current pause
	until time.Time     // its end, by the monotonic clock
	probe *item         // the message that probes
	cause string        // the latest outage
}

// observe lets the pause follow from what became of it, and reports whether its state changed. mu is held.
func (r *runner) observe(it *item, v *verdict) bool {
	p := &r.pause
	probe := p.probe == it
	if probe {
		p.probe = nil
	}
	switch {
	case v.outage && !r.stopping && (probe || p.state == open):
		p.n++
		p.cause = core.ErrorText(v.err)
		p.delay = r.pauseDelay(p.n)
		p.until = time.Now().Add(p.delay)
		p.state = paused
		if !r.sub.InOrder { // else everything stays where it is
			r.giveBackWaiting()
		}
		return true
	case probe && v.healthy:
		*p = pause{}
		return true
	}
	if probe {
		r.wakeReceiver() // the next one probes
	}
	return false
}

func (r *runner) logPause(state pauseState, delay time.Duration, err error) {
	switch state {
	case paused:
		r.log.warn(r.settleCtx, "consumer.pause", "something that handlers need is down: paused, will probe",
			slog.Duration("probe_in", delay), errAttr(err))
	case open:
		r.log.LogAttrs(r.settleCtx, slog.LevelInfo, "the outage is over: resumed", slog.String("event", "consumer.resume"))
	case probing:
	}
}
