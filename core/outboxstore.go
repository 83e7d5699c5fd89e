package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/enum"
)

// The reasons why an outcome was not applied; matched with errors.Is. They are answers, not failures.
var (
	// ErrLocked reports a record that a caller's transaction has locked alone: send the outcome again.
	ErrLocked = errors.New("locked: a transaction has locked the record")
	// ErrChanged reports a record that no longer matches the outcome: it is gone, settled, or has another version.
	ErrChanged = errors.New("changed: the record is no longer what was handed out")
	// ErrFenced reports a session that was removed, or that neither owns the record's partition nor holds the
	// record.
	ErrFenced = errors.New("fenced: the session was removed, or the record's partition is another's")
)

// NewOutcomeError returns the error for an outcome of ref that changed nothing. why is [ErrLocked], [ErrChanged] or
// [ErrFenced]. The class is rejected. op is the operation: "waybill/postgres: settle".
func NewOutcomeError(op string, ref Ref, why error) error {
	return &waybill.Error{
		Op: fmt.Sprintf("%s %q on route %q", op, ref.ID, ref.Route), Class: waybill.ClassRejected, Err: why,
	}
}

// NewFencedError returns the error for a session that changed nothing because it is no longer a member, or does not own
// the records that it names. It matches [ErrFenced]; the class is rejected.
func NewFencedError(op string, self Session) error {
	return &waybill.Error{Op: fmt.Sprintf("%s by session %d", op, self), Class: waybill.ClassRejected, Err: ErrFenced}
}

// OutboxStore is the interface of a database for the engine. Errors have a class: an unreachable database is an outage,
// and so is an ended context. Names are compared byte by byte: case, space and accents count, in routes, keys, ids,
// topics and dedupe keys. A Stage that has no key, id or dedupe key in common with the records of a call neither waits
// for the call nor fails because of it, unless the database has one writer.
type OutboxStore interface {
	// Heartbeat joins, renews or only reads the membership, in one transaction and in this order: it renews m.Self,
	// makes the partitions of routes that have none, evicts m.Evict, makes m.Transfers, and returns the resulting
	// membership. It skips an eviction or a transfer whose row is locked, an eviction whose member has sent another
	// heartbeat, and a transfer whose partition has another owner than From. Evicting a member counts a crash for
	// each record it holds, ends its holds, frees its partitions, and sets their MaybeOutUpTo to the last sequence
	// drawn. Evict can contain Self: its eviction is no exception. In the end Heartbeat deletes the partitions of
	// routes that no member serves and of which no member owns a partition. The partitions that such a route is
	// given later begin with the least ReadAfter and the greatest MaybeOutUpTo of these, and a later term.
	Heartbeat(ctx context.Context, m HeartbeatRequest) (Membership, error)
	// Read answers all parts of req from one snapshot and locks nothing.
	Read(ctx context.Context, self Session, req ReadRequest) (ReadResult, error)
	// Hold writes holds. It does not wait for a record that a transaction has locked, but answers HoldSkipped. Of
	// one that self holds already, it can answer HoldGranted as well. A removed session gets ErrFenced.
	Hold(ctx context.Context, self Session, req HoldRequest) ([]HoldResult, error)
	// ReleasePartition does all of the following or nothing: it writes holds of self for exactly the records of out
	// in the partition, ends self's other holds in it, stores partition.ReadAfter, and frees the partition. It
	// returns false, and changes nothing, if a record of out is locked. It leaves out a record of out that no
	// longer matches the Ref. If the partition's term is greater than partition.Term, the partition was released
	// before: ReleasePartition returns true and changes nothing, even if self owns the partition again. A removed
	// session gets ErrFenced, and so does one whose partition has another owner in this term. Several releases of a
	// member, each of another partition, can run at once.
	ReleasePartition(ctx context.Context, self Session, partition PartitionState, out []Ref) (bool, error)
	// Due looks for records that have come due in parts; it leaves out slots that self does not own. It holds and
	// returns up to limit retries, first those that self holds already, unless the part says DueExcludeHeld. Up to
	// limit timers get a new number, greater than any drawn before. These are then ready, and the engine reads them
	// like any staged record. Locked records stay for a later Due. With a limit below 1 it does nothing but answer
	// NextIn.
	Due(ctx context.Context, self Session, parts []RouteSlots, limit int) (DueResult, error)
	// Settle persists outcomes and returns one result each: nil, ErrLocked, ErrChanged, ErrFenced, or the error
	// that prevented it. One failed outcome leaves the others alone, unless the error is an outage. EventConfirmed
	// needs a live session and (sequence, id); it returns nil for a record that is gone. All others also need the
	// version, and that self owns the record's partition or holds the record. A Release changes nothing while
	// another live session holds the record. The zero Outcome is refused alone. Where published records are kept,
	// no outcome brings one back.
	Settle(ctx context.Context, self Session, outcomes []Outcome) Results
	// Traits declares the store's promises.
	Traits() StoreTraits
}

