package memory

import (
	"context"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

var _ waybill.Canceller[*Tx] = (*Store)(nil)

// Cancel cancels staged messages in tx, as waybill.Canceller says: messages that are scheduled, wait for a retry, or
// are cancellable. It also cancels messages that a dead member held, or can have had out: these can have been
// delivered. A message that a member holds is in flight. So is every other due one, because its relay can have it out
// without a hold. Until tx ends, a cancelled message cannot be taken, and later messages of
// its key wait.
//
// A key that names the same message as an earlier key of the call gets the same answer. If another transaction has
// locked the message, Cancel waits for its end. The commit tells the owner of the message's key.
func (s *Store) Cancel(ctx context.Context, tx *Tx, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error) {
	if err := s.owns(tx); err != nil {
		return nil, fmt.Errorf("waybill/memory: cancel: %w", err)
	}
	keys, err := core.CheckCancelKeys(ctx, keys)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	out := make([]waybill.CancelStatus, 0, len(keys))
	seen := map[any]waybill.CancelStatus{} // by rowKey and liveKey
	err = s.whenFree(ctx, tx, "cancel", func() (wait *Tx, err error) {
		for len(out) < len(keys) {
			status, wait, err := tx.cancel(&keys[len(out)], seen)
			if wait != nil || err != nil {
				return wait, err
			}
			out = append(out, status)
		}
		return nil, nil
	})
	if err != nil {
		tx.Fail(err)
		return nil, outage("cancel", err)
	}
	return out, nil
}

// cancel cancels what key names, or returns the transaction that tx must wait for.
func (tx *Tx) cancel(key *waybill.CancelKey, seen map[any]waybill.CancelStatus) (status waybill.CancelStatus, wait *Tx, err error) {
	if err := tx.begin("cancel"); err != nil {
		return 0, nil, err
	}
	var r *record
	name := any(rowKey{key.Route, key.ID})
	if key.DedupeKey == "" {
		r = tx.live(key.Route, key.ID)
	} else {
		held := liveKey{key.Route, key.Topic, key.DedupeKey}
		if wait := tx.reserve(held); wait != nil {
			return 0, wait, nil
		}
		name = held
		r = tx.holder(held)
	}
	if r == nil {
		return seen[name], nil, nil // CancelNotFound unless an earlier key cancelled it
	}
	if status, wait = tx.cancelRecord(r, cancelled); wait != nil {
		return 0, wait, nil
	}
	seen[r.rowKey()] = status
	if r.dedupe != "" {
		seen[r.liveKey()] = status
	}
	return status, nil, nil
}

// Cancel cancels a record in the transaction, as [Store.Cancel] does. It fails with core.ErrLocked where [Store.Cancel]
// would wait.
func (tx *Tx) Cancel(route, id string) (waybill.CancelStatus, error) {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if err := tx.begin("cancel"); err != nil {
		return waybill.CancelNotFound, err
	}
	r := tx.live(route, id)
	if r == nil {
		return waybill.CancelNotFound, nil
	}
	status, wait := tx.cancelRecord(r, cancelled)
	if wait != nil {
		return waybill.CancelNotFound, busy("cancel", id, route)
	}
	return status, nil
}

// live returns the live record as tx sees it, or nil.
func (tx *Tx) live(route, id string) *record {
	if rt := tx.s.routes[route]; rt != nil {
		if r := rt.byID[id]; r != nil && r.staging == tx {
			return r
		}
	}
	if r := tx.committed(route, id); r != nil && (r.live() || tx.made[r] == requeued) {
		return r
	}
	return nil
}

// cancel takes a live record back, or returns the transaction that has locked it. A record in flight stays, but gives
// up its dedupe key if it is to be replaced.
func (tx *Tx) cancelRecord(r *record, why verdict) (status waybill.CancelStatus, wait *Tx) {
	if r.staging == tx {
		tx.reserve(r.rowKey()) // it may come back, by a rollback to a savepoint
		r.dropped = true
		tx.s.uncover(r)
		tx.disown(r)
		tx.steps = append(tx.steps, step{kind: stepDrop, r: r})
		return waybill.CancelDone, nil
	}
	if r.lock != nil && r.lock != tx {
		return waybill.CancelNotFound, r.lock
	}
	f := r.facts()
	if tx.made[r] == requeued {
		f, _ = rules.Requeue(&f)
		f.Cancellable = true // it is out with nobody before tx commits
	}
	if status = rules.Cancellation(&f, r.partition()); status == waybill.CancelInFlight {
		if why == replaced {
			tx.decide(r, freed)
		}
		return status, nil
	}
	tx.take(r)
	tx.decide(r, why)
	if rules.Tells(&f) {
		tx.tell(r)
	}
	return status, nil
}

// Redrive makes a failed or an abandoned record ready again, with its counts at zero, and tells the owner of its slot.
// A record that a member holds is waybill.ErrInFlight. It is for tests of engines; operators have [Store.Redrive].
func (tx *Tx) Redrive(route, id string) error {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if err := tx.begin("redrive"); err != nil {
		return err
	}
	r := tx.committed(route, id)
	switch {
	case r == nil:
		return admin.NoRecord("waybill/memory: redrive", route, id)
	case r.holder != 0:
		return fmt.Errorf("waybill/memory: redrive %q on route %q: %w", id, route, waybill.ErrInFlight)
	case tx.made[r] == requeued, r.state != core.StateFailed && r.state != core.StateAbandoned:
		return waybill.Invalid("waybill/memory: redrive", fmt.Sprintf("%q on route %q: is neither failed nor abandoned", id, route))
	case r.state == core.StateAbandoned && r.dedupe != "":
		return waybill.Invalid("waybill/memory: redrive", fmt.Sprintf(
			"%q on route %q: has a dedupe key, which only Store.Redrive respects", id, route))
	case r.lock != nil && r.lock != tx:
		return busy("redrive", id, route)
	}
	tx.take(r)
	tx.decide(r, requeued)
	tx.tell(r)
	return nil
}

func (tx *Tx) decide(r *record, now verdict) {
	tx.steps = append(tx.steps, step{kind: stepMake, r: r, was: tx.made[r], now: now})
	tx.made[r] = now
}

// tell writes a notice about r.
func (tx *Tx) tell(r *record) {
	tx.steps = append(tx.steps, step{kind: stepTell, notice: tx.s.about(r)})
}
