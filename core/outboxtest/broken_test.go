package outboxtest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxtest"
	"github.com/waybill-go/waybill/store/memory"
)

// broken is a store with one fault. It passes on everything that it does not spoil.
type broken struct {
	harness
	fault

	mu         sync.Mutex
	locks      int                       // records that transactions have locked
	count      int                       // for faults that count
	holds      map[core.Ref]core.Session // what Hold ever held
	heartbeats map[core.Session]int64
	rows       map[string]core.Record // the first answer of a record
	given      map[core.Partition]bool
	last       int64
	hides      map[string]bool

	served []core.ServedRoute // what any member ever served

	deadlock atomic.Bool // the next Stage fails
	touched  atomic.Int64
}

// Touched counts the records that the store below has answered.
func (b *broken) Touched(context.Context) (int64, error) { return b.touched.Load(), nil }

// below reads from the store below.
func (b *broken) below(ctx context.Context, self core.Session, l core.ReadRequest) (core.ReadResult, error) {
	p, err := b.store.Read(ctx, self, l)
	eachRecord(&p, func(*core.Record) { b.touched.Add(1) })
	return p, err
}

// fault is what is wrong.
type fault struct {
	heartbeat  func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error)
	membership func(b *broken, m *core.HeartbeatRequest, r *core.Membership) // changes an answer
	read       func(ctx context.Context, b *broken, self core.Session, l core.ReadRequest) (core.ReadResult, error)
	look       func(l *core.ReadRequest) // changes a question
	page       func(b *broken, l *core.ReadRequest, p *core.ReadResult)
	record     func(r *core.Record) // of every answer
	hold       func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error)
	release    func(ctx context.Context, r *releaseCall) (bool, error)
	due        func(ctx context.Context, b *broken, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error)
	acquire    func(ctx context.Context, b *broken) (int64, <-chan struct{}, error)
	settle     func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results
	group      func(ctx context.Context, b *broken, selves []core.Session, os [][]core.Outcome) bool
	outcome    func(b *broken, o core.Outcome, r *core.Record) core.Outcome // r is the stored record
	traits     func(b *broken, t *core.StoreTraits)
	rowsIn     func(rows []core.StagedRow)
	commits    bool   // commits what should roll back
	waits      string // the method that waits for callers' locks
}

func newBroken(f fault) *broken {
	return &broken{
		harness: harness{newStore(memory.Options{})}, fault: f, holds: map[core.Ref]core.Session{}, heartbeats: map[core.Session]int64{},
		rows: map[string]core.Record{}, given: map[core.Partition]bool{}, hides: map[string]bool{},
	}
}

func (b *broken) Store() core.OutboxStore { return b }

func (b *broken) Traits() core.StoreTraits {
	t := b.store.Traits()
	if b.traits != nil {
		b.traits(b, &t)
	}
	return t
}

// wait waits until no transaction has locked anything, if the method is to.
func (b *broken) wait(ctx context.Context, method string) {
	if b.waits != method {
		return
	}
	for locked := true; locked && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		b.mu.Lock()
		locked = b.locks > 0
		b.mu.Unlock()
	}
}

func (b *broken) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (r core.Membership, err error) {
	b.wait(ctx, "heartbeat")
	if b.heartbeat != nil {
		r, err = b.heartbeat(ctx, b, m)
	} else {
		r, err = b.store.Heartbeat(ctx, m)
	}
	if b.membership != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.membership(b, &m, &r)
	}
	return r, err
}

func (b *broken) Read(ctx context.Context, self core.Session, l core.ReadRequest) (p core.ReadResult, err error) {
	b.wait(ctx, "read")
	asked := l
	if b.look != nil {
		l.Ranges, l.Slots = slices.Clone(l.Ranges), slices.Clone(l.Slots)
		b.look(&l)
	}
	if b.read != nil {
		p, err = b.read(ctx, b, self, l)
	} else {
		p, err = b.below(ctx, self, l)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.page != nil {
		b.page(b, &asked, &p)
	}
	eachRecord(&p, func(r *core.Record) {
		if b.record != nil {
			b.record(r)
		}
	})
	return p, err
}

func eachRecord(p *core.ReadResult, fn func(r *core.Record)) {
	for _, rs := range p.Ranges {
		for i := range rs.Records {
			fn(&rs.Records[i])
		}
	}
	for _, rs := range p.Keys {
		for i := range rs.Records {
			fn(&rs.Records[i])
		}
	}
	for i := range p.Rechecked {
		fn(&p.Rechecked[i])
	}
}

func (b *broken) Hold(ctx context.Context, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
	b.wait(ctx, "hold")
	if b.hold != nil {
		return b.hold(ctx, b, self, w)
	}
	return b.holdStatus(ctx, self, w)
}

// holdStatus takes and remembers.
func (b *broken) holdStatus(ctx context.Context, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
	ts, err := b.store.Hold(ctx, self, w)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range ts {
		if t.Status == core.HoldGranted {
			b.holds[t.Ref] = self
		}
	}
	return ts, err
}

func (b *broken) ReleasePartition(ctx context.Context, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
	b.wait(ctx, "release partition")
	r := &releaseCall{b, self, u, slices.Clone(out)}
	if b.release != nil {
		return b.release(ctx, r)
	}
	return r.pass(ctx)
}

// releaseCall is a call of ReleasePartition.
type releaseCall struct {
	*broken
	self      core.Session
	partition core.PartitionState
	out       []core.Ref
}

// pass makes the call of the store below.
func (r *releaseCall) pass(ctx context.Context) (bool, error) {
	return r.store.ReleasePartition(ctx, r.self, r.partition, r.out)
}

func (b *broken) Acquire(ctx context.Context) (token int64, lost <-chan struct{}, err error) {
	if b.acquire != nil {
		return b.acquire(ctx, b)
	}
	return b.store.Acquire(ctx)
}

func (b *broken) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	b.wait(ctx, "due")
	if b.due != nil {
		return b.due(ctx, b, self, parts, limit)
	}
	return b.store.Due(ctx, self, parts, limit)
}

