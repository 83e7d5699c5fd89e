package postgres_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// DB-02 DB-18 ST-01: committed data, attempts included, survives a SIGKILL of the database; meanwhile errors are
// outages.
func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{})
	pool := openPool(t, server.DSN("postgres"))
	o := outboxOn(t, pool, postgres.Options{})
	self := session(t, o, waybill.DefaultRoute)
	stage(t, pool, o, message(waybill.ID("1"), waybill.Key("k")), message(waybill.ID("2"), waybill.Key("k")))
	c := holdNext(t, o, want(1))
	settle(t, o, core.Retry(&c.Records[0], errNo, 0))
	c = holdNext(t, o, want(1))
	open := begin(t, pool, "SELECT 1")
	if _, err := o.Stage(t.Context(), open, message(waybill.ID("uncommitted"))); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	if err := open.Commit(t.Context()); err == nil {
		t.Fatal("committed on a dead server")
	}
	if _, err := o.Read(t.Context(), self, core.ReadRequest{}); waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("read: %v", err)
	}
	if _, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{}); waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("meet: %v", err)
	}
	for _, err := range o.Settle(t.Context(), self, []core.Outcome{core.Published(&c.Records[0]), core.Release(&c.Records[0], 0, false)}) {
		if waybill.ClassOf(err) != waybill.ClassOutage {
			t.Errorf("settle: %v", err)
		}
	}
	patience.Until(t, "a wait says so", func() bool {
		_, err := o.Wait(t.Context(), []string{waybill.DefaultRoute}, time.Second)
		return waybill.ClassOf(err) == waybill.ClassOutage
	})
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "the session and its hold are still there", func() bool {
		return o.Settle(t.Context(), self, []core.Outcome{core.Retry(&c.Records[0], errors.New("no"), 0)}).FirstErr() == nil
	})
	c = holdNext(t, o, want(10))
	if len(c.Records) != 2 || c.Records[0].Attempts != 2 || c.Records[0].ID != "1" || c.Records[1].ID != "2" {
		t.Fatalf("%+v", c.Records)
	}
}

// DB-22: the server dies and comes back. Sequences jump, committed messages are published, the same relay goes on.
func TestCrashRecovery(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{})
	pool := openPool(t, server.DSN("postgres"))
	o := outboxOn(t, pool, postgres.Options{})
	bus := runPump(t, o, waybill.DefaultRoute)
	stage(t, pool, o, batch("a", 300)...)
	patience.Until(t, "it publishes", func() bool { return bus.count() > 0 })
	server.Kill()
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "the outbox is back", func() bool { return pool.Ping(t.Context()) == nil })
	stage(t, pool, o, batch("b", 100)...)
	bus.has(t, append(idsOf("a", 300), idsOf("b", 100)...)...)
	patience.Until(t, "nothing is left", func() bool { return queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox") == 0 })
}

// TLS with an own authority and a client certificate, named in the connection string as for every PostgreSQL client.
func TestTLS(t *testing.T) {
	t.Parallel()
	tls, err := testenv.MakeTLS(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{TLS: tls})
	pool := openPool(t, server.DSN("postgres")) // sslmode=verify-full&sslrootcert=...&sslcert=...&sslkey=...
	o := outboxOn(t, pool, postgres.Options{})
	stage(t, pool, o, message())
	if c := holdNext(t, o, want(1)); len(c.Records) != 1 {
		t.Fatal("nothing held")
	}
	if _, err := o.Wait(t.Context(), []string{waybill.DefaultRoute}, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if n := queryInt(t, pool, `SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.backend_type = 'client backend' AND NOT s.ssl`); n != 0 {
		t.Fatalf("%d connections without TLS", n)
	}
	other, err := testenv.MakeTLS(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dsn := strings.ReplaceAll(server.DSN("postgres"), strings.ReplaceAll(tls.CAFile, "/", "%2F"), other.CAFile)
	stranger, err := postgres.NewOutbox(openPool(t, dsn), postgres.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := stranger.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Fatalf("a server of another authority: %v", err)
	}
}

// DB-02 DB-06 IN-05: nor for migrations and purges that meet others.
func TestIsolationOfConcurrentWork(t *testing.T) {
	t.Parallel()
	pool := openPool(t, testenv.Postgres(t).DSN+"&default_transaction_isolation=repeatable%20read")
	m, err := postgres.NewMigrations(postgres.MigrationOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := m.Up(t.Context(), pool); err != nil {
				t.Errorf("migrate: %v", err)
			}
		})
	}
	wg.Wait()
	in, err := postgres.NewInbox(pool, postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	viaSQL, err := postgres.NewSQLInbox(db, postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]core.InboxPurger{"pgx": in, "database/sql": viaSQL} {
		exec(t, pool, "INSERT INTO waybill.waybill_inbox SELECT 'c', 's', g::text, now() - interval '1 day' FROM generate_series(1, 10000) g")
		for range 3 {
			wg.Go(func() {
				if _, err := p.PurgeInbox(t.Context(), "c", time.Hour, 10_000); err != nil {
					t.Errorf("purge, %s: %v", name, err)
				}
			})
		}
		wg.Wait()
		if n := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_inbox"); n != 0 {
			t.Errorf("purge, %s: %d are left", name, n)
			exec(t, pool, "TRUNCATE waybill.waybill_inbox")
		}
	}
}
