package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/inboxtest"
	"github.com/waybill-go/waybill/core/storetest"
)

type harness struct{ store *Store }

func (h harness) Store() core.OutboxStore { return h.store }

func (h harness) Begin(ctx context.Context) (storetest.Tx, error) {
	tx, err := h.store.DB().BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	return storeTx{h.store, tx}, nil
}

func (h harness) Records(ctx context.Context, route string) ([]storetest.StoredRecord, error) {
	rows, err := h.store.DB().QueryContext(ctx,
		`SELECT id, state, attempts, crashes, coalesce(reason, ''), coalesce(error, '') FROM waybill_outbox WHERE route = ?`, route)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []storetest.StoredRecord
	for rows.Next() {
		var r storetest.StoredRecord
		if err := rows.Scan(&r.ID, &r.State, &r.Attempts, &r.Crashes, &r.Reason, &r.LastError); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

func (h harness) Corrupt(ctx context.Context, route string, seq int64) error {
	_, err := h.store.DB().ExecContext(ctx, `UPDATE waybill_outbox SET attrs = '{"a":' WHERE route = ? AND seq = ?`, route, seq)
	return err
}

type storeTx struct {
	store *Store
	tx    *sql.Tx
}

func (x storeTx) Stage(ctx context.Context, msgs ...core.Message) ([]core.Staged, error) {
	return x.store.Stage(ctx, x.tx, msgs...)
}

func (x storeTx) Cancel(ctx context.Context, keys ...core.CancelKey) ([]core.CancelStatus, error) {
	return x.store.Cancel(ctx, x.tx, keys...)
}
func (x storeTx) Commit(context.Context) error { return x.tx.Commit() }

func (x storeTx) Rollback(context.Context) error {
	if err := x.tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

// workers is how many checks of a suite run side by side, each worker on a database of its own.
const workers = 3

// ST-01 ST-02 ST-05 ST-07 ST-15 DB-01 DB-02 DB-03 DB-04 DB-05 DB-10 DB-16 DB-18 OR-02 OR-08
func TestStore(t *testing.T) {
	t.Parallel()
	var harnesses []func(*testing.T) storetest.Harness
	for range workers {
		s := open(t, Options{})
		harnesses = append(harnesses, func(*testing.T) storetest.Harness { return harness{s} })
	}
	storetest.RunSpread(t, harnesses...)
}

// DB-13: the same on a database of the application's own, with deferred transactions and a rollback journal; it does not
// wait for the disk, which the other one does.
func TestStoreOnOwnDatabase(t *testing.T) {
	t.Parallel()
	var harnesses []func(*testing.T) storetest.Harness
	for range workers {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "own.db")+"?_pragma=busy_timeout(5000)&_pragma=synchronous(OFF)")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		s, err := New(db, Options{Source: "/own", AutoMigrate: true, Prefix: "own_"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		harnesses = append(harnesses, func(*testing.T) storetest.Harness { return prefixed{harness{s}} })
	}
	storetest.RunSpread(t, harnesses...)
}

// prefixed hides what harness reads by table name.
type prefixed struct{ storetest.Harness }

type inboxHarness struct{ store *Store }

func newInboxHarness(tb testing.TB) inboxHarness {
	tb.Helper()
	s := open(tb, Options{})
	if _, err := s.DB().ExecContext(tb.Context(), "CREATE TABLE effects (name TEXT NOT NULL)"); err != nil {
		tb.Fatal(err)
	}
	return inboxHarness{s}
}

func (h inboxHarness) Inbox() core.Inbox[*sql.Tx] { return h.store }

func (h inboxHarness) Effect(ctx context.Context, tx *sql.Tx, name string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?)", name)
	return err
}

func (h inboxHarness) Effects(ctx context.Context, name string) (n int, err error) {
	err = h.store.DB().QueryRowContext(ctx, "SELECT count(*) FROM effects WHERE name = ?", name).Scan(&n)
	return n, err
}

// Break runs a statement that makes SQLite roll the transaction back. After others, such as a plain violated constraint,
// a transaction goes on and commits the rest, which is SQLite's own way.
func (h inboxHarness) Break(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, "INSERT OR ROLLBACK INTO effects VALUES (NULL)")
	return err
}

func (h inboxHarness) Begin(ctx context.Context) (*sql.Tx, func(context.Context, bool) error, error) {
	tx, err := h.store.DB().BeginTx(ctx, nil)
	return tx, func(_ context.Context, commit bool) error {
		if commit {
			return tx.Commit()
		}
		return tx.Rollback()
	}, err
}

// IN-01 IN-02 IN-03 IN-04 IN-05 IN-07 IN-08 IN-09
func TestInbox(t *testing.T) {
	t.Parallel()
	h := newInboxHarness(t)
	inboxtest.Run(t, func(*testing.T) inboxtest.Harness[*sql.Tx] { return h })
}
