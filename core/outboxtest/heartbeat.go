package outboxtest

import (
	"reflect"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var heartbeatChecks = []named{
	{"join-makes-member-known", joinMakesMemberKnown},
	{"renewal-needs-a-member", renewalNeedsAMember},
	{"zero-session-only-looks", zeroSessionOnlyLooks},
	{"heartbeat-is-renewed", heartbeatIsRenewed},
	{"late-renewal-changes-nothing", lateRenewalChangesNothing},
	{"one-of-two-moves-wins", oneOfTwoMovesWins},
	{"heartbeat-repeats", heartbeatRepeats},
	{"partitions-are-made-once", partitionsAreMadeOnce},
	{"number-of-partitions-is-kept", numberOfPartitionsIsKept},
	{"moves-store-low-for-owner-only", movesStoreLowForOwnerOnly},
	{"late-move-stores-nothing", lateMoveStoresNothing},
	{"leave-frees-partitions", leaveFreesPartitions},
	{"served-again-keeps-low", servedAgainKeepsLow},
	{"suspicion-is-set-and-cleared", suspicionIsSetAndCleared},
	{"left-routes-lose-their-partitions", leftRoutesLoseTheirPartitions},
	{"dropped-routes-lose-their-partitions", droppedRoutesLoseTheirPartitions},
	{"leave-comes-last", leaveComesLast},
	{"moves-of-nobody-store-nothing", movesOfNobodyStoreNothing},
}

// Without this the others of a fleet do not see what a member serves and can do, and share the partitions out wrongly.
func joinMakesMemberKnown(k *kit) {
	m := k.stranger(4)
	m.self.Routes = append(m.self.Routes, core.ServedRoute{Route: k.route + "-2", InitialPartitions: 1, Unavailable: true, HandedOut: 3, OldestHandedOut: 90 * time.Second})
	m.self.Capacity, m.self.FreeCapacity, m.self.Presence = 7, 3, 5
	m.join()
	for _, r := range []*core.Membership{m.heartbeat(), k.look(), k.join(4).heartbeat()} {
		got := find(r, m.self.Session)
		k.failIf(got == nil, "a member joined and is not in the membership")
		mine := m.self
		k.failIf(!sameServing(got.Routes, mine.Routes), "a member serves %v, the membership says %v", mine.Routes, got.Routes)
		got.Routes, mine.Routes = nil, nil
		got.PresenceLost = false // no member has acquired that token
		k.failIf(!reflect.DeepEqual(*got, mine), "a member joined as %+v and the membership says %+v", mine, *got)
	}
}

// sameServing ignores the order, and the wish for partitions, which only counts when they are made.
func sameServing(a, b []core.ServedRoute) bool {
	name := func(s []core.ServedRoute) map[string]core.ServedRoute {
		out := map[string]core.ServedRoute{}
		for _, v := range s {
			v.InitialPartitions = 0
			out[v.Route] = v
		}
		return out
	}
	return len(a) == len(b) && reflect.DeepEqual(name(a), name(b))
}

// Without this a member that was removed comes back by a late renewal, and owns what others own too.
func renewalNeedsAMember(k *kit) {
	watch := k.join(2)
	m := k.stranger(2)
	partition := k.partitions(watch.heartbeat())[0].Partition
	r := m.heartbeat(moves(core.Transfer{Partition: partition, To: m.self.Session}))
	k.failIf(r.IsMember || find(r, m.self.Session) != nil, "a renewal without Join made a member")
	k.failIf(k.slotsOf(watch.heartbeat(), m.self.Session) != 0, "a session that is not a member took a partition")
}

// Without this a program that only looks, such as an inspector or an idle outbox, joins or changes who owns what.
func zeroSessionOnlyLooks(k *kit) {
	m := k.owner(2)
	other := k.join(2)
	partition := k.partitions(m.heartbeat())[0].Partition
	fresh := k.route + "-fresh"
	r, err := k.store.Heartbeat(k.ctx, core.HeartbeatRequest{
		Self: core.Member{Routes: []core.ServedRoute{{Route: fresh, InitialPartitions: 4}}}, Join: true,
		Evict:     []core.Eviction{{Session: other.self.Session, Heartbeats: other.self.Heartbeats}},
		Suspect:   []core.Suspicion{{Session: other.self.Session, Presence: other.self.Presence}},
		Transfers: []core.Transfer{{Partition: partition, From: m.self.Session}},
	})
	k.must("look", err)
	k.failIf(r.IsMember, "the zero session is said to be a member")
	now := k.look()
	k.failIf(find(now, m.self.Session) == nil || find(now, other.self.Session) == nil || find(now, other.self.Session).Suspected,
		"a look removed or flagged a member, or the membership does not show all")
	k.failIf(k.slotsOf(now, m.self.Session) != core.AllSlots, "a look moved a partition, or the membership does not show the owners")
	k.failIf(slices.ContainsFunc(now.Partitions, func(u core.PartitionState) bool { return u.Partition.Route == fresh }),
		"a look made partitions")
}

// Without this the others take a member that lives for dead, or do not see what it can still do.
func heartbeatIsRenewed(k *kit) {
	m, other := k.join(2), k.join(2)
	for heartbeats := int64(2); heartbeats < 5; heartbeats++ {
		m.self.Heartbeats, m.self.FreeCapacity, m.self.Routes[0].Unavailable = heartbeats, int(heartbeats)%2, heartbeats%2 == 0
		m.self.Routes[0].HandedOut, m.self.Routes[0].OldestHandedOut = int(heartbeats), time.Duration(heartbeats)*time.Millisecond
		m.self.Presence = heartbeats
		m.heartbeat()
		got := find(other.heartbeat(), m.self.Session)
		k.failIf(got == nil || got.Heartbeats != heartbeats || got.FreeCapacity != m.self.FreeCapacity || got.Presence != heartbeats || !sameServing(got.Routes, m.self.Routes),
			"a member renewed as %+v and the membership says %+v", m.self, got)
	}
}

// Without this a renewal that was sent again sets the heartbeats back, and its member is removed although it lives.
func lateRenewalChangesNothing(k *kit) {
	m, other := k.join(1), k.join(1)
	old := m.self
	m.self.Heartbeats, m.self.FreeCapacity = 3, 0
	m.heartbeat()
	m.heartbeat(func(x *core.HeartbeatRequest) { x.Self = old })
	got := find(other.heartbeat(), m.self.Session)
	k.failIf(got == nil || got.Heartbeats != 3 || got.FreeCapacity != 0, "an earlier renewal came after a later one, and the membership says %+v", got)
}

// Without this two members own one partition and both publish its records.
func oneOfTwoMovesWins(k *kit) {
	a, b := k.join(1), k.join(1)
	partition := k.partitions(a.heartbeat())[0].Partition
	for range 20 {
		var answers [2]core.Session
		suitetest.Parallel(2, func(i int) {
			m := []*member{a, b}[i]
			r := m.heartbeat(moves(core.Transfer{Partition: partition, To: m.self.Session}))
			answers[i] = k.partitions(r)[0].Owner
		})
		owner := k.partitions(k.look())[0].Owner
		k.failIf(answers[0] != owner || answers[1] != owner || owner != a.self.Session && owner != b.self.Session,
			"two members took one partition at once: one was told that it is session %d's, the other %d's, and it is %d's", answers[0], answers[1], owner)
		a.heartbeat(moves(core.Transfer{Partition: partition, From: owner}))
	}
}

// Without this a call that is sent again after a lost answer changes something a second time.
func heartbeatRepeats(k *kit) {
	a, b := k.join(4), k.join(4)
	us := k.partitions(a.heartbeat())
	ms := moves(core.Transfer{Partition: us[0].Partition, To: a.self.Session}, core.Transfer{Partition: us[1].Partition, To: b.self.Session})
	a.self.Heartbeats++
	join := func(x *core.HeartbeatRequest) { x.Join = true }
	first, second := a.heartbeat(join, ms), a.heartbeat(join, ms)
	k.failIf(!reflect.DeepEqual(k.mine(first, a, b), k.mine(second, a, b)) || !reflect.DeepEqual(k.partitions(first), k.partitions(second)),
		"a heartbeat that was sent twice was answered with %+v and %+v", first, second)
	us = k.partitions(second)
	k.failIf(us[0].Owner != a.self.Session || us[1].Owner != b.self.Session || us[2].Owner != 0,
		"moves to two members made the owners %d, %d and %d", us[0].Owner, us[1].Owner, us[2].Owner)
}

// mine is what a membership says about members of the check.
func (k *kit) mine(r *core.Membership, ms ...*member) (out []core.Member) {
	for _, m := range ms {
		if got := find(r, m.self.Session); got != nil {
			out = append(out, *got)
		}
	}
	return out
}

// Without this members that start together make partitions that overlap, and one slot has two owners.
func partitionsAreMadeOnce(k *kit) {
	const n = 16
	ms := make([]*member, n)
	for i := range ms {
		ms[i] = k.stranger(1 << (i % 7))
	}
	var made [n][]core.Partition
	suitetest.Parallel(n, func(i int) {
		for _, u := range k.partitions(ms[i].joinCrowd()) {
			made[i] = append(made[i], u.Partition)
		}
	})
	for i := range made {
		k.failIf(len(made[i]) == 0 || !slices.Equal(made[i], made[0]),
			"members that joined at once were told %d and %d partitions, or other ones", len(made[0]), len(made[i]))
	}
}

// Without this a member with other options splits partitions that have an owner.
func numberOfPartitionsIsKept(k *kit) {
	m := k.owner(4)
	us := k.partitions(m.heartbeat())
	k.failIf(len(us) != 4, "the first member wished 4 partitions, and %d were made", len(us))
	for _, wish := range []int{1, 64} {
		us := k.partitions(k.join(wish).heartbeat())
		k.failIf(len(us) != 4 || us[0].Owner != m.self.Session, "a member wished %d partitions of a route that has 4, and there are %d", wish, len(us))
	}
}

// Without this a member that is late overwrites where the new owner must begin, and records are passed over.
func movesStoreLowForOwnerOnly(k *kit) {
	a, b := k.join(1), k.join(1)
	partition := k.partitions(a.heartbeat())[0].Partition
	move := func(by *member, from, to core.Session, low, careful int64) core.PartitionState {
		r := by.heartbeat(moves(core.Transfer{Partition: partition, From: from, To: to, ReadAfter: low, MaybeOutUpTo: careful}))
		return k.partitions(r)[0]
	}
	expect := func(what string, got core.PartitionState, owner core.Session, low, careful int64) {
		got.Term = 0
		k.failIf(got != (core.PartitionState{Partition: partition, Owner: owner, ReadAfter: low, MaybeOutUpTo: careful}),
			"%s: the partition has owner %d, ReadAfter %d and MaybeOutUpTo %d, want %d, %d and %d", what, got.Owner, got.ReadAfter, got.MaybeOutUpTo, owner, low, careful)
	}
	A, B := a.self.Session, b.self.Session
	expect("a member took a free partition", move(a, 0, A, 3, 4), A, 0, 0)
	expect("the owner stored both", move(a, A, A, 10, 20), A, 10, 20)
	expect("another stored both", move(b, B, B, 11, 21), A, 10, 20)
	expect("another took it, with a wrong owner", move(b, 0, B, 12, 22), A, 10, 20)
	expect("the owner freed it", move(a, A, 0, 13, 23), 0, 10, 20)
	expect("another took it", move(b, 0, B, 14, 24), B, 10, 20)
	expect("the former owner stored both", move(a, A, A, 15, 25), B, 10, 20)
	expect("the new owner stored less", move(b, B, B, 5, 0), B, 5, 0)
}

// Without this a call that comes late raises ReadAfter above a record that was put back, and the next owner passes over
// it.
func lateMoveStoresNothing(k *kit) {
	m := k.owner(1)
	partition := k.partitions(m.heartbeat())[0].Partition
	for _, c := range []struct{ heartbeats, low, want int64 }{{5, 40, 40}, {6, 10, 10}, {5, 40, 10}, {6, 20, 20}} {
		m.self.Heartbeats = c.heartbeats
		r := m.heartbeat(moves(core.Transfer{Partition: partition, From: m.self.Session, To: m.self.Session, ReadAfter: c.low, MaybeOutUpTo: c.low}))
		u := k.partitions(r)[0]
		k.failIf(u.ReadAfter != c.want || u.MaybeOutUpTo != c.want,
			"a call of heartbeat %d stored %d, and the partition has ReadAfter %d and MaybeOutUpTo %d, want %d", c.heartbeats, c.low, u.ReadAfter, u.MaybeOutUpTo, c.want)
	}
}

// Without this a clean stop costs its records a crash, or leaves them without an owner until a lease is over.
func leaveFreesPartitions(k *kit) {
	watch := k.join(2)
	m := k.owner(2)
	us := k.partitions(m.heartbeat())
	m.heartbeat(moves(core.Transfer{Partition: us[0].Partition, From: m.self.Session, To: m.self.Session, ReadAfter: 1, MaybeOutUpTo: 2}))
	rs := m.some(2)
	m.hold(refs(rs)...)
	m.heartbeat(leave, moves(core.Transfer{Partition: us[0].Partition, From: m.self.Session, To: m.self.Session, ReadAfter: 9, MaybeOutUpTo: 2}))
	r := watch.heartbeat()
	k.failIf(find(r, m.self.Session) != nil, "a member left and is still in the membership")
	for i, u := range k.partitions(r) {
		k.failIf(u.Owner != 0 || i == 0 && u.MaybeOutUpTo != 2 || i == 1 && u.MaybeOutUpTo != 0,
			"a member left and its partition has the owner %d and MaybeOutUpTo %d", u.Owner, u.MaybeOutUpTo)
		k.failIf(i == 0 && u.ReadAfter != 9, "a member left, and its partition has ReadAfter %d, want 9, as it said", u.ReadAfter)
	}
	watch.takeOwnership(core.AllSlots)
	watch.holder("its holder left", 0, refs(rs)...)
	for i := range rs {
		got := watch.live(rs[i].Ref)
		k.failIf(got.Crashes != 0, "its holder left, and the record has %d crashes", got.Crashes)
	}
	watch.hold(refs(rs)...)
	p, err := m.store.Read(k.ctx, m.self.Session, k.everything())
	k.failIf(err != nil || p.IsMember, "a member that left reads on: known %v, %v", p.IsMember, err)
}

// Without this the first who serves a route again passes over its records, or takes for unsent what a dead one had out.
func servedAgainKeepsLow(k *kit) {
	m := k.owner(2)
	var said []core.Transfer
	for _, u := range k.partitions(m.heartbeat()) {
		said = append(said, core.Transfer{Partition: u.Partition, From: m.self.Session, To: m.self.Session, ReadAfter: 40, MaybeOutUpTo: 8})
	}
	m.heartbeat(leave, moves(said...))
	for _, u := range k.partitions(k.join(2).heartbeat()) {
		k.failIf(u.ReadAfter > 40 || u.MaybeOutUpTo < 8,
			"its last member left, and the route has a partition with ReadAfter %d and MaybeOutUpTo %d, want at most 40, and at least 8", u.ReadAfter, u.MaybeOutUpTo)
	}
}

// Without this a member whose connection broke is not warned, or never starts again.
func suspicionIsSetAndCleared(k *kit) {
	a, b := k.stranger(1), k.join(1)
	a.self.Presence = 1
	a.join()
	flagged := func(want bool, when string) {
		mine, other := a.heartbeat(), b.heartbeat()
		result := a.read(k.everything())
		x, y := find(mine, a.self.Session), find(other, a.self.Session)
		k.failIf(x == nil || y == nil || x.Suspected != want || y.Suspected != want || result.Suspected != want,
			"%s: the flag is not %v in its own membership, in another's, and in a page (%v)", when, want, result.Suspected)
	}
	flagged(false, "after joining")
	b.heartbeat(a.flag(1))
	flagged(true, "after another set it")
	a.self.Heartbeats++
	flagged(true, "after a renewal with the same presence")
	a.self.Heartbeats, a.self.Presence = a.self.Heartbeats+1, 2
	flagged(false, "after a renewal with a new presence")
	b.heartbeat(a.flag(2))
	flagged(true, "after another set it again")
	a.self.Heartbeats, a.self.Presence = a.self.Heartbeats+1, 0
	flagged(false, "after a renewal without presence")
	result := b.read(k.everything())
	k.failIf(result.Suspected, "a member has the flag that another one set for a third")
}

// unserved fails unless the check's route has no partitions.
func (k *kit) unserved(when string) {
	us := k.partitions(k.look())
	k.failIf(len(us) > 0, "%s: the route still has %d partitions", when, len(us))
}

// Without this the partitions of a route whose last process is gone stay for ever.
func leftRoutesLoseTheirPartitions(k *kit) {
	m := k.owner(2)
	k.stage(k.row())
	partitions := k.partitions(m.heartbeat())
	m.heartbeat(leave)
	k.unserved("its last member has left")
	for _, u := range k.partitions(k.join(1).heartbeat()) {
		k.failIf(u.Owner != 0 || u.Term <= partitions[0].Term,
			"a route is served again: a partition has the owner %d and the term %d, want 0, and more than the %d of before", u.Owner, u.Term, partitions[0].Term)
	}
}

// Without this the partitions of a route that a living process no longer serves stay for ever.
func droppedRoutesLoseTheirPartitions(k *kit) {
	m := k.owner(2)
	k.stage(k.row())
	m.heartbeat(moves(core.Transfer{Partition: k.partitions(m.heartbeat())[0].Partition, From: m.self.Session, To: m.self.Session, ReadAfter: 40, MaybeOutUpTo: 8}))
	m.self.Heartbeats++
	m.self.Routes = []core.ServedRoute{{Route: k.route + "-other", InitialPartitions: 1}}
	us := k.partitions(m.heartbeat())
	k.failIf(len(us) == 0, "a route has no partitions, and a member owned them")
	for _, u := range k.partitions(m.heartbeat()) {
		m.release(u, 40)
	}
	m.self.Heartbeats++
	m.heartbeat()
	k.unserved("its last member serves another one")
	for _, u := range k.partitions(k.join(1).heartbeat()) {
		k.failIf(u.ReadAfter > 40 || u.MaybeOutUpTo < 8,
			"a route is served again: a partition has ReadAfter %d and MaybeOutUpTo %d, want at most 40, and at least 8", u.ReadAfter, u.MaybeOutUpTo)
	}
}

// Without this a dead member that the leaving one has noticed keeps its partitions until others notice, too.
func leaveComesLast(k *kit) {
	m, dead := k.join(2), k.join(2)
	dead.takeOwnership(low)
	m.takeOwnership(high)
	by := k.join(2)
	partition := k.partitions(m.heartbeat())[1].Partition
	r := m.heartbeat(leave, m.remove(dead), moves(core.Transfer{Partition: partition, From: m.self.Session, To: by.self.Session}))
	k.failIf(r.IsMember || find(r, m.self.Session) != nil, "a member left, and is still in the membership")
	k.failIf(find(r, dead.self.Session) != nil, "a member removed another one and left in one heartbeat, and the other one is still in the membership")
	us := k.partitions(by.heartbeat())
	k.failIf(us[0].Owner != 0 || us[1].Owner != by.self.Session,
		"a member removed another one, gave a partition away and left: the partitions have the owners %d and %d, want 0 and %d", us[0].Owner, us[1].Owner, by.self.Session)
}

// Without this a member hides records that a dead one can have had out, in a partition without an owner.
func movesOfNobodyStoreNothing(k *kit) {
	m := k.join(1)
	was := k.partitions(m.heartbeat())[0]
	got := k.partitions(m.heartbeat(moves(core.Transfer{Partition: was.Partition, ReadAfter: was.ReadAfter + 40, MaybeOutUpTo: was.MaybeOutUpTo + 8})))[0]
	k.failIf(got != was, "a move from session 0 to session 0 changed a partition from %+v to %+v", was, got)
}
