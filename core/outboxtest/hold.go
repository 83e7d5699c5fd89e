package outboxtest

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var holdChecks = []named{
	{"holders-never-share", holdersNeverShare},
	{"next-is-in-order-without-keys", nextIsInOrderWithoutKeys},
	{"next-begins-with-own-holds", nextBeginsWithOwnHolds},
	{"next-leaves-out-what-is-held", nextLeavesOutWhatIsHeld},
	{"next-keeps-to-its-bytes", nextKeepsToItsBytes},
	{"next-says-what-it-passed", nextSaysWhatItPassed},
	{"deliveries-count-once", deliveriesCountOnce},
	{"hold-repeats", holdRepeats},
	{"hold-answers-what-is-locked", holdAnswersWhatIsLocked},
	{"hold-answers-what-is-held", holdAnswersWhatIsHeld},
	{"hold-answers-what-is-gone", holdAnswersWhatIsGone},
	{"hold-keeps-to-own-partitions", holdKeepsToOwnPartitions},
	{"one-of-two-holders-wins", oneOfTwoHoldersWins},
}

// Without this two processes handle one message at the same time, or none does.
func holdersNeverShare(k *kit) {
	const takers, n = 16, 200
	ms := make([]*member, takers)
	for i := range ms {
		ms[i] = k.join(4)
	}
	ms[0].takeOwnership(core.AllSlots) // whoever owns the slots
	want := k.stage(k.rows(n)...)
	var mu sync.Mutex
	var got []string
	suitetest.Parallel(takers, func(i int) {
		var out []core.Ref
		for misses := 0; misses < 5; {
			ts := ms[i].next(3, func(w *core.HoldRequest) { w.ExcludeRefs = out })
			if len(ts) == 0 {
				misses++
				k.sleep(pause)
				continue
			}
			out = append(out, heldRefs(ts)...)
			mu.Lock()
			for _, t := range ts {
				got = append(got, t.Ref.ID)
			}
			mu.Unlock()
		}
	})
	slices.Sort(got)
	twice := len(got) - len(slices.Compact(slices.Clone(got)))
	k.failIf(twice > 0, "%d of %d records were taken by two at once", twice, n)
	slices.Sort(want)
	k.failIf(!slices.Equal(got, want), "%d of %d records were taken", len(got), n)
}

// Without this old messages of a queue starve, or one with a key is handled beside an earlier one of its key.
func nextIsInOrderWithoutKeys(k *kit) {
	m := k.owner(1)
	var rows []core.StagedRow
	for i := range 12 {
		rows = append(rows, k.row(key([]string{"", "k"}[i%2])))
	}
	all := k.stage(rows...)
	k.stage(k.row(delay(far)))
	want := []string{all[0], all[2], all[4], all[6], all[8], all[10]}
	got := m.next(4)
	got = append(got, m.next(10, func(w *core.HoldRequest) { w.ExcludeRefs = heldRefs(got) })...)
	k.same("taken, in 4 and the rest, of 12 records of which every second has a key", heldIDs(got), want, all)
	for i := range got {
		r := got[i].Record
		k.failIf(r.Slot != core.SlotOf(k.route, "", r.ID) || string(r.Envelope.Body) != "body",
			"a record was taken with slot %d and %d bytes", r.Slot, len(r.Envelope.Body))
	}
	m.holder("after a take", m.self.Session, heldRefs(got)...)
}

func heldIDs(ts []core.HoldResult) []string {
	return suitetest.Each(ts, func(t *core.HoldResult) string { return t.Ref.ID })
}

// Without this a take whose answer was lost leaves records held that no member handles.
func nextBeginsWithOwnHolds(k *kit) {
	m := k.owner(1)
	all := k.stage(k.rows(8)...)
	first := m.next(3)
	again := m.next(3)
	k.same("the next three", heldIDs(first), all[:3], all)
	k.same("the next three, asked for a second time", heldIDs(again), all[:3], all)
	out := []core.Ref{first[0].Ref, first[2].Ref}
	third := m.next(3, func(w *core.HoldRequest) { w.ExcludeRefs = out })
	k.same("the next three, the first three are held and the second is not out", heldIDs(third), []string{all[1], all[3], all[4]}, all)
}

