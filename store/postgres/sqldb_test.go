package postgres_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/inboxtest"
	"github.com/waybill-go/waybill/core/outboxtest"
	"github.com/waybill-go/waybill/core/storetest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

// openDB opens a *sql.DB with pgx's driver and at most so many connections.
func openDB(tb testing.TB, dsn string, conns int) *sql.DB {
	tb.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	db := stdlib.OpenDB(*cfg)
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

// sqlOutboxOn returns a migrated outbox over db.
func sqlOutboxOn(tb testing.TB, db *sql.DB, opts postgres.Options) *postgres.Outbox {
	tb.Helper()
	opts.Source = "/test"
	o, err := postgres.NewSQLOutbox(db, opts)
	if err != nil {
		tb.Fatal(err)
	}
	return started(tb, o)
}

// DB-14: the suite for engines, over a *sql.DB.
func TestConformanceSQLDB(t *testing.T) {
	tier.Nightly(t, "repeats TestConformance over database/sql: 25 s")
	t.Parallel()
	pool := newPool(t)
	dsn := pool.Config().ConnString()
	opts := postgres.Options{Schema: fmt.Sprintf("s%d", schemas.Add(1)), Source: "/test"}
	h := &harness{pool, sqlOutboxOn(t, openDB(t, dsn, 10), opts), sqlOutboxOn(t, openDB(t, dsn, 10), opts)}
	outboxtest.Run(t, func(*testing.T) outboxtest.Harness { return h })
}

// sqlSuite is suite over a *sql.DB alone.
type sqlSuite struct{ suite }

func (h *sqlSuite) WithRetention(_ context.Context, r waybill.Retention) (storetest.Harness, error) {
	o, err := postgres.NewSQLOutbox(h.db, postgres.Options{Source: "/test", Retention: r})
	return &sqlSuite{suite{h.pool, o, h.db}}, err
}

// DB-14: the suite for applications and operators, over a *sql.DB.
func TestSuiteSQLDB(t *testing.T) {
	tier.Nightly(t, "repeats TestSuite over database/sql: 30 s")
	t.Parallel()
	var harnesses []func(*testing.T) storetest.Harness
	for range workers {
		pool := newPool(t)
		db := openDB(t, pool.Config().ConnString(), 20)
		o := sqlOutboxOn(t, db, postgres.Options{})
		harnesses = append(harnesses, func(*testing.T) storetest.Harness { return &sqlSuite{suite{pool, o, db}} })
	}
	storetest.RunSpread(t, harnesses...)
}

// DB-14: an inbox that has a *sql.DB alone, and migrates with it.
func TestInboxConformanceSQLDB(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	db := openDB(t, pool.Config().ConnString(), 10)
	in, err := postgres.NewSQLInbox(db, postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diffs, err := in.Drift(t.Context()); err != nil || diffs != nil {
		t.Errorf("drift after migrating: %v %v", diffs, err)
	}
	exec(t, pool, `ALTER TABLE waybill.waybill_inbox ALTER handled_at DROP NOT NULL`)
	if diffs, err := in.Drift(t.Context()); err != nil || len(diffs) != 1 {
		t.Errorf("drift after a change: %v %v", diffs, err)
	}
	exec(t, pool, `CREATE TABLE effects (name text NOT NULL)`)
	inboxtest.Run(t, func(*testing.T) inboxtest.Harness[*sql.Tx] { return &sqlInboxHarness{inboxHarness{pool, nil}, in, db} })
	if n := db.Stats().InUse; n != 0 {
		t.Errorf("%d connections were kept", n)
	}
}

// DB-06 DB-14
func TestMigrationsOverSQLDB(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	fromPool := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = fromPool.Close() })
	for name, db := range map[string]*sql.DB{"one connection": openDB(t, pool.Config().ConnString(), 1), "from a pool": fromPool} {
		m, over := newMigrations(t, postgres.MigrationOptions{Schema: name}), postgres.SQLDB(db)
		for range 2 {
			if err := m.Up(t.Context(), over); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		applied, err := m.Applied(t.Context(), over)
		if err != nil || fmt.Sprint(applied) != "map[base:1 inbox:4 outbox:2]" {
			t.Errorf("%s: applied %v %v", name, applied, err)
		}
		if diffs, err := m.Drift(t.Context(), over); err != nil || diffs != nil {
			t.Errorf("%s: drift %v %v", name, diffs, err)
		}
		if err := m.Down(t.Context(), over, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n := db.Stats().InUse; n != 0 {
			t.Errorf("%s: %d connections were kept", name, n)
		}
	}
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections of the pool were kept", n)
	}
}

// DB-10 DB-14: a relay over a *sql.DB is notified and shows that it is there, with connections of that pool, and gives
// them back.
func TestWaitOverSQLDB(t *testing.T) {
	t.Parallel()
	db := openDB(t, testenv.Postgres(t).DSN, 4)
	o := sqlOutboxOn(t, db, postgres.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	token, lost, err := o.Acquire(ctx)
	if err != nil || token == 0 {
		t.Fatalf("token %d: %v", token, err)
	}
	if n := db.Stats().InUse; n != 1 {
		t.Errorf("%d connections are in use by the presence, want 1", n)
	}
	wakes(t, o, core.WakeNotify, func() {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := o.SQL().Stage(t.Context(), tx, message()); err != nil {
			t.Error(err)
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
	})
	if n := db.Stats().InUse; n != 2 {
		t.Errorf("%d connections are in use by presence and LISTEN, want 2", n)
	}
	cancel()
	<-lost
	if err := o.Close(t.Context()); err != nil {
		t.Error(err)
	}
	patience.Until(t, "the connections are given back", func() bool { return db.Stats().InUse == 0 })
}

// DB-14: a relay that runs over a *sql.DB of four connections publishes what is staged in its transactions, and gives
// all of them back.
func TestRelayOverSQLDB(t *testing.T) {
	t.Parallel()
	db := openDB(t, testenv.Postgres(t).DSN, 4)
	o := sqlOutboxOn(t, db, postgres.Options{})
	bus := &sharedtest.Publisher{}
	r, err := relay.New(o, bus, relay.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- r.Run(ctx) }()
	const total = 40
	for n := range total {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.SQL().Stage(t.Context(), tx, message(waybill.Key(strconv.Itoa(n%3)))); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	patience.Moving(t, "everything is published", func() (int, bool) { n := bus.Count(); return n, n >= total })
	cancel()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if err := o.Close(t.Context()); err != nil {
		t.Error(err)
	}
	patience.Until(t, "the connections are given back", func() bool { return db.Stats().InUse == 0 })
}

// DB-14: the unit of work works over a *sql.DB too, and leaves no transaction behind.
func TestUnitOfWorkOverSQLDB(t *testing.T) {
	t.Parallel()
	db := openDB(t, testenv.Postgres(t).DSN, 1)
	o := sqlOutboxOn(t, db, postgres.Options{})
	unit := o.UnitOfWork()
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE shops (name text)"); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	do := func(fail error) error {
		return unit.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO shops VALUES ($1)", "a shop"); err != nil {
				return err
			}
			return errors.Join(unit.Stage(ctx, message()), fail)
		})
	}
	if err := do(nil); err != nil {
		t.Fatal(err)
	}
	if err := do(boom); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = unit.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO shops VALUES ($1)", "a shop"); err != nil {
				return err
			}
			panic("boom")
		})
	}()
	var shops, staged int
	err := db.QueryRowContext(t.Context(), "SELECT (SELECT count(*) FROM shops), (SELECT count(*) FROM waybill.waybill_outbox)").Scan(&shops, &staged)
	if err != nil || shops != 1 || staged != 1 {
		t.Errorf("%d shops, %d messages: %v", shops, staged, err)
	}
	if n := db.Stats().InUse; n != 0 {
		t.Errorf("%d connections were kept", n)
	}
}