func (b *broken) Settle(ctx context.Context, self core.Session, os []core.Outcome) core.Results {
	b.wait(ctx, "settle")
	if b.outcome != nil {
		os = slices.Clone(os)
		for i := range os {
			if r := b.at(os[i].Ref()); r != nil {
				os[i] = b.outcome(b, os[i], r)
			}
		}
	}
	if b.settle != nil {
		return b.settle(ctx, b, self, os)
	}
	return b.store.Settle(ctx, self, os)
}

// SettleGroup settles for one member after the other.
func (b *broken) SettleGroup(ctx context.Context, selves []core.Session, os [][]core.Outcome) bool {
	b.wait(ctx, "settle group")
	if b.group != nil {
		return b.group(ctx, b, selves, os)
	}
	return b.oneByOne(ctx, selves, os)
}

func (b *broken) oneByOne(ctx context.Context, selves []core.Session, os [][]core.Outcome) bool {
	for i, self := range selves {
		if b.Settle(ctx, self, os[i]).FirstErr() != nil {
			return false
		}
	}
	return true
}

// at returns the record that is stored under a number, for outcomes to name.
func (b *broken) at(ref core.Ref) *core.Record {
	for _, st := range b.store.States() {
		if st.Route == ref.Route && st.Seq == ref.Seq && !st.Settled() {
			r := core.Record{
				Ref: core.Ref{Route: st.Route, Seq: st.Seq, ID: st.ID, Version: st.Version}, Slot: st.Slot,
				Failed: st.State == core.StateFailed, HeldBy: st.Holder,
			}
			r.Envelope.ID, r.Envelope.Key = st.ID, st.Key
			return &r
		}
	}
	return nil
}

// again builds the outcome o for another version of the record.
func again(o *core.Outcome, r *core.Record) core.Outcome {
	var err error
	if o.Error() != "" {
		err = errors.New(o.Error())
	}
	switch o.Event() { //nolint:exhaustive // the events of outcomes
	case core.EventConfirmed:
		return core.Published(r)
	case core.EventAttemptFailed:
		return core.Retry(r, err, o.In())
	case core.EventReleased:
		return core.Release(r, o.In(), o.Unknown())
	case core.EventCancelled:
		return core.Cancel(r, o.Reason())
	default:
		return core.Abandon(r, o.Reason(), err)
	}
}

// named is the record of o, as o names it.
func named(o *core.Outcome, r *core.Record) *core.Record {
	c := *r
	c.Ref = o.Ref()
	return &c
}

func (b *broken) Begin(ctx context.Context) (outboxtest.Tx, error) {
	inner, err := b.harness.Begin(ctx)
	return &brokenTx{tx: inner.(*tx), b: b}, err
}

type brokenTx struct {
	*tx
	b     *broken
	locks int
}

func (t *brokenTx) Stage(ctx context.Context, rows ...core.StagedRow) error {
	if t.b.rowsIn != nil {
		rows = slices.Clone(rows)
		t.b.rowsIn(rows)
	}
	if t.b.deadlock.Swap(false) {
		return errors.New("a deadlock")
	}
	return t.tx.Stage(ctx, rows...)
}

func (t *brokenTx) Lock(ctx context.Context, route, id string) error {
	t.locks++
	t.b.locked(1)
	return t.tx.Lock(ctx, route, id)
}

func (t *brokenTx) Rollback(ctx context.Context) error {
	t.b.locked(-t.locks)
	t.locks = 0
	if t.b.commits {
		_ = t.Commit(ctx)
	}
	return t.tx.Rollback(ctx)
}

func (b *broken) locked(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.locks += n
}

var allFaults = slices.Concat(heartbeatFaults, readFaults, holdFaults, settleFaults, harmFaults, largeFaults)

// Each fault is caught by the check that is there for it.
func TestBroken(t *testing.T) { // TE-06
	t.Parallel()
	checks := map[string]outboxtest.Check{}
	for _, c := range outboxtest.Checks() {
		checks[c.Name] = c
	}
	for _, f := range allFaults {
		t.Run(f.check+"/"+f.name, func(t *testing.T) {
			t.Parallel()
			c, ok := checks[f.check]
			if !ok {
				t.Fatalf("there is no check %q", f.check)
			}
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), outboxtest.Timeout)
				defer cancel()
				err := c.Run(ctx, newBroken(f.store))
				if err == nil || errors.Is(err, outboxtest.ErrNotDeclared) {
					t.Fatalf("a store that %s passes: %v", f.name, err)
				}
				t.Log(err)
			})
		})
	}
}

// Each check catches a fault.
func TestEveryCheckCatchesAFault(t *testing.T) { // TE-06
	t.Parallel()
	caught := map[string]bool{}
	for _, f := range allFaults {
		caught[f.check] = true
	}
	for _, c := range outboxtest.Checks() {
		if !caught[c.Name] {
			t.Errorf("no fault is caught by %s", c.Name)
		}
	}
}

// A broken store without a fault passes.
func TestUnbroken(t *testing.T) {
	t.Parallel()
	outboxtest.RunInBubble(t, func(*testing.T) outboxtest.Harness { return newBroken(fault{}) })
}

type faulty struct {
	name, check string
	store       fault
}
