package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sleep"
)

// The context of a handler is nested: it ends with the run (handlerCtx), with the loss of the message to another
// consumer (owned), and with the time limit (attempt). The judge tells the three apart: a stop releases the message at
// no cost, a lost message is released too, and a slow handler has failed.

// process runs m's handler and returns the verdict. The steps:
//
//  1. The message's stamp is merged into the clock. m.begun notes how many outages there were: a later success of m
//     shows that they are over.
//  2. The handler runs, as often as the policy for retries in the process says, within the time limit. Its context
//     ends when another consumer has the message.
//  3. The judge decides. A message that is lost is released in any case.
//  4. An outage that is the message's own, for too long, parks it (blame).
//  5. A delay in place is cut to the time for which the broker leaves the message here.
func (r *runner) process(m *message) verdict {
	d := m.d
	r.merge(m)
	m.begun = r.load.blames.outages.Load()
	begin := time.Now()
	base := r.handlerCtx
	if r.sharesLimit() {
		base = r.limits.from(base, begin)
	}
	ctx, span := r.tel.start(base, d)
	r.tel.active.Add(ctx, 1, r.tel.plain...)
	ours, done := r.owned(waybill.WithDelivery(ctx, d), m)
	defer done()
	st, err := r.attempts(ours, m)
	r.tel.active.Add(ctx, -1, r.tel.plain...)
	endSpan(span, err)
	v := r.judge.decide(r.handlerCtx, d, st, err)
	if err != nil && isLost(ours) {
		v = loss(d, err)
	}
	r.blame(m, &v)
	v.took = time.Since(begin)
	if asked, changed := r.judge.heldFor(&v, time.Since(m.since)); changed {
		r.log.Event(ctx, slog.LevelWarn, "consumer.delay_capped",
			"a handler asked for a delay in place that ends after the broker takes the message back; it is shorter",
			append(ofMessage(d), slog.Duration("asked", asked), slog.Duration("delay", round(v.ack.Delay)), slog.Duration("ack_timeout", r.judge.traits.AckTimeout))...)
	}
	r.report(ctx, d, &v)
	return v
}

// owned returns a context that ends, with the cause waybill.ErrLeaseLost, when it is known that another consumer has
// one of ms: by core.LeaseWatcher, or since it cannot be renewed. If that is known already, the context has ended, and
// no handler may begin.
func (r *runner) owned(ctx context.Context, ms ...*message) (context.Context, func()) {
	if r.judge.traits.HoldFor <= 0 && !slices.ContainsFunc(ms, func(m *message) bool { return m.session.losses != nil }) {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	for _, m := range ms {
		lost := func() {
			cancel(waybill.ErrLeaseLost)
			r.tellLost(m, waybill.ErrLeaseLost, slog.String("phase", "renew"))
		}
		if m.session.losses != nil {
			m.session.losses.OnLost(m.d, lost)
		}
		r.mu.Lock()
		m.lost = lost
		known := m.lossTold
		r.mu.Unlock()
		if known { // it waited when it was lost
			lost()
		}
	}
	return ctx, func() { cancel(nil) }
}

func isLost(ctx context.Context) bool {
	return ctx.Err() != nil && errors.Is(context.Cause(ctx), waybill.ErrLeaseLost)
}

// loss is the verdict about a delivery that another consumer has.
func loss(d *waybill.Delivery, err error) verdict {
	if !errors.Is(err, waybill.ErrLeaseLost) {
		err = fmt.Errorf("%w; the handler's context was ended: %w", waybill.ErrLeaseLost, err)
	}
	return verdict{ack: core.AckRelease(d), status: statusFailed, err: err, lost: true}
}

// merge merges m's stamp into the clock, once.
func (r *runner) merge(m *message) {
	e := &m.d.Envelope
	clock := r.opts.Clock
	if clock == nil || e.HLC.IsZero() || m.merged {
		return
	}
	m.merged = true
	if _, err := clock.Observe(e.HLC); err != nil {
		r.tel.count(r.handlerCtx, r.tel.drift, 1)
		r.log.Event(r.tel.under(r.handlerCtx, m.d), slog.LevelWarn, "consumer.drift",
			"a message's stamp was refused; it is handled all the same", append(ofMessage(m.d), errAttr(err))...)
	}
}

// attempts runs m's handler, and repeats it while the policy for retries in the process allows. Each time goes through
// the inbox, if there is one, in a transaction of its own.
func (r *runner) attempts(ctx context.Context, m *message) (st waybill.HandlerStatus, err error) {
	policy := r.sub.InProcess
	for n := 1; ; n++ {
		if isLost(ctx) {
			return waybill.HandlerProcessed, waybill.ErrLeaseLost
		}
		begin := time.Now()
		st, err = r.attempt(ctx, m)
		r.tel.duration.Record(ctx, time.Since(begin).Seconds(), r.tel.plainRecord...)
		if err == nil || policy == nil || !repeatable(err) || r.stopCtx.Err() != nil {
			return st, err
		}
		delay, again, errPolicy := policy.Next(n, err)
		if !again || errPolicy != nil {
			return st, err
		}
		r.tel.count(ctx, r.tel.repeats, 1)
		r.logRepeat(ctx, m.d, n, delay, err)
		if sleep.For(r.stopCtx, delay) != nil {
			return st, err
		}
	}
}

// attempt runs m's handler once, within the time limit.
func (r *runner) attempt(ctx context.Context, m *message) (waybill.HandlerStatus, error) {
	switch {
	case r.sub.Timeout < 0:
		return call(ctx, m)
	case r.sharesLimit():
		st, err := call(ctx, m)
		return st, overrun(r.handlerCtx, ctx, err, tooLong, DefaultTimeout)
	}
	limit := cmp.Or(r.sub.Timeout, DefaultTimeout)
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	st, err := call(limited, m)
	return st, overrun(ctx, limited, err, tooLong, limit)
}

// tooLong is the error of a handler that ran longer than its subscription allows.
const tooLong = "the handler ran longer than Subscription.Timeout, %s"

// repeatable reports whether a failure is left to the policy: neither the handler nor its store has decided.
func repeatable(err error) bool {
	if _, asked := after(err); asked {
		return false
	}
	class := waybill.ClassOf(err)
	return class == waybill.ClassUnknown || class == waybill.ClassRejected
}

// call runs the handler; a panic is an error.
func call(ctx context.Context, m *message) (st waybill.HandlerStatus, err error) {
	defer recovered(&err)
	st, err = m.h.handle(ctx, m.d)
	callMethods(err)
	return st, err
}

// callMethods calls the methods of err that will be called later. A panic in them, such as of a nil pointer to a type
// of the handler's, happens here, where it is a failure like any other.
func callMethods(err error) {
	if err != nil {
		_, _ = err.Error(), waybill.ClassOf(err)
	}
}

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = &panicError{value: p, stack: debug.Stack()}
	}
}

// errGoexit is the failure of a handler that ended its goroutine.
var errGoexit = errors.New("the handler called runtime.Goexit")

// panicError is a handler's panic as an error: a failure like any other, with any value. The stack is for the log.
type panicError struct {
	value any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("the handler panicked: %v", p.value) }
