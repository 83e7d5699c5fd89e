package postgres

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// SQLInbox is an inbox for handlers that write with database/sql, through any driver. It is safe for concurrent use.
type SQLInbox struct {
	db     *sql.DB
	opts   InboxOptions
	names  schema.Names
	sql    inboxStatements
	limits limitStatements
	wait   string // the lock timeout

	purged resumes
}

var (
	_ core.Inbox[*sql.Tx] = (*SQLInbox)(nil)
	_ core.Checker        = (*SQLInbox)(nil)
)

// NewSQLInbox returns the inbox that opts names, over db, which stays the caller's to close. InboxOptions.AutoMigrate
// is refused: call [SQLInbox.Migrate]. Let db keep as many idle connections as handlers run (SetMaxIdleConns): it keeps
// two by default, so that most transactions of ten handlers open a connection.
func NewSQLInbox(db *sql.DB, opts InboxOptions) (*SQLInbox, error) {
	if db == nil {
		return nil, waybill.Invalid("waybill/postgres: inbox", "db: is nil; pass an open *sql.DB")
	}
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if opts.AutoMigrate {
		return nil, waybill.Invalid("waybill/postgres: inbox options", "AutoMigrate: is offered only over a pgx pool; call Migrate")
	}
	n := newNames(opts.Schema, "", opts.Table)
	return &SQLInbox{db: db, opts: opts, names: n, sql: newInboxStatements(n, "$2", keysOfJSON), limits: newLimitStatements(n), wait: opts.lockTimeout()}, nil
}

// Do is [Inbox.Do] for database/sql. It takes a round trip more, to find out whether the transaction can be committed.
func (i *SQLInbox) Do(ctx context.Context, key core.InboxKey, fn func(ctx context.Context, tx *sql.Tx) error) (core.InboxStatus, error) {
	if err := core.CheckInboxKeys(key); err != nil {
		return core.InboxNone, err
	}
	return restart(ctx, func() (core.InboxStatus, error) { return i.do(ctx, key, fn) })
}

func (i *SQLInbox) do(ctx context.Context, key core.InboxKey, fn func(ctx context.Context, tx *sql.Tx) error) (core.InboxStatus, error) {
	tx, err := i.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return core.InboxNone, dberr.Failure("inbox: begin", err)
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	status, err := readMark(tx.QueryRowContext(ctx, i.sql.mark, key.Consumer, key.Source, key.ID, i.wait, key.ContentHashBytes()))
	if err != nil {
		return core.InboxNone, dberr.Failure("inbox: mark", err)
	}
	if status != core.InboxNew {
		return status, nil
	}
	if err := fn(ctx, tx); err != nil {
		return core.InboxNone, handlerError(err)
	}
	if err := commitMarked(ctx, tx); err != nil {
		return core.InboxNone, err
	}
	return core.InboxNew, nil
}

// commitMarked commits a handler's transaction, which has marked something. A driver may report a commit that became a
// rollback as a success, and so the commit after a ROLLBACK or COMMIT that the handler sent as SQL. A statement fails
// in a transaction that has failed, and has no transaction id after one that ended.
func commitMarked(ctx context.Context, tx *sql.Tx) error {
	var marked bool
	err := tx.QueryRowContext(ctx, "SELECT pg_current_xact_id_if_assigned() IS NOT NULL").Scan(&marked)
	switch {
	case dberr.SQLState(err) == "25P02":
		return dberr.CommitError("inbox: commit", pgx.ErrTxCommitRollback)
	case err == nil && !marked:
		return dberr.CommitError("inbox: commit", sql.ErrTxDone)
	}
	if err := tx.Commit(); err != nil {
		return dberr.CommitError("inbox: commit", err)
	}
	return nil
}
