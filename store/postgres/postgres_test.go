package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/storetest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

// newPool returns a pool on a fresh database.
func newPool(tb testing.TB) *pgxpool.Pool {
	tb.Helper()
	return openPool(tb, testenv.Postgres(tb).DSN)
}

func openPool(tb testing.TB, dsn string) *pgxpool.Pool {
	tb.Helper()
	return openPoolWith(tb, dsn, func(cfg *pgxpool.Config) { cfg.MaxConns = 8 })
}

func openPoolWith(tb testing.TB, dsn string, change func(cfg *pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	change(cfg)
	pool, err := pgxpool.NewWithConfig(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return pool
}

// newOutbox returns a migrated outbox on a fresh database.
func newOutbox(tb testing.TB, opts postgres.Options) (*postgres.Outbox, *pgxpool.Pool) {
	tb.Helper()
	pool := newPool(tb)
	return outboxOn(tb, pool, opts), pool
}

func outboxOn(tb testing.TB, pool *pgxpool.Pool, opts postgres.Options) *postgres.Outbox {
	tb.Helper()
	if opts.Source == "" {
		opts.Source = "/test"
	}
	o, err := postgres.NewOutbox(pool, opts)
	if err != nil {
		tb.Fatal(err)
	}
	if err := o.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = o.Close(context.Background()) })
	return o
}

// stage commits msgs in a transaction of their own.
func stage(tb testing.TB, pool *pgxpool.Pool, o *postgres.Outbox, msgs ...core.Message) []core.Staged {
	tb.Helper()
	var staged []core.Staged
	err := pgx.BeginFunc(tb.Context(), pool, func(tx pgx.Tx) (err error) {
		staged, err = o.Stage(tb.Context(), tx, msgs...)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return staged
}

func message(opts ...core.MessageOption) core.Message {
	return core.RawMessage("t.x", "text/plain", []byte("body"), opts...)
}

func request(n int) core.ClaimRequest {
	return core.ClaimRequest{Owner: "test", Routes: []core.RouteOrder{{Route: core.DefaultRoute}}, MaxRecords: n, Lease: time.Minute}
}

// claim claims until something came or the store says that there is no more.
func claim(tb testing.TB, o core.OutboxStore, req core.ClaimRequest) core.Claim {
	tb.Helper()
	for {
		c, err := o.Claim(tb.Context(), req)
		if err != nil {
			tb.Fatal(err)
		}
		if len(c.Records) > 0 || !c.More {
			return c
		}
	}
}

func settle(tb testing.TB, o core.OutboxStore, outcomes ...core.Outcome) {
	tb.Helper()
	if err := o.Settle(tb.Context(), outcomes).FirstErr(); err != nil {
		tb.Fatal(err)
	}
}

func exec(tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	tb.Helper()
	if _, err := pool.Exec(tb.Context(), sql, args...); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
}

func queryInt(tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) int64 {
	tb.Helper()
	var n int64
	if err := pool.QueryRow(tb.Context(), sql, args...).Scan(&n); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return n
}

// eventually polls cond until it holds.
func eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			tb.Fatal("not in time: " + what)
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-tb.Context().Done():
			tb.Fatal(tb.Context().Err())
		}
	}
}

type harness struct {
	pool   *pgxpool.Pool
	outbox *postgres.Outbox
}

func (h *harness) Store() core.OutboxStore { return h.outbox }

func (h *harness) Begin(ctx context.Context) (storetest.Tx, error) {
	tx, err := h.pool.Begin(ctx)
	return &pgxTx{h.outbox, tx}, err
}

func (h *harness) Corrupt(ctx context.Context, route string, seq int64) error {
	_, err := h.pool.Exec(ctx, `UPDATE waybill.waybill_outbox SET attrs = '"not an object"' WHERE route = $1 AND seq = $2`, route, seq)
	return err
}

func (h *harness) Records(ctx context.Context, route string) ([]storetest.StoredRecord, error) {
	rows, err := h.pool.Query(ctx, `SELECT id, state, attempts, crashes, reason, last_error FROM waybill.waybill_outbox WHERE route = $1`, route)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[storetest.StoredRecord])
}

