package consumer

import (
	"log/slog"
	"time"

	"github.com/waybill-go/waybill/core"
)

// When a dependency of handlers is down, each message would fail and spend an attempt. So the first outage pauses the
// subscription, and one message at a time probes:
//
//   open     --outage-->                 paused
//   paused   --delay over-->             probing   (first the checks of handlers are asked)
//   probing  --outage of the probe-->    paused    (for twice as long, 30 s at most)
//   probing  --healthy probe-->          open
//   probing  --any other end-->          probing   (the next message probes)
//   probing  --the probe takes long-->   probing   (the next message probes, too)

// The states of a subscription in outages.
type pauseState uint8

const (
	open    pauseState = iota // everything runs
	paused                    // nothing is received until the delay is over
	probing                   // one message at a time begins, until one meets no outage
)

// pause is an outage of a dependency of the handlers, or of the broker's. The runner's mu guards it.
type pause struct {
	state pauseState
	n     int               // pauses in a row
	delay time.Duration     // of the current pause
	until time.Time         // its end, by the monotonic clock
	probe *message          // the message on trial
	slow  map[*message]bool // those that were, took long, and have not ended
	cause string            // the latest outage
	// handlers says that a handler reported the outage, so that a message must probe.
	handlers bool
}

// begin pauses for delay.
func (p *pause) begin(delay time.Duration, cause error) {
	p.n++
	p.cause = core.ErrorText(cause)
	p.delay = delay
	p.until = time.Now().Add(p.delay)
	p.state = paused
}

// leastTrial is for how long a probe is waited for at least.
const leastTrial = time.Second

// try has m probe. A handler may take hours, and its message says nothing until then: if m takes longer than the latest
// pause, and a handler has nothing to do, the next message probes beside it. mu is held.
func (r *runner) try(m *message) {
	p := &r.pause
	p.probe = m
	var passed func()
	again := func() { time.AfterFunc(max(p.delay, leastTrial), passed) }
	passed = func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case p.probe != m || r.stopping:
		case r.running >= r.limit:
			again()
		default:
			if p.probe = nil; p.slow == nil {
				p.slow = map[*message]bool{}
			}
			p.slow[m] = true
			r.bell.ring()
			r.kick()
		}
	}
	again()
}

// endProbe reports whether m is the probe, or was it. It is none any more.
func (p *pause) endProbe(m *message) bool {
	was := p.probe == m || p.slow[m]
	delete(p.slow, m)
	if p.probe == m {
		p.probe = nil
	}
	return was
}

// waits reports whether the delay of a pause is not over.
func (p *pause) waits() bool { return p.state == paused && time.Now().Before(p.until) }

// turn is a change of the pause, for the log.
type turn struct {
	changed  bool
	state    pauseState
	unstored bool // verdicts cannot be stored
	delay    time.Duration
	err      error
}

// observe changes the pause after a verdict about m. mu is held.
func (r *runner) observe(m *message, v *verdict) turn {
	p := &r.pause
	probed := p.endProbe(m)
	if v.healthy {
		r.load.blames.handled(m)
	}
	// An outage of the message's own pauses nothing: the message goes away.
	v.outage = v.outage && v.of.alone == 0
	p.handlers = p.handlers || v.outage
	switch {
	case v.outage && !r.stopping && (probed || p.state == open):
		p.begin(r.pauseDelay(p.n+1), v.err)
		if !r.sub.InOrder { // else everything stays where it is
			r.flow.hold(m.session)
			r.releaseWaiting()
			r.flow.end()
		}
	case probed && v.healthy && r.unstored.any():
		p.handlers = false // the pause goes on until the verdicts are stored
		return turn{}
	case probed && v.healthy:
		*p = pause{}
	default:
		if probed {
			r.bell.ring() // the next one probes
		}
		return turn{}
	}
	r.bell.ring()
	return turn{changed: true, state: p.state, delay: p.delay, err: v.err}
}

// announce logs a change of the pause, and reports an outage to a RunOnce.
func (r *runner) announce(t turn) {
	if !t.changed {
		return
	}
	switch t.state {
	case paused:
		text := "something that handlers need is down: paused, will probe"
		if t.unstored {
			text = "what was decided about messages cannot be stored: paused, will try again"
		}
		r.log.Event(r.settleCtx, slog.LevelWarn, "consumer.pause", text, slog.Duration("probe_in", t.delay), errAttr(t.err))
		if r.trouble != nil {
			r.trouble(t.err)
		}
	case open:
		r.log.LogAttrs(r.settleCtx, slog.LevelInfo, "the outage is over: resumed", slog.String("event", "consumer.resume"))
	case probing:
	}
}

// pauseDelay returns the delay after failure n in a row.
func (r *runner) pauseDelay(n int) time.Duration {
	d, _, _ := r.opts.Pause.Next(n, nil) // it cannot fail: it is neither custom nor bounded
	return d
}
