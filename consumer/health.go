package consumer

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// condition is what Health reports about a runner. The runner's mu guards it.
type condition struct {
	opened  bool      // the subscription was open at least once
	since   time.Time // it is open, or down, since then
	downErr string    // why it is down
	down    bool      // the broker cannot be reached
	active  time.Time // the latest receive, settle, or change of the connection
	// checker tells whether the receiver still has its connection. Otherwise a loss would not show while all
	// handlers are busy. It is nil if the receiver cannot tell.
	checker core.Checker
}

// setCondition notes whether the broker can be reached. mu is held.
func (r *runner) setCondition(down bool, err error) {
	if down {
		r.downErr = core.ErrorText(err)
	} else {
		r.opened = true
	}
	if r.down != down || r.since.IsZero() {
		r.since = time.Now()
	}
	r.down, r.active = down, time.Now()
}

// Health reports the state of the consumer. The checks are "run" and "queue NAME" for each subscription. It does no
// input or output, and never waits. It is safe for concurrent use at any time.
//
// Live is false if Run ended with an error. Ready is true if the consumer runs and all its subscriptions are open. A
// paused subscription is a degradation.
func (c *Consumer) Health(ctx context.Context) waybill.Health {
	h := waybill.Health{Live: true, Ready: true}
	c.mu.Lock()
	running, runners, failed := c.running, c.runners, c.lastErr
	c.mu.Unlock()
	switch {
	case running && runners != nil:
		h.Add("run", waybill.HealthOK, "running")
	case running:
		h.Add("run", waybill.HealthFailed, "starting")
	case failed != nil:
		h.Live = false
		h.Add("run", waybill.HealthFailed, "ended: %s", core.ErrorText(failed))
	default:
		h.Add("run", waybill.HealthFailed, "not running")
	}
	for _, r := range runners {
		r.health(ctx, &h)
	}
	return h
}

func (r *runner) health(ctx context.Context, h *waybill.Health) {
	r.mu.Lock()
	checker := r.checker
	r.mu.Unlock()
	var lost error
	if checker != nil {
		lost = checker.Check(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	alone := r.load.blames.alone(identity{})
	name := "queue " + r.sub.Queue
	ago := func(t time.Time) time.Duration { return time.Since(t).Round(time.Millisecond) }
	switch {
	case r.stopping:
		h.Add(name, waybill.HealthFailed, "stopping; %d deliveries held", r.load.held)
	case r.down:
		h.Add(name, waybill.HealthFailed, "the broker cannot be reached for %s: %s", ago(r.since), r.downErr)
	case lost != nil && r.bell.waiting:
		h.Add(name, waybill.HealthFailed, "the broker cannot be reached: %s; it is connected to again when a handler is free", core.ErrorText(lost))
	case !r.opened:
		h.Add(name, waybill.HealthFailed, "not subscribed yet")
	case r.unstored.any():
		h.Add(name, waybill.HealthDegraded, "paused, as what was decided about %d messages cannot be stored, %d tries so far; the latest: %s",
			r.unstored.messages, r.pause.n, r.pause.cause)
	case r.pause.state != open:
		h.Add(name, waybill.HealthDegraded, "paused, as something that handlers need is down, %d probes so far; the latest: %s", r.pause.n, r.pause.cause)
	case alone > 0:
		h.Add(name, waybill.HealthDegraded, "subscribed, but %d messages meet outages while others are handled, and come again later; the latest: %s",
			alone, r.load.blames.cause)
	default:
		h.Add(name, waybill.HealthOK, "subscribed; %s, the latest activity %s ago%s", r.holds(), ago(r.active), r.waits())
	}
}

// keepRunners remembers the runners of the present run for Health; nil and its error when the run is over. The error of
// a RunOnce goes to its caller.
func (c *Consumer) keepRunners(runners []*runner, err error, once bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runners = runners; !once {
		c.lastErr = err
	}
}
