package core

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/internal/enum"
)

// Inbox gives a message exactly one effect on a database: the mark that it was handled and the handler's writes are one
// transaction. It is safe for concurrent use. Errors carry a class: a database that cannot be reached is an outage.
type Inbox[Tx any] interface {
	// Do begins a transaction, marks key and, if the mark is new, runs fn with it, then commits. It returns
	// InboxDuplicate without running fn if key was marked by a committed transaction. A concurrent Do of the same key
	// waits for the first to end, then is a duplicate or, if the first rolled back, runs. If fn fails or panics the
	// transaction is rolled back and the mark with it. fn may run again on a transient error of the database
	// (serialisation failure, deadlock), in a fresh transaction. A commit that the database turned into a rollback,
	// since fn swallowed a failed statement, is an error.
	Do(ctx context.Context, key InboxKey, fn func(ctx context.Context, tx Tx) error) (InboxStatus, error)
}

// InboxKey identifies one effect. CloudEvents identity is (source, id); two handlers of one message need two consumer
// names. All three are required, at most 255 bytes each.
type InboxKey struct{ Consumer, Source, ID string }

// InboxStatus is what Do did.
type InboxStatus uint8

// The results of Do.
const (
	InboxNone      InboxStatus = iota // failed: nothing was committed
	InboxProcessed                    // fn ran and was committed
	InboxDuplicate                    // an earlier transaction had marked the key; fn did not run
)

// String returns the name of the result.
func (s InboxStatus) String() string {
	return enum.Name("InboxStatus", s, 0, "none", "processed", "duplicate")
}

// BatchInbox gives many messages their effects in one transaction. Without it batch handlers go one by one.
type BatchInbox[Tx any] interface {
	// DoBatch begins a transaction, marks keys, runs fn once with the indexes of those whose mark is new (not at all if
	// there are none), and commits. It returns one status a key. If anything fails nothing is committed, and the caller
	// falls back to Do for each. The rest is as in Inbox.Do. A key that stands twice in keys is a duplicate the second
	// time. Marks are made in the order of keys by all callers alike, so that two batches cannot deadlock.
	DoBatch(ctx context.Context, keys []InboxKey, fn func(ctx context.Context, tx Tx, fresh []int) error) ([]InboxStatus, error)
}

// Marker marks messages in a transaction of the caller's own, for handlers that Waybill does not run.
type Marker[Tx any] interface {
	// Mark marks key in tx. InboxProcessed means that the mark is new: do the work in tx and commit both.
	// InboxDuplicate means that it had its effect before. It waits for a concurrent transaction that marked key.
	Mark(ctx context.Context, tx Tx, key InboxKey) (InboxStatus, error)
}

// InboxPurger deletes old marks.
type InboxPurger interface {
	// PurgeInbox deletes up to limit marks of consumer (empty = all) that are older than age by the database's clock,
	// in one transaction, and returns how many. Fewer than limit means that no more are left.
	PurgeInbox(ctx context.Context, consumer string, age time.Duration, limit int) (int, error)
}
