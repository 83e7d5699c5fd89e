package owned_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
	"github.com/waybill-go/waybill/core/outboxtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres/owned"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

func openPool(tb testing.TB, dsn string) *pgxpool.Pool {
	tb.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	cfg.MaxConns = 24
	pool, err := pgxpool.NewWithConfig(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return pool
}

// newStore returns a migrated store on a fresh database.
func newStore(tb testing.TB, opts owned.Options) (*owned.Outbox, *pgxpool.Pool) {
	tb.Helper()
	pool := openPool(tb, testenv.Postgres(tb).DSN)
	return storeOn(tb, pool, opts), pool
}

func storeOn(tb testing.TB, pool *pgxpool.Pool, opts owned.Options) *owned.Outbox {
	tb.Helper()
	s, err := owned.New(pool, opts)
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return s
}

func exec(tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	tb.Helper()
	if _, err := pool.Exec(tb.Context(), sql, args...); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
}

func query[T any](tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) T {
	tb.Helper()
	var v T
	if err := pool.QueryRow(tb.Context(), sql, args...).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return v
}

// row returns a row that is due at once.
func row(route, id, key string) owned.Row {
	return owned.Row{StagedRow: core.StagedRow{
		Route: route, Envelope: core.Envelope{
			ID: id, Topic: "t.x", Type: "t.x", Source: "/test", Key: key, ContentType: "text/plain", Time: time.Now().UTC().Truncate(time.Microsecond), Body: []byte("body " + id),
		},
	}}
}

// stage commits rows in a transaction of their own.
func stageRows(tb testing.TB, pool *pgxpool.Pool, s *owned.Outbox, rows ...owned.Row) {
	tb.Helper()
	err := pgx.BeginFunc(tb.Context(), pool, func(tx pgx.Tx) error { return s.StageRows(tb.Context(), tx, rows...) })
	if err != nil {
		tb.Fatal(err)
	}
}

func newSession() outbox.Session { return outbox.Session(rand.Int64N(1<<62) + 1) }

// join makes a member that owns all of route.
func join(tb testing.TB, s *owned.Outbox, route string, units int) outbox.Session {
	tb.Helper()
	self := newSession()
	m := outbox.Member{Session: self, Name: "test", Beat: 1, Lease: 10 * time.Second, Serves: []outbox.Serving{{Route: route, Units: units}}, Handlers: 1, Free: 1}
	r, err := s.Meet(tb.Context(), outbox.Meeting{Self: m, Join: true})
	if err != nil {
		tb.Fatal(err)
	}
	var moves []outbox.Move
	for _, u := range r.Units {
		if u.Unit.Route == route {
			moves = append(moves, outbox.Move{Unit: u.Unit, From: u.Owner, To: self})
		}
	}
	if _, err := s.Meet(tb.Context(), outbox.Meeting{Self: m, Moves: moves}); err != nil {
		tb.Fatal(err)
	}
	return self
}

func all(route string) outbox.Part { return outbox.Part{Route: route, Slots: outbox.AllSlots} }

// read reads a route from its beginning.
func read(tb testing.TB, s *owned.Outbox, self outbox.Session, route string) outbox.Page {
	tb.Helper()
	p, err := s.Read(tb.Context(), self, outbox.Look{Parts: []outbox.Part{all(route)}, Ranges: []outbox.Range{{Part: all(route), To: 1 << 62, Limit: 10_000}}})
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func settleBy(tb testing.TB, s *owned.Outbox, self outbox.Session, outcomes ...outbox.Outcome) core.Results {
	tb.Helper()
	return s.Settle(tb.Context(), self, outcomes)
}

type harness struct {
	pool   *pgxpool.Pool
	store  *owned.Outbox
	second *owned.Outbox
}

var schemas atomic.Int64

func newHarness(tb testing.TB, pool *pgxpool.Pool) *harness {
	tb.Helper()
	opts := owned.Options{Schema: fmt.Sprintf("s%d", schemas.Add(1)), Source: "/test"}
	return &harness{pool, storeOn(tb, pool, opts), storeOn(tb, openPool(tb, pool.Config().ConnString()), opts)}
}

func (h *harness) Store() outbox.Store                          { return h.store }
func (h *harness) Reopen(context.Context) (outbox.Store, error) { return h.second, nil }

func (h *harness) Begin(ctx context.Context) (outboxtest.Tx, error) {
	tx, err := h.pool.Begin(ctx)
	return &testTx{h, tx}, err
}

func (h *harness) sql(text string) string { return owned.SQL(h.store, text) }

func (h *harness) Records(ctx context.Context, route string) ([]outboxtest.Stored, error) {
	rows, err := h.pool.Query(ctx, h.sql(`SELECT id, state, attempts, crashes, reason, last_error FROM {outbox} WHERE route = $1`), route)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[outboxtest.Stored])
}

// Save copies the tables; the database goes back to them, with the number of the sequence.
func (h *harness) Save(ctx context.Context) (func(context.Context) error, error) {
	var save, back strings.Builder
	back.WriteString(h.sql("TRUNCATE {outbox}, {members}, {routes}, {units}, {control}, {meta};\n"))
	n := schemas.Add(1)
	for _, table := range []string{"{outbox}", "{members}", "{routes}", "{units}", "{control}", "{meta}"} {
		var columns string
		err := h.pool.QueryRow(ctx, `SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute
			WHERE attrelid = $1::regclass AND attnum > 0 AND attgenerated = ''`, h.sql(table)).Scan(&columns)
		if err != nil {
			return nil, err
		}
		copied := fmt.Sprintf("saved_%d_%s", n, strings.Trim(table, "{}"))
		fmt.Fprintf(&save, "CREATE TABLE %s AS SELECT %s FROM %s;\n", copied, columns, h.sql(table))
		fmt.Fprintf(&back, "INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM %s;\n", h.sql(table), columns, columns, copied)
	}
	if _, err := h.pool.Exec(ctx, save.String()); err != nil {
		return nil, err
	}
	var last int64
	err := h.pool.QueryRow(ctx, h.sql("SELECT last_value FROM {sequence}")).Scan(&last)
	back.WriteString(h.sql(fmt.Sprintf("SELECT setval({sequence_text}, %d); UPDATE {meta} SET value = value + 1 WHERE name = {epoch};", last)))
	return func(ctx context.Context) error {
		_, err := h.pool.Exec(ctx, back.String())
		return err
	}, err
}

type testTx struct {
	h  *harness
	tx pgx.Tx
}

func (t *testTx) Stage(ctx context.Context, rows ...outboxtest.Row) error {
	of := make([]owned.Row, len(rows))
	for i, r := range rows {
		of[i] = owned.Row(r)
	}
	return t.h.store.StageRows(ctx, t.tx, of...)
}
func (t *testTx) Commit(ctx context.Context) error { return t.tx.Commit(ctx) }
func (t *testTx) Rollback(ctx context.Context) error {
	if err := t.tx.Rollback(ctx); !errors.Is(err, pgx.ErrTxClosed) {
		return err
	}
	return nil
}

func (t *testTx) Lock(ctx context.Context, route, id string) error {
	_, err := t.tx.Exec(ctx, t.h.sql(`SELECT FROM {outbox} WHERE route = $1 AND id = $2 FOR UPDATE`), route, id)
	return err
}

func (t *testTx) Savepoint(ctx context.Context) error {
	_, err := t.tx.Exec(ctx, "SAVEPOINT s")
	return err
}

func (t *testTx) RollbackTo(ctx context.Context) error {
	_, err := t.tx.Exec(ctx, "ROLLBACK TO SAVEPOINT s")
	return err
}

func (t *testTx) Redrive(ctx context.Context, route, id string) error {
	_, err := t.tx.Exec(ctx, t.h.sql(`
WITH r AS (
    UPDATE {outbox} SET settled_at = NULL, due_at = NULL, retry = false, blocks = false, reason = '', state = 1, attempts = 0, crashes = 0, deliveries = 0,
        hold = 0, held_since = NULL, version = version + 1 WHERE route = $1 AND id = $2 RETURNING *
)
INSERT INTO {control} (kind, route, slot, slots, key, id, seq) SELECT 2, route, slot, 1::bigint << slot, key, id, seq FROM r`), route, id)
	return err
}

func TestConformance(t *testing.T) {
	t.Parallel()
	pool := openPool(t, testenv.Postgres(t).DSN)
	h := newHarness(t, pool)
	outboxtest.Run(t, func(*testing.T) outboxtest.Harness { return h })
}
