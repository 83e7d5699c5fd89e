package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres"
)

// tenants are outboxes in schemas of one database.
type tenants struct {
	tb   testing.TB
	dsn  string
	pool *pgxpool.Pool
	n    int
	conf string // the settings of a daemon for all of them
}

func schemaOf(i int) string { return fmt.Sprintf("tenant_%04d", i) }

func newTenants(tb testing.TB, dsn, amqp string, n int) *tenants {
	tb.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = "test"
	pool, err := pgxpool.NewWithConfig(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	t := &tenants{tb: tb, dsn: dsn, pool: pool, n: n}
	g, ctx := errgroup.WithContext(tb.Context())
	g.SetLimit(2)
	for i := range n {
		g.Go(func() error {
			m, err := postgres.NewMigrations(postgres.MigrationOptions{Schema: schemaOf(i), Source: "/shop"})
			if err != nil {
				return err
			}
			return m.Up(ctx, pool)
		})
	}
	if err := g.Wait(); err != nil {
		tb.Fatal(err)
	}
	t.conf = write(tb, "stores:\n  tenants: {kind: postgres, url: '"+dsn+"', schemas: ['tenant_*']}\n"+
		"transports:\n  bus: {kind: rabbitmq, exchange: shop, url: '"+amqp+"'}\nrelays: {all: {}}\nhttp: {listen: '127.0.0.1:0'}\n")
	return t
}

// stage stages one message in each of the schemas from one to before another.
func (t *tenants) stage(from, to int) {
	t.tb.Helper()
	for i := from; i < to; i++ {
		outbox, err := postgres.NewOutbox(t.pool, postgres.Options{Source: "/shop", Schema: schemaOf(i)})
		if err == nil {
			err = pgx.BeginFunc(t.tb.Context(), t.pool, func(tx pgx.Tx) error {
				_, err := outbox.Stage(t.tb.Context(), tx, message())
				return err
			})
		}
		if err != nil {
			t.tb.Fatal(err)
		}
	}
}

// query returns a number.
func (t *tenants) query(sql string) (n int) {
	t.tb.Helper()
	if err := t.pool.QueryRow(t.tb.Context(), sql).Scan(&n); err != nil {
		t.tb.Fatal(err)
	}
	return n
}

// statements returns how many statements the daemons have run.
func (t *tenants) statements() int {
	return t.query(`SELECT coalesce(sum(s.calls), 0)::int FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
		WHERE d.datname = current_database() AND s.query NOT LIKE '%pg_stat_%'`)
}

// connections returns how many connections the daemons have.
func (t *tenants) connections() int {
	return t.query("SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'waybill'")
}

// cold waits until a daemon has nothing to do.
func (t *tenants) cold(at string) {
	t.tb.Helper()
	patience.Until(t.tb, "all are cold", func() bool {
		_, text := get(t.tb, at+"/healthz")
		return strings.Contains(text, fmt.Sprintf("%d outboxes; 0 of at most", t.n)) && strings.Contains(text, " 0 outboxes wait")
	})
}

// OP-13: one daemon serves many schemas: 20 in the gate, 1,000 at night. Idle ones cost a bounded number of statements,
// connections and memory together. A message to any of them arrives. One that is broken does not disturb the others. A
// daemon that is killed loses nothing, and another one goes on.
func TestManySchemas(t *testing.T) {
	t.Parallel()
	n := 20
	if tier.IsNightly() || os.Getenv("WAYBILL_TEST_FLEET") == "1000" {
		n = 1000
	}
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{Settings: map[string]string{
		"shared_preload_libraries": "pg_stat_statements", "fsync": "off", "waybill.allow_unsafe_settings": "on",
	}})
	db, err := server.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mq := testenv.RabbitMQ(t)
	depth := queue(t, mq.URL, "shop")
	s := newTenants(t, db.DSN, mq.URL, n)
	if _, err := s.pool.Exec(t.Context(), "CREATE EXTENSION pg_stat_statements"); err != nil {
		t.Fatal(err)
	}
	p := process(t, "relay", "--config", s.conf)
	at := address(t, &p.Log)
	patience.Until(t, "ready", func() bool { code, _ := get(t, at+"/readyz"); return code == 200 })
	s.cold(at)

	// Idle: the time bounds the number of statements, and a slow machine makes it smaller. The latest
	// relays may still leave.
	began, before := time.Now(), s.statements()
	var took time.Duration
	var count int
	patience.Until(t, "at most 20 statements a second", func() bool {
		took, count = time.Since(began), s.statements()-before
		if took < 5*time.Second {
			return false
		}
		if count <= 20*int(took.Seconds()) {
			return true
		}
		began, before = time.Now(), s.statements()
		return false
	})
	got := load(t, at)
	t.Logf("%d idle schemas: %d statements in %s, %d connections, %d MB", n, count, took.Round(time.Millisecond), s.connections(), got["process_resident_memory_bytes"]>>20)
	if n := s.connections(); n > 20 {
		t.Errorf("%d connections", n)
	}
	if mb := got["process_resident_memory_bytes"] >> 20; mb > 150 {
		t.Errorf("%d MB", mb)
	}
	if lines := strings.Count(p.Log.String(), "\n"); lines > 30 {
		t.Errorf("%d lines of log:\n%s", lines, p.Log.String())
	}

	// One message, then one in each.
	s.stage(n/2, n/2+1)
	patience.Until(t, "the message of a cold schema arrives", func() bool { return depth() == 1 })
	s.stage(0, n)
	began = time.Now()
	arrived := func(what string, want int) {
		t.Helper()
		patience.Moving(t, what, func() (int, bool) { n := depth(); return n, n >= want })
	}
	arrived("all arrive", n+1)
	t.Logf("one message of each took %s", time.Since(began).Round(time.Millisecond))
	if n := s.connections(); n > 20 {
		t.Errorf("%d connections under load", n)
	}
	s.cold(at)
	if _, text := get(t, at+"/metrics"); strings.Contains(text, "tenant_") {
		t.Error("the metrics name schemas")
	}

	// A schema that is broken.
	if _, err := s.pool.Exec(t.Context(), "ALTER TABLE tenant_0001.waybill_outbox_partitions RENAME TO gone"); err != nil {
		t.Fatal(err)
	}
	s.stage(0, 3)
	patience.Until(t, "the others arrive", func() bool { return depth() >= n+3 })
	patience.Until(t, "health names it", func() bool {
		code, text := get(t, at+"/healthz")
		ready, _ := get(t, at+"/readyz")
		return code == 200 && ready == 200 && strings.Contains(text, fmt.Sprintf("1 of %d cannot be served: tenant_0001: ", n))
	})
	if _, err := s.pool.Exec(t.Context(), "ALTER TABLE tenant_0001.gone RENAME TO waybill_outbox_partitions"); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "it is back", func() bool { return depth() >= n+4 })

	// A killed daemon, with messages under way, and another one.
	s.stage(0, n)
	p.Kill()
	other := process(t, "relay", "--config", s.conf)
	s.stage(0, n)
	arrived("nothing is lost", n+4+2*n)
	s.cold(address(t, &other.Log))
	if left := s.left(); left > 0 {
		t.Errorf("%d messages are left", left)
	}
	other.Signal(os.Interrupt)
	ended(t, other)
}

