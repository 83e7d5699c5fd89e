package memory

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// Tx is a transaction over all data of a Store. Begin one with [Store.Begin] and end it with Commit or Rollback. It
// sees committed data and its own writes. It belongs to one goroutine at a time.
//
// Applications stage and cancel with the methods of the Store, which wait for other transactions. The methods of Tx
// with these names are for tests of engines: they do not wait.
type Tx struct {
	s      *Store
	done   chan struct{} // closed when it has ended
	waits  *Tx           // whom it waits for
	id     int64         // 0 = none yet
	ended  bool
	failed error
	steps  []step
	made   map[*record]verdict // what it has made of committed records
	heirs  map[liveKey]*record // what it has staged with a dedupe key
	locks  []any
	values map[string]string
	marked []core.InboxKey
}

// Savepoint is a place in a transaction to which it can roll back.
type Savepoint int

// verdict is the decision of a transaction about a committed record.
type verdict uint8

const (
	untouched verdict = iota
	cancelled
	replaced
	requeued
	freed // it gives up its dedupe key
)

// cancels reports whether the record goes away.
func (v verdict) cancels() bool { return v == cancelled || v == replaced }

// stepKind is the kind of one step of a transaction.
type stepKind uint8

const (
	stepStage stepKind = iota // r was staged
	stepDrop                  // r, which the transaction staged itself, was cancelled
	stepLock                  // r was locked
	stepMake                  // the verdict about r changed from was to now
	stepTell                  // a notice was written
	stepWrite                 // a value or an inbox mark was written
)

type step struct {
	kind     stepKind
	r        *record
	was, now verdict
	notice   *core.Notice
	undo     func() // of stepWrite
}

// Begin starts a transaction.
func (s *Store) Begin() *Tx {
	s.mu.Lock()
	defer s.mu.Unlock()
	tx := &Tx{s: s, done: make(chan struct{}), made: map[*record]verdict{}}
	s.open[tx] = struct{}{}
	return tx
}

// ID returns the id of the transaction; 0 if it has staged, cancelled and locked nothing.
func (tx *Tx) ID() int64 {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	return tx.id
}

// usable returns why tx accepts no more writes, or nil. The store is locked.
func (tx *Tx) usable(op string) error {
	if tx.ended {
		return fmt.Errorf("waybill/memory: %s: the transaction has ended: begin another: %w", op, waybill.ErrClosed)
	}
	if tx.failed != nil {
		return fmt.Errorf("waybill/memory: %s: an earlier statement of the transaction had failed: roll back: %w", op, tx.failed)
	}
	return nil
}

// begin checks that the transaction can write, and draws its id.
func (tx *Tx) begin(op string) error {
	if err := tx.usable(op); err != nil {
		return err
	}
	if tx.id == 0 {
		tx.s.lastTx++
		tx.id = tx.s.lastTx
		tx.s.running = append(tx.s.running, tx)
	}
	return nil
}

// Fail makes tx a transaction with a failed statement: Commit will roll back, even if all other statements succeed. The
// first cause is kept.
func (tx *Tx) Fail(cause error) {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if tx.failed == nil {
		tx.failed = cause
	}
}

// Put writes a value. After the end of the transaction it does nothing.
func (tx *Tx) Put(key, value string) {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if tx.ended {
		return
	}
	if tx.values == nil {
		tx.values = map[string]string{}
	}
	old, had := tx.values[key]
	tx.values[key] = value
	tx.steps = append(tx.steps, step{kind: stepWrite, undo: func() {
		if had {
			tx.values[key] = old
		} else {
			delete(tx.values, key)
		}
	}})
}

// Get reads a value: the transaction's own, else the committed one.
func (tx *Tx) Get(key string) (string, bool) {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if v, ok := tx.values[key]; ok {
		return v, true
	}
	v, ok := tx.s.values[key]
	return v, ok
}

// Get reads a committed value.
func (s *Store) Get(key string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.values[key]
	return v, ok
}

// Savepoint returns the current place in the transaction.
func (tx *Tx) Savepoint() Savepoint {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	return Savepoint(len(tx.steps))
}

// RollbackTo undoes all writes after the savepoint and releases their locks of records. Numbers and the transaction id
// stay drawn. Dedupe keys and inbox keys stay locked.
func (tx *Tx) RollbackTo(sp Savepoint) error {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if tx.ended {
		return fmt.Errorf("waybill/memory: rollback to savepoint: the transaction has ended: %w", waybill.ErrClosed)
	}
	if sp < 0 || int(sp) > len(tx.steps) {
		return waybill.Invalid("waybill/memory: rollback to savepoint", "the savepoint is gone: "+
			"the transaction was rolled back to an earlier one")
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
			tx.disown(st.r)
		case stepDrop:
			st.r.dropped = false
			st.r.route.byID[st.r.env.ID] = st.r
			tx.own(st.r)
		case stepLock:
			st.r.lock = nil
		case stepMake:
			tx.made[st.r] = st.was
		case stepTell:
		case stepWrite:
			st.undo()
		}
	}
	tx.steps = slices.Delete(tx.steps, n, len(tx.steps))
}

// Commit makes all writes visible at once. If a statement of the transaction had failed, it rolls everything back and
// fails. It fails with waybill.ErrClosed if the transaction had ended already.
func (tx *Tx) Commit() error {
	s := tx.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if tx.ended {
		return fmt.Errorf("waybill/memory: commit: the transaction has ended: %w", waybill.ErrClosed)
	}
	defer tx.end()
	if tx.failed != nil {
		tx.undo(0)
		return fmt.Errorf("waybill/memory: commit: rolled back, because an earlier statement had failed: %w", tx.failed)
	}
	now := s.now()
	for _, st := range tx.steps {
		switch st.kind {
		case stepStage:
			s.admit(st.r)
		case stepLock:
			st.r.lock = nil
		case stepMake:
			s.apply(st.r, st.now, now)
		case stepTell:
			s.tell(st.notice)
		case stepDrop, stepWrite:
		}
	}
	maps.Copy(s.values, tx.values)
	s.inbox.add(tx.marked, now)
	return nil
}

// admit makes a staged record visible, unless its own transaction has cancelled it.
func (s *Store) admit(r *record) {
	r.staging, r.shadows = nil, nil
	if r.dropped {
		delete(r.route.bySeq, r.seq)
		return
	}
	if r.dedupe != "" {
		s.holders[r.liveKey()] = r
	}
	if r.env.HLC <= hlc.MaxMark(s.now()) {
		s.stamp = max(s.stamp, r.env.HLC)
	}
	s.place(r)
	s.changed(r)
}

// apply carries out the decision of a transaction about r.
func (s *Store) apply(r *record, v verdict, now time.Time) {
	switch v {
	case cancelled:
		s.abandon(r, waybill.ReasonCancelled, now)
	case replaced:
		s.abandon(r, waybill.ReasonReplaced, now)
	case requeued:
		s.requeue(r, now)
	case freed:
		s.release(r)
		r.dedupe = ""
	case untouched:
	}
}

// Rollback undoes all writes. After the end of the transaction it does nothing.
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
	tx.ended, tx.steps, tx.made, tx.heirs, tx.values, tx.marked = true, nil, nil, nil, nil, nil
	for _, name := range tx.locks {
		delete(s.locks, name)
	}
	tx.locks = nil
	delete(s.open, tx)
	if i := slices.Index(s.running, tx); i >= 0 {
		s.running = slices.Delete(s.running, i, i+1)
	}
	close(tx.done)
}
