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
	cancel   func(ctx context.Context, t *brokenTx, keys []core.CancelKey) ([]core.CancelStatus, error)
	deaf     bool // ignores contexts
	lateSend bool // stages at commit
	commits  bool // commits what should roll back
	drops    bool // rolls back what should commit
	noExtend bool
	clean    func(ctx context.Context, b *broken, owner string, lease time.Duration) (core.Cleaned, error)
	retain   func(r core.Retention) core.Retention

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

func (t *brokenTx) Cancel(ctx context.Context, keys ...core.CancelKey) ([]core.CancelStatus, error) {
	if t.b.cancel != nil {
		return t.b.cancel(ctx, t, keys)
	}
	return t.b.inner.Cancel(ctx, t.tx, keys...)
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
