package storetest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/admin/audit"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/storetest"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/store/memory"
)

// broken is a store with one fault. It passes on everything that it does not spoil.
type broken struct {
	inner *memory.Store

	heartbeat func(m *core.HeartbeatRequest)
	look      func(l *core.ReadRequest)
	page      func(b *broken, p *core.ReadResult)
	record    func(r *core.Record) // each that is read
	due       func(d *core.DueResult)
	take      func(want *core.HoldRequest)
	settle    func(b *broken, o core.Outcome, r *core.Record) core.Outcome
	results   func(rs core.Results)
	messages  func(msgs []waybill.Message) []waybill.Message
	staged    func(s []waybill.Staged)
	wait      func(ctx context.Context, b *broken, limit time.Duration) (core.WakeCause, error)
	cancel    func(ctx context.Context, t *brokenTx, keys []waybill.CancelKey) ([]waybill.CancelStatus, error)
	counts    func(cs []admin.Count)
	recorded  func(e *audit.Entry) (again bool) // a line to store
	lines     func(list []audit.Entry) []audit.Entry
	deaf      bool // ignores contexts
	lateSend  bool // stages at commit
	commits   bool // commits what should roll back
	drops     bool // rolls back what should commit
	clean     func(ctx context.Context, b *broken, owner string, lease time.Duration) (core.Cleaned, error)
	retain    func(r *waybill.Retention)
	water     func(ctx context.Context, b *broken) (hlc.Timestamp, error)

	mu   *sync.Mutex
	self core.Session          // who came last
	last map[int64]core.Record // by sequence
	mark int64

	heads   []core.BlockingRecord
	crashes int
	waiting []string      // the routes of a Wait
	left    []core.Notice // of decisions
	open    *atomic.Int32 // transactions
}

// newStore returns the store below.
func newStore(t *testing.T) *memory.Store {
	t.Helper()
	s, err := memory.New(memory.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// on puts b on a new store.
func (b *broken) on(inner *memory.Store) *broken {
	b.inner, b.mu, b.last, b.open = inner, new(sync.Mutex), map[int64]core.Record{}, new(atomic.Int32)
	return b
}

// spoil changes a value, if there is a fault that does.
func spoil[T any](fault func(*T), value *T) {
	if fault != nil {
		fault(value)
	}
}

func (b *broken) Unwrap() any              { return b.inner }
func (b *broken) Store() core.OutboxStore  { return b }
func (b *broken) Traits() core.StoreTraits { return b.inner.Traits() }

func (b *broken) context(ctx context.Context) context.Context {
	if b.deaf {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

func (b *broken) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	spoil(b.heartbeat, &m)
	b.mu.Lock()
	b.self = m.Self.Session
	b.mu.Unlock()
	return b.inner.Heartbeat(b.context(ctx), m)
}

func (b *broken) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	spoil(b.look, &request)
	p, err := b.inner.Read(b.context(ctx), self, request)
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range p.Ranges {
		b.seen(p.Ranges[i].Records)
	}
	if err == nil && b.page != nil {
		b.page(b, &p)
	}
	return p, err
}

func (b *broken) seen(rs []core.Record) {
	for i := range rs {
		spoil(b.record, &rs[i])
		b.last[rs[i].Seq] = rs[i]
	}
}

func (b *broken) Hold(ctx context.Context, self core.Session, want core.HoldRequest) ([]core.HoldResult, error) {
	spoil(b.take, &want)
	return b.inner.Hold(b.context(ctx), self, want)
}

func (b *broken) ReleasePartition(ctx context.Context, self core.Session, partition core.PartitionState, out []core.Ref) (bool, error) {
	return b.inner.ReleasePartition(ctx, self, partition, out)
}

func (b *broken) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	d, err := b.inner.Due(b.context(ctx), self, parts, limit)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen(d.Retries)
	spoil(b.due, &d)
	return d, err
}

func (b *broken) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	b.mu.Lock()
	outcomes = slices.Clone(outcomes)
	if b.settle != nil {
		for i, o := range outcomes {
			if o.NoticeNumber() == 0 {
				r := b.last[o.Ref().Seq]
				r.Ref = o.Ref()
				outcomes[i] = b.settle(b, o, &r)
			}
		}
	}
	b.mu.Unlock()
	res := b.inner.Settle(ctx, self, outcomes)
	if b.results != nil {
		b.results(res)
	}
	return res
}

func (b *broken) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	if b.wait != nil {
		b.mu.Lock()
		c := *b
		b.mu.Unlock()
		c.waiting = routes
		return b.wait(ctx, &c, limit)
	}
	return b.inner.Wait(ctx, routes, limit)
}

