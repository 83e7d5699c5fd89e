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

func records(fn func(r *core.Record)) fault { return fault{record: fn} }

func looks(fn func(l *core.Look)) fault { return fault{look: fn} }

func pages(fn func(p *core.Page)) fault {
	return fault{page: func(_ *broken, _ *core.Look, p *core.Page) { fn(p) }}
}

// passing goes through all records of the keys that were asked for, to find the first ones.
var passing = fault{read: func(ctx context.Context, b *broken, self core.Session, l core.Look) (core.Page, error) {
	if len(l.Keys) > 0 {
		all := l
		all.Ranges, all.Keys = nil, slices.Clone(l.Keys)
		for i := range all.Keys {
			all.Keys[i].Limit = 10_000
		}
		if _, err := b.below(ctx, self, all); err != nil {
			return core.Page{}, err
		}
	}
	return b.below(ctx, self, l)
}}

// rereading begins each range at the beginning, and leaves out what was not asked for.
var rereading = fault{read: func(ctx context.Context, b *broken, self core.Session, l core.Look) (core.Page, error) {
	for i := range l.Ranges {
		all := l
		all.Ranges, all.Keys = []core.Range{l.Ranges[i]}, nil
		all.Ranges[0].From, all.Ranges[0].Limit, all.Ranges[0].Leave = 0, 10_000, nil
		if _, err := b.below(ctx, self, all); err != nil {
			return core.Page{}, err
		}
	}
	return b.below(ctx, self, l)
}}

// apart reads the parts of one snapshot one after the other.
var apart = fault{read: func(ctx context.Context, b *broken, self core.Session, l core.Look) (core.Page, error) {
	one := l
	one.Ranges, one.Keys, one.Again, one.Fresh = nil, nil, nil, nil
	p, err := b.store.Read(ctx, self, one)
	also := func(l core.Look) core.Page {
		time.Sleep(time.Millisecond)
		p, _ := b.store.Read(ctx, self, l)
		return p
	}
	for i := range l.Ranges {
		one = core.Look{Ranges: l.Ranges[i : i+1], Limit: l.Limit, Bytes: l.Bytes}
		q := also(one)
		p.Ranges, p.Last = append(p.Ranges, q.Ranges...), max(p.Last, q.Last)
	}
	for i := range l.Keys {
		one = core.Look{Keys: l.Keys[i : i+1], Blocks: l.Blocks, Limit: l.Limit, Bytes: l.Bytes}
		q := also(one)
		p.Keys, p.Last = append(p.Keys, q.Keys...), max(p.Last, q.Last)
	}
	one = core.Look{Fresh: l.Fresh, AfterFresh: l.AfterFresh, Blocks: l.Blocks, Limit: l.Limit}
	p.Waiting = also(one).Waiting
	one = core.Look{Again: l.Again, Limit: l.Limit}
	q := also(one)
	p.Again, p.AgainWaiting = q.Again, q.AgainWaiting
	if p.Upper == 0 {
		p.Upper = 1
	}
	return p, err
}}

// blind says that all transactions have ended.
var blind = pages(func(p *core.Page) { p.Running, p.Next = nil, p.Upper })

