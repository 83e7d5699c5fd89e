package storetest_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/storetest"
	"github.com/waybill-go/waybill/store/memory"
)

func TestMain(m *testing.M) {
	// Failures are what is wanted here: keep none and do not reduce them.
	if err := errors.Join(flag.Set("rapid.nofailfile", "true"), flag.Set("rapid.shrinktime", "0s")); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// broken is a store with one fault. It passes on everything that it does not spoil.
type broken struct {
	inner *memory.Store

	request  func(r *core.ClaimRequest)
	answer   func(b *broken, req *core.ClaimRequest, c *core.Claim)
	settle   func(b *broken, o *core.Outcome, r *core.Record) core.Outcome // r is the record's latest claim
	results  func(rs core.Results)
	messages func(msgs []core.Message) []core.Message
	staged   func(s []core.Staged)
	wait     func(ctx context.Context, b *broken, limit time.Duration) (core.WakeCause, error)
	traits   func(t *core.StoreTraits)
	deaf     bool // ignores contexts
	lateSend bool // stages at commit
	commits  bool // commits what should roll back
	drops    bool // rolls back what should commit
	noExtend bool

	mu     *sync.Mutex
	last   map[int64]core.Record // by sequence
	memory []core.Record
	mark   int64
}

func (b *broken) Unwrap() any             { return b.inner }
func (b *broken) Store() core.OutboxStore { return b }
func (b *broken) Traits() core.StoreTraits {
	t := b.inner.Traits()
	if b.traits != nil {
		b.traits(&t)
	}
	return t
}

func (b *broken) Claim(ctx context.Context, req core.ClaimRequest) (core.Claim, error) {
	if b.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	req.Routes = slices.Clone(req.Routes)
	asked := req
	if b.request != nil {
		b.request(&req)
	}
	c, err := b.inner.Claim(ctx, req)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range c.Records {
		b.last[r.Seq] = r
	}
	for i := range c.Records {
		c.Records[i].Lease.Remaining = min(c.Records[i].Lease.Remaining, asked.Lease)
	}
	if err == nil && b.answer != nil {
		b.answer(b, &asked, &c)
	}
	return c, err
}

func (b *broken) Settle(ctx context.Context, outcomes []core.Outcome) core.Results {
	b.mu.Lock()
	outcomes = slices.Clone(outcomes)
	if b.settle != nil {
		for i := range outcomes {
			r := b.last[outcomes[i].Seq()]
			outcomes[i] = b.settle(b, &outcomes[i], &r)
		}
	}
	b.mu.Unlock()
	res := b.inner.Settle(ctx, outcomes)
	if b.results != nil {
		b.results(res)
	}
	return res
}

func (b *broken) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	if b.wait != nil {
		return b.wait(ctx, b, limit)
	}
	return b.inner.Wait(ctx, routes, limit)
}

func (b *broken) ExtendLeases(ctx context.Context, records []core.Record, lease time.Duration) core.Results {
	if b.noExtend {
		return make(core.Results, len(records))
	}
	return b.inner.ExtendLeases(ctx, records, lease)
}

func (b *broken) Records(_ context.Context, route string) ([]storetest.StoredRecord, error) {
	var out []storetest.StoredRecord
	for _, r := range b.inner.Records() {
		if r.Route == route {
			out = append(out, storetest.StoredRecord{
				ID: r.Envelope.ID, State: r.State, Attempts: r.Attempts, Crashes: r.Crashes, Reason: r.Reason, LastError: r.LastError,
			})
		}
	}
	return out, nil
}

func (b *broken) Corrupt(_ context.Context, _ string, seq int64) error { return b.inner.Corrupt(seq) }

func (b *broken) Begin(context.Context) (storetest.Tx, error) {
	return &brokenTx{b: b, tx: b.inner.Begin()}, nil
}

type brokenTx struct {
	b    *broken
	tx   *memory.Tx
	msgs []core.Message
}

func (t *brokenTx) Stage(ctx context.Context, msgs ...core.Message) ([]core.Staged, error) {
	if t.b.lateSend {
		var out []core.Staged
		for i := range msgs {
			out = append(out, core.Staged{ID: msgs[i].ID, Route: msgs[i].Routes[0]})
		}
		t.msgs = append(t.msgs, msgs...)
		return out, nil
	}
	if t.b.messages != nil {
		msgs = t.b.messages(slices.Clone(msgs))
	}
	if t.b.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	s, err := t.b.inner.Stage(ctx, t.tx, msgs...)
	if t.b.staged != nil {
		t.b.staged(s)
	}
	return s, err
}

