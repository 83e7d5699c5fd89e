package postgres

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/core"
)

// UnitOfWork returns the unit of work on the outbox's pool. It sends what was staged and the COMMIT together, so that a
// transaction that stages makes as many round trips as one that does not. Messages with dedupe keys take one more, and
// so does a transaction that has used LargeObjects. It is always the same unit: a Do within a Do joins wherever they are.
//
// The function of Do gets a pgx.Tx like any other, with savepoints and the connection's default isolation, except that
// Commit is refused: what was staged would be lost. The function runs once, whatever happens. Do fails as [pgx.BeginFunc]
// does: with [pgx.ErrTxCommitRollback] if the function swallowed the error of a statement, with [pgx.ErrTxClosed] if it
// ended the transaction. An error means that Do committed nothing, unless the connection was lost or the context ended in
// the commit: then it is an outage, and nobody knows. A statement that another goroutine still runs is waited for; after
// the end the transaction reaches no connection.
//
// This needs a pipeline, which database/sql does not have: there, use [core.NewUnitOfWork] with [Outbox.SQL].
func (o *Outbox) UnitOfWork() *core.UnitOfWork[pgx.Tx] { return o.unit }

// unit is what the outbox's unit of work consists of.
type unit struct{ *Outbox }

func (u unit) run(ctx context.Context, fn func(tx pgx.Tx) error) error {
	if err := u.ready(ctx); err != nil {
		return err
	}
	conn, err := u.pool.Acquire(ctx)
	if err != nil {
		return failure("unit of work: connect", err)
	}
	defer conn.Release() // closes it if it is not idle
	tx, err := conn.Begin(ctx)
	if err != nil {
		return failure("unit of work: begin", err)
	}
	t := &unitTx{savepoint{tx: tx, run: &unitRun{conn: conn, queued: &pgx.Batch{}}}}
	defer func() { _ = t.Rollback(ctx) }() // after a commit it does nothing
	if err := fn(t); err != nil {
		return err
	}
	if err := t.commit(ctx); err != nil {
		return commitError("unit of work: stage and commit", err)
	}
	return nil
}

// Stage is for the unit of work alone, at the end of fn. It does not say what is a duplicate.
func (u unit) Stage(ctx context.Context, tx pgx.Tx, msgs ...core.Message) ([]core.Staged, error) {
	t := tx.(*unitTx) // run made it
	if err := t.usable(); err != nil {
		return nil, commitError("unit of work: stage", err)
	}
	_, err := u.stager.stage(ctx, msgs, t.query, t.later)
	return nil, err
}

// unitRun is what a transaction and its savepoints share.
type unitRun struct {
	conn *pgxpool.Conn

	mu     sync.RWMutex // held for reading by whoever uses the connection, so that nobody does after the end
	ended  bool
	large  atomic.Bool // large objects hold pgx's own transaction, so that only its Commit ends them
	queued *pgx.Batch
}

// open reports whether neither the transaction's methods nor the statements COMMIT and ROLLBACK have ended it.
func (r *unitRun) open() bool { return !r.ended && r.status() != 'I' }

func (r *unitRun) status() byte { return r.conn.Conn().PgConn().TxStatus() }

// unitTx is the transaction of a unit of work.
type unitTx struct{ savepoint }

// Commit fails: see [Outbox.UnitOfWork].
func (*unitTx) Commit(context.Context) error {
	return core.Invalid("waybill/postgres: unit of work", "Commit: the unit of work commits, with what was staged; return nil from the function of Do")
}

// Rollback ends the transaction. In an ended one it does nothing.
func (t *unitTx) Rollback(ctx context.Context) error {
	t.run.mu.Lock()
	defer t.run.mu.Unlock()
	if t.run.ended {
		return pgx.ErrTxClosed
	}
	t.run.ended = true
	return t.tx.Rollback(ctx)
}

