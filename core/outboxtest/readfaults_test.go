package outboxtest_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxtest"
)

// passing goes through all records of the keys that were asked for, to find the first ones.
var passing = fault{read: func(ctx context.Context, b *broken, self core.Session, l core.ReadRequest) (core.ReadResult, error) {
	if len(l.Keys) > 0 {
		all := l
		all.Ranges, all.Keys = nil, slices.Clone(l.Keys)
		for i := range all.Keys {
			all.Keys[i].Limit = 10_000
		}
		if _, err := b.below(ctx, self, all); err != nil {
			return core.ReadResult{}, err
		}
	}
	return b.below(ctx, self, l)
}}

// rereading begins each range at the beginning, and leaves out what was not asked for.
var rereading = fault{read: func(ctx context.Context, b *broken, self core.Session, l core.ReadRequest) (core.ReadResult, error) {
	for i := range l.Ranges {
		all := l
		all.Ranges, all.Keys = []core.Range{l.Ranges[i]}, nil
		all.Ranges[0].AfterSeq, all.Ranges[0].Limit, all.Ranges[0].ExcludeKeys = 0, 10_000, nil
		if _, err := b.below(ctx, self, all); err != nil {
			return core.ReadResult{}, err
		}
	}
	return b.below(ctx, self, l)
}}

// apart reads the parts of one snapshot one after the other.
var apart = fault{read: func(ctx context.Context, b *broken, self core.Session, l core.ReadRequest) (core.ReadResult, error) {
	one := l
	one.Ranges, one.Keys, one.Recheck, one.NewlyOwned = nil, nil, nil, nil
	p, err := b.store.Read(ctx, self, one)
	also := func(l core.ReadRequest) core.ReadResult {
		time.Sleep(time.Millisecond)
		p, _ := b.store.Read(ctx, self, l)
		return p
	}
	for i := range l.Ranges {
		one = core.ReadRequest{Ranges: l.Ranges[i : i+1], BlockingLimit: l.BlockingLimit, Bytes: l.Bytes}
		q := also(one)
		p.Ranges, p.LastSeq = append(p.Ranges, q.Ranges...), max(p.LastSeq, q.LastSeq)
	}
	for i := range l.Keys {
		one = core.ReadRequest{Keys: l.Keys[i : i+1], BlockingRoutes: l.BlockingRoutes, BlockingLimit: l.BlockingLimit, Bytes: l.Bytes}
		q := also(one)
		p.Keys, p.LastSeq = append(p.Keys, q.Keys...), max(p.LastSeq, q.LastSeq)
	}
	one = core.ReadRequest{NewlyOwned: l.NewlyOwned, NewlyOwnedAfter: l.NewlyOwnedAfter, BlockingRoutes: l.BlockingRoutes, BlockingLimit: l.BlockingLimit}
	p.Blocking = also(one).Blocking
	one = core.ReadRequest{Recheck: l.Recheck, BlockingLimit: l.BlockingLimit}
	q := also(one)
	p.Rechecked, p.RecheckedBlocking = q.Rechecked, q.RecheckedBlocking
	if p.LastSeqXmax == 0 {
		p.LastSeqXmax = 1
	}
	return p, err
}}

// blind says that all transactions have ended.
var blind = pages(func(p *core.ReadResult) { p.RunningTxs, p.SnapshotXmax = nil, p.LastSeqXmax })

// bound promises that nothing appears later than d after its transaction began.
func bound(d time.Duration) func(*broken, *core.StoreTraits) {
	return func(_ *broken, t *core.StoreTraits) { t.MaxLateCommit = d }
}

// A store with a bound may be wrong about transactions that are younger.
func TestBounded(t *testing.T) {
	t.Parallel()
	outboxtest.RunInBubble(t, func(*testing.T) outboxtest.Harness {
		return newBroken(fault{page: blind.page, traits: bound(time.Second)})
	})
}

