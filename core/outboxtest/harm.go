package outboxtest

import (
	"errors"

	"github.com/waybill-go/waybill/core"
)

var harmChecks = []named{
	{"zero-outcome-is-refused", zeroOutcomeIsRefused},
	{"bad-limits-do-no-harm", badLimitsDoNoHarm},
	{"nobody-is-no-session", nobodyIsNoSession},
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
