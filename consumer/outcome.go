package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// verdict is what was decided about a delivery.
type verdict struct {
	ack     core.Ack
	status  status
	err     error
	outage  bool // something the handler needs is down
	inPlace bool // it is held, and its key with it, until the retry
	healthy bool // the handler ran, and nothing it needs is down
}

// refuse returns what becomes of a delivery that must not reach a handler, or nil.
func (r *runner) refuse(d *waybill.Delivery) *verdict {
	e := &d.Envelope
	switch {
	case d.Err != nil:
		return new(park(d, orElse(waybill.ReasonOf(d.Err), waybill.ReasonUndecodable), d.Err))
	case !e.Expires.IsZero() && e.Expired(time.Now()):
		return new(park(d, waybill.ReasonExpired, errors.New("expired at "+e.Expires.UTC().Format(time.RFC3339))))
	case r.sub.MaxDeliveries > 0 && d.Redeliveries >= r.sub.MaxDeliveries:
		return new(park(d, waybill.ReasonDeliveries, fmt.Errorf("delivered %d times before without an outcome; at most %d are allowed: "+
			"its handler may end the process", d.Redeliveries, r.sub.MaxDeliveries)))
	case r.find(e) == nil:
		v := park(d, waybill.ReasonNoHandler, fmt.Errorf("no handler of queue %q is for type %.100q or topic %.100q: register one, or narrow the bindings", r.sub.Queue, e.Type, e.Topic))
		if r.c.opts.Unknown == UnknownDrop {
			v.ack, v.status = core.AckDone(d), statusDropped
		}
		return &v
	}
	return nil
}

func park(d *waybill.Delivery, reason waybill.Reason, err error) verdict {
	return verdict{ack: core.AckReject(d, reason, err), status: statusParked, err: err}
}

// process runs it's handler and returns what follows.
func (r *runner) process(it *item) verdict {
	d := it.d
	e := &d.Envelope
	ctx := r.handlerCtx
	r.merge(it)
	if e.TraceParent != "" {
		if sc := core.SpanContextOf(e); sc.IsValid() {
			ctx = trace.ContextWithRemoteSpanContext(ctx, sc)
		}
	}
	ctx, span := r.tel.tracer.Start(ctx, "waybill process", r.tel.spanOptions...)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("messaging.message.id", e.ID), attribute.String("messaging.destination.name", e.Topic),
			attribute.Int("waybill.attempt", d.Attempt))
	}
	r.tel.active.Add(ctx, 1, r.tel.plain...)
	st, err := r.attempts(waybill.WithDelivery(ctx, d), it)
	r.tel.active.Add(ctx, -1, r.tel.plain...)
	core.EndSpan(span, err)
	v := r.decide(d, st, err)
	r.report(r.handlerCtx, d, &v)
	return v
}

// merge merges it's stamp into the clock, once.
func (r *runner) merge(it *item) {
	e := &it.d.Envelope
	clock := r.c.opts.Clock
	if clock == nil || e.HLC.IsZero() || it.merged {
		return
	}
	it.merged = true
	if _, err := clock.Observe(e.HLC); err != nil {
		r.tel.count(r.handlerCtx, r.tel.drift, 1)
		r.log.warn(r.handlerCtx, "consumer.drift", "a message's stamp was refused; it is handled all the same", slog.String("id", e.ID), errAttr(err))
	}
}

// errGoexit is the failure of a handler that ended its goroutine.
var errGoexit = errors.New("the handler called runtime.Goexit")

// panicError is a handler's panic as an error: a failure like any other, whatever the value was. The stack is for the
// log.
type panicError struct {
	value any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("the handler panicked: %v", p.value) }

// call runs the handler; a panic is an error.
func call(ctx context.Context, it *item) (st waybill.HandlerStatus, err error) {
	defer recovered(&err)
	st, err = it.h.handle(ctx, it.d)
	probe(err)
	return st, err
}

// probe asks err what will be asked of it later, so that one that panics, such as a nil pointer to a type of the
// handler's, does so where that is a failure like any other.
func probe(err error) {
	if err != nil {
		_, _ = err.Error(), waybill.ClassOf(err)
	}
}

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = &panicError{value: p, stack: debug.Stack()}
	}
}

