package storetest_test

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/admin/audit"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/internal/content"
)

// HighWater makes a broken store a core.ClockSeeder.
func (b *broken) HighWater(ctx context.Context) (hlc.Timestamp, error) {
	if b.water != nil {
		return b.water(ctx, b)
	}
	return b.inner.HighWater(ctx)
}

// highest returns the highest stamp among the stored records that count.
func highest(counts func(s core.State) bool) broken {
	return broken{water: func(_ context.Context, b *broken) (ts hlc.Timestamp, err error) {
		for _, r := range b.inner.Records() {
			if counts(r.State) {
				ts = max(ts, r.Envelope.HLC)
			}
		}
		return ts, nil
	}}
}

// sticky answers a blocking head for ever, once it has been seen.
var sticky = broken{page: func(b *broken, p *core.ReadResult) {
	for _, w := range p.Blocking {
		if w.Why == core.BlockedByAbandoned {
			b.heads = append(b.heads, w)
		}
	}
	for _, w := range b.heads {
		if !slices.ContainsFunc(p.Blocking, func(x core.BlockingRecord) bool { return x.Ref == w.Ref }) {
			p.Blocking = append(p.Blocking, w)
		}
	}
}}

// current settles a record of any version.
var current = broken{settle: func(b *broken, o core.Outcome, r *core.Record) core.Outcome {
	if last := b.last[r.Seq]; last.ID == r.ID {
		r.Ref = last.Ref
	}
	switch o.Event() { //nolint:exhaustive // the outcomes of late ones
	case core.EventAttemptFailed:
		return core.Retry(r, errors.New(o.Error()), o.In())
	case core.EventGivenUp:
		return core.Abandon(r, o.Reason(), errors.New(o.Error()))
	case core.EventReleased:
		return core.Release(r, o.In(), o.Unknown())
	}
	return o
}}

// forgiving answers what is stale as if it had been settled.
var forgiving = broken{results: func(rs core.Results) {
	for i := range rs {
		if errors.Is(rs[i], core.ErrChanged) {
			rs[i] = nil
		}
	}
}}

// onlyFirst waits for the first of several routes.
func onlyFirst(ctx context.Context, b *broken, limit time.Duration) (core.WakeCause, error) {
	return b.inner.Wait(ctx, b.waiting[:1], limit)
}

// onlyLast waits for the last of several routes.
func onlyLast(ctx context.Context, b *broken, limit time.Duration) (core.WakeCause, error) {
	return b.inner.Wait(ctx, b.waiting[len(b.waiting)-1:], limit)
}

// noTimersMeanwhile plans its sleep when it begins: it hears no timer that comes later.
func noTimersMeanwhile(ctx context.Context, b *broken, limit time.Duration) (core.WakeCause, error) {
	end := time.Now().Add(limit)
	cause, err := b.inner.Wait(ctx, b.waiting, limit)
	if err != nil || cause != core.WakeLimit {
		return cause, err
	}
	return sleepThrough(ctx, b, time.Until(end))
}

// without compares names that fold makes the same.
func without(fold func(s string) string, of func(m *waybill.Message) *string) broken {
	return stages(func(m *waybill.Message) {
		s := of(m)
		*s = fold(*s)
	})
}

func noCase(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "NAME", "name"), "Name", "name")
}

func noSpace(s string) string { return strings.TrimRight(s, " ") }

func noAccent(s string) string {
	return strings.NewReplacer("é", "e", "\u0301", "", "ｎ", "n").Replace(s)
}

func idOf(m *waybill.Message) *string     { return &m.ID }
func topicIn(m *waybill.Message) *string  { return &m.Topic }
func keyOf(m *waybill.Message) *string    { return &m.Key }
func dedupeOf(m *waybill.Message) *string { return &m.DedupeKey }

// routeless folds the case of routes.
var routeless = stages(func(m *waybill.Message) {
	for i, route := range m.Routes {
		m.Routes[i] = noCase(route)
	}
})

// locking cleans nothing while a transaction has locked something, or waits for its end.
var locking = broken{clean: func(ctx context.Context, b *broken, owner string, lease time.Duration) (core.Cleaned, error) {
	for b.open.Load() > 0 && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	if err := ctx.Err(); err != nil {
		return core.Cleaned{}, err
	}
	return b.inner.Clean(ctx, owner, lease)
}}

