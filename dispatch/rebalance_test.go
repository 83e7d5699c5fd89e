package dispatch

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
)

// me is the session of the member under test.
const me core.Session = 1

// joined returns a dispatcher that has just seen a membership, with four partitions of owner.
func joined(owner core.Session, members ...core.Member) *Dispatcher {
	d := New(Options{Routes: []Route{{Name: "r", Partitions: 4}}, Lease: time.Second})
	d.tick(epochStart)
	d.session, d.self.joined = me, true
	for i := range members {
		members[i].Routes = []core.ServedRoute{{Route: "r", InitialPartitions: 4}}
		members[i].FreeCapacity = members[i].Capacity
	}
	d.peers.membership = core.Membership{IsMember: true, Members: members}
	for _, u := range core.SplitPartitions("r", 4) {
		d.peers.membership.Partitions = append(d.peers.membership.Partitions, core.PartitionState{Partition: u, Owner: owner, Term: 1})
	}
	return d
}

// TestSharesFollowHandlers: a member with three times the handlers takes three times the partitions.
func TestSharesFollowHandlers(t *testing.T) { // DB-24
	t.Parallel()
	d := joined(0, core.Member{Session: me, Capacity: 3}, core.Member{Session: 2, Capacity: 1})
	if d.rebalance(); len(d.peers.transfers) != 3 {
		t.Errorf("it takes %d of 4 partitions", len(d.peers.transfers))
	}
}

// TestStoppingMemberTakesNothing: not even if no other member is there.
func TestStoppingMemberTakesNothing(t *testing.T) { // DB-24
	t.Parallel()
	d := joined(0, core.Member{Session: me, Capacity: 1})
	d.self.stopping = true
	if d.rebalance(); len(d.peers.transfers) != 0 {
		t.Errorf("it takes %d partitions", len(d.peers.transfers))
	}
}

// TestPartitionsOfWhoHasNoRow: the partitions of an owner without a row are free after a lease, not before, and taken
// with care.
func TestPartitionsOfWhoHasNoRow(t *testing.T) { // DB-24
	t.Parallel()
	const gone core.Session = 9
	d := joined(gone, core.Member{Session: me, Capacity: 1})
	d.observe(&Call{sent: epochStart})
	if d.rebalance(); len(d.peers.transfers) != 0 || !d.peers.heartbeatAt.Equal(epochStart.Add(time.Second)) {
		t.Fatalf("it takes %d partitions at once; it looks again at %s", len(d.peers.transfers), d.peers.heartbeatAt)
	}
	d.tick(epochStart.Add(time.Second))
	d.observe(&Call{sent: d.now})
	d.rebalance()
	if len(d.peers.transfers) != 4 || len(d.peers.orphaned) != 4 {
		t.Errorf("it takes %d partitions, %d with care", len(d.peers.transfers), len(d.peers.orphaned))
	}
	for _, m := range d.peers.transfers {
		if m.From != gone || m.To != me {
			t.Errorf("%+v", m)
		}
	}
}

// TestDeadAfterItsLease: a member that does not renew is dead after its lease: not before, not later, and another
// member looks then.
func TestDeadAfterItsLease(t *testing.T) { // DB-24
	t.Parallel()
	const lease = 3 * time.Second
	d := joined(2, core.Member{Session: me, Capacity: 1}, core.Member{Session: 2, Heartbeats: 5, Lease: lease, Capacity: 1})
	for _, after := range []time.Duration{0, time.Second, lease - time.Millisecond} {
		d.tick(epochStart.Add(after))
		d.peers.heartbeatAt = time.Time{}
		d.observe(&Call{sent: d.now})
		if len(d.peers.evictions) != 0 || after > 0 && !d.peers.heartbeatAt.Equal(epochStart.Add(lease)) {
			t.Fatalf("after %s: removes %v, looks again at %s", after, d.peers.evictions, d.peers.heartbeatAt)
		}
	}
	d.tick(epochStart.Add(lease))
	if d.observe(&Call{sent: d.now}); len(d.peers.evictions) != 1 || d.peers.evictions[0] != (core.Eviction{Session: 2, Heartbeats: 5}) {
		t.Errorf("removes %v", d.peers.evictions)
	}
}

