// Package store is the smallest outbox store that passes the conformance suites, to begin an adapter with. It keeps
// rows in memory, and it finds them by looking at all. docs/adapters.md explains it, and lists the duties of a real
// database beyond it: the places are marked with INDEX, LOCK and SNAPSHOT.
//
// # Guarantees
//
// Those of core.OutboxStore and waybill.Stager for one process. Nothing survives its end.
//
// # Concurrency
//
// All methods are safe for concurrent use. One transaction at a time stages; others wait in Begin.
//
// # Ownership
//
// Staged messages are copied. Records that are returned are copies.
//
// # Limits
//
// It has none of the optional capabilities: no waking, no cancelling, no inspection, no redrive, no retention.
package store

import (
	"context"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

var (
	_ core.OutboxStore    = (*Store)(nil)
	_ waybill.Stager[*Tx] = (*Store)(nil)
)

// epoch is the life of the database. One that can be set back has another epoch after that.
const epoch = "1"

// Store is an outbox in memory.
type Store struct {
	stamper *core.Stamper
	writer  chan struct{} // holds the transaction that may stage

	// SNAPSHOT: what a method reads and writes under it is one transaction
	mu         sync.Mutex
	rows       []*row                         // in the order of their sequence. INDEX: primary key (route, seq)
	seq        int64                          // the last number drawn
	membership core.Membership                // the members and the partitions
	kept       map[string]core.PartitionState // by route without partitions, see rules.MembershipTx
}

// row is a stored record: its facts, which package rules decides about, its message and its times. Published rows are
// deleted.
type row struct {
	rules.Row
	env     waybill.Envelope
	lastErr string
	dedupe  string
	due     time.Time // when it became due, or will
	since   time.Time // when it first became due
}

// facts returns what package rules needs to know of r; nil if there is no row.
func (r *row) facts() *rules.Row {
	if r == nil {
		return nil
	}
	return &r.Row
}

// New returns an empty store. source is the CloudEvents source of messages that name none.
func New(source string) (*Store, error) {
	stamper, err := core.NewStamper(core.StamperOptions{Source: source})
	if err != nil {
		return nil, err
	}
	return &Store{stamper: stamper, writer: make(chan struct{}, 1), kept: map[string]core.PartitionState{}}, nil
}

// Traits declares what the store promises: no more than it keeps.
func (s *Store) Traits() core.StoreTraits { return core.StoreTraits{SessionFence: true} }

// begin starts a method: it locks the store, unless ctx has ended. An ended context is an outage: no record is at
// fault.
func (s *Store) begin(ctx context.Context, op string) (end func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, &waybill.Error{Op: "skeleton: " + op, Class: waybill.ClassOutage, Err: err}
	}
	s.mu.Lock()
	return s.mu.Unlock, nil
}

// find returns the row that ref names, of any version, or nil.
func (s *Store) find(ref core.Ref) *row {
	for _, r := range s.rows { // INDEX: primary key (route, seq)
		if r.Route == ref.Route && r.Seq == ref.Seq && r.ID == ref.ID {
			return r
		}
	}
	return nil
}

// owner returns the session that owns the partition of r; 0 = none.
func (s *Store) owner(r *row) core.Session {
	for i := range s.membership.Partitions {
		if u := &s.membership.Partitions[i]; u.Partition.Route == r.Route && u.Partition.Slots().Has(r.Slot) {
			return u.Owner
		}
	}
	return 0
}

// member returns a member, or nil.
func (s *Store) member(session core.Session) *core.Member {
	for i := range s.membership.Members {
		if m := &s.membership.Members[i]; m.Session == session {
			return m
		}
	}
	return nil
}

// record returns r as the engine sees it.
func (r *row) record(now time.Time) core.Record {
	out := core.Record{
		Ref: r.Ref, Envelope: r.env.Clone(), Slot: r.Slot, Attempts: r.Attempts, Deliveries: r.Deliveries, Crashes: r.Crashes,
		Failed: r.State == core.StateFailed, Cancellable: r.Cancellable, HeldBy: r.Holder, DueFor: max(now.Sub(r.since), 0),
	}
	if !r.env.Expires.IsZero() {
		out.Expires, out.ExpiresIn = true, r.env.Expires.Sub(now)
	}
	return out
}
