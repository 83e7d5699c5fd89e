package waybillmysql_test

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"testing"

	"github.com/waybill-go/waybill"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/inboxtest"
	"github.com/waybill-go/waybill/core/outboxtest"
	"github.com/waybill-go/waybill/core/storetest"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/tier"
)

// harness is the harness of the suites, around two stores on one database, as two processes have it.
type harness struct {
	store, second *waybillmysql.Store
	dsn           string
	level         sql.IsolationLevel
}

// newHarness opens the stores by Open; with READ COMMITTED by New, on a plain pool that prepares its statements.
func newHarness(t *testing.T, level sql.IsolationLevel) *harness {
	t.Helper()
	dsn := newDatabase(t, func(database string) string { return dsnOf(t, database) })
	h := &harness{openAt(t, dsn, waybillmysql.Options{}), openAt(t, dsn, waybillmysql.Options{}), dsn, level}
	if level == sql.LevelReadCommitted {
		for _, s := range []**waybillmysql.Store{&h.store, &h.second} {
			db, err := sql.Open("mysql", dsn)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			if *s, err = waybillmysql.New(db, waybillmysql.Options{Source: "/test"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := h.store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *harness) Store() core.OutboxStore                          { return h.store }
func (h *harness) Reopen(context.Context) (core.OutboxStore, error) { return h.second, nil }

func (h *harness) begin(ctx context.Context) (*testTx, error) {
	tx, err := h.store.DB().BeginTx(ctx, &sql.TxOptions{Isolation: h.level})
	return &testTx{sharedtest.SQLTx{Tx: tx}, h.store}, err
}

func (h *harness) Begin(ctx context.Context) (outboxtest.Tx, error) { return h.begin(ctx) }

func (h *harness) Records(ctx context.Context, route string) (out []outboxtest.Stored, err error) {
	rows, err := h.store.DB().QueryContext(ctx, `SELECT id, IF(state = 6, 5, state), attempts, crashes, reason, error FROM waybill_outbox WHERE route = ?`, route)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r outboxtest.Stored
		if err := rows.Scan(&r.ID, &r.State, &r.Attempts, &r.Crashes, &r.Reason, &r.LastError); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

var tables = []string{
	"waybill_outbox", "waybill_outbox_members", "waybill_outbox_fence", "waybill_outbox_partitions", "waybill_outbox_routes",
	"waybill_outbox_notices", "waybill_outbox_aside", "waybill_outbox_dedupe", "waybill_meta",
}

// Save copies the tables; the database goes back to the copies, its sequence too, and the epoch is raised.
func (h *harness) Save(ctx context.Context) (func(context.Context) error, error) {
	db := h.store.DB()
	var next int64
	if err := db.QueryRowContext(ctx, `SELECT AUTO_INCREMENT FROM information_schema.TABLES
		WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'waybill_outbox'`).Scan(&next); err != nil {
		return nil, err
	}
	for _, table := range tables {
		for _, text := range []string{"DROP TABLE IF EXISTS saved_" + table, "CREATE TABLE saved_" + table + " AS SELECT * FROM " + table} {
			if _, err := db.ExecContext(ctx, text); err != nil {
				return nil, err
			}
		}
	}
	return func(ctx context.Context) error {
		for _, table := range tables {
			for _, text := range []string{"DELETE FROM " + table, "INSERT INTO " + table + " SELECT * FROM saved_" + table} {
				if _, err := db.ExecContext(ctx, text); err != nil {
					return err
				}
			}
		}
		if _, err := db.ExecContext(ctx, `UPDATE waybill_meta SET value = value + 1 WHERE name = 'epoch'`); err != nil {
			return err
		}
		_, err := db.ExecContext(ctx, "ALTER TABLE waybill_outbox AUTO_INCREMENT = "+strconv.FormatInt(next, 10))
		return err
	}, nil
}

type testTx struct {
	sharedtest.SQLTx
	store *waybillmysql.Store
}

func (x *testTx) Stage(ctx context.Context, rows ...core.StagedRow) error {
	_, err := x.store.StageRows(ctx, x.Tx, rows...)
	return err
}

func (x *testTx) Lock(ctx context.Context, route, id string) error {
	var seq int64
	return x.QueryRowContext(ctx, `SELECT seq FROM waybill_outbox WHERE route = ? AND id = ? FOR UPDATE`, route, id).Scan(&seq)
}

func (x *testTx) Redrive(ctx context.Context, route, id string) error {
	return x.store.RequeueIn(ctx, x.Tx, route, id)
}

// workers is how many checks of a suite run side by side, each worker on a database of its own.
const workers = 4

// ST-01 ST-02 DB-01 DB-02 DB-03 DB-04 DB-05 DB-16 DB-18 OR-02 OR-08 DB-26
func TestOutbox(t *testing.T) {
	t.Parallel()
	for name, level := range map[string]sql.IsolationLevel{"repeatable read": sql.LevelDefault, "read committed": sql.LevelReadCommitted} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if level != sql.LevelDefault {
				tier.Nightly(t, "repeats the suite with another isolation: 20 s")
			}
			var harnesses []func(*testing.T) outboxtest.Harness
			for range workers {
				h := newHarness(t, level)
				harnesses = append(harnesses, func(*testing.T) outboxtest.Harness { return h })
			}
			outboxtest.RunSpread(t, harnesses...)
		})
	}
}

// suiteHarness is the harness of core/storetest.
type suiteHarness struct{ *harness }

func (h suiteHarness) Begin(ctx context.Context) (storetest.Tx, error) {
	x, err := h.begin(ctx)
	return suiteTx{x}, err
}

func (h suiteHarness) Corrupt(ctx context.Context, route string, seq int64) error {
	_, err := h.store.DB().ExecContext(ctx, `UPDATE waybill_outbox SET attrs = '{"a":' WHERE route = ? AND seq = ?`, route, seq)
	return err
}

// WithRetention makes the harness a storetest.Retainer.
func (h suiteHarness) WithRetention(_ context.Context, r waybill.Retention) (storetest.Harness, error) {
	s, err := waybillmysql.New(h.store.DB(), waybillmysql.Options{Source: "/test", Retention: r})
	return suiteHarness{&harness{s, s, h.dsn, h.level}}, err
}

type suiteTx struct{ *testTx }

func (x suiteTx) Stage(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error) {
	return x.store.Stage(ctx, x.Tx, msgs...)
}

func (x suiteTx) Cancel(ctx context.Context, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error) {
	return x.store.Cancel(ctx, x.Tx, keys...)
}

// ST-01 ST-05 ST-07 ST-09 ST-12 ST-15 DB-11 DB-12 DB-26 TE-11
func TestStore(t *testing.T) {
	t.Parallel()
	for name, level := range map[string]sql.IsolationLevel{"repeatable read": sql.LevelDefault, "read committed": sql.LevelReadCommitted} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if level != sql.LevelDefault {
				tier.Nightly(t, "repeats the suite with another isolation: 15 s")
			}
			var harnesses []func(*testing.T) storetest.Harness
			for range workers {
				h := suiteHarness{newHarness(t, level)}
				harnesses = append(harnesses, func(*testing.T) storetest.Harness { return h })
			}
			storetest.RunSpread(t, harnesses...)
		})
	}
}