func (b *broken) Counts(ctx context.Context) ([]admin.Count, error) {
	cs, err := b.inner.Counts(ctx)
	if b.counts != nil {
		b.counts(cs)
	}
	return cs, err
}

func (b *broken) AppendAudit(ctx context.Context, e audit.Entry) error {
	again := b.recorded != nil && b.recorded(&e)
	err := b.inner.AppendAudit(ctx, e)
	if again && err == nil {
		err = b.inner.AppendAudit(ctx, e)
	}
	return err
}

func (b *broken) ListAudit(ctx context.Context, before int64, limit int) ([]audit.Entry, error) {
	list, err := b.inner.ListAudit(ctx, before, limit)
	if b.lines != nil {
		list = b.lines(list)
	}
	return list, err
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
	b.open.Add(1)
	return &brokenTx{b: b, tx: b.inner.Begin()}, nil
}

type brokenTx struct {
	b    *broken
	tx   *memory.Tx
	msgs []waybill.Message
	end  sync.Once
}

func (t *brokenTx) Stage(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error) {
	if t.b.lateSend {
		var out []waybill.Staged
		for i := range msgs {
			out = append(out, waybill.Staged{ID: msgs[i].ID, Route: msgs[i].Routes[0]})
		}
		t.msgs = append(t.msgs, msgs...)
		return out, nil
	}
	if t.b.messages != nil {
		msgs = t.b.messages(slices.Clone(msgs))
	}
	s, err := t.b.inner.Stage(t.b.context(ctx), t.tx, msgs...)
	if t.b.staged != nil {
		t.b.staged(s)
	}
	return s, err
}

func (t *brokenTx) Cancel(ctx context.Context, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error) {
	if t.b.cancel != nil {
		return t.b.cancel(ctx, t, keys)
	}
	return t.b.inner.Cancel(ctx, t.tx, keys...)
}

func (t *brokenTx) Commit(ctx context.Context) error {
	defer t.end.Do(func() { t.b.open.Add(-1) })
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
	defer t.end.Do(func() { t.b.open.Add(-1) })
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
	return runIn(t, name, *fault, func(b *broken) storetest.Harness { return b })
}

func runIn(t *testing.T, name string, b broken, harness func(b *broken) storetest.Harness) (err error) {
	t.Helper()
	c := check(t, name)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), storetest.Timeout)
		defer cancel()
		err = c.Run(ctx, harness(b.on(newStore(t))))
		time.Sleep(2 * time.Hour) // lets go of what waits in vain
	})
	return err
}

// faulty is a store with a fault, and the check that must notice it.
type faulty struct {
	name, check string
	store       broken
}

// faultyOps is a store with a fault of operators' calls.
type faultyOps struct {
	name, check string
	store       brokenOps
}

// faultRun runs the check that must notice a fault.
type faultRun struct {
	check, name string
	run         func(t *testing.T) error
}

func allFaults() (all []faultRun) {
	for _, f := range slices.Concat(faults, cancelFaults, cleanFaults, lastingFaults) {
		all = append(all, faultRun{f.check, f.name, func(t *testing.T) error { t.Helper(); return runBroken(t, f.check, &f.store) }})
	}
	for _, f := range slices.Concat(opsFaults, decideFaults) {
		all = append(all, faultRun{f.check, f.name, func(t *testing.T) error { t.Helper(); return runIn(t, f.check, broken{}, f.store.above) }})
	}
	return all
}

// TE-01 TE-02 TE-06 ST-08 ST-09 ST-10 ST-11 ST-19 DB-09 DB-11 DB-12 OR-05 OP-18
func TestSuiteCatchesFaults(t *testing.T) {
	t.Parallel()
	for _, f := range allFaults() {
		t.Run(f.check+"/"+f.name, func(t *testing.T) {
			t.Parallel()
			if err := f.run(t); err == nil || errors.Is(err, storetest.ErrNotDeclared) {
				t.Errorf("check %s does not notice: %v", f.check, err)
			} else {
				t.Log(err)
			}
		})
	}
}

