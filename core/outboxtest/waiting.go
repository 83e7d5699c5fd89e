package outboxtest

import (
	"fmt"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var waitingChecks = []named{
	{"newly-owned-answers-blocked-records", newlyOwnedAnswersBlockedRecords},
	{"newly-owned-answers-blocking-heads-if-asked", newlyOwnedAnswersBlockingHeadsIfAsked},
	{"newly-owned-comes-in-pages", newlyOwnedComesInPages},
	{"key-answers-what-holds-it", keyAnswersWhatHoldsIt},
	{"again-leaves-out-what-is-gone", againLeavesOutWhatIsGone},
	{"hold-of-gone-session-is-none", holdOfGoneSessionIsNone},
}

// expectWaiting compares what waits with the records that should.
func (k *kit) expectWaiting(what string, got []core.BlockingRecord, want ...core.BlockingRecord) {
	for _, w := range want {
		at := slices.IndexFunc(got, func(g core.BlockingRecord) bool { return g.Seq == w.Seq && g.Why == w.Why })
		k.failIf(at < 0, "%s: the record %d with key %q waits (%d) and is not answered", what, w.Seq, w.Key, w.Why)
		g := got[at]
		k.failIf(g != w, "%s: got %+v, want %+v", what, g, w)
	}
	k.failIf(len(got) != len(want), "%s: %d are said to wait, want %d: %+v", what, len(got), len(want), got)
}

func waits(r *core.Record, why core.BlockReason, holder core.Session, version int64) core.BlockingRecord {
	ref := r.Ref
	ref.Version = version
	return core.BlockingRecord{Ref: ref, Slot: r.Slot, Key: r.Envelope.Key, Why: why, HeldBy: holder}
}

// version asks for the version that a record which waits has now.
func (m *member) version(ref core.Ref) int64 {
	p := m.again(ref)
	m.k.failIf(len(p.RecheckedBlocking) != 1, "a record that waits was asked for again: %d wait", len(p.RecheckedBlocking))
	return p.RecheckedBlocking[0].Version
}

// Without this a new owner hands out a record while an earlier one of its key waits, or is out at another member.
func newlyOwnedAnswersBlockedRecords(k *kit) {
	a, b := k.halves()
	kl, kh := k.keyIn(low, 0), k.keyIn(high, 0)
	rs := a.find(k.stage(k.row(key(kl)), k.row(key(kh)), k.row(key(kl)), k.row(id(k.idIn(low))), k.row(id(k.idIn(low))),
		k.row(id(k.idIn(low))), k.row(key(kl)))...)
	a.settle(core.Retry(&rs[0], errNo, far), core.Retry(&rs[3], errNo, far))
	b.settle(core.Retry(&rs[1], errNo, far))
	k.stage(k.row(key(kl), delay(far)))
	a.hold(rs[2].Ref, rs[4].Ref)
	fresh := func(m *member, s core.Slots) []core.BlockingRecord {
		p := m.read(core.ReadRequest{NewlyOwned: []core.RouteSlots{k.part(s)}, BlockingLimit: 100})
		k.failIf(p.MoreBlocking, "%d wait, with the limit 100, and the page says that there are more", len(p.Blocking))
		return p.Blocking
	}
	retry := waits(&rs[0], core.BlockedByRetry, 0, a.version(rs[0].Ref))
	k.expectWaiting("a retry with a key, and own holds", fresh(a, low), retry)
	k.expectWaiting("for another session", fresh(b, low), retry,
		waits(&rs[2], core.BlockedByHold, a.self.Session, rs[2].Version), waits(&rs[4], core.BlockedByHold, a.self.Session, rs[4].Version))
	k.expectWaiting("in other slots", fresh(a, high), waits(&rs[1], core.BlockedByRetry, 0, b.version(rs[1].Ref)))
	k.expectWaiting("in no slot", fresh(a, 0))
}

// Without this a key goes on behind a record about which an operator must decide, or stops on a route that does not
// block.
func newlyOwnedAnswersBlockingHeadsIfAsked(k *kit) {
	m := k.owner(1)
	rs := m.some(4, key("k"))
	rs = append(rs, m.one())
	m.settle(core.Abandon(&rs[0], waybill.ReasonAttempts, errNo), core.Abandon(&rs[1], waybill.ReasonCancelled, errNo),
		core.Published(&rs[2]),
		core.Abandon(&rs[4], waybill.ReasonAttempts, errNo))
	request := core.ReadRequest{
		NewlyOwned: []core.RouteSlots{k.all()}, Keys: k.ofKey("k", 10), BlockingLimit: 100, Bytes: 1 << 20,
	}
	for _, blocks := range [][]string{nil, {k.route + "-x"}} {
		request.BlockingRoutes = blocks
		p := m.read(request)
		k.expectWaiting("abandoned records of a route that does not block", p.Blocking)
		k.expectWaiting("abandoned records of a key that does not block", p.Keys[0].Blocking)
	}
	request.BlockingRoutes = []string{k.route}
	p := m.read(request)
	for what, got := range map[string][]core.BlockingRecord{"on a route that blocks": p.Blocking, "of a key that blocks": p.Keys[0].Blocking} {
		k.failIf(len(got) != 1 || got[0].Seq != rs[0].Seq || got[0].Why != core.BlockedByAbandoned || got[0].Key != "k",
			"one record was abandoned after its attempts, one cancelled, one published, one without a key abandoned: %s %+v, want the first", what, got)
	}
}

// Without this a partition with more retries than fit into a page is taken over with keys that do not wait.
func newlyOwnedComesInPages(k *kit) {
	m, by := k.owner(1), k.join(1)
	var want []int64
	rs := m.some(12, key("k"))
	rs = append(rs, m.some(3)...)
	for i := range rs {
		if want = append(want, rs[i].Seq); i < 12 {
			m.settle(core.Retry(&rs[i], errNo, far))
		} else {
			m.hold(rs[i].Ref)
		}
	}
	for _, limit := range []int{1, 5, 15, 100} {
		var got []int64
		request := core.ReadRequest{NewlyOwned: []core.RouteSlots{k.part(core.SlotRange(0, 20)), k.part(core.SlotRange(20, 64))}, BlockingLimit: limit}
		for more := true; more; {
			p := by.read(request)
			for _, w := range p.Blocking {
				k.failIf(w.Seq <= request.NewlyOwnedAfter, "the waiting records after %d were asked for, and %d follows", request.NewlyOwnedAfter, w.Seq)
				got, request.NewlyOwnedAfter = append(got, w.Seq), w.Seq
			}
			more = p.MoreBlocking
			k.failIf(more && len(p.Blocking) == 0, "a page has no waiting record and says that there are more")
		}
		k.failIf(!slices.Equal(got, want), "%d records wait, and pages of %d show %v, want %v", len(want), limit, got, want)
	}
}

// Without this a key that is read anew overtakes its own earlier record.
func keyAnswersWhatHoldsIt(k *kit) {
	m, by := k.owner(1), k.join(1)
	rs := m.some(4, key("k"))
	m.some(1, key("other"))
	m.settle(core.Retry(&rs[0], errNo, far))
	m.hold(rs[1].Ref)
	for _, c := range []struct {
		m    *member
		want []core.BlockingRecord
	}{
		{m, []core.BlockingRecord{waits(&rs[0], core.BlockedByRetry, 0, m.version(rs[0].Ref))}},
		{by, []core.BlockingRecord{
			waits(&rs[0], core.BlockedByRetry, 0, m.version(rs[0].Ref)),
			waits(&rs[1], core.BlockedByHold, m.self.Session, rs[1].Version),
		}},
	} {
		p := c.m.read(core.ReadRequest{Keys: []core.KeyRange{
			{Route: k.route, Key: "k", AfterSeq: rs[2].Seq, UpToSeq: forever, Limit: 10},
			{Route: k.route, Key: "none", UpToSeq: forever, Limit: 10},
		}, BlockingLimit: 1, Bytes: 1 << 20})
		k.expectWaiting("the record that blocks a key, before the range that was asked for", p.Keys[0].Blocking, c.want...)
		k.expectWaiting("the record that blocks an unused key", p.Keys[1].Blocking)
		k.same("the records of a key behind the third", ids(p.Keys[0].Records), ids(rs[3:]), ids(rs))
	}
}

// Without this a key waits for ever for a record that is gone, or goes on while it is still there.
func againLeavesOutWhatIsGone(k *kit) {
	m, by := k.owner(1), k.join(1)
	rs := m.some(6, key("k"))
	m.settle(core.Published(&rs[0]), core.Abandon(&rs[1], "", errNo), core.Retry(&rs[2], errNo, far))
	m.hold(rs[3].Ref)
	wrong := rs[5].Ref
	wrong.ID = waybill.NewID()
	asked := append(refs(rs[:5]), wrong, core.Ref{Route: k.route, Seq: rs[5].Seq + 1_000_000, ID: waybill.NewID(), Version: 1})
	for _, c := range []*member{m, by} {
		p := c.again(asked...)
		live := map[int64]core.Session{}
		for i := range p.Rechecked {
			live[p.Rechecked[i].Seq] = p.Rechecked[i].HeldBy
		}
		want := map[int64]core.Session{rs[3].Seq: m.self.Session, rs[4].Seq: 0}
		k.failIf(fmt.Sprint(live) != fmt.Sprint(want),
			"asked again for one published, one abandoned, one that waits, one held, one ready and two that never were: sequences and holders are %v, want %v", live, want)
		k.failIf(len(p.RecheckedBlocking) != 1 || p.RecheckedBlocking[0].Seq != rs[2].Seq || p.RecheckedBlocking[0].Why != core.BlockedByRetry || p.RecheckedBlocking[0].Key != "k",
			"asked again for one that waits for its next attempt, and others: %+v wait", p.RecheckedBlocking)
	}
}

// Without this the keys of a process that stopped wait for ever.
func holdOfGoneSessionIsNone(k *kit) {
	by := k.join(1)
	for crashes, end := range []func(m *member){func(m *member) { m.heartbeat(leave) }, func(m *member) { m.die(by) }} {
		m := k.owner(1)
		rs := m.some(3, key(waybill.NewID()))
		m.settle(core.Retry(&rs[0], errNo, 0))
		m.dueIs("one failed", 1, 0)
		m.hold(rs[1].Ref)
		end(m)
		by.takeOwnership(core.AllSlots)
		p := by.read(core.ReadRequest{NewlyOwned: []core.RouteSlots{k.all()}, Ranges: []core.Range{wide(k.all())}, BlockingLimit: 100, Bytes: 1 << 20})
		k.expectWaiting("its holder is gone", p.Blocking, waits(&rs[0], core.BlockedByRetry, 0, by.version(rs[0].Ref)))
		for _, r := range p.Ranges[0].Records {
			k.failIf(r.HeldBy != 0, "its holder is gone, and a record is held by session %d", r.HeldBy)
		}
		rs = append(rs[:1], by.find(ids(rs[1:])...)...) // a crash may have changed their versions
		by.hold(rs[1].Ref, rs[2].Ref)
		r := by.dueIs("its holder is gone", 1, 0).Retries[0]
		k.failIf(!r.Failed, "a retry whose holder is gone has not failed")
		k.counted("a retry whose holder is gone", r, 1, crashes)
		by.settle(core.Published(&r), core.Published(&rs[1]), core.Published(&rs[2]))
		by.free(core.AllSlots)
	}
}
