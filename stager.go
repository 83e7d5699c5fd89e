package waybill

import "context"

// Staged is the result of Stage for one message on one route.
type Staged struct {
	// ID is the message's id, and Route its route, a lane included. For a Duplicate by DedupeKey, ID is the id of
	// the live message that has the key.
	ID, Route string
	// Duplicate reports that nothing was written: a record with this (route, source, id), or a live one with this
	// (route, topic, tenant, dedupe key), exists already. The same id or dedupe key there with another source is
	// an error with [ReasonIDConflict].
	Duplicate bool
	// Replaced is the outcome for the message that this one replaces; CancelNotFound if there was none.
	Replaced CancelStatus
}

// CancelKey names a message to cancel: by ID, or by Topic and DedupeKey, on one route (empty = DefaultRoute; a lane's
// route is [LaneRoute]). Dedupe keys belong to a tenant (empty = the context's). [Topic.CancelKeys] returns those of a
// topic's routes.
type CancelKey struct{ Route, ID, Topic, DedupeKey, Tenant string }

// CancelStatus is the outcome for a message that was to be cancelled.
type CancelStatus uint8

// The answers of Cancel.
const (
	// CancelNotFound: there is no such live message. It was never staged, is settled, or was cancelled before.
	CancelNotFound CancelStatus = iota
	// CancelDone: it is cancelled, and was never sent.
	CancelDone
	// CancelUncertain: it is cancelled, but may have been delivered. The result of an earlier try is unknown.
	CancelUncertain
	// CancelInFlight: it is not cancelled. A relay holds it, or held it and died: it will be, or was, delivered.
	CancelInFlight
)

// String returns the answer in words.
func (s CancelStatus) String() string {
	switch s {
	case CancelNotFound:
		return "not found"
	case CancelDone:
		return "cancelled"
	case CancelUncertain:
		return "cancelled, maybe delivered"
	case CancelInFlight:
		return "in flight"
	}
	return "unknown"
}

// Order says how the records of a route are handed out.
type Order uint8

// The orders of a route.
const (
	// OrderPerKey keeps messages of one key in staged order through failure, retry, several relays and crashes.
	// Later messages wait while an earlier one is out or waits for a retry. Messages without a key are unordered.
	OrderPerKey Order = iota
	// OrderBestEffort hands out in staging order, but a message that waits for a retry does not stall its key.
	OrderBestEffort
	// OrderBestEffortHLC is OrderBestEffort, and sorts by (HLC, sequence) what was read and not handed out yet.
	// Reads follow the order of staging, up to BatchSize records at a time. So a whole backlog is not in the order
	// of its stamps: records of a later read come after the records of an earlier read, with any stamp.
	OrderBestEffortHLC
)

// String returns the order's name.
func (o Order) String() string {
	switch o {
	case OrderPerKey:
		return "per_key"
	case OrderBestEffort:
		return "best_effort"
	case OrderBestEffortHLC:
		return "best_effort_hlc"
	}
	return "unknown"
}

// Stager writes messages through the caller's open transaction, typed per database driver. It is safe for concurrent
// use with different transactions.
type Stager[Tx any] interface {
	// Stage writes msgs in tx, in a number of round trips that does not depend on the number of messages: in one
	// where the database can. It never begins, commits or rolls back. It returns one Staged a message and route, in
	// input order, routes in the message's order. Bad input is refused as a whole with an [*InvalidError] before
	// the database is asked. If another transaction has staged the same (route, id) or dedupe key, Stage waits
	// until that one ends, or fails, and the caller runs its transaction again. After any other error than an
	// InvalidError the caller must roll the transaction back.
	Stage(ctx context.Context, tx Tx, msgs ...Message) ([]Staged, error)
}

// Canceller cancels staged messages through the caller's transaction. The cancellation takes effect with the commit.
type Canceller[Tx any] interface {
	// Cancel cancels the messages with reason cancelled and returns one status a key, in input order. It
	// cancels messages that are scheduled, that wait for a retry, or that are due and cancellable. It waits for
	// no relay: a message that is held, or that its relay can have out without a hold, is CancelInFlight. If
	// another transaction cancels the same message, Cancel waits until that one ends, or fails. A message that is
	// named twice in one call can be CancelNotFound the second time. After an error the caller must roll the
	// transaction back.
	Cancel(ctx context.Context, tx Tx, keys ...CancelKey) ([]CancelStatus, error)
}