// decide maps a handler's result to what becomes of the delivery.
func (r *runner) decide(d *waybill.Delivery, st waybill.HandlerStatus, err error) verdict {
	if err == nil {
		v := verdict{ack: core.AckDone(d), status: statusSuccess, healthy: true}
		if st == waybill.HandlerDuplicate {
			v.status = statusDuplicate
		}
		return v
	}
	class := waybill.ClassOf(err)
	if class == waybill.ClassPermanent {
		reason := orElse(waybill.ReasonOf(err), waybill.ReasonRejected)
		v := park(d, reason, err)
		v.healthy = reason != waybill.ReasonUndecodable && reason != waybill.ReasonNoID // those say nothing about what the handler needs
		return v
	}
	if r.handlerCtx.Err() != nil { // cut off by a stop
		return verdict{ack: core.AckRelease(d), status: statusFailed, err: err}
	}
	if class == waybill.ClassOutage {
		return verdict{ack: core.AckRelease(d), status: statusFailed, err: err, outage: true, inPlace: r.sub.InOrder}
	}
	v := r.retry(d, err)
	v.healthy = true
	return v
}

// retry asks the policy about a failed attempt.
func (r *runner) retry(d *waybill.Delivery, cause error) verdict {
	policy, attempt := r.sub.Retry, max(d.Attempt, 1)
	limit := policy.MaxAttempts()
	if limit > 0 && attempt >= limit {
		return park(d, waybill.ReasonAttempts, cause)
	}
	delay, asked := after(cause)
	longest := r.tel.traits.MaxRetryDelay
	inPlace := r.sub.InOrder && (d.Envelope.Key != "" || !r.tel.traits.RetryLater)
	if inPlace {
		longest = 0 // nobody but this process holds it
	}
	switch {
	case inPlace && asked:
	case asked && !r.tel.traits.RetryLater:
		return park(d, waybill.ReasonRetryPolicy, fmt.Errorf("this transport cannot deliver again later: %w", cause))
	case !asked:
		next, again, err := r.ask(policy, attempt, cause)
		switch {
		case err != nil:
			return park(d, waybill.ReasonRetryPolicy, fmt.Errorf("%w; the handler had failed: %w", err, cause))
		case !again:
			return park(d, waybill.ReasonRejected, cause)
		case policy.Kind == waybill.BackoffCustom && longest > 0 && next > longest:
			return park(d, waybill.ReasonRetryPolicy, fmt.Errorf("the retry policy asked for %s, this transport can hold %s; the handler had failed: %w",
				next, longest, cause))
		}
		delay = next
	}
	if longest > 0 {
		delay = min(delay, longest)
	}
	return verdict{ack: core.AckRetry(d, delay, cause), status: statusRetried, err: cause, inPlace: inPlace}
}

// policyTimeout is how long a custom policy may think.
const policyTimeout = 5 * time.Second

// ask is policy.Next for policies that may not return: then the goroutine they run in is left behind.
func (r *runner) ask(policy *waybill.Backoff, attempt int, cause error) (delay time.Duration, again bool, err error) {
	if policy.Kind != waybill.BackoffCustom {
		return policy.Next(attempt, cause)
	}
	type answer struct {
		delay time.Duration
		again bool
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		a := answer{err: errors.New("waybill: the custom back-off ended its goroutine")}
		defer func() { answered <- a }()
		a.delay, a.again, a.err = policy.Next(attempt, cause)
	}()
	timer := time.NewTimer(policyTimeout)
	defer timer.Stop()
	select {
	case a := <-answered:
		return a.delay, a.again, a.err
	case <-timer.C:
		return 0, false, fmt.Errorf("waybill: the custom back-off did not answer within %s", policyTimeout)
	}
}

// after returns the delay that a handler asked for with waybill.RetryAfter.
func after(err error) (time.Duration, bool) {
	if e, ok := errors.AsType[*waybill.Error](err); ok && e.After > 0 {
		return e.After, true
	}
	return 0, false
}
