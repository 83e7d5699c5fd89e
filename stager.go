package waybill

import "context"

// Staged is what Stage did with one message on one route.
type Staged struct {
	// ID is the message's id, Route its route, a lane included. Of a Duplicate by DedupeKey, ID is that of the live
	// message that stands for it.
	ID, Route string
	// Duplicate reports that nothing was written: a record with this (route, id), or a live one with this (route,
	// topic, dedupe key), existed already.
	Duplicate bool
	// Replaced says what became of the message that this one replaces; CancelNotFound if there was none.
	Replaced CancelStatus
}

// CancelKey names a message to cancel: by ID, or by Topic and DedupeKey, on one route (empty = DefaultRoute; a lane's
// route is [LaneRoute]).
type CancelKey struct{ Route, ID, Topic, DedupeKey string }

// CancelStatus is what became of a message that was to be withdrawn.
type CancelStatus uint8

// The answers of Cancel.
const (
	CancelNotFound CancelStatus = iota // no such live message: never staged, settled, or withdrawn before
	CancelDone                         // withdrawn; it was never sent
	CancelMaybe                        // withdrawn, but it may have been delivered: the result of an earlier try is unknown
	CancelInFlight                     // a relay holds it (or held it and died): it will be, or was, delivered; not withdrawn
)

// String returns the answer in words.
func (s CancelStatus) String() string {
	switch s {
	case CancelNotFound:
		return "not found"
	case CancelDone:
		return "cancelled"
	case CancelMaybe:
		return "cancelled, maybe delivered"
	case CancelInFlight:
		return "in flight"
	}
	return "unknown"
}

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
