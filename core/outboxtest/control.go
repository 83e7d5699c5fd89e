package outboxtest

import (
	"errors"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
)

var controlChecks = []named{
	{"control-records-come-with-the-page", controlRecordsComeWithThePage},
	{"control-records-are-no-records", controlRecordsAreNoRecords},
	{"heeded-deletes-a-control-record", heededDeletesAControlRecord},
}

func (k *kit) redriveIn(tx Tx, rs ...outbox.Record) {
	d, ok := core.As[Redriver](tx)
	if !ok {
		k.undeclared("a transaction that can put an abandoned record back in line")
	}
	for i := range rs {
		k.must("put an abandoned record back in line", d.Redrive(k.ctx, k.route, rs[i].ID))
	}
}

// redriven stages rows, has m abandon them, and puts them back in line.
func (m *member) redriven(rows ...Row) []outbox.Record {
	rs := m.find(m.k.stage(rows...)...)
	m.abandon(rs)
	tx := m.k.begin()
	m.k.redriveIn(tx, rs...)
	m.k.commit(tx)
	return rs
}

func (m *member) abandon(rs []outbox.Record) {
	for i := range rs {
		m.settle(outbox.Abandon(&rs[i], core.ReasonAttempts, errNo))
	}
}

func (m *member) controls(s outbox.Slots) []outbox.Control {
	return m.read(outbox.Look{Parts: []outbox.Part{m.k.part(s)}, Limit: 10}).Control
}

// concerns reports whether c makes the owner of r read it.
func concerns(c *outbox.Control, r *outbox.Record) bool {
	if c.Route != r.Route || c.Number == 0 {
		return false
	}
	switch c.Kind {
	case outbox.ControlKey:
		return c.Slot == r.Slot && c.Key == r.Envelope.Key && c.Key != ""
	case outbox.ControlRecord:
		return c.Slot == r.Slot && c.ID == r.ID && c.Seq == r.Seq
	case outbox.ControlFrom:
		return c.Seq <= r.Seq
	}
	return false
}

// Without this a key that an operator freed waits until its owner's sweep.
func controlRecordsComeWithThePage(k *kit) {
	m := k.owner(2)
	low, high := outbox.SlotRange(0, 32), outbox.SlotRange(32, 64)
	rs := m.find(k.stage(k.row(key(k.keyIn(low, 0))), k.row(id(k.idIn(high))), k.row(key(k.keyIn(high, 0))))...)
	m.abandon(rs)
	tx := k.begin()
	k.redriveIn(tx, rs[:2]...)
	if !k.single() {
		if n := len(m.controls(outbox.AllSlots)); n > 0 {
			k.fail("%d control records of a running transaction are in a page", n)
		}
		m.none("its redrive has not committed", ids(rs)...)
	}
	k.commit(tx)
	tx = k.begin()
	k.redriveIn(tx, rs[2])
	k.rollback(tx)
	got := m.controls(outbox.AllSlots)
	if len(got) != 2 || !concerns(&got[0], &rs[0]) && !concerns(&got[1], &rs[0]) || !concerns(&got[0], &rs[1]) && !concerns(&got[1], &rs[1]) {
		k.fail("one record with a key and one without were put back in line, a third was rolled back, and the page has %+v", got)
	}
	if len(got) == 2 && got[0].Number == got[1].Number {
		k.fail("two control records have the number %d", got[0].Number)
	}
	if cs := m.controls(low); len(cs) == 0 || !concerns(&cs[0], &rs[0]) {
		k.fail("of the lower half of the slots a page has the control records %+v, want that of the key", cs)
	}
	for i, c := range m.controls(low) {
		if c.Kind != outbox.ControlFrom && !low.Has(c.Slot) {
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
		m.settle(outbox.Published(&r))
	}
	p := m.read(outbox.Look{
		Ranges: []outbox.Range{wide(k.all())}, Keys: []outbox.KeyRange{{Route: k.route, Key: "k", To: forever, Limit: 10}},
		Fresh: []outbox.Part{k.all()}, Limit: 10, Bytes: 1 << 20,
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
	cs := m.controls(outbox.AllSlots)
	if len(cs) != 2 {
		k.fail("two records were put back in line, and %d control records came", len(cs))
	}
	gone.die(m)
	if k.traits.SessionFence {
		gone.refused("of a control record by a removed session", outbox.ErrFenced, outbox.Heeded(&cs[0]))
		if n := len(m.controls(outbox.AllSlots)); n != 2 {
			k.fail("a removed session heeded a control record, and %d of 2 are left", n)
		}
	}
	r := m.one()
	m.settle(outbox.Heeded(&cs[0]), outbox.Published(&r))
	m.gone("it was published beside a control record", r.Ref)
	if left := m.controls(outbox.AllSlots); len(left) != 1 || left[0].Number != cs[1].Number {
		k.fail("one of two control records was heeded, and %d are left, or the other one", len(left))
	}
	if err := m.trySettle(outbox.Heeded(&cs[0]))[0]; err != nil && !errors.Is(err, outbox.ErrChanged) {
		k.fail("a control record was heeded a second time: got %v, want nil or outbox.ErrChanged", err)
	}
	m.settle(outbox.Heeded(&cs[1]))
	if n := len(m.controls(outbox.AllSlots)); n != 0 {
		k.fail("all control records were heeded, and %d are left", n)
	}
}
