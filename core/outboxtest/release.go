package outboxtest

import (
	"errors"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var releaseChecks = []named{
	{"release-holds-what-is-out", releaseHoldsWhatIsOut},
	{"release-repeats", releaseRepeats},
	{"release-leaves-out-what-changed", releaseLeavesOutWhatChanged},
	{"release-ends-holds-of-other-versions", releaseEndsHoldsOfOtherVersions},
	{"release-passes-over-what-changed-and-is-locked", releasePassesOverWhatChangedAndIsLocked},
	{"release-of-locked-changes-nothing", releaseOfLockedChangesNothing},
	{"release-needs-the-owner", releaseNeedsTheOwner},
	{"released-holds-settle", releasedHoldsSettle},
	{"releases-run-at-once", releasesRunAtOnce},
	{"term-grows-with-each-owner", termGrowsWithEachOwner},
	{"earlier-release-changes-nothing", earlierReleaseChangesNothing},
	{"release-needs-its-term", releaseNeedsItsTerm},
	{"release-leaves-the-hold-of-another", releaseLeavesTheHoldOfAnother},
	{"hints-are-of-this-life", hintsAreOfThisLife},
}

// handover is a member with two partitions and records in both.
func (k *kit) handover() (m *member, partitions []core.PartitionState, low, high []core.Record) {
	m = k.owner(2)
	partitions = k.partitions(m.heartbeat())
	low = m.some(4, key(k.keyIn(partitions[0].Partition.Slots(), 0)))
	high = m.some(3, key(k.keyIn(partitions[1].Partition.Slots(), 0)))
	return m, partitions, low, high
}

// Without this the new owner publishes a record that is still out at the former one, or waits for one that is not.
func releaseHoldsWhatIsOut(k *kit) {
	m, us, low, high := k.handover()
	other := k.join(2)
	m.hold(low[0].Ref, low[2].Ref, high[0].Ref)
	m.release(us[0], 42, low[0].Ref, low[1].Ref)
	other.partitionIs("it was released", 0, 0, 42)
	other.partitionIs("another one was released", 1, m.self.Session, 0)
	other.holder("two are out, and the partition was released", m.self.Session, low[0].Ref, low[1].Ref, high[0].Ref)
	other.holder("it was held and is not out, and the partition was released", 0, low[2].Ref, low[3].Ref, high[1].Ref)
	r := other.live(low[0].Ref)
	k.failIf(r.Version != low[0].Version || r.Crashes != 0 || r.Attempts != 0,
		"a release changed a record: version %d after %d, crashes %d, attempts %d", r.Version, low[0].Version, r.Crashes, r.Attempts)
	other.takeOwnership(us[0].Partition.Slots())
	other.hold(low[2].Ref, low[3].Ref)
	m.release(us[1], 43)
	other.holder("nothing is out, and the partition was released", 0, refs(high)...)
	other.holder("another partition was released", m.self.Session, low[0].Ref, low[1].Ref)
}

// Without this a release whose answer was lost ends the member's session.
func releaseRepeats(k *kit) {
	m, us, low, _ := k.handover()
	for range 3 {
		m.release(us[0], 42, low[0].Ref)
	}
	m.partitionIs("it was released three times", 0, 0, 42)
	m.holder("it is out, and its partition was released three times", m.self.Session, low[0].Ref)
	m.holder("it is not out, and its partition was released three times", 0, refs(low[1:])...)
}

// Without this a settle that came first keeps a partition from being given up, or a hold is left on a settled record.
func releaseLeavesOutWhatChanged(k *kit) {
	m, us, low, high := k.handover()
	m.settle(core.Published(&low[0]), core.Retry(&low[1], errNo, far))
	stale := low[2].Ref
	stale.Version--
	m.release(us[0], 1, low[0].Ref, low[1].Ref, stale, low[3].Ref, high[0].Ref)
	other := k.join(2)
	other.holder("another version of it was out", 0, low[2].Ref)
	other.holder("it is of another partition", 0, high[0].Ref)
	other.holder("it is out", m.self.Session, low[3].Ref)
	p := other.read(core.ReadRequest{NewlyOwned: []core.RouteSlots{{Route: k.route, Slots: us[0].Partition.Slots()}}, BlockingLimit: 10})
	k.expectWaiting("a partition was released", p.Blocking,
		waits(&low[1], core.BlockedByRetry, 0, m.version(low[1].Ref)), waits(&low[3], core.BlockedByHold, m.self.Session, low[3].Version))
}

// Without this a member that is alive holds a record of another's partition that it does not have, and no member hands
// it out.
func releaseEndsHoldsOfOtherVersions(k *kit) {
	m, us, low, _ := k.handover()
	m.hold(low[0].Ref, low[1].Ref)
	stale := low[0].Ref
	stale.Version--
	m.release(us[0], 1, stale, low[1].Ref)
	m.holder("another version of it was out, and its partition was released", 0, low[0].Ref)
	m.holder("it is out", m.self.Session, low[1].Ref)
}

// Without this a transaction of the application keeps a partition from being given up whose records are not out.
func releasePassesOverWhatChangedAndIsLocked(k *kit) {
	m, us, low, _ := k.handover()
	stale := low[0].Ref
	stale.Version--
	unlock := k.lock(low[0].ID)
	k.soon("a release", func() {
		m.release(us[0], 1, stale, low[1].Ref)
		m.holder("it is out", m.self.Session, low[1].Ref)
	})
	unlock()
	m.holder("another version of it was out, and a transaction had locked it", 0, low[0].Ref)
}

// Without this a partition is free while a record of it is out, and no other member can see that.
func releaseOfLockedChangesNothing(k *kit) {
	m, us, low, _ := k.handover()
	m.hold(low[3].Ref)
	unlock := k.lock(low[1].ID)
	k.soon("a release", func() {
		ok, err := m.tryRelease(us[0], 42, refs(low[:3])...)
		k.must("release a partition with a locked record", err)
		k.failIf(ok, "a partition was released although one of its records is out and locked")
		m.partitionIs("a release answered false", 0, m.self.Session, 0)
		m.holder("a release answered false", 0, refs(low[:3])...)
		m.holder("a release answered false, and it was held before", m.self.Session, low[3].Ref)
	})
	unlock()
	m.release(us[0], 42, refs(low[:3])...)
	m.holder("it is out", m.self.Session, refs(low[:3])...)
	m.holder("it is not out", 0, low[3].Ref)
}

// Without this a member that is late frees the partition of its successor, or holds its records.
func releaseNeedsTheOwner(k *kit) {
	m, us, low, _ := k.handover()
	other := k.join(2)
	_, err := other.tryRelease(us[0], 42, low[0].Ref)
	k.failIf(!errors.Is(err, core.ErrFenced), "a member released a partition that is another's: got %v, want core.ErrFenced", err)
	m.partitionIs("a member released a partition that is another's", 0, m.self.Session, 0)
	m.holder("a member released a partition that is another's", 0, refs(low)...)
	m.release(us[0], 1)
	other.takeOwnership(us[0].Partition.Slots())
	_, _ = m.tryRelease(us[0], 42, low[0].Ref) // sent again, late
	m.partitionIs("a release came late", 0, other.self.Session, 1)
	m.holder("a release came late", 0, refs(low)...)
}

// Without this what was out while a partition was handed over is lost or published twice.
func releasedHoldsSettle(k *kit) {
	m, us, low, _ := k.handover()
	other := k.join(2)
	m.release(us[0], 1, refs(low)...)
	other.takeOwnership(us[0].Partition.Slots())
	m.settle(core.Published(&low[0]), core.Retry(&low[1], errNo, far), core.Release(&low[2], 0, false), core.Abandon(&low[3], "", errNo))
	other.gone("its former owner settled the records that it held", low[0].Ref, low[3].Ref)
	other.retrying(low[1].Ref)
	other.holder("its former owner released it", 0, low[2].Ref)
	other.hold(other.live(low[2].Ref).Ref)
}

// Without this a member that leaves keeps most of its partitions until its lease is over.
func releasesRunAtOnce(k *kit) {
	m, other := k.owner(8), k.join(8)
	us := k.partitions(m.heartbeat())
	var out, free []core.Ref
	for _, u := range us {
		rs := m.some(2, key(k.keyIn(u.Partition.Slots(), 0)))
		out, free = append(out, rs[0].Ref), append(free, rs[1].Ref)
	}
	m.hold(free...)
	suitetest.Parallel(len(us), func(i int) { m.release(us[i], int64(40+i), out[i]) })
	for i := range us {
		other.partitionIs("all partitions were released at once", i, 0, int64(40+i))
	}
	other.holder("it is out, and its partition was released beside others", m.self.Session, out...)
	other.holder("it is not out, and its partition was released beside others", 0, free...)
}

// Without this a release that comes late is taken for one of a later owner, or one in time for one that came before.
func termGrowsWithEachOwner(k *kit) {
	watch, m, other := k.join(1), k.join(1), k.join(1)
	partition := k.partitions(watch.heartbeat())[0].Partition
	last := int64(0)
	term := func(what string, grows bool) core.PartitionState {
		u := k.partitions(watch.heartbeat())[0]
		k.failIf(grows && u.Term <= last || !grows && u.Term != last, "%s: the partition's term is %d after %d", what, u.Term, last)
		last = u.Term
		return u
	}
	A, B := m.self.Session, other.self.Session
	move := func(from, to core.Session) {
		m.heartbeat(moves(core.Transfer{Partition: partition, From: from, To: to, ReadAfter: 1}))
	}
	term("the partition is new", true)
	move(0, A)
	term("a member took it", true)
	move(A, A)
	term("the owner stored ReadAfter", false)
	move(B, 0)
	term("a move said that another owns it", false)
	move(A, B)
	term("it was moved from one to another", true)
	move(B, 0)
	term("it was freed", true)
	move(0, A)
	m.release(term("a member took it again", true), 1)
	term("it was given up", true)
	m.takeOwnership(core.AllSlots)
	term("it was taken once more", true)
	m.heartbeat(leave)
	term("its owner left", true)
	other.takeOwnership(core.AllSlots)
	term("another took it", true)
	other.die(watch)
	term("its owner was removed", true)
}

// Without this a release that was sent again frees a partition that the same member has taken again since.
func earlierReleaseChangesNothing(k *kit) {
	m, us, low, _ := k.handover()
	m.release(us[0], 7)
	m.takeOwnership(us[0].Partition.Slots())
	m.hold(low[1].Ref)
	now := k.partitions(m.heartbeat())[0]
	for _, by := range []*member{m, k.join(2)} {
		ok, err := by.tryRelease(us[0], 42, low[0].Ref)
		k.failIf(err != nil || !ok, "a partition was released before, and taken again, and the release was sent again: got %v and %v, want true", ok, err)
		u := k.partitions(m.heartbeat())[0]
		k.failIf(u != now, "a release of an earlier term changed the partition from %+v to %+v", now, u)
		m.holder("a release of an earlier term named it", 0, low[0].Ref)
		m.holder("a release of an earlier term did not name it", m.self.Session, low[1].Ref)
	}
	m.release(now, 43, low[0].Ref)
	m.holder("it is out, and the partition was released", m.self.Session, low[0].Ref)
	m.holder("it is not out, and the partition was released", 0, low[1].Ref)
}

// Without this a member frees a partition although it does not know which of its records are out.
func releaseNeedsItsTerm(k *kit) {
	m, us, low, _ := k.handover()
	later := us[0]
	later.Term++
	_, err := m.tryRelease(later, 42, low[0].Ref)
	k.failIf(!errors.Is(err, core.ErrFenced), "a partition was released in a term that has not begun: got %v, want core.ErrFenced", err)
	u := k.partitions(m.heartbeat())[0]
	k.failIf(u != us[0], "a release of another term changed the partition from %+v to %+v", us[0], u)
	m.holder("a release of another term named it", 0, low[0].Ref)
}

// Without this a record that is out at the former owner of its partition is handed out again.
func releaseLeavesTheHoldOfAnother(k *kit) {
	m, us, low, _ := k.handover()
	other := k.join(2)
	m.release(us[0], 1, refs(low)...)
	other.takeOwnership(us[0].Partition.Slots())
	for i := range low {
		_ = other.trySettle(core.Release(&low[i], 0, i%2 == 0))
		other.untouched("the new owner of its partition released it", m.self.Session, &low[i])
	}
	m.settle(core.Retry(&low[0], errNo, far), core.Release(&low[1], 0, false), core.Published(&low[2]), core.Abandon(&low[3], "", errNo))
	other.retrying(low[0].Ref)
	other.released("the session that had it out released it", &low[1])
	other.gone("the session that had it out settled it", low[2].Ref, low[3].Ref)
}

// Without this the next owner passes over records that are there again after a standby was promoted that lacked the
// latest commits: a member that has read them before stores how far it has come.
func hintsAreOfThisLife(k *kit) {
	m := k.owner(1)
	epoch := m.heartbeat().StoreEpoch
	if epoch == "" {
		k.undeclared("an epoch of the database")
	}
	us := k.partitions(m.heartbeat())
	by := func(epoch string) func(x *core.HeartbeatRequest) {
		return func(x *core.HeartbeatRequest) { x.StoreEpoch = epoch }
	}
	for _, c := range []struct {
		epoch           string
		hint, want, out int64
	}{{epoch, 7, 7, 7}, {"another" + epoch, 9, 7, 7}, {"", 11, 11, 11}} {
		hint := core.Transfer{Partition: us[0].Partition, From: m.self.Session, To: m.self.Session, ReadAfter: c.hint, MaybeOutUpTo: c.hint}
		u := k.partitions(m.heartbeat(moves(hint), by(c.epoch)))[0]
		k.failIf(u.ReadAfter != c.want || u.MaybeOutUpTo != c.out || u.Owner != m.self.Session,
			"a member of epoch %q stored %d in epoch %q, and the partition has the owner %d, ReadAfter %d and MaybeOutUpTo %d, want %d, %d and %d",
			c.epoch, c.hint, epoch, u.Owner, u.ReadAfter, u.MaybeOutUpTo, m.self.Session, c.want, c.out)
	}
	for _, c := range []struct {
		epoch      string
		hint, want int64
	}{{"another" + epoch, 13, 11}, {epoch, 15, 15}} {
		u := k.partitions(m.heartbeat())[0]
		u.StoreEpoch = c.epoch
		m.release(u, c.hint)
		m.partitionIs("it was released", 0, 0, c.want)
		m.takeOwnership(core.AllSlots)
	}
}
