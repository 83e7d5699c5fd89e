package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres"
)

// stagePG stages n messages.
func stagePG(tb testing.TB, pool *pgxpool.Pool, n int) {
	tb.Helper()
	pool.Reset() // the server may have been restarted
	outbox, err := postgres.NewOutbox(pool, postgres.Options{Source: "/shop"})
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = outbox.Close(context.WithoutCancel(tb.Context())) }()
	err = pgx.BeginFunc(tb.Context(), pool, func(tx pgx.Tx) error {
		for range n {
			if _, err := outbox.Stage(tb.Context(), tx, message()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// outboxRows counts the rows of an outbox.
func outboxRows(tb testing.TB, pool *pgxpool.Pool) int {
	tb.Helper()
	var n int
	if err := pool.QueryRow(tb.Context(), "SELECT count(*) FROM waybill.waybill_outbox").Scan(&n); err != nil {
		tb.Fatal(err)
	}
	return n
}

// queue declares a durable queue that gets everything of the exchange, and returns how many messages it has.
func queue(tb testing.TB, url, exchange string) (depth func() int) {
	tb.Helper()
	channel := func() (*amqp.Connection, *amqp.Channel) {
		conn, err := amqp.Dial(url)
		if err != nil {
			tb.Fatal(err)
		}
		ch, err := conn.Channel()
		if err != nil {
			tb.Fatal(err)
		}
		return conn, ch
	}
	conn, ch := channel()
	defer conn.Close()
	err := ch.ExchangeDeclare(exchange, "topic", true, false, false, false, nil)
	if err == nil {
		_, err = ch.QueueDeclare("all", true, false, false, false, nil)
	}
	if err == nil {
		err = ch.QueueBind("all", "#", exchange, false, nil)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return func() int {
		conn, ch := channel()
		defer conn.Close()
		q, err := ch.QueueDeclarePassive("all", true, false, false, false, nil)
		if err != nil {
			tb.Fatal(err)
		}
		return q.Messages
	}
}

const heartbeat = time.Second // of the daemon's relays: a third of their lease

// restarts is how often each server is restarted: once, unless WAYBILL_TEST_DAEMON says more.
func restarts(tb testing.TB) int {
	tb.Helper()
	text := os.Getenv("WAYBILL_TEST_DAEMON")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// OP-06: a daemon that is started while its database is down waits for it. It survives restarts of database and broker:
// health tells, and when all is well again it has as many goroutines and connections as before. Nothing is lost. That
// health tells within two heartbeats is real time, since the daemon is a process; so the nightly run judges it.
func TestRestarts(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{})
	broker := testenv.OwnRabbitMQ(t, testenv.RabbitMQOptions{})
	db, err := server.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pool := migrated(t, db.DSN)
	depth := queue(t, broker.AMQPURL("/"), "shop")
	declared := time.Now()
	server.Stop()
	conf := write(t, "stores:\n  shop: {kind: postgres, url: '"+db.DSN+"'}\ntransports:\n  bus: {kind: rabbitmq, exchange: shop, url: '"+broker.AMQPURL("/")+"'}\n"+
		"relays:\n  a: {lease: "+(3*heartbeat).String()+"}\nhttp: {listen: '127.0.0.1:0'}\n")
	p := process(t, "relay", "--config", conf)
	at := address(t, &p.Log)
	// turns waits for a probe that answers with the code. At night it must begin in time.
	turns := func(path string, code int, within time.Duration, what string) {
		t.Helper()
		defer func() {
			if t.Failed() {
				t.Log(p.Log.String())
			}
		}()
		began := time.Now()
		var asked time.Time
		patience.Moving(t, fmt.Sprintf("%s: %s is %d", what, path, code), func() (int, bool) {
			asked = time.Now()
			got, _ := get(t, at+path)
			return got, got == code
		})
		if late := asked.Sub(began) - within; late > 0 && tier.IsNightly() {
			t.Fatalf("%s: %s is %d %s too late", what, path, code, late)
		}
		if got, text := get(t, at+"/livez"); got != 200 {
			t.Errorf("%s: /livez: %d %s", what, got, text)
		}
	}
	const slack = 20 * time.Second // a server and a connection on a busy machine
	turns("/readyz", 503, 2*heartbeat, "no database at the start")
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	turns("/healthz", 200, slack, "database is there")
	turns("/readyz", 200, slack, "database is there")
	staged := 10
	stagePG(t, pool, 10)
	arrived := func() {
		t.Helper()
		patience.Until(t, "all arrived", func() bool { return depth() >= staged })
	}
	arrived()
	before := load(t, at)
	for round := range restarts(t) {
		for _, which := range rand.Perm(2) {
			if which == 0 {
				server.Kill()
				turns("/readyz", 503, 2*heartbeat, "no database")
				if err := server.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				// From then on the queue survives a kill.
				<-time.After(testenv.DefinitionsOnDisk - time.Since(declared))
				broker.Kill()
				turns("/healthz", 503, 2*heartbeat, "no broker")
				turns("/readyz", 200, 2*heartbeat, "no broker")
				if err := broker.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			turns("/healthz", 200, slack, fmt.Sprintf("round %d: back", round))
			turns("/readyz", 200, slack, fmt.Sprintf("round %d: back", round))
			staged += 10
			stagePG(t, pool, 10)
			arrived()
		}
	}
	var after map[string]int
	patience.Until(t, "as many goroutines and files as before", func() bool {
		after = load(t, at)
		return after["go_goroutines"] <= before["go_goroutines"]+3 && after["process_open_fds"] <= before["process_open_fds"]+3
	})
	t.Logf("before %v, after %v", before, after)
}

var gauge = regexp.MustCompile(`(?m)^(go_goroutines|process_open_fds|process_resident_memory_bytes|go_memstats_heap_inuse_bytes) ([0-9.e+]+)$`)

// load is what the daemon uses.
func load(tb testing.TB, at string) map[string]int {
	tb.Helper()
	_, text := get(tb, at+"/metrics")
	out := map[string]int{}
	for _, m := range gauge.FindAllStringSubmatch(text, -1) {
		f, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			tb.Fatal(err)
		}
		out[m[1]] = int(f)
	}
	if len(out) != 4 {
		tb.Fatalf("not the metrics of a process: %s", text)
	}
	return out
}

// DB-19: one daemon serves three databases, a relay each, named after both ends in log and metrics. One that is broken
// does not stop the others once it has worked.
func TestSeveralDatabases(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	depth := queue(t, mq.URL, "shop")
	var conf strings.Builder
	conf.WriteString("transports:\n  bus: {kind: rabbitmq, exchange: shop, url: '" + mq.URL + "'}\nhttp: {listen: '127.0.0.1:0'}\nstores:\n")
	var pools []*pgxpool.Pool
	for i := range 3 {
		db := testenv.Postgres(t)
		pools = append(pools, migrated(t, db.DSN))
		fmt.Fprintf(&conf, "  tenant%d: {kind: postgres, url: '%s'}\n", i, db.DSN)
	}
	conf.WriteString("relays:\n")
	for i := range 3 {
		fmt.Fprintf(&conf, "  t%d: {store: tenant%d}\n", i, i)
	}
	r := start(t, newBench(t).app(), "relay", "--config", write(t, conf.String()))
	at := address(t, &r.log)
	for _, pool := range pools {
		stagePG(t, pool, 5)
	}
	patience.Until(t, "15 arrived", func() bool { return depth() == 15 })
	// Before that, a missing table is a misconfiguration.
	patience.Until(t, "all settled", func() bool { return outboxRows(t, pools[1]) == 0 })
	if _, err := pools[1].Exec(t.Context(), "ALTER SCHEMA waybill RENAME TO gone"); err != nil {
		t.Fatal(err)
	}
	stagePG(t, pools[0], 5)
	stagePG(t, pools[2], 5)
	patience.Until(t, "25 arrived", func() bool { return depth() == 25 })
	patience.Until(t, "health tells which", func() bool {
		code, text := get(t, at+"/healthz")
		return code == 503 && strings.Contains(text, "failed    store tenant1: check: ") && strings.Contains(text, "ok        store tenant0: check: ")
	})
	patience.Until(t, "counted by relay", func() bool {
		_, text := get(t, at+"/metrics")
		return strings.Contains(text, `relay="t0: tenant0 to bus",route="default",transport="rabbitmq"} 10`)
	})
	says(t, r.log.String(), `relay="t2: tenant2 to bus"`)
	r.stop()
	r.end(t, cli.ExitOK)
}

// OP-13, measured: the cost of an idle relay of a SQLite file. WAYBILL_TEST_FLEET is the number of relays; 10 without
// it.
func TestIdleFleet(t *testing.T) {
	t.Parallel()
	n := 10
	if text := os.Getenv("WAYBILL_TEST_FLEET"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	var conf strings.Builder
	conf.WriteString("transports:\n  bus: {kind: rabbitmq, url: 'amqp://guest:guest@127.0.0.1:1/'}\nhttp: {listen: '127.0.0.1:0'}\nstores:\n")
	dir := t.TempDir()
	for i := range n {
		path := fmt.Sprintf("%s/%d.db", dir, i)
		_ = database(t, path).Close(t.Context())
		fmt.Fprintf(&conf, "  s%d: {kind: sqlite, path: %s}\n", i, path)
	}
	conf.WriteString("relays:\n")
	for i := range n {
		fmt.Fprintf(&conf, "  r%d: {store: s%d}\n", i, i)
	}
	p := process(t, "relay", "--config", write(t, conf.String()))
	at := address(t, &p.Log)
	patience.Until(t, "ready", func() bool { code, _ := get(t, at+"/readyz"); return code == 200 })
	got := load(t, at)
	t.Logf("%d idle relays: %v", n, got)
	if most := 200 + 10*n; got["go_goroutines"] > most {
		t.Errorf("%d goroutines, at most %d", got["go_goroutines"], most)
	}
	p.Signal(os.Interrupt)
	ended(t, p)
	if text := p.Log.String(); strings.Count(text, "event=relay.stop") != n {
		t.Errorf("not all stopped in order:\n%s", text)
	}
}

// Two relays of one store each listen on a connection of their own: a store value has one waiter at a time.
func TestTwoRelaysOfOneStore(t *testing.T) {
	t.Parallel()
	dsn := testenv.Postgres(t).DSN
	pool := migrated(t, dsn)
	b := newBench(t)
	conf := write(t, fmt.Sprintf("stores: {shop: {kind: postgres, url: %q}}\ntransports: {bus: {kind: memory}}\n", dsn)+
		"relays: {a: {routes: [{name: default}]}, b: {routes: [{name: bulk}]}}\n")
	r := start(t, b.app(), "relay", "--config", conf)
	patience.Until(t, "both listen", func() bool {
		var n int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND query LIKE '%set' || 'val(%' AND pid <> pg_backend_pid()`).Scan(&n)
		return err == nil && n == 2
	})
	r.stop()
	r.end(t, cli.ExitOK)
	if text := r.log.String(); strings.Contains(text, "event=relay.polling") {
		t.Error(text)
	}
}
