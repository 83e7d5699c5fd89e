package dispatch

import (
	"cmp"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// unit is a unit of a route that the member owns.
type unit struct {
	core.Unit
	route   *route
	term    int64
	leaving bool      // to be given up
	asked   bool      // a give-up is under way
	unsure  bool      // the answer to a give-up was lost; the give-up may still be carried out
	tryAt   time.Time // not before
	low     int64     // the greatest hint that may be stored
}

// careful is the sequence up to which a dead member may have had records out; 0 = none.
func (u *unit) careful() (care int64) {
	for s := u.From; s < u.To; s++ {
		care = max(care, u.route.careful[s])
	}
	return care
}

// minds reports whether a control record of its route concerns the unit.
func (u *unit) minds(c *core.Control) bool {
	return c.Kind == core.ControlFrom || u.Slots().Has(c.Slot)
}

// hint returns a move that stores how far the member has come in the unit.
func (u *unit) hint(low int64) core.Move {
	self := u.route.session
	return core.Move{Unit: u.Unit, From: self, To: self, Low: low, Careful: u.careful()}
}

// stay ends the try to give up the unit, and allows another one later. Meanwhile another unit may be given up instead,
// unless an earlier try may still be carried out.
func (u *unit) stay(tryAt time.Time) {
	u.tryAt = tryAt
	if !u.unsure {
		u.leaving = false
		u.route.leaving &^= u.Slots()
	}
}

// hasLoaded reports whether all waiting records of a unit are known.
func (rt *route) hasLoaded(u *unit) bool {
	g := rt.groupOf(u.From)
	return g != nil && g.loaded
}

// giveUpDue returns when to give up the next unit; zero = none.
func (rt *route) giveUpDue() (at time.Time) {
	if rt.leaving == 0 {
		return at
	}
	for _, u := range rt.units {
		if u.leaving {
			at = earliest(at, u.tryAt)
		}
	}
	return at
}

// sortedUnits returns the units of a route, in order.
func (rt *route) sortedUnits() []*unit {
	units := make([]*unit, 0, len(rt.units))
	for _, u := range rt.units {
		units = append(units, u)
	}
	slices.SortFunc(units, byFrom)
	return units
}

func byFrom(a, b *unit) int { return cmp.Compare(a.From, b.From) }
