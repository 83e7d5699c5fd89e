package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

type harness struct {
	pool   *pgxpool.Pool
	store  *postgres.Outbox
	second *postgres.Outbox
}

var schemas atomic.Int64

func newHarness(tb testing.TB, pool *pgxpool.Pool) *harness {
	tb.Helper()
	opts := postgres.Options{Schema: fmt.Sprintf("s%d", schemas.Add(1)), Source: "/test"}
	return &harness{pool, outboxOn(tb, pool, opts), outboxOn(tb, openPool(tb, pool.Config().ConnString()), opts)}
}

func (h *harness) Store() core.OutboxStore                          { return h.store }
func (h *harness) Reopen(context.Context) (core.OutboxStore, error) { return h.second, nil }

func (h *harness) Begin(ctx context.Context) (outboxtest.Tx, error) {
	tx, err := h.pool.Begin(ctx)
	return &testTx{h, tx}, err
}

func (h *harness) sql(text string) string { return postgres.SQL(h.store, text) }

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
	back.WriteString(h.sql("TRUNCATE {outbox}, {members}, {routes}, {partitions}, {notices}, {meta};\n"))
	n := schemas.Add(1)
	for _, table := range []string{"{outbox}", "{members}", "{routes}", "{partitions}", "{notices}", "{meta}"} {
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

func (t *testTx) Stage(ctx context.Context, rows ...core.StagedRow) error {
	return t.h.store.StageRows(ctx, t.tx, rows...)
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
INSERT INTO {notices} (kind, route, slot, slots, key, id, seq) SELECT 2, route, slot, 1::bigint << slot, key, id, seq FROM r`), route, id)
	return err
}

func (t *testTx) Tell(ctx context.Context, c core.Notice) error {
	slots := int64(1) << c.Slot
	if c.Kind == core.NoticeReread {
		slots = -1
	}
	_, err := t.tx.Exec(ctx, t.h.sql(`INSERT INTO {notices} (kind, route, slot, slots, key, id, seq, reason) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`),
		int16(c.Kind), c.Route, int16(c.Slot), slots, c.Key, c.ID, c.Seq, string(c.Reason))
	return err
}

func TestConformance(t *testing.T) {
	t.Parallel()
	pool := openPool(t, testenv.Postgres(t).DSN)
	h := newHarness(t, pool)
	outboxtest.Run(t, func(*testing.T) outboxtest.Harness { return h })
}
