//go:build unix && !race

package faults_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/table"
)

// times is how often an accident happens: n times, or more in a long run.
func times(n int) int {
	if os.Getenv("WAYBILL_ACCIDENTS") == "long" {
		return 5 * n
	}
	return n
}

// world is an outbox, relay processes, and the broker that they publish to: a table in a database of its own, so that
// the outbox's may break.
type world struct {
	testing.TB
	dsn, broker string
	pool, sink  *pgxpool.Pool
	o           *postgres.Outbox

	mu     sync.Mutex
	last   map[string]int  // number of the latest message of a key
	tried  map[string]bool // ids of what was staged, committed or not
	forgot map[string]bool // what the database may have forgotten
}

// newWorld makes a world over the database dsn. A message is noted in the transaction that stages it. A crash that is
// counted is noted, and a member that is removed: no member leaves before the test ends.
func newWorld(tb testing.TB, dsn string) *world {
	tb.Helper()
	w := &world{TB: tb, dsn: dsn, broker: testenv.Postgres(tb).DSN, last: map[string]int{}, tried: map[string]bool{}, forgot: map[string]bool{}}
	w.pool, w.sink = open(tb, dsn), open(tb, w.broker)
	var err error
	if w.o, err = postgres.NewOutbox(w.pool, postgres.Options{Source: "/accidents"}); err != nil {
		tb.Fatal(err)
	}
	if err := w.o.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	w.exec(w.pool, `
CREATE TABLE staged (id text PRIMARY KEY, key text, num int, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE crashed (id text);
CREATE TABLE removed (name text);
CREATE FUNCTION note_crash() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO crashed VALUES (NEW.id); RETURN NULL; END $$;
CREATE FUNCTION note_removal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO removed VALUES (OLD.name); RETURN NULL; END $$;
CREATE TRIGGER note_crash AFTER UPDATE ON waybill.waybill_outbox FOR EACH ROW WHEN (NEW.crashes > OLD.crashes) EXECUTE FUNCTION note_crash();
CREATE TRIGGER note_removal AFTER DELETE ON waybill.waybill_outbox_members FOR EACH ROW EXECUTE FUNCTION note_removal();`)
	w.exec(w.sink, `
CREATE TABLE arrivals (n bigint GENERATED ALWAYS AS IDENTITY, id text, key text, num int, pid int, began timestamptz, at timestamptz DEFAULT clock_timestamp());
CREATE INDEX ON arrivals (id)`)
	return w
}

// onOwnServer makes a world over a database of a server of its own, which may be killed.
func onOwnServer(tb testing.TB, opts testenv.PostgresOptions) (*world, *testenv.PostgresServer, *testenv.PG) {
	tb.Helper()
	pg := testenv.OwnPostgres(tb, opts)
	db, err := pg.CreateDatabase(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return newWorld(tb, db.DSN), pg, db
}

func open(tb testing.TB, dsn string) *pgxpool.Pool {
	tb.Helper()
	pool, err := connect(tb.Context(), dsn, 16)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return pool
}

func (w *world) exec(pool *pgxpool.Pool, sql string, args ...any) {
	w.Helper()
	if _, err := pool.Exec(w.Context(), sql, args...); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
}

// list returns the only column of a query.
func list[T any](w *world, pool *pgxpool.Pool, sql string, args ...any) []T {
	w.Helper()
	rows, err := pool.Query(w.Context(), sql, args...)
	if err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
	return values
}

func (w *world) number(pool *pgxpool.Pool, sql string, args ...any) int {
	w.Helper()
	return list[int](w, pool, sql, args...)[0]
}

// until polls cond until it holds.
func (w *world) until(limit time.Duration, what string, cond func() bool) {
	w.Helper()
	for end := time.Now().Add(limit); !cond(); {
		if time.Now().After(end) {
			w.Fatalf("not within %s: %s", limit, what)
		}
		w.pause(20 * time.Millisecond)
	}
}

// pause lets traffic flow.
func (w *world) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.Context().Done():
	}
}

// keys returns n names of keys.
func keys(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return names
}

// stageIn stages one message for each of names, in their order. A key that holds a slash begins
// with its route.
func (w *world) stageIn(ctx context.Context, tx pgx.Tx, names []string, opts ...waybill.MessageOption) ([]waybill.Staged, error) {
	msgs, nums := make([]waybill.Message, len(names)), make([]int, len(names))
	w.mu.Lock()
	for i, key := range names {
		w.last[key]++
		nums[i] = w.last[key]
		msgs[i] = waybill.RawMessage("t.x", "text/plain", fmt.Append(nil, nums[i]), append([]waybill.MessageOption{waybill.Key(key)}, opts...)...)
		if route, _, ok := strings.Cut(key, "/"); ok {
			msgs[i].Routes = []string{route}
		}
	}
	w.mu.Unlock()
	staged, err := w.o.Stage(ctx, tx, msgs...)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(staged))
	w.mu.Lock()
	for i := range staged {
		ids[i] = staged[i].ID
		w.tried[ids[i]] = true
	}
	w.mu.Unlock()
	_, err = tx.Exec(ctx, `INSERT INTO staged SELECT * FROM unnest($1::text[], $2::text[], $3::int[])`, ids, names, nums)
	return staged, err
}

