package storetest_test

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

func eachEnvelope(fn func(e *waybill.Envelope)) broken {
	return broken{record: func(r *core.Record) { fn(&r.Envelope) }}
}

// stages is a fault in the staged messages.
func stages(fn func(m *waybill.Message)) broken {
	return broken{messages: func(msgs []waybill.Message) []waybill.Message {
		each(msgs, fn)
		return msgs
	}}
}

func eachStaged(fn func(s *waybill.Staged)) broken {
	return broken{staged: func(s []waybill.Staged) { each(s, fn) }}
}

func eachCount(fn func(c *admin.Count)) broken {
	return broken{counts: func(cs []admin.Count) { each(cs, fn) }}
}

func each[T any](all []T, fn func(one *T)) {
	for i := range all {
		fn(&all[i])
	}
}

// outcomesOf spoils the outcomes of one event.
func outcomesOf(ev core.Event, fn func(o core.Outcome, r *core.Record) core.Outcome) broken {
	return broken{settle: func(_ *broken, o core.Outcome, r *core.Record) core.Outcome {
		if o.Event() == ev {
			return fn(o, r)
		}
		return o
	}}
}

func released(_ core.Outcome, r *core.Record) core.Outcome { return core.Release(r, 0, false) }

// Every fault is caught by the check that is there for it.
var faults = []faulty{
	{"computes the life in microseconds, and overflows", "expires-in-centuries", broken{record: func(r *core.Record) {
		r.ExpiresIn = time.Duration(r.Envelope.Expires.UnixMicro()-time.Now().UnixMicro()) * time.Microsecond
	}}},
	{"commit loses the message", "commit-shows-message", broken{drops: true}},
	{"rollback commits", "rollback-leaves-nothing", broken{commits: true}},
	{"stages at commit only", "stage-copies-its-input", broken{lateSend: true}},
	{"stages backwards", "order-within-transaction", backwards},
	{"stages backwards", "order-across-transactions", backwards},
	{"ignores the context of stage", "stage-heeds-its-context", broken{deaf: true}},
	{"ignores the contexts of calls", "calls-heed-their-context", broken{deaf: true}},
	{"loses the duplicate flag", "duplicate-is-reported", eachStaged(func(s *waybill.Staged) { s.Duplicate = false })},
	{"makes duplicates", "duplicate-is-reported", stages(func(m *waybill.Message) {
		if m.ID != "" {
			m.ID += waybill.NewID()
		}
	})},
	{"ignores delays", "delay-is-honoured", stages(func(m *waybill.Message) { m.Delay = 0 })},
	{"ignores times", "deliver-at-is-honoured", stages(func(m *waybill.Message) { m.DeliverAt = time.Time{} })},
	{"is two seconds early", "deliver-at-is-honoured", stages(func(m *waybill.Message) {
		if time.Until(m.DeliverAt) > 0 {
			m.DeliverAt = m.DeliverAt.Add(-2 * time.Second)
		}
	})},
	{"cuts long bodies", "large-body-round-trip", eachEnvelope(func(e *waybill.Envelope) { e.Body = e.Body[:min(len(e.Body), 650_000)] })},
	{"loses the scope", "context-fills-scope", eachEnvelope(func(e *waybill.Envelope) { e.RunID = "" })},
	{"loses the content type", "empty-fields-are-filled", eachEnvelope(func(e *waybill.Envelope) { e.Type = "" })},
	{"trims bad input", "bad-input-is-refused-as-a-whole", stages(func(m *waybill.Message) { m.ID = "" })},
	{"passes by late commits", "late-commit-is-not-skipped", broken{page: func(b *broken, p *core.ReadResult) {
		for i := range p.Ranges {
			p.Ranges[i].Records = slices.DeleteFunc(p.Ranges[i].Records, func(r core.Record) bool {
				b.mark = max(b.mark, int64(r.Envelope.HLC))
				return int64(r.Envelope.HLC) < b.mark
			})
		}
	}}},
	{"drops a record", "many-messages-mixed-topics", broken{page: func(_ *broken, p *core.ReadResult) {
		for i := range p.Ranges {
			if rs := p.Ranges[i].Records; len(rs) > 20 {
				p.Ranges[i].Records = rs[1:]
			}
		}
	}}},
	{"loses the second route", "several-routes-of-one-message", stages(func(m *waybill.Message) { m.Routes = m.Routes[:1] })},
	{"remembers what was rolled back", "duplicate-of-rolled-back-is-none", broken{commits: true}},
	{"forgets what was abandoned", "duplicate-of-abandoned-is-reported", eachStaged(func(s *waybill.Staged) { s.Duplicate = false })},
	{"does not say what was committed meanwhile", "duplicate-of-running-transaction-waits", eachStaged(func(s *waybill.Staged) { s.Duplicate = false })},
	{"hands published ones out again", "concurrent-commits-all-arrive", outcomesOf(core.EventConfirmed, func(o core.Outcome, r *core.Record) core.Outcome {
		if r.Envelope.Key == "" {
			return o
		}
		return released(o, r)
	})},
	{"cannot tell what cannot be read", "unreadable-row-is-reported", broken{record: func(r *core.Record) { r.Err = nil }}},
	{"counts the age from the retry", "age-counts-from-due", broken{record: func(r *core.Record) {
		if r.Failed {
			r.DueFor = 0
		}
	}}},
	{"counts no reasons", "counts-per-state", eachCount(func(c *admin.Count) { c.Reason = "" })},
	{"counts what is held as pending", "counts-per-state", eachCount(func(c *admin.Count) {
		if c.State == core.StateProcessing {
			c.State = core.StatePending
		}
	})},
	{"answers one of two", "settle-heeds-its-context", broken{results: func(rs core.Results) {
		if len(rs) > 1 && rs[0] != nil {
			rs[1] = nil
		}
	}}},
	{"an abandoned one holds its key", "key-continues-after-abandoned", blocksAlways},
	{"an abandoned one never holds its key", "key-blocks-after-abandoned", blocksNever},
	{"never wakes", "wait-wakes-on-commit", broken{wait: sleepThrough}},
	{"misses what came before", "wait-loses-nothing", broken{wait: sleepThrough}},
	{"does not know timers", "wait-wakes-for-timers", broken{wait: sleepThrough}},
	{"wakes in vain", "wait-is-not-woken-in-vain", broken{wait: func(context.Context, *broken, time.Duration) (core.WakeCause, error) {
		return core.WakeNotify, nil
	}}},
	{"ignores the limit", "wait-ends-at-limit", broken{wait: func(ctx context.Context, b *broken, _ time.Duration) (core.WakeCause, error) {
		return sleepThrough(ctx, b, time.Hour)
	}}},
	{"ignores the context of wait", "wait-ends-with-context", broken{wait: func(ctx context.Context, b *broken, limit time.Duration) (core.WakeCause, error) {
		return sleepThrough(context.WithoutCancel(ctx), b, limit)
	}}},
}

// backwards stages the messages of a call in the other order and does not say so.
var backwards = broken{
	messages: func(msgs []waybill.Message) []waybill.Message {
		slices.Reverse(msgs)
		return msgs
	},
	staged: func(s []waybill.Staged) { slices.Reverse(s) },
}

// blocksAlways and blocksNever do not ask on which routes an abandoned record blocks its key.
var (
	blocksAlways = broken{look: func(l *core.ReadRequest) {
		if len(l.NewlyOwned) > 0 {
			l.BlockingRoutes = []string{l.NewlyOwned[0].Route}
		}
	}}
	blocksNever = broken{look: func(l *core.ReadRequest) { l.BlockingRoutes = nil }}
)

func sleepThrough(ctx context.Context, _ *broken, limit time.Duration) (core.WakeCause, error) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-t.C:
		return core.WakeLimit, nil
	case <-ctx.Done():
		return core.WakeStop, nil
	}
}
