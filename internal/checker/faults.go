package checker

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Faults says how often what goes wrong, in per mille of the calls.
type Faults struct {
	// Before: it fails and nothing happened. After: it happened, and the answer is lost. Late: the caller is told of a
	// failure, and it happens later. Panic: it panics, before or after. Delay: it takes up to MaxDelay longer, before or
	// after. Partial: some of a batch fail.
	Before, After, Late, Panic, Delay, Partial int
	MaxDelay                                   time.Duration
	// Spell: from then on every settle and extension of the process fails for up to twice MaxDelay, and not by an outage;
	// some settles happen.
	Spell int
	// Of publishers only, per message: refused this time, for good, for want of a queue, or by an outage of one topic.
	Reject, Permanent, Unroutable, TopicOnly int
	// Latency is what every call takes at most without a fault.
	Latency time.Duration
}

// Dice decide when something goes wrong. While they are calm nothing does.
type Dice struct {
	mu   sync.Mutex
	rng  *rand.Rand
	calm *atomic.Bool
}

// NewDice returns the dice of one actor of a history.
func NewDice(seed, actor uint64, calm *atomic.Bool) *Dice {
	return &Dice{rng: rand.New(rand.NewPCG(seed, actor)), calm: calm}
}

// Roll reports true in so many of a thousand calls.
func (d *Dice) Roll(perMille int) bool {
	if perMille <= 0 || d.calm.Load() {
		return false
	}
	return d.N(1000) < perMille
}