// stage commits one message for each of names, in one transaction, and returns their ids.
func (w *world) stage(names []string, opts ...waybill.MessageOption) (ids []string) {
	w.Helper()
	err := pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error {
		staged, err := w.stageIn(w.Context(), tx, names, opts...)
		for _, s := range staged {
			ids = append(ids, s.ID)
		}
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return ids
}

// produce stages messages of names, which are its own, in transaction after transaction, until stop is called. Some
// transactions stay open for up to long.
func (w *world) produce(names []string, long time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			// one that fails has staged nothing, or has and is noted
			_ = pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error {
				for half := range 2 {
					if half == 1 && i%10 == 9 && long > 0 {
						w.pause(rand.N(long))
					}
					some := make([]string, 1+rand.IntN(5))
					for j := range some {
						some[j] = names[rand.IntN(min(len(names), 3)+rand.IntN(len(names)))%len(names)]
					}
					if _, err := w.stageIn(w.Context(), tx, some); err != nil {
						return err
					}
				}
				return nil
			})
			w.pause(10*time.Millisecond + rand.N(20*time.Millisecond))
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	w.Cleanup(stop)
	return stop
}

// handle runs the handlers of a queue in this process, until stop is called. Each takes up to long, and writes down its
// messages.
func (w *world) handle(queue string, handlers int, long time.Duration) (stop func()) {
	w.Helper()
	pool := open(w, w.dsn)
	o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/accidents"})
	if err != nil {
		w.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	tr, err := table.New(o, table.Options{Logger: quiet})
	if err != nil {
		w.Fatal(err)
	}
	c, err := consumer.New(tr, consumer.Options{Logger: quiet})
	if err != nil {
		w.Fatal(err)
	}
	h := waybill.Handler{Name: "t.x", Handle: func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		w.pause(rand.N(long))
		num, err := strconv.Atoi(string(d.Envelope.Body))
		if err == nil {
			_, err = w.sink.Exec(ctx, "INSERT INTO arrivals (id, key, num) VALUES ($1, $2, $3)", d.Envelope.ID, d.Envelope.Key, num)
		}
		return waybill.HandlerProcessed, err
	}}
	if err := c.Handle(waybill.Subscription{Queue: queue, Concurrency: handlers}, h); err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.Run(ctx); err != nil {
			w.Errorf("queue %s: %v", queue, err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		_ = tr.Close(w.Context())
		_ = o.Close(w.Context())
	})
	w.Cleanup(stop)
	return stop
}

// message is one that was staged, or that arrived.
type message struct {
	ID, Key string
	Num     int
}

func messages(w *world, pool *pgxpool.Pool, sql string) []message {
	w.Helper()
	rows, _ := pool.Query(w.Context(), sql)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[message])
	if err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
	return all
}

// allArrive waits until the outbox is empty but for the abandoned, and checks all that arrived: nothing was lost but
// without, and the first arrivals of each key came in order. It returns how many arrived again.
func (w *world) allArrive(limit time.Duration, without ...string) (again int) {
	w.Helper()
	left := 0
	defer func() {
		if w.Failed() {
			w.Logf("%d records are left", left)
		}
	}()
	w.until(limit, "everything arrives", func() bool {
		left = w.number(w.pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE settled_at IS NULL")
		return left == 0
	})
	missing, lastOf := map[string]message{}, map[string]int{}
	for _, m := range messages(w, w.pool, "SELECT id, key, num FROM staged") {
		missing[m.ID] = m
	}
	n := len(missing)
	seen, inverted := map[string]bool{}, 0
	for _, m := range messages(w, w.sink, "SELECT id, key, num FROM arrivals ORDER BY n") {
		_, wanted := missing[m.ID]
		delete(missing, m.ID)
		switch {
		case seen[m.ID]:
			again++
		case !wanted && w.forgot[m.ID]:
		case !wanted:
			w.Errorf("number %d of key %s arrived and was never committed", m.Num, m.Key)
		case m.Num <= lastOf[m.Key]:
			if inverted++; inverted < 10 {
				w.Errorf("number %d of key %s arrived after number %d", m.Num, m.Key, lastOf[m.Key])
			}
		}
		seen[m.ID] = true
		lastOf[m.Key] = max(lastOf[m.Key], m.Num)
	}
	for _, id := range without {
		if seen[id] {
			w.Errorf("%s arrived", id)
		}
		delete(missing, id)
	}
	if inverted > 0 {
		w.Errorf("%d arrived out of order", inverted)
	}
	if len(missing) > 0 {
		some := slices.Collect(maps.Values(missing))
		w.Errorf("%d of %d are lost: %v", len(missing), n, some[:min(len(some), 10)])
	}
	w.Logf("%d arrived, %d of them again", len(seen)+again, again)
	return again
}

// forget is called when the database has gone back in time. Messages that it has lost may still arrive.
func (w *world) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.Copy(w.forgot, w.tried)
}

// unharmed checks that no crash was counted and no member removed.
func (w *world) unharmed() {
	w.Helper()
	if n := w.number(w.pool, "SELECT count(*) FROM crashed"); n > 0 {
		w.Errorf("%d crashes were counted", n)
	}
	if names := list[string](w, w.pool, "SELECT name FROM removed"); len(names) > 0 {
		w.Errorf("removed: %v", names)
	}
}
