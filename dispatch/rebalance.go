package dispatch

import (
	"cmp"
	"maps"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// The members divide the partitions without a leader. Each of them computes the same division from the same membership,
// and then does its own part: it takes the free partitions that fall to it, and releases partitions that fall to
// others. Two members with different memberships can disagree for a moment. That is harmless, since a partition changes
// its owner only by a statement that names the former one. The division counts partitions, not records: all members see
// the same count.

// maxReleasing bounds the partitions that a member chooses to release after one membership: they go eight at a time,
// and nothing of them is handed out meanwhile.
const maxReleasing = 1000

// maxTransfers and maxEvictions bound what one Heartbeat stores: a renewal that took longer than a call may take would
// never arrive. The next membership shows the rest, and the next Heartbeat follows at once.
const (
	maxTransfers = 1000 // of one kind: partitions to take, hints, ends of uncertainty
	maxEvictions = 100
)

// tally is what the shares are computed from. Each membership is divided anew, and there can be a thousand routes of 64
// partitions, and some hundred members. So a step compares members, and walks over no routes.
type tally struct {
	holders []*holder      // by session
	free    []free         // the partitions that are given to members, by route and slot
	routes  []string       // of all partitions, sorted
	at      map[string]int // the index of a route
	kinds   int            // how many sets of routes there are that members are able to serve
}

// holder is a member, and its partitions. The load of a member is the number of its partitions, of all routes, for each
// unit of capacity.
type holder struct {
	session  core.Session
	capacity int       // the member's handlers; 1 for a relay
	load     int       // partitions of all routes
	routes   []holding // by route
	kind     int       // the set of routes that it is able to serve
	gives    []int     // by kind of another member: the first route of which it can give a partition
}

// What holder.gives says beside a route.
const (
	givesNone    = -1
	givesUnknown = -2
)

// holding is how a member holds a route.
type holding struct {
	partitions   int8 // core.NumSlots at most
	free         int8 // those of them that were given to it by this division
	serves, able bool
}

// free is a partition without an owner, or one that this member releases.
type free struct {
	core.PartitionState
	route   int
	leaving bool    // it is released already: this member does not take it
	to      *holder // the member that it is given to; nil = nobody serves its route
}

// rebalance computes which free partitions the member takes and which of its own it releases, so that all members get
// the same result. A free partition goes to the able member with the fewest partitions for its handlers. A partition
// moves from one member to another that has at least two fewer: with a difference of one it would move back and forth
// for ever. The order:
//
//  1. Partitions that their owner cannot serve move first, since they are as good as their next owner's.
//  2. Free partitions are given, one by one, and with them those that this member releases already.
//  3. Partitions move until the loads are level. A member passes free ones on before it releases any.
//  4. This member takes the free ones that are its own now with the next Heartbeat, apart from those that it would
//     release once it had them.
//
// So a member rests while another one does not look: nothing comes and goes. TestDivisionRests and TestDivisionsMeet
// show it for members, routes and owners by chance.
func (d *Dispatcher) rebalance() {
	takes, releases := d.divide(nil)
	for _, u := range d.kept(takes) {
		if d.self.stopping || len(d.peers.transfers) == maxTransfers {
			break
		}
		d.peers.transfers = append(d.peers.transfers, core.Transfer{Partition: u.Partition, From: u.Owner, To: d.session})
		// Its owner has no row any more; see acquire.
		if u.Owner != 0 {
			d.peers.orphaned[u.Partition] = true
		}
	}
	left := maxReleasing
	for _, route := range slices.Sorted(maps.Keys(releases)) {
		for range min(releases[route], left) {
			d.releaseOne(d.byName[route])
			left--
		}
	}
}

// kept returns those of takes that this member would not release once it had them.
func (d *Dispatcher) kept(takes []core.PartitionState) []core.PartitionState {
	if len(takes) == 0 {
		return nil
	}
	taken := map[core.Partition]bool{}
	for i := range takes {
		taken[takes[i].Partition] = true
	}
	_, gives := d.divide(taken)
	return slices.DeleteFunc(takes, func(u core.PartitionState) bool {
		gives[u.Partition.Route]--
		return gives[u.Partition.Route] >= 0
	})
}

// divide returns the free partitions that fall to this member, and how many of its own of each route fall to others.
// taken are free ones that it has by then.
func (d *Dispatcher) divide(taken map[core.Partition]bool) (takes []core.PartitionState, releases map[string]int) {
	t := d.tally(taken)
	releases = map[string]int{}
	move := func(from, to *holder, route int) {
		if !t.passOn(from, to, route) && from.session == d.session {
			releases[t.routes[route]]++
		}
		from.add(route, -1)
		to.add(route, 1)
	}
	t.moveUnserved(move)
	for i := range t.free {
		f := &t.free[i]
		if f.to = t.least(f.route); f.to != nil {
			f.to.add(f.route, 1)
			f.to.routes[f.route].free++
		}
	}
	t.level(move)
	for i := range t.free {
		if f := &t.free[i]; !f.leaving && f.to != nil && f.to.session == d.session {
			takes = append(takes, f.PartitionState)
		}
	}
	return takes, releases
}

// passOn gives a free partition of a route that was given to one member to another one instead, if there is one.
func (t *tally) passOn(from, to *holder, route int) bool {
	if from.routes[route].free == 0 {
		return false
	}
	from.routes[route].free--
	to.routes[route].free++
	at, _ := slices.BinarySearchFunc(t.free, route, func(f free, route int) int { return cmp.Compare(f.route, route) })
	for t.free[at].to != from {
		at++
	}
	t.free[at].to = to
	return true
}

// releaseOne chooses one partition of a route to release: if possible one without items in memory, otherwise one
// without outcomes to store.
func (d *Dispatcher) releaseOne(rt *route) {
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
		if at := slices.IndexFunc(partitions, func(u *partition) bool { return !u.releasing && fits(u) }); at >= 0 {
			partitions[at].releasing = true
			rt.releasing |= partitions[at].Slots()
			d.reportUncertain(rt, partitions[at].Slots())
			return
		}
	}
}