// sweeping sweeps all that waits for a retry.
var sweeping = broken{clean: func(ctx context.Context, b *broken, owner string, lease time.Duration) (core.Cleaned, error) {
	for _, st := range b.inner.States() {
		if st.State == core.StateFailed {
			r := core.Record{Ref: core.Ref{Route: st.Route, Seq: st.Seq, ID: st.ID, Version: st.Version}, Slot: st.Slot}
			b.inner.Settle(ctx, b.self, []core.Outcome{core.Cancel(&r, waybill.ReasonExpired)})
		}
	}
	return b.inner.Clean(ctx, owner, lease)
}}

// keepsCrashes hands redriven records out with the crashes that they had.
var keepsCrashes = broken{page: func(b *broken, p *core.ReadResult) {
	for _, rs := range p.Ranges {
		for i := range rs.Records {
			r := &rs.Records[i]
			b.crashes = max(b.crashes, r.Crashes)
			r.Crashes = b.crashes
		}
	}
}}

var lastingFaults = []faulty{
	{"remembers no stamps", "high-water-covers-what-was-staged", highest(func(core.State) bool { return false })},
	{"remembers stamps of pending records only", "high-water-covers-what-was-staged", highest(func(s core.State) bool { return s == core.StatePending })},
	{"remembers stamps of what is stored only", "high-water-survives-publishing", highest(func(core.State) bool { return true })},
	{"remembers stamps of live records only", "high-water-survives-publishing", highest(func(s core.State) bool { return !s.Terminal() })},
	{"remembers any stamp", "high-water-is-bounded", highest(func(core.State) bool { return true })},
	{"remembers nothing beyond its clock", "high-water-is-bounded", broken{water: func(ctx context.Context, b *broken) (hlc.Timestamp, error) {
		ts, err := b.inner.HighWater(ctx)
		return min(ts, hlc.Timestamp(time.Now().UnixMilli()<<16)), err
	}}},
	{"forgets all for a stamp that is too far ahead", "high-water-is-bounded", broken{water: func(ctx context.Context, b *broken) (hlc.Timestamp, error) {
		for _, r := range b.inner.Records() {
			if r.Envelope.HLC > hlc.MaxMark(time.Now()) {
				return 0, nil
			}
		}
		return b.inner.HighWater(ctx)
	}}},
	{"settles any version", "stale-settle-changes-nothing", current},
	{"forgives what is stale", "stale-settle-changes-nothing", forgiving},
	{"settles any version", "stale-settle-of-kept-changes-nothing", current},
	{"forgives what is stale", "stale-settle-of-kept-changes-nothing", forgiving},
	{"keeps crashes", "redrive-resets-crashes", keepsCrashes},
	{"counts one crash", "redrive-resets-crashes", broken{record: func(r *core.Record) { r.Crashes = min(r.Crashes, 1) }}},
	{"keeps the expiry", "redrive-removes-the-expiry", broken{record: func(r *core.Record) { r.Expires = true }}},
	{"does not mark a repair", "redrive-marks-repaired", broken{record: func(r *core.Record) { delete(r.Envelope.Headers, content.Header) }}},
	{"marks the last repair", "redrive-marks-repaired", broken{record: func(r *core.Record) {
		if _, marked := r.Envelope.Headers[content.Header]; marked {
			r.Envelope.Headers[content.Header] = hex.EncodeToString([]byte(content.Hash(&r.Envelope, false)))
		}
	}}},
	{"has no other header then", "redrive-marks-repaired", broken{record: func(r *core.Record) {
		if mark, marked := r.Envelope.Headers[content.Header]; marked {
			r.Envelope.Headers = map[string]string{content.Header: mark}
		}
	}}},
	{"sweeps what was redriven", "redrive-removes-the-expiry", sweeping},
	{"remembers the head", "deleted-head-frees-its-key", sticky},
	{"remembers the head", "purged-head-frees-its-key", sticky},
	{"cleans behind locks", "clean-passes-what-is-locked", locking},
	{"knows no age", "oldest-counts-from-due", eachCount(func(c *admin.Count) { c.Oldest = 0 })},
	{"knows no age of what is held", "oldest-counts-from-due", eachCount(func(c *admin.Count) {
		if c.State == core.StateProcessing {
			c.Oldest = 0
		}
	})},
	{"takes all for due", "what-is-due-is-counted", eachCount(func(c *admin.Count) { c.Due = c.N })},
	{"knows the age of the newest", "oldest-counts-from-due", eachCount(func(c *admin.Count) { c.Oldest = min(c.Oldest, time.Millisecond) })},
	{"counts the age of what is scheduled", "oldest-counts-from-due", eachCount(func(c *admin.Count) { c.Oldest += time.Second })},
	{"takes a local time for UTC", "deliver-at-knows-time-zones", stages(func(m *waybill.Message) {
		if at := m.DeliverAt; !at.IsZero() {
			m.DeliverAt = time.Date(at.Year(), at.Month(), at.Day(), at.Hour(), at.Minute(), at.Second(), at.Nanosecond(), time.UTC)
			if m.DeliverAt.Year() < 2000 {
				m.DeliverAt = time.Time{}
			}
		}
	})},
	{"waits for the first route", "wait-wakes-for-each-route", broken{wait: onlyFirst}},
	{"waits for the last route", "wait-wakes-for-each-route", broken{wait: onlyLast}},
	{"does not know timers", "wait-wakes-for-timers-staged-meanwhile", broken{wait: noTimersMeanwhile}},
	{"ids without case", "ids-are-compared-exactly", without(noCase, idOf)},
	{"ids without spaces", "ids-are-compared-exactly", without(noSpace, idOf)},
	{"ids without accents", "ids-are-compared-exactly", without(noAccent, idOf)},
	{"topics without case", "ids-are-compared-exactly", without(noCase, topicIn)},
	{"routes without case", "ids-are-compared-exactly", routeless},
	{"keys without case", "keys-are-compared-exactly", without(noCase, keyOf)},
	{"keys without spaces", "keys-are-compared-exactly", without(noSpace, keyOf)},
	{"keys without accents", "keys-are-compared-exactly", without(noAccent, keyOf)},
	{"dedupe keys without case", "dedupe-keys-are-compared-exactly", without(noCase, dedupeOf)},
	{"topics without case", "dedupe-keys-are-compared-exactly", without(noCase, topicIn)},
	{"dedupe keys without spaces", "dedupe-keys-are-compared-exactly", without(noSpace, dedupeOf)},
	{"tenants share dedupe keys", "dedupe-keys-belong-to-tenants", without(func(string) string { return "" }, func(m *waybill.Message) *string { return &m.Tenant })},
	{"sources share ids", "id-of-another-source-is-refused", without(func(string) string { return "/x" }, func(m *waybill.Message) *string { return &m.Source })},
	{"sources share dedupe keys", "dedupe-key-of-another-source-is-refused", without(func(string) string { return "/x" }, func(m *waybill.Message) *string { return &m.Source })},
	{"writes a line twice", "audit-record-is-added-to", broken{recorded: func(*audit.Entry) bool { return true }}},
	{"takes any phase", "audit-record-is-added-to", broken{recorded: func(e *audit.Entry) bool {
		if e.Action == "" {
			e.Action, e.Phase = "x", "end"
		}
		return false
	}}},
	{"forgets the ids of a line", "audit-record-is-added-to", broken{recorded: func(e *audit.Entry) bool { e.IDs = nil; return false }}},
	{"takes the role from the writer", "audit-record-is-added-to", broken{lines: func(list []audit.Entry) []audit.Entry {
		for i := range list {
			list[i].Role = "eve"
		}
		return list
	}}},
	{"lists one line more", "audit-record-is-added-to", broken{lines: func(list []audit.Entry) []audit.Entry {
		return append(list, list...)
	}}},
	{"tenants without case", "filters-compare-exactly", without(noCase, func(m *waybill.Message) *string { return &m.Tenant })},
	{"keys without spaces", "filters-compare-exactly", without(noSpace, keyOf)},
}
