//go:build !race

package costs_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// calm are the settings under which two runs write the same log: entries of a checkpoint, a worker or a crash are off.
var calm = map[string]string{
	"autovacuum": "off", "full_page_writes": "off", "fsync": "off", "waybill.allow_unsafe_settings": "on", "checkpoint_timeout": "1h", "max_wal_size": "4GB",
	"wal_level": "replica", "jit": "off",
}

// TestPostgres: the statements that Waybill sends to Postgres, and the bytes that Postgres logs. Not parallel:
// allocations are those of the process.
func TestPostgres(t *testing.T) {
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{Settings: calm})
	side, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	must(t, err)
	defer side.Close(context.WithoutCancel(t.Context()))
	_, err = side.Exec(t.Context(), "CREATE DATABASE app")
	must(t, err)
	var version string
	must(t, side.QueryRow(t.Context(), "SELECT split_part(current_setting('server_version'), '.', 1)").Scan(&version))

	pool, traffic := countedPool(t, server.DSN("app"))
	o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/costs", Logger: quiet})
	must(t, err)
	defer o.Close(context.WithoutCancel(t.Context()))
	must(t, o.Migrate(t.Context()))
	in, err := postgres.NewInbox(pool, postgres.InboxOptions{})
	must(t, err)
	must(t, in.Migrate(t.Context()))
	meter := func() counts {
		var log float64
		must(t, side.QueryRow(t.Context(), "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8").Scan(&log))
		return counts{statements: float64(traffic.statements.Load()), trips: float64(traffic.writes.Load()), logBytes: log}
	}
	begin := func(fn func(tx pgx.Tx) error) { must(t, pgx.BeginFunc(t.Context(), pool, fn)) }
	stage := func(n, each int) {
		msgs := messages(n)
		for i := 0; i < n; i += each {
			begin(func(tx pgx.Tx) error { _, err := o.Stage(t.Context(), tx, msgs[i:i+each]...); return err })
		}
	}
	partition := func(n int) {
		work := o.UnitOfWork()
		for _, m := range messages(n) {
			must(t, work.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "SELECT $1::int", 1); err != nil {
					return err
				}
				return work.Stage(ctx, m)
			}))
		}
	}
	is := table{}
	row := func(name string, n int, fn func()) { is["postgres: "+name] = count(t, n, meter, fn) }

	stage(10, 1)
	stage(200, 100)
	partition(10)
	row("stage, one a transaction", some, func() { stage(some, 1) })
	row("stage through the unit of work, one a transaction and a statement", some, func() { partition(some) })
	row("stage, 100 a transaction", many, func() { stage(many, 100) })
	left := 10 + 200 + 10 + 2*some + many
	runRelay(t, o, left)

	stage(4*many, 1000)
	is["postgres: relay: read, publish and settle"] = relayed(t, 4*many, meter, o)

	self := join(t, o)
	stage(1000, 100)
	settle(t, o, self, read(t, o, self, 1000))
	stage(many, 100)
	records := read(t, o, self, many)
	row("read", many, func() { read(t, o, self, many) })
	row("settle", many, func() { settle(t, o, self, records) })

	is["postgres: consume one by one"], is["postgres: consume in batches of 100"] = consumed[pgx.Tx](t, meter, in)
	check(t, "postgres: ", is, "PostgreSQL "+version)
}

// traffic is what all connections of a pool have sent and been answered.
type traffic struct{ writes, statements atomic.Int64 }

// countedPool returns a pool with room for a relay.
func countedPool(t *testing.T, dsn string) (*pgxpool.Pool, *traffic) {
	t.Helper()
	seen := &traffic{}
	cfg, err := pgxpool.ParseConfig(dsn)
	must(t, err)
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return countedConn{sharedtest.CountedConn{Conn: conn, Writes: &seen.writes}, newReplies(&seen.statements)}, err
	}
	cfg.MaxConns = 8
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	t.Cleanup(pool.Close)
	return pool, seen
}