// TestFreePartitionWaitsForItsOwner: another member cannot serve one of its routes, so that one of its partitions is to
// come here, and a free one of another route goes to that member. Until it looks, this member does not take the free
// one: it would release it in the same division, again and again.
func TestFreePartitionWaitsForItsOwner(t *testing.T) { // DB-24
	t.Parallel()
	owners := map[string][]core.Session{"blocking": {me, 3, 0}, "ordered": {me, 2, 3}, "stamped": {2, 2, 3}}
	opts, all := Options{Lease: time.Second}, core.Membership{IsMember: true}
	for _, s := range []core.Session{me, 2, 3} {
		all.Members = append(all.Members, core.Member{Session: s, Capacity: 1, FreeCapacity: 1})
	}
	for _, route := range slices.Sorted(maps.Keys(owners)) {
		opts.Routes = append(opts.Routes, Route{Name: route, Partitions: 3})
		for i := range all.Members {
			m := &all.Members[i]
			m.Routes = append(m.Routes, core.ServedRoute{Route: route, InitialPartitions: 3, Unavailable: route == "ordered" && m.Session == 2})
		}
		for i, u := range core.SplitPartitions(route, 3) {
			all.Partitions = append(all.Partitions, core.PartitionState{Partition: u, Owner: owners[route][i], Term: 1})
		}
	}
	d := New(opts)
	d.tick(epochStart)
	d.session, d.self.joined, d.peers.membership = me, true, all
	for i := range all.Partitions {
		if o := &all.Partitions[i]; o.Owner == me {
			d.acquire(d.byName[o.Partition.Route], o)
		}
	}
	d.rebalance()
	if len(d.peers.transfers) > 0 {
		t.Errorf("takes %v", d.peers.transfers)
	}
	for _, rt := range d.routes {
		if rt.releasing != 0 {
			t.Errorf("releases slots %x of %s", rt.releasing, rt.Name)
		}
	}
}

// town is members that share partitions. Each sees the present owners when it acts.
type town struct {
	rnd        *rand.Rand
	members    []*Dispatcher
	partitions []core.PartitionState
	taken      map[core.Partition]int // how often each was taken
}

// newTown makes members, routes and owners by chance. Some members cannot serve some routes now.
func newTown(rnd *rand.Rand) *town {
	w := &town{rnd: rnd, taken: map[core.Partition]int{}}
	members, routes, parts := 2+rnd.IntN(3), 1+rnd.IntN(3), 1+rnd.IntN(5)
	opts, all := Options{Lease: time.Second}, make([]core.Member, members)
	for i := range all {
		all[i] = core.Member{Session: core.Session(i + 1), Capacity: 1 + rnd.IntN(2), FreeCapacity: 1}
	}
	for r := range routes {
		name := fmt.Sprint("r", r)
		opts.Routes = append(opts.Routes, Route{Name: name, Partitions: parts})
		for i := range all {
			all[i].Routes = append(all[i].Routes, core.ServedRoute{Route: name, InitialPartitions: parts, Unavailable: i > 0 && rnd.IntN(4) == 0})
		}
		for _, u := range core.SplitPartitions(name, parts) {
			w.partitions = append(w.partitions, core.PartitionState{Partition: u, Owner: core.Session(rnd.IntN(members + 1)), Term: 1})
		}
	}
	for i := range all {
		d := New(opts)
		d.tick(epochStart)
		d.session, d.self.joined, d.peers.membership = all[i].Session, true, core.Membership{IsMember: true, Members: all, Partitions: w.partitions}
		for _, sv := range all[i].Routes {
			d.self.unavailable[sv.Route] = sv.Unavailable
		}
		for k := range w.partitions {
			if o := &w.partitions[k]; o.Owner == d.session {
				d.acquire(d.byName[o.Partition.Route], o)
			}
		}
		w.members = append(w.members, d)
	}
	return w
}

