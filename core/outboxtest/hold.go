package outboxtest

import (
	"cmp"
	"math"
	"slices"
	"sync"

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
