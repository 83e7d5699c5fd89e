package outboxtest

import (
	"errors"

	"github.com/waybill-go/waybill/core"
)

var termChecks = []named{
	{"term-grows-with-each-owner", termGrowsWithEachOwner},
	{"earlier-release-changes-nothing", earlierReleaseChangesNothing},
	{"release-needs-its-term", releaseNeedsItsTerm},
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
