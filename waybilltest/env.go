package waybilltest

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// TB is what this package needs of a *testing.T, *testing.B or *testing.F.
type TB interface {
	Helper()
	Context() context.Context
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Options configures a [Flow], such as that of an [Env]. The zero value is usable.
type Options struct {
	// Source is the CloudEvents source of staged messages; default "/test".
	Source string
	// Start is what the clock says; default now. It stands still until Flow.Advance.
	Start time.Time
	// Retry is the retry policy. Default: none, a handler's first error parks the message and reaches the test.
	// With a policy the retries run at once, and only a message that is parked in the end reaches the test.
	Retry *waybill.Backoff
	// KeepScheduled lets scheduled messages and retries wait for Flow.Advance, so that a later transaction can
	// cancel or replace them.
	KeepScheduled bool
	// AllowUnhandled lets messages pass that no handler is for, such as those for other services: they count as
	// sent. Default: such a message fails the test.
	AllowUnhandled bool
}

// Env is an application's surroundings in memory. Make it with [New].
type Env struct {
	*Flow
	// Store is the outbox, the inbox and a table of strings: a waybill.Stager, waybill.Canceller and core.Inbox of
	// *memory.Tx. After a Commit of your own call Flow.Drain.
	Store *memory.Store
}

// New returns an empty environment whose messages are handled by handlers, if any. More can be given to [Flow.Handle].
func New(tb TB, opts Options, handlers ...waybill.Handler) *Env {
	tb.Helper()
	e := &Env{}
	e.Flow = NewFlow(tb, opts, func(source string, now func() time.Time) (_ FlowStore, err error) {
		e.Store, err = memory.New(memory.Options{Source: source, Now: now})
		return e.Store, err
	}, handlers...)
	return e
}

// Do runs fn in a transaction, commits it, and handles the staged messages, and those that their handlers stage in
// turn. It returns fn's error (then nothing was committed), the commit's, or those of handlers.
func (e *Env) Do(fn func(ctx context.Context, tx *memory.Tx) error) error {
	tx := e.Store.Begin()
	defer tx.Rollback()
	if err := fn(e.tb.Context(), tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	return e.Drain()
}

// Stage stages msgs in a transaction of their own, handles them, and fails the test if anything goes wrong.
func (e *Env) Stage(msgs ...waybill.Message) (staged []waybill.Staged) {
	e.tb.Helper()
	err := e.Do(func(ctx context.Context, tx *memory.Tx) (err error) {
		staged, err = e.Store.Stage(ctx, tx, msgs...)
		return err
	})
	if err != nil {
		e.tb.Fatalf("waybilltest: stage: %v", err)
	}
	return staged
}

// Cancel cancels a message in a transaction of its own and fails the test if that goes wrong. Only a waiting message
// can be cancelled: see Options.KeepScheduled, or cancel in the transaction that staged.
func (e *Env) Cancel(key waybill.CancelKey) waybill.CancelStatus {
	e.tb.Helper()
	status := waybill.CancelNotFound
	err := e.Do(func(ctx context.Context, tx *memory.Tx) error {
		c, ok := core.As[waybill.Canceller[*memory.Tx]](e.Store)
		if !ok {
			return waybill.ErrUnsupported
		}
		all, err := c.Cancel(ctx, tx, key)
		if err == nil {
			status = all[0]
		}
		return err
	})
	if err != nil {
		e.tb.Fatalf("waybilltest: cancel: %v", err)
	}
	return status
}

// Waiting returns the messages that were committed and not sent: scheduled ones and retries, with KeepScheduled. Due
// says when.
func (e *Env) Waiting() []memory.StoredRecord {
	return slices.DeleteFunc(e.Store.Records(), func(r memory.StoredRecord) bool { return r.State.Terminal() })
}

// Parked returns the messages that were given up, with Reason and LastError.
func (e *Env) Parked() []memory.StoredRecord {
	return slices.DeleteFunc(e.Store.Records(), func(r memory.StoredRecord) bool { return r.State != core.StateAbandoned })
}