// tally counts the partitions of each member, without those that are on their way to another member: they are given
// like free ones. At their old owner they would make one more partition go with each membership, and if they counted
// nowhere, their next owner would seem to need more. A member that is about to be removed gets none. The steps:
//
//  1. The routes, sorted, get indexes.
//  2. Each member becomes a holder, with the routes that it serves and those that it is able to serve now. Of itself
//     the member knows that better than its row says.
//  3. Holders that are able to serve the same routes are of one kind, so that "can give to" is looked up once for a
//     kind.
//  4. The partitions are counted at their owners, and the free ones are listed.
func (d *Dispatcher) tally(taken map[core.Partition]bool) *tally {
	t := &tally{at: map[string]int{}}
	partitions := d.peers.membership.Partitions
	for i := range partitions {
		if route := partitions[i].Partition.Route; i == 0 || route != partitions[i-1].Partition.Route {
			t.routes = append(t.routes, route)
		}
	}
	slices.Sort(t.routes)
	t.routes = slices.Compact(t.routes)
	for i, route := range t.routes {
		t.at[route] = i
	}
	holders, kinds := map[core.Session]*holder{}, map[string]int{}
	// A holder that is nil counts no partitions, and gets none.
	for i := range d.peers.evictions {
		holders[d.peers.evictions[i].Session] = nil
	}
	for i := range d.peers.membership.Members {
		m := &d.peers.membership.Members[i]
		if _, known := holders[m.Session]; known {
			continue
		}
		h := &holder{session: m.Session, capacity: max(m.Capacity, 1), routes: make([]holding, len(t.routes))}
		able := make([]byte, len(t.routes))
		holders[m.Session] = h
		t.holders = append(t.holders, h)
		for _, s := range m.Routes {
			route, ok := t.at[s.Route]
			if !ok {
				continue
			}
			is := !s.Unavailable && (m.FreeCapacity > 0 || m.Capacity == 0)
			if m.Session == d.session {
				is = !d.self.unavailable[s.Route] && !d.self.stopping && d.handlers.hasFree()
			}
			if h.routes[route].serves, h.routes[route].able = true, is; is {
				able[route] = 1
			}
		}
		kind, known := kinds[string(able)]
		if !known {
			kind = len(kinds)
			kinds[string(able)] = kind
		}
		h.kind = kind
	}
	t.kinds = len(kinds)
	for _, o := range d.peers.freePartitions() {
		if h := holders[d.session]; h != nil && taken[o.Partition] {
			h.add(t.at[o.Partition.Route], 1)
			continue
		}
		t.free = append(t.free, free{PartitionState: o, route: t.at[o.Partition.Route]})
	}
	slices.SortFunc(t.holders, func(a, b *holder) int { return cmp.Compare(a.session, b.session) })
	for i := range partitions {
		o := &partitions[i]
		h := holders[o.Owner]
		if h == nil {
			continue
		}
		if o.Owner == d.session {
			if rt := d.byName[o.Partition.Route]; rt != nil && rt.partitions[o.Partition] != nil && rt.partitions[o.Partition].releasing {
				t.free = append(t.free, free{PartitionState: *o, route: t.at[o.Partition.Route], leaving: true})
				continue
			}
		}
		h.add(t.at[o.Partition.Route], 1)
	}
	slices.SortFunc(t.free, func(a, b free) int {
		return cmp.Or(cmp.Compare(a.route, b.route), cmp.Compare(a.Partition.From, b.Partition.From))
	})
	return t
}

