//go:build unix

package outages_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// times is how often a misfortune happens: once, or more in a long run.
func times() int {
	if os.Getenv("WAYBILL_BADDAY") == "long" {
		return 5
	}
	return 1
}

// day is an outbox, the database of a consumer, and the messages that were staged and seen.
type day struct {
	testing.TB
	base            member // what all members have in common
	out, in         *pgxpool.Pool
	o               *postgres.Outbox
	mq              *testenv.MQ    // nil if base named a broker
	log             sharedtest.Log // of the members in this process
	stopAll, ending []func()

	mu       sync.Mutex
	answered map[string]bool // ids whose commit was confirmed
	tried    map[string]bool // ids that were staged, committed or not
	failures []error         // of producers, since the last take
}

// newDay makes the tables. base names the servers; a message is staged together with its row in table staged.
func newDay(tb testing.TB, base member) *day {
	tb.Helper()
	d := &day{TB: tb, base: base, answered: map[string]bool{}, tried: map[string]bool{}}
	d.base.logger = d.log.Logger(slog.LevelInfo)
	open := func(dsn string) *pgxpool.Pool {
		pool, err := d.base.open(tb.Context(), dsn)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(pool.Close)
		return pool
	}
	d.out, d.in = open(d.base.DSN), open(cmp.Or(d.base.Effects, d.base.DSN))
	m, err := postgres.NewMigrations(postgres.MigrationOptions{Source: "/badday"})
	if err != nil {
		tb.Fatal(err)
	}
	for _, pool := range []*pgxpool.Pool{d.out, d.in} {
		if err := m.Up(tb.Context(), pool); err != nil {
			tb.Fatal(err)
		}
	}
	d.exec(d.out, "CREATE TABLE staged (id text PRIMARY KEY)")
	d.exec(d.in, "CREATE TABLE seen (n bigint GENERATED ALWAYS AS IDENTITY, id text, key text, num int, pid int)")
	d.watchBlame()
	if d.o, err = d.base.outbox(d.out); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			lines := strings.Split(d.log.String(), "\n")
			for _, line := range lines[max(len(lines)-60, 0):] {
				tb.Logf("%.400s", line)
			}
		}
	})
	return d
}

// onRabbitMQ makes a day over databases and a virtual host of the shared servers, but for what base names.
func onRabbitMQ(tb testing.TB, base member) *day {
	tb.Helper()
	if base.DSN == "" {
		base.DSN = testenv.Postgres(tb).DSN
	}
	var mq *testenv.MQ
	if base.Broker == "" {
		mq = testenv.RabbitMQ(tb)
		base.Broker = mq.URL
	}
	d := newDay(tb, base)
	d.mq = mq
	return d
}

// topology is what the consumers declare.
func (d *day) topology() topology.Topology {
	d.Helper()
	m := d.base
	m.Role = consumes
	t, err := topology.New(topology.Options{}, m.subscription())
	if err != nil {
		d.Fatal(err)
	}
	return t
}

// declare declares it, and waits until that is on the brokers' disks.
func (d *day) declare() {
	d.Helper()
	bus, err := d.base.bus(d.Context())
	if err != nil {
		d.Fatal(err)
	}
	defer func() { _ = bus.Close(context.WithoutCancel(d.Context())) }()
	if err := bus.Declare(d.Context(), d.topology()); err != nil {
		d.Fatal(err)
	}
}

func (d *day) exec(pool *pgxpool.Pool, sql string, args ...any) {
	d.Helper()
	if _, err := pool.Exec(d.Context(), sql, args...); err != nil {
		d.Fatalf("%s: %v", sql, err)
	}
}

// count returns the answer of a query for a number, -1 while there is none: the server may be away.
func (d *day) count(pool *pgxpool.Pool, sql string, args ...any) int {
	ctx, cancel := context.WithTimeout(d.Context(), 3*time.Second)
	defer cancel()
	n := -1
	if err := pool.QueryRow(ctx, sql, args...).Scan(&n); err != nil {
		return -1
	}
	return n
}

