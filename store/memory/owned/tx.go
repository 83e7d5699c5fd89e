package owned

import (
	"fmt"
	"slices"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
)

// Tx is a transaction of an application or of an operator. Begin one with [Store.Begin] and end it with Commit or
// Rollback. It sees committed data and its own writes.
type Tx struct {
	s     *Store
	mark  int64
	ended bool
	steps []step
	made  map[*record]verdict // what it has made of committed records
}

// Row is what a transaction stages. An empty Route is core.DefaultRoute. Fresh and Replace are ignored.
type Row struct {
	core.StagedRow
	// Withdrawable lets a caller cancel the record although it is due. A dedupe key implies it.
	Withdrawable bool
}

// Savepoint is a place in a transaction to which it can roll back.
type Savepoint int

// verdict is what a transaction has made of a committed record.
type verdict uint8

const (
	untouched verdict = iota
	withdrawn
	requeued
)

// stepKind is what one step of a transaction did.
type stepKind uint8

const (
	stepStage stepKind = iota // r was staged
	stepDrop                  // r, which the transaction staged itself, was withdrawn
	stepLock                  // r was locked
	stepMake                  // the verdict about r changed from was to now
	stepTell                  // a control record was written
)

type step struct {
	kind     stepKind
	r        *record
	was, now verdict
	control  *outbox.Control
}

// Begin starts a transaction.
func (s *Store) Begin() *Tx {
	s.mu.Lock()
	defer s.mu.Unlock()
	tx := &Tx{s: s, made: map[*record]verdict{}}
	s.open[tx] = struct{}{}
	return tx
}

// Mark returns the mark of the transaction; 0 if it has written nothing.
func (tx *Tx) Mark() int64 {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	return tx.mark
}

// begin checks that the transaction can write, and draws its mark.
func (tx *Tx) begin(op string) error {
	if tx.ended {
		return fmt.Errorf("waybill/memory: %s: the transaction has ended: begin another: %w", op, core.ErrClosed)
	}
	if tx.mark == 0 {
		tx.s.mark++
		tx.mark = tx.s.mark
		tx.s.running = append(tx.s.running, tx)
	}
	return nil
}

// Stage writes rows and returns their sequence numbers. A row whose id the route has already writes nothing; its
// number is 0, and one was drawn in vain. Stage fails as a whole, with outbox.ErrBusy if another open transaction
// has staged the id.
func (tx *Tx) Stage(rows ...Row) ([]int64, error) {
	s := tx.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := tx.begin("stage"); err != nil {
		return nil, err
	}
	before := len(tx.steps)
	seqs := make([]int64, len(rows))
	for i := range rows {
		seq, err := tx.stage(&rows[i])
		if err != nil {
			tx.undo(before)
			return nil, err
		}
		seqs[i] = seq
	}
	return seqs, nil
}

func (tx *Tx) stage(row *Row) (int64, error) {
	s := tx.s
	name := row.Route
	if name == "" {
		name = core.DefaultRoute
	}
	rt := s.route(name)
	s.seq++
	if other := rt.byID[row.Envelope.ID]; other != nil {
		if other.staging != nil && other.staging != tx {
			return 0, busy("stage", other)
		}
		return 0, nil
	}
	if other := rt.bySeq[s.seq]; other != nil {
		return 0, fmt.Errorf("waybill/memory: stage %q: sequence %d of route %q belongs to %q: the sequence was set back; set it above all records",
			row.Envelope.ID, s.seq, name, other.env.ID)
	}
	now := s.now()
	r := &record{
		route: rt, env: row.Envelope.Clone(), slot: outbox.SlotOf(name, row.Envelope.Key, row.Envelope.ID), mark: tx.mark, seq: s.seq, version: 1,
		state: core.StatePending, since: now, withdrawable: row.Withdrawable || row.DedupeKey != "", staging: tx,
	}
	due := now.Add(row.Delay)
	if !row.DeliverAt.IsZero() {
		due = row.DeliverAt.Round(0)
	}
	if due.After(now) {
		r.waiting, r.due, r.since = true, due, due
	}
	rt.byID[r.env.ID], rt.bySeq[r.seq] = r, r
	tx.steps = append(tx.steps, step{kind: stepStage, r: r})
	return r.seq, nil
}

// Savepoint returns the place where the transaction is.
func (tx *Tx) Savepoint() Savepoint {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	return Savepoint(len(tx.steps))
}

// RollbackTo forgets what was written after the savepoint and gives back its locks. Numbers and the mark stay drawn.
func (tx *Tx) RollbackTo(sp Savepoint) error {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if tx.ended {
		return fmt.Errorf("waybill/memory: rollback to savepoint: the transaction has ended: %w", core.ErrClosed)
	}
	if sp < 0 || int(sp) > len(tx.steps) {
		return core.Invalid("waybill/memory: rollback to savepoint", "the savepoint is gone: the transaction was rolled back to an earlier one")
	}
	tx.undo(int(sp))
	return nil
}

// undo takes back the steps from n on, the last one first.
func (tx *Tx) undo(n int) {
	for i, st := range slices.Backward(tx.steps) {
		if i < n {
			break
		}
		switch st.kind {
		case stepStage:
			tx.s.forget(st.r)
		case stepDrop:
			st.r.dropped = false
			st.r.route.byID[st.r.env.ID] = st.r
		case stepLock:
			st.r.lock = nil
		case stepMake:
			tx.made[st.r] = st.was
		case stepTell:
		}
	}
	tx.steps = slices.Delete(tx.steps, n, len(tx.steps))
}

// Commit makes everything that was written visible at once. It fails with core.ErrClosed if the transaction has ended.
func (tx *Tx) Commit() error {
	s := tx.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if tx.ended {
		return fmt.Errorf("waybill/memory: commit: the transaction has ended: %w", core.ErrClosed)
	}
	for _, st := range tx.steps {
		switch st.kind {
		case stepStage:
			st.r.staging = nil
			if st.r.dropped {
				delete(st.r.route.bySeq, st.r.seq)
			} else {
				s.place(st.r)
			}
		case stepLock:
			st.r.lock = nil
		case stepMake:
			s.apply(st.r, st.now)
		case stepTell:
			s.tell(st.control)
		case stepDrop:
		}
	}
	tx.end()
	return nil
}

// Rollback forgets everything that was written. After the end of the transaction it does nothing.
func (tx *Tx) Rollback() {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if !tx.ended {
		tx.undo(0)
		tx.end()
	}
}

func (tx *Tx) end() {
	s := tx.s
	tx.ended, tx.steps, tx.made = true, nil, nil
	delete(s.open, tx)
	if i := slices.Index(s.running, tx); i >= 0 {
		s.running = slices.Delete(s.running, i, i+1)
	}
}

func busy(op string, r *record) error {
	return fmt.Errorf("waybill/memory: %s: %q on route %q: another transaction has it: try again when that one has ended: %w",
		op, r.env.ID, r.route.name, outbox.ErrBusy)
}