func (t *brokenTx) Commit(ctx context.Context) error {
	if t.b.lateSend {
		if _, err := t.b.inner.Stage(ctx, t.tx, t.msgs...); err != nil {
			return err
		}
	}
	if t.b.drops {
		t.tx.Rollback()
		return nil
	}
	return t.tx.Commit()
}

func (t *brokenTx) Rollback(context.Context) error {
	if t.b.commits {
		_ = t.tx.Commit()
	}
	t.tx.Rollback()
	return nil
}

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

func check(t *testing.T, name string) storetest.Check {
	t.Helper()
	for _, c := range storetest.Checks() {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no check is called %s", name)
	return storetest.Check{}
}

// runBroken runs a check on a store with a fault in a bubble.
func runBroken(t *testing.T, name string, fault *broken) error {
	t.Helper()
	c := check(t, name)
	var err error
	synctest.Test(t, func(t *testing.T) {
		inner, errNew := memory.New(memory.Options{Source: "/test"})
		if errNew != nil {
			t.Fatal(errNew)
		}
		b := *fault
		b.inner, b.mu, b.last = inner, new(sync.Mutex), map[int64]core.Record{}
		ctx, cancel := context.WithTimeout(t.Context(), storetest.Timeout)
		defer cancel()
		err = c.Run(ctx, &b)
		time.Sleep(2 * time.Hour) // lets go of what waits in vain
	})
	return err
}

func TestSuiteCatchesFaults(t *testing.T) { // TE-01 TE-02
	t.Parallel()
	for i := range faults {
		f := &faults[i]
		t.Run(f.check+"/"+f.name, func(t *testing.T) {
			t.Parallel()
			if err := runBroken(t, f.check, &f.store); err == nil || errors.Is(err, storetest.ErrNotDeclared) {
				t.Errorf("check %s does not notice: %v", f.check, err)
			}
		})
	}
}

// Each field that is lost or changed on the way is noticed.
func TestSuiteCatchesLostFields(t *testing.T) { // TE-02 ST-12
	t.Parallel()
	for name, spoil := range map[string]func(e *core.Envelope){
		"Topic":         func(e *core.Envelope) { e.Topic = "other" },
		"Type":          func(e *core.Envelope) { e.Type = "" },
		"Source":        func(e *core.Envelope) { e.Source = "" },
		"Subject":       func(e *core.Envelope) { e.Subject = "" },
		"Time":          func(e *core.Envelope) { e.Time = e.Time.Truncate(time.Millisecond) },
		"ContentType":   func(e *core.Envelope) { e.ContentType = "" },
		"Key":           func(e *core.Envelope) { e.Key = "" },
		"Tenant":        func(e *core.Envelope) { e.Tenant = "" },
		"CorrelationID": func(e *core.Envelope) { e.CorrelationID = "" },
		"CausationID":   func(e *core.Envelope) { e.CausationID = "" },
		"RunID":         func(e *core.Envelope) { e.RunID = "" },
		"Lineage": func(e *core.Envelope) {
			e.Lineage = slices.DeleteFunc(e.Lineage, func(s string) bool { return s == "" })
		},
		"HLC":         func(e *core.Envelope) { e.HLC++ },
		"Expires":     func(e *core.Envelope) { e.Expires = time.Time{} },
		"Priority":    func(e *core.Envelope) { e.Priority = 0 },
		"TraceParent": func(e *core.Envelope) { e.TraceParent = "" },
		"TraceState":  func(e *core.Envelope) { e.TraceState = "" },
		"Headers":     func(e *core.Envelope) { delete(e.Headers, "empty") },
		"Body":        func(e *core.Envelope) { e.Body = append(e.Body, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fault := eachEnvelope(spoil)
			if err := runBroken(t, "envelope-round-trip", &fault); err == nil {
				t.Error("the suite does not notice")
			}
		})
	}
}

// A store without a fault has none.
func TestSuiteAcceptsGoodStore(t *testing.T) { // TE-01
	t.Parallel()
	for _, c := range storetest.Checks() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if err := runBroken(t, c.Name, &broken{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// A store that promises nothing is not asked for order.
func TestSuiteFollowsTraits(t *testing.T) { // TE-01
	t.Parallel()
	fault := broken{traits: func(tr *core.StoreTraits) { *tr = core.StoreTraits{} }, request: bestEffort.request}
	for _, c := range storetest.Checks() {
		if strings.HasPrefix(c.Name, "model-") {
			continue // slow, and asks for no trait that others do not
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if err := runBroken(t, c.Name, &fault); err != nil && !errors.Is(err, storetest.ErrNotDeclared) {
				t.Error(err)
			}
		})
	}
}