func (d *day) effects() int { return d.count(d.in, "SELECT count(*) FROM seen") }

// until polls cond until it holds.
func (d *day) until(what string, cond func() bool) {
	d.Helper()
	limit := patience.For(2 * patience.Limit) // a server that was killed starts meanwhile
	for end := time.Now().Add(limit); !cond(); d.pause(20 * time.Millisecond) {
		if time.Now().After(end) {
			d.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// flows waits until n messages more had their effects.
func (d *day) flows(what string, n int) {
	d.Helper()
	before := -1
	d.until(what, func() bool {
		if before < 0 {
			before = d.effects()
			return false
		}
		return d.effects() >= before+n
	})
}

// pause lets traffic flow.
func (d *day) pause(t time.Duration) {
	select {
	case <-time.After(t):
	case <-d.Context().Done():
	}
}

// start runs a member in this process until the end.
func (d *day) start(role string) {
	d.Helper()
	if role == relays {
		d.declare() // a relay that is there first would find the topic unroutable
	}
	m := d.base
	m.Role = role
	ctx, cancel := context.WithCancel(context.WithoutCancel(d.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := m.run(ctx); err != nil {
			d.Errorf("%s: Run ended: %v", role, err)
		}
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		<-done
	})
	d.stopAll = append(d.stopAll, stop)
	d.Cleanup(stop)
}

// process runs a member in a process of its own.
func (d *day) process(role, name string) *sharedtest.Process {
	d.Helper()
	m := d.base
	m.Role, m.Name = role, name
	text, err := json.Marshal(m)
	if err != nil {
		d.Fatal(err)
	}
	p := sharedtest.StartProcess(d, memberVariable+"="+string(text))
	d.stopAll = append(d.stopAll, p.Kill)
	d.Cleanup(func() {
		if d.Failed() {
			lines := strings.Split(p.Log.String(), "\n")
			for _, line := range lines[max(len(lines)-20, 0):] {
				d.Logf("%s %d: %.400s", name, p.PID, line)
			}
		}
	})
	return p
}

// produce stages messages of keys of its own, in transaction after transaction, until the end.
func (d *day) produce(producers int) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(d.Context()))
	var all sync.WaitGroup
	for p := range producers {
		all.Go(func() {
			last := map[string]int{}
			for ctx.Err() == nil {
				d.stage(ctx, fmt.Sprintf("p%d-", p), 1+rand.IntN(4), last)
				d.pause(5*time.Millisecond + rand.N(10*time.Millisecond))
			}
		})
	}
	stop := sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	d.ending = append(d.ending, stop)
	d.Cleanup(stop)
}

// stage stages n messages in a transaction, and notes what became of it.
func (d *day) stage(ctx context.Context, prefix string, n int, last map[string]int) {
	msgs := make([]waybill.Message, n)
	for i := range msgs {
		key := fmt.Sprint(prefix, rand.IntN(100)) // so many that every process gets some
		last[key]++
		msgs[i] = waybill.RawMessage(topic, "application/json", fmt.Appendf(nil, `{"num":%d}`, last[key]), waybill.Key(key))
		if d.base.Role == receives {
			msgs[i].Routes = []string{queueName}
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var ids []string
	err := pgx.BeginFunc(ctx, d.out, func(tx pgx.Tx) error {
		staged, err := d.o.Stage(ctx, tx, msgs...)
		if err != nil {
			return err
		}
		d.mu.Lock()
		for _, s := range staged {
			ids = append(ids, s.ID)
			d.tried[s.ID] = true
		}
		d.mu.Unlock()
		_, err = tx.Exec(ctx, "INSERT INTO staged SELECT unnest($1::text[])", ids)
		return err
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.failures = append(d.failures, err)
		return
	}
	for _, id := range ids {
		d.answered[id] = true
	}
}

// takeFailures returns how the producers failed since the last call.
func (d *day) takeFailures() []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.failures
	d.failures = nil
	return all
}