var readFaults = []faulty{
	{"loses the subject", "envelope-comes-back", records(func(r *core.Record) { r.Envelope.Subject = "" })},
	{"cuts long bodies", "envelope-comes-back", records(func(r *core.Record) { r.Envelope.Body = r.Envelope.Body[:min(len(r.Envelope.Body), 1<<16-1)] })},
	{"forgets what is cancellable", "envelope-comes-back", records(func(r *core.Record) { r.Cancellable = false })},
	{"has no age", "times-come-back-as-durations", records(func(r *core.Record) { r.DueFor = 0 })},
	{"has no expiry", "times-come-back-as-durations", records(func(r *core.Record) { r.ExpiresIn = max(r.ExpiresIn, 0) })},
	{"stages backwards", "range-is-in-order", fault{rowsIn: func(rows []core.StagedRow) { slices.Reverse(rows) }}},
	{"includes the beginning", "range-keeps-to-its-bounds", eachRange(func(rg *core.Range) { rg.AfterSeq-- })},
	{"excludes the end", "range-keeps-to-its-bounds", eachRange(func(rg *core.Range) { rg.UpToSeq-- })},
	{"ignores slots", "range-keeps-to-its-slots", eachRange(func(rg *core.Range) { rg.Slots = core.AllSlots })},
	{"forgets More", "range-keeps-to-its-limit", eachAnswer(func(rs *core.Records) { rs.More = false })},
	{"ignores Bytes", "range-keeps-to-its-bytes", looks(func(l *core.ReadRequest) { l.Bytes = 1 << 40 })},
	{"drops what is left out and its neighbour", "range-may-leave-keys-out", fault{page: func(_ *broken, l *core.ReadRequest, p *core.ReadResult) {
		for i := range p.Ranges {
			if len(l.Ranges[i].ExcludeKeys) > 0 {
				p.Ranges[i].Records = p.Ranges[i].Records[:len(p.Ranges[i].Records)-1]
			}
		}
	}}},
	{"goes through a key to find its first record", "read-is-bounded-behind-a-blocked-key", passing},
	{"reads everything each time", "read-is-bounded-behind-a-blocked-key", rereading},
	{"ignores Keyed", "range-of-keyed-records", eachRange(func(rg *core.Range) { rg.KeyedOnly = false })},
	{"has retries in line", "ready-is-what-is-due", fault{outcome: func(_ *broken, o core.Outcome, r *core.Record) core.Outcome {
		if o.In() > 0 {
			return core.Release(r, 0, false)
		}
		return o
	}}},
	{"has timers in line", "ready-is-what-is-due", eachRow(func(r *core.StagedRow) { r.Delay = 0 })},
	{"commits what rolls back", "uncommitted-is-not-ready", fault{commits: true}},
	{"reads behind locks", "read-waits-for-no-lock", fault{waits: "read"}},
	{"renews behind locks", "read-waits-for-no-lock", fault{waits: "heartbeat"}},
	{"owns all", "owned-are-the-slots-of-the-session", pages(func(p *core.ReadResult) {
		for i := range p.Owned {
			p.Owned[i] = core.AllSlots
		}
	})},
	{"changes its epoch", "epoch-is-stable", fault{page: func(b *broken, _ *core.ReadRequest, p *core.ReadResult) {
		b.count++
		p.StoreEpoch = strconv.Itoa(b.count)
	}}},
	{"reads ranges one after the other", "page-is-one-snapshot", apart},
	{"reads what waits apart", "page-and-waiting-are-one-snapshot", apart},
	{"answers an older last number", "last-covers-the-page", fault{page: func(_ *broken, l *core.ReadRequest, p *core.ReadResult) { p.LastSeq, p.LastSeqXmax = l.KnownLastSeq, 0 }}},
	{"sees no running transactions", "page-names-a-running-transaction", blind},
	{"never says that something ended", "transactions-come-to-rest", pages(func(p *core.ReadResult) { p.LastSeqXmax += 1 << 40 })},
	{"sees no running transactions", "page-holds-for-random-transactions", blind},
	{"sees only the first that runs", "page-holds-for-random-transactions", pages(func(p *core.ReadResult) { p.RunningTxs = p.RunningTxs[:min(1, len(p.RunningTxs))] })},
	{"promises a bound that is too short", "page-holds-for-random-transactions", fault{page: blind.page, traits: bound(2 * time.Millisecond)}},
	{"shows some records a page later", "page-holds-for-random-transactions", fault{page: func(b *broken, _ *core.ReadRequest, p *core.ReadResult) {
		for i := range p.Ranges {
			p.Ranges[i].Records = slices.DeleteFunc(p.Ranges[i].Records, func(r core.Record) bool {
				hidden := r.Seq%5 == 0 && !b.hides[r.ID]
				b.hides[r.ID] = true
				return hidden
			})
		}
	}}},
	{"loses records", "page-holds-for-random-transactions", eachAnswer(func(rs *core.Records) {
		rs.Records = slices.DeleteFunc(rs.Records, func(r core.Record) bool { return r.Seq%50 == 0 })
	})},
	{"forgets the holds of others", "newly-owned-answers-blocked-records", pages(func(p *core.ReadResult) {
		p.Blocking = slices.DeleteFunc(p.Blocking, func(w core.BlockingRecord) bool { return w.Why == core.BlockedByHold })
	})},
	{"forgets retries", "newly-owned-answers-blocked-records", pages(func(p *core.ReadResult) {
		p.Blocking = slices.DeleteFunc(p.Blocking, func(w core.BlockingRecord) bool { return w.Why == core.BlockedByRetry })
	})},
	{"never blocks", "newly-owned-answers-blocking-heads-if-asked", looks(func(l *core.ReadRequest) { l.BlockingRoutes = nil })},
	{"always blocks", "newly-owned-answers-blocking-heads-if-asked", looks(func(l *core.ReadRequest) {
		for _, p := range l.NewlyOwned {
			l.BlockingRoutes = append(l.BlockingRoutes, p.Route)
		}
	})},
	{"forgets that there is more", "newly-owned-comes-in-pages", pages(func(p *core.ReadResult) { p.MoreBlocking = false })},
	{"has retries before holds", "newly-owned-comes-in-pages", fault{page: func(_ *broken, _ *core.ReadRequest, p *core.ReadResult) { slices.Reverse(p.Blocking) }}},
	{"forgets what holds a key", "key-answers-what-holds-it", pages(func(p *core.ReadResult) {
		for i := range p.Keys {
			p.Keys[i].Blocking = nil
		}
	})},
	{"keeps what is gone", "again-leaves-out-what-is-gone", fault{page: func(_ *broken, l *core.ReadRequest, p *core.ReadResult) {
		for _, ref := range l.Recheck[:min(1, len(l.Recheck))] {
			p.RecheckedBlocking = append(p.RecheckedBlocking, core.BlockingRecord{Ref: ref, Why: core.BlockedByRetry})
		}
	}}},
	{"ignores ids", "again-leaves-out-what-is-gone", fault{look: func(l *core.ReadRequest) {
		if n := len(l.Recheck); n == 7 {
			l.Recheck = slices.Clone(l.Recheck)
			l.Recheck[5] = l.Recheck[4]
			l.Recheck[5].Seq++
		}
	}, page: func(b *broken, l *core.ReadRequest, p *core.ReadResult) {
		for _, ref := range l.Recheck {
			if r := b.at(ref); r != nil && r.ID != ref.ID {
				r.Slot = core.SlotOf(r.Route, r.Envelope.Key, r.ID)
				p.Rechecked = append(p.Rechecked, *r)
			}
		}
	}}},
	{"keeps the holds of the dead", "hold-of-gone-session-is-none", fault{page: func(b *broken, _ *core.ReadRequest, p *core.ReadResult) {
		eachRecord(p, func(r *core.Record) {
			for ref, s := range b.holds {
				if ref.Seq == r.Seq && r.HeldBy == 0 {
					r.HeldBy = s
				}
			}
		})
	}}},
	{"forgets notices", "notices-come-with-the-page", pages(func(p *core.ReadResult) { p.Notices = nil })},
	{"answers notices of all slots", "notices-come-with-the-page", looks(func(l *core.ReadRequest) {
		for i := range l.Slots {
			l.Slots[i].Slots = core.AllSlots
		}
	})},
	{"has notices in line", "notices-are-no-records", fault{page: func(b *broken, l *core.ReadRequest, p *core.ReadResult) {
		if len(l.NewlyOwned) == 0 {
			return
		}
		r, _ := b.store.Heartbeat(context.Background(), core.HeartbeatRequest{})
		q, _ := b.store.Read(context.Background(), r.Members[0].Session, core.ReadRequest{Slots: l.NewlyOwned, BlockingLimit: 10})
		for _, c := range q.Notices {
			p.Blocking = append(p.Blocking, core.BlockingRecord{Ref: core.Ref{Route: c.Route, Seq: c.Seq, ID: c.ID}, Why: core.BlockedByAbandoned})
		}
	}}},
}
