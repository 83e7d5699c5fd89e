package outboxtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// member is one member that a check plays.
type member struct {
	k     *kit
	store core.OutboxStore
	self  core.Member
}

// stranger returns a member that has not joined. Every second one uses the second store.
func (k *kit) stranger(partitions int) *member {
	m := &member{k: k, store: k.other(), self: core.Member{
		Session: core.Session(rand.Int64N(1<<62) + 1), Name: "outboxtest", Heartbeats: 1, Lease: 10 * time.Second,
		Routes: []core.ServedRoute{{Route: k.route, InitialPartitions: partitions}}, Capacity: 1, FreeCapacity: 1,
	}}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.members = append(k.members, m); len(k.members)%2 == 1 {
		m.store = k.store
	}
	return m
}

// join returns a member that has joined; it makes partitions if the route has none.
func (k *kit) join(partitions int) *member {
	m := k.stranger(partitions)
	r := m.join()
	k.failIf(!r.IsMember, "a member joined and the answer says that it is not known")
	return m
}

func (m *member) join() *core.Membership {
	return m.heartbeat(func(x *core.HeartbeatRequest) { x.Join = true })
}

// joinCrowd is join for one of many at once. A store may answer one that waited for long for the others with an outage,
// as a busy database does. An engine asks again then, and so does this.
func (m *member) joinCrowd() *core.Membership {
	for range 20 {
		r, err := m.store.Heartbeat(m.k.ctx, core.HeartbeatRequest{Self: m.self, Join: true})
		if err == nil || waybill.ClassOf(err) != waybill.ClassOutage {
			m.k.must("heartbeat", err)
			m.k.checkMembership(&r)
			return &r
		}
	}
	return m.join()
}

// owner returns a member that owns all of the route, in so many partitions.
func (k *kit) owner(partitions int) *member {
	m := k.join(partitions)
	m.takeOwnership(core.AllSlots)
	return m
}

// The lower and the upper half of the slots.
var low, high = core.SlotRange(0, 32), core.SlotRange(32, 64)

// halves returns two members, the owners of low and of high.
func (k *kit) halves() (lower, upper *member) {
	lower, upper = k.join(2), k.join(2)
	lower.takeOwnership(low)
	upper.takeOwnership(high)
	return lower, upper
}

// heartbeat renews m and checks what every answer must be like.
func (m *member) heartbeat(mods ...func(x *core.HeartbeatRequest)) *core.Membership {
	x := core.HeartbeatRequest{Self: m.self}
	for _, mod := range mods {
		mod(&x)
	}
	r, err := m.store.Heartbeat(m.k.ctx, x)
	m.k.must("heartbeat", err)
	m.k.checkMembership(&r)
	return &r
}

func moves(ms ...core.Transfer) func(x *core.HeartbeatRequest) {
	return func(x *core.HeartbeatRequest) { x.Transfers = append(x.Transfers, ms...) }
}

func (m *member) remove(dead *member) func(x *core.HeartbeatRequest) {
	return func(x *core.HeartbeatRequest) {
		x.Evict = append(x.Evict, core.Eviction{Session: dead.self.Session, Heartbeats: dead.self.Heartbeats})
	}
}

// flag flags m, if its presence is still the given one.
func (m *member) flag(presence int64) func(x *core.HeartbeatRequest) {
	return func(x *core.HeartbeatRequest) {
		x.Suspect = append(x.Suspect, core.Suspicion{Session: m.self.Session, Presence: presence})
	}
}

func leave(x *core.HeartbeatRequest) { x.Leave = true }

func (k *kit) checkMembership(r *core.Membership) {
	seen := map[core.Session]bool{}
	for i := range r.Members {
		s := r.Members[i].Session
		k.failIf(s == 0 || seen[s], "a membership has the session %d twice, or 0", s)
		seen[r.Members[i].Session] = true
	}
	k.partitions(r)
}

