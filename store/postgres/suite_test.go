package postgres_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/storetest"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres"
)

// suite is the harness of the suite for applications and operators.
type suite struct {
	pool  *pgxpool.Pool
	store *postgres.Outbox
	db    *sql.DB // not nil: stages through database/sql
}

func (h *suite) Store() core.OutboxStore { return h.store }

func (h *suite) Begin(ctx context.Context) (storetest.Tx, error) {
	if h.db != nil {
		tx, err := h.db.BeginTx(ctx, nil)
		return &sqlTx{sharedtest.SQLTx{Tx: tx}, h.store.SQL()}, err
	}
	tx, err := h.pool.Begin(ctx)
	return &pgxTx{testTx{tx: tx}, h.store}, err
}

func (h *suite) Corrupt(ctx context.Context, route string, seq int64) error {
	_, err := h.pool.Exec(ctx, `UPDATE waybill.waybill_outbox SET attrs = '"not an object"' WHERE route = $1 AND seq = $2`, route, seq)
	return err
}

func (h *suite) Records(ctx context.Context, route string) ([]storetest.StoredRecord, error) {
	return (&harness{pool: h.pool, store: h.store}).Records(ctx, route)
}

// WithRetention makes the harness a storetest.Retainer.
func (h *suite) WithRetention(_ context.Context, r waybill.Retention) (storetest.Harness, error) {
	o, err := postgres.NewOutbox(h.pool, postgres.Options{Source: "/test", Retention: r})
	return &suite{h.pool, o, h.db}, err
}

type pgxTx struct {
	testTx
	outbox *postgres.Outbox
}

func (t *pgxTx) Stage(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error) {
	return t.outbox.Stage(ctx, t.tx, msgs...)
}

func (t *pgxTx) Cancel(ctx context.Context, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error) {
	return t.outbox.Cancel(ctx, t.tx, keys...)
}

type sqlTx struct {
	sharedtest.SQLTx
	stager waybill.Stager[*sql.Tx]
}

func (t *sqlTx) Stage(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error) {
	return t.stager.Stage(ctx, t.Tx, msgs...)
}

func (t *sqlTx) Cancel(ctx context.Context, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error) {
	c, ok := core.As[waybill.Canceller[*sql.Tx]](t.stager)
	if !ok {
		return nil, waybill.ErrUnsupported
	}
	return c.Cancel(ctx, t.Tx, keys...)
}

// workers is how many checks of the suite run side by side, each worker on a database of its own.
const workers = 4

// idFirst refuses a notice whose transaction has no id when the number is drawn: readers, and the floor of the notices,
// tell by ids which numbers they cannot see yet.
const idFirst = `
CREATE FUNCTION id_first() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF pg_current_xact_id_if_assigned() IS NULL THEN RAISE EXCEPTION 'notice % is numbered before its transaction has an id', NEW.number; END IF;
    RETURN NEW; END $$;
CREATE TRIGGER id_first BEFORE INSERT ON waybill.waybill_outbox_notices FOR EACH ROW EXECUTE FUNCTION id_first()`

// ST-01 ST-02 ST-05 ST-07 ST-12 DB-01 DB-02 DB-03 DB-04 DB-05 DB-18 OR-02 OR-03 OR-08 TE-11, as far as a
// store keeps them.
func TestSuite(t *testing.T) {
	t.Parallel()
	var harnesses []func(*testing.T) storetest.Harness
	for range workers {
		o, pool := newOutbox(t, postgres.Options{})
		exec(t, pool, idFirst)
		harnesses = append(harnesses, func(*testing.T) storetest.Harness { return &suite{pool, o, nil} })
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
func TestSuiteSQL(t *testing.T) {
	tier.Nightly(t, "repeats TestSuite in a database that sorts as a language does: 30 s")
	t.Parallel()
	var harnesses []func(*testing.T) storetest.Harness
	for range workers {
		pool := newLanguagePool(t)
		o := outboxOn(t, pool, postgres.Options{})
		db := stdlib.OpenDBFromPool(pool)
		t.Cleanup(func() { _ = db.Close() })
		harnesses = append(harnesses, func(*testing.T) storetest.Harness { return &suite{pool, o, db} })
	}
	storetest.RunSpread(t, harnesses...)
}