// Without this a message is handled twice at once, or a locked one stops all behind it.
func nextLeavesOutWhatIsHeld(k *kit) {
	m, other := k.owner(1), k.join(1)
	rs := m.some(6)
	other.next(2)
	m.hold(rs[2].Ref)
	got := m.next(2, func(w *core.HoldRequest) { w.ExcludeRefs = refs(rs[2:3]) })
	k.same("the next two, two are held by another and one is out", heldIDs(got), ids(rs[3:5]), ids(rs))
	ts := k.join(1).next(10, func(w *core.HoldRequest) { w.KeylessSlots.Slots = core.SlotRange(0, 64) &^ (1 << rs[5].Slot) })
	k.failIf(len(ts) > 0, "of other slots than the only free record's %d records were taken", len(ts))
	unlock := k.lock(rs[5].ID)
	more := m.k.stage(k.row())
	k.soon("a take of the next", func() {
		k.same("the next behind a locked one", heldIDs(k.join(1).next(1)), more, more)
	})
	unlock()
	k.same("the next, which is no longer locked", heldIDs(k.join(1).next(10)), ids(rs[5:]), ids(rs))
}

// Without this large bodies fill the memory of a process, or one that is larger than the bound is never taken.
func nextKeepsToItsBytes(k *kit) {
	m := k.owner(1)
	all := k.stage(k.rows(5, body(1000))...)
	var got []string
	var out []core.Ref
	for _, most := range []int64{1, 2500, 1 << 20} {
		ts := m.next(5, func(w *core.HoldRequest) { w.Bytes, w.ExcludeRefs = most, out })
		n := int64(len(ts))
		k.failIf(n == 0 || n > max(1, most/1000), "take of bodies of 1000 bytes with the bound %d answered %d", most, n)
		out = append(out, heldRefs(ts)...)
		got = append(got, heldIDs(ts)...)
	}
	k.same("taken with bounds of bytes", got, all[:len(got)], all)
	held := k.join(1).next(5)
	k.failIf(len(held) != 5-len(got), "%d of 5 were answered, and another could take %d", len(got), len(held))
}

// Without this a message that kills its handler is delivered for ever, or given up too early.
func deliveriesCountOnce(k *kit) {
	m := k.owner(1)
	rs := m.some(2)
	deliver := func(w *core.HoldRequest) { w.CountDelivery = true }
	byRef := func() int { return m.sendHold(core.HoldRequest{Refs: refs(rs[:1]), CountDelivery: true})[0].Deliveries }
	byNext := func() int {
		ts := m.next(2, deliver, func(w *core.HoldRequest) { w.ExcludeRefs = refs(rs[:1]) })
		k.failIf(len(ts) != 1 || ts[0].Ref != rs[1].Ref || ts[0].Record.Deliveries != ts[0].Deliveries,
			"one of two is out, and %d were taken, or another one, or its counts differ", len(ts))
		return ts[0].Deliveries
	}
	for want := 1; want <= 3; want++ {
		for range 2 { // the second time it is held already
			a, b := byRef(), byNext()
			k.failIf(a != want || b != want, "records were held %d times for a delivery, and the counts are %d and %d", want, a, b)
		}
		r := m.live(rs[0].Ref)
		k.failIf(r.Deliveries != want, "a record was held %d times for a delivery, and a page says %d", want, r.Deliveries)
		m.settle(core.Release(&rs[0], 0, false), core.Release(&rs[1], 0, false))
		rs = m.find(ids(rs)...)
	}
	ts := m.hold(rs[0].Ref)
	k.failIf(ts[0].Deliveries != 3, "a take without Deliver counted: %d deliveries, want 3", ts[0].Deliveries)
	n := byRef()
	k.failIf(n != 3, "a record that was held already was counted: %d deliveries, want 3", n)
}

