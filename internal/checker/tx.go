package checker

import (
	"time"

	"github.com/waybill-go/waybill"
)

// Tx is a producer's transaction as the ledger sees it. It belongs to one goroutine.
type Tx struct {
	l         *Ledger
	id        int
	began     int
	staged    []*message
	again     map[Ref]time.Duration // until they are due
	cancelled []pendingCancellation
}

type pendingCancellation struct {
	ref    Ref
	status waybill.CancelStatus
}

// Begin notes that a transaction begins.
func (l *Ledger) Begin() *Tx {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pos++
	l.txs++
	return &Tx{l: l, id: l.txs, began: l.pos}
}

// Staged notes that m was staged on its one route, with this answer. Call it before the commit.
func (tx *Tx) Staged(m *waybill.Message, s waybill.Staged) {
	if s.Duplicate {
		return
	}
	msg := &message{
		Ref: Ref{s.Route, s.ID}, key: m.Key, body: string(m.Body), tx: tx.id, at: len(tx.staged), began: tx.began,
		scheduled: m.Delay > 0, mayExpire: m.TTL > 0 || !m.Expires.IsZero(),
	}
	if m.Delay > 0 {
		msg.due = tx.l.opts.Now().Add(m.Delay)
	}
	tx.staged = append(tx.staged, msg)
}

// Again notes that a message was staged once more. If the first one is gone, it is a new one.
func (tx *Tx) Again(m *waybill.Message, s waybill.Staged) {
	if tx.again == nil {
		tx.again = map[Ref]time.Duration{}
	}
	tx.again[Ref{s.Route, s.ID}] = m.Delay
}

// Savepoint returns the place where the transaction is.
func (tx *Tx) Savepoint() int { return len(tx.staged) }

// RollbackTo notes that messages staged after a savepoint are forgotten.
func (tx *Tx) RollbackTo(savepoint int) {
	for _, m := range tx.staged[savepoint:] {
		m.fate = rolledBack
	}
}

// Cancelled notes the answer to a Cancel or a Replace of a message in the transaction.
func (tx *Tx) Cancelled(ref Ref, status waybill.CancelStatus) {
	tx.cancelled = append(tx.cancelled, pendingCancellation{ref, status})
}

// Commit commits by means of fn. Without an exact ledger an error leaves open what became of the transaction.
func (tx *Tx) Commit(fn func() error) error {
	var err error
	tx.l.Do(func() { err = fn() }, func() {
		switch {
		case err == nil:
			tx.end(committed)
		case tx.l.opts.Exact:
			tx.end(rolledBack)
		default:
			tx.end(unknown)
		}
	})
	return err
}

// Rollback rolls back by means of fn.
func (tx *Tx) Rollback(fn func()) { tx.l.Do(fn, func() { tx.end(rolledBack) }) }

func (tx *Tx) end(f fate) {
	l := tx.l
	for ref, in := range tx.again {
		l.note("staged again %s/%s", ref.Route, ref.ID)
		if m := l.get(ref); m.first > 0 {
			m.anew = true
		}
		l.moves(l.get(ref), in)
	}
	for _, w := range tx.cancelled {
		l.note("cancelled %s/%s: %s, transaction %d", w.ref.Route, w.ref.ID, w.status, f)
		for _, m := range tx.staged { // it may be of the same transaction
			if m.Ref == w.ref && w.status == waybill.CancelDone {
				m.fate = rolledBack
			}
		}
		if m := l.msgs[w.ref]; m != nil && f != rolledBack && (w.status == waybill.CancelDone || w.status == waybill.CancelUncertain) {
			m.cancelled = append(m.cancelled, cancellation{w.status, l.pos, f == committed})
			l.moves(m, 0)
		}
	}
	for _, m := range tx.staged {
		l.note("staged %s/%s key %q due %s tx %d fate %d", m.Route, m.ID, m.key, m.due, m.tx, f)
		if m.fate == open {
			m.fate = f
		}
		m.ended = l.pos
		if old := l.msgs[m.Ref]; old == nil || old.fate == rolledBack {
			if old != nil {
				m.first = old.first
			}
			if old != nil && old.invented {
				m.seq, m.seen, m.last, m.version, m.hold, m.flying = old.seq, old.seen, old.last, old.version, old.hold, old.flying
				m.refusals, m.unroutable, m.givenUp = old.refusals, old.unroutable, old.givenUp
			}
			l.msgs[m.Ref] = m
			l.moves(m, 0)
		}
	}
}