// partitions returns the partitions of the check's route, in order; they must cover it exactly once.
func (k *kit) partitions(r *core.Membership) []core.PartitionState {
	var own []core.PartitionState
	for _, u := range r.Partitions {
		if u.Partition.Route == k.route {
			own = append(own, u)
		}
	}
	slices.SortFunc(own, func(a, b core.PartitionState) int { return int(a.Partition.From) - int(b.Partition.From) })
	next := uint8(0)
	for _, u := range own {
		k.failIf(u.Partition.From != next || u.Partition.To <= u.Partition.From,
			"a partition has the slots [%d, %d), but the next one that no partition covers is %d", u.Partition.From, u.Partition.To, next)
		next = u.Partition.To
	}
	k.failIf(len(own) > 0 && next != core.NumSlots, "the partitions of a route cover the slots up to %d, want %d", next, core.NumSlots)
	return own
}

// look returns the membership as it is, without being in it.
func (k *kit) look() *core.Membership {
	r, err := k.store.Heartbeat(k.ctx, core.HeartbeatRequest{})
	k.must("look", err)
	k.checkMembership(&r)
	return &r
}

// transfer moves the partitions of p that are from's, and returns the slots of p that m owns then.
func (m *member) transfer(p core.RouteSlots, from, to core.Session) core.Slots {
	var ms []core.Transfer
	for _, u := range m.heartbeat().Partitions {
		if u.Partition.Route == p.Route && u.Owner == from && u.Partition.Slots()&^p.Slots == 0 {
			ms = append(ms, core.Transfer{Partition: u.Partition, From: from, To: to})
		}
	}
	return slotsOf(m.heartbeat(moves(ms...)), p.Route, m.self.Session) & p.Slots
}

// takeOwnership makes m the owner of all partitions within slots that are free. Then it must own all of the slots.
func (m *member) takeOwnership(slots core.Slots) { m.takeOwnershipOf(m.k.part(slots)) }

// takeOwnershipOf is takeOwnership on any route.
func (m *member) takeOwnershipOf(p core.RouteSlots) {
	got := m.transfer(p, 0, m.self.Session)
	m.k.failIf(got != p.Slots, "a member took free partitions of route %q and owns %d slots of them, want %d", p.Route, got.Len(), p.Slots.Len())
}

// free releases all partitions within slots by moves.
func (m *member) free(slots core.Slots) {
	got := m.transfer(m.k.part(slots), m.self.Session, 0)
	m.k.failIf(got != 0, "a member freed its partitions and owns %d slots of them", got.Len())
}

// slotsOf returns the slots of the check's route that s owns.
func (k *kit) slotsOf(r *core.Membership, s core.Session) core.Slots { return slotsOf(r, k.route, s) }

func slotsOf(r *core.Membership, route string, s core.Session) (slots core.Slots) {
	for _, u := range r.Partitions {
		if u.Partition.Route == route && u.Owner == s {
			slots |= u.Partition.Slots()
		}
	}
	return slots
}

// partitionIs fails unless the nth partition of the check's route has this owner and ReadAfter.
func (m *member) partitionIs(when string, n int, owner core.Session, readAfter int64) {
	u := m.k.partitions(m.heartbeat())[n]
	m.k.failIf(u.Owner != owner || u.ReadAfter != readAfter,
		"%s: a partition has the owner %d and ReadAfter %d, want %d and %d", when, u.Owner, u.ReadAfter, owner, readAfter)
}

// find returns a member of a membership, or nil.
func find(r *core.Membership, s core.Session) *core.Member {
	for i := range r.Members {
		if r.Members[i].Session == s {
			return &r.Members[i]
		}
	}
	return nil
}

// die has m removed by by, which must work soon: a removal may meet another statement's lock.
func (m *member) die(by *member) {
	m.k.until("a member that does not renew was removed", func() bool {
		return find(by.heartbeat(by.remove(m)), m.self.Session) == nil
	})
}

func (m *member) sendHold(w core.HoldRequest) []core.HoldResult {
	ts, err := m.store.Hold(m.k.ctx, m.self.Session, w)
	m.k.must("hold", err)
	m.k.failIf(len(w.Refs) > 0 && w.KeylessLimit == 0 && len(ts) != len(w.Refs), "take answered %d records for %d refs", len(ts), len(w.Refs))
	return ts
}

