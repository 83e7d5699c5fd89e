// Package outboxes is the contract for many outboxes in one database, of which most are idle most of the time: one for
// each customer, say. A relay.Fleet serves them.
//
// # Guarantees
//
//   - A look at all outboxes costs a few statements, however many there are.
//   - Later work of a relay leaves a mark that [All] tells: a greater number, a transaction that was open at a Peek, or
//     a time.
//
// # Concurrency
//
// An [All] is safe for concurrent use.
//
// # Ownership
//
// An [All] has nothing to close. The stores that it opens have nothing to close either.
//
// # Limits
//
// The numbers tell of records that were staged, and of notices. They do not tell of rows that were changed by hand.
package outboxes

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/core"
)

// All are the outboxes of one database.
type All interface {
	// Look returns the next outboxes behind a name, in the order of their names; "" = from the first one. It says
	// which numbers an outbox has drawn, committed or not, and locks no row.
	Look(ctx context.Context, after string) (Page, error)
	// Peek returns the state of routes of one outbox.
	Peek(ctx context.Context, name string, routes []string) (State, error)
	// Open returns one outbox, as a store for one relay. It does not connect.
	Open(name string) (core.OutboxStore, error)
}

// Page is what Look answers.
type Page struct {
	Outboxes []Drawn
	// More reports that there are more outboxes behind the last one.
	More bool
	// Xmin is not after any transaction that may be open and may have drawn a number.
	Xmin int64
}

// Drawn are the greatest numbers that were drawn in an outbox, for records and for notices.
type Drawn struct {
	Name             string
	Last, LastNotice int64
	// Refused says why the outbox is not to be served, and how to change that. It is not opened then.
	Refused string
}

// State is what Peek answers.
type State struct {
	// Work reports that a relay has something to do now: a record can be handed out, a retry or a timer is due, a
	// member died, or a notice waits. Work may be true although all records wait behind others.
	Work bool
	// Served reports that a member is there already.
	Served bool
	// NextIn is how long it is until a timer or a retry comes due; negative if there is none.
	NextIn time.Duration
	// Xmin and Xmax bound the transactions that the Peek may have missed, though they had drawn a number: none of
	// those before Xmin, and none from Xmax on.
	Xmin, Xmax int64
}
