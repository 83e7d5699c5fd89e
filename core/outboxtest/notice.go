package outboxtest

import (
	"errors"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var noticeChecks = []named{
	{"notices-come-with-the-page", noticeRecordsComeWithThePage},
	{"notices-are-no-records", noticeRecordsAreNoRecords},
	{"notice-done-deletes-the-notice", noticeDoneDeletesTheNotice},
	{"decision-notice-has-its-reason", decisionNoticeHasItsReason},
	{"notice-from-waits-for-all-owners", noticeFromWaitsForAllOwners},
	{"membership-tells-of-notices", membershipTellsOfNoticeRecords},
}

func (k *kit) redriveIn(tx Tx, rs ...core.Record) {
	d := needs[Redriver](k, tx, "a transaction that can put an abandoned record back in line")
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

func (m *member) notices(s core.Slots) []core.Notice {
	return m.read(core.ReadRequest{Slots: []core.RouteSlots{m.k.part(s)}, BlockingLimit: 10}).Notices
}

// Without this a key that an operator freed waits until its owner's sweep.
func noticeRecordsComeWithThePage(k *kit) {
	m := k.owner(2)
	rs := m.find(k.stage(k.row(key(k.keyIn(low, 0))), k.row(id(k.idIn(high))), k.row(key(k.keyIn(high, 0))))...)
	m.abandon(rs)
	tx := k.begin()
	k.redriveIn(tx, rs[:2]...)
	if !k.single() {
		n := len(m.notices(core.AllSlots))
		k.failIf(n > 0, "%d notices of a running transaction are in a page", n)
		m.none("its redrive has not committed", ids(rs)...)
	}
	k.commit(tx)
	tx = k.begin()
	k.redriveIn(tx, rs[2])
	k.rollback(tx)
	got := m.notices(core.AllSlots)
	k.failIf(len(got) != 2 || !suitetest.Concerns(&got[0], &rs[0]) && !suitetest.Concerns(&got[1], &rs[0]) || !suitetest.Concerns(&got[0], &rs[1]) && !suitetest.Concerns(&got[1], &rs[1]),
		"one record with a key and one without were put back in line, a third was rolled back, and the page has %+v", got)
	if len(got) == 2 && got[0].Number == got[1].Number {
		k.fail("two notices have the number %d", got[0].Number)
	}
	cs := m.notices(low)
	k.failIf(len(cs) == 0 || !suitetest.Concerns(&cs[0], &rs[0]), "of the lower half of the slots a page has the notices %+v, want that of the key", cs)
	for i, c := range m.notices(low) {
		k.failIf(c.Kind != core.NoticeReread && !low.Has(c.Slot), "notice %d is of slot %d, which was not asked for", i, c.Slot)
	}
	m.find(ids(rs[:2])...)
}

// Without this a notice is published as a message.
func noticeRecordsAreNoRecords(k *kit) {
	m := k.owner(1)
	rs := m.redriven(k.row(key("k")), k.row())
	for _, r := range m.find(ids(rs)...) {
		m.settle(core.Published(&r))
	}
	p := m.read(core.ReadRequest{
		Ranges: []core.Range{wide(k.all())}, Keys: k.ofKey("k", 10), NewlyOwned: []core.RouteSlots{k.all()}, BlockingLimit: 10, Bytes: 1 << 20,
	})
	n := len(p.Ranges[0].Records) + len(p.Keys[0].Records) + len(p.Keys[0].Blocking) + len(p.Blocking) + len(m.next(10))
	k.failIf(n > 0, "only notices are left, and %d records are ready or wait", n)
	m.dueIs("only notices are left", 0, 0)
}

// Without this an owner reads the same keys anew for ever, or loses a notice that came meanwhile.
func noticeDoneDeletesTheNotice(k *kit) {
	m, gone := k.owner(1), k.join(1)
	m.redriven(k.row(key("a")), k.row(key("b")))
	cs := m.notices(core.AllSlots)
	k.failIf(len(cs) != 2, "two records were put back in line, and %d notices came", len(cs))
	gone.die(m)
	if k.traits.SessionFence {
		gone.refused("of a notice by a removed session", core.ErrFenced, core.DeleteNotice(&cs[0]))
		n := len(m.notices(core.AllSlots))
		k.failIf(n != 2, "a removed session was done with a notice, and %d of 2 are left", n)
	}
	r := m.one()
	m.settle(core.DeleteNotice(&cs[0]), core.Published(&r))
	m.gone("it was published beside a notice", r.Ref)
	left := m.notices(core.AllSlots)
	k.failIf(len(left) != 1 || left[0].Number != cs[1].Number, "one of two notices was done, and %d are left, or the other one", len(left))
	err := m.trySettle(core.DeleteNotice(&cs[0]))[0]
	k.failIf(err != nil && !errors.Is(err, core.ErrChanged), "a notice was done a second time: got %v, want nil or core.ErrChanged", err)
	m.settle(core.DeleteNotice(&cs[1]))
	n := len(m.notices(core.AllSlots))
	k.failIf(n != 0, "all notices were done, and %d are left", n)
}

func (k *kit) tellIn(tx Tx, c core.Notice) {
	k.must("write a notice", needs[Teller](k, tx, "a transaction that can write notices").Tell(k.ctx, c))
}

// decision is what tells the owner of r that an operator ends it.
func decision(r *core.Record, reason waybill.Reason) core.Notice {
	return core.Notice{Kind: core.NoticeDecide, Route: r.Route, Slot: r.Slot, Key: r.Envelope.Key, ID: r.ID, Seq: r.Seq, Reason: reason}
}

// Without this an operator's decision about a due record is never carried out, or for another reason.
func decisionNoticeHasItsReason(k *kit) {
	m := k.owner(2)
	rs := m.find(k.stage(k.row(key(k.keyIn(low, 0))), k.row(key(k.keyIn(high, 0))))...)
	want := []core.Notice{decision(&rs[0], waybill.ReasonSkipped), decision(&rs[1], waybill.ReasonSetAside)}
	for i := range want {
		tx := k.begin()
		k.tellIn(tx, want[i])
		k.commit(tx)
		for _, other := range m.notices([]core.Slots{high, low}[i]) {
			k.failIf(other.ID == rs[i].ID, "a decision was told to the owner of other slots")
		}
		cs := m.notices([]core.Slots{low, high}[i])
		k.failIf(len(cs) != 1 || cs[0].Number == 0, "one decision was told, and a page has %+v", cs)
		want[i].Number = cs[0].Number
		k.failIf(cs[0] != want[i], "a decision was told as %+v, want %+v", cs[0], want[i])
		m.untouched("its owner was told of a decision", 0, &rs[i])
	}
	m.settle(core.Cancel(&rs[0], waybill.ReasonSkipped), core.DeleteNotice(&want[0]))
	m.gone("its owner carried a decision out", rs[0].Ref)
	cs := m.notices(core.AllSlots)
	k.failIf(len(cs) != 1 || cs[0] != want[1], "one of two decisions was done, and %+v are left", cs)
	m.settle(core.DeleteNotice(&want[1]))
	m.untouched("a decision was done and not carried out", 0, &rs[1])
}

// Without this the records that came back in the slots of another owner wait for its sweep, or are read over and over.
func noticeFromWaitsForAllOwners(k *kit) {
	a, b := k.halves()
	tx := k.begin()
	k.tellIn(tx, core.Notice{Kind: core.NoticeReread, Route: k.route, Seq: 7})
	k.commit(tx)
	seen := func(m *member, s core.Slots) []core.Notice {
		cs := m.notices(s)
		k.failIf(len(cs) > 0 && (len(cs) > 1 || cs[0].Kind != core.NoticeReread || cs[0].Route != k.route || cs[0].Seq != 7),
			"one notice is from sequence 7 on, and a page has %+v", cs)
		return cs
	}
	first, second := seen(a, low), seen(b, high)
	k.failIf(len(first) != 1 || len(second) != 1, "a notice concerns all owners of its route, and one of two does not see it")
	for range 2 {
		a.settle(core.DeleteNotice(&first[0]))
		k.failIf(len(seen(a, low)) != 0 || len(seen(b, high)) != 1,
			"one of two owners was done with a notice, and it still sees it, or the other one does not")
	}
	b.settle(core.DeleteNotice(&second[0]))
	k.failIf(len(seen(a, core.AllSlots))+len(seen(b, core.AllSlots)) != 0, "both owners were done with a notice, and it is still there")
}

// Without this an owner that nothing wakes carries out an operator's decision only when it reads again by itself, which
// can take minutes. DB-17 OP-18.
func membershipTellsOfNoticeRecords(k *kit) {
	m := k.owner(1)
	told := func(route string) bool { // it only looks
		return m.heartbeat(func(x *core.HeartbeatRequest) {
			x.Self = core.Member{Routes: []core.ServedRoute{{Route: route, InitialPartitions: 1}}}
		}).HasNotices
	}
	k.failIf(m.heartbeat().HasNotices || told(k.route), "no notice was written, and the membership tells of one")
	m.redriven(k.row(key("k")))
	k.failIf(!m.heartbeat().HasNotices || !told(k.route), "a notice was written, and the membership of one who serves its route does not tell of it")
	k.failIf(told(k.route+"-other"), "a notice was written, and the membership of one who serves another route tells of it")
	for _, c := range m.notices(core.AllSlots) {
		m.settle(core.DeleteNotice(&c))
	}
	k.failIf(m.heartbeat().HasNotices, "all notices were done, and the membership tells of one")
}
