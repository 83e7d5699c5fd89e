package sharedtest

import (
	"context"
	"database/sql"
	"errors"
)

// SQLTx is a transaction as the suites of stores want it, with one savepoint at a time.
type SQLTx struct{ *sql.Tx }

// Commit commits. The context does not matter.
func (x SQLTx) Commit(context.Context) error { return x.Tx.Commit() }

// Rollback undoes the transaction. After Commit it does nothing.
func (x SQLTx) Rollback(context.Context) error {
	if err := x.Tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

// Savepoint sets a savepoint, in place of the one before.
func (x SQLTx) Savepoint(ctx context.Context) error {
	_, err := x.ExecContext(ctx, "SAVEPOINT s")
	return err
}

// RollbackTo undoes what was done since the savepoint.
func (x SQLTx) RollbackTo(ctx context.Context) error {
	_, err := x.ExecContext(ctx, "ROLLBACK TO SAVEPOINT s")
	return err
}
