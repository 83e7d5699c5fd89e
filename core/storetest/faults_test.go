package storetest_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

func eachRecord(fn func(r *core.Record)) func(*broken, *core.ClaimRequest, *core.Claim) {
	return func(_ *broken, _ *core.ClaimRequest, c *core.Claim) {
		for i := range c.Records {
			fn(&c.Records[i])
		}
	}
}

func eachEnvelope(fn func(e *core.Envelope)) broken {
	return broken{answer: eachRecord(func(r *core.Record) { fn(&r.Envelope) })}
}

func eachMessage(fn func(m *core.Message)) func(msgs []core.Message) []core.Message {
	return func(msgs []core.Message) []core.Message {
		for i := range msgs {
			fn(&msgs[i])
		}
		return msgs
	}
}

// again builds the outcome o for another claim of the same record.
func again(o *core.Outcome, r *core.Record) core.Outcome {
	err := errors.New(o.Error())
	switch o.Event() { //nolint:exhaustive // the events of outcomes
	case core.EventConfirmed:
		return core.Published(r)
	case core.EventRejected:
		return core.Retry(r, err, o.RetryIn())
	case core.EventReleased:
		return core.Release(r, o.RetryIn())
	default:
		return core.Abandon(r, o.Reason(), err)
	}
}

// Every fault is caught by the check that is there for it.
var faults = []struct {
	name, check string
	store       broken
}{
	{"commit loses the message", "commit-shows-message", broken{drops: true}},
	{"rollback commits", "rollback-leaves-nothing", broken{commits: true}},
	{"stages at commit only", "stage-copies-its-input", broken{lateSend: true}},
	{"stages backwards", "order-within-transaction", broken{messages: func(m []core.Message) []core.Message {
		slices.Reverse(m)
		return m
	}}},
	{"ignores the context of stage", "stage-heeds-its-context", broken{deaf: true}},
	{"ignores the context of claim", "claim-heeds-its-context", broken{deaf: true}},
	{"loses the duplicate flag", "duplicate-is-reported", broken{staged: func(s []core.Staged) {
		for i := range s {
			s[i].Duplicate = false
		}
	}}},
	{"makes duplicates", "duplicate-is-reported", broken{messages: eachMessage(func(m *core.Message) {
		if m.ID != "" {
			m.ID += core.NewID()
		}
	})}},
	{"ignores delays", "delay-is-honoured", broken{messages: eachMessage(func(m *core.Message) { m.Delay = 0 })}},
	{"ignores times", "deliver-at-is-honoured", broken{messages: eachMessage(func(m *core.Message) { m.DeliverAt = time.Time{} })}},
	{"cuts long bodies", "large-body-round-trip", eachEnvelope(func(e *core.Envelope) { e.Body = e.Body[:min(len(e.Body), 1<<20-1)] })},
	{"loses the scope", "context-fills-scope", eachEnvelope(func(e *core.Envelope) { e.RunID = "" })},
	{"loses the content type", "empty-fields-are-filled", eachEnvelope(func(e *core.Envelope) { e.Type = "" })},
	{"trims bad input", "bad-input-is-refused-as-a-whole", broken{messages: eachMessage(func(m *core.Message) { m.ID = "" })}},
	{"passes by late commits", "late-commit-is-not-skipped", broken{answer: func(b *broken, _ *core.ClaimRequest, c *core.Claim) {
		c.Records = slices.DeleteFunc(c.Records, func(r core.Record) bool {
			b.mark = max(b.mark, int64(r.Envelope.HLC))
			return int64(r.Envelope.HLC) < b.mark
		})
	}}},
	{"drops a record", "many-messages-mixed-topics", broken{answer: func(_ *broken, _ *core.ClaimRequest, c *core.Claim) {
		if len(c.Records) > 20 {
			c.Records = c.Records[1:]
		}
	}}},
	{"gives a record twice", "claimers-never-share", broken{answer: func(b *broken, req *core.ClaimRequest, c *core.Claim) {
		if len(b.memory) > 0 && len(c.Records) > 0 && len(c.Records) < req.MaxRecords {
			c.Records = append(slices.Clone(b.memory), c.Records...)
		}
		b.memory = slices.Clone(c.Records[:min(1, len(c.Records))])
	}}},
	{"ignores MaxRecords", "claim-is-bounded-in-records", broken{request: func(r *core.ClaimRequest) { r.MaxRecords++ }}},
	{"ignores MaxBytes", "claim-is-bounded-in-bytes", broken{request: func(r *core.ClaimRequest) { r.MaxBytes = 0 }}},
	{"forgets More", "claim-is-bounded-in-records", broken{answer: func(_ *broken, _ *core.ClaimRequest, c *core.Claim) { c.More = false }}},
	{"forgets NextIn", "next-in-leads-to-timers", broken{answer: func(_ *broken, _ *core.ClaimRequest, c *core.Claim) { c.NextIn = -1 }}},
	{"NextIn is zero when idle", "next-in-is-none-when-idle", broken{answer: func(_ *broken, _ *core.ClaimRequest, c *core.Claim) { c.NextIn = max(c.NextIn, 0) }}},
	{"ignores SkipTopics", "claim-skips-topics", broken{request: func(r *core.ClaimRequest) { r.Routes[0].SkipTopics = nil }}},
	{"claims the first route only", "claim-keeps-to-its-routes", broken{request: func(r *core.ClaimRequest) { r.Routes = r.Routes[:1] }}},
	{"claims backwards", "claim-returns-staging-order", broken{answer: func(_ *broken, _ *core.ClaimRequest, c *core.Claim) { slices.Reverse(c.Records) }}},
	{"hides unreadable rows", "claim-reports-unreadable-row", broken{answer: eachRecord(func(r *core.Record) { r.Err = nil })}},
	{"age restarts", "age-counts-from-due", broken{answer: eachRecord(func(r *core.Record) { r.Age = 0 })}},
	{"leases never end", "expired-lease-is-claimable", broken{request: func(r *core.ClaimRequest) { r.Lease += time.Hour }}},
	{"leases end early", "expired-lease-is-claimable", broken{request: func(r *core.ClaimRequest) { r.Lease /= 3 }}},
	{"counts a crash as an attempt", "expired-lease-is-claimable", broken{answer: eachRecord(func(r *core.Record) { r.Attempts += r.Crashes })}},
	{"does not count crashes", "expired-lease-is-claimable", broken{answer: eachRecord(func(r *core.Record) { r.Crashes = 0 })}},
	{"a crash resets attempts", "attempts-survive-crash", broken{answer: eachRecord(func(r *core.Record) {
		if r.Crashes > 0 {
			r.Attempts = 0
		}
	})}},
	{"settles stale tokens", "stale-token-changes-nothing", broken{settle: func(_ *broken, o *core.Outcome, r *core.Record) core.Outcome { return again(o, r) }}},
	{"says stale tokens are fine", "stale-token-changes-nothing", broken{results: func(rs core.Results) { clear(rs) }}},
	{"says settled tokens are fine", "settled-token-is-stale", broken{results: func(rs core.Results) { clear(rs) }}},
	{"one stale outcome fails all", "stale-one-in-batch", broken{results: func(rs core.Results) {
		if err := rs.FirstErr(); err != nil {
			copy(rs, core.AllFailed(len(rs), err))
		}
	}}},
	{"results are backwards", "stale-one-in-batch", broken{results: func(rs core.Results) {
		if len(rs) > 1 {
			rs[0], rs[2] = rs[2], rs[0]
		}
	}}},
	{"suspects ride along", "suspects-are-claimed-alone", broken{answer: func(b *broken, req *core.ClaimRequest, c *core.Claim) {
		if extra, err := b.inner.Claim(context.Background(), core.ClaimRequest{Routes: req.Routes, MaxRecords: 1, Lease: req.Lease, Alone: true}); err == nil {
			c.Records = append(extra.Records, c.Records...)
		}
	}}},
	{"suspects are not reported", "suspects-are-claimed-alone", broken{answer: func(_ *broken, _ *core.ClaimRequest, c *core.Claim) { c.Suspects = false }}},
	{"extends nothing", "leases-extend", broken{noExtend: true}},
	{"extends stale leases", "stale-lease-does-not-extend", broken{noExtend: true}},
	{"published comes again", "published-is-gone", broken{settle: func(_ *broken, o *core.Outcome, r *core.Record) core.Outcome {
		if o.State() == core.StatePublished {
			return core.Release(r, 0)
		}
		return *o
	}}},
	{"retries at once", "retry-is-due-later", broken{settle: func(_ *broken, o *core.Outcome, r *core.Record) core.Outcome {
		if o.State() == core.StateFailed {
			return core.Retry(r, errors.New(o.Error()), 0)
		}
		return *o
	}}},
	{"loses the last error", "retry-keeps-last-error", broken{settle: func(_ *broken, o *core.Outcome, r *core.Record) core.Outcome {
		if o.Event() == core.EventRejected {
			return core.Retry(r, nil, o.RetryIn())
		}
		return *o
	}}},
	{"a release costs an attempt", "release-costs-nothing", broken{settle: func(_ *broken, o *core.Outcome, r *core.Record) core.Outcome {
		if o.Event() == core.EventReleased {
			return core.Retry(r, nil, o.RetryIn())
		}
		return *o
	}}},
	{"abandoned is tried again", "abandoned-is-terminal", broken{settle: func(_ *broken, o *core.Outcome, r *core.Record) core.Outcome {
		if o.State() == core.StateAbandoned {
			return core.Retry(r, errors.New(o.Error()), 0)
		}
		return *o
	}}},
	{"keys have no order", "key-waits-for-lease", bestEffort},
	{"keys do not wait for a retry", "key-waits-for-retry", bestEffort},
	{"keys do not wait for a release", "key-waits-for-delayed-release", bestEffort},
	{"keys are cut in order of settling", "key-resumes-behind-failure", bestEffort},
	{"keys interleave", "key-never-interleaves", bestEffort},
	{"keys do not wait for a suspect", "key-waits-for-suspect", bestEffort},
	{"scheduled messages overtake", "key-is-joined-when-due", bestEffort},
	{"scheduled messages overtake", "key-is-joined-when-many-are-due", broken{answer: func(_ *broken, _ *core.ClaimRequest, c *core.Claim) { slices.Reverse(c.Records) }}},
	{"keys come backwards", "key-drains-in-order", broken{messages: func(m []core.Message) []core.Message {
		slices.Reverse(m)
		return m
	}}},
	{"a crash loses the head of a key", "key-resumes-after-crash", broken{settle: func(b *broken, o *core.Outcome, r *core.Record) core.Outcome {
		b.mark++
		if b.mark == 2 {
			return core.Release(r, 0)
		}
		return *o
	}}},
	{"keys block after an abandoned one", "key-continues-after-abandoned", broken{request: func(r *core.ClaimRequest) { r.Routes[0].BlockAfterAbandon = true }}},
	{"keys do not block after an abandoned one", "key-blocks-after-abandoned", broken{request: func(r *core.ClaimRequest) { r.Routes[0].BlockAfterAbandon = false }}},
	{"all are one session", "key-follows-its-own-session", broken{request: func(r *core.ClaimRequest) { r.Session = 1 }}},
	{"all are one session", "model-in-key-order", broken{request: func(r *core.ClaimRequest) { r.Session = 1 }}},
	{"best effort stalls", "best-effort-does-not-stall", broken{request: func(r *core.ClaimRequest) { r.Routes[0].Order = core.OrderPerKey }}},
	{"unkeyed messages share a key", "unkeyed-wait-for-nobody", broken{messages: eachMessage(func(m *core.Message) { m.Key += "x" })}},
	{"no HLC order", "hlc-order", broken{request: func(r *core.ClaimRequest) { r.Routes[0].Order = core.OrderBestEffort }}},
	{"keys have no order", "model-in-key-order", bestEffort},
	{"best effort stalls", "model-in-best-effort", broken{request: func(r *core.ClaimRequest) { r.Routes[0].Order = core.OrderPerKey }}},
	{"settles stale tokens", "model-in-best-effort", broken{settle: func(_ *broken, o *core.Outcome, r *core.Record) core.Outcome { return again(o, r) }}},
	{"drops a record", "model-in-key-order", broken{answer: func(_ *broken, _ *core.ClaimRequest, c *core.Claim) {
		if len(c.Records) > 2 {
			c.Records = c.Records[1:]
		}
	}}},
	{"never wakes", "wait-wakes-on-commit", broken{wait: sleepThrough}},
	{"misses what came before", "wait-loses-nothing", broken{wait: func(ctx context.Context, b *broken, limit time.Duration) (core.WakeCause, error) {
		_, _ = b.inner.Claim(ctx, core.ClaimRequest{}) // as if it had looked
		return sleepThrough(ctx, b, limit)
	}}},
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

var bestEffort = broken{request: func(r *core.ClaimRequest) { r.Routes[0].Order = core.OrderBestEffort }}

func sleepThrough(ctx context.Context, _ *broken, limit time.Duration) (core.WakeCause, error) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-t.C:
		return core.WakeTimer, nil
	case <-ctx.Done():
		return core.WakeStop, nil
	}
}
