package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// The mark comes first, and goes with the BEGIN in one round trip. Its INSERT waits for another transaction that marks
// the same key, and so for the end of that handler. Then there are three answers: the mark is new, it was there (a
// duplicate), or it was there for other content (a conflict). Only a new mark leads to the handler, and commits with
// its writes.

// DefaultLockTimeout is how long Do waits for a concurrent Do of the same key.
const DefaultLockTimeout = 10 * time.Second

// InboxOptions configures an inbox. The zero value of each field is the documented default.
type InboxOptions struct {
	// Schema and Table name the inbox table; default "waybill" and "waybill_inbox". See [Options].
	Schema, Table string
	// LockTimeout bounds how long Do waits for a concurrent Do of the same key; default 10 s, negative = no bound.
	// The handler's own statements keep the session's lock_timeout.
	LockTimeout time.Duration
	// AutoMigrate makes the first use create or upgrade the table, for development.
	AutoMigrate bool
}

// Validate reports all problems of o at once, as an error that matches waybill.ErrInvalid.
func (o InboxOptions) Validate() error {
	p := schema.CheckNames(o.Schema, "Table", o.Table)
	if o.LockTimeout > 0 && (o.LockTimeout < time.Millisecond || o.LockTimeout > 24*time.Hour) {
		p = append(p, fmt.Sprintf("LockTimeout: %s is not between 1ms and 24h", o.LockTimeout))
	}
	return waybill.Invalid("waybill/postgres: inbox options", p...)
}

func (o *InboxOptions) lockTimeout() string {
	switch {
	case o.LockTimeout < 0:
		return "0"
	case o.LockTimeout == 0:
		return fmt.Sprintf("%dms", DefaultLockTimeout.Milliseconds())
	}
	return fmt.Sprintf("%dms", o.LockTimeout.Milliseconds())
}

// The lock timeout holds for the mark only; the handler gets back the earlier setting. CASE keeps its parts in this
// order, and RETURNING comes after the wait. A duplicate changes nothing, so that nothing comes back and restoreSQL is
// left to do. A mark for another content is set to its own value, so that it comes back.
const (
	markInboxSQL = `
INSERT INTO {inbox} AS m (consumer, source, id, content_hash) SELECT $1, $2, $3, $5::bytea
WHERE CASE WHEN set_config('waybill.lock_timeout', current_setting('lock_timeout'), true) IS NOT NULL
           THEN set_config('lock_timeout', $4, true) IS NOT NULL END
ON CONFLICT (id, source, consumer) DO UPDATE SET content_hash = m.content_hash WHERE m.content_hash <> excluded.content_hash
RETURNING ` + restored + `, m.content_hash IS NOT DISTINCT FROM $5::bytea`
	restoreSQL = `SELECT ` + restored
	restored   = `set_config('lock_timeout', current_setting('waybill.lock_timeout'), true)`
)

// inboxStatements are the texts of an inbox. They are rendered once.
type inboxStatements struct{ mark, markAll, purge, purgeAll string }

// newInboxStatements returns the texts for keys that come in this form, and a lock timeout that is this parameter.
func newInboxStatements(n schema.Names, timeout, keys string) inboxStatements {
	return inboxStatements{
		mark: n.SQL(markInboxSQL), markAll: n.SQL(fmt.Sprintf(markBatchSQL, timeout, keys)),
		purge: n.SQL(purgeInboxSQL), purgeAll: n.SQL(purgeInboxAllSQL),
	}
}

// Inbox is an inbox in a PostgreSQL database, for handlers that write with pgx. It is safe for concurrent use.
type Inbox struct {
	pool   *pgxpool.Pool
	opts   InboxOptions
	names  schema.Names
	sql    inboxStatements
	limits limitStatements
	wait   string // the lock timeout
	once   once

	purged resumes
}

var (
	_ core.Inbox[pgx.Tx] = (*Inbox)(nil)
	_ core.Checker       = (*Inbox)(nil)
)

// NewInbox returns the inbox that opts names, over pool, which stays the caller's to close. It does not connect.
func NewInbox(pool *pgxpool.Pool, opts InboxOptions) (*Inbox, error) {
	if pool == nil {
		return nil, waybill.Invalid("waybill/postgres: inbox", "pool: is nil; pass an open *pgxpool.Pool")
	}
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	n := newNames(opts.Schema, "", opts.Table)
	return &Inbox{pool: pool, opts: opts, names: n, sql: newInboxStatements(n, "$5", keysOfArrays), limits: newLimitStatements(n), wait: opts.lockTimeout()}, nil
}

