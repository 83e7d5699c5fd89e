package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/waybill-go/waybill/core"
)

// errDeadlock reports that two transactions wait for each other.
var errDeadlock = errors.New("deadlock: two transactions wait for each other's rows; roll back and try again")

// Tx is a transaction over everything in a Store. Begin one with [Store.Begin] and end it with Commit or Rollback. It
// belongs to one goroutine at a time.
type Tx struct {
	store  *Store
	done   chan struct{} // closed when it has ended
	ended  bool
	failed error
	waits  *Tx // whom it waits for
	locks  []any
	rows   []*record
	byKey  map[rowKey]bool
	marks  []core.InboxKey
	values map[string]string

	withdrawn []*record // committed records that claims cannot reach until it ends
	freed     []*record // leased ones that give up their dedupe key
}

// Begin starts a transaction. It sees committed data and its own writes.
func (s *Store) Begin() *Tx {
	return &Tx{store: s, done: make(chan struct{}), byKey: map[rowKey]bool{}, values: map[string]string{}}
}

// Commit makes everything that was written visible at once. It fails, with everything rolled back, if a statement of
// the transaction had failed, and with core.ErrClosed if it had ended already.
func (tx *Tx) Commit() error {
	s := tx.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if tx.ended {
		return fmt.Errorf("waybill/memory: commit: the transaction has ended: %w", core.ErrClosed)
	}
	defer tx.end()
	if tx.failed != nil {
		return fmt.Errorf("waybill/memory: commit: rolled back, since an earlier statement had failed: %w", tx.failed)
	}
	s.applyWithdrawn(tx)
	now := s.now()
	touched := map[*lane]bool{} // true: something is claimable at once
	for _, r := range tx.rows {
		if r.dedupe != "" {
			s.holders[r.liveKey()] = r
		}
		s.seq++
		r.seq = s.seq
		s.rows[rowKey{r.route, r.env.ID}] = r
		l := s.lane(r.route)
		l.add(r, now)
		s.cleaning.watch(r)
		touched[l] = touched[l] || r.ready
	}
	for l, claimable := range touched {
		if claimable {
			s.notify(l)
		} else {
			s.retime()
		}
	}
	maps.Copy(s.values, tx.values)
	s.marks.add(tx.marks, now)
	return nil
}

// Rollback forgets everything that was written. After the end of the transaction it does nothing.
func (tx *Tx) Rollback() {
	tx.store.mu.Lock()
	defer tx.store.mu.Unlock()
	if !tx.ended {
		tx.end()
	}
}

func (tx *Tx) end() {
	tx.ended = true
	tx.store.undoWithdrawn(tx)
	for _, k := range tx.locks {
		delete(tx.store.locks, k)
	}
	tx.rows, tx.byKey, tx.values, tx.locks = nil, nil, nil, nil
	close(tx.done)
}

// Fail makes the transaction one in which a statement has failed: Commit will roll back, whatever else succeeds. The
// first cause is kept.
func (tx *Tx) Fail(cause error) {
	tx.store.mu.Lock()
	defer tx.store.mu.Unlock()
	if tx.failed == nil {
		tx.failed = cause
	}
}

// Put writes a value. After the end of the transaction it does nothing.
func (tx *Tx) Put(key, value string) {
	tx.store.mu.Lock()
	defer tx.store.mu.Unlock()
	if !tx.ended {
		tx.values[key] = value
	}
}

// Get reads a value: the transaction's own, else the committed one.
func (tx *Tx) Get(key string) (string, bool) {
	tx.store.mu.Lock()
	defer tx.store.mu.Unlock()
	if v, ok := tx.values[key]; ok {
		return v, true
	}
	v, ok := tx.store.values[key]
	return v, ok
}

// Get reads a committed value.
func (s *Store) Get(key string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.values[key]
	return v, ok
}

