//go:build unix

package outages_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/testenv"
)

// pair is a primary and its standby, and the address of the one that accepts writes.
type pair struct {
	primary, standby *testenv.PostgresServer
	line             *testenv.Proxy // from the standby to the primary
	dsn              string
}

func newPair(t *testing.T, settings map[string]string) *pair {
	t.Helper()
	p := &pair{primary: testenv.OwnPostgres(t, testenv.PostgresOptions{Settings: settings})}
	p.line = testenv.NewProxy(t, p.primary.Addr())
	var err error
	if p.standby, err = p.primary.StartStandby(t.Context(), p.line.Addr()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.standby.Close() })
	p.dsn = strings.Replace(p.primary.DSN("postgres"), p.primary.Addr(), p.primary.Addr()+","+p.standby.Addr(), 1) + "&target_session_attrs=read-write"
	return p
}

// failOver kills the primary and promotes the standby.
func (p *pair) failOver(t *testing.T) {
	t.Helper()
	p.primary.Kill()
	p.line.Cut()
	if err := p.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// OP-17: the primary dies, and a standby that has confirmed every commit is promoted. Producers, relay and consumers
// follow; nothing is lost.
func TestSynchronousStandbyIsPromoted(t *testing.T) {
	nightly(t)
	t.Parallel()
	for range times() {
		p := newPair(t, nil)
		d := onRabbitMQ(t, member{DSN: p.dsn})
		d.exec(d.out, "ALTER SYSTEM SET synchronous_standby_names = '*'")
		d.exec(d.out, "SELECT pg_reload_conf()")
		d.until("the standby confirms commits", func() bool {
			return d.count(d.out, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1
		})
		d.start(consumes)
		d.start(relays)
		d.produce(2)
		d.flows("messages flow", 50)
		p.failOver(t)
		// from now on this server has no standby
		d.until("it confirms commits alone", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			_, err := d.out.Exec(ctx, "ALTER SYSTEM RESET synchronous_standby_names")
			if err == nil {
				_, err = d.out.Exec(ctx, "SELECT pg_reload_conf()")
			}
			return err == nil
		})
		d.flows("messages flow at the new primary", 50)
		d.ends(excused{})
	}
}

// OP-17 DB-22: the standby lacks the last commits. The outbox's new history is settled by nothing of the old one: each
// message that it has gets its one effect, in a database that did not fail over. A message that the old one had
// confirmed and not handed on is gone, as docs/guarantees.md says, or had its one effect before.
func TestLaggingStandbyIsPromoted(t *testing.T) {
	nightly(t)
	t.Parallel()
	for range times() {
		p := newPair(t, nil)
		d := onRabbitMQ(t, member{DSN: p.dsn, Effects: testenv.Postgres(t).DSN})
		d.start(consumes)
		d.start(relays)
		d.produce(2)
		d.flows("messages flow", 50)
		p.line.Blackhole(testenv.Up | testenv.Down)
		had := d.count(d.out, "SELECT count(*) FROM staged")
		d.until("many are committed beside the standby", func() bool { return d.count(d.out, "SELECT count(*) FROM staged") > had+60 })
		before := d.count(d.out, "SELECT last_value FROM waybill.waybill_outbox_seq")
		p.failOver(t)
		d.flows("messages flow at the new primary", 50)
		d.until("numbers are drawn again", func() bool { return d.count(d.out, "SELECT last_value FROM waybill.waybill_outbox_seq") > before })
		d.ends(excused{forgotten: true})
		gone, staged := 0, d.ids(d.out, "SELECT id FROM staged")
		for id := range d.answered {
			if staged[id] == 0 {
				gone++
			}
		}
		if gone < 20 {
			t.Errorf("only %d confirmed messages were forgotten: too few to prove anything", gone)
		}
	}
}

// OP-17: the database's disk is full. Staging fails as an outage that says why, and nothing is half done. Then the log
// cannot be written either, and the server dies. When there is space again, all go on.
func TestDatabaseDiskFull(t *testing.T) {
	nightly(t)
	t.Parallel()
	for range times() {
		pg := testenv.OwnPostgres(t, testenv.PostgresOptions{Disk: 250 << 20})
		d := onRabbitMQ(t, member{DSN: pg.DSN("postgres")})
		d.start(consumes)
		d.start(relays)
		d.produce(2)
		d.flows("messages flow", 50)
		if err := pg.FillDisk(); err != nil {
			t.Fatal(err)
		}
		d.takeFailures()
		full := func(err error) bool {
			pgErr, ok := errors.AsType[*pgconn.PgError](err)
			return ok && pgErr.Code == "53100"
		}
		var refused error
		d.until("a producer is refused", func() bool {
			all := d.takeFailures()
			if i := slices.IndexFunc(all, func(err error) bool {
				_, ours := errors.AsType[*waybill.Error](err)
				return ours && full(err)
			}); i >= 0 {
				refused = all[i]
			}
			return refused != nil || !pg.Running()
		})
		if refused == nil {
			t.Fatal("the server ended before a producer was refused")
		}
		t.Log(refused)
		if waybill.ClassOf(refused) != waybill.ClassOutage || !strings.Contains(refused.Error(), "waybill/postgres: stage") || !strings.Contains(refused.Error(), "No space left on device") {
			t.Errorf("class %s: %v", waybill.ClassOf(refused), refused)
		}
		d.until("the server cannot write its log, and dies", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _ = d.out.Exec(ctx, "SELECT pg_switch_wal()")
			return !pg.Running() || d.count(d.out, "SELECT 1") < 0
		})
		if err := pg.FreeDisk(); err != nil {
			t.Fatal(err)
		}
		// A recovery that began when the disk was full may fail only now, and the server ends with it.
		d.until("the server has recovered, or has ended", func() bool { return !pg.Running() || d.count(d.out, "SELECT 1") == 1 })
		if !pg.Running() {
			if err := pg.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		d.flows("messages flow again", 50)
		d.ends(excused{})
		d.nobodyWasBlamed()
	}
}

// OP-17: the password of the role changes while all run, and later connections are cut. Until the program knows the
// new one that is an outage; then all go on.
func TestDatabasePasswordRotated(t *testing.T) {
	nightly(t)
	t.Parallel()
	for range times() {
		pg := testenv.OwnPostgres(t, testenv.PostgresOptions{})
		secret := newSecret("first-secret")
		d := onRabbitMQ(t, member{DSN: pg.DSN("postgres"), prepare: secret.ofPool})
		d.exec(d.out, "CREATE ROLE app SUPERUSER LOGIN PASSWORD 'first-secret'")
		secret.user.Store("app")
		admin := connect(t, pg)
		cut(t, admin)
		d.start(consumes)
		d.start(relays)
		d.produce(2)
		d.flows("messages flow", 50)
		if _, err := admin.Exec(t.Context(), "ALTER ROLE app PASSWORD 'second-secret'"); err != nil {
			t.Fatal(err)
		}
		d.flows("open connections live on", 50)
		cut(t, admin)
		d.takeFailures()
		d.until("the old password is refused", func() bool {
			return slices.ContainsFunc(d.takeFailures(), func(err error) bool { return strings.Contains(err.Error(), "28P01") }) &&
				strings.Contains(d.log.String(), "wrong user or password")
		})
		secret.set("second-secret")
		d.flows("messages flow with the new one", 50)
		var others int
		const notApp = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND usename <> 'app' AND pid <> pg_backend_pid()"
		if err := admin.QueryRow(t.Context(), notApp).Scan(&others); err != nil || others > 0 {
			t.Errorf("%d connections were opened without asking for the password, %v", others, err)
		}
		d.ends(excused{})
		d.nobodyWasBlamed()
		if text := d.log.String(); strings.Contains(text, "first-secret") || strings.Contains(text, "second-secret") {
			t.Error("the log holds a password")
		}
	}
}

// connect opens a connection of the superuser.
func connect(t *testing.T, pg *testenv.PostgresServer) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pg.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// cut ends all connections but admin.
func cut(t *testing.T, admin *pgx.Conn) {
	t.Helper()
	const all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
	if _, err := admin.Exec(t.Context(), all); err != nil {
		t.Fatal(err)
	}
}
