package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

const (
	// dueLimit bounds the records of one Due.
	dueLimit = 500
	// duePoll is how often the store is asked for due records without a hint that there are any.
	duePoll = time.Second
	// dueAgain is the least pause after due records could not be held.
	dueAgain = 20 * time.Millisecond
	// dueMargin is for how long a retry can be due that no Due could see: its settle was under way.
	dueMargin = time.Minute
	// dueSweep is how often a Due looks for all that is due, however long ago.
	dueSweep = 10 * time.Minute
	// duePause is the least pause between a Due and one that a wake-up asks for.
	duePause = 50 * time.Millisecond
)

// timers knows when to ask the store for due records: timers, and retries.
type timers struct {
	at   time.Time
	sent time.Time // when the store was asked last
	none bool      // nothing more was due then
}

// reset forgets what the store said to a session that has ended.
func (t *timers) reset() { t.at, t.none = time.Time{}, false }

// askBy makes sure that the store is asked by then.
func (t *timers) askBy(at time.Time) { t.at = earliest(t.at, at) }

// wake makes sure that the store is asked now, or when the pause since the last time ends.
func (t *timers) wake(now time.Time, pause time.Duration) { t.askBy(later(t.sent.Add(pause), now)) }

// overdue knows since when what came due must be looked for. Otherwise each Due would go over all retries and timers
// that were sent since the oldest snapshot in the database. What came due before can come back only if a transaction
// shows it late, if another member dies, leaves or gives up a unit, if an operator puts it back, or if this member
// forgets it: then the next Due looks for all.
type overdue struct {
	since time.Time // when a Due was sent after which nothing was due
	allAt time.Time // when to look for all; zero = at once
	asked bool      // the Due under way looks for all, and nothing has happened since it was sent
	fails int       // times that this was not answered
}

// all has the next Due look for all.
func (o *overdue) all() { o.allAt, o.asked = time.Time{}, false }

// within returns how far back the next Due looks; 0 = for all. If that takes too long, it is better to send what came
// due lately than nothing.
func (o *overdue) within(now time.Time, sweeps bool) time.Duration {
	if o.asked = o.since.IsZero() || o.allAt.IsZero() || sweeps && !now.Before(o.allAt); o.asked {
		return [...]time.Duration{0, 24 * time.Hour, time.Hour, dueMargin}[min(o.fails, 3)]
	}
	return now.Sub(o.since) + dueMargin
}

// answered notes that nothing is due any more in what a Due looked for.
func (o *overdue) answered(sent, now time.Time) {
	if o.since = sent; o.asked {
		o.allAt, o.asked, o.fails = now.Add(dueSweep), false, max(o.fails-1, 0)
	}
}

// failed notes that a Due was not answered. It may have held retries.
func (o *overdue) failed() {
	if o.asked {
		o.fails++
	}
	o.all()
}

// due returns the next Due, or nil.
func (d *Dispatcher) due() *Call {
	if d.calls.busy(callDue) || d.giving.busy() || d.timers.at.IsZero() || d.timers.at.After(d.now) || !d.room() {
		return nil
	}
	parts, limit := d.dueParts()
	if len(parts) == 0 {
		d.timers.at = d.now.Add(duePoll)
		if slices.ContainsFunc(d.routes, (*route).crowded) {
			d.timers.at = d.now.Add(dueAgain)
		}
		return nil
	}
	c := &Call{kind: callDue}
	c.op = &dueOp{d: d, session: d.session, parts: parts, limit: limit}
	d.calls.begin(c)
	d.timers.sent = d.now
	for _, rt := range d.routes {
		clear(rt.recent.due)
	}
	d.timers.at = d.now.Add(duePoll)
	return c
}

// dueParts returns the slots to ask for, and how many retries may come.
func (d *Dispatcher) dueParts() (parts []core.Part, limit int) {
	limit = d.dueLimit
	for _, rt := range d.routes {
		room := rt.room()
		if s := rt.slots(); s != 0 && room > 0 && !rt.crowded() {
			parts = append(parts, core.Part{Route: rt.Name, Slots: s, DueWithin: rt.overdue.within(d.now, !d.noSweeps)})
			limit = min(limit, room)
			if rt.Queue {
				limit = min(limit, max(d.handlers.free, dueAhead))
			}
		}
	}
	for _, rt := range d.routes { // records that are held already are answered first, and bring nothing
		for _, item := range rt.known {
			if item.retry {
				limit++
			}
		}
	}
	return parts, limit
}

// dueDone takes in due records of parts.
func (d *Dispatcher) dueDone(page *core.DuePage, parts []core.Part, c *Call) {
	if c.err != nil {
		if fenced(c.err) {
			d.rejoin()
			return
		}
		for _, p := range parts {
			d.byName[p.Route].overdue.failed()
		}
		d.timers.at = d.now.Add(d.calls.backoff(callDue))
		return
	}
	fresh := page.Moved > 0
	whole := page.NextIn != 0
	for i := range page.Retries {
		rec := &page.Retries[i]
		fresh = d.retried(rec) || fresh
		rt := d.byName[rec.Route]
		whole = whole && rt != nil && rt.known[rec.Seq] != nil // else it must come again
	}
	for _, p := range parts {
		if whole {
			d.byName[p.Route].overdue.answered(c.sent, d.now)
		}
	}
	d.timers.none = page.NextIn != 0 && !fresh
	if page.NextIn >= 0 {
		next := c.sent.Add(page.NextIn)
		if page.NextIn == 0 && !fresh {
			next = d.now.Add(dueAgain)
		}
		d.timers.askBy(next)
	}
	if page.Moved > 0 {
		for _, rt := range d.routes {
			rt.pace.wake(d.now)
			rt.queue.lookNext(d.now)
		}
	}
}

// retried takes in a due retry, which is held now.
func (d *Dispatcher) retried(rec *core.Record) (fresh bool) {
	rt := d.byName[rec.Route]
	if rt == nil || rt.known[rec.Seq] != nil || rt.recent.due[rec.Seq] {
		return false
	}
	if g := rt.groupOf(rec.Slot); g == nil || !g.loaded {
		return false
	}
	item := rt.newItem(rec)
	item.held, item.retry = true, true
	if !rt.ordered() || rec.Envelope.Key == "" {
		d.hand(item)
		return true
	}
	k := rt.key(rec.Envelope.Key, rec.Slot)
	item.key = k
	delete(k.holds, rec.Seq)
	if k.asks {
		k.ask()
	}
	k.insert(item)
	d.advance(k)
	return true
}

type dueOp struct {
	d       *Dispatcher
	session core.Session
	parts   []core.Part
	limit   int
	page    core.DuePage
}

func (o *dueOp) do(ctx context.Context, s core.OutboxStore) (err error) {
	o.page, err = s.Due(ctx, o.session, o.parts, o.limit)
	return err
}
func (o *dueOp) done(c *Call) { o.d.dueDone(&o.page, o.parts, c) }