// Do runs fn in a READ COMMITTED transaction together with the mark; see [core.Inbox]. A concurrent Do of the same key
// waits for the first to end, up to LockTimeout; then it fails as rejected and may be tried again. If fn panics, the
// transaction is rolled back and the panic goes on. If the connection is lost in the commit, the error is an outage and
// the result is unknown: the next Do of the key finds out.
func (i *Inbox) Do(ctx context.Context, key core.InboxKey, fn func(ctx context.Context, tx pgx.Tx) error) (core.InboxStatus, error) {
	if err := core.CheckInboxKeys(key); err != nil {
		return core.InboxNone, err
	}
	if err := i.ready(ctx); err != nil {
		return core.InboxNone, err
	}
	return restart(ctx, func() (core.InboxStatus, error) { return i.do(ctx, key, fn) })
}

func (i *Inbox) do(ctx context.Context, key core.InboxKey, fn func(ctx context.Context, tx pgx.Tx) error) (core.InboxStatus, error) {
	var status core.InboxStatus
	begin := newMarkBatch()
	begin.Queue(i.sql.mark, key.Consumer, key.Source, key.ID, i.wait, key.ContentHashBytes()).QueryRow(func(row pgx.Row) (err error) {
		status, err = readMark(row)
		return err
	})
	fresh := func() bool { return status == core.InboxNew }
	if err := i.inTx(ctx, begin, fresh, fn); err != nil {
		return core.InboxNone, err
	}
	return status, nil
}

// newMarkBatch returns a batch that begins the transaction of a Do, for the mark to go with it: one round trip less
// than two statements, and no lock is held for longer.
func newMarkBatch() *pgx.Batch {
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	return b
}

// inTx sends begin, a batch of newMarkBatch, and if there is something fresh runs fn in its transaction and commits it.
// Without anything fresh the transaction is rolled back: the marks were there. The mark comes before the handler, so
// that a concurrent Do of the key waits at its own mark until this transaction has ended.
func (i *Inbox) inTx(ctx context.Context, begin *pgx.Batch, fresh func() bool, fn func(ctx context.Context, tx pgx.Tx) error) error {
	results := i.pool.SendBatch(ctx, begin)
	tx := results.Tx()
	defer func() { _ = rollback(ctx, tx.Rollback) }() // after a commit it does nothing
	if err := results.Close(); err != nil {
		return dberr.Failure("inbox: mark", err)
	}
	if !fresh() {
		return nil
	}
	if err := fn(ctx, tx); err != nil {
		return handlerError(err)
	}
	// After a ROLLBACK or COMMIT that the handler sent as SQL, the driver's commit would be a success.
	if tx.Conn().PgConn().TxStatus() == 'I' {
		return dberr.CommitError("inbox: commit", pgx.ErrTxClosed)
	}
	if err := tx.Commit(ctx); err != nil {
		return dberr.CommitError("inbox: commit", err)
	}
	return nil
}

type scanner interface{ Scan(dest ...any) error }

// readMark returns the status in a mark's row.
func readMark(row scanner) (core.InboxStatus, error) {
	var restored string
	var fresh bool
	switch err := row.Scan(&restored, &fresh); {
	case errors.Is(err, pgx.ErrNoRows), errors.Is(err, sql.ErrNoRows):
		return core.InboxDuplicate, nil
	case err != nil:
		return core.InboxNone, err
	case !fresh:
		return core.InboxConflict, nil
	}
	return core.InboxNew, nil
}

// restart runs do again while the database sacrifices its transaction for another one.
func restart[T any](ctx context.Context, do func() (T, error)) (T, error) {
	for attempt := 1; ; attempt++ {
		status, err := do()
		if err == nil || !dberr.Again(err) || attempt == maxRestarts || ctx.Err() != nil {
			return status, err
		}
	}
}

// handlerError gives a handler's error the class of the database error in it, if it says nothing else: a handler that
// meets an outage in the transaction has met the inbox's outage.
func handlerError(err error) error {
	var own *waybill.Error
	if errors.As(err, &own) || dberr.Class(err) != waybill.ClassOutage {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err // maybe the handler's own
	}
	return &waybill.Error{Op: "waybill/postgres: inbox", Class: waybill.ClassOutage, Err: err}
}
