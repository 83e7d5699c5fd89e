package pipetx

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
)

// run is what a transaction and its savepoints share.
type run struct {
	ctx  context.Context //nolint:containedctx // of Begin, for the BEGIN
	conn *pgx.Conn

	mu     sync.RWMutex // held for reading by whoever uses the connection, so that nobody does after the end
	tx     pgx.Tx       // nil before the BEGIN
	failed error        // of the BEGIN
	ended  bool
	large  atomic.Bool // large objects hold pgx's own transaction, so that only its Commit ends them
	queued *pgx.Batch
}

// fresh reports whether the BEGIN is still to be sent. mu is held.
func (r *run) fresh() bool { return r.tx == nil && r.failed == nil && !r.ended }

// open reports whether neither the transaction's methods nor the statements COMMIT and ROLLBACK have ended it. mu is
// held.
func (r *run) open() bool {
	return !r.ended && r.failed == nil && (r.tx == nil || r.status() != 'I')
}

func (r *run) status() byte { return r.conn.PgConn().TxStatus() }

// begin begins the transaction, unless it has begun. Its context is that of Begin: one statement's may end earlier.
func (r *run) begin() {
	r.mu.RLock()
	fresh := r.fresh()
	r.mu.RUnlock()
	if !fresh {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fresh() {
		r.tx, r.failed = r.conn.Begin(r.ctx)
	}
}

// beginWith begins the transaction and runs its first statement in one round trip, and hands the results to read, which
// must close them. It reports false if it has run nothing and the connection is as it was: the transaction had begun,
// or the statement cannot be sent so. Then it is run in the usual way, which also returns its error. If the connection
// is lost, or the statement's context has ended on the way, which costs the connection, there is no transaction any
// more, and read gets the error.
func (r *run) beginWith(ctx context.Context, sql string, args []any, read func(results pgx.BatchResults)) bool {
	if len(args) == 0 { // it may be several statements
		return false
	}
	switch args[0].(type) {
	case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID, pgx.QueryRewriter:
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.fresh() {
		return false
	}
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{})
	b.Queue(sql, args...)
	results := r.conn.SendBatch(ctx, b)
	if _, err := results.Exec(); err != nil { // neither has run, or it is not known
		_ = results.Close()
		if !r.conn.IsClosed() {
			return false
		}
		r.failed = err
		read(pgx.FailedBatchResults(b, err))
		return true
	}
	r.tx = results.Tx()
	read(results)
	return true
}

// Tx is the transaction. Make it with Begin.
type Tx struct{ savepoint }

// Begin returns a transaction on conn. Nothing is sent yet: the BEGIN goes with the first statement, and has ctx.
func Begin(ctx context.Context, conn *pgx.Conn) *Tx {
	return &Tx{savepoint{run: &run{ctx: ctx, conn: conn, queued: &pgx.Batch{}}}}
}

// BeginError returns the error of the BEGIN, if it was sent and failed.
func (t *Tx) BeginError() error {
	t.run.mu.RLock()
	defer t.run.mu.RUnlock()
	return t.run.failed
}

// Exec runs a statement, and the BEGIN with it if it is the first.
func (t *Tx) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	first := func(results pgx.BatchResults) {
		tag, err = results.Exec()
		if closed := results.Close(); err == nil {
			err = closed
		}
	}
	if t.run.beginWith(ctx, sql, args, first) {
		return tag, err
	}
	return t.savepoint.Exec(ctx, sql, args...)
}

// QueryRow runs a statement, and the BEGIN with it if it is the first.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	var row firstRow
	if t.run.beginWith(ctx, sql, args, func(results pgx.BatchResults) { row = firstRow{results.QueryRow(), results} }) {
		return row
	}
	return t.savepoint.QueryRow(ctx, sql, args...)
}

// firstRow is the row of a first statement.
type firstRow struct {
	pgx.Row
	results pgx.BatchResults
}

func (r firstRow) Scan(dest ...any) error {
	err := r.Row.Scan(dest...)
	if closed := r.results.Close(); err == nil {
		err = closed
	}
	return err
}

// Commit fails: the code that began the transaction ends it.
func (*Tx) Commit(context.Context) error {
	return waybill.Invalid("waybill/postgres: unit of work",
		"Commit: the unit of work commits, with what was staged; return nil from the function of Do")
}

// Rollback ends the transaction. In an ended one it does nothing.
func (t *Tx) Rollback(ctx context.Context) error {
	t.run.mu.Lock()
	defer t.run.mu.Unlock()
	if t.run.ended {
		return pgx.ErrTxClosed
	}
	t.run.ended = true
	if t.run.tx == nil {
		return nil
	}
	return t.run.tx.Rollback(ctx)
}

// Usable returns how the commit would fail.
func (t *Tx) Usable() error {
	t.run.mu.Lock()
	defer t.run.mu.Unlock()
	switch {
	case !t.run.open():
		return pgx.ErrTxClosed
	case t.run.tx != nil && t.run.status() == 'E':
		return pgx.ErrTxCommitRollback
	}
	return nil
}

// Queue keeps a statement for the commit. Its rows are not read: when they come, the transaction is committed.
func (t *Tx) Queue(sql string, args ...any) { t.run.queued.Queue(sql, args...) }

// Flush sends the queued statements.
func (t *Tx) Flush(ctx context.Context) error { return t.flush(ctx, t) }

func (t *Tx) flush(ctx context.Context, tx pgx.Tx) error {
	return tx.SendBatch(ctx, t.run.takeQueued()).Close()
}

func (r *run) takeQueued() *pgx.Batch {
	b := r.queued
	r.queued = &pgx.Batch{}
	return b
}

// End sends the queued statements and the COMMIT in one round trip, and if nothing was sent before, the BEGIN too. It
// fails with [pgx.ErrTxCommitRollback] if a statement failed before, and with [pgx.ErrTxClosed] if the transaction was
// ended before.
func (t *Tx) End(ctx context.Context) error {
	r := t.run
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.open():
		return pgx.ErrTxClosed
	case r.tx == nil && r.queued.Len() == 0:
		r.ended = true
		return nil
	case r.large.Load():
		if err := t.flush(ctx, r.tx); err != nil {
			return err
		}
		r.ended = true
		return r.tx.Commit(ctx)
	}
	b := r.takeQueued()
	if r.tx == nil {
		whole := &pgx.Batch{}
		whole.BeginTx(pgx.TxOptions{})
		whole.QueuedQueries = append(whole.QueuedQueries, b.QueuedQueries...)
		b = whole
	}
	b.Queue("commit").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() == "ROLLBACK" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
	results := r.conn.SendBatch(ctx, b)
	if r.tx == nil {
		r.tx = results.Tx()
	}
	err := results.Close()
	r.ended = err == nil || r.status() == 'I' // otherwise there is something to roll back
	return err
}

// savepoint is a savepoint, or the transaction itself, that lasts as long as its run.
type savepoint struct {
	tx  pgx.Tx // nil: the transaction
	run *run
}

// closedTx answers everything as pgx does after the end.
var closedTx = func() pgx.Tx {
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(&b, pgx.ErrTxClosed).Tx()
}()

// use returns the transaction to call, and begins it if it has not begun. The caller must give run.mu back.
func (s *savepoint) use() pgx.Tx {
	s.run.begin()
	s.run.mu.RLock()
	switch {
	case s.run.ended, s.run.failed != nil:
		return closedTx
	case s.tx == nil:
		return s.run.tx
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
