package dispatch

import (
	"cmp"
	"context"
	"slices"

	"github.com/waybill-go/waybill/core/outbox"
)

// giveUp returns the call that gives up a unit, or nil. While it is under way nothing else of the member is, but Meet.
func (d *Dispatcher) giveUp() *Call {
	u := d.giving
	if u == nil {
		if u = d.nextToGive(); u == nil {
			return nil
		}
		d.giving, d.givingTill = u, d.now.Add(lockedAfter)
	}
	if !d.now.Before(d.givingTill) && u.tryAt.Before(d.givingTill) { // something takes its time: the others go on meanwhile
		d.giving = nil
		d.stay(u)
		return nil
	}
	if d.reading != nil || d.taking != nil || d.dueing != nil || d.settling != nil || len(d.pendingOf(u)) > 0 || u.tryAt.After(d.now) {
		return nil
	}
	rt := u.route
	var out []outbox.Ref
	for _, seq := range sortedSeqs(rt.known) {
		if it := rt.known[seq]; u.Slots().Has(it.Record.Slot) && it.state == itemOut {
			out = append(out, it.Record.Ref)
		}
	}
	owned := outbox.Owned{Unit: u.Unit, Owner: d.session, Term: u.term, Low: d.lowest(rt, u.Slots())}
	session := d.session
	done := false
	c := &Call{kind: callGiveUp}
	c.do = func(ctx context.Context, s outbox.Store) (err error) {
		done, err = s.GiveUp(ctx, session, owned, out)
		return err
	}
	c.done = func() {
		u.unsure = c.err != nil
		switch {
		case fenced(c.err):
			d.giving = nil
			d.meetAt = d.now
			d.drop(rt, u.Slots())
		case c.err != nil || !done:
			d.giving = nil // others may go on meanwhile
			d.stay(u)
		default:
			d.giving = nil
			if d.nextToGive() == nil {
				d.meetAt = d.now
			}
			for _, ref := range out {
				if it := rt.known[ref.Seq]; it != nil {
					it.held = true
				}
			}
			d.drop(rt, u.Slots())
		}
	}
	u.tryAt = d.now.Add(d.opts.Lease) // not twice
	return c
}

// stay ends the try to give a unit up: something of it is locked. What it has is handed out on. Another unit may go
// instead, or this one later, unless an earlier try may still be carried out.
func (d *Dispatcher) stay(u *unit) {
	u.tryAt = d.now.Add(max(lockedAfter, d.backoff(callGiveUp)))
	if !u.unsure {
		u.leaving = false
		u.route.leaving &^= u.Slots()
	}
}

// nextToGive returns a unit that is to be given up now, or nil.
func (d *Dispatcher) nextToGive() *unit {
	for _, rt := range d.routes {
		if rt.leaving == 0 {
			continue
		}
		for _, u := range rt.sortedUnits() {
			if u.leaving && !u.tryAt.After(d.now) {
				return u
			}
		}
	}
	return nil
}

// pendingOf returns what is to be stored of a unit before it can be given up.
func (d *Dispatcher) pendingOf(u *unit) (items []*Item) {
	for _, it := range d.pending {
		if it.route == u.route && u.Slots().Has(it.Record.Slot) {
			items = append(items, it)
		}
	}
	return items
}

func (rt *route) sortedUnits() []*unit {
	units := make([]*unit, 0, len(rt.units))
	for _, u := range rt.units {
		units = append(units, u)
	}
	slices.SortFunc(units, func(a, b *unit) int { return cmp.Compare(a.From, b.From) })
	return units
}
