package postgres

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/core"
)

var _ core.Presence = (*Outbox)(nil)

// Wake ends the present or else the next Wait of this outbox at once. A program that runs the relay itself may call it
// after its commit: it is faster than a notification.
func (o *Outbox) Wake() { o.waiter.Wake() }

// Wait blocks until there may be something to hand out on routes; see [core.Waiter]. It opens a connection of its own
// to LISTEN on, with the pool's configuration, and keeps it for the next call; it closes it when ctx ends, as does
// [Outbox.Close]. (Over a *sql.DB it is one of the pool's connections.) While nothing happens, or each commit notifies
// it, it makes two queries a second, and after half a minute without work one in 20 s, as long as notifications arrive
// and no transaction is open; under load, for 20 ms after a read that had records, one a millisecond, unless the answer
// takes longer. If LISTEN does not work (it was lost, or there is a pooler that shares connections by transaction),
// Wait polls, and tries again from time to time; behind such a pooler no more.
func (o *Outbox) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	if err := o.ready(ctx); err != nil {
		return core.WakePoll, err
	}
	return o.waiter.Wait(ctx, routes, limit)
}

// Acquire takes a session-level advisory lock on a connection of its own; see [core.Presence]. The lock ends with the
// connection, and so with the process. Acquire returns no token if a pooler shares connections by transaction: the lock
// would be that of the pooler. It returns none with Options.DisableNotify either.
func (o *Outbox) Acquire(ctx context.Context) (token int64, lost <-chan struct{}, err error) {
	return o.waiter.Acquire(ctx)
}

// Close closes the connection that Wait opened, if any. It must not be called while Wait runs; the outbox stays usable.
// The pool stays open: it is the caller's.
func (o *Outbox) Close(ctx context.Context) error {
	o.waiter.Close(ctx)
	return nil
}
