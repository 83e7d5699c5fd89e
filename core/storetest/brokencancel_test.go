package storetest_test

import (
	"context"
	"errors"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/storetest"
)

// answers has Cancel say wrong in place of right; of every message if there is no right.
func answers(wrong waybill.CancelStatus, right ...waybill.CancelStatus) broken {
	return broken{cancel: func(ctx context.Context, t *brokenTx, keys []waybill.CancelKey) ([]waybill.CancelStatus, error) {
		got, err := t.b.inner.Cancel(ctx, t.tx, keys...)
		for i := range got {
			if len(right) == 0 || slices.Contains(right, got[i]) {
				got[i] = wrong
			}
		}
		return got, err
	}}
}

// cancelsNothing says that all is cancelled.
var cancelsNothing = broken{cancel: func(_ context.Context, _ *brokenTx, keys []waybill.CancelKey) ([]waybill.CancelStatus, error) {
	return slices.Repeat([]waybill.CancelStatus{waybill.CancelDone}, len(keys)), nil
}}

var cancelFaults = []faulty{
	{"ignores dedupe keys", "dedupe-key-makes-duplicate", stages(func(m *waybill.Message) { m.DedupeKey, m.Replace = "", false })},
	{"ignores the topic of dedupe keys", "dedupe-key-makes-duplicate", stages(func(m *waybill.Message) { m.Topic = "one" })},
	{"names the duplicate instead of the live one", "dedupe-key-makes-duplicate", eachStaged(func(s *waybill.Staged) {
		if s.Duplicate {
			s.ID = waybill.NewID()
		}
	})},
	{"a call's messages get its first dedupe key", "dedupe-key-beside-others", stages(func(m *waybill.Message) {
		if m.DedupeKey != "" {
			m.DedupeKey = "same"
		}
	})},
	{"dedupe keys are never free again", "dedupe-key-is-free-when-settled", broken{settle: func(_ *broken, o core.Outcome, r *core.Record) core.Outcome { return released(o, r) }}},
	{"keeps the old one", "replace-takes-the-place", stages(func(m *waybill.Message) { m.Replace = false })},
	{"stages beside the old one", "replace-takes-the-place", stages(func(m *waybill.Message) {
		if m.Replace {
			m.DedupeKey, m.Replace = "", false
		}
	})},
	{"does not say what became of the old one", "replace-takes-the-place", eachStaged(func(s *waybill.Staged) { s.Replaced = waybill.CancelNotFound })},
	{"drops replacements that meet", "replace-latest-of-many-wins", stages(func(m *waybill.Message) { m.Replace = false })},
	{"replaces what is in flight without a word", "replace-of-held-lets-both-live", eachStaged(func(s *waybill.Staged) {
		if s.Replaced == waybill.CancelInFlight {
			s.Replaced = waybill.CancelDone
		}
	})},
	{"cancels nothing", "cancel-ends", cancelsNothing},
	{"cancels all topics", "cancel-ends", broken{cancel: func(ctx context.Context, t *brokenTx, keys []waybill.CancelKey) ([]waybill.CancelStatus, error) {
		keys = slices.Clone(keys)
		for i := range keys {
			if keys[i].Topic != "" {
				keys[i].Topic = "storetest.topic"
			}
		}
		return t.b.inner.Cancel(ctx, t.tx, keys...)
	}}},
	{"answers in another order", "cancel-ends", broken{cancel: func(ctx context.Context, t *brokenTx, keys []waybill.CancelKey) ([]waybill.CancelStatus, error) {
		got, err := t.b.inner.Cancel(ctx, t.tx, keys...)
		slices.Reverse(got)
		return got, err
	}}},
	{"always says maybe", "cancel-ends", answers(waybill.CancelUncertain, waybill.CancelDone)},
	{"finds nothing that is held", "cancel-of-held-is-in-flight", answers(waybill.CancelNotFound, waybill.CancelInFlight)},
	{"never says maybe", "cancel-says-maybe", answers(waybill.CancelDone, waybill.CancelUncertain)},
	{"cancels what a new owner hands out", "cancel-after-a-leave", answers(waybill.CancelUncertain, waybill.CancelInFlight)},
	{"forgets at an end what was out", "cancel-after-an-end-and-a-redrive", answers(waybill.CancelDone, waybill.CancelUncertain)},
	{"cancels nothing that has crashed", "cancel-after-a-crash", answers(waybill.CancelInFlight, waybill.CancelUncertain)},
	{"forgets that a result is unknown", "cancel-says-maybe", broken{settle: func(_ *broken, o core.Outcome, r *core.Record) core.Outcome {
		if o.Unknown() {
			return released(o, r)
		}
		return o
	}}},
	{"cancels at once", "cancel-rolled-back-leaves-message", broken{cancel: func(ctx context.Context, t *brokenTx, keys []waybill.CancelKey) ([]waybill.CancelStatus, error) {
		tx := t.b.inner.Begin()
		got, err := t.b.inner.Cancel(ctx, tx, keys...)
		return got, errors.Join(err, tx.Commit())
	}}},
	{"does not see its own messages", "cancel-within-a-transaction", broken{cancel: func(ctx context.Context, t *brokenTx, keys []waybill.CancelKey) ([]waybill.CancelStatus, error) {
		tx := t.b.inner.Begin()
		defer tx.Rollback()
		ctx, cancel := context.WithTimeout(ctx, storetest.Timeout/100)
		defer cancel()
		return t.b.inner.Cancel(ctx, tx, keys...)
	}}},
	{"takes any key", "cancel-refuses-bad-keys", broken{cancel: func(_ context.Context, _ *brokenTx, keys []waybill.CancelKey) ([]waybill.CancelStatus, error) {
		return make([]waybill.CancelStatus, len(keys)), nil
	}}},
	{"cancels what was sent", "cancel-races-with-hand-out", answers(waybill.CancelDone, waybill.CancelInFlight, waybill.CancelNotFound)},
	{"ignores dedupe keys", "dedupe-key-of-running-transaction-waits", stages(func(m *waybill.Message) { m.DedupeKey = "" })},
	{"keeps the old one", "replace-within-a-transaction", stages(func(m *waybill.Message) { m.Replace = false })},
	{"replaces at once", "replace-rolled-back-leaves-the-old", broken{commits: true}},
	{"cancels what may be out", "cancel-of-due-is-in-flight", answers(waybill.CancelDone)},
	{"cancels nothing", "cancel-of-head-frees-key", cancelsNothing},
	{"does not say how long a record lives", "expired-is-abandoned", broken{record: func(r *core.Record) { r.ExpiresIn = 0 }}},
	{"tells nobody", "owner-is-notified-of-cancel", mute},
	{"never says maybe", "rules-cancel", answers(waybill.CancelDone, waybill.CancelUncertain)},
	{"cancels what may be out", "rules-cancel", answers(waybill.CancelDone, waybill.CancelInFlight)},
	{"tells nobody", "rules-cancel", mute},
	{"loses the last error", "rules-settle", outcomesOf(core.EventAttemptFailed, func(o core.Outcome, r *core.Record) core.Outcome {
		return core.Retry(r, nil, o.In())
	})},
	{"forgets that a result is unknown", "rules-settle", outcomesOf(core.EventReleased, func(o core.Outcome, r *core.Record) core.Outcome {
		return core.Release(r, o.In(), false)
	})},
	{"counts no delivery", "rules-hold", broken{take: func(want *core.HoldRequest) { want.CountDelivery = false }}},
	{"shows no holder", "rules-release", broken{page: func(_ *broken, p *core.ReadResult) {
		for i := range p.Rechecked {
			p.Rechecked[i].HeldBy = 0
		}
	}}},
	{"nobody is told of a redrive", "rules-redrive", mute},
	{"nobody is told of a sweep", "rules-sweep", mute},
	{"nobody is told of a decision", "rules-decide", mute},
	{"nobody is told of a purge", "rules-purge", mute},
	{"counts what is held as due", "rules-counts", eachCount(func(c *admin.Count) { c.Due = c.N })},
	{"nobody is told of a decision about a head", "rules-heads", mute},
	{"a member that leaves flags nobody", "rules-moves", broken{heartbeat: func(m *core.HeartbeatRequest) {
		if m.Leave {
			m.Suspect = nil
		}
	}}},
	{"keeps the presence", "rules-renew", broken{heartbeat: func(m *core.HeartbeatRequest) { m.Self.Presence = min(m.Self.Presence, 7) }}},
	{"removes nobody", "rules-remove", broken{heartbeat: func(m *core.HeartbeatRequest) { m.Evict = nil }}},
	{"has no lanes", "lane-is-handed-out-apart", stages(func(m *waybill.Message) { m.Lane = waybill.LaneNormal })},
}