// act lets a member divide, take, and end some of its releases. It reports whether anything changed, or still will.
func (w *town) act(d *Dispatcher) (active bool) {
	d.peers.transfers = nil
	d.rebalance()
	takes := map[core.Partition]bool{}
	for _, tr := range d.peers.transfers {
		takes[tr.Partition] = true
	}
	for i := range w.partitions {
		o := &w.partitions[i]
		rt := d.byName[o.Partition.Route]
		u := rt.partitions[o.Partition]
		switch {
		case takes[o.Partition]:
			active = true
			w.taken[o.Partition]++
			o.Owner = d.session
			d.acquire(rt, o)
		case u != nil && u.releasing:
			if active = true; w.rnd.IntN(2) == 0 {
				o.Owner = 0
				rt.releasing &^= u.Slots()
				delete(rt.partitions, o.Partition)
			}
		}
	}
	return active
}

// TestDivisionRests: while the other members do nothing, this one takes and releases, and then it rests. It takes no
// partition twice: one that it gives to a member that has not looked does not come back.
func TestDivisionRests(t *testing.T) { // DB-24
	t.Parallel()
	for seed := range uint64(20_000) {
		w := newTown(rand.New(rand.NewPCG(seed, 1)))
		for quiet, rounds := 0, 0; quiet < 3; rounds++ {
			if quiet++; w.act(w.members[0]) {
				quiet = 0
			}
			if n := slices.Max(append(slices.Collect(maps.Values(w.taken)), 0)); n > 1 || rounds == 50 {
				t.Fatalf("seed %d: after %d memberships a partition was taken %d times", seed, rounds, n)
			}
		}
	}
}

// TestDivisionsMeet: members that act in any order come to rest with fair shares. No partition is left that a member is
// able to serve, and on the way a partition is taken three times at most.
func TestDivisionsMeet(t *testing.T) { // DB-24
	t.Parallel()
	for seed := range uint64(5_000) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		w := newTown(rnd)
		for quiet, rounds := 0, 0; quiet < 10*len(w.members); rounds++ {
			if quiet++; w.act(w.members[rnd.IntN(len(w.members))]) {
				quiet = 0
			}
			if n := slices.Max(append(slices.Collect(maps.Values(w.taken)), 0)); n > 3 || rounds == 1000 {
				t.Fatalf("seed %d: after %d memberships a partition was taken %d times", seed, rounds, n)
			}
		}
		for i := range w.partitions {
			o := &w.partitions[i]
			able := func(d *Dispatcher) bool { return !d.self.unavailable[o.Partition.Route] }
			if anyAble := slices.ContainsFunc(w.members, able); o.Owner == 0 || anyAble && !able(w.members[o.Owner-1]) {
				t.Fatalf("seed %d: %v belongs to %d in the end", seed, o.Partition, o.Owner)
			}
		}
		if takes, releases := w.members[0].divide(nil); len(takes)+len(releases) > 0 {
			t.Fatalf("seed %d: in the end %d partitions are to be taken, %d routes to be released", seed, len(takes), len(releases))
		}
	}
}

