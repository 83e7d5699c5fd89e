package relay

import (
	"context"
	"time"
)

// A stop has three limits, so that a broker or a store that is away cannot hold it up:
//
//   stop ── DrainTimeout ── cancelAt ── 1 s ── giveUpAt ── 5 s ── finalAt
//           publishes         publishes are         only outcomes
//           go on             cancelled             are stored
//
// When no publish is in flight any more, finalAt is at most five seconds later. The loop ends earlier, as soon as the
// member has left.

const (
	// stopGrace is how long cancelled publishes may still report after the drain limit.
	stopGrace = time.Second
	// stopSettle bounds the settles after that, and the leave.
	stopSettle = 5 * time.Second
)

// drain is the end of a run: records that were sent get time for their outcome. The others are released.
type drain struct {
	begun    bool
	idle     idleEnd         // of a relay of a fleet
	noLeave  bool            // the store did not take the leave
	fatal    error           // why the run ends
	sendCtx  context.Context //nolint:containedctx // of all publishes; it is cancelled at cancelAt
	stopSend context.CancelFunc
	cancelAt time.Time // cancel publishes
	giveUpAt time.Time // stop waiting for them
	finalAt  time.Time // stop settling
}

// stop begins the end: nothing more is read or sent. The member leaves when all outcomes are stored.
func (e *engine) stop() {
	if e.drain.begun {
		return
	}
	e.drain.begun = true
	e.drain.cancelAt = e.now.Add(max(e.opts.DrainTimeout, 0))
	e.drain.giveUpAt = e.drain.cancelAt.Add(stopGrace)
	e.drain.finalAt = e.drain.giveUpAt.Add(stopSettle)
	e.endWait()
	e.stopUpkeep()
	e.d.Stop()
	for _, rt := range e.order {
		e.freeBehindKey(rt)
	}
}

// stopStep does the due steps of a stop and returns the time of the next one.
func (e *engine) stopStep() time.Time {
	if len(e.publishes.inFlight) == 0 {
		e.drain.finalAt = earliest(e.drain.finalAt, e.now.Add(stopSettle))
	}
	switch {
	case e.now.Before(e.drain.cancelAt):
		return earliest(e.drain.cancelAt, e.drain.finalAt)
	case e.now.Before(e.drain.giveUpAt):
		e.drain.stopSend()
		return earliest(e.drain.giveUpAt, e.drain.finalAt)
	}
	for c := range e.publishes.inFlight { // no result came: its records may have arrived
		for _, item := range c.items {
			e.release(item, true)
		}
		delete(e.publishes.inFlight, c)
		e.inProgress--
		c.lost = true
	}
	return e.drain.finalAt
}

// fail ends the run with err.
func (e *engine) fail(err error) {
	if e.drain.fatal == nil {
		e.drain.fatal = err
	}
	e.stop()
}
