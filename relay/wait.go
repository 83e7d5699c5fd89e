package relay

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A store can wake the relay when a message is staged or a timer is due (core.Waiter). A wait covers the routes that
// the dispatcher has read to their end. When one more route is idle, the wait is ended, and a new one covers that, too.
// After a wait that was ended or failed, the dispatcher is told that no wait was under way (Unwatched), so that it
// reads soon by itself.
//
// Not each wake-up brings a record: several relays may be woken for one. After some useless ones in a row the next are
// delayed, so that a busy outbox does not cost this relay a read for each message of others.

// maxFruitless is how many useless wake-ups in a row may follow each other at once. After that they are PollMin apart.
const maxFruitless = 4

// maxDeaf bounds the pause before a wait that failed is tried again.
const maxDeaf = 5 * time.Second

// waits is the state of the store's wake-ups.
type waits struct {
	waiter    core.Waiter
	waiting   bool // a wait is under way
	cancel    context.CancelFunc
	fails     int       // waits in a row that failed
	notBefore time.Time // the next wait begins then at the earliest
	hintAt    time.Time // when a delayed hint is due; zero = none
	hinted    time.Time // the latest hint
	fruitless int       // useless wake-ups in a row that followed each other at once
	handedOut int       // counts.HandedOut then
}

// wait asks the store to wake the relay for the routes that it has read to their end. It returns when to look again.
// The steps:
//
//  1. A hint that was delayed is passed on when its time has come.
//  2. The idle routes are found. A wait that lacks one of them is ended; its end leads here again.
//  3. Otherwise a wait begins, unless one is under way, no route is idle, or the latest one failed a moment ago.
func (e *engine) wait() (next time.Time) {
	if !e.waits.hintAt.IsZero() {
		if e.now.Before(e.waits.hintAt) {
			return e.waits.hintAt
		}
		e.wakeNow(nil)
	}
	if e.waits.waiter == nil || e.once || e.drain.begun {
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
	case e.waits.waiting && missed:
		e.waits.cancel()
		return time.Time{}
	case e.waits.waiting || len(names) == 0:
		return time.Time{}
	case e.now.Before(e.waits.notBefore):
		return e.waits.notBefore
	}
	for _, rt := range e.order {
		rt.awaited = false
	}
	for _, name := range names {
		e.routes[name].awaited = true
	}
	began := e.now
	ctx, cancel := context.WithCancel(e.base)
	e.waits.waiting, e.waits.cancel = true, cancel
	e.async(func() func() {
		var cause core.WakeCause
		err := guardErr("wait", func() (err error) {
			cause, err = e.waits.waiter.Wait(ctx, names, e.opts.PollMax)
			return err
		})
		if ctx.Err() != nil {
			cause = core.WakeStop
		} else if cause == core.WakeStop { // the relay has not stopped it
			cause = core.WakePoll
		}
		cancel()
		return func() { e.woken(cause, err, names, began) }
	})
	return time.Time{}
}

// endWait ends the wait in progress, if there is one.
func (e *engine) endWait() {
	if e.waits.cancel != nil {
		e.waits.cancel()
	}
}

// woken takes in the result of a wait.
func (e *engine) woken(cause core.WakeCause, err error, names []string, began time.Time) {
	e.waits.waiting, e.waits.cancel = false, nil
	if cause == core.WakeStop || e.drain.begun {
		e.d.Unwatched(e.now) // the next timer was not told
		return
	}
	if err != nil {
		e.waits.fails++
		e.d.Unwatched(e.now)
		backoff := waybill.Backoff{Base: 2 * e.opts.PollMin, Cap: max(min(e.opts.PollMax, maxDeaf), 2*e.opts.PollMin), Attempts: -1}
		d, _, _ := backoff.Next(e.waits.fails, err)
		e.waits.notBefore = e.now.Add(d)
		e.warn(nil, "relay.polling", "the store cannot wake the relay; polling meanwhile", err)
		return
	}
	e.waits.fails = 0
	e.tel.woke(e.base, cause)
	if e.now.Sub(began) >= e.opts.PollMax { // the limit was reached: the dispatcher polls by itself
		return
	}
	e.hint(names)
}

// hint makes the dispatcher read routes, or all if none is named, since messages may have been staged. A hint is
// useless if nothing was handed out since the one before. After more than maxFruitless useless ones in quick succession
// the next waits for PollMin.
func (e *engine) hint(names []string) {
	switch {
	case e.counts.HandedOut > e.waits.handedOut:
		e.waits.fruitless = 0
	case e.now.Sub(e.waits.hinted) < e.opts.PollMin/2:
		e.waits.fruitless++
	case e.now.Sub(e.waits.hinted) > 4*e.opts.PollMin:
		e.waits.fruitless = 0
	}
	e.waits.handedOut = e.counts.HandedOut
	if e.waits.fruitless > maxFruitless {
		e.waits.hintAt = e.waits.hinted.Add(jitter(e.opts.PollMin))
		e.waits.notBefore = e.waits.hintAt
		return
	}
	e.wakeNow(names)
}

// wakeNow passes a hint on.
func (e *engine) wakeNow(names []string) {
	e.waits.hintAt, e.waits.hinted = time.Time{}, e.now
	e.d.Wake(e.now, names...)
}
