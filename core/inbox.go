package core

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/internal/enum"
)

// Inbox gives a message exactly one effect on a database: the handler's writes and the mark that it was handled are one
// transaction. It is safe for concurrent use. Errors have a class: an unreachable database is an outage.
type Inbox[Tx any] interface {
	// Do begins a transaction, marks key, runs fn if the mark is new, and commits. It returns InboxDuplicate
	// without running fn if a committed transaction had marked key, or InboxConflict if it had done so with another
	// Print. A concurrent Do of the same key waits until the first one ends, or fails with an outage so that the
	// caller runs it again. Then it is a duplicate, or it runs if the first one rolled back. If fn fails or panics,
	// the transaction and the mark are rolled back, for every class of error. Do can run fn again on a transient
	// error of the database (serialisation failure, deadlock), in a fresh transaction. fn's context has the values
	// of ctx.
	//
	// A failed statement can make the database roll the transaction back, at once or at the commit: on PostgreSQL
	// every one does, elsewhere a deadlock. If fn swallows that error, Do returns an error, and nothing that fn
	// wrote is committed, neither before nor after that statement.
	Do(ctx context.Context, key InboxKey, fn func(ctx context.Context, tx Tx) error) (InboxStatus, error)
}

// InboxKey identifies one effect. CloudEvents identity is (source, id); two handlers of one message need two consumer
// names. All three are required, at most 255 bytes each, and are compared byte by byte: case and space count. Every
// method that takes keys begins with [CheckInboxKeys].
type InboxKey struct {
	Consumer, Source, ID string
	// ContentHash is a short hash of the message's content, up to 16 bytes, which tells a message that comes again
	// from another one with the same id. It is kept with the mark, and is no part of the identity. Empty = unknown.
	ContentHash string
}

// WithoutHash returns k without its ContentHash: the part that identifies the effect.
func (k InboxKey) WithoutHash() InboxKey {
	k.ContentHash = ""
	return k
}

// ContentHashBytes returns the ContentHash, or nil if it is unknown.
func (k *InboxKey) ContentHashBytes() []byte {
	if k.ContentHash == "" {
		return nil
	}
	return []byte(k.ContentHash)
}

// StatusOfMarked returns the status of a key that is marked already, with the hash that the mark has kept (empty =
// none): InboxConflict if both hashes are known and differ, or else InboxDuplicate.
func (k *InboxKey) StatusOfMarked(kept []byte) InboxStatus {
	if k.ContentHash != "" && len(kept) > 0 && string(kept) != k.ContentHash {
		return InboxConflict
	}
	return InboxDuplicate
}

// InboxStatus is the result of Do.
type InboxStatus uint8

// The results of Do.
const (
	InboxNone      InboxStatus = iota // failed: nothing was committed
	InboxNew                          // the key had no mark; from Do: fn ran and was committed
	InboxDuplicate                    // an earlier transaction had marked the key; fn did not run
	InboxConflict                     // it had marked the key for another content: another message has the same id
)

// String returns the name of the result.
func (s InboxStatus) String() string {
	return enum.Name("InboxStatus", s, 0, "none", "new", "duplicate", "conflict")
}

// BatchInbox gives many messages their effects in one transaction. Without it batch handlers go one by one.
type BatchInbox[Tx any] interface {
	// DoBatch begins a transaction, marks keys, runs fn once with the indexes of the new marks (not at all if there
	// are none), and commits. It returns one status a key. If anything fails, nothing is committed, and the caller
	// calls Do for each key. The rest is as in Inbox.Do. If keys contains a key twice, the second one is a
	// duplicate, or a conflict. All callers make marks in the order of keys, so that two batches cannot deadlock.
	DoBatch(ctx context.Context, keys []InboxKey, fn func(ctx context.Context, tx Tx, fresh []int) error) ([]InboxStatus, error)
}

// Marker marks messages in a transaction of the caller's own, for handlers that Waybill does not run.
type Marker[Tx any] interface {
	// Mark marks key in tx. InboxNew means that the mark is new: do the work in tx and commit both.
	// InboxDuplicate means that the message had its effect before; InboxConflict, that another one with its id had.
	// Mark waits for a concurrent transaction that marked key, or fails, and the caller runs its transaction again.
	Mark(ctx context.Context, tx Tx, key InboxKey) (InboxStatus, error)
}

// InboxPurger deletes old marks.
type InboxPurger interface {
	// PurgeInbox deletes up to limit marks of consumer (empty = all) that are older than age by the database's
	// clock, in one transaction, and returns their number. Fewer than limit means that no such marks are left. It
	// begins with [CheckPurge].
	PurgeInbox(ctx context.Context, consumer string, age time.Duration, limit int) (int, error)
}
