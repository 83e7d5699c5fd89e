package dispatch

import (
	"cmp"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// The members divide the units without a leader. Each of them computes the same division from the same roster, and then
// does its own part: it takes the free units that fall to it, and gives up units that fall to others. Two members with
// different rosters can disagree for a moment. That is harmless, since a unit changes its owner only by a statement
// that names the former one. The division counts units, not records: all members see the same count.

// tally is what the shares are computed from.
type tally struct {
	members []*core.Member
	routes  []string // of all units, sorted
	load    map[core.Session]int
	counts  map[core.Session]map[string]int
	serves  map[core.Session]map[string]bool // true: it is able
}

// share computes which free units the member takes and which of its own it gives up, so that all members get the same
// result. A free unit goes to the able member with the fewest units for its handlers. A unit moves from one member to
// another that has at least two fewer: with a difference of one it would move back and forth for ever.
func (d *Dispatcher) share() {
	t := d.tally()
	for _, o := range d.peers.freeUnits() {
		to := t.least(o.Unit.Route)
		if to == nil {
			continue
		}
		t.add(to.Session, o.Unit.Route, 1)
		if to.Session == d.session && !d.self.stopping {
			d.peers.moves = append(d.peers.moves, core.Move{Unit: o.Unit, From: o.Owner, To: d.session})
			// Its owner has no row any more; see acquire.
			if o.Owner != 0 {
				d.peers.orphaned[o.Unit] = true
			}
		}
	}
	// Each step makes the division fairer, so that the steps end. The bound is for a mistake in that.
	for range 10_000 {
		from, to, route := t.next()
		if from == 0 {
			break
		}
		t.add(from, route, -1)
		t.add(to, route, 1)
		if from == d.session {
			d.leave(d.byName[route])
		}
	}
}

// leave chooses one unit of a route to give up: if possible one without items in memory, otherwise one without outcomes
// to store.
func (d *Dispatcher) leave(rt *route) {
	if rt == nil {
		return
	}
	units, busy := rt.sortedUnits(), rt.knownSlots()
	slices.Reverse(units)
	for _, fits := range []func(u *unit) bool{
		func(u *unit) bool { return busy&u.Slots() == 0 },
		func(u *unit) bool { return !u.tryAt.After(d.now) && len(d.settles.of(u)) == 0 },
		func(u *unit) bool { return !u.tryAt.After(d.now) },
	} {
		if at := slices.IndexFunc(units, func(u *unit) bool { return !u.leaving && fits(u) }); at >= 0 {
			units[at].leaving = true
			rt.leaving |= units[at].Slots()
			d.say(rt, units[at].Slots())
			return
		}
	}
}

// tally counts the units of each member, without units that are on their way to another member: each roster that still
// shows them here would make one more unit go. A member that is about to be removed gets none.
func (d *Dispatcher) tally() *tally {
	t := &tally{load: map[core.Session]int{}, counts: map[core.Session]map[string]int{}, serves: map[core.Session]map[string]bool{}}
	dead := map[core.Session]bool{}
	for _, r := range d.peers.removals {
		dead[r.Session] = true
	}
	for i := range d.peers.roster.Members {
		m := &d.peers.roster.Members[i]
		if dead[m.Session] || t.serves[m.Session] != nil {
			continue
		}
		t.members = append(t.members, m)
		t.counts[m.Session], t.serves[m.Session] = map[string]int{}, map[string]bool{}
		for _, s := range m.Serves {
			able := !s.Unable && (m.Free > 0 || m.Handlers == 0)
			if m.Session == d.session {
				able = !d.self.unable[s.Route] && !d.self.stopping && d.handlers.hasFree()
			}
			t.serves[m.Session][s.Route] = able
		}
	}
	slices.SortFunc(t.members, func(a, b *core.Member) int { return cmp.Compare(a.Session, b.Session) })
	for i := range d.peers.roster.Units {
		o := &d.peers.roster.Units[i]
		if t.counts[o.Owner] == nil {
			continue
		}
		if o.Owner == d.session {
			if rt := d.byName[o.Unit.Route]; rt != nil && rt.units[o.Unit] != nil && rt.units[o.Unit].leaving {
				continue
			}
		}
		t.add(o.Owner, o.Unit.Route, 1)
	}
	for i := range d.peers.roster.Units {
		if route := d.peers.roster.Units[i].Unit.Route; i == 0 || route != d.peers.roster.Units[i-1].Unit.Route {
			t.routes = append(t.routes, route)
		}
	}
	slices.Sort(t.routes)
	t.routes = slices.Compact(t.routes)
	return t
}

func (t *tally) add(s core.Session, route string, n int) {
	t.load[s] += n
	t.counts[s][route] += n
}

// fewer reports whether member a, with so many more units, has fewer units for each handler than b. It multiplies
// crosswise, so that all members get the same result, without rounding.
func (t *tally) fewer(a *core.Member, more int, b *core.Member, than int) bool {
	return (t.load[a.Session]+more)*max(b.Handlers, 1) < (t.load[b.Session]+than)*max(a.Handlers, 1)
}

// least returns the member that should get one more unit of a route, an able one if there is one.
func (t *tally) least(route string) (best *core.Member) {
	bestAble := false
	for _, m := range t.members {
		able, serves := t.serves[m.Session][route]
		if !serves || bestAble && !able {
			continue
		}
		if best == nil || able && !bestAble || t.fewer(m, 1, best, 1) {
			best, bestAble = m, able
		}
	}
	return best
}

// next returns a unit's move from one member to another that makes the shares fairer; from is 0 if they are fair. First
// the members that cannot serve a route lose its units to those that can. Then the member with the most units for its
// handlers gives to the one with the fewest.
func (t *tally) next() (from, to core.Session, route string) {
	for _, a := range t.members {
		for _, route := range t.routes {
			if t.counts[a.Session][route] == 0 || t.serves[a.Session][route] {
				continue
			}
			if b := t.least(route); b != nil && b != a && t.serves[b.Session][route] {
				return a.Session, b.Session, route
			}
		}
	}
	byLoad := slices.Clone(t.members)
	slices.SortStableFunc(byLoad, func(a, b *core.Member) int {
		return cmp.Compare(t.load[a.Session]*max(b.Handlers, 1), t.load[b.Session]*max(a.Handlers, 1))
	})
	for _, b := range byLoad {
		for _, a := range slices.Backward(byLoad) {
			// afterwards a must not have less than b
			if a == b || t.load[a.Session] == 0 || t.fewer(a, -1, b, 1) {
				continue
			}
			for _, route := range t.routes {
				if t.counts[a.Session][route] > 0 && t.serves[b.Session][route] {
					return a.Session, b.Session, route
				}
			}
		}
	}
	return 0, 0, ""
}
