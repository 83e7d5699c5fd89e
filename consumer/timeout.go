package consumer

import (
	"context"
	"sync/atomic"
	"time"
)

// A handler has a quarter of an hour if its subscription says nothing: one that hangs must not hold its message for
// ever. A context with a deadline of its own would cost seven allocations a message, a tenth of the work of an inbox.
// So handlers that begin within a few seconds share the parent of their contexts.

// DefaultTimeout is the time of a handler whose subscription sets none; one that runs alone may have a hundredth more.
// It is half of the time after which RabbitMQ takes messages back.
const DefaultTimeout = 15 * time.Minute

// limitSlack is how long handlers that share a limit may begin after each other.
const limitSlack = DefaultTimeout / 100

// limits makes the shared limits.
type limits struct{ latest atomic.Pointer[limit] }

// limit is for handlers that begin before until.
type limit struct {
	ctx   context.Context //nolint:containedctx // the parent of handlers' contexts
	until time.Time
}

// sharesLimit reports whether handlers share limits. A try in the process has a time of its own.
func (r *runner) sharesLimit() bool { return r.sub.Timeout == 0 && r.sub.InProcess == nil }

// from returns the limit of a handler that begins now.
func (l *limits) from(parent context.Context, now time.Time) context.Context {
	if latest := l.latest.Load(); latest != nil && now.Before(latest.until) {
		return latest.ctx
	}
	ctx, cancel := context.WithTimeout(parent, DefaultTimeout+limitSlack)
	context.AfterFunc(ctx, cancel)
	l.latest.Store(&limit{ctx, now.Add(limitSlack)})
	return ctx
}
