package owned

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
)

// Lock locks a committed record until the transaction ends, as a caller's SELECT … FOR UPDATE does.
func (tx *Tx) Lock(route, id string) error {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if err := tx.begin("lock"); err != nil {
		return err
	}
	r := tx.committed(route, id)
	if r == nil {
		return core.NoRecord("waybill/memory: lock", route, id)
	}
	return tx.lock("lock", r)
}

func (tx *Tx) lock(op string, r *record) error {
	switch r.lock {
	case tx:
		return nil
	case nil:
		r.lock = tx
		tx.steps = append(tx.steps, step{kind: stepLock, r: r})
		return nil
	}
	return busy(op, r)
}

// committed returns the committed record, unless the transaction has withdrawn it, or nil.
func (tx *Tx) committed(route, id string) *record {
	rt := tx.s.routes[route]
	if rt == nil {
		return nil
	}
	if r := rt.byID[id]; r != nil && r.staging == nil && tx.made[r] != withdrawn {
		return r
	}
	return nil
}

// Cancel withdraws a record in the transaction: it is deleted. What is scheduled, waits for a retry, or is
// withdrawable can be withdrawn; so can what a session held that has ended, and what a member that died may have had
// out. What a member holds, and what else is due, is in flight. It fails with outbox.ErrBusy if another transaction
// has locked the record.
func (tx *Tx) Cancel(route, id string) (core.CancelStatus, error) {
	s := tx.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := tx.begin("cancel"); err != nil {
		return core.CancelNotFound, err
	}
	if rt := s.routes[route]; rt != nil {
		if r := rt.byID[id]; r != nil && r.staging == tx {
			r.dropped = true
			delete(rt.byID, id)
			tx.steps = append(tx.steps, step{kind: stepDrop, r: r})
			return core.CancelDone, nil
		}
	}
	r := tx.committed(route, id)
	if r == nil || !r.live() && tx.made[r] != requeued {
		return core.CancelNotFound, nil
	}
	if r.lock != nil && r.lock != tx {
		return core.CancelNotFound, busy("cancel", r)
	}
	careful := r.careful()
	if tx.made[r] != requeued && (r.holder != 0 || !r.waits() && !r.withdrawable && !r.left && !careful) {
		return core.CancelInFlight, nil
	}
	if err := tx.lock("cancel", r); err != nil {
		return core.CancelNotFound, err
	}
	tx.make(r, withdrawn)
	if r.env.Key != "" && !r.timer() {
		tx.tell(r, outbox.ControlKey)
	}
	if r.maybe || careful {
		return core.CancelMaybe, nil
	}
	return core.CancelDone, nil
}

// Redrive puts a failed or an abandoned record back in line in tx, with its counts at zero, and tells the owner of its
// slot. What a member holds is core.ErrInFlight.
func (s *Store) Redrive(tx *Tx, route, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := tx.begin("redrive"); err != nil {
		return err
	}
	r := tx.committed(route, id)
	switch {
	case r == nil:
		return core.NoRecord("waybill/memory: redrive", route, id)
	case r.holder != 0:
		return fmt.Errorf("waybill/memory: redrive %q on route %q: %w", id, route, core.ErrInFlight)
	case tx.made[r] == requeued, r.state != core.StateFailed && r.state != core.StateAbandoned:
		return core.Invalid("waybill/memory: redrive", fmt.Sprintf("%q on route %q: is neither failed nor abandoned", id, route))
	}
	if err := tx.lock("redrive", r); err != nil {
		return err
	}
	tx.make(r, requeued)
	kind := outbox.ControlRecord
	if r.env.Key != "" {
		kind = outbox.ControlKey
	}
	tx.tell(r, kind)
	return nil
}

func (tx *Tx) make(r *record, now verdict) {
	tx.steps = append(tx.steps, step{kind: stepMake, r: r, was: tx.made[r], now: now})
	tx.made[r] = now
}

// tell writes a control record about r.
func (tx *Tx) tell(r *record, kind outbox.ControlKind) {
	tx.s.told++
	tx.steps = append(tx.steps, step{kind: stepTell, control: &outbox.Control{
		Number: tx.s.told, Kind: kind, Route: r.route.name, Slot: r.slot, Key: r.env.Key, ID: r.env.ID, Seq: r.seq,
	}})
}

// tell makes a control record visible.
func (s *Store) tell(c *outbox.Control) {
	i, _ := slices.BinarySearchFunc(s.control, c.Number, byNumber)
	s.control = slices.Insert(s.control, i, c)
}

func byNumber(c *outbox.Control, number int64) int { return cmp.Compare(c.Number, number) }

// apply makes what a transaction has decided about r so.
func (s *Store) apply(r *record, v verdict) {
	s.unplace(r)
	switch v {
	case withdrawn:
		s.forget(r)
		return
	case requeued:
		r.maybe = r.maybe || r.crashes > 0
		r.state, r.reason, r.lastErr = core.StatePending, core.ReasonNone, ""
		r.attempts, r.crashes, r.deliveries = 0, 0, 0
		r.waiting, r.since = false, s.now()
		r.version++
	case untouched:
	}
	s.place(r)
}