// otherDriver is a driver that is not pgx's.
type otherDriver struct{}

func (otherDriver) Connect(context.Context) (driver.Conn, error) { return otherConn{}, nil }
func (otherDriver) Driver() driver.Driver                        { return nil }

type otherConn struct{}

func (otherConn) Prepare(string) (driver.Stmt, error) { return nil, errors.New("not here") }
func (otherConn) Close() error                        { return nil }
func (otherConn) Begin() (driver.Tx, error)           { return nil, errors.New("not here") }

// DB-14: a *sql.DB of another driver is named with what to do.
func TestSQLDBOfAnotherDriver(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(otherDriver{})
	t.Cleanup(func() { _ = db.Close() })
	o, err := postgres.NewSQLOutbox(db, postgres.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	in, err := postgres.NewSQLInbox(db, postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, _, acquire := o.Acquire(t.Context())
	for name, err := range map[string]error{
		"check": o.Check(t.Context()), "migrate": o.Migrate(t.Context()), "inbox": in.Migrate(t.Context()), "acquire": acquire,
		"unit of work": o.UnitOfWork().Do(t.Context(), func(context.Context, pgx.Tx) error { return nil }),
	} {
		if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "otherConn: open it with pgx's driver") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := db.Stats().InUse; n != 0 {
		t.Errorf("%d connections were kept", n)
	}
}

func TestNewSQLOutboxChecks(t *testing.T) {
	t.Parallel()
	db := openDB(t, "postgres://nobody@localhost/nothing", 1) // it does not connect
	for name, tc := range map[string]struct {
		db   *sql.DB
		opts postgres.Options
		says string
	}{
		"no db":       {nil, postgres.Options{Source: "/test"}, "db: is nil"},
		"no source":   {db, postgres.Options{}, "Source: is empty"},
		"automigrate": {db, postgres.Options{Source: "/test", AutoMigrate: true}, "call Migrate"},
	} {
		if _, err := postgres.NewSQLOutbox(tc.db, tc.opts); !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
