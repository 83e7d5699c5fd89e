package dispatch

import (
	"cmp"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// The members divide the partitions without a leader. Each of them computes the same division from the same membership,
// and then does its own part: it takes the free partitions that fall to it, and releases partitions that fall to
// others. Two members with different memberships can disagree for a moment. That is harmless, since a partition changes
// its owner only by a statement that names the former one. The division counts partitions, not records: all members see
// the same count.

// tally is the counts that a division is computed from.
type tally struct {
	members []*core.Member
	routes  []string // of all partitions, sorted
	load    map[core.Session]int
	counts  map[core.Session]map[string]int
	serves  map[core.Session]map[string]bool // true: it is able
}

// rebalance computes which free partitions the member takes and which of its own it releases, so that all members get
// the same result. A free partition goes to the able member with the fewest partitions for its handlers. A partition
// moves from one member to another that has at least two fewer: with a difference of one it would move back and forth
// for ever.
func (d *Dispatcher) rebalance() {
	t := d.tally()
	for _, o := range d.peers.freePartitions() {
		to := t.least(o.Partition.Route)
		if to == nil {
			continue
		}
		t.add(to.Session, o.Partition.Route, 1)
		if to.Session == d.session && !d.self.stopping {
			d.peers.transfers = append(d.peers.transfers, core.Transfer{Partition: o.Partition, From: o.Owner, To: d.session})
			// Its owner has no row any more; see acquire.
			if o.Owner != 0 {
				d.peers.orphaned[o.Partition] = true
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

// leave chooses one partition of a route to release: if possible one without items in memory, otherwise one without
// outcomes to store.
func (d *Dispatcher) leave(rt *route) {
	if rt == nil {
		return
	}
	partitions, busy := rt.sortedPartitions(), rt.knownSlots()
	slices.Reverse(partitions)
	for _, fits := range []func(u *partition) bool{
		func(u *partition) bool { return busy&u.Slots() == 0 },
		func(u *partition) bool { return !u.tryAt.After(d.now) && len(d.settles.of(u)) == 0 },
		func(u *partition) bool { return !u.tryAt.After(d.now) },
	} {
		if at := slices.IndexFunc(partitions, func(u *partition) bool { return !u.leaving && fits(u) }); at >= 0 {
			partitions[at].leaving = true
			rt.leaving |= partitions[at].Slots()
			d.reportUncertain(rt, partitions[at].Slots())
			return
		}
	}
}

// tally counts the partitions of each member, without partitions that are on their way to another member: each
// membership that still shows them here would make one more partition go. A member that is about to be removed gets
// none.
func (d *Dispatcher) tally() *tally {
	t := &tally{load: map[core.Session]int{}, counts: map[core.Session]map[string]int{}, serves: map[core.Session]map[string]bool{}}
	dead := map[core.Session]bool{}
	for _, r := range d.peers.evictions {
		dead[r.Session] = true
	}
	for i := range d.peers.membership.Members {
		m := &d.peers.membership.Members[i]
		if dead[m.Session] || t.serves[m.Session] != nil {
			continue
		}
		t.members = append(t.members, m)
		t.counts[m.Session], t.serves[m.Session] = map[string]int{}, map[string]bool{}
		for _, s := range m.Routes {
			able := !s.Unavailable && (m.FreeCapacity > 0 || m.Capacity == 0)
			if m.Session == d.session {
				able = !d.self.unavailable[s.Route] && !d.self.stopping && d.handlers.hasFree()
			}
			t.serves[m.Session][s.Route] = able
		}
	}
	slices.SortFunc(t.members, func(a, b *core.Member) int { return cmp.Compare(a.Session, b.Session) })
	for i := range d.peers.membership.Partitions {
		o := &d.peers.membership.Partitions[i]
		if t.counts[o.Owner] == nil {
			continue
		}
		if o.Owner == d.session {
			if rt := d.byName[o.Partition.Route]; rt != nil && rt.partitions[o.Partition] != nil && rt.partitions[o.Partition].leaving {
				continue
			}
		}
		t.add(o.Owner, o.Partition.Route, 1)
	}
	for i := range d.peers.membership.Partitions {
		if route := d.peers.membership.Partitions[i].Partition.Route; i == 0 || route != d.peers.membership.Partitions[i-1].Partition.Route {
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

// fewer reports whether member a, with so many more partitions, has fewer partitions for each handler than b. It
// multiplies crosswise, so that all members get the same result, without rounding.
func (t *tally) fewer(a *core.Member, more int, b *core.Member, than int) bool {
	return (t.load[a.Session]+more)*max(b.Capacity, 1) < (t.load[b.Session]+than)*max(a.Capacity, 1)
}

// least returns the member that should get one more partition of a route, an able one if there is one.
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

// next returns a partition's transfer from one member to another that makes the division fairer; from is 0 if they are
// fair. First the members that cannot serve a route lose its partitions to those that can. Then the member with the
// most partitions for its handlers gives to the one with the fewest.
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
		return cmp.Compare(t.load[a.Session]*max(b.Capacity, 1), t.load[b.Session]*max(a.Capacity, 1))
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