// TestHeartbeatIsBounded: one Heartbeat takes, moves and removes no more than a call can store, and all is done after
// some of them.
func TestHeartbeatIsBounded(t *testing.T) { // DB-24, DB-27
	t.Parallel()
	const routes, dead = 100, 250
	opts, all := Options{Lease: time.Second}, core.Membership{IsMember: true, Members: []core.Member{{Session: me, Capacity: 1, FreeCapacity: 1}}}
	for r := range routes {
		name := fmt.Sprint("r", r)
		opts.Routes = append(opts.Routes, Route{Name: name, Partitions: core.NumSlots})
		all.Members[0].Routes = append(all.Members[0].Routes, core.ServedRoute{Route: name, InitialPartitions: core.NumSlots})
		for i, u := range core.SplitPartitions(name, core.NumSlots) {
			all.Partitions = append(all.Partitions, core.PartitionState{Partition: u, Owner: core.Session(i%2) * 2, Term: 1})
		}
	}
	for i := range dead {
		all.Members = append(all.Members, core.Member{Session: core.Session(i + 2), Heartbeats: 1, Capacity: 1})
	}
	d := New(opts)
	d.tick(epochStart)
	d.session, d.self.joined, d.peers.membership = me, true, all
	d.observe(&Call{sent: d.now})
	d.tick(epochStart.Add(time.Second))
	calls := 0
	for ; ; calls++ {
		d.peers.evictions, d.peers.transfers = nil, nil
		d.observe(&Call{sent: d.now})
		d.rebalance()
		evicts, takes := d.peers.evictions, d.peers.transfers
		if len(evicts)+len(takes) == 0 {
			break
		}
		if len(evicts) > maxEvictions || len(takes) > maxTransfers {
			t.Fatalf("Heartbeat %d removes %d members and takes %d partitions", calls, len(evicts), len(takes))
		}
		if due := d.heartbeatDue(); due.After(d.now) {
			t.Errorf("Heartbeat %d is due in %s", calls, due.Sub(d.now))
		}
		d.peers.membership.Members = slices.DeleteFunc(d.peers.membership.Members, func(m core.Member) bool {
			return slices.ContainsFunc(evicts, func(e core.Eviction) bool { return e.Session == m.Session })
		})
		taken := map[core.Partition]bool{}
		for _, m := range takes {
			taken[m.Partition] = true
		}
		for i := range d.peers.membership.Partitions {
			if o := &d.peers.membership.Partitions[i]; taken[o.Partition] {
				o.Owner = me
			} else if d.peers.member(o.Owner) == nil {
				o.Owner = 0 // as the store does with those of a removed member
			}
		}
	}
	if n := len(d.peers.membership.Members); n != 1 {
		t.Errorf("%d members are left", n)
	}
	const seq = 100_000
	for i := range d.peers.membership.Partitions {
		d.acquire(d.byName[d.peers.membership.Partitions[i].Partition.Route], &d.peers.membership.Partitions[i])
	}
	for _, rt := range d.routes {
		rt.groups = []*group{{route: rt, slots: core.AllSlots, cursor: seq, stable: seq, floor: seq, loaded: true}}
		for s := range rt.uncertainUpTo {
			rt.uncertainUpTo[s] = seq
		}
	}
	if n, m := len(d.endUncertainty()), len(d.hints(true)); n != maxTransfers || m != maxTransfers {
		t.Errorf("a Heartbeat ends %d uncertainties and stores %d hints, want %d each", n, m, maxTransfers)
	}
	for _, rt := range d.routes {
		for _, u := range rt.partitions {
			u.readAfter = seq
		}
		d.notices.lowering = append(d.notices.lowering, core.Notice{Kind: core.NoticeReread, Route: rt.Name, Seq: seq / 2})
	}
	d.self.stopping = true
	for lowered, last := 0, false; !last; lowered += maxTransfers {
		c := d.heartbeat()
		o := c.op.(*heartbeatOp)
		last = lowered+maxTransfers >= routes*core.NumSlots
		if n, m := len(o.lowered), len(o.notices); n > maxTransfers || (m > 0) != last || d.self.renewNow == last {
			t.Fatalf("after %d hints a Heartbeat lowers %d and has done %d notices, the next is due: %v", lowered, n, m, d.self.renewNow)
		}
		if o.m.Leave != last {
			t.Fatalf("after %d hints the member leaves: %v", lowered, o.m.Leave)
		}
		d.storedLowered(o.lowered, nil)
		d.calls.end(c)
	}
	for i := range d.peers.membership.Partitions {
		if o := &d.peers.membership.Partitions[i]; o.Owner != me {
			t.Fatalf("after %d Heartbeats %v belongs to %d", calls, o.Partition, o.Owner)
		}
	}
}

// TestLoneSuspectWaits: a suspect that goes alone is not handed out while anything else is out.
func TestLoneSuspectWaits(t *testing.T) { // DB-04
	t.Parallel()
	d := joined(me, core.Member{Session: me, Capacity: 1})
	for out, want := range map[int]bool{0: true, 1: false} {
		d.work.out = out
		if got := d.mayGo(&Item{alone: true}, false); got != want {
			t.Errorf("beside %d others: %t", out, got)
		}
	}
}

