package dispatch

import (
	"context"

	"github.com/waybill-go/waybill/core"
)

// due returns the next Due, or nil.
func (d *Dispatcher) due() *Call {
	if d.dueing != nil || len(d.giving) > 0 || d.dueAt.IsZero() || d.dueAt.After(d.now) || !d.room() {
		return nil
	}
	var parts []core.Part
	limit := dueLimit
	for _, rt := range d.routes {
		room := d.routeRoom(rt)
		if s := rt.slots(); s != 0 && room > 0 {
			parts = append(parts, core.Part{Route: rt.Name, Slots: s})
			limit = min(limit, room)
			if rt.Queue {
				limit = min(limit, max(d.free, dueAhead))
			}
		}
	}
	if len(parts) == 0 {
		d.dueAt = d.now.Add(duePoll)
		return nil
	}
	for _, rt := range d.routes { // what is held already is answered first, and brings nothing
		for _, it := range rt.known {
			if it.retry {
				limit++
			}
		}
	}
	c := &Call{kind: callDue}
	session := d.session
	var page core.DuePage
	c.do = func(ctx context.Context, s core.OutboxStore) (err error) {
		page, err = s.Due(ctx, session, parts, limit)
		return err
	}
	c.done = func() { d.dueDone(&page, c) }
	d.dueing, d.dueSent = c, d.now
	for _, rt := range d.routes {
		clear(rt.recentDue)
	}
	d.dueAt = d.now.Add(duePoll)
	return c
}

func (d *Dispatcher) dueDone(page *core.DuePage, c *Call) {
	if c.err != nil {
		if fenced(c.err) {
			d.rejoin()
			return
		}
		d.dueAt = d.now.Add(d.backoff(callDue))
		return
	}
	fresh := page.Moved > 0
	for i := range page.Retries {
		fresh = d.retried(&page.Retries[i]) || fresh
	}
	d.dueSeen = page.NextIn != 0 && !fresh
	if page.NextIn >= 0 {
		next := c.sent.Add(page.NextIn)
		if page.NextIn == 0 && !fresh {
			next = d.now.Add(dueAgain)
		}
		d.dueAt = earliest(d.dueAt, next)
	}
	if page.Moved > 0 {
		for _, rt := range d.routes {
			rt.readAt, rt.idle = d.now, 0
			rt.lookNext(d.now)
		}
	}
}

// retried takes in a retry that came due and is held.
func (d *Dispatcher) retried(rec *core.Record) (fresh bool) {
	rt := d.byName[rec.Route]
	if rt == nil || rt.known[rec.Seq] != nil || rt.recentDue[rec.Seq] {
		return false
	}
	if g := rt.groupOf(rec.Slot); g == nil || !g.loaded {
		return false
	}
	it := d.item(rt, rec)
	it.held, it.retry = true, true
	if !rt.ordered() || rec.Envelope.Key == "" {
		d.hand(it)
		return true
	}
	k := rt.key(rec.Envelope.Key, rec.Slot)
	it.key = k
	delete(k.holds, rec.Seq)
	k.insert(it)
	d.advance(k)
	return true
}