// Each field that is lost or changed on the way is noticed.
func TestSuiteCatchesLostFields(t *testing.T) { // TE-02 ST-12
	t.Parallel()
	for name, spoil := range map[string]func(e *waybill.Envelope){
		"Topic":         func(e *waybill.Envelope) { e.Topic = "other" },
		"Type":          func(e *waybill.Envelope) { e.Type = "" },
		"Source":        func(e *waybill.Envelope) { e.Source = "" },
		"Subject":       func(e *waybill.Envelope) { e.Subject = "" },
		"Time":          func(e *waybill.Envelope) { e.Time = e.Time.Truncate(time.Millisecond) },
		"ContentType":   func(e *waybill.Envelope) { e.ContentType = "" },
		"Key":           func(e *waybill.Envelope) { e.Key = "" },
		"Tenant":        func(e *waybill.Envelope) { e.Tenant = "" },
		"CorrelationID": func(e *waybill.Envelope) { e.CorrelationID = "" },
		"CausationID":   func(e *waybill.Envelope) { e.CausationID = "" },
		"RunID":         func(e *waybill.Envelope) { e.RunID = "" },
		"Lineage": func(e *waybill.Envelope) {
			e.Lineage = slices.DeleteFunc(e.Lineage, func(s string) bool { return s == "" })
		},
		"HLC":         func(e *waybill.Envelope) { e.HLC++ },
		"Expires":     func(e *waybill.Envelope) { e.Expires = time.Time{} },
		"Priority":    func(e *waybill.Envelope) { e.Priority = 0 },
		"TraceParent": func(e *waybill.Envelope) { e.TraceParent = "" },
		"TraceState":  func(e *waybill.Envelope) { e.TraceState = "" },
		"Headers":     func(e *waybill.Envelope) { delete(e.Headers, "empty") },
		"Body":        func(e *waybill.Envelope) { e.Body = append(e.Body, 0) },
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

// A store on a slow machine has no fault either: here owners are told of a decision every three seconds, and the first
// ones are answered as pending before the last one is told.
func TestSuiteAcceptsSlowDecisions(t *testing.T) { // TE-01
	t.Parallel()
	var since time.Time
	err := runBroken(t, "rules-heads", &broken{page: func(_ *broken, p *core.ReadResult) {
		told := 0
		p.Notices = slices.DeleteFunc(p.Notices, func(c core.Notice) bool {
			if c.Kind != core.NoticeDecide {
				return false
			}
			if told++; since.IsZero() {
				since = time.Now()
			}
			return told > int(time.Since(since)/(3*time.Second))
		})
	}})
	if err != nil {
		t.Error(err)
	}
}

// The truth tables, which run on every store, have rows of all rules.
func TestTruthTables(t *testing.T) { // TE-11
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows, err := storetest.TruthRows(t.Context(), new(broken).on(newStore(t)))
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for rule, n := range rows {
			if sum += n; n < 20 {
				t.Errorf("the table of %s has %d rows; want 20", rule, n)
			}
		}
		t.Logf("%d rows: %v", sum, rows)
		if sum < 2000 {
			t.Errorf("the tables have %d rows; want 2,000", sum)
		}
	})
}

// Each check is the one that some fault must be caught by.
func TestEveryCheckCatchesAFault(t *testing.T) { // TE-02 TE-06
	t.Parallel()
	caught := map[string]bool{"envelope-round-trip": true} // TestSuiteCatchesLostFields
	for _, f := range allFaults() {
		caught[f.check] = true
	}
	for _, c := range storetest.Checks() {
		if !caught[c.Name] {
			t.Errorf("no fault is there for check %s", c.Name)
		}
		delete(caught, c.Name)
	}
	for name := range caught {
		t.Errorf("no check is called %s", name)
	}
}

// A store without capabilities is asked for none.
func TestSuiteFollowsCapabilities(t *testing.T) { // TE-01
	t.Parallel()
	for _, c := range storetest.Checks() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), storetest.Timeout)
				defer cancel()
				if err := c.Run(ctx, bare{newStore(t)}); err != nil && !errors.Is(err, storetest.ErrNotDeclared) {
					t.Error(err)
				}
			})
		})
	}
}

// bare is a harness whose store is an core.OutboxStore and nothing else.
type bare struct{ inner *memory.Store }

func (b bare) Store() core.OutboxStore { return struct{ core.OutboxStore }{b.inner} }

func (b bare) Begin(context.Context) (storetest.Tx, error) {
	return bareTx{b.inner, b.inner.Begin()}, nil
}

type bareTx struct {
	s  *memory.Store
	tx *memory.Tx
}

func (t bareTx) Stage(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error) {
	return t.s.Stage(ctx, t.tx, msgs...)
}
func (t bareTx) Commit(context.Context) error   { return t.tx.Commit() }
func (t bareTx) Rollback(context.Context) error { t.tx.Rollback(); return nil }
