package relay_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
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

func stage(tb testing.TB, s *memory.Store, msgs ...core.Message) {
	tb.Helper()
	stageIn(tb.Context(), tb, s, msgs...)
}

func stageIn(ctx context.Context, tb testing.TB, s *memory.Store, msgs ...core.Message) {
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
	outbox.Store
	meet   func(m outbox.Meeting, next func() (outbox.Roster, error)) (outbox.Roster, error)
	read   func(look outbox.Look, next func() (outbox.Page, error)) (outbox.Page, error)
	settle func(outcomes []outbox.Outcome, next func() core.Results) core.Results

	mu     sync.Mutex
	looks  []outbox.Look
	at     []time.Time
	meets  []outbox.Meeting
	dues   int
	settls [][]outbox.Outcome
}

func (f *faulty) Unwrap() any { return f.Store }

func (f *faulty) Meet(ctx context.Context, m outbox.Meeting) (outbox.Roster, error) {
	f.mu.Lock()
	f.meets = append(f.meets, m)
	f.mu.Unlock()
	next := func() (outbox.Roster, error) { return f.Store.Meet(ctx, m) }
	if f.meet != nil {
		return f.meet(m, next)
	}
	return next()
}

func (f *faulty) Read(ctx context.Context, self outbox.Session, look outbox.Look) (outbox.Page, error) {
	f.mu.Lock()
	f.looks, f.at = append(f.looks, look), append(f.at, time.Now())
	f.mu.Unlock()
	next := func() (outbox.Page, error) { return f.Store.Read(ctx, self, look) }
	if f.read != nil {
		return f.read(look, next)
	}
	return next()
}

func (f *faulty) Due(ctx context.Context, self outbox.Session, parts []outbox.Part, limit int) (outbox.DuePage, error) {
	f.mu.Lock()
	f.dues++
	f.mu.Unlock()
	return f.Store.Due(ctx, self, parts, limit)
}

func (f *faulty) Settle(ctx context.Context, self outbox.Session, outcomes []outbox.Outcome) core.Results {
	f.mu.Lock()
	f.settls = append(f.settls, append([]outbox.Outcome(nil), outcomes...))
	f.mu.Unlock()
	next := func() core.Results { return f.Store.Settle(ctx, self, outcomes) }
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
type plain struct{ outbox.Store }

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
		routes = []string{core.DefaultRoute}
	}
	m := outbox.Member{Session: dead, Beat: 1}
	for _, r := range routes {
		m.Serves = append(m.Serves, outbox.Serving{Route: r, Units: 64})
	}
	roster, err := s.Meet(t.Context(), outbox.Meeting{Self: m, Join: true})
	var moves []outbox.Move
	for _, u := range roster.Units {
		moves = append(moves, outbox.Move{Unit: u.Unit, From: u.Owner, To: dead})
	}
	if err == nil {
		_, err = s.Meet(t.Context(), outbox.Meeting{Self: m, Moves: moves})
	}
	var want outbox.Want
	for _, r := range s.States() {
		if !r.Waits && !r.Settled() {
			want.Refs = append(want.Refs, outbox.Ref{Route: r.Route, Seq: r.Seq, ID: r.ID, Version: r.Version})
		}
	}
	if err == nil {
		_, err = s.Take(t.Context(), dead, want)
	}
	if err == nil {
		_, err = s.Meet(t.Context(), outbox.Meeting{Self: outbox.Member{Session: finder, Beat: 1}, Join: true, Remove: []outbox.Removal{{Session: dead, Beat: 1}}})
	}
	if err == nil {
		_, err = s.Meet(t.Context(), outbox.Meeting{Self: outbox.Member{Session: finder, Beat: 2}, Leave: true})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func newRelay(tb testing.TB, s outbox.Store, p core.Publisher, o relay.Options) *relay.Relay {
	tb.Helper()
	if o.Logger == nil {
		o.Logger = quiet()
	}
	r, err := relay.New(s, p, o)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// sluggish answers a call after a time, depending on its kind. A call whose caller goes away is undone.
type sluggish struct {
	*memory.Store
	meet, other time.Duration
}

func (s *sluggish) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *sluggish) Meet(ctx context.Context, m outbox.Meeting) (outbox.Roster, error) {
	if err := s.pause(ctx, s.meet); err != nil {
		return outbox.Roster{}, err
	}
	return s.Store.Meet(ctx, m)
}

func (s *sluggish) Read(ctx context.Context, self outbox.Session, look outbox.Look) (outbox.Page, error) {
	if err := s.pause(ctx, s.other); err != nil {
		return outbox.Page{}, err
	}
	return s.Store.Read(ctx, self, look)
}

func (s *sluggish) Due(ctx context.Context, self outbox.Session, parts []outbox.Part, limit int) (outbox.DuePage, error) {
	if err := s.pause(ctx, s.other); err != nil {
		return outbox.DuePage{}, err
	}
	return s.Store.Due(ctx, self, parts, limit)
}

func (s *sluggish) Settle(ctx context.Context, self outbox.Session, outcomes []outbox.Outcome) core.Results {
	if err := s.pause(ctx, s.other); err != nil {
		return core.AllFailed(len(outcomes), err)
	}
	return s.Store.Settle(ctx, self, outcomes)
}