// Stage writes msgs in tx, as core.Stager says. If another transaction has staged the same (route, id) and has not
// ended, Stage waits for it.
func (s *Store) Stage(ctx context.Context, tx *Tx, msgs ...core.Message) (_ []core.Staged, err error) {
	if err := s.owns(tx); err != nil {
		return nil, fmt.Errorf("waybill/memory: stage: %w", err)
	}
	if len(msgs) == 0 {
		return nil, nil
	}
	ctx, span := s.stamper.Start(ctx, len(msgs))
	defer func() { core.EndSpan(span, err) }()
	rows, err := s.stamper.Stamp(ctx, msgs)
	if err != nil {
		return nil, err
	}
	staged := make([]core.Staged, 0, len(rows))
	for i := range rows {
		one, err := s.stageRow(ctx, tx, &rows[i])
		if err != nil {
			tx.Fail(err)
			return nil, outage("stage", err)
		}
		staged = append(staged, one)
	}
	return staged, nil
}

func (s *Store) stageRow(ctx context.Context, tx *Tx, row *core.StagedRow) (core.Staged, error) {
	if err := s.lock(ctx, tx, rowKey{row.Route, row.Envelope.ID}); err != nil {
		return core.Staged{}, err
	}
	if row.DedupeKey != "" {
		if err := s.lock(ctx, tx, liveKey{row.Route, row.Envelope.Topic, row.DedupeKey}); err != nil {
			return core.Staged{}, err
		}
	}
	for {
		out, wait, err := s.tryStageRow(tx, row)
		if wait == nil {
			return out, err
		}
		if err := s.lock(ctx, tx, *wait); err != nil {
			return core.Staged{}, err
		}
	}
}

// tryStageRow stages row, or returns another one that tx must lock first.
func (s *Store) tryStageRow(tx *Tx, row *core.StagedRow) (out core.Staged, wait *rowKey, err error) {
	key := rowKey{row.Route, row.Envelope.ID}
	out = core.Staged{ID: row.Envelope.ID, Route: row.Route}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := tx.usable(); err != nil {
		return out, nil, err
	}
	if r := s.rows[key]; tx.byKey[key] || r != nil && (r.reserved != tx || s.cleaning.retention.Of(core.StateAbandoned, r.reason) != 0) {
		out.Duplicate = true
		return out, nil, nil
	}
	if row.DedupeKey != "" {
		if wait := s.dedupe(tx, row, &out); wait != nil || out.Duplicate {
			return out, wait, nil
		}
	}
	now := s.now()
	due := now.Add(row.Delay)
	if !row.DeliverAt.IsZero() {
		due = row.DeliverAt
	}
	since := due
	if since.Before(now) {
		since = now
	}
	tx.byKey[key] = true
	tx.rows = append(tx.rows, &record{
		env: row.Envelope.Clone(), route: row.Route, dedupe: row.DedupeKey, state: core.StatePending, due: due.Round(0), since: since.Round(0), timer: -1,
	})
	return out, nil, nil
}

// usable returns why nothing can be written in tx any more. The store is locked.
func (tx *Tx) usable() error {
	if tx.ended {
		return core.ErrClosed
	}
	return tx.failed
}

func (s *Store) owns(tx *Tx) error {
	if tx == nil {
		return core.Invalid("tx", "is nil; begin one with Store.Begin")
	}
	if tx.store != s {
		return core.Invalid("tx", "belongs to another store; begin one of this store")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if tx.ended {
		return fmt.Errorf("%w: the transaction has ended already; use it before its commit or rollback (%w)", core.ErrInvalid, core.ErrClosed)
	}
	return nil
}

// lock makes tx the only one that writes what, until it ends. It waits for another that does.
func (s *Store) lock(ctx context.Context, tx *Tx, what any) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.mu.Lock()
		if tx.ended {
			s.mu.Unlock()
			return core.ErrClosed
		}
		holder := s.locks[what]
		if holder == nil || holder == tx {
			if holder == nil {
				s.locks[what] = tx
				tx.locks = append(tx.locks, what)
			}
			s.mu.Unlock()
			return nil
		}
		for t := holder; t != nil; t = t.waits {
			if t == tx {
				s.mu.Unlock()
				return errDeadlock
			}
		}
		tx.waits = holder
		s.mu.Unlock()
		var err error
		select {
		case <-holder.done:
		case <-ctx.Done():
			err = ctx.Err()
		}
		s.mu.Lock()
		tx.waits = nil
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
}
