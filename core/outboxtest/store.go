package outboxtest

import (
	"errors"
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
	{"zero-outcome-is-refused", zeroOutcomeIsRefused},
	{"bad-limits-do-no-harm", badLimitsDoNoHarm},
	{"nobody-is-no-session", nobodyIsNoSession},
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

// Without this a bug of a caller changes a record in a way that was not meant, or stops the outcomes that are settled
// with it.
func zeroOutcomeIsRefused(k *kit) {
	m := k.owner(1)
	rs := m.some(2, key("k"))
	res := m.trySettle(core.Published(&rs[0]), core.Outcome{}, core.Published(&rs[1]))
	k.failIf(res[1] == nil, "the zero Outcome was settled, between two others: got %v", res)
	k.must("settle before a zero Outcome", res[0])
	k.must("settle behind a zero Outcome", res[2])
	m.gone("it was published beside a zero Outcome", refs(rs)...)
	m.find(k.stage(k.row())...)
}

// Without this a limit that a caller computed wrongly cuts a page without a word, or takes records that were not asked
// for. A look with such a limit can fail, or be answered up to a bound of the store's own.
func badLimitsDoNoHarm(k *kit) {
	m := k.owner(1)
	rs := m.some(4, key("k"))
	rs = append(rs, m.some(2)...)
	m.settle(core.Retry(&rs[0], errNo, 0))
	for _, bad := range []int{-1, -1000, 0} {
		rg := wide(k.all())
		rg.Limit = bad
		request := core.ReadRequest{
			Ranges: []core.Range{rg}, Keys: k.ofKey("k", bad), NewlyOwned: []core.RouteSlots{k.all()}, BlockingLimit: bad, Bytes: 1 << 20,
		}
		p, err := m.store.Read(k.ctx, m.self.Session, request)
		if err == nil {
			k.beginning("a range with a limit below 1", ids(p.Ranges[0].Records), ids(rs[1:]), p.Ranges[0].More)
			k.beginning("a key with a limit below 1", ids(p.Keys[0].Records), ids(rs[1:4]), p.Keys[0].More)
			k.failIf(len(p.Blocking) == 0 && !p.MoreBlocking, "a look at what waits, with the limit %d, has nothing and does not say that there is more", bad)
		}
		ts, err := m.store.Hold(k.ctx, m.self.Session, core.HoldRequest{KeylessSlots: k.all(), KeylessLimit: bad, Bytes: 1 << 20})
		k.noneFor("a take", bad, len(ts), err)
		d, err := m.store.Due(k.ctx, m.self.Session, []core.RouteSlots{k.all()}, bad)
		k.noneFor("due", bad, len(d.Retries)+d.TimersReady, err)
	}
	for i := range rs[1:] {
		m.untouched("limits below 1 were asked for", 0, &rs[1+i])
	}
	m.dueAll(1, 0)
}

// noneFor fails if a call with a bad limit was answered with records.
func (k *kit) noneFor(what string, limit, got int, err error) {
	k.failIf(got > 0, "%s with the limit %d has %d records, and the error %v; want an error, or none", what, limit, got, err)
}

// Without this a caller that has not joined works with records that others own.
func nobodyIsNoSession(k *kit) {
	m := k.owner(1)
	rs := m.some(2)
	partition := k.partitions(m.heartbeat())[0]
	p, err := m.store.Read(k.ctx, 0, k.everything())
	k.failIf(err == nil && p.IsMember, "session 0 is no member, and a page says that it is one")
	_, err = m.store.Hold(k.ctx, 0, core.HoldRequest{Refs: refs(rs)})
	k.fenced("of number 0 takes records", err)
	_, err = m.store.Due(k.ctx, 0, []core.RouteSlots{k.all()}, 10)
	k.fenced("of number 0 asks for due records", err)
	_, err = m.store.ReleasePartition(k.ctx, 0, partition, refs(rs))
	k.fenced("of number 0 releases a partition", err)
	if k.traits.SessionFence {
		res := m.store.Settle(k.ctx, 0, []core.Outcome{core.Published(&rs[0])})
		k.failIf(len(res) != 1 || !errors.Is(res[0], core.ErrFenced), "session 0 is no member, and settled: got %v, want core.ErrFenced", res)
	}
	m.holder("no session asked for it", 0, refs(rs)...)
	u := k.partitions(m.heartbeat())[0]
	k.failIf(u != partition, "no member released a partition, and it changed from %+v to %+v", partition, u)
}
