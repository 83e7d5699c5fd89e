package outboxtest

import (
	"errors"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var evictChecks = []named{
	{"eviction-compares-heartbeats", evictionComparesHeartbeats},
	{"eviction-counts-crashes-of-holds", evictionCountsCrashesOfHolds},
	{"failed-attempt-ends-crashes", failedAttemptEndsCrashes},
	{"eviction-makes-partitions-uncertain", evictionMakesPartitionsUncertain},
	{"eviction-waits-for-no-lock", evictionWaitsForNoLock},
	{"member-removes-itself", memberRemovesItself},
	{"eviction-and-settle-exclude-each-other", evictionAndSettleExcludeEachOther},
	{"evicted-session-is-not-known", evictedSessionIsNotKnown},
	{"evicted-session-holds-nothing", evictedSessionHoldsNothing},
	{"evicted-session-brings-nothing-due", evictedSessionBringsNothingDue},
	{"evicted-session-releases-nothing", evictedSessionReleasesNothing},
	{"evicted-session-settles-nothing", evictedSessionSettlesNothing},
}

// Without this a member that renewed in the last moment is removed alive, and its records are published twice.
func evictionComparesHeartbeats(k *kit) {
	m, by := k.owner(2), k.join(2)
	old := *m
	m.self.Heartbeats++
	m.heartbeat()
	r := by.heartbeat(by.remove(&old))
	k.failIf(find(r, m.self.Session) == nil || k.slotsOf(r, m.self.Session) != core.AllSlots,
		"a member was removed, or lost partitions, by a removal with its former heartbeats")
	m.one()
	m.die(by)
}

// Without this a record that kills each process that publishes it is never found, or one that was only near is blamed.
func evictionCountsCrashesOfHolds(k *kit) {
	m, by := k.owner(2), k.join(2)
	rs := m.some(6, key("k"))
	m.hold(refs(rs[:4])...)
	m.settle(core.Release(&rs[3], 0, false))
	rs[3] = m.live(rs[3].Ref)
	by.heartbeat() // a renewal of another is no removal
	suitetest.Parallel(8, func(int) { by.heartbeat(by.remove(m)) })
	m.die(by)
	r := by.heartbeat()
	k.failIf(find(r, m.self.Session) != nil || k.slotsOf(r, m.self.Session) != 0,
		"a member was removed and is still there, or its partitions are not free")
	for i := range rs {
		want := 0
		if i < 3 {
			want = 1
		}
		got := by.live(rs[i].Ref)
		k.failIf(got.Crashes != want || got.HeldBy != 0 || got.Attempts != 0 || got.Version < rs[i].Version || want == 0 && got.Version != rs[i].Version,
			"its holder was removed (held: %v): crashes %d, holder %d, attempts %d, and version %d after %d; want %d crashes and no holder",
			i < 3, got.Crashes, got.HeldBy, got.Attempts, got.Version, rs[i].Version, want)
	}
	by.takeOwnership(core.AllSlots)
	by.hold(refs(by.find(ids(rs)...))...)
}

// Without this a record goes alone, and is abandoned at last, although none died of it since.
func failedAttemptEndsCrashes(k *kit) {
	m, by := k.owner(1), k.join(1)
	r := m.one(key("k"))
	m.hold(r.Ref)
	m.die(by)
	by.takeOwnership(core.AllSlots)
	r = by.live(r.Ref)
	by.settle(core.Retry(&r, errNo, 0))
	k.counted("a record failed after a crash", by.dueAll(1, 0)[0], 1, 0)
}

// Without this a new owner does not know which records the dead one can have had out, and a cancelled record can be
// delivered.
func evictionMakesPartitionsUncertain(k *kit) {
	m, by := k.join(4), k.join(4)
	m.takeOwnership(low)
	by.takeOwnership(high)
	rs := by.some(20)
	m.die(by)
	for _, u := range k.partitions(by.heartbeat()) {
		switch dead := u.Partition.To <= 32; {
		case dead && (u.Owner != 0 || u.MaybeOutUpTo < rs[19].Seq):
			k.fail("the partition of a removed member has the owner %d and MaybeOutUpTo %d, want 0 and at least %d", u.Owner, u.MaybeOutUpTo, rs[19].Seq)
		case !dead && (u.Owner != by.self.Session || u.MaybeOutUpTo != 0):
			k.fail("a removal changed the partition of another: owner %d, MaybeOutUpTo %d", u.Owner, u.MaybeOutUpTo)
		}
	}
}

// Without this an application that keeps a record locked keeps a dead member's partitions from being taken over.
func evictionWaitsForNoLock(k *kit) {
	m, by := k.owner(2), k.join(2)
	r := m.one()
	m.hold(r.Ref)
	unlock := k.lock(r.ID)
	k.soon("a removal", func() {
		by.self.Heartbeats++
		membership := by.heartbeat(by.remove(m))
		got := find(membership, by.self.Session)
		k.failIf(got == nil || got.Heartbeats != by.self.Heartbeats, "a removal met a lock, and the caller was not renewed")
	})
	unlock()
	m.die(by)
	k.counted("its holder was removed while it was locked", by.live(r.Ref), 0, 1)
	by.holder("its holder was removed while it was locked", 0, r.Ref)
}

// Without this the records that a member cannot end any more wait for its lease, or come back uncounted.
func memberRemovesItself(k *kit) {
	m, watch := k.owner(1), k.join(1)
	r := m.one()
	m.hold(r.Ref)
	former := *m
	former.self.Heartbeats--
	membership := m.heartbeat(m.remove(&former))
	k.failIf(!membership.IsMember, "a member removed itself with other heartbeats than its own, and is not known")
	m.self.Heartbeats++
	k.until("a member has removed itself", func() bool { return !m.heartbeat(m.remove(m)).IsMember })
	u := k.partitions(watch.heartbeat())[0]
	got := find(watch.heartbeat(), m.self.Session)
	k.failIf(got != nil || u.Owner != 0 || u.MaybeOutUpTo < r.Seq,
		"a member removed itself: it is %+v, and its partition has the owner %d and MaybeOutUpTo %d, want none, and at least %d", got, u.Owner, u.MaybeOutUpTo, r.Seq)
	k.counted("its holder removed itself", watch.live(r.Ref), 0, 1)
	watch.holder("its holder removed itself", 0, r.Ref)
}

// Without this an outcome of a removed member is answered as stored and is not, or is stored after its removal.
func evictionAndSettleExcludeEachOther(k *kit) {
	k.mustFence()
	by := k.join(1)
	for i := range 30 {
		m := k.owner(1)
		r := m.one(key("k"))
		m.hold(r.Ref)
		var err error
		suitetest.Parallel(2, func(j int) {
			if i%3 == j { // a head start for the other
				k.sleep(pause / 5)
			}
			if j == 0 {
				err = m.trySettle(core.Retry(&r, errNo, 0))[0]
			} else {
				m.die(by)
			}
		})
		by.takeOwnership(core.AllSlots)
		switch {
		case err == nil:
			k.counted("a member settled and was removed", by.dueAll(1, 0)[0], 1, 0)
		case errors.Is(err, core.ErrFenced), errors.Is(err, core.ErrLocked): // the removal had locked it
			k.counted("a member was removed and did not settle any more", by.live(r.Ref), 0, 1)
		default:
			k.fail("a member settled while it was removed: got %v, want nil, core.ErrFenced or core.ErrLocked", err)
		}
		by.settle(core.Published(&r))
		by.free(core.AllSlots)
	}
}

// dead returns a member that was removed, and records of a partition that it owned, as they are then. It held the first
// one.
func (k *kit) dead(n int) (m, by *member, rs []core.Record) {
	m, by = k.owner(1), k.join(1)
	rs = m.some(n)
	m.hold(rs[0].Ref)
	m.die(by)
	return m, by, by.find(ids(rs)...)
}

// Without this a member that was taken for dead reads on and hands out what its successor hands out.
func evictedSessionIsNotKnown(k *kit) {
	m, _, _ := k.dead(1)
	p, err := m.store.Read(k.ctx, m.self.Session, k.everything())
	k.must("read", err)
	k.failIf(p.IsMember, "a removed session reads and is said to be a member")
	r := m.heartbeat()
	k.failIf(r.IsMember || find(r, m.self.Session) != nil, "a removed session renews and is said to be a member")
}

// fenced fails unless err is core.ErrFenced.
func (k *kit) fenced(what string, err error) {
	k.failIf(!errors.Is(err, core.ErrFenced), "a removed session %s: got %v, want core.ErrFenced", what, err)
}

// Without this a removed member hands out records that their new owner hands out too.
func evictedSessionHoldsNothing(k *kit) {
	m, by, rs := k.dead(3)
	_, err := m.store.Hold(k.ctx, m.self.Session, core.HoldRequest{Refs: refs(rs)})
	k.fenced("takes records", err)
	_, err = m.store.Hold(k.ctx, m.self.Session, core.HoldRequest{KeylessSlots: k.all(), KeylessLimit: 3, Bytes: 1 << 20})
	k.fenced("takes the next records", err)
	by.holder("after a take of a removed session", 0, refs(rs)...)
}

// Without this a removed member retries what its successor retries.
func evictedSessionBringsNothingDue(k *kit) {
	m, by := k.owner(1), k.join(1)
	r := m.one(key("k"))
	m.settle(core.Retry(&r, errNo, 0))
	k.stage(k.row(delay(short)))
	m.die(by)
	k.sleep(2 * short)
	_, err := m.store.Due(k.ctx, m.self.Session, []core.RouteSlots{k.all()}, 10)
	k.fenced("asks for due records", err)
	by.takeOwnership(core.AllSlots)
	by.dueIs("a removed session asked for due records", 1, 1)
}

// Without this a removed member writes holds that no member ends, or frees the partition of its successor.
func evictedSessionReleasesNothing(k *kit) {
	m, by, rs := k.dead(2)
	partition := k.partitions(by.heartbeat())[0]
	for range 2 { // free, then the successor's
		_, err := m.tryRelease(partition, 99, rs[1].Ref)
		k.fenced("releases a partition", err)
		u := k.partitions(by.heartbeat())[0]
		k.failIf(u.ReadAfter == 99, "a removed session stored ReadAfter")
		by.holder("after a removed session released its partition", 0, refs(rs)...)
		by.takeOwnership(core.AllSlots)
	}
	k.failIf(k.slotsOf(by.heartbeat(), by.self.Session) != core.AllSlots, "a removed session freed the partition of its successor")
}

// Without this a removed member deletes or changes records that its successor has out.
func evictedSessionSettlesNothing(k *kit) {
	k.mustFence()
	for _, o := range every {
		m, by, rs := k.dead(2)
		for i := range rs {
			m.refused("by a removed session", core.ErrFenced, o(&rs[i]))
			by.untouched("a removed session settled it", 0, &rs[i])
		}
		by.takeOwnership(core.AllSlots)
		by.hold(refs(rs)...)
		m.refused("of a record that its successor holds", core.ErrFenced, o(&rs[0]))
		by.holder("after a settle of a removed session", by.self.Session, refs(rs)...)
		by.settle(core.Published(&rs[0]), core.Published(&rs[1]))
		by.heartbeat(leave)
	}
}
