package core

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/hlc"
)

// Order is how the records of a route are handed out.
type Order uint8

// The orders of a route.
const (
	// OrderPerKey keeps messages of one key in staged order through failure, retry, several relays and crashes: later
	// ones wait while an earlier one is out or waits for a retry. Messages without a key are unordered.
	OrderPerKey Order = iota
	// OrderBestEffort hands out in staging order, but a message that is being retried does not stall its key.
	OrderBestEffort
	// OrderHLC is OrderBestEffort with due records taken in (HLC, sequence) order.
	OrderHLC
)

// String returns the order's name.
func (o Order) String() string {
	switch o {
	case OrderPerKey:
		return "per_key"
	case OrderBestEffort:
		return "best_effort"
	case OrderHLC:
		return "hlc"
	}
	return "unknown"
}

// Stager writes messages through the caller's open transaction, typed per database driver. It is safe for concurrent
// use as far as the transactions are different.
type Stager[Tx any] interface {
	// Stage writes msgs in tx, in one round trip whatever their number; it never begins, commits or rolls back. It
	// returns one Staged a message and route, in input order, routes in the message's order. Bad input is refused as a
	// whole with an [*InvalidError] before the database is asked. After any other error the transaction must be rolled
	// back.
	Stage(ctx context.Context, tx Tx, msgs ...Message) ([]Staged, error)
}

// Canceller withdraws staged messages through the caller's transaction, which decides with its commit.
type Canceller[Tx any] interface {
	// Cancel withdraws the messages with reason cancelled and returns one status a key, in input order: what is
	// scheduled, waits for a retry, or was staged so that it can be withdrawn while it is due. It waits for no relay: a
	// message that is held, and one that its relay may have out without a hold, is CancelInFlight. After an error the
	// transaction must be rolled back.
	Cancel(ctx context.Context, tx Tx, keys ...CancelKey) ([]CancelStatus, error)
}

// The capabilities below are optional. Find them with [As], never by a type assertion, so that decorators may hide
// nothing.

// WakeCause says why a Wait returned.
type WakeCause string

// The causes of a wake-up, as metric labels.
const (
	WakeNotify WakeCause = "notify" // the store was told of a new message
	WakeTimer  WakeCause = "timer"  // the time asked for has passed
	WakePoll   WakeCause = "poll"   // the store's own safety poll
	WakeStop   WakeCause = "stop"   // the context ended
)

// Waiter lets a relay sleep until a message is staged. Without it the relay polls with adaptive back-off.
type Waiter interface {
	// Wait blocks until there may be something to hand out on routes, limit has passed, or ctx ends. It may return
	// early for no reason. It must not lose a message staged between the caller's last look and this call. One call at
	// a time per store value.
	Wait(ctx context.Context, routes []string, limit time.Duration) (WakeCause, error)
}

// Checker tests at start whether an adapter can work at all. Without it the first use finds out.
type Checker interface {
	// Check returns nil, an error that matches ErrMisconfigured naming the object, the cause and the cure, or an error
	// of class outage.
	Check(ctx context.Context) error
}

// Migrator creates and upgrades what an adapter needs. Without it the documentation says what to create.
type Migrator interface {
	// Migrate brings the schema to the newest version, under a lock, idempotently.
	Migrate(ctx context.Context) error
}

// ClockSeeder knows a mark above which a restarted clock must continue. Without it a clock starts at the wall clock.
type ClockSeeder interface {
	// HighWater returns the highest stamp the store remembers; zero if none.
	HighWater(ctx context.Context) (hlc.Timestamp, error)
}

// Counter counts records for status and gauges without scanning the table. Without it there are no such gauges.
type Counter interface {
	// Counts returns the numbers of records per route and state.
	Counts(ctx context.Context) ([]Count, error)
}

// Count is a number of records of one route in one state.
type Count struct {
	Route string
	State State
	N     int64
	// Estimated: N is a planner's estimate, not a count.
	Estimated bool
	// Oldest is the age of the oldest due record in it, by the store's clock; 0 if empty or unknown.
	Oldest time.Duration
}