// bound promises that nothing appears later than d after its transaction began.
func bound(d time.Duration) func(*broken, *core.StoreTraits) {
	return func(_ *broken, t *core.StoreTraits) { t.Bound = d }
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
	{"forgets what is withdrawable", "envelope-comes-back", records(func(r *core.Record) { r.Withdrawable = false })},
	{"has no age", "times-come-back-as-durations", records(func(r *core.Record) { r.Age = 0 })},
	{"has no expiry", "times-come-back-as-durations", records(func(r *core.Record) { r.Life = max(r.Life, 0) })},
	{"stages backwards", "range-is-in-order", fault{rowsIn: func(rows []core.StagedRow) { slices.Reverse(rows) }}},
	{"includes the beginning", "range-keeps-to-its-bounds", looks(func(l *core.Look) {
		for i := range l.Ranges {
			l.Ranges[i].From--
		}
	})},
	{"excludes the end", "range-keeps-to-its-bounds", looks(func(l *core.Look) {
		for i := range l.Ranges {
			l.Ranges[i].To--
		}
	})},
	{"ignores slots", "range-keeps-to-its-slots", looks(func(l *core.Look) {
		for i := range l.Ranges {
			l.Ranges[i].Slots = core.AllSlots
		}
	})},
	{"forgets More", "range-keeps-to-its-limit", pages(func(p *core.Page) {
		for i := range p.Ranges {
			p.Ranges[i].More = false
		}
	})},
	{"ignores Bytes", "range-keeps-to-its-bytes", looks(func(l *core.Look) { l.Bytes = 1 << 40 })},
	{"drops what is left out and its neighbour", "range-may-leave-keys-out", fault{page: func(_ *broken, l *core.Look, p *core.Page) {
		for i := range p.Ranges {
			if len(l.Ranges[i].Leave) > 0 {
				p.Ranges[i].Records = p.Ranges[i].Records[:len(p.Ranges[i].Records)-1]
			}
		}
	}}},
	{"goes through a key to find its first record", "read-is-bounded-behind-a-blocked-key", passing},
	{"reads everything each time", "read-is-bounded-behind-a-blocked-key", rereading},
	{"ignores Keyed", "range-of-keyed-records", looks(func(l *core.Look) {
		for i := range l.Ranges {
			l.Ranges[i].Keyed = false
		}
	})},
	{"has retries in line", "ready-is-what-is-due", fault{outcome: func(_ *broken, o core.Outcome, r *core.Record) core.Outcome {
		if o.In() > 0 {
			return core.Release(r, 0, false)
		}
		return o
	}}},
	{"has timers in line", "ready-is-what-is-due", fault{rowsIn: func(rows []core.StagedRow) {
		for i := range rows {
			rows[i].Delay = 0
		}
	}}},
	{"commits what rolls back", "uncommitted-is-not-ready", fault{commits: true}},
	{"reads behind locks", "read-waits-for-no-lock", fault{waits: "read"}},
	{"renews behind locks", "read-waits-for-no-lock", fault{waits: "meet"}},
	{"owns all", "owned-are-the-slots-of-the-session", pages(func(p *core.Page) {
		for i := range p.Owned {
			p.Owned[i] = core.AllSlots
		}
	})},
	{"changes its epoch", "epoch-is-stable", fault{page: func(b *broken, _ *core.Look, p *core.Page) {
		b.count++
		p.Epoch = strconv.Itoa(b.count)
	}}},
	{"reads ranges one after the other", "page-is-one-snapshot", apart},
	{"reads what waits apart", "page-and-waiting-are-one-snapshot", apart},
	{
		"answers an older last number", "last-covers-the-page",
		fault{page: func(_ *broken, l *core.Look, p *core.Page) { p.Last, p.Upper = l.Last, 0 }},
	},
	{"sees no running transactions", "page-names-a-running-transaction", blind},
	{"never says that something ended", "transactions-come-to-rest", pages(func(p *core.Page) { p.Upper += 1 << 40 })},
	{"sees no running transactions", "page-holds-for-random-transactions", blind},
	{
		"sees only the first that runs", "page-holds-for-random-transactions",
		pages(func(p *core.Page) { p.Running = p.Running[:min(1, len(p.Running))] }),
	},
	{
		"promises a bound that is too short", "page-holds-for-random-transactions",
		fault{page: blind.page, traits: bound(2 * time.Millisecond)},
	},
	{"shows some records a page later", "page-holds-for-random-transactions", fault{page: func(b *broken, _ *core.Look, p *core.Page) {
		for i := range p.Ranges {
			p.Ranges[i].Records = slices.DeleteFunc(p.Ranges[i].Records, func(r core.Record) bool {
				hidden := r.Seq%5 == 0 && !b.hides[r.ID]
				b.hides[r.ID] = true
				return hidden
			})
		}
	}}},
	{"loses records", "page-holds-for-random-transactions", pages(func(p *core.Page) {
		for i := range p.Ranges {
			p.Ranges[i].Records = slices.DeleteFunc(p.Ranges[i].Records, func(r core.Record) bool { return r.Seq%50 == 0 })
		}
	})},
	{"forgets the holds of others", "fresh-answers-what-waits", pages(func(p *core.Page) {
		p.Waiting = slices.DeleteFunc(p.Waiting, func(w core.Waiting) bool { return w.Why == core.ObstacleHeld })
	})},
	{"forgets retries", "fresh-answers-what-waits", pages(func(p *core.Page) {
		p.Waiting = slices.DeleteFunc(p.Waiting, func(w core.Waiting) bool { return w.Why == core.ObstacleRetrying })
	})},
	{"never blocks", "fresh-answers-blocking-heads-if-asked", looks(func(l *core.Look) { l.Blocks = nil })},
	{"always blocks", "fresh-answers-blocking-heads-if-asked", looks(func(l *core.Look) {
		for _, p := range l.Fresh {
			l.Blocks = append(l.Blocks, p.Route)
		}
	})},
	{"forgets that there is more", "fresh-comes-in-pages", pages(func(p *core.Page) { p.MoreWaiting = false })},
	{
		"has retries before holds", "fresh-comes-in-pages",
		fault{page: func(_ *broken, _ *core.Look, p *core.Page) { slices.Reverse(p.Waiting) }},
	},
	{"forgets what holds a key", "key-answers-what-holds-it", pages(func(p *core.Page) {
		for i := range p.Keys {
			p.Keys[i].Waiting = nil
		}
	})},
	{"keeps what is gone", "again-leaves-out-what-is-gone", fault{page: func(_ *broken, l *core.Look, p *core.Page) {
		for _, ref := range l.Again[:min(1, len(l.Again))] {
			p.AgainWaiting = append(p.AgainWaiting, core.Waiting{Ref: ref, Why: core.ObstacleRetrying})
		}
	}}},
	{"ignores ids", "again-leaves-out-what-is-gone", fault{look: func(l *core.Look) {
		if n := len(l.Again); n == 7 {
			l.Again = slices.Clone(l.Again)
			l.Again[5] = l.Again[4]
			l.Again[5].Seq++
		}
	}, page: func(b *broken, l *core.Look, p *core.Page) {
		for _, ref := range l.Again {
			if r := b.at(ref); r != nil && r.ID != ref.ID {
				r.Slot = core.SlotOf(r.Route, r.Envelope.Key, r.ID)
				p.Again = append(p.Again, *r)
			}
		}
	}}},
	{"keeps the holds of the dead", "hold-of-gone-session-is-none", fault{page: func(b *broken, _ *core.Look, p *core.Page) {
		eachRecord(p, func(r *core.Record) {
			for ref, s := range b.holds {
				if ref.Seq == r.Seq && r.Holder == 0 {
					r.Holder = s
				}
			}
		})
	}}},
	{"forgets control records", "control-records-come-with-the-page", pages(func(p *core.Page) { p.Control = nil })},
	{"answers control records of all slots", "control-records-come-with-the-page", looks(func(l *core.Look) {
		for i := range l.Parts {
			l.Parts[i].Slots = core.AllSlots
		}
	})},
	{"has control records in line", "control-records-are-no-records", fault{page: func(b *broken, l *core.Look, p *core.Page) {
		if len(l.Fresh) == 0 {
			return
		}
		r, _ := b.store.Meet(context.Background(), core.Meeting{})
		q, _ := b.store.Read(context.Background(), r.Members[0].Session, core.Look{Parts: l.Fresh, Limit: 10})
		for _, c := range q.Control {
			p.Waiting = append(p.Waiting, core.Waiting{Ref: core.Ref{Route: c.Route, Seq: c.Seq, ID: c.ID}, Why: core.ObstacleBlocking})
		}
	}}},
}
