package outboxtest

import (
	"errors"
	"sync/atomic"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var holdStatusChecks = []named{
	{"hold-repeats", holdRepeats},
	{"hold-answers-what-is-locked", holdAnswersWhatIsLocked},
	{"hold-answers-what-is-held", holdAnswersWhatIsHeld},
	{"hold-answers-what-is-gone", holdAnswersWhatIsGone},
	{"hold-keeps-to-own-partitions", holdKeepsToOwnPartitions},
	{"one-of-two-holders-wins", oneOfTwoHoldersWins},
}

// Without this a take whose answer was lost makes the engine wait for its own hold, or changes what it holds.
func holdRepeats(k *kit) {
	m := k.owner(1)
	rs := m.some(3, key("k"))
	for range 3 {
		for i, t := range m.hold(rs[2].Ref, rs[0].Ref) {
			k.failIf(t.Ref != []core.Ref{rs[2].Ref, rs[0].Ref}[i], "take answered not in the order of the refs")
		}
	}
	m.holder("after three takes", m.self.Session, rs[0].Ref, rs[2].Ref)
	m.holder("after takes of others", 0, rs[1].Ref)
	got := m.live(rs[0].Ref)
	k.failIf(got.Version != rs[0].Version || got.Attempts != 0 || got.Deliveries != 0,
		"a hold changed a record: version %d after %d, attempts %d, deliveries %d", got.Version, rs[0].Version, got.Attempts, got.Deliveries)
	m.settle(core.Published(&rs[0]))
}

// Without this an application that keeps one record locked stops a whole window, or the record is forgotten.
func holdAnswersWhatIsLocked(k *kit) {
	m := k.owner(1)
	rs := m.some(3, key("k"))
	unlock := k.lock(rs[1].ID)
	k.soon("a take", func() {
		for i, t := range m.sendHold(core.HoldRequest{Refs: refs(rs)}) {
			want := []core.HoldStatus{core.HoldGranted, core.HoldSkipped, core.HoldGranted}[i]
			k.failIf(t.Status != want, "the second of three records is locked, and number %d was answered with status %d, want %d", i, t.Status, want)
		}
		m.holder("a locked record was taken", 0, rs[1].Ref)
	})
	unlock()
	m.hold(refs(rs)...)
}

// Without this two members have one record out, or one waits for ever for a hold that was ended.
func holdAnswersWhatIsHeld(k *kit) {
	a, b := k.owner(2), k.join(2)
	rs := a.some(3, key("k"))
	partition := partitionOf(k.partitions(a.heartbeat()), rs[0].Slot)
	a.release(partition, 0, refs(rs[:2])...)
	b.takeOwnership(partition.Partition.Slots())
	for i, t := range b.sendHold(core.HoldRequest{Refs: refs(rs)}) {
		want := []core.HoldStatus{core.HoldSkipped, core.HoldSkipped, core.HoldGranted}[i]
		k.failIf(t.Status != want, "two of three records are held by another, and number %d was answered with status %d, want %d", i, t.Status, want)
	}
	a.holder("after a take of another", a.self.Session, rs[0].Ref, rs[1].Ref)
	a.settle(core.Release(&rs[0], 0, false))
	rs[0] = b.live(rs[0].Ref)
	b.hold(rs[0].Ref)
	a.heartbeat(leave)
	b.hold(refs(rs)...)
}

// partitionOf returns the partition of a slot.
func partitionOf(us []core.PartitionState, slot uint8) core.PartitionState {
	for _, u := range us {
		if u.Partition.Slots().Has(slot) {
			return u
		}
	}
	return core.PartitionState{}
}

// Without this a record that was cancelled, or changed, is published as it was read before.
func holdAnswersWhatIsGone(k *kit) {
	m := k.owner(1)
	rs := m.some(6, key("k"))
	asked := refs(rs)
	m.settle(core.Published(&rs[0]), core.Retry(&rs[1], errNo, far), core.Abandon(&rs[2], "", errNo))
	asked[3].Version--
	asked[4].ID = waybill.NewID()
	for i, t := range m.sendHold(core.HoldRequest{Refs: asked}) {
		want := i == 5
		k.failIf((t.Status == core.HoldGranted) != want || !want && t.Status != core.HoldGone,
			"a published, a failed and an abandoned record, another version, another id, and one that is still so were taken: number %d has status %d", i, t.Status)
	}
	m.holder("other versions and ids were taken", 0, rs[3].Ref, rs[4].Ref)
}

// Without this a member holds, and hands out, a record that the owner of the partition hands out.
func holdKeepsToOwnPartitions(k *kit) {
	a, b := k.halves()
	rs := a.find(k.stage(k.row(key(k.keyIn(low, 0))), k.row(key(k.keyIn(high, 0))), k.row(id(k.idIn(high))))...)
	ts, err := a.store.Hold(k.ctx, a.self.Session, core.HoldRequest{Refs: refs(rs)})
	k.failIf(err != nil && !errors.Is(err, core.ErrFenced), "take of a record of another's partition: %w", err)
	for i, t := range ts {
		k.failIf(i > 0 && t.Status == core.HoldGranted, "a member took a record of another's partition")
	}
	a.holder("a record of another's partition was taken", 0, rs[1].Ref, rs[2].Ref)
	a.hold(rs[0].Ref)
	b.hold(rs[1].Ref, rs[2].Ref)
}

// Without this a keyless record of a queue is handled by its owner and by another at once.
func oneOfTwoHoldersWins(k *kit) {
	m, other := k.owner(1), k.join(1)
	for range 20 {
		r := m.one()
		var won atomic.Int32
		suitetest.Parallel(2, func(i int) {
			if i == 0 && m.sendHold(core.HoldRequest{Refs: []core.Ref{r.Ref}})[0].Status == core.HoldGranted || i == 1 && len(other.next(1)) == 1 {
				won.Add(1)
			}
		})
		n := won.Load()
		k.failIf(n > 1, "two members took one record")
		m.settle(core.Published(&r))
	}
}
