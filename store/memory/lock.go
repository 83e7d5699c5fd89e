package memory

import (
	"context"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// errDeadlock reports that two transactions wait for each other.
var errDeadlock = errors.New("deadlock: two transactions wait for each other's rows; roll back and try again")

// owns returns why tx cannot be used with this store.
func (s *Store) owns(tx *Tx) error {
	if tx == nil {
		return waybill.Invalid("tx", "is nil; begin one with Store.Begin")
	}
	if tx.s != s {
		return waybill.Invalid("tx", "belongs to another store; begin one of this store")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if tx.ended {
		return fmt.Errorf("%w: the transaction has ended already; "+
			"use it before its commit or rollback (%w)", waybill.ErrInvalid, waybill.ErrClosed)
	}
	return nil
}

// whenFree runs fn under the store's mutex. If fn returns a transaction, it is run again when that one has ended.
func (s *Store) whenFree(ctx context.Context, tx *Tx, op string, fn func() (wait *Tx, err error)) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		wait, err := s.tryFree(tx, op, fn)
		if wait == nil || err != nil {
			return err
		}
		select {
		case <-wait.done:
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

func (s *Store) tryFree(tx *Tx, op string, fn func() (wait *Tx, err error)) (wait *Tx, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := tx.usable(op); err != nil {
		return nil, err
	}
	wait, err = fn()
	for t := wait; t != nil; t = t.waits {
		if t == tx {
			return nil, errDeadlock
		}
	}
	tx.waits = wait
	return wait, err
}

// reserve makes tx the only one that works with name until it ends, or returns the transaction that does.
func (tx *Tx) reserve(name any) (wait *Tx) {
	switch holder := tx.s.locks[name]; holder {
	case nil:
		tx.s.locks[name] = tx
		tx.locks = append(tx.locks, name)
		return nil
	case tx:
		return nil
	default:
		return holder
	}
}

// Lock locks a committed record until the transaction ends, as a caller's SELECT … FOR UPDATE does. It fails with
// core.ErrLocked if another transaction has locked it.
func (tx *Tx) Lock(route, id string) error {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if err := tx.begin("lock"); err != nil {
		return err
	}
	r := tx.committed(route, id)
	if r == nil {
		return admin.NoRecord("waybill/memory: lock", route, id)
	}
	if r.lock != nil && r.lock != tx {
		return busy("lock", r.env.ID, route)
	}
	tx.take(r)
	return nil
}

// take locks r, which no other transaction has locked.
func (tx *Tx) take(r *record) {
	if r.lock == nil {
		r.lock = tx
		tx.steps = append(tx.steps, step{kind: stepLock, r: r})
	}
}

// committed returns the committed record, unless the transaction has cancelled it, or nil.
func (tx *Tx) committed(route, id string) *record {
	if r := tx.s.stored(route, id); r != nil && !tx.made[r].cancels() {
		return r
	}
	return nil
}

func busy(op, id, route string) error {
	return fmt.Errorf("waybill/memory: %s: %q on route %q: another transaction has it: try again when that one has ended: %w",
		op, id, route, core.ErrLocked)
}