// hold takes refs, each of which must be held.
func (m *member) hold(refs ...core.Ref) []core.HoldResult {
	ts := m.sendHold(core.HoldRequest{Refs: refs})
	for i := range ts {
		m.k.failIf(ts[i].Status != core.HoldGranted, "take of record %d of %d answered status %d, want it held", i, len(refs), ts[i].Status)
	}
	return ts
}

// next takes the next n without a key.
func (m *member) next(n int, mods ...func(w *core.HoldRequest)) []core.HoldResult {
	w := core.HoldRequest{KeylessSlots: m.k.all(), KeylessLimit: n, Bytes: 1 << 20}
	for _, mod := range mods {
		mod(&w)
	}
	ts := m.sendHold(w)
	m.k.failIf(len(ts) > n, "take of the next %d answered %d", n, len(ts))
	for i := range ts {
		switch t := &ts[i]; {
		case t.Status != core.HoldGranted:
			m.k.fail("take of the next %d answered status %d", n, t.Status)
		case t.Record == nil || t.Record.Ref != t.Ref:
			m.k.fail("take of the next %d answered a record without its body, or another one's", n)
		case t.Record.Envelope.Key != "":
			m.k.fail("take of the next %d without a key answered one with the key %q", n, t.Record.Envelope.Key)
		}
	}
	return ts
}

// nextIs takes the next one without a key, which must be this one.
func (m *member) nextIs(id string) core.Record {
	ts := m.next(1)
	m.k.failIf(len(ts) != 1 || ts[0].Ref.ID != id, "one record is free, and %d were taken, or another one", len(ts))
	return *ts[0].Record
}

func (m *member) due(limit int) core.DueResult { return m.duePart(m.k.all(), limit) }

func (m *member) duePart(p core.RouteSlots, limit int) core.DueResult {
	d, err := m.store.Due(m.k.ctx, m.self.Session, []core.RouteSlots{p}, limit)
	m.k.must("due", err)
	m.k.failIf(len(d.Retries) > limit || d.TimersReady > limit,
		"due with the limit %d answered %d retries and moved %d timers", limit, len(d.Retries), d.TimersReady)
	for i := range d.Retries {
		m.k.failIf(d.Retries[i].HeldBy != m.self.Session, "due answered a retry that the caller does not hold")
	}
	return d
}

func (m *member) tryRelease(u core.PartitionState, low int64, out ...core.Ref) (bool, error) {
	u.ReadAfter = low
	return m.store.ReleasePartition(m.k.ctx, m.self.Session, u, out)
}

func (m *member) release(u core.PartitionState, low int64, out ...core.Ref) {
	ok, err := m.tryRelease(u, low, out...)
	m.k.must("release a partition", err)
	m.k.failIf(!ok, "a partition without locked records was not given up")
}

// trySettle persists outcomes and returns their results.
func (m *member) trySettle(os ...core.Outcome) core.Results {
	res := m.store.Settle(m.k.ctx, m.self.Session, os)
	m.k.failIf(len(res) != len(os), "settle returned %d results for %d outcomes", len(res), len(os))
	return res
}

// settle persists outcomes, which must all succeed.
func (m *member) settle(os ...core.Outcome) {
	res := m.trySettle(os...)
	for i := range os {
		m.k.must(fmt.Sprintf("settle outcome %d of %d (%s)", i, len(os), os[i].Event()), res[i])
	}
}

// refused settles o, which must be answered with want.
func (m *member) refused(why string, want error, o core.Outcome) {
	err := m.trySettle(o)[0]
	m.k.failIf(!errors.Is(err, want), "settle (%s) %s: got %v, want %v", o.Event(), why, err, want)
	class := waybill.ClassOf(err)
	m.k.failIf(class != waybill.ClassRejected,
		"settle (%s) %s: %v has the class %s, want rejected: build it with core.NewOutcomeError or core.NewFencedError", o.Event(), why, err, class)
}
