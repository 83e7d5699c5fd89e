package checker

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sleep"
)

var (
	_ core.OutboxStore = (*Store)(nil)
	_ core.Presence    = (*Store)(nil)
	_ core.Waiter      = (*Store)(nil)
)

// Store decorates the store of one process with faults, and keeps the ledger.
type Store struct {
	inner    core.OutboxStore
	waiter   core.Waiter   // nil if there is none
	presence core.Presence // nil if there is none
	p        *Process
	f        *Faults
}

// NewStore returns inner as p sees it. One that is no core.Waiter waits for the time to pass.
func NewStore(inner core.OutboxStore, p *Process, f *Faults) *Store {
	s := &Store{inner: inner, p: p, f: f}
	s.presence, _ = core.As[core.Presence](inner)
	s.waiter, _ = core.As[core.Waiter](inner)
	return s
}

// Traits returns those of the store.
func (s *Store) Traits() core.StoreTraits { return s.inner.Traits() }

// answer is what a call of the store came to.
type answer[T any] struct {
	v   T
	err error
}

// call makes a call, if it is let, and notes what came of it.
func call[T any](ctx context.Context, s *Store, die int, name string, fn func(ctx context.Context) (T, error), note func(T)) (none T, err error) {
	a, ok := do(ctx, s.p, s.p.dice[die], s.f, func(ctx context.Context) (a answer[T]) {
		s.p.ledger.Do(func() { a.v, a.err = fn(ctx) }, func() {
			if a.err == nil {
				note(a.v)
			}
		})
		return a
	})
	if !ok {
		s.p.ledger.Note("%s by %s: no answer", name, s.p.Name)
		return none, errDown
	}
	return a.v, a.err
}

// Heartbeat meets, if it is let.
func (s *Store) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	m.Evict, m.Transfers, m.Suspect, m.Self.Routes = slices.Clone(m.Evict), slices.Clone(m.Transfers), slices.Clone(m.Suspect), slices.Clone(m.Self.Routes)
	sent := time.Now()
	r, err := call(ctx, s, 0, "heartbeat", func(ctx context.Context) (core.Membership, error) { return s.inner.Heartbeat(ctx, m) }, func(r core.Membership) {
		s.p.ledger.met(s.p, &m, &r)
	})
	if err == nil && r.IsMember && !m.Leave {
		s.p.ledger.answered(m.Self.Session)
		s.p.renewed(sent, &m.Self)
	}
	return r, err
}

// Read reads, if it is let.
func (s *Store) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	return call(ctx, s, 1, "read", func(ctx context.Context) (core.ReadResult, error) { return s.inner.Read(ctx, self, request) }, func(p core.ReadResult) {
		s.p.ledger.read(s.p, &p)
	})
}

// Hold takes, if it is let.
func (s *Store) Hold(ctx context.Context, self core.Session, want core.HoldRequest) ([]core.HoldResult, error) {
	if s.spell(s.p.dice[2]) {
		return nil, errSpell
	}
	want.Refs, want.ExcludeRefs = slices.Clone(want.Refs), slices.Clone(want.ExcludeRefs)
	return call(ctx, s, 2, "hold", func(ctx context.Context) ([]core.HoldResult, error) { return s.inner.Hold(ctx, self, want) }, func(taken []core.HoldResult) {
		s.p.ledger.took(s.p, self, taken)
	})
}

// ReleasePartition releases a partition if it may. A doomed process is killed by it.
func (s *Store) ReleasePartition(ctx context.Context, self core.Session, partition core.PartitionState, out []core.Ref) (bool, error) {
	if s.p.doomed.Load() {
		if s.p.dice[3].N(2) == 0 {
			s.p.Kill()
		} else {
			defer s.p.Kill()
		}
	}
	if s.spell(s.p.dice[3]) {
		return false, errSpell
	}
	out = slices.Clone(out)
	return call(ctx, s, 3, "release partition", func(ctx context.Context) (bool, error) { return s.inner.ReleasePartition(ctx, self, partition, out) }, func(done bool) {
		if done {
			s.p.ledger.gaveUp(s.p, self, partition, out)
		}
	})
}

// Due asks what is due, if it is let.
func (s *Store) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	if s.spell(s.p.dice[4]) {
		return core.DueResult{}, errSpell
	}
	return call(ctx, s, 4, "due", func(ctx context.Context) (core.DueResult, error) { return s.inner.Due(ctx, self, parts, limit) }, func(p core.DueResult) {
		s.p.ledger.due(s.p, self, &p)
	})
}

// Settle settles, if it is let: all, some of it, or nothing.
func (s *Store) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	d := s.p.dice[5]
	mine := slices.Clone(outcomes) // a late call must not see what becomes of the caller's
	if s.spell(d) {
		if d.N(8) == 0 {
			s.settle(ctx, self, mine)
		}
		return core.AllFailed(len(mine), errSpell)
	}
	if len(mine) > 1 && d.Roll(s.f.Partial) {
		n := d.N(len(mine))
		return append(s.settle(ctx, self, mine[:n]), core.AllFailed(len(mine)-n, errDown)...)
	}
	return s.settle(ctx, self, mine)
}

func (s *Store) settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	res, err := call(ctx, s, 5, "settle", func(ctx context.Context) (core.Results, error) { return s.inner.Settle(ctx, self, outcomes), nil }, func(res core.Results) {
		for i := range outcomes {
			if res[i] == nil && outcomes[i].NoticeNumber() == 0 {
				s.p.ledger.settled(s.p, self, &outcomes[i])
			}
		}
	})
	if err != nil {
		return core.AllFailed(len(outcomes), err)
	}
	return res
}

// spell reports whether no write works but renewals.
func (s *Store) spell(d *Dice) bool {
	if d.Roll(s.f.Spell) {
		s.p.spell.Store(time.Now().Add(d.Up(2 * s.f.MaxDelay)).UnixNano())
	}
	return time.Now().UnixNano() < s.p.spell.Load() && !d.calm.Load()
}

// Acquire shows presence, if the store knows presence. The presence ends when the process is killed or cut off.
func (s *Store) Acquire(ctx context.Context) (token int64, lost <-chan struct{}, err error) {
	if s.presence == nil {
		return 0, nil, nil
	}
	if s.p.dead.Load() || s.p.isCut() {
		return 0, nil, errDown
	}
	ctx, cancel := context.WithCancel(ctx)
	s.p.connected(cancel)
	return s.presence.Acquire(ctx)
}

// Wait waits, fails, or returns early.
func (s *Store) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	d := s.p.dice[6]
	s.p.stand()
	switch {
	case s.p.dead.Load(), s.p.isCut():
		_ = sleep.For(ctx, limit)
		return core.WakeLimit, nil
	case d.Roll(s.f.Before):
		return "", errDown
	case d.Roll(s.f.Partial):
		return core.WakeNotify, nil
	case s.waiter == nil:
		_ = sleep.For(ctx, limit)
		return core.WakeLimit, nil
	}
	cause, err := s.waiter.Wait(ctx, routes, limit)
	s.p.stand()
	return cause, err
}
