package relay

import "time"

// A publisher that ignores its context can keep its messages for ever: they have no result, so that they can neither be
// released nor sent once more. Other messages go on. Log and health report such a call.

// overdueAfter is how long after PublishTimeout a call may return without being reported.
const overdueAfter = time.Second

// watch has the loop look at a call when it should have returned.
func (e *engine) watch(c *call) {
	c.dueAt = e.now.Add(e.opts.PublishTimeout + overdueAfter)
	e.publishes.lookAt = earliest(e.publishes.lookAt, c.dueAt)
}

// stepOverdue logs the calls that should have returned. It returns when to look again; zero = not at all.
func (e *engine) stepOverdue() time.Time {
	p := &e.publishes
	if p.lookAt.IsZero() || e.now.Before(p.lookAt) {
		return p.lookAt
	}
	p.lookAt = time.Time{}
	for c := range p.inFlight {
		switch {
		case c.overdue:
		case e.now.Before(c.dueAt):
			p.lookAt = earliest(p.lookAt, c.dueAt)
		default:
			c.overdue = true
			e.log.Warn("a publisher does not return although its context has ended; its messages wait until it does, or until a restart",
				"event", "relay.publish_overdue", "route", c.route.Name, "id", c.items[0].Record.Envelope.ID, "records", len(c.items),
				"timeout", e.opts.PublishTimeout)
		}
	}
	return p.lookAt
}

// overdue is how many records of a route are in calls that should have returned.
func (p *publishes) overdue(rt *route) (n int) {
	for c := range p.inFlight {
		if c.route == rt && c.overdue {
			n += len(c.items)
		}
	}
	return n
}

// returned notes that a call has returned.
func (e *engine) returned(c *call, took time.Duration) {
	if !c.overdue {
		return
	}
	c.overdue = false
	e.log.Info("the publisher has returned", "event", "relay.publish_returned", "route", c.route.Name, "records", len(c.items), "took", took)
}