// inboxHarness is the harness of core/inboxtest.
type inboxHarness struct{ store *waybillmysql.Store }

func newInboxHarness(tb testing.TB) inboxHarness {
	tb.Helper()
	s := open(tb, waybillmysql.Options{})
	for _, text := range []string{
		`CREATE TABLE effects (n BIGINT AUTO_INCREMENT PRIMARY KEY, name VARBINARY(300) NOT NULL, KEY (name))`,
	} {
		if _, err := s.DB().Exec(text); err != nil {
			tb.Fatal(err)
		}
	}
	return inboxHarness{s}
}

func (h inboxHarness) Inbox() core.Inbox[*sql.Tx] { return h.store }

func (h inboxHarness) Effect(ctx context.Context, tx *sql.Tx, name string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (name) VALUES (?)`, name)
	return err
}

func (h inboxHarness) Effects(ctx context.Context, name string) (n int, err error) {
	return n, h.store.DB().QueryRowContext(ctx, `SELECT COUNT(*) FROM effects WHERE name = ?`, name).Scan(&n)
}

// Break ends the transaction as a deadlock does. TestSwallowedDeadlock has a real one.
func (h inboxHarness) Break(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, `ROLLBACK`); err != nil {
		return err
	}
	return errors.New("the transaction was rolled back")
}

// IN-01 IN-02 DB-26
func TestInbox(t *testing.T) {
	t.Parallel()
	h := newInboxHarness(t)
	inboxtest.Run(t, func(*testing.T) inboxtest.Harness[*sql.Tx] { return h })
}
