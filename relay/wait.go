package relay

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// maxHasty is how many wake-ups in a row may bring nothing and follow each other at once. From then on they are PollMin
// apart, whoever gives them.
const maxHasty = 4

// waits is how the store wakes the relay.
type waits struct {
	waiter     core.Waiter
	waiting    bool
	cancelWait context.CancelFunc
	waitFails  int
	waitAt     time.Time
	hintAt     time.Time // a hint that was put off; zero = none
	hinted     time.Time // the latest hint
	hasty      int
	claimed    int // counts.Claimed then
}

// wait asks the store to wake the relay for the routes that it has read to the end. It returns when to look again.
func (e *engine) wait() (next time.Time) {
	if !e.hintAt.IsZero() {
		if e.now.Before(e.hintAt) {
			return e.hintAt
		}
		e.wakeNow(nil)
	}
	if e.waiter == nil || e.once || e.stopping {
		return time.Time{}
	}
	var names []string
	missed := false
	for _, rt := range e.order {
		if rt.paused || !e.d.Idle(e.now, rt.Name) {
			continue
		}
		names = append(names, rt.Name)
		missed = missed || !rt.awaited
	}
	switch {
	case e.waiting && missed:
		e.cancelWait()
		return time.Time{}
	case e.waiting || len(names) == 0:
		return time.Time{}
	case e.now.Before(e.waitAt):
		return e.waitAt
	}
	for _, rt := range e.order {
		rt.awaited = false
	}
	for _, name := range names {
		e.routes[name].awaited = true
	}
	began := e.now
	ctx, cancel := context.WithCancel(e.base)
	e.waiting, e.cancelWait = true, cancel
	e.async(func() func() {
		var cause core.WakeCause
		err := guardErr("wait", func() (err error) {
			cause, err = e.waiter.Wait(ctx, names, e.opts.PollMax)
			return err
		})
		if ctx.Err() != nil {
			cause = core.WakeStop
		} else if cause == core.WakeStop { // nobody has stopped it
			cause = core.WakePoll
		}
		cancel()
		return func() { e.woken(cause, err, names, began) }
	})
	return time.Time{}
}

func (e *engine) endWait() {
	if e.cancelWait != nil {
		e.cancelWait()
	}
}

func (e *engine) woken(cause core.WakeCause, err error, names []string, began time.Time) {
	e.waiting, e.cancelWait = false, nil
	if cause == core.WakeStop || e.stopping {
		return
	}
	if err != nil {
		e.waitFails++
		backoff := waybill.Backoff{Base: 2 * e.opts.PollMin, Cap: max(e.opts.PollMax, 2*e.opts.PollMin), Attempts: -1}
		d, _, _ := backoff.Next(e.waitFails, err)
		e.waitAt = e.now.Add(d)
		e.warn(nil, "polling", "the store cannot wake the relay; polling meanwhile", err)
		return
	}
	e.waitFails = 0
	e.tel.woke(e.base, cause)
	if e.now.Sub(began) >= e.opts.PollMax { // it is the limit: the dispatcher polls by itself
		return
	}
	e.hint(names)
}

// hint has routes read, or all if none is named, since something may have been staged. Hints that bring nothing are
// put off.
func (e *engine) hint(names []string) {
	switch {
	case e.counts.Claimed > e.claimed:
		e.hasty = 0
	case e.now.Sub(e.hinted) < e.opts.PollMin/2:
		e.hasty++
	case e.now.Sub(e.hinted) > 4*e.opts.PollMin:
		e.hasty = 0
	}
	e.claimed = e.counts.Claimed
	if e.hasty > maxHasty {
		e.hintAt = e.hinted.Add(jitter(e.opts.PollMin))
		e.waitAt = e.hintAt
		return
	}
	e.wakeNow(names)
}

// wakeNow passes a hint on.
func (e *engine) wakeNow(names []string) {
	e.hintAt, e.hinted = time.Time{}, e.now
	e.d.Wake(e.now, names...)
}

// jitter shortens d by up to a quarter, so that relays do not poll in step.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/4+1) }
