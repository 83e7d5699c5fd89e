// Package rules is the decisions of every store of an outbox, as functions of facts, without a database: whether a
// message can be cancelled, the changes of an outcome, the right to hold a record, the block of a key, the owners to
// tell; members, and the owners of partitions.
//
// # Guarantees
//
// Each rule stands here and nowhere else. A store reads the facts in its transaction, asks the rule, and writes what it
// answers; [Heartbeat], [BlockedKeys] and [Hindrances] ask the store themselves. A store that decides in its own
// language, as store/postgres does in SQL, is compared with the rules: the checks of package storetest whose names
// begin with "rules-" bring records into all combinations of facts, and compare the store's answers and its stored
// records.
//
// # Concurrency and ownership
//
// The functions keep nothing and change nothing of their arguments, but for the membership of [Heartbeat].
//
// # Limits
//
// There are no times here, as there are none in the contract of stores: only delays, which a store adds to its own
// clock. The locks of a store, and the order of its work, are its own business. The package may change until version 1.
package rules

import (
	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Row is what the rules need to know of a stored record: everything but its message and its times.
type Row struct {
	core.Ref
	Slot   uint8
	State  core.State     // pending, failed, published or abandoned: a hold does not show in it
	Reason waybill.Reason // of an abandoned record
	Holder core.Session   // the live session that holds it; 0 = none
	Keyed  bool           // it has a key
	Waits  bool           // for a time: a timer, or a retry
	// Cancellable: it must be held before it is handed out.
	Cancellable bool
	// Blocks: it was abandoned, and blocks its key on routes that block.
	Blocks bool
	// MaybeSent: it may have arrived, for all that is known. A record with a crash always may.
	MaybeSent                     bool
	Attempts, Deliveries, Crashes int
}

// Live reports whether the record has not ended.
func (r *Row) Live() bool { return !r.State.Terminal() }

// Ready reports whether it is in line, also while a member holds it.
func (r *Row) Ready() bool { return r.Live() && !r.Waits }

// Timer reports whether it is scheduled for later. No member reads or holds such a record.
func (r *Row) Timer() bool { return r.Waits && r.State == core.StatePending }

// Retry reports whether it waits for its next attempt.
func (r *Row) Retry() bool { return r.Waits && r.State == core.StateFailed }

// Is reports whether ref names the record as it is now.
func (r *Row) Is(ref core.Ref) bool { return r.Live() && r.Ref == ref }

// Partition is the part of a record's partition that the rules need. The zero value is that of a route that was never
// served.
type Partition struct {
	Owner core.Session
	// MaybeOutUpTo is core.PartitionState.MaybeOutUpTo; that of the route while it has no partitions.
	MaybeOutUpTo int64
}

// Shown returns the state of r as operators see it: a record that a member holds is processing.
func (r *Row) Shown() core.State {
	if r.Live() && r.Holder != 0 {
		return core.StateProcessing
	}
	return r.State
}

// Counted returns the state and the reason by which operators count r, and whether it is due. due says so of a record
// that waits for a time. A published one, which is kept, is not counted: its state is core.StateNone.
func (r *Row) Counted(due bool) (state core.State, reason waybill.Reason, isDue bool) {
	state = r.Shown()
	if state == core.StatePublished {
		return core.StateNone, "", false
	}
	if state == core.StateAbandoned {
		reason = r.Reason
	}
	return state, reason, r.Live() && r.Holder == 0 && (!r.Waits || due)
}

// Suspects reports whether a member that died can have had r out, and no crash window has passed it since.
func (u Partition) Suspects(r *Row) bool { return !r.Timer() && r.Seq <= u.MaybeOutUpTo }
