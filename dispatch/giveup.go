package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// A member gives a unit up so that another can have it: the loads differ, or this member stops or cannot serve the
// route. The next owner must know which records are out here. So GiveUp holds these and frees the unit in one
// transaction. Until it is answered, nothing of the unit is handed out, and no call is under way that could change what
// is out. All outcomes of the unit are stored first. Units go eight at a time, since nothing is read meanwhile.

// maxGiving bounds the units that are given up at the same time: each needs its own transaction.
const maxGiving = 8

// giving knows the units that are being given up, and those that were.
type giving struct {
	*env
	units []*unit // under way
	until time.Time
	some  bool                    // some were given up, and others were not told yet
	went  map[core.Unit]time.Time // units that were given up, and when
}

func newGiving(e *env) giving { return giving{env: e, went: map[core.Unit]time.Time{}} }

// reset forgets the give-ups of a session that has ended.
func (g *giving) reset() {
	g.units = nil
	clear(g.went)
}

// busy reports whether units are being given up. Meanwhile only Meet begins, and the settles that must be stored first.
func (g *giving) busy() bool { return len(g.units) > 0 }

// patience returns until when the give-ups wait for other calls; zero = they do not.
func (g *giving) patience() time.Time {
	if g.busy() && g.now.Before(g.until) {
		return g.until
	}
	return time.Time{}
}

// ended ends a try to give a unit up.
func (g *giving) ended(u *unit) {
	u.asked = false
	g.units = slices.DeleteFunc(g.units, func(v *unit) bool { return v == u })
}

// wentAfter reports whether a unit was given up after c was sent.
func (g *giving) wentAfter(u core.Unit, c *Call) bool {
	at, ok := g.went[u]
	return ok && !c.sent.After(at)
}

// covers reports whether a give-up of the slot's unit may be under way. It would end the hold of a record that is
// handed out now.
func (g *giving) covers(rt *route, slot uint8) bool {
	if rt.leaving.Has(slot) {
		for _, u := range rt.units {
			if u.Slots().Has(slot) {
				return u.unsure || slices.Contains(g.units, u)
			}
		}
	}
	return false
}

// giveUps returns the calls that give units up.
func (d *Dispatcher) giveUps() (calls []*Call) {
	g := &d.giving
	if !g.busy() {
		g.units, g.until = d.toGive(maxGiving), d.now.Add(lockedAfter)
	}
	if g.busy() && !d.now.Before(g.until) { // something is slow: the others go on meanwhile
		for _, u := range slices.Clone(g.units) {
			if !u.asked {
				g.ended(u)
				u.stay(d.nextTry())
			}
		}
		return nil
	}
	if !d.calls.quiet() {
		return nil
	}
	for _, u := range g.units {
		if !u.asked && len(d.settles.of(u)) == 0 {
			calls = append(calls, d.giveUp(u))
		}
	}
	return calls
}

// giveUp returns the call that gives a unit up.
func (d *Dispatcher) giveUp(u *unit) *Call {
	rt := u.route
	var out []core.Ref
	for _, seq := range sortedSeqs(rt.known) {
		if item := rt.known[seq]; u.Slots().Has(item.Record.Slot) && item.state == itemOut {
			out = append(out, item.Record.Ref)
			// if the item is released meanwhile, that must be stored, for every answer
			item.held = true
		}
	}
	owned := core.OwnedUnit{Unit: u.Unit, Owner: d.session, Term: u.term, Low: rt.lows().of(u.Slots())}
	c := &Call{kind: callGiveUp, op: &giveUpOp{d: d, session: d.session, u: u, owned: owned, out: out}}
	u.asked = true
	return c
}

// gaveUp takes in whether a unit was given up. If not, something of it is locked. Its records are handed out again
// then.
func (d *Dispatcher) gaveUp(u *unit, done bool, c *Call) {
	d.giving.ended(u)
	u.unsure = u.unsure || c.err != nil // an answer says nothing about an earlier one that was lost
	switch {
	case fenced(c.err):
		d.peers.lookAt = d.now
		d.drop(u.route, u.Slots())
	case c.err != nil || !done:
		u.stay(d.nextTry())
	default:
		d.drop(u.route, u.Slots())
		d.giving.some = true
	}
	if d.giving.some && !d.giving.busy() && len(d.toGive(1)) == 0 { // others are told about all of them at once
		d.giving.some, d.peers.lookAt = false, d.now
	}
}

// nextTry returns when to try again to give up a unit.
func (d *Dispatcher) nextTry() time.Time {
	return d.now.Add(max(lockedAfter, d.calls.backoff(callGiveUp)))
}

// toGive returns up to limit units to give up now.
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

type giveUpOp struct {
	d       *Dispatcher
	session core.Session
	u       *unit
	owned   core.OwnedUnit
	out     []core.Ref
	gone    bool
}

func (o *giveUpOp) do(ctx context.Context, s core.OutboxStore) (err error) {
	o.gone, err = s.GiveUp(ctx, o.session, o.owned, o.out)
	return err
}
func (o *giveUpOp) done(c *Call) { o.d.gaveUp(o.u, o.gone, c) }
