package outboxtest

import (
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var storeChecks = []named{
	{"slot-is-the-same-everywhere", slotIsTheSameEverywhere},
	{"traits-are-stable", traitsAreStable},
	{"store-keeps-no-slice", storeKeepsNoSlice},
	{"restore-is-seen", restoreIsSeen},
	{"number-drawn-again-is-untouched", numberDrawnAgainIsUntouched},
}

// Vector is a test vector of core.SlotOf, for adapters whose database computes slots too.
type Vector struct {
	Route, Key, ID string
	Slot           uint8
}

// Vectors returns the test vectors of core.SlotOf.
func Vectors() []Vector {
	return []Vector{
		{"default", "order-1", "x", 41},
		{"default", "", "00000000-0000-7000-8000-000000000001", 46},
		{"orders/high", "Grüße", "x", 0},
		{"r", "", "1", 22},
		{"r", "1", "other", 22},
		{"", "", "", 43},
		{"a\x1fb", "c", "", 35},
	}
}

// Without this the records of one key are spread over two owners, and their order is lost.
func slotIsTheSameEverywhere(k *kit) {
	for _, v := range Vectors() {
		got := core.SlotOf(v.Route, v.Key, v.ID)
		k.failIf(got != v.Slot, "route %q, key %q and id %q have the slot %d, want %d", v.Route, v.Key, v.ID, got, v.Slot)
	}
	m := k.owner(1)
	rows := k.rows(64)
	for _, s := range []string{"k", "K", "Grüße", " k ", "k'\"\\%", "鍵", "1", "key\x1fkey"} {
		rows = append(rows, k.row(key(s)), k.row(id(waybill.NewID()+s)))
	}
	timer := k.stage(k.row(key("Grüße"), delay(short)))
	want := k.stage(rows...)
	if got := m.find(want...); len(got) != len(want) { // each page checks the slot of each record
		k.fail("%d records were staged and %d read", len(want), len(got))
	}
	k.sleep(2 * short)
	m.dueAll(0, 1)
	m.find(timer...)
	for _, t := range m.next(100) {
		r := t.Record
		k.failIf(r.Slot != core.SlotOf(r.Route, "", r.ID), "a record was taken with slot %d, want %d", r.Slot, core.SlotOf(r.Route, "", r.ID))
	}
}

// Without this two processes work with different promises of one database.
func traitsAreStable(k *kit) {
	k.owner(1)
	a, b, c := k.traits, k.h.Store().Traits(), k.other().Traits()
	k.failIf(a != b || a != c, "the traits are %+v, and then %+v and %+v", a, b, c)
	k.failIf(k.traits.MaxLateCommit < 0, "the bound of the transaction ids is negative: %s", k.traits.MaxLateCommit)
}

// Without this a caller that uses its slices again changes what is stored, or what another caller was answered.
func storeKeepsNoSlice(k *kit) {
	m := k.join(2)
	other := k.join(2)
	m.self.Routes[0].Route = "x" // it joined with this slice
	if r := other.heartbeat(); find(r, m.self.Session).Routes[0].Route != k.route {
		k.fail("a member's routes changed with the slice that it joined with")
	}
	m.self.Routes[0].Route = k.route
	r := other.heartbeat()
	find(r, m.self.Session).Routes[0].Route, r.Partitions[0].Owner = "x", 99
	r = other.heartbeat()
	k.failIf(find(r, m.self.Session).Routes[0].Route != k.route ||
		slices.ContainsFunc(r.Partitions, func(u core.PartitionState) bool { return u.Owner == 99 }),
		"a membership that was answered is still the store's own")
	row := k.row(body(10))
	want := slices.Clone(row.Envelope.Body)
	k.stage(row)
	for range 2 {
		got := m.ready()[0].Envelope.Body
		k.failIf(!slices.Equal(got, want), "a body changed when a caller wrote into its own slice")
		row.Envelope.Body[3], got[4] = 1, 2
	}
}

// saved returns a function that sets the database back.
func (k *kit) saved() (restore func()) {
	fn, err := needs[Restorer](k, k.h, "a database that can be set back").Save(k.ctx)
	k.must("save", err)
	return func() { k.must("restore", fn(k.ctx)) }
}

// Without this members go on after a restore as if nothing had happened, and pass over numbers that are drawn again.
func restoreIsSeen(k *kit) {
	m := k.owner(1)
	m.some(2)
	before := m.read(k.everything())
	restore := k.saved()
	m.some(3)
	later := m.read(k.everything())
	k.failIf(later.StoreEpoch != before.StoreEpoch, "the epoch is another one, and the database did not go back")
	restore()
	p, err := m.store.Read(k.ctx, m.self.Session, k.everything())
	k.must("read after a restore", err)
	k.failIf(p.IsMember && p.StoreEpoch == before.StoreEpoch && p.LastSeq >= later.LastSeq,
		"the database went back, and a page has the same epoch and the last number %d after %d", p.LastSeq, later.LastSeq)
	r := k.join(1)
	k.failIf(r.read(k.everything()).StoreEpoch != r.heartbeat().StoreEpoch, "after a restore a page and a membership have different epochs")
}

// Without this a message is lost after a restore: the outcome of an earlier record with its number deletes it.
func numberDrawnAgainIsUntouched(k *kit) {
	m := k.owner(1)
	m.some(1)
	restore := k.saved()
	old := m.some(3, key("k"))
	restore()
	by := k.owner2(m)
	now := by.some(3, key("k"))
	for i := range old {
		for _, fn := range every {
			_ = m.trySettle(fn(&old[i]))
			_ = by.trySettle(fn(&old[i]))
		}
	}
	for i := range now {
		by.untouched("a record that had its number before a restore was settled", 0, &now[i])
	}
}

// owner2 returns a member that owns all, if the session of m did not live through a restore; else m.
func (k *kit) owner2(m *member) *member {
	if r := m.heartbeat(); r.IsMember && k.slotsOf(r, m.self.Session) == core.AllSlots {
		return m
	}
	return k.owner(1)
}
