package faults

import (
	"context"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
)

// Call is a call that a script decides about.
type Call struct {
	// Op names the method: "heartbeat", "read", "hold", "release partition", "due" and "settle" of a store;
	// "publish" of a publisher; "subscribe", "receive" and "settle" of a transport; "do" of an inbox.
	Op string
	// N counts the calls with this Op, from 1.
	N int
	// Arg is what the call is about. It belongs to the call: a core.HeartbeatRequest, core.ReadRequest,
	// core.HoldRequest, core.PartitionState, []core.RouteSlots or []core.Outcome of a store, a []waybill.Envelope,
	// a core.Subscription, the limit of a receive, a []core.Ack, a core.InboxKey.
	Arg any
}

// Fault is what happens to a call. The zero value is no fault.
type Fault struct {
	// Before is answered instead of making the call: nothing happened.
	Before error
	// After is answered although the call was made: its effect is there, its answer is lost.
	After error
	// Delay is how long the call takes longer, before it is made. The end of its context ends the delay.
	Delay time.Duration
	// Hang: the call is not made. It ends with its context.
	Hang bool
}

func (f *Fault) breaks() bool { return f.Before != nil || f.After != nil || f.Delay > 0 || f.Hang }

// Script decides about one call.
type Script func(c Call) Fault

// Lost is the error of an answer that did not come: an outage, after which the caller does not know whether the call
// had its effect.
var Lost error = &waybill.Error{Op: "faults", Class: waybill.ClassOutage, Err: errNoAnswer}

// On breaks the calls of op from number first to number last.
func On(op string, first, last int, f Fault) Script {
	return func(c Call) Fault {
		if c.Op == op && c.N >= first && c.N <= last {
			return f
		}
		return Fault{}
	}
}

// All joins scripts: the first one that breaks a call wins.
func All(scripts ...Script) Script {
	return func(c Call) Fault {
		for _, s := range scripts {
			if f := s(c); f.breaks() {
				return f
			}
		}
		return Fault{}
	}
}

// Skew returns a clock that is wrong by by, for hlc.Options and others that take one.
func Skew(now func() time.Time, by time.Duration) func() time.Time {
	return func() time.Time { return now().Add(by) }
}

// breaker asks a script about calls.
type breaker struct {
	script Script
	mu     sync.Mutex
	n      map[string]int
}

func newBreaker(s Script) *breaker { return &breaker{script: s, n: map[string]int{}} }

func (b *breaker) ask(op string, arg any) Fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n[op]++
	return b.script(Call{Op: op, N: b.n[op], Arg: arg})
}

// run makes a call, or breaks it. fn makes it. The error is that of the fault, or nil if fn's answer counts.
func (b *breaker) run(ctx context.Context, op string, arg any, fn func()) error {
	f := b.ask(op, arg)
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	switch {
	case f.Hang:
		<-ctx.Done()
		return &waybill.Error{Op: "faults: " + op, Class: waybill.ClassOutage, Err: ctx.Err()}
	case f.Before != nil:
		return f.Before
	}
	fn()
	return f.After
}
