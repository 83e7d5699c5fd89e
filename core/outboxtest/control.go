package outboxtest

import (
	"errors"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var controlChecks = []named{
	{"control-records-come-with-the-page", controlRecordsComeWithThePage},
	{"control-records-are-no-records", controlRecordsAreNoRecords},
	{"heeded-deletes-a-control-record", heededDeletesAControlRecord},
	{"decision-is-told-with-its-reason", decisionIsToldWithItsReason},
	{"control-from-waits-for-all-owners", controlFromWaitsForAllOwners},
	{"roster-tells-of-control-records", rosterTellsOfControlRecords},
}

func (k *kit) redriveIn(tx Tx, rs ...core.Record) {
	d, ok := core.As[Redriver](tx)
	if !ok {
		k.undeclared("a transaction that can put an abandoned record back in line")
	}
	for i := range rs {
		k.must("put an abandoned record back in line", d.Redrive(k.ctx, k.route, rs[i].ID))
	}
}

// redriven stages rows, has m abandon them, and puts them back in line.
func (m *member) redriven(rows ...core.StagedRow) []core.Record {
	rs := m.find(m.k.stage(rows...)...)
	m.abandon(rs)
	tx := m.k.begin()
	m.k.redriveIn(tx, rs...)
	m.k.commit(tx)
	return rs
}

func (m *member) abandon(rs []core.Record) {
	for i := range rs {
		m.settle(core.Abandon(&rs[i], waybill.ReasonAttempts, errNo))
	}
}

func (m *member) controls(s core.Slots) []core.Control {
	return m.read(core.Look{Parts: []core.Part{m.k.part(s)}, Limit: 10}).Control
}

// concerns reports whether c makes the owner of r read it.
func concerns(c *core.Control, r *core.Record) bool {
	if c.Route != r.Route || c.Number == 0 {
		return false
	}
	switch c.Kind {
	case core.ControlKey:
		return c.Slot == r.Slot && c.Key == r.Envelope.Key && c.Key != ""
	case core.ControlRecord:
		return c.Slot == r.Slot && c.ID == r.ID && c.Seq == r.Seq
	case core.ControlFrom:
		return c.Seq <= r.Seq
	case core.ControlDecide:
	}
	return false
}

// Without this a key that an operator freed waits until its owner's sweep.
func controlRecordsComeWithThePage(k *kit) {
	m := k.owner(2)
	low, high := core.SlotRange(0, 32), core.SlotRange(32, 64)
	rs := m.find(k.stage(k.row(key(k.keyIn(low, 0))), k.row(id(k.idIn(high))), k.row(key(k.keyIn(high, 0))))...)
	m.abandon(rs)
	tx := k.begin()
	k.redriveIn(tx, rs[:2]...)
	if !k.single() {
		if n := len(m.controls(core.AllSlots)); n > 0 {
			k.fail("%d control records of a running transaction are in a page", n)
		}
		m.none("its redrive has not committed", ids(rs)...)
	}
	k.commit(tx)
	tx = k.begin()
	k.redriveIn(tx, rs[2])
	k.rollback(tx)
	got := m.controls(core.AllSlots)
	if len(got) != 2 || !concerns(&got[0], &rs[0]) && !concerns(&got[1], &rs[0]) ||
		!concerns(&got[0], &rs[1]) && !concerns(&got[1], &rs[1]) {
		k.fail("one record with a key and one without were put back in line, a third was rolled back, and the page has %+v", got)
	}
	if len(got) == 2 && got[0].Number == got[1].Number {
		k.fail("two control records have the number %d", got[0].Number)
	}
	if cs := m.controls(low); len(cs) == 0 || !concerns(&cs[0], &rs[0]) {
		k.fail("of the lower half of the slots a page has the control records %+v, want that of the key", cs)
	}
	for i, c := range m.controls(low) {
		if c.Kind != core.ControlFrom && !low.Has(c.Slot) {
			k.fail("control record %d is of slot %d, which was not asked for", i, c.Slot)
		}
	}
	m.find(ids(rs[:2])...)
}

// Without this a control record is published as a message.
func controlRecordsAreNoRecords(k *kit) {
	m := k.owner(1)
	rs := m.redriven(k.row(key("k")), k.row())
	for _, r := range m.find(ids(rs)...) {
		m.settle(core.Published(&r))
	}
	p := m.read(core.Look{
		Ranges: []core.Range{wide(k.all())}, Keys: []core.KeyRange{{Route: k.route, Key: "k", To: forever, Limit: 10}},
		Fresh: []core.Part{k.all()}, Limit: 10, Bytes: 1 << 20,
	})
	if n := len(p.Ranges[0].Records) + len(p.Keys[0].Records) + len(p.Keys[0].Waiting) + len(p.Waiting) + len(m.next(10)); n > 0 {
		k.fail("only control records are left, and %d records are ready or wait", n)
	}
	if d := m.due(10); len(d.Retries)+d.Moved > 0 {
		k.fail("only control records are left, and %d retries and %d timers are due", len(d.Retries), d.Moved)
	}
}

// Without this an owner reads the same keys anew for ever, or loses a control record that came meanwhile.
func heededDeletesAControlRecord(k *kit) {
	m, gone := k.owner(1), k.join(1)
	m.redriven(k.row(key("a")), k.row(key("b")))
	cs := m.controls(core.AllSlots)
	if len(cs) != 2 {
		k.fail("two records were put back in line, and %d control records came", len(cs))
	}
	gone.die(m)
	if k.traits.SessionFence {
		gone.refused("of a control record by a removed session", core.ErrFenced, core.Heeded(&cs[0]))
		if n := len(m.controls(core.AllSlots)); n != 2 {
			k.fail("a removed session heeded a control record, and %d of 2 are left", n)
		}
	}
	r := m.one()
	m.settle(core.Heeded(&cs[0]), core.Published(&r))
	m.gone("it was published beside a control record", r.Ref)
	if left := m.controls(core.AllSlots); len(left) != 1 || left[0].Number != cs[1].Number {
		k.fail("one of two control records was heeded, and %d are left, or the other one", len(left))
	}
	if err := m.trySettle(core.Heeded(&cs[0]))[0]; err != nil && !errors.Is(err, core.ErrChanged) {
		k.fail("a control record was heeded a second time: got %v, want nil or core.ErrChanged", err)
	}
	m.settle(core.Heeded(&cs[1]))
	if n := len(m.controls(core.AllSlots)); n != 0 {
		k.fail("all control records were heeded, and %d are left", n)
	}
}

func (k *kit) tellIn(tx Tx, c core.Control) {
	t, ok := core.As[Teller](tx)
	if !ok {
		k.undeclared("a transaction that can write control records")
	}
	k.must("write a control record", t.Tell(k.ctx, c))
}

// decision is what tells the owner of r that an operator ends it.
func decision(r *core.Record, reason waybill.Reason) core.Control {
	return core.Control{Kind: core.ControlDecide, Route: r.Route, Slot: r.Slot, Key: r.Envelope.Key, ID: r.ID, Seq: r.Seq, Reason: reason}
}

// Without this an operator's decision about a due record is never carried out, or for another reason.
func decisionIsToldWithItsReason(k *kit) {
	m := k.owner(2)
	low, high := core.SlotRange(0, 32), core.SlotRange(32, 64)
	rs := m.find(k.stage(k.row(key(k.keyIn(low, 0))), k.row(key(k.keyIn(high, 0))))...)
	want := []core.Control{decision(&rs[0], waybill.ReasonSkipped), decision(&rs[1], waybill.ReasonSetAside)}
	for i := range want {
		tx := k.begin()
		k.tellIn(tx, want[i])
		k.commit(tx)
		for _, other := range m.controls([]core.Slots{high, low}[i]) {
			if other.ID == rs[i].ID {
				k.fail("a decision was told to the owner of other slots")
			}
		}
		cs := m.controls([]core.Slots{low, high}[i])
		if len(cs) != 1 || cs[0].Number == 0 {
			k.fail("one decision was told, and a page has %+v", cs)
		}
		if want[i].Number = cs[0].Number; cs[0] != want[i] {
			k.fail("a decision was told as %+v, want %+v", cs[0], want[i])
		}
		m.untouched("its owner was told of a decision", 0, &rs[i])
	}
	m.settle(core.Withdraw(&rs[0], waybill.ReasonSkipped), core.Heeded(&want[0]))
	m.gone("its owner carried a decision out", rs[0].Ref)
	if cs := m.controls(core.AllSlots); len(cs) != 1 || cs[0] != want[1] {
		k.fail("one of two decisions was heeded, and %+v are left", cs)
	}
	m.settle(core.Heeded(&want[1]))
	m.untouched("a decision was heeded and not carried out", 0, &rs[1])
}

// Without this the records that came back in the slots of another owner wait for its sweep, or are read over and over.
func controlFromWaitsForAllOwners(k *kit) {
	a, b := k.join(2), k.join(2)
	low, high := core.SlotRange(0, 32), core.SlotRange(32, 64)
	a.claim(low)
	b.claim(high)
	tx := k.begin()
	k.tellIn(tx, core.Control{Kind: core.ControlFrom, Route: k.route, Seq: 7})
	k.commit(tx)
	seen := func(m *member, s core.Slots) []core.Control {
		cs := m.controls(s)
		if len(cs) > 0 && (len(cs) > 1 || cs[0].Kind != core.ControlFrom || cs[0].Route != k.route || cs[0].Seq != 7) {
			k.fail("one control record is from sequence 7 on, and a page has %+v", cs)
		}
		return cs
	}
	first, second := seen(a, low), seen(b, high)
	if len(first) != 1 || len(second) != 1 {
		k.fail("a control record concerns all owners of its route, and one of two does not see it")
	}
	for range 2 {
		a.settle(core.Heeded(&first[0]))
		if len(seen(a, low)) != 0 || len(seen(b, high)) != 1 {
			k.fail("one of two owners heeded a control record, and it still sees it, or the other one does not")
		}
	}
	b.settle(core.Heeded(&second[0]))
	if len(seen(a, core.AllSlots))+len(seen(b, core.AllSlots)) != 0 {
		k.fail("both owners heeded a control record, and it is still there")
	}
}

// Without this an owner that nothing wakes carries out an operator's decision only when it reads again by itself, which
// can take minutes. DB-17 OP-18.
func rosterTellsOfControlRecords(k *kit) {
	m := k.owner(1)
	told := func(route string) bool {
		return m.meet(func(x *core.Meeting) {
			x.Self = core.Member{Serves: []core.Serving{{Route: route, Units: 1}}} // only looks
		}).Told
	}
	if m.meet().Told || told(k.route) {
		k.fail("no control record was written, and the roster tells of one")
	}
	m.redriven(k.row(key("k")))
	if !m.meet().Told || !told(k.route) {
		k.fail("a control record was written, and the roster of one who serves its route does not tell of it")
	}
	if told(k.route + "-other") {
		k.fail("a control record was written, and the roster of one who serves another route tells of it")
	}
	for _, c := range m.controls(core.AllSlots) {
		m.settle(core.Heeded(&c))
	}
	if m.meet().Told {
		k.fail("all control records were heeded, and the roster tells of one")
	}
}
