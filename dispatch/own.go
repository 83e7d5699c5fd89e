package dispatch

import (
	"math"

	"github.com/waybill-go/waybill/core"
)

// The roster tells the owner of each unit, and a member owns a unit only from the moment when it has seen that: a Meet
// that takes a unit can lose its answer. A roster can be older than a give-up of this member, since both calls are
// under way at once. Then it still shows the unit here, and must not bring it back: wentAfter compares the times at
// which they were sent.

// own takes in which units the member owns. The units of a route that come together become one group. A unit that was
// given up and came back between two rosters has a greater term: its memory is of the former time, and goes. The next
// roster brings the unit.
func (d *Dispatcher) own(c *Call) {
	type part struct {
		slots core.Slots
		low   int64
	}
	fresh := map[*route]*part{}
	for i := range d.peers.roster.Units {
		o := &d.peers.roster.Units[i]
		rt := d.byName[o.Unit.Route]
		if rt == nil {
			continue
		}
		u, mine := rt.units[o.Unit], o.Owner == d.session
		switch {
		// it was given up, and came back
		case u != nil && mine && o.Term > u.term && !d.giving.wentAfter(o.Unit, c):
			d.drop(rt, o.Unit.Slots())
		case u == nil && mine && !d.giving.wentAfter(o.Unit, c): // else the roster is older than the give-up
			d.acquire(rt, o)
			p := fresh[rt]
			if p == nil {
				p = &part{low: o.Low}
				fresh[rt] = p
			}
			p.slots |= o.Unit.Slots()
			p.low = min(p.low, o.Low)
		case u != nil && !mine:
			d.drop(rt, o.Unit.Slots())
		}
	}
	for _, rt := range d.routes {
		if p := fresh[rt]; p != nil {
			d.addSlots(rt, p.slots, p.low)
		}
	}
}

// acquire notes that the member owns a unit now, and up to which number a dead owner may have had records out. Its
// windows begin small again, since these records come early among the suspects.
func (d *Dispatcher) acquire(rt *route, o *core.OwnedUnit) {
	rt.units[o.Unit] = &unit{Unit: o.Unit, route: rt, term: o.Term, low: o.Low}
	care := o.Careful
	// its owner vanished without a removal. A removal would have said how far to take care.
	if d.peers.orphaned[o.Unit] {
		care = math.MaxInt64
	}
	delete(d.giving.went, o.Unit)
	delete(d.peers.orphaned, o.Unit)
	if care > 0 {
		rt.holds.windows = 0
	}
	for s := o.Unit.From; s < o.Unit.To; s++ {
		rt.careful[s] = care
	}
}
