package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/inboxtest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres"
)

func newInbox(tb testing.TB, opts postgres.InboxOptions) (*postgres.Inbox, *pgxpool.Pool) {
	tb.Helper()
	pool := newPool(tb)
	in, err := postgres.NewInbox(pool, opts)
	if err != nil {
		tb.Fatal(err)
	}
	if err := in.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	exec(tb, pool, `CREATE TABLE effects (name text NOT NULL)`)
	return in, pool
}

type inboxHarness struct {
	pool  *pgxpool.Pool
	inbox *postgres.Inbox
}

func (h *inboxHarness) Inbox() core.Inbox[pgx.Tx] { return h.inbox }

func (h *inboxHarness) Effect(ctx context.Context, tx pgx.Tx, name string) error {
	_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, name)
	return err
}

func (h *inboxHarness) Effects(ctx context.Context, name string) (n int, err error) {
	return n, h.pool.QueryRow(ctx, `SELECT count(*) FROM effects WHERE name = $1`, name).Scan(&n)
}

func (h *inboxHarness) Break(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `INSERT INTO effects VALUES (NULL)`)
	return err
}

func (h *inboxHarness) Begin(ctx context.Context) (pgx.Tx, func(context.Context, bool) error, error) {
	tx, err := h.pool.Begin(ctx)
	return tx, func(ctx context.Context, commit bool) error {
		if commit {
			return tx.Commit(ctx)
		}
		return tx.Rollback(ctx)
	}, err
}

type sqlInboxHarness struct {
	inboxHarness
	inbox *postgres.SQLInbox
	db    *sql.DB
}

func (h *sqlInboxHarness) Begin(ctx context.Context) (*sql.Tx, func(context.Context, bool) error, error) {
	tx, err := h.db.BeginTx(ctx, nil)
	return tx, func(_ context.Context, commit bool) error {
		if commit {
			return tx.Commit()
		}
		return tx.Rollback()
	}, err
}

func (h *sqlInboxHarness) Inbox() core.Inbox[*sql.Tx] { return h.inbox }

func (h *sqlInboxHarness) Effect(ctx context.Context, tx *sql.Tx, name string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, name)
	return err
}

func (h *sqlInboxHarness) Break(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES (NULL)`)
	return err
}

// IN-05 IN-08 IN-09
func TestInboxConformance(t *testing.T) {
	t.Parallel()
	in, pool := newInbox(t, postgres.InboxOptions{})
	inboxtest.Run(t, func(*testing.T) inboxtest.Harness[pgx.Tx] { return &inboxHarness{pool, in} })
}

// DB-14
func TestInboxConformanceSQL(t *testing.T) {
	t.Parallel()
	_, pool := newInbox(t, postgres.InboxOptions{})
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	in, err := postgres.NewSQLInbox(db, postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	inboxtest.Run(t, func(*testing.T) inboxtest.Harness[*sql.Tx] { return &sqlInboxHarness{inboxHarness{pool, nil}, in, db} })
}

func key(id string) core.InboxKey { return core.InboxKey{Consumer: "c", Source: "/s", ID: id} }

func TestInboxKeysAreChecked(t *testing.T) {
	t.Parallel()
	in, _ := newInbox(t, postgres.InboxOptions{})
	for _, k := range []core.InboxKey{{}, {Consumer: "c", Source: "s"}, {Consumer: "c", Source: "s", ID: strings.Repeat("x", 256)}, {Consumer: "c", Source: "s", ID: "\xff"}} {
		if _, err := in.Do(t.Context(), k, nil); !errors.Is(err, waybill.ErrInvalid) {
			t.Errorf("%v", err)
		}
	}
}

// A concurrent Do waits no longer than the lock timeout, and the handler's own statements are not bound by it.
func TestInboxLockTimeout(t *testing.T) {
	t.Parallel()
	in, _ := newInbox(t, postgres.InboxOptions{LockTimeout: 50 * time.Millisecond})
	started, release, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		_, err := in.Do(t.Context(), key("1"), func(ctx context.Context, tx pgx.Tx) error {
			var timeout string
			if err := tx.QueryRow(ctx, `SHOW lock_timeout`).Scan(&timeout); err != nil || timeout != "0" {
				return fmt.Errorf("the handler's lock timeout is %s: %w", timeout, err)
			}
			close(started)
			<-release
			return nil
		})
		done <- err
	}()
	<-started
	status, err := in.Do(t.Context(), key("1"), func(context.Context, pgx.Tx) error { return errors.New("must not run") })
	if status != core.InboxNone || waybill.ClassOf(err) != waybill.ClassRejected {
		t.Errorf("%v %v", status, err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if status, err := in.Do(t.Context(), key("1"), nil); status != core.InboxDuplicate || err != nil {
		t.Errorf("%v %v", status, err)
	}
}

// A transaction that the database sacrificed is run again from the start.
func TestInboxRunsAgain(t *testing.T) {
	t.Parallel()
	in, pool := newInbox(t, postgres.InboxOptions{})
	for _, code := range []string{"40001", "40P01"} {
		runs := 0
		status, err := in.Do(t.Context(), key(code), func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, code); err != nil {
				return err
			}
			if runs++; runs < 3 {
				_, err := tx.Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'sacrificed' USING ERRCODE = '`+code+`'; END $$`)
				return fmt.Errorf("step: %w", err)
			}
			return nil
		})
		if status != core.InboxNew || err != nil || runs != 3 {
			t.Errorf("%v %v after %d runs", status, err, runs)
		}
		if n := queryInt(t, pool, `SELECT count(*) FROM effects WHERE name = $1`, code); n != 1 {
			t.Errorf("%d effects", n)
		}
	}
}