// Without this a record that another member held, or a transaction had locked, is never looked at again. A store that
// ignores the scope looks at all of them each time.
func nextSaysWhatItPassed(k *kit) {
	m, other := k.owner(1), k.join(1)
	rs := m.some(9, body(1000))
	seqs := func(at ...int) (out []int64) {
		for _, i := range at {
			out = append(out, rs[i].Seq)
		}
		return out
	}
	other.next(2)
	unlock := k.lock(rs[5].ID)
	var out []core.Ref
	heeded := false // the store heeds the scope
	step := func(what string, w core.HoldRequest, taken, left []int64) {
		w.KeylessSlots, w.ExcludeRefs, w.Bytes = k.all(), out, cmp.Or(w.Bytes, 1<<20)
		var got, met []int64
		for _, t := range m.sendHold(w) {
			switch {
			case t.Record != nil:
				got, out = append(got, t.Ref.Seq), append(out, t.Ref)
			case t.Status != core.HoldSkipped:
				k.fail("%s: a record that was not taken has status %d", what, t.Status)
			default:
				met = append(met, t.Ref.Seq)
			}
		}
		if heeded = heeded || len(met) > 0; !heeded {
			return
		}
		if !slices.Equal(got, taken) || !slices.Equal(slices.Sorted(slices.Values(met)), left) {
			k.fail("%s: taken are %d and left %d of those from %d on, want %d and %d", what, got, met, rs[0].Seq, taken, left)
		}
	}
	first := rs[0].Seq - 1
	step("two behind two that are held", core.HoldRequest{KeylessLimit: 2, AfterSeq: first, UpToSeq: math.MaxInt64, SkippedLimit: 9}, seqs(2, 3), seqs(0, 1))
	step("one that the bytes allow, and one that was passed", core.HoldRequest{KeylessLimit: 5, Bytes: 1, AfterSeq: rs[3].Seq, UpToSeq: rs[6].Seq, ExtraSeqs: seqs(1), SkippedLimit: 2},
		seqs(4), seqs(1, 5, 6))
	step("a part, behind those that were passed", core.HoldRequest{KeylessLimit: 5, AfterSeq: rs[4].Seq, UpToSeq: rs[6].Seq, ExtraSeqs: seqs(0, 1), SkippedLimit: 9},
		seqs(6), seqs(0, 1, 5))
	unlock()
	_, err := other.store.Heartbeat(k.ctx, core.HeartbeatRequest{Self: other.self, Leave: true})
	k.must("leave", err)
	step("all others", core.HoldRequest{KeylessLimit: 5, AfterSeq: rs[7].Seq, UpToSeq: math.MaxInt64, ExtraSeqs: seqs(0, 1, 5, 7), SkippedLimit: 9}, seqs(0, 1, 5, 7, 8), nil)
	out = out[:2]
	step("those of the range whose answer was lost", core.HoldRequest{KeylessLimit: 9, AfterSeq: rs[4].Seq, UpToSeq: math.MaxInt64, SkippedLimit: 9}, seqs(5, 6, 7, 8), nil)
	step("the others whose answer was lost", core.HoldRequest{KeylessLimit: 9, AfterSeq: rs[8].Seq, UpToSeq: math.MaxInt64, ExtraSeqs: seqs(0, 1, 4), SkippedLimit: 9}, seqs(0, 1, 4), nil)
	rs = m.some(4)
	m.hold(rs[3].Ref) // as a Hold that was carried out late
	out = nil
	step("those before one whose answer was lost", core.HoldRequest{KeylessLimit: 2, AfterSeq: rs[0].Seq - 1, UpToSeq: math.MaxInt64, SkippedLimit: 9}, seqs(3, 0), seqs(1, 2))
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
