package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
	"github.com/waybill-go/waybill/store/postgres/internal/pipetx"
)

// UnitOfWork returns the unit of work on the outbox's pool. It sends the BEGIN together with the first statement, if
// that is an Exec or a QueryRow with arguments, and the staged messages together with the COMMIT, so that a transaction
// that stages makes fewer round trips than one by hand that does not. Messages with dedupe keys take one more, and so
// does a transaction that has used LargeObjects. It is always the same unit: a Do within a Do joins wherever they are.
//
// The function of Do gets a pgx.Tx like any other, with savepoints and the connection's default isolation, except that
// Commit is refused: the staged messages would be lost. The function runs once, also after an error. Do fails as
// [pgx.BeginFunc] does: with [pgx.ErrTxCommitRollback] if the function swallowed the error of a statement, with
// [pgx.ErrTxClosed] if it ended the transaction. An error means that Do committed nothing, unless the connection was
// lost or the context ended in the commit: then it is an outage, and the result is unknown. A statement that another
// goroutine still runs is waited for; after the end the transaction reaches no connection.
//
// This needs a pipeline, which database/sql does not have: there, use [waybill.NewUnitOfWork] with [Outbox.SQL]. For
// another isolation, or to run the function again after a serialisation failure, use it with [pgx.BeginTxFunc].
func (o *Outbox) UnitOfWork() *waybill.UnitOfWork[pgx.Tx] { return o.unit }

// unit is what the outbox's unit of work consists of.
type unit struct{ *Outbox }

func (u unit) run(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	if err := u.ready(ctx); err != nil {
		return err
	}
	connected := false
	err := u.conns.Use(ctx, func(conn *pgx.Conn) error {
		connected = true
		return u.runOn(ctx, conn, fn)
	})
	if !connected {
		return dberr.Failure("unit of work: connect", err)
	}
	return err
}

func (u unit) runOn(ctx context.Context, conn *pgx.Conn, fn func(ctx context.Context, tx pgx.Tx) error) error {
	t := pipetx.Begin(ctx, conn)
	defer func() { _ = t.Rollback(ctx) }() // after a commit it does nothing
	if err := fn(ctx, t); err != nil {
		if failed := t.BeginError(); failed != nil {
			return errors.Join(dberr.Failure(beginOp, failed), err)
		}
		if dberr.Again(err) && !errors.Is(err, waybill.ErrRetryTx) {
			return dberr.Failure("unit of work", err)
		}
		return err
	}
	err := t.End(ctx)
	if failed := t.BeginError(); failed != nil {
		return dberr.Failure(beginOp, failed)
	}
	if e := dberr.IDTaken("unit of work: stage and commit", err); e != nil {
		return e
	}
	if err != nil {
		return dberr.CommitError("unit of work: stage and commit", err)
	}
	return nil
}

const beginOp = "unit of work: begin"

// Stage is for the unit of work alone, at the end of fn. It does not report duplicates.
func (u unit) Stage(ctx context.Context, tx pgx.Tx, msgs ...waybill.Message) ([]waybill.Staged, error) {
	t := tx.(*pipetx.Tx) // run made it
	if err := t.Usable(); err != nil {
		return nil, dberr.CommitError("unit of work: stage", err)
	}
	now := func(ctx context.Context, sql string, args []any, each func(func(...any) error) error) error {
		if err := t.Flush(ctx); err != nil {
			return err
		}
		return pgxQuery(t)(ctx, sql, args, each)
	}
	later := func(_ context.Context, sql string, args []any, _ func(func(...any) error) error) error {
		t.Queue(sql, args...)
		return nil
	}
	_, err := u.stager.stage(ctx, msgs, now, later)
	return nil, err
}
