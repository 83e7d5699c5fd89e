package core

import (
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/enum"
)

// ReadRequest is one call of Read.
type ReadRequest struct {
	// KnownLastSeq is the greatest ReadResult.LastSeq of this StoreEpoch that the caller has seen; it selects no
	// records. The result has LastSeqXmax if more numbers were drawn since.
	KnownLastSeq int64
	// KnownLastNotice is the greatest ReadResult.LastNotice of this StoreEpoch that the caller has seen. The result
	// has LastSeqXmax, too, if more notices were numbered since. Those with a number up to AfterNotice need not
	// come; a store can ignore it.
	KnownLastNotice, AfterNotice int64
	// Slots are slots of routes; the result tells which of them the session owns.
	Slots []RouteSlots
	// NewlyOwned asks for every waiting record of these slots: retries and blocking records that have a key, and
	// the records, keyed or not, that other live sessions hold. They come by sequence, above NewlyOwnedAfter, up to
	// BlockingLimit.
	NewlyOwned      []RouteSlots
	NewlyOwnedAfter int64
	// BlockingRoutes are the routes on which an abandoned record blocks its key, as [waybill.Reason.Blocks] says.
	BlockingRoutes []string
	// Ranges, Keys and Recheck are the records to read. Each range has its own limit, and its own bytes.
	Ranges  []Range
	Keys    []KeyRange
	Recheck []Ref
	// BlockingLimit bounds ReadResult.Blocking alone. A limit of 0 or less, here and in Ranges and Keys, stands for
	// a bound of the store's own, or fails.
	BlockingLimit int
	// Bytes bounds the bodies of one range; at least one record is returned, even if it is larger.
	Bytes int64
}

// Range asks for the ready records of some slots with AfterSeq < sequence ≤ UpToSeq, in order. A record is ready if it
// is due, and neither settled nor waiting for a time. Held records are ready, too.
type Range struct {
	RouteSlots
	AfterSeq, UpToSeq int64
	// ExcludeKeys lists keys to leave out, and ExcludeSeqs sequences. A store can ignore both.
	ExcludeKeys []string
	ExcludeSeqs []int64
	// KeyedOnly leaves out records without a key.
	KeyedOnly bool
	Limit     int
}

// KeyRange asks for the ready records of one key with AfterSeq < sequence ≤ UpToSeq, in order, and for all records of
// any sequence that block the key.
type KeyRange struct {
	Route, Key        string
	AfterSeq, UpToSeq int64
	Limit             int
}

// ReadResult is the answer to a ReadRequest, from one snapshot.
type ReadResult struct {
	// IsMember reports that the caller's session is a member. If not, the rest is empty.
	IsMember bool
	// Suspected reports that another member has suspected the caller.
	Suspected bool
	// StoreEpoch changes after a database went back: after a fail-over, or a restore that was declared.
	StoreEpoch string
	// Owned are the slots of ReadRequest.Slots that the session owns, one for each.
	Owned []Slots
	// Blocking are the waiting records of ReadRequest.NewlyOwned: those that block their key, and held ones without
	// a key, which block nothing. MoreBlocking reports that there are more.
	Blocking     []BlockingRecord
	MoreBlocking bool
	// Ranges and Keys answer those of the ReadRequest, one each.
	Ranges []Records
	Keys   []KeyRecords
	// Rechecked are the records of ReadRequest.Recheck that are still live: ready or held ones as records, waiting
	// ones as RecheckedBlocking. The others are gone.
	Rechecked         []Record
	RecheckedBlocking []BlockingRecord
	// Notices are the notices of ReadRequest.Slots, the first 1,000 of them.
	Notices []Notice
	// LastNotice is the last number of a notice that was drawn when the snapshot was taken, or a later one; 0 if
	// the store does not tell. What SnapshotXmax, LastSeqXmax and RunningTxs say of sequences holds for these
	// numbers, too.
	LastNotice int64

	// LastSeq is the last sequence that was drawn when the snapshot was taken, or a later one. No record of the
	// snapshot has a greater one.
	LastSeq int64
	// SnapshotXmax, LastSeqXmax and RunningTxs are transaction ids, no sequences. They tell which numbers the
	// snapshot does not show yet. A transaction has its id before it draws its first number.
	//
	// SnapshotXmax: a transaction with an id below SnapshotXmax that is not in RunningTxs has ended, and the
	// snapshot shows its committed records.
	SnapshotXmax int64
	// LastSeqXmax: a transaction that can still show a number up to LastSeq has an id below LastSeqXmax. It is 0 if
	// no number was drawn since ReadRequest.KnownLastSeq.
	LastSeqXmax int64
	// RunningTxs are transactions that have not ended. MaybeEndedTxs are those of them that may have ended before
	// the snapshot was taken: it can show their records. A store that knows both of one moment has none.
	RunningTxs, MaybeEndedTxs []int64
}