// left returns how many records all schemas have.
func (t *tenants) left() (n int) {
	t.tb.Helper()
	for i := range t.n {
		n += t.query("SELECT count(*)::int FROM " + schemaOf(i) + ".waybill_outbox")
	}
	return n
}

// OP-13: two daemons over the same schemas publish each message once. Each serves what the other does not. When
// one is killed, the other takes its outboxes over.
func TestTwoDaemonsOfManySchemas(t *testing.T) {
	t.Parallel()
	const n = 10
	db := testenv.Postgres(t)
	mq := testenv.RabbitMQ(t)
	depth := queue(t, mq.URL, "shop")
	s := newTenants(t, db.DSN, mq.URL, n)
	var both [2]*sharedtest.Process
	var at [2]string
	for i := range both {
		both[i] = process(t, "relay", "--config", s.conf)
		at[i] = address(t, &both[i].Log)
		s.cold(at[i])
	}
	staged := 0
	for range 10 {
		s.stage(0, n)
		staged += n
		patience.Until(t, "all arrive", func() bool { return depth() >= staged })
	}
	if got := depth(); got != staged {
		t.Errorf("%d messages were staged, and %d published", staged, got)
	}
	s.stage(0, n)
	both[0].Kill()
	s.stage(0, n)
	staged += 2 * n
	patience.Until(t, "the other one takes over", func() bool { return depth() >= staged })
	s.cold(at[1])
	if left := s.left(); left > 0 {
		t.Errorf("%d messages are left", left)
	}
}

// OP-13: commands other than relay work on one schema, which they want to be told. Validate names schemas with a fault.
func TestCommandsOnManySchemas(t *testing.T) {
	t.Parallel()
	s := newTenants(t, testenv.Postgres(t).DSN, "amqp://127.0.0.1:1/", 3)
	s.stage(1, 2)
	run := func(want int, args ...string) string {
		t.Helper()
		r := start(t, newBench(t).app(), append(args, "--config", s.conf)...)
		r.end(t, want)
		return r.out.String() + r.log.String()
	}
	says(t, run(cli.ExitUsage, "list"), "--set stores.tenants.schema=NAME")
	says(t, run(cli.ExitOK, "list", "--set", "stores.tenants.schema=tenant_0001"), "orders.placed")
	says(t, run(cli.ExitUsage, "relay", "--until-empty"), "many outboxes")
	if _, err := s.pool.Exec(t.Context(), "DROP TABLE tenant_0002.waybill_outbox_partitions"); err != nil {
		t.Fatal(err)
	}
	text := run(cli.ExitFindings, "validate")
	says(t, text, "outbox tenant_0002: ")
	if strings.Contains(text, "tenant_0000") {
		t.Error(text)
	}
	says(t, run(cli.ExitFindings, "validate", "--set", "stores.tenants.schemas=[nobody_*]"), "no outbox")
}
