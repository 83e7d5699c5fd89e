package checker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sleep"
)

// Process is one life of a relay, from its start to its end or kill, and the dice of its calls.
type Process struct {
	Name     string
	ledger   *Ledger
	dead     atomic.Bool
	gone     chan struct{} // closed when it is dead
	doomed   atomic.Bool
	dice     [8]*Dice     // a die a kind of call, since kinds run side by side
	spell    atomic.Int64 // its end
	frozen   atomic.Int64 // until when it stands still
	cut      atomic.Int64 // until when it has no connection to its store
	deadline atomic.Int64 // its latest renewal that was answered, and a lease

	mu     sync.Mutex
	onKill []func()
	conns  []func() // end what goes with a connection
}

// NewProcess returns a process with dice of its own.
func NewProcess(l *Ledger, name string, seed, actor uint64, calm *atomic.Bool) *Process {
	p := &Process{Name: name, ledger: l, gone: make(chan struct{})}
	for i := range p.dice {
		p.dice[i] = NewDice(seed, actor<<8+uint64(i), calm)
	}
	return p
}

// OnKill has fn called when the process is killed.
func (p *Process) OnKill(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onKill = append(p.onKill, fn)
}

// Kill ends the process as a SIGKILL would: nothing it calls from now on happens, and no answer reaches it. A call on
// its way may still happen.
func (p *Process) Kill() {
	if p.dead.Swap(true) {
		return
	}
	p.ledger.Note("kill %s", p.Name)
	close(p.gone)
	p.disconnect()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, fn := range p.onKill {
		fn()
	}
}

// connected has end called when the connection to the store is lost.
func (p *Process) connected(end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, end)
}

func (p *Process) disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, end := range p.conns {
		end()
	}
	p.conns = nil
}

// Doom kills the process when it next releases a partition, before or after the store has heard of it.
func (p *Process) Doom() {
	p.ledger.Note("doom %s", p.Name)
	p.doomed.Store(true)
}

// Freeze stops the process for d, as a SIGSTOP would: it neither makes a call nor takes in an answer.
func (p *Process) Freeze(d time.Duration) {
	p.ledger.Note("freeze %s for %s", p.Name, d)
	p.frozen.Store(time.Now().Add(d).UnixNano())
}

// Cut takes the process's connection to the store away for d.
func (p *Process) Cut(d time.Duration) {
	p.ledger.Note("cut %s for %s", p.Name, d)
	p.cut.Store(time.Now().Add(d).UnixNano())
	p.disconnect()
}

// stand returns when the process runs, or is dead: nothing that it does happens any more.
func (p *Process) stand() {
	for d := time.Until(time.Unix(0, p.frozen.Load())); d > 0; d = time.Until(time.Unix(0, p.frozen.Load())) {
		t := time.NewTimer(d)
		select {
		case <-t.C:
		case <-p.gone:
			t.Stop()
			return
		}
	}
}

func (p *Process) isCut() bool { return time.Now().UnixNano() < p.cut.Load() }

// renewed notes that a renewal was answered that was sent at a time.
func (p *Process) renewed(sent time.Time, m *core.Member) {
	if until := sent.Add(m.Lease).UnixNano(); until > p.deadline.Load() {
		p.deadline.Store(until)
	}
}

// do makes one call with its faults. ok is false if the caller gets no answer.
func do[T any](ctx context.Context, p *Process, d *Dice, f *Faults, fn func(ctx context.Context) T) (answer T, ok bool) {
	var none T
	p.stand()
	if p.dead.Load() || p.isCut() {
		_ = sleep.For(ctx, d.Up(f.Latency))
		return none, false
	}
	_ = sleep.For(ctx, d.Up(f.Latency))
	if d.Roll(f.Delay) {
		_ = sleep.For(ctx, d.Up(f.MaxDelay))
	}
	// A call that was sent is executed even if its caller has gone away meanwhile.
	detached := context.WithoutCancel(ctx)
	switch {
	case ctx.Err() != nil && d.N(2) == 0, p.dead.Load() && d.N(2) == 0, d.Roll(f.Before):
		return none, false
	case d.Roll(f.Late):
		in := d.Up(f.MaxDelay)
		p.ledger.later(func() {
			_ = sleep.For(detached, in)
			fn(detached)
		})
		_ = sleep.For(ctx, d.Up(in))
		return none, false
	case d.Roll(f.Panic):
		if d.N(2) == 0 {
			fn(detached)
		}
		panic("checker: a fault")
	}
	answer = fn(detached)
	if d.Roll(f.Delay) {
		_ = sleep.For(ctx, d.Up(f.MaxDelay))
	}
	p.stand()
	if p.dead.Load() || p.isCut() || ctx.Err() != nil || d.Roll(f.After) {
		return none, false
	}
	return answer, true
}