// Records are the answer to a Range. More reports that a limit cut them: there can be more after the last one.
type Records struct {
	Records []Record
	More    bool
}

// KeyRecords are the answer to a KeyRange.
type KeyRecords struct {
	Records  []Record
	More     bool
	Blocking []BlockingRecord
}

// NoticeKind is the kind of a notice.
type NoticeKind uint8

// The kinds of notices.
const (
	// NoticeKey: the key may be free, and its records from a sequence on ready again.
	NoticeKey NoticeKind = iota + 1
	// NoticeRecord: the record is ready again; read it.
	NoticeRecord
	// NoticeReread: records of the route from a sequence on are ready again; read all from there.
	NoticeReread
	// NoticeDecide: an operator ends the record with Reason; cancel it as soon as it is not out.
	NoticeDecide
)

// String returns the name of the kind.
func (k NoticeKind) String() string {
	return enum.Name("NoticeKind", k, 1, "key", "record", "from", "decide")
}

// Notice tells the owner of a slot that another process changed a record that the owner remembers. The transaction of
// the change writes it. The owner deletes it by an outcome of [DeleteNotice]. A NoticeReread concerns all owners of its
// route; it stays until each of them has done it.
type Notice struct {
	Number int64
	Kind   NoticeKind
	Route  string
	Slot   uint8 // 0 for NoticeReread, which concerns all
	Key    string
	ID     string
	Seq    int64
	Reason waybill.Reason // of NoticeDecide
}

// HoldRequest is one call of Hold.
type HoldRequest struct {
	// Refs are records of self's partitions to hold: each that still matches the Ref, is live, and is held by no
	// other session. They can be out already.
	Refs []Ref
	// KeylessLimit asks for that many ready records of KeylessSlots that have no key and that no other session
	// holds, in slots of any owner, in order: first those that self holds and that are not in ExcludeRefs.
	KeylessSlots RouteSlots
	KeylessLimit int
	// ExcludeRefs are the records of KeylessSlots that the caller has in memory already.
	ExcludeRefs []Ref
	// Bytes bounds the bodies of the keyless records, but for the first one; 0 = unbounded.
	Bytes int64
	// UpToSeq bounds where keyless records are looked for, so that a Hold walks over few that are gone; 0 =
	// everywhere. A store can ignore it. It looks for those with AfterSeq < sequence ≤ UpToSeq, and in ExtraSeqs.
	AfterSeq, UpToSeq int64
	// ExtraSeqs are sequences outside of AfterSeq and UpToSeq at which keyless records are looked for, too.
	ExtraSeqs []int64
	// SkippedLimit bounds the records that the Hold found in the range and did not hold, although they are ready,
	// have no key and are not in ExcludeRefs: those that another session holds, or a transaction has locked, and
	// those beyond Bytes. With UpToSeq the answer has them, each with HoldSkipped and without a Record: all those
	// of ExtraSeqs, and the first SkippedLimit of the range, up to the greatest that was held if KeylessLimit were
	// held.
	SkippedLimit int
	// CountDelivery counts a delivery for each record that self did not hold before.
	CountDelivery bool
}

// HoldStatus is the result of a Hold for one record.
type HoldStatus uint8

// The results of a Hold.
const (
	HoldGranted HoldStatus = iota + 1 // it is held by self
	HoldSkipped                       // a transaction has locked it, or another session holds it: ask again
	HoldGone                          // it is no longer the Ref
)

// String returns the name of the result.
func (s HoldStatus) String() string {
	return enum.Name("HoldStatus", s, 1, "granted", "skipped", "gone")
}

// HoldResult is one record of a Hold: one for each of HoldRequest.Refs, in their order, or a keyless one with its
// record, or one that was found and not held. Of the last kind only the sequence need be set in Ref.
type HoldResult struct {
	Ref    Ref
	Status HoldStatus
	Record *Record // of keyless ones only
	// Deliveries is the record's count, this one included.
	Deliveries int
}

// DueResult is the answer to Due.
type DueResult struct {
	// Retries are held by the caller. Those that it held before are there even if a transaction has locked them,
	// and no lock is taken on them. Others that a transaction had locked are missing; they are due again at once.
	Retries []Record
	// TimersReady counts timers that became ready.
	TimersReady int
	// NextIn is the time until more records are due; 0 if there are more already, negative if no record waits for a
	// time. Retries that self holds count if they are due and missing, but for parts with DueExcludeHeld.
	NextIn time.Duration
}
