package waybill

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/internal/errtext"
)

// UnitOfWork runs functions in transactions and stages their messages at the end, in one call. It is for code that has
// the context but not the transaction. It is safe for concurrent use, and so is the context of one Do.
//
// It returns no [Staged]. Code that must know whether a message was a duplicate stages with the Stager itself.
type UnitOfWork[Tx any] struct {
	stager   Stager[Tx]
	transact func(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error
}

// NewUnitOfWork returns a unit of work that stages through stager. transact must run fn in a new transaction, commit if
// fn returns nil, and otherwise roll back, also if fn panics. It can run fn again in another transaction if the
// database asks for that; see [ErrRetryTx]. It passes a context to fn. Drivers that find their transaction in the
// context pass one that carries the session; others pass their own context on. With pgx:
//
//	func(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
//		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return fn(ctx, tx) })
//	}
//
// Package store/postgres has a ready-made one for pgx that saves round trips.
func NewUnitOfWork[Tx any](
	stager Stager[Tx], transact func(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error,
) (*UnitOfWork[Tx], error) {
	var p []string
	if check.Nil(stager) {
		p = append(p, "stager: is nil; pass the outbox")
	}
	if transact == nil {
		p = append(p, "transact: is nil; pass a function that runs another one in a transaction")
	}
	if err := Invalid("waybill: unit of work", p...); err != nil {
		return nil, err
	}
	return &UnitOfWork[Tx]{stager: stager, transact: transact}, nil
}

// work is one run of a unit of work.
type work[Tx any] struct {
	tx Tx

	mu      sync.Mutex
	ended   bool
	failed  error // a nested Do failed, so that nothing may be committed
	entries []workEntry
}

// workEntry is one call to stage: messages, or a recorder whose messages are taken at the end.
type workEntry struct {
	ctx      context.Context //nolint:containedctx // what messages inherit is the scope and the span of the call
	msgs     []Message
	recorder *Recorder
}

// workKey finds the run of a unit of work in a context. Each unit of work has its own.
type workKey struct{ unit any }

// Do runs fn in a transaction, with the context of that transaction. When fn has returned nil, Do stages everything
// that was passed to [UnitOfWork.Stage] and [UnitOfWork.StageRecorded] under fn's context, in order and in one call
// (one for each [MaxMessages] messages), and commits. If fn or that call fails, or fn panics, the transaction is rolled
// back. Bad messages are reported by Do, not by Stage. After the commit the aggregates forget their recorded messages.
//
// A Do within a Do of the same unit of work joins it: it runs in the same transaction, and its messages are staged at
// the end of the outermost Do. If the inner Do fails, the whole transaction is rolled back, even if its error is
// swallowed.
func (u *UnitOfWork[Tx]) Do(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error {
	if outer := u.work(ctx); outer != nil {
		return u.join(ctx, outer, fn)
	}
	var last *work[Tx]
	err := u.transact(ctx, func(ctx context.Context, tx Tx) error {
		w := &work[Tx]{tx: tx} // a new one each time fn runs
		last = w
		defer w.close()
		if err := fn(context.WithValue(ctx, workKey{u}, w), tx); err != nil {
			return err
		}
		msgs, err := w.end()
		if err != nil {
			return err
		}
		for len(msgs) > 0 {
			n := min(len(msgs), MaxMessages)
			if _, err := u.stager.Stage(ctx, tx, msgs[:n]...); err != nil {
				return errtext.Within("waybill: unit of work", err)
			}
			msgs = msgs[n:]
		}
		return nil
	})
	if err != nil || last == nil {
		return err
	}
	for _, e := range last.entries {
		if e.recorder != nil {
			e.recorder.forget()
		}
	}
	return nil
}

func (u *UnitOfWork[Tx]) join(ctx context.Context, w *work[Tx], fn func(ctx context.Context, tx Tx) error) error {
	if err := w.add(); err != nil {
		return err
	}
	done := false
	defer func() {
		if !done {
			w.fail(errors.New("a nested call panicked"))
		}
	}()
	err := fn(ctx, w.tx)
	done = true
	if err != nil {
		w.fail(err)
	}
	return err
}

// Stage adds msgs to the messages that the running Do stages at its end. They take correlation, tenant, lineage and the
// like, and the trace, from ctx. It fails unless ctx is the one that a running Do passed to its function, or is derived
// from it.
func (u *UnitOfWork[Tx]) Stage(ctx context.Context, msgs ...Message) error {
	return u.add(ctx, workEntry{ctx: ctx, msgs: append([]Message(nil), msgs...)})
}

// StageRecorded adds the recorded messages of aggregates to those that the running Do stages, at this place. That
// includes messages recorded until the end of the Do. The aggregates forget them after the commit. After a rollback
// they keep them, for another try. The Do owns the aggregates until it ends.
func (u *UnitOfWork[Tx]) StageRecorded(ctx context.Context, aggregates ...Aggregate) error {
	entries := make([]workEntry, len(aggregates))
	for i, a := range aggregates {
		if check.Nil(a) {
			return Invalid("waybill: unit of work", fmt.Sprintf("aggregates[%d]: is nil", i))
		}
		entries[i] = workEntry{ctx: ctx, recorder: a.recorded()}
	}
	return u.add(ctx, entries...)
}

func (u *UnitOfWork[Tx]) add(ctx context.Context, entries ...workEntry) error {
	w := u.work(ctx)
	if w == nil {
		return fmt.Errorf("waybill: unit of work: %w: staged outside of a transaction: "+
			"call Do, and stage under the context that it passes to its function", ErrInvalid)
	}
	return w.add(entries...)
}

func (u *UnitOfWork[Tx]) work(ctx context.Context) *work[Tx] {
	w, _ := ctx.Value(workKey{u}).(*work[Tx])
	return w
}

func (w *work[Tx]) add(entries ...workEntry) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return fmt.Errorf("waybill: unit of work: %w: the Do of this context has ended already; "+
			"stage before its function returns (%w)", ErrInvalid, ErrClosed)
	}
	w.entries = append(w.entries, entries...)
	return nil
}

func (w *work[Tx]) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed == nil {
		w.failed = errtext.Within("waybill: unit of work: rolled back, because a nested call had failed", err)
	}
}

// close ends the run, also after a failure.
func (w *work[Tx]) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}

// end closes the run and returns its messages. A recorder that was added twice counts once.
func (w *work[Tx]) end() ([]Message, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if w.failed != nil {
		return nil, w.failed
	}
	var msgs []Message
	seen := map[*Recorder]bool{}
	for i := range w.entries {
		e := &w.entries[i]
		from := len(msgs)
		if e.recorder == nil {
			msgs = append(msgs, e.msgs...)
		} else if !seen[e.recorder] {
			seen[e.recorder] = true
			msgs = append(msgs, e.recorder.take()...)
		}
		for j := from; j < len(msgs); j++ {
			inherit(&msgs[j], e.ctx)
		}
	}
	return msgs, nil
}

// inherit gives m the values that it would get if it were staged under ctx.
func inherit(m *Message, ctx context.Context) { //nolint:revive // the message is what it is about
	scope := ScopeFrom(ctx)
	for _, f := range [...]struct {
		field *string
		value string
	}{{&m.CorrelationID, scope.CorrelationID}, {&m.CausationID, scope.CausationID}, {&m.Tenant, scope.Tenant}, {&m.RunID, scope.RunID}} {
		if *f.field == "" {
			*f.field = f.value
		}
	}
	if m.Lineage == nil {
		m.Lineage = scope.Lineage
	}
	m.under = ctx
}
