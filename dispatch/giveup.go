package dispatch

import (
	"cmp"
	"context"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// maxGiving is how many units are given up side by side: each is a transaction of its own.
const maxGiving = 8

// giveUps returns the calls that give units up. While they are under way nothing else of the member is, but Meet and
// what must be stored first.
func (d *Dispatcher) giveUps() (calls []*Call) {
	if len(d.giving) == 0 {
		d.giving, d.givingTill = d.toGive(maxGiving), d.now.Add(lockedAfter)
	}
	if len(d.giving) > 0 && !d.now.Before(d.givingTill) { // something takes its time: the others go on meanwhile
		for _, u := range slices.Clone(d.giving) {
			if !u.asked {
				d.gave(u)
				d.stay(u)
			}
		}
		return nil
	}
	if d.reading != nil || d.taking != nil || d.dueing != nil || d.settling != nil {
		return nil
	}
	for _, u := range d.giving {
		if !u.asked && len(d.pendingOf(u)) == 0 {
			calls = append(calls, d.giveUp(u))
		}
	}
	return calls
}

// gave ends a try to give a unit up.
func (d *Dispatcher) gave(u *unit) {
	u.asked = false
	d.giving = slices.DeleteFunc(d.giving, func(v *unit) bool { return v == u })
}

// giveUp returns the call that gives a unit up.
func (d *Dispatcher) giveUp(u *unit) *Call {
	rt := u.route
	var out []core.Ref
	for _, seq := range sortedSeqs(rt.known) {
		if it := rt.known[seq]; u.Slots().Has(it.Record.Slot) && it.state == itemOut {
			out = append(out, it.Record.Ref)
			it.held = true // whatever becomes of the answer: if it is handed back meanwhile, that must be stored
		}
	}
	owned := core.OwnedUnit{Unit: u.Unit, Owner: d.session, Term: u.term, Low: d.lowest(rt, u.Slots())}
	session := d.session
	done := false
	c := &Call{kind: callGiveUp}
	c.do = func(ctx context.Context, s core.OutboxStore) (err error) {
		done, err = s.GiveUp(ctx, session, owned, out)
		return err
	}
	c.done = func() {
		d.gave(u)
		u.unsure = u.unsure || c.err != nil // another answer says nothing about one that was lost
		switch {
		case fenced(c.err):
			d.meetAt = d.now
			d.drop(rt, u.Slots())
		case c.err != nil || !done:
			d.stay(u)
		default:
			d.drop(rt, u.Slots())
			d.gaveSome = true
		}
		if d.gaveSome && len(d.giving) == 0 && len(d.toGive(1)) == 0 { // others are told of all at once
			d.gaveSome, d.meetAt = false, d.now
		}
	}
	u.asked = true
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

// toGive returns up to limit units that are to be given up now.
func (d *Dispatcher) toGive(limit int) (units []*unit) {
	for _, rt := range d.routes {
		if rt.leaving == 0 {
			continue
		}
		from := len(units)
		for _, u := range rt.units {
			if u.leaving && !u.tryAt.After(d.now) {
				units = append(units, u)
			}
		}
		slices.SortFunc(units[from:], byFrom)
		if len(units) >= limit {
			return units[:limit]
		}
	}
	return units
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
	slices.SortFunc(units, byFrom)
	return units
}

func byFrom(a, b *unit) int { return cmp.Compare(a.From, b.From) }
