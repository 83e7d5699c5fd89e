package memory

import (
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// record is a row. Only [Store.place] and [Store.unplace] know in which indexes it is.
type record struct {
	route  *route
	env    waybill.Envelope // never changed, but for the expiry that a redrive by force takes away
	slot   uint8
	txID   int64 // id of the transaction that staged it
	dedupe string

	seq, version                  int64
	state                         core.State // pending, failed, published or abandoned
	reason                        waybill.Reason
	lastErr                       string
	errAt, settledAt              time.Time
	attempts, deliveries, crashes int
	waiting                       bool      // a timer or a retry waits for due; else it is in line
	due                           time.Time // when it became due, or will
	since                         time.Time // when it first became due
	cancellable                   bool
	unreadable                    error

	holder core.Session // a member, or 0
	maybe  bool         // it may have been delivered

	staging *Tx     // it is staged and not committed
	shadows *record // the committed one with its id, which its own transaction has cancelled
	dropped bool    // its own transaction cancelled it
	lock    *Tx     // a transaction has locked it
}

// rowKey identifies one record, and liveKey one live record.
type (
	rowKey  struct{ route, id string }
	liveKey struct{ route, topic, dedupe string }
)

func (r *record) rowKey() rowKey   { return rowKey{r.route.name, r.env.ID} }
func (r *record) liveKey() liveKey { return liveKey{r.route.name, r.env.Topic, r.dedupe} }

func (r *record) live() bool  { return !r.state.Terminal() }
func (r *record) waits() bool { return r.live() && r.waiting }
func (r *record) ready() bool { return r.live() && !r.waiting }
func (r *record) retry() bool { return r.waits() && r.state == core.StateFailed }
func (r *record) timer() bool { return r.waits() && r.state == core.StatePending }

// class returns the retention class of a settled record.
func (r *record) class() core.RetentionClass { return core.RetentionClassOf(r.state, r.reason) }

func (r *record) blocks() bool { return r.state == core.StateAbandoned && r.reason.Blocks() }

// shown is the state for operators.
func (r *record) shown() core.State {
	f := r.facts()
	return f.Shown()
}

// cancelled reports whether an open transaction has cancelled it.
func (r *record) cancelled() bool { return r.lock != nil && r.lock.made[r].cancels() }

// block reason reports whether it can block its key, or is held.
func (r *record) blockReason() bool {
	return r.holder != 0 || r.env.Key != "" && (r.retry() || r.blocks())
}

func (r *record) ref() core.Ref {
	return core.Ref{Route: r.route.name, Seq: r.seq, ID: r.env.ID, Version: r.version}
}

// facts returns the facts about r that the rules need.
func (r *record) facts() rules.Row {
	return rules.Row{
		Ref: r.ref(), Slot: r.slot, State: r.state, Reason: r.reason, Holder: r.holder, Keyed: r.env.Key != "", Waits: r.waits(),
		Cancellable: r.cancellable, Blocks: r.blocks() && r.env.Key != "", MaybeSent: r.maybe,
		Attempts: r.attempts, Deliveries: r.deliveries, Crashes: r.crashes,
	}
}

// partition returns the facts about the partition of r that the rules need.
func (r *record) partition() rules.Partition {
	u := r.route.kept
	if now := r.route.bySlot[r.slot]; now != nil {
		u = now.PartitionState
	}
	return rules.Partition{Owner: u.Owner, MaybeOutUpTo: u.MaybeOutUpTo}
}

// become makes r what a rule has made of it. A record that has ended is deleted, or kept for its retention.
func (s *Store) become(r *record, to *rules.Change, now time.Time) {
	s.unplace(r)
	if r.holder != to.Holder {
		s.setHolder(r, to.Holder)
	}
	r.state, r.reason, r.version, r.waiting, r.maybe = to.State, to.Reason, to.Version, to.Waits, to.MaybeSent
	r.attempts, r.deliveries, r.crashes = to.Attempts, to.Deliveries, to.Crashes
	if to.Due {
		r.due = now.Add(to.In)
	}
	if to.Error != "" {
		r.lastErr, r.errAt = to.Error, now
	}
	if to.Live() {
		s.place(r)
		s.changed(r)
		return
	}
	s.release(r)
	if r.settledAt = now; r.class().DroppedAtOnce(s.retention) {
		s.forget(r)
	} else {
		s.place(r)
	}
}

// abandon ends r for a caller other than its owner.
func (s *Store) abandon(r *record, reason waybill.Reason, now time.Time) {
	f := r.facts()
	s.become(r, &rules.Change{Row: rules.End(&f, r.partition(), reason)}, now)
}

// owned reports whether self, which is a member, owns the record's partition.
func (r *record) owned(self core.Session) bool { return r.partition().Owner == self }

// record returns r as the contract shows it.
func (r *record) record(now time.Time) core.Record {
	out := core.Record{
		Ref: r.ref(), Envelope: r.env.Clone(), Slot: r.slot, Attempts: r.attempts, Deliveries: r.deliveries, Crashes: r.crashes,
		Failed: r.state == core.StateFailed, Cancellable: r.cancellable, HeldBy: r.holder,
		DueFor: max(now.Sub(r.since), 0), Err: r.unreadable,
	}
	if !r.env.Expires.IsZero() {
		out.Expires, out.ExpiresIn = true, r.env.Expires.Sub(now)
	}
	return out
}

// obstructs returns r as a record that blocks its key, seen by self. Blocking abandoned ones count if block is set.
func (r *record) obstructs(self core.Session, block bool) (core.BlockingRecord, bool) {
	f := r.facts()
	w := core.BlockingRecord{Ref: f.Ref, Slot: r.slot, Key: r.env.Key, HeldBy: r.holder, Why: f.Obstructs(self, block)}
	return w, w.Why != 0
}
