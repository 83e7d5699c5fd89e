package memory

import (
	"context"
	"fmt"
	"slices"

	"github.com/waybill-go/waybill/core"
)

var _ core.Canceller[*Tx] = (*Store)(nil)

// liveKey is what only one live message may have.
type liveKey struct{ route, topic, dedupe string }

func (r *record) liveKey() liveKey { return liveKey{r.route, r.env.Topic, r.dedupe} }

func (r *record) rowKey() rowKey { return rowKey{r.route, r.env.ID} }

// Cancel withdraws staged messages in tx, as core.Canceller says. Until tx ends they cannot be claimed, and later
// messages of their keys wait. A key that names a message which an earlier key of the call named too gets the same
// answer. If another transaction withdraws the same message, Cancel waits for its end.
func (s *Store) Cancel(ctx context.Context, tx *Tx, keys ...core.CancelKey) ([]core.CancelStatus, error) {
	if err := s.owns(tx); err != nil {
		return nil, fmt.Errorf("waybill/memory: cancel: %w", err)
	}
	keys, err := core.CheckCancelKeys(keys)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	out := make([]core.CancelStatus, len(keys))
	seen := map[any]core.CancelStatus{} // by rowKey and liveKey
	for i := range keys {
		if out[i], err = s.cancel(ctx, tx, &keys[i], seen); err != nil {
			tx.Fail(err)
			return nil, outage("cancel", err)
		}
	}
	return out, nil
}

func (s *Store) cancel(ctx context.Context, tx *Tx, key *core.CancelKey, seen map[any]core.CancelStatus) (core.CancelStatus, error) {
	if key.DedupeKey != "" {
		if err := s.lock(ctx, tx, liveKey{key.Route, key.Topic, key.DedupeKey}); err != nil {
			return 0, err
		}
	}
	for {
		status, wait, err := s.tryCancel(tx, key, seen)
		if wait == nil {
			return status, err
		}
		if err := s.lock(ctx, tx, *wait); err != nil {
			return 0, err
		}
	}
}

// tryCancel cancels what key names, or returns the row that tx must lock first.
func (s *Store) tryCancel(tx *Tx, key *core.CancelKey, seen map[any]core.CancelStatus) (status core.CancelStatus, wait *rowKey, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := tx.usable(); err != nil {
		return 0, nil, err
	}
	var r *record
	name := any(rowKey{key.Route, key.ID})
	if key.DedupeKey != "" {
		name = liveKey{key.Route, key.Topic, key.DedupeKey}
		r = s.holder(tx, liveKey{key.Route, key.Topic, key.DedupeKey})
	} else {
		r = s.live(tx, rowKey{key.Route, key.ID})
	}
	if r == nil {
		return seen[name], nil, nil // CancelNotFound unless an earlier key withdrew it
	}
	if row := r.rowKey(); s.locks[row] != tx {
		return 0, &row, nil
	}
	status = s.withdraw(tx, r, core.ReasonCancelled)
	seen[r.rowKey()] = status
	if r.dedupe != "" {
		seen[r.liveKey()] = status
	}
	return status, nil, nil
}

// live returns the live record of a row as tx sees it, or nil.
func (s *Store) live(tx *Tx, key rowKey) *record {
	for _, r := range tx.rows {
		if r.rowKey() == key {
			return r
		}
	}
	if r := s.rows[key]; r != nil && !r.state.Terminal() && r.reserved != tx {
		return r
	}
	return nil
}

// holder returns the live record with a dedupe key as tx sees it, or nil.
func (s *Store) holder(tx *Tx, key liveKey) *record {
	for _, r := range tx.rows {
		if r.dedupe != "" && r.liveKey() == key {
			return r
		}
	}
	if r := s.holders[key]; r != nil && r.reserved != tx && !slices.Contains(tx.freed, r) {
		return r
	}
	return nil
}

// dedupe decides about a row with a dedupe key that tx stages and whose locks it has: it is a duplicate, or takes the
// place of another, or is new. If it returns a row, tx must lock that one first.
func (s *Store) dedupe(tx *Tx, row *core.StagedRow, out *core.Staged) (wait *rowKey) {
	r := s.holder(tx, liveKey{row.Route, row.Envelope.Topic, row.DedupeKey})
	if r == nil {
		return nil
	}
	if key := r.rowKey(); (row.Replace || r.reserved != nil) && s.locks[key] != tx {
		return &key
	}
	if !row.Replace {
		out.ID, out.Duplicate = r.env.ID, true
		return nil
	}
	out.Replaced = s.withdraw(tx, r, core.ReasonReplaced)
	return nil
}

// withdraw takes a live record out of reach of claims until tx ends, and for good if tx commits. One that is leased, or
// was when its relay died, stays, but gives up its dedupe key if it is to be replaced.
func (s *Store) withdraw(tx *Tx, r *record, reason core.Reason) core.CancelStatus {
	if i := slices.Index(tx.rows, r); i >= 0 {
		tx.rows = slices.Delete(tx.rows, i, i+1)
		delete(tx.byKey, r.rowKey())
		return core.CancelDone
	}
	if r.state == core.StateProcessing {
		if reason == core.ReasonReplaced {
			tx.freed = append(tx.freed, r)
		}
		return core.CancelInFlight
	}
	l := s.lane(r.route)
	l.unplace(r)
	l.hold(r, 1)
	r.reserved, r.reason = tx, reason
	tx.withdrawn = append(tx.withdrawn, r)
	if r.maybe || r.crashes > 0 {
		return core.CancelMaybe
	}
	return core.CancelDone
}

// hold keeps back what follows r in its key, n times more; a scheduled one too, since it may become due before its
// transaction rolls back.
func (l *lane) hold(r *record, n int) {
	if r.env.Key != "" {
		k := l.key(r.env.Key)
		k.holds += n
		l.refresh(k)
	}
}

// applyWithdrawn removes what a committing transaction withdrew and gives dedupe keys free.
func (s *Store) applyWithdrawn(tx *Tx) {
	now := s.now()
	for _, r := range tx.withdrawn {
		l := s.lane(r.route)
		l.setState(r, core.StateAbandoned)
		delete(l.live, r.seq)
		s.release(r)
		r.reserved = nil
		l.hold(r, -1)
		s.retire(r, now)
		s.notify(l)
	}
	for _, r := range tx.freed {
		s.release(r)
		r.dedupe = ""
	}
	tx.withdrawn, tx.freed = nil, nil
}

// undoWithdrawn puts back what a transaction that rolls back had withdrawn.
func (s *Store) undoWithdrawn(tx *Tx) {
	now := s.now()
	for _, r := range tx.withdrawn {
		l := s.lane(r.route)
		r.reserved, r.reason = nil, core.ReasonNone
		l.hold(r, -1)
		l.place(r, now)
		s.notify(l)
	}
	tx.withdrawn, tx.freed = nil, nil
}

// release gives the dedupe key of r free.
func (s *Store) release(r *record) {
	if r.dedupe != "" && s.holders[r.liveKey()] == r {
		delete(s.holders, r.liveKey())
	}
}