type pgxTx struct {
	outbox *postgres.Outbox
	tx     pgx.Tx
}

func (t *pgxTx) Stage(ctx context.Context, msgs ...core.Message) ([]core.Staged, error) {
	return t.outbox.Stage(ctx, t.tx, msgs...)
}

func (t *pgxTx) Cancel(ctx context.Context, keys ...core.CancelKey) ([]core.CancelStatus, error) {
	return t.outbox.Cancel(ctx, t.tx, keys...)
}
func (t *pgxTx) Commit(ctx context.Context) error { return t.tx.Commit(ctx) }
func (t *pgxTx) Rollback(ctx context.Context) error {
	if err := t.tx.Rollback(ctx); !errors.Is(err, pgx.ErrTxClosed) {
		return err
	}
	return nil
}

// sqlHarness stages through database/sql.
type sqlHarness struct {
	harness
	db     *sql.DB
	stager core.Stager[*sql.Tx]
}

func (h *sqlHarness) Begin(ctx context.Context) (storetest.Tx, error) {
	tx, err := h.db.BeginTx(ctx, nil)
	return &sqlTx{h.stager, tx}, err
}

type sqlTx struct {
	stager core.Stager[*sql.Tx]
	tx     *sql.Tx
}

func (t *sqlTx) Stage(ctx context.Context, msgs ...core.Message) ([]core.Staged, error) {
	return t.stager.Stage(ctx, t.tx, msgs...)
}

func (t *sqlTx) Cancel(ctx context.Context, keys ...core.CancelKey) ([]core.CancelStatus, error) {
	c, ok := core.As[core.Canceller[*sql.Tx]](t.stager)
	if !ok {
		return nil, core.ErrUnsupported
	}
	return c.Cancel(ctx, t.tx, keys...)
}
func (t *sqlTx) Commit(context.Context) error { return t.tx.Commit() }
func (t *sqlTx) Rollback(context.Context) error {
	if err := t.tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

// workers is how many checks of a suite run side by side, each worker on a database of its own.
const workers = 4

// ST-01 ST-02 ST-05 ST-07 ST-12 DB-01 DB-02 DB-03 DB-04 DB-05 DB-18 OR-02 OR-03 OR-08, as far as a store keeps them
func TestConformance(t *testing.T) {
	t.Parallel()
	var harnesses []func(*testing.T) storetest.Harness
	for range workers {
		o, pool := newOutbox(t, postgres.Options{})
		harnesses = append(harnesses, func(*testing.T) storetest.Harness { return &harness{pool, o} })
	}
	storetest.RunSpread(t, harnesses...)
}

// newLanguagePool returns a pool on a fresh database that sorts text as a language does.
func newLanguagePool(tb testing.TB) *pgxpool.Pool {
	tb.Helper()
	admin := newPool(tb)
	database := admin.Config().ConnConfig.Database + "_en"
	name := pgx.Identifier{database}.Sanitize()
	exec(tb, admin, "CREATE DATABASE "+name+" TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en' LOCALE 'C'")
	tb.Cleanup(func() { _, _ = admin.Exec(context.Background(), "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
	return openPoolWith(tb, admin.Config().ConnString(), func(cfg *pgxpool.Config) { cfg.MaxConns, cfg.ConnConfig.Database = 8, database })
}

// DB-14: and in a database whose text sorts by the rules of a language, which must make no difference.
func TestConformanceSQL(t *testing.T) {
	t.Parallel()
	var harnesses []func(*testing.T) storetest.Harness
	for range workers {
		pool := newLanguagePool(t)
		o := outboxOn(t, pool, postgres.Options{})
		db := stdlib.OpenDBFromPool(pool)
		t.Cleanup(func() { _ = db.Close() })
		harnesses = append(harnesses, func(*testing.T) storetest.Harness { return &sqlHarness{harness{pool, o}, db, o.SQL()} })
	}
	storetest.RunSpread(t, harnesses...)
}