// N returns a number from 0 to n-1.
func (d *Dice) N(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

// Up returns a duration up to limit.
func (d *Dice) Up(limit time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	return time.Duration(d.N(int(limit/time.Microsecond)+1)) * time.Microsecond
}

// errDown is what a call gets whose other side does not answer.
var errDown = &core.Error{Op: "checker", Class: core.ClassOutage, Err: errors.New("no answer")}

var errSpell = errors.New("checker: an error of no known kind")

// pause waits for d, or for the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Process is one life of a relay, from its start to its end or kill, and the dice of its calls.
type Process struct {
	Name   string
	ledger *Ledger
	dead   atomic.Bool
	dice   [5]*Dice     // a die a kind of call, since kinds run side by side
	spell  atomic.Int64 // its end
}

// NewProcess returns a process with dice of its own.
func NewProcess(l *Ledger, name string, seed, actor uint64, calm *atomic.Bool) *Process {
	p := &Process{Name: name, ledger: l}
	for i := range p.dice {
		p.dice[i] = NewDice(seed, actor<<8+uint64(i), calm)
	}
	return p
}

// Kill ends the process as a SIGKILL would: nothing it calls from now on happens, and no answer reaches it. What is on
// its way may still happen.
func (p *Process) Kill() {
	p.ledger.Note("kill %s", p.Name)
	p.dead.Store(true)
}

// do makes one call with its faults. ok is false if the caller gets no answer.
func do[T any](ctx context.Context, p *Process, d *Dice, f *Faults, fn func(ctx context.Context) T) (answer T, ok bool) {
	if p.dead.Load() {
		return answer, false
	}
	pause(ctx, d.Up(f.Latency))
	if d.Roll(f.Delay) {
		pause(ctx, d.Up(f.MaxDelay))
	}
	// What was sent is executed even if its caller has gone away meanwhile.
	detached := context.WithoutCancel(ctx)
	switch {
	case ctx.Err() != nil && d.N(2) == 0, p.dead.Load() && d.N(2) == 0, d.Roll(f.Before):
		return answer, false
	case d.Roll(f.Late):
		in := d.Up(f.MaxDelay)
		p.ledger.later(func() {
			pause(detached, in)
			fn(detached)
		})
		pause(ctx, d.Up(in))
		return answer, false
	case d.Roll(f.Panic):
		if d.N(2) == 0 {
			fn(detached)
		}
		panic("checker: a fault")
	}
	answer = fn(detached)
	if d.Roll(f.Delay) {
		pause(ctx, d.Up(f.MaxDelay))
	}
	if p.dead.Load() || ctx.Err() != nil || d.Roll(f.After) {
		var none T
		return none, false
	}
	return answer, true
}

// Store decorates the store of one process with faults, and keeps the ledger.
type Store struct {
	inner  core.OutboxStore
	waiter core.Waiter
	ext    core.LeaseExtender
	p      *Process
	f      *Faults
}

// NewStore returns inner as p sees it. inner must be a core.Waiter and a core.LeaseExtender.
func NewStore(inner core.OutboxStore, p *Process, f *Faults) (*Store, error) {
	s := &Store{inner: inner, p: p, f: f}
	var ok bool
	if s.waiter, ok = core.As[core.Waiter](inner); !ok {
		return nil, errors.New("checker: the store cannot wait")
	}
	if s.ext, ok = core.As[core.LeaseExtender](inner); !ok {
		return nil, errors.New("checker: the store cannot extend leases")
	}
	return s, nil
}

// Traits returns those of the store.
func (s *Store) Traits() core.StoreTraits { return s.inner.Traits() }

// Claim claims, if it is let.
func (s *Store) Claim(ctx context.Context, req core.ClaimRequest) (core.Claim, error) {
	type result struct {
		c   core.Claim
		err error
	}
	r, ok := do(ctx, s.p, s.p.dice[0], s.f, func(ctx context.Context) (r result) {
		began := s.p.ledger.opts.Now()
		s.p.ledger.Do(func() { r.c, r.err = s.inner.Claim(ctx, req) }, func() {
			if r.err == nil {
				s.p.ledger.claimed(s.p.Name, &req, &r.c, began)
			}
		})
		return r
	})
	if !ok {
		s.p.ledger.Note("claim by %s: no answer", s.p.Name)
		return core.Claim{}, errDown
	}
	return r.c, r.err
}

// Settle settles, if it is let: all, some of it, or nothing.
func (s *Store) Settle(ctx context.Context, outcomes []core.Outcome) core.Results {
	d := s.p.dice[1]
	mine := append([]core.Outcome(nil), outcomes...) // a late call must not see what becomes of the caller's
	if s.spell(d) {
		if d.N(8) == 0 {
			s.settle(ctx, d, mine)
		}
		return core.AllFailed(len(mine), errSpell)
	}
	if len(mine) > 1 && d.Roll(s.f.Partial) {
		n := d.N(len(mine))
		return append(s.settle(ctx, d, mine[:n]), core.AllFailed(len(mine)-n, errDown)...)
	}
	return s.settle(ctx, d, mine)
}

// spell reports whether nothing but claims works.
func (s *Store) spell(d *Dice) bool {
	if d.Roll(s.f.Spell) {
		s.p.spell.Store(time.Now().Add(d.Up(2 * s.f.MaxDelay)).UnixNano())
	}
	return time.Now().UnixNano() < s.p.spell.Load() && !d.calm.Load()
}

func (s *Store) settle(ctx context.Context, d *Dice, outcomes []core.Outcome) core.Results {
	res, ok := do(ctx, s.p, d, s.f, func(ctx context.Context) (res core.Results) {
		s.p.ledger.Do(func() { res = s.inner.Settle(ctx, outcomes) }, func() {
			for i := range outcomes {
				if res[i] == nil {
					s.p.ledger.settled(s.p.Name, &outcomes[i])
				}
			}
		})
		return res
	})
	if !ok {
		s.p.ledger.Note("settle by %s: no answer", s.p.Name)
		return core.AllFailed(len(outcomes), errDown)
	}
	return res
}

// ExtendLeases extends, if it is let.
func (s *Store) ExtendLeases(ctx context.Context, records []core.Record, lease time.Duration) core.Results {
	if s.spell(s.p.dice[2]) {
		return core.AllFailed(len(records), errSpell)
	}
	res, ok := do(ctx, s.p, s.p.dice[2], s.f, func(ctx context.Context) (res core.Results) {
		s.p.ledger.Do(func() { res = s.ext.ExtendLeases(ctx, records, lease) }, func() {
			for i := range records {
				if res[i] == nil {
					s.p.ledger.extended(&records[i], lease)
				}
			}
		})
		return res
	})
	if !ok {
		return core.AllFailed(len(records), errDown)
	}
	return res
}

// Wait waits, fails, or returns early.
func (s *Store) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	d := s.p.dice[3]
	switch {
	case s.p.dead.Load():
		pause(ctx, limit)
		return core.WakeTimer, nil
	case d.Roll(s.f.Before):
		return "", errDown
	case d.Roll(s.f.Partial):
		return core.WakeNotify, nil
	}
	return s.waiter.Wait(ctx, routes, limit)
}
