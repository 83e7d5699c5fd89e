package core

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/hlc"
)

// OutboxStore is what a relay needs of a database. All methods are safe for concurrent use by several relays in several
// processes. Errors carry a class (see [ClassOf]); a missing table, an old schema or a missing permission matches
// [ErrMisconfigured].
type OutboxStore interface {
	// Claim leases up to req.MaxRecords records of req.Routes and returns them in staging order. Concurrent claims
	// never return the same record while its lease lasts. For a route with OrderPerKey it returns per key a contiguous
	// prefix of what is due, starting at the key's head, and nothing of a key of which another session holds a record or
	// a retry is waited for; what req.Session itself holds does not hold back what follows. Records whose lease expired are claimable; taking one over adds one to its crashes.
	// A claim looks at a bounded number of rows. An empty claim is not an error.
	Claim(ctx context.Context, req ClaimRequest) (Claim, error)
	// Settle persists outcomes, each if its token is still the record's, and reports ErrLeaseLost for those whose is
	// not. Every claimed record is settled once, released ones too. A settled record that is claimable again may be
	// claimed at once, before its siblings are settled. Settle must be given a context that outlives a stop.
	Settle(ctx context.Context, outcomes []Outcome) Results
	// Traits declares what the store promises.
	Traits() StoreTraits
}

// StoreTraits are a store's promises. The zero value promises nothing.
type StoreTraits struct {
	// KeyOrder: Claim honours OrderPerKey for claims by several relays at once.
	KeyOrder bool
	// HLCOrder: Claim honours OrderHLC.
	HLCOrder bool
	// Durable: what was committed survives a crash of the process and of the database.
	Durable bool
	// SharedAcrossProcesses: several processes may claim from it at once.
	SharedAcrossProcesses bool
	// MaxClaim bounds ClaimRequest.MaxRecords; 0 = unbounded.
	MaxClaim int
}

// Order is how a claim orders the records of a route.
type Order uint8

// The orders of a route.
const (
	// OrderPerKey keeps messages of one key in staged order through failure, retry, several relays and crashes: later
	// ones wait while an earlier one is leased or waits for a retry. Messages without a key are unordered.
	OrderPerKey Order = iota
	// OrderBestEffort claims in staging order, but a message that is being retried does not stall its key.
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

// RouteOrder is one route of a claim. If BlockAfterAbandon, an abandoned message of a key blocks the key (OrderPerKey
// only) until an operator decides.
type RouteOrder struct {
	Route             string
	Order             Order
	BlockAfterAbandon bool
	// SkipTopics are topics not to claim now, because their queue is out of order; few.
	SkipTopics []string
	// SkipKeys are keys of which the session holds plenty, so that more of them would only fill the relay; few. They are
	// a hint, for OrderPerKey only: a store may ignore them.
	SkipKeys []string
}

// ClaimRequest asks for records.
type ClaimRequest struct {
	// Owner names the claimer in the store, for people to read.
	Owner string
	// Session identifies one run of one relay, by a random number. A record whose key has earlier records leased by the
	// same session may be claimed too: the relay promises to send them in order, and nothing that follows a record it
	// failed to send. A relay that does not know what became of a claim or of a settle must go on with a new session.
	// 0 = none: every lease holds back what follows.
	Session int64
	// Routes to claim from; at least one.
	Routes []RouteOrder
	// MaxRecords and MaxBytes bound the claim. MaxBytes counts bodies; at least one record is returned whatever its
	// size. 0 bytes = unbounded.
	MaxRecords int
	MaxBytes   int64
	// Lease is how long the claim lasts, at least a millisecond.
	Lease time.Duration
	// Alone asks for one suspect: at most one record, and only one with SuspectCrashes or more crashes (as counted by
	// this claim). Without Alone a claim returns no suspects and reports them in Claim.Suspects.
	Alone bool
}

// Claim is the answer to a ClaimRequest. The caller owns the records.
type Claim struct {
	// Records are the leased records, in staging order.
	Records []Record
	// More reports that there may be more to claim at once: the limit was reached, or rows were busy. Claim again
	// without waiting.
	More bool
	// Suspects reports that the claim met a claimable suspect and left it for a claim with Alone.
	Suspects bool
	// NextIn is the time until the next timer, retry or lease expiry of these routes, by the store's clock; negative =
	// none is known. Meaningful only when !More.
	NextIn time.Duration
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
	// Cancel withdraws the messages with reason cancelled and returns one status a key, in input order. It waits for
	// no relay: a leased message is CancelInFlight. After an error the transaction must be rolled back.
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
	// Wait blocks until a record of routes may be claimable, limit has passed, or ctx ends. It may return early for no
	// reason. It must not lose a message staged between the caller's last empty claim and this call. One call at a time
	// per store value.
	Wait(ctx context.Context, routes []string, limit time.Duration) (WakeCause, error)
}

// LeaseExtender prolongs the leases of records that take longer than planned. Without it the relay claims only what it
// can publish within one lease.
type LeaseExtender interface {
	// ExtendLeases makes the leases of records last lease from now; a slot is ErrLeaseLost if the token is stale.
	ExtendLeases(ctx context.Context, records []Record, lease time.Duration) Results
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
