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
			parts = append(parts, core.Part{Route: rt.Name, Slots: s})
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

// dueDone takes in due records.
func (d *Dispatcher) dueDone(page *core.DuePage, c *Call) {
	if c.err != nil {
		if fenced(c.err) {
			d.rejoin()
			return
		}
		d.timers.at = d.now.Add(d.calls.backoff(callDue))
		return
	}
	fresh := page.Moved > 0
	for i := range page.Retries {
		fresh = d.retried(&page.Retries[i]) || fresh
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
func (o *dueOp) done(c *Call) { o.d.dueDone(&o.page, c) }
