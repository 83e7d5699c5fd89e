package table

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/errtext"
)

// Each receiver is a member of the outbox with a dispatcher of its own. pump drives it: after each event it starts the
// calls that the dispatcher wants, wakes a Receive for which there is something, and sets one timer for the next time
// at which the answer changes. Calls of all receivers of a transport share t.calls, so that a process needs few
// connections.

// longHeld is after how long a log says that a handler is slow, or never returns.
const longHeld = 5 * time.Minute

// pump starts the calls that the dispatcher wants, and plans when to look again. mu is held.
func (r *receiver) pump() {
	if !r.started || r.d.Left() || r.base.Err() != nil {
		return
	}
	now := time.Now()
	if !r.wakeups.stirAt.IsZero() && !now.Before(r.wakeups.stirAt) {
		r.wakeups.stirAt = time.Time{}
		r.d.Wake(now)
	}
	// 1. The dispatcher hears how many deliveries a caller would take now, and says which calls it wants.
	r.d.SetFree(r.free())
	for _, c := range r.d.Calls(now) {
		r.call(c)
	}
	// 2. A Receive that waits is woken for records that are ready.
	if r.d.Ready(r.queue) > 0 && r.free() > 0 {
		r.notify()
	}
	// 3. Without any, the receiver listens for news. Where the news may be missed, a time to look is set besides.
	if r.asleep() {
		r.t.listen()
		switch {
		case !r.wakeups.stirAt.IsZero():
		case r.t.shared(r.queue):
			r.wakeups.stirAt = now.Add(sharedPoll)
		case r.t.waitFails > 0:
			r.wakeups.stirAt = now.Add(failedPoll)
		}
	}
	// 4. One timer wakes the pump at the earliest of these times.
	next := r.d.Next()
	for _, at := range []time.Time{r.wakeups.stirAt, r.listenAt()} {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if next.IsZero() {
		return
	}
	if d := max(next.Sub(now), 0); r.wakeups.timer == nil {
		r.wakeups.timer = time.AfterFunc(d, func() {
			r.t.mu.Lock()
			defer r.t.mu.Unlock()
			r.pump()
		})
	} else {
		r.wakeups.timer.Reset(d)
	}
}

// listenAt returns when a receiver that is asleep may wait for news again; zero = it does already, or cannot.
func (r *receiver) listenAt() time.Time {
	if r.t.waiter == nil || r.t.listening != nil || !r.asleep() {
		return time.Time{}
	}
	return r.t.waitAt
}

// asleep reports whether a Receive waits and nothing was found for it.
func (r *receiver) asleep() bool {
	return r.bounds.limit > 0 && r.calls.reading == 0 && !r.closed && r.d.Ready(r.queue) == 0 && r.d.Session() != 0
}

// wake makes the receiver look again. mu is held.
func (r *receiver) wake(now time.Time) {
	r.d.Wake(now)
	r.pump()
}

// call makes a call to the store, on a goroutine of its own, when one of the transport's places is free. A call that
// gets none within its limit counts as lost: the dispatcher makes it again. mu is held.
func (r *receiver) call(c *dispatch.Call) {
	reads := c.Kind() == dispatch.CallRead || c.Kind() == dispatch.CallHold || c.Kind() == dispatch.CallDue
	r.calls.running++
	if reads {
		r.calls.reading++
	}
	t := r.t
	shared := t.group(c)
	go func() {
		ctx, cancel := context.WithTimeout(r.base, c.Limit())
		defer cancel()
		var made bool
		if shared != nil {
			made = t.settle(ctx, shared)
		} else {
			made = t.do(ctx, c)
		}
		ended := ctx.Err()
		t.mu.Lock()
		defer t.mu.Unlock()
		r.calls.running--
		if reads {
			r.calls.reading--
		}
		if made && c.Kind() == dispatch.CallSettle {
			t.stats.Settles++
		}
		r.answered(c, ended)
	}()
}

// answered takes in the answer to a call; ended is why it was ended before its time. mu is held. The dispatcher comes
// first. Then a Receive hears of an outage: one error is kept for it, and when a call works again it returns without
// deliveries, so that its caller knows. A settle that failed is logged alone, since the dispatcher repeats it.
func (r *receiver) answered(c *dispatch.Call, ended error) {
	settles := c.Kind() == dispatch.CallSettle
	switch c.Kind() {
	case dispatch.CallHold:
		r.t.stats.Holds++
	case dispatch.CallHeartbeat:
		r.sayLong()
	case dispatch.CallRead, dispatch.CallDue, dispatch.CallRelease, dispatch.CallSettle:
	}
	r.d.Done(time.Now(), c)
	r.missed()
	if r.t.log.Enabled(r.base, slog.LevelDebug) {
		r.noteChanges()
	}
	err := c.Err()
	if settles {
		err = r.d.Err()
	}
	switch {
	case err == nil:
		if !settles {
			r.err = nil
			if r.outage == outageTold {
				r.outage = outageOver
				r.notify()
			}
		}
	case r.base.Err() != nil || errors.Is(err, core.ErrFenced):
	case settles:
		r.t.log.Event(r.base, slog.LevelWarn, "table.settle_retry", "settling failed; trying again",
			slog.String("queue", r.queue), slog.String("error", core.ErrorText(err)))
	default:
		if ended != nil { // whatever the driver made of it
			err = &waybill.Error{Class: waybill.ClassOutage, Err: err}
		}
		r.err = errtext.Within("waybill/table: receive: queue "+r.queue, err)
		r.notify()
	}
	if r.closed {
		r.notify()
	}
	r.pump()
}

// noteChanges logs which members came and went, and which partitions the receiver got and has no longer. mu is held.
func (r *receiver) noteChanges() {
	queue := slog.String("queue", r.queue)
	if met, gone := r.calls.seen.Members(r.d.Membership().Members); len(met)+len(gone) > 0 {
		r.t.log.Event(r.base, slog.LevelDebug, "table.members", "members changed", queue, slog.Any("met", met), slog.Any("gone", gone))
	}
	if taken, given := r.calls.seen.Partitions(r.queue, r.d.Owned(r.queue)); len(taken)+len(given) > 0 {
		r.t.log.Event(r.base, slog.LevelDebug, "table.partitions", "partitions changed", queue, slog.Any("taken", taken), slog.Any("gone", given))
	}
}

// sayLong says which handlers take long. mu is held.
func (r *receiver) sayLong() {
	now := time.Now()
	for _, h := range r.out {
		if held := now.Sub(h.since); h.state == handed && !h.lost && !h.logged && held >= longHeld {
			h.logged = true
			rec := &h.item.Record
			r.t.log.Event(core.ContextWithTrace(r.base, &rec.Envelope), slog.LevelWarn, "table.held_long",
				"a message is held for long: its handler is slow, or never returns", ofRecord(rec, r.queue, held)...)
		}
	}
}