// StoreTraits are a store's promises. The zero value promises nothing but exact transaction ids.
type StoreTraits struct {
	// MaxLateCommit is zero if the transaction ids of a ReadResult are exact. Otherwise a transaction can show
	// records although the ids say that it has ended, but only if it began no longer ago than this.
	MaxLateCommit time.Duration
	// SessionFence: a session that was removed, or that lost the partition, settles nothing. Without it only the
	// version protects a record.
	SessionFence bool
	// Durable: committed data survives a crash of the process and of the database.
	Durable bool
	// SharedAcrossProcesses: several processes can share it.
	SharedAcrossProcesses bool
}

// Session names one run of one member: a random number above 0 that is never used again. 0 is no session.
type Session int64

// RouteSlots is some slots of a route.
type RouteSlots struct {
	Route string
	Slots Slots
	// MaxOverdue has a Due look only for records that came due no longer ago than this; 0 = for all. A store can
	// ignore it. Older records do not count in NextIn.
	MaxOverdue time.Duration
	// DueExcludeHeld has a Due leave out the retries that self holds already.
	DueExcludeHeld bool
}

// Partition is the range of slots [From, To) of a route. At most one member owns it.
type Partition struct {
	Route    string
	From, To uint8
}

// Slots returns the partition's slots.
func (p Partition) Slots() Slots { return SlotRange(p.From, p.To) }

// Presence is a store on which a member can show that its process is alive. Without it, other members notice that a
// member was killed only when its lease is over.
type Presence interface {
	// Acquire acquires a resource that the database releases when the process ends or its connection is lost. It
	// returns the token of the resource for Member.Presence: above 0 and never used before. It returns 0 if the
	// database has no such resource, for example behind a pooler. lost is closed when the resource is gone. When
	// ctx ends, the resource is given back, too. Acquire waits for no other member.
	Acquire(ctx context.Context) (token int64, lost <-chan struct{}, err error)
}

// Ref names one version of a record. Every change but a hold raises the version: every outcome does, Release too.
type Ref struct {
	Route   string
	Seq     int64
	ID      string
	Version int64
}

// Record is a stored message that was read.
type Record struct {
	Ref
	// Envelope is the message to publish. If Err is set, it holds the parts that could be read.
	Envelope waybill.Envelope
	Slot     uint8
	// Attempts counts refusals by the broker or the handler, Deliveries counts holds with
	// HoldRequest.CountDelivery, and Crashes counts the members that were removed while they held it.
	Attempts, Deliveries, Crashes int
	// Failed reports that it has an error from an earlier attempt of any member.
	Failed bool
	// Cancellable: it can be cancelled or replaced although it is due, so it must be held before it is handed out.
	Cancellable bool
	// HeldBy is the live session that holds it; 0 = none. A hold of a removed session does not count.
	HeldBy Session
	// DueFor is the time since it first became due, retries notwithstanding, by the store's clock.
	DueFor time.Duration
	// ExpiresIn is the time until it expires, by the store's clock; 0 or less = expired. Valid only if Expires is
	// set.
	Expires   bool
	ExpiresIn time.Duration
	// Err is not nil when the store could not read the row. It must be abandoned with [waybill.ReasonUndecodable].
	Err error
}

// BlockReason is the reason why a record, and with it its key, is not handed out.
type BlockReason uint8

// The block reasons.
const (
	BlockedByRetry     BlockReason = iota + 1 // it waits for its next attempt
	BlockedByAbandoned                        // it was abandoned on a route that blocks; an operator must decide
	BlockedByHold                             // another live session holds it
)

// String returns the name of the block reason.
func (r BlockReason) String() string {
	return enum.Name("BlockReason", r, 1, "retrying", "blocking", "held")
}

// BlockingRecord is a record that blocks its key.
type BlockingRecord struct {
	Ref
	Slot   uint8
	Key    string
	Why    BlockReason
	HeldBy Session
}