// TestManyRoutesAndMembers: a thousand routes are shared by two hundred members, by one membership. The memory of a
// division is in proportion to members times routes, and it does not grow with the partitions that move. A division
// that walked over all routes at each step would not end here within a day.
func TestManyRoutesAndMembers(t *testing.T) { // nothing else may allocate meanwhile
	const routes, members = 1000, 200
	all := core.Membership{IsMember: true}
	for i := range members {
		m := core.Member{Session: core.Session(i + 1), Capacity: 1, FreeCapacity: 1}
		for r := range routes {
			if r > 0 || i%2 == 0 { // the others do not serve the first route
				m.Routes = append(m.Routes, core.ServedRoute{Route: fmt.Sprint("r", r), InitialPartitions: core.NumSlots})
			}
		}
		all.Members = append(all.Members, m)
	}
	for r := range routes {
		for _, u := range core.SplitPartitions(fmt.Sprint("r", r), core.NumSlots) {
			all.Partitions = append(all.Partitions, core.PartitionState{Partition: u, Owner: 2, Term: 1})
		}
	}
	newcomer := func(owner core.Session) *Dispatcher {
		d := New(Options{Lease: time.Second})
		d.tick(epochStart)
		d.session, d.self.joined, d.peers.membership = me, true, all
		d.peers.membership.Partitions = slices.Clone(all.Partitions)
		for i := range d.peers.membership.Partitions {
			d.peers.membership.Partitions[i].Owner = owner
		}
		return d
	}
	var before, after runtime.MemStats
	d := newcomer(2)
	runtime.ReadMemStats(&before)
	d.rebalance()
	runtime.ReadMemStats(&after)
	if n, most := after.TotalAlloc-before.TotalAlloc, uint64(10*members*routes); n > most {
		t.Errorf("a division takes %d bytes, want at most %d", n, most)
	}
	d = newcomer(0)
	d.rebalance()
	if n := len(d.peers.transfers); n != routes*core.NumSlots/members {
		t.Errorf("it takes %d of %d free partitions, and they are %d members", n, routes*core.NumSlots, members)
	}
	shares := d.tally(nil)
	for i := range d.peers.membership.Partitions { // those of one member
		shares.holders[1].add(shares.at[d.peers.membership.Partitions[i].Partition.Route], 1)
	}
	moves := 0
	move := func(from, to *holder, route int) {
		from.add(route, -1)
		to.add(route, 1)
		moves++
	}
	shares.moveUnserved(move)
	shares.level(move)
	for _, h := range shares.holders {
		if h.load != routes*core.NumSlots/members {
			t.Errorf("member %d has %d partitions of %d, after %d moves", h.session, h.load, routes*core.NumSlots, moves)
		}
		if slices.ContainsFunc(h.routes, func(r holding) bool { return r.partitions < 0 }) {
			t.Errorf("member %d gives partitions that it has not", h.session)
		}
	}
}

// TestReleasesAreChosenInPortions: a member that owns all partitions of many routes, and meets many new members, does
// not stop handing out of nearly all of them at once.
func TestReleasesAreChosenInPortions(t *testing.T) {
	t.Parallel()
	const routes, members = 100, 50
	opts, all := Options{}, core.Membership{IsMember: true}
	served := []core.ServedRoute{}
	for r := range routes {
		name := fmt.Sprint("r", r)
		opts.Routes = append(opts.Routes, Route{Name: name})
		served = append(served, core.ServedRoute{Route: name, InitialPartitions: core.NumSlots})
		for _, u := range core.SplitPartitions(name, core.NumSlots) {
			all.Partitions = append(all.Partitions, core.PartitionState{Partition: u, Owner: me, Term: 1})
		}
	}
	for i := range members {
		all.Members = append(all.Members, core.Member{Session: core.Session(i + 1), Capacity: 1, FreeCapacity: 1, Routes: served})
	}
	d := New(opts)
	d.tick(epochStart)
	d.session, d.self.joined, d.peers.membership = me, true, all
	for i := range all.Partitions {
		d.acquire(d.byName[all.Partitions[i].Partition.Route], &all.Partitions[i])
	}
	for portion := 1; portion <= 6; portion++ {
		d.rebalance()
		n := 0
		for _, rt := range d.routes {
			for _, u := range rt.partitions {
				if u.releasing {
					n++
				}
			}
		}
		if want := portion * maxReleasing; n != want {
			t.Errorf("after %d memberships %d partitions are to go, want %d", portion, n, want)
		}
	}
}