// A connection that is lost in the handler or in the commit is an outage, and the message has at most one effect.
func TestInboxConnectionLost(t *testing.T) {
	t.Parallel()
	in, pool := newInbox(t, postgres.InboxOptions{})
	_, err := in.Do(t.Context(), key("1"), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO effects VALUES ('lost')`); err != nil {
			return err
		}
		exec(t, pool, `SELECT pg_terminate_backend($1)`, int64(tx.Conn().PgConn().PID()))
		return nil
	})
	if waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("lost before the commit: %v", err)
	}
	_, err = in.Do(t.Context(), key("1"), func(ctx context.Context, tx pgx.Tx) error {
		exec(t, pool, `SELECT pg_terminate_backend($1)`, int64(tx.Conn().PgConn().PID()))
		_, err := tx.Exec(ctx, `SELECT 1`)
		return fmt.Errorf("step: %w", err)
	})
	if waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("lost in the handler: %v", err)
	}
	if n := queryInt(t, pool, `SELECT count(*) FROM effects`); n != 0 {
		t.Fatalf("%d effects", n)
	}
	if status, err := in.Do(t.Context(), key("1"), func(context.Context, pgx.Tx) error { return nil }); status != core.InboxNew || err != nil {
		t.Fatalf("%v %v", status, err)
	}
}

// A server that stops answering keeps a failed handler's worker for a bounded time.
func TestInboxRollbackEnds(t *testing.T) {
	tier.Nightly(t, "waits for the 5 s that a rollback may take")
	t.Parallel()
	pg := testenv.Postgres(t)
	direct := openPool(t, pg.DSN)
	proxy := testenv.NewProxy(t, fmt.Sprintf("%s:%d", direct.Config().ConnConfig.Host, direct.Config().ConnConfig.Port))
	in, err := postgres.NewInbox(openPool(t, proxy.URL(pg.DSN)), postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	done := make(chan error, 1)
	go func() {
		_, err := in.Do(t.Context(), key("1"), func(context.Context, pgx.Tx) error {
			proxy.Blackhole(testenv.Up | testenv.Down)
			return boom
		})
		done <- err
	}()
	patience.Until(t, "the rollback ends", func() bool { return len(done) > 0 })
	if err := <-done; !errors.Is(err, boom) {
		t.Error(err)
	}
	proxy.Heal()
}

func TestInboxPanic(t *testing.T) {
	t.Parallel()
	in, pool := newInbox(t, postgres.InboxOptions{})
	func() {
		defer func() {
			if p := recover(); p != "boom" {
				t.Errorf("recovered %v", p)
			}
		}()
		_, _ = in.Do(t.Context(), key("1"), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ('panic')`)
			if err != nil {
				return err
			}
			panic("boom")
		})
	}()
	if n := queryInt(t, pool, `SELECT (SELECT count(*) FROM effects) + (SELECT count(*) FROM waybill.waybill_inbox)`); n != 0 {
		t.Fatalf("%d rows", n)
	}
	if pool.Stat().AcquiredConns() != 0 {
		t.Fatal("the connection was kept")
	}
}
