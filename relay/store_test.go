package relay_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
)

func newStore(tb testing.TB) *memory.Store {
	tb.Helper()
	return storeWith(tb, memory.Options{Source: "/test"})
}

func storeWith(tb testing.TB, o memory.Options) *memory.Store {
	tb.Helper()
	s, err := memory.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func stage(tb testing.TB, s *memory.Store, msgs ...waybill.Message) {
	tb.Helper()
	stageIn(tb.Context(), tb, s, msgs...)
}

func stageIn(ctx context.Context, tb testing.TB, s *memory.Store, msgs ...waybill.Message) {
	tb.Helper()
	tx := s.Begin()
	if _, err := s.Stage(ctx, tx, msgs...); err != nil {
		tb.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		tb.Fatal(err)
	}
}

// faulty decorates a store. Each hook may be nil.
type faulty struct {
	core.OutboxStore
	heartbeat func(m core.HeartbeatRequest, next func() (core.Membership, error)) (core.Membership, error)
	read      func(request core.ReadRequest, next func() (core.ReadResult, error)) (core.ReadResult, error)
	settle    func(outcomes []core.Outcome, next func() core.Results) core.Results

	mu         sync.Mutex
	looks      []core.ReadRequest
	at         []time.Time
	heartbeats []core.HeartbeatRequest
	dues       int
	settls     [][]core.Outcome
}

func (f *faulty) Unwrap() any { return f.OutboxStore }

func (f *faulty) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	f.mu.Lock()
	f.heartbeats = append(f.heartbeats, m)
	f.mu.Unlock()
	next := func() (core.Membership, error) { return f.OutboxStore.Heartbeat(ctx, m) }
	if f.heartbeat != nil {
		return f.heartbeat(m, next)
	}
	return next()
}

func (f *faulty) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	f.mu.Lock()
	f.looks, f.at = append(f.looks, request), append(f.at, time.Now())
	f.mu.Unlock()
	next := func() (core.ReadResult, error) { return f.OutboxStore.Read(ctx, self, request) }
	if f.read != nil {
		return f.read(request, next)
	}
	return next()
}

func (f *faulty) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	f.mu.Lock()
	f.dues++
	f.mu.Unlock()
	return f.OutboxStore.Due(ctx, self, parts, limit)
}

func (f *faulty) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	f.mu.Lock()
	f.settls = append(f.settls, append([]core.Outcome(nil), outcomes...))
	f.mu.Unlock()
	next := func() core.Results { return f.OutboxStore.Settle(ctx, self, outcomes) }
	if f.settle != nil {
		return f.settle(outcomes, next)
	}
	return next()
}

func (f *faulty) numReads() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.looks)
}

// plain hides the capabilities of a store.
type plain struct{ core.OutboxStore }

func states(s *memory.Store) map[core.State]int {
	out := map[core.State]int{}
	for _, r := range s.Records() {
		out[r.State]++
	}
	return out
}

// crash makes a relay take everything and die, and another one find that out.
func crash(t *testing.T, s *memory.Store, routes ...string) {
	t.Helper()
	const dead, finder = 1, 2
	if len(routes) == 0 {
		routes = []string{waybill.DefaultRoute}
	}
	m := core.Member{Session: dead, Heartbeats: 1}
	for _, r := range routes {
		m.Routes = append(m.Routes, core.ServedRoute{Route: r, InitialPartitions: 64})
	}
	membership, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m, Join: true})
	var moves []core.Transfer
	for _, u := range membership.Partitions {
		moves = append(moves, core.Transfer{Partition: u.Partition, From: u.Owner, To: dead})
	}
	if err == nil {
		_, err = s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m, Transfers: moves})
	}
	var want core.HoldRequest
	for _, r := range s.States() {
		if !r.Waits && !r.Settled() {
			want.Refs = append(want.Refs, core.Ref{Route: r.Route, Seq: r.Seq, ID: r.ID, Version: r.Version})
		}
	}
	if err == nil {
		_, err = s.Hold(t.Context(), dead, want)
	}
	if err == nil {
		_, err = s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: finder, Heartbeats: 1}, Join: true, Evict: []core.Eviction{{Session: dead, Heartbeats: 1}}})
	}
	if err == nil {
		_, err = s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: finder, Heartbeats: 2}, Leave: true})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// newRelay makes a relay within the budget of the test: of virtual time, and of calls of the store.
func newRelay(tb testing.TB, s core.OutboxStore, p core.Publisher, o relay.Options) *relay.Relay {
	tb.Helper()
	if o.Logger == nil {
		o.Logger = quiet()
	}
	count := patience.BudgetOf(tb).Counter()
	s = &sharedtest.Store{OutboxStore: s, Before: func(_ context.Context, call string, _ any) error {
		count(call)
		return nil
	}}
	r, err := relay.New(s, p, o)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// sluggish makes each call of a store take its time: a Heartbeat and any other call. A call whose caller goes away is
// undone.
func sluggish(s core.OutboxStore, heartbeat, other time.Duration) *sharedtest.Store {
	return &sharedtest.Store{OutboxStore: s, Before: func(ctx context.Context, call string, _ any) error {
		d := other
		switch call {
		case "heartbeat":
			d = heartbeat
		case "hold", "release partition":
			return nil
		}
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}}
}