// usable tells how the commit would fail.
func (t *unitTx) usable() error {
	t.run.mu.Lock()
	defer t.run.mu.Unlock()
	switch {
	case !t.run.open():
		return pgx.ErrTxClosed
	case t.run.status() == 'E':
		return pgx.ErrTxCommitRollback
	}
	return nil
}

// later queues an insert. Nobody looks at its rows: when they come, the transaction is committed.
func (t *unitTx) later(_ context.Context, sql string, args []any, _ func(func(...any) error) error) error {
	t.run.queued.Queue(sql, args...)
	return nil
}

// query runs a statement at once, after what is queued.
func (t *unitTx) query(ctx context.Context, sql string, args []any, each func(func(...any) error) error) error {
	if err := t.flush(ctx, t); err != nil {
		return err
	}
	return pgxQuery(t)(ctx, sql, args, each)
}

func (t *unitTx) flush(ctx context.Context, tx pgx.Tx) error {
	b := t.run.queued
	t.run.queued = &pgx.Batch{}
	return tx.SendBatch(ctx, b).Close()
}

// commit sends what is queued and the COMMIT in one round trip. After an error the server skips the rest of a batch.
func (t *unitTx) commit(ctx context.Context) error {
	t.run.mu.Lock()
	defer t.run.mu.Unlock()
	if !t.run.open() {
		return pgx.ErrTxClosed
	}
	if t.run.large.Load() {
		if err := t.flush(ctx, t.tx); err != nil {
			return err
		}
		t.run.ended = true
		return t.tx.Commit(ctx)
	}
	t.run.queued.Queue("commit").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() == "ROLLBACK" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
	err := t.flush(ctx, t.tx)
	t.run.ended = err == nil || t.run.status() == 'I' // otherwise there is something to roll back
	return err
}

// savepoint is a transaction, or a savepoint in it, that lasts as long as its run.
type savepoint struct {
	tx  pgx.Tx
	run *unitRun
}

// closedTx answers everything as pgx does after the end.
var closedTx = func() pgx.Tx {
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(&b, pgx.ErrTxClosed).Tx()
}()

// use returns what to call. The caller must give run.mu back.
func (s *savepoint) use() pgx.Tx {
	s.run.mu.RLock()
	if s.run.ended {
		return closedTx
	}
	return s.tx
}

func (s *savepoint) Begin(ctx context.Context) (pgx.Tx, error) {
	defer s.run.mu.RUnlock()
	tx, err := s.use().Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &savepoint{tx: tx, run: s.run}, nil
}

func (s *savepoint) Commit(ctx context.Context) error {
	defer s.run.mu.RUnlock()
	return s.use().Commit(ctx)
}

func (s *savepoint) Rollback(ctx context.Context) error {
	defer s.run.mu.RUnlock()
	return s.use().Rollback(ctx)
}

func (s *savepoint) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	defer s.run.mu.RUnlock()
	return s.use().CopyFrom(ctx, table, columns, rows)
}

func (s *savepoint) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	defer s.run.mu.RUnlock()
	return s.use().SendBatch(ctx, b)
}

func (s *savepoint) LargeObjects() pgx.LargeObjects {
	defer s.run.mu.RUnlock()
	s.run.large.Store(true)
	return s.use().LargeObjects()
}

func (s *savepoint) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	defer s.run.mu.RUnlock()
	return s.use().Prepare(ctx, name, sql)
}

func (s *savepoint) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	defer s.run.mu.RUnlock()
	return s.use().Exec(ctx, sql, args...)
}

func (s *savepoint) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	defer s.run.mu.RUnlock()
	return s.use().Query(ctx, sql, args...) //nolint:rowserrcheck,sqlclosecheck // that is the caller's
}

func (s *savepoint) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	defer s.run.mu.RUnlock()
	return s.use().QueryRow(ctx, sql, args...)
}

func (s *savepoint) Conn() *pgx.Conn {
	defer s.run.mu.RUnlock()
	return s.use().Conn()
}
