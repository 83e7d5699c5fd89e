package core

import "context"

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
