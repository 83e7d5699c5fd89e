package relay

import (
	"context"
	"time"
)

// A relay of a fleet runs until it is idle: nothing is due, and nothing was for a while. It is idle although records
// wait behind others of their key, on a paused route, or for a time. It is not while a breaker is open, or while
// another relay that may be dead owns partitions.

// idleEnd is the end of a run that ends when the relay is idle.
type idleEnd struct {
	wanted  bool
	linger  time.Duration
	since   time.Time // of the latest message, or of the start
	handed  int       // counts.HandedOut then
	is      bool      // the relay is idle
	resting func(bool)
}

// runUntilIdle relays until ctx ends, or until the relay is idle and sent its latest message linger ago. It calls
// resting, from the loop, when the relay becomes idle and when it has work again.
func (r *Relay) runUntilIdle(ctx context.Context, linger time.Duration, resting func(bool)) (Counts, error) {
	e, err := r.start(ctx, false)
	if err != nil {
		return Counts{}, err
	}
	e.drain.idle = idleEnd{wanted: true, linger: linger, since: e.began, resting: resting}
	err = e.run(ctx)
	return e.counts, err
}

// stepIdle stops the relay when it is idle, and the latest message was long enough ago.
func (e *engine) stepIdle() (next time.Time) {
	if !e.drain.idle.wanted || e.drain.begun {
		return time.Time{}
	}
	if e.drain.idle.handed != e.counts.HandedOut {
		e.drain.idle.since, e.drain.idle.handed = e.now, e.counts.HandedOut
	}
	if is := e.isIdle(); is != e.drain.idle.is {
		e.drain.idle.is = is
		e.drain.idle.resting(is)
	}
	end := e.drain.idle.since.Add(e.drain.idle.linger)
	switch {
	case !e.drain.idle.is: // what makes it idle is an event, too
		return time.Time{}
	case e.now.Before(end):
		return end
	}
	e.stop()
	return time.Time{}
}

// isIdle reports whether there is nothing to do now.
func (e *engine) isIdle() bool {
	if len(e.publishes.inFlight) > 0 || e.upkeep.cleaning {
		return false
	}
	var paused []string
	for _, rt := range e.order {
		if rt.openBreakers() > 0 {
			return false
		}
		if rt.paused {
			paused = append(paused, rt.Name)
		}
	}
	return e.d.Resting(paused) && !e.anyMaybeDead(e.d.Elsewhere())
}