func (h *holder) add(route, n int) {
	h.load += n
	h.routes[route].partitions += int8(n)
	for i := range h.gives {
		h.gives[i] = givesUnknown
	}
}

// fewer reports whether member h, with so many more partitions, has fewer partitions for each handler than o. It
// multiplies crosswise, so that all members get the same result, without rounding.
func (h *holder) fewer(more int, o *holder, than int) bool {
	return (h.load+more)*o.capacity < (o.load+than)*h.capacity
}

// least returns the member that should get one more partition of a route, an able one if there is one.
func (t *tally) least(route int) (best *holder) {
	for _, h := range t.holders {
		r, bestAble := h.routes[route], best != nil && best.routes[route].able
		if !r.serves || bestAble && !r.able {
			continue
		}
		if best == nil || r.able && !bestAble || h.fewer(1, best, 1) {
			best = h
		}
	}
	return best
}

// moveUnserved moves the partitions of members that cannot serve a route to those that can.
func (t *tally) moveUnserved(move func(from, to *holder, route int)) {
	for _, h := range t.holders {
		for route := range t.routes {
			for h.routes[route].partitions > 0 && !h.routes[route].able {
				to := t.least(route)
				if to == nil || to == h || !to.routes[route].able {
					break
				}
				move(h, to, route)
			}
		}
	}
}

// level moves partitions from the members with the most for their handlers to those with the fewest, until the shares
// are fair. Each step makes the division fairer, so that the steps end: the sum of load²/capacity falls.
func (t *tally) level(move func(from, to *holder, route int)) {
	byLoad := slices.Clone(t.holders)
	for {
		from, to, route := t.unfair(byLoad)
		if from == nil {
			return
		}
		move(from, to, route)
	}
}

// unfair returns a move of a partition that makes the shares fairer; from is nil if they are fair.
func (t *tally) unfair(byLoad []*holder) (from, to *holder, route int) {
	slices.SortFunc(byLoad, func(a, b *holder) int {
		return cmp.Or(cmp.Compare(a.load*b.capacity, b.load*a.capacity), cmp.Compare(a.session, b.session))
	})
	for _, b := range byLoad {
		for _, a := range slices.Backward(byLoad) {
			// afterwards a must not have less than b
			if a == b || a.load == 0 || a.fewer(-1, b, 1) {
				continue
			}
			if route := t.given(a, b); route != givesNone {
				return a, b, route
			}
		}
	}
	return nil, nil, 0
}

// given returns the first route of which a can give b a partition, or givesNone.
func (t *tally) given(a, b *holder) int {
	if a.gives == nil {
		a.gives = slices.Repeat([]int{givesUnknown}, t.kinds)
	}
	if a.gives[b.kind] == givesUnknown {
		a.gives[b.kind] = givesNone
		for route := range a.routes {
			if a.routes[route].partitions > 0 && b.routes[route].able {
				a.gives[b.kind] = route
				break
			}
		}
	}
	return a.gives[b.kind]
}
