package listen

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres/internal/conns"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

// newWaiter returns a Waiter on a fresh outbox, and its log.
func newWaiter(t *testing.T) (*Waiter, *pgxpool.Pool, *strings.Builder) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testenv.Postgres(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	m, err := schema.New(schema.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	log := &strings.Builder{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	w := New(Options{
		Conns: conns.Pool(pool), Names: schema.NewNames("", "", ""),
		Logger: func() *slog.Logger { return logger },
	})
	t.Cleanup(func() { w.Close(context.Background()) })
	return w, pool, log
}

// DB-10: behind a pooler that shares connections by transaction, LISTEN goes to a session that is not ours. The relay
// notices that a notification to itself does not arrive, says so, and polls.
func TestDeadListenIsNoticed(t *testing.T) {
	t.Parallel()
	w, pool, log := newWaiter(t)
	w.listener.listen = `LISTEN "of somebody else"`
	routes := []string{waybill.DefaultRoute}
	look := func() int {
		t.Helper()
		if _, err := w.Wait(t.Context(), routes, time.Second); err != nil {
			t.Fatal(err)
		}
		var n int
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM waybill.waybill_outbox").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	patience.Until(t, "the relay notices that it hears nothing", func() bool {
		look()
		return strings.Contains(log.String(), "did not arrive")
	})
	if _, err := pool.Exec(t.Context(), "INSERT INTO waybill.waybill_outbox (source, topic, body) VALUES ('/test', 't.x', '')"); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "polling finds a record", func() bool { return look() > 0 })
}

// DB-10: a relay that is always busy never sleeps on its connection, and does not take that for a dead LISTEN; a dead
// one is noticed all the same.
func TestBusyRelayKnowsWhetherItListens(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		dead bool
	}{{"alive", false}, {"dead", true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w, pool, log := newWaiter(t)
			if tc.dead {
				w.listener.listen = `LISTEN "of somebody else"`
			}
			patience.Until(t, "it knows whether it listens", func() bool {
				w.Wake() // it never gets to sleep
				if _, err := w.Wait(t.Context(), []string{waybill.DefaultRoute}, time.Second); err != nil {
					t.Fatal(err)
				}
				if _, err := pool.Exec(t.Context(), `SELECT pg_sleep(0.02)`); err != nil { // the work
					t.Fatal(err)
				}
				return w.listener.works() || strings.Contains(log.String(), "did not arrive")
			})
			if noticed := strings.Contains(log.String(), "did not arrive"); noticed != tc.dead {
				t.Fatalf("lost: %v: %s", noticed, log.String())
			}
			if listens := w.listener.works(); listens == tc.dead {
				t.Fatalf("it listens: %v", listens)
			}
		})
	}
}

// wakeUntil is until when a sleeper has said that it sleeps, in milliseconds.
func wakeUntil(t *testing.T, pool *pgxpool.Pool) (ms int64) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "SELECT last_value FROM waybill.waybill_outbox_wake").Scan(&ms); err != nil {
		t.Fatal(err)
	}
	return ms
}

// DB-10: a relay that has much to do does not say that it sleeps: a commit that notifies waits for the others that do.
func TestBusyRelayIsNotNotified(t *testing.T) {
	t.Parallel()
	w, pool, _ := newWaiter(t)
	routes := []string{waybill.DefaultRoute}
	wait := func(limit time.Duration) {
		t.Helper()
		if _, err := w.Wait(t.Context(), routes, limit); err != nil {
			t.Fatal(err)
		}
	}
	wait(time.Millisecond) // it connects
	read := func() {
		w.Read(&core.ReadRequest{Ranges: []core.Range{{RouteSlots: core.RouteSlots{Route: waybill.DefaultRoute}, To: 1 << 62}}},
			&core.ReadResult{Ranges: []core.Records{{Records: make([]core.Record, 10)}}})
	}
	w.awake = time.Hour // however slow this test is, the latest record is not long ago
	before := wakeUntil(t, pool)
	for range 5 {
		read()
		wait(3 * time.Millisecond)
	}
	if wakeUntil(t, pool) != before {
		t.Error("a relay that just had ten records said that it sleeps")
	}
	w.awake = awakeFor
	patience.Until(t, "a relay without work says that it sleeps", func() bool {
		wait(200 * time.Millisecond)
		return wakeUntil(t, pool) != before
	})
}

// DB-10: pauses double up to the safety poll, so that an idle relay makes two queries a second. Work begins them anew.
func TestPauses(t *testing.T) {
	t.Parallel()
	w := New(Options{})
	next := func() (sum time.Duration) {
		for range 7 {
			sum += w.nextPause()
		}
		return sum
	}
	if first := next(); first != 127*firstPoll {
		t.Errorf("the first seven pauses take %s", first)
	}
	for range 3 {
		if p := w.nextPause(); p != safetyPoll {
			t.Errorf("an idle relay pauses for %s, want %s", p, safetyPoll)
		}
	}
	rg := []core.Range{{To: 1 << 62}}
	w.Read(&core.ReadRequest{Ranges: rg}, &core.ReadResult{Ranges: []core.Records{{}}})
	if p := w.nextPause(); p != safetyPoll {
		t.Errorf("after an empty read it pauses for %s", p)
	}
	w.Read(&core.ReadRequest{Ranges: rg}, &core.ReadResult{Ranges: []core.Records{{Records: make([]core.Record, 1)}}})
	if p := w.nextPause(); p != firstPoll {
		t.Errorf("after work it pauses for %s", p)
	}
}

// DB-10: relays that sleep use up few transaction ids, however many they are: autovacuum must freeze for each. One says
// it for all of them, for several pauses, and the others only look.
func TestOneSaysThatAllSleep(t *testing.T) {
	t.Parallel()
	w, pool, _ := newWaiter(t)
	ctx := t.Context()
	w.listener.keep(ctx)
	if w.listener.conn == nil {
		t.Fatal("it does not listen")
	}
	now := func() (ms int64) {
		if err := pool.QueryRow(ctx, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").Scan(&ms); err != nil {
			t.Fatal(err)
		}
		return ms
	}
	said := func(until int64) (before, after, got int64) {
		t.Helper()
		if _, err := pool.Exec(ctx, "SELECT setval('waybill.waybill_outbox_wake', $1)", until); err != nil {
			t.Fatal(err)
		}
		before = now()
		if _, err := w.lookAround(ctx, []string{waybill.DefaultRoute}, safetyPoll); err != nil {
			t.Fatal(err)
		}
		return before, now(), wakeUntil(t, pool)
	}
	hence := now() + time.Hour.Milliseconds()
	if _, _, got := said(hence); got != hence {
		t.Errorf("somebody has said it for long, and it is said again, until %d instead of %d", got, hence)
	}
	tell := (tellFor * safetyPoll).Milliseconds()
	// A sleep that ends before the next look is too short: for a moment no commit would notify this relay.
	for _, until := range []int64{1, now() + (safetyPoll + safetyPoll/2 + asleepMargin).Milliseconds() - 1} {
		if before, after, got := said(until); got < before+tell || got > after+tell {
			t.Errorf("it is said until %d, want %d ms from between %d and %d", got, tell, before, after)
		}
	}
}

// DB-10: where an answer takes longer than a nap, a relay that had records, and gets them as often as a look takes,
// reads again without a look, once. Otherwise it says that it sleeps at once, and does not look again and again.
func TestFarRelayReadsOn(t *testing.T) {
	t.Parallel()
	w := New(Options{}) // a look would have no connection
	w.awake = time.Hour
	read := func(records int) {
		w.Read(&core.ReadRequest{Ranges: []core.Range{{To: 1 << 62}}}, &core.ReadResult{Ranges: []core.Records{{Records: make([]core.Record, records)}}})
	}
	for range 20 {
		read(10)
	}
	if w.readsOn() {
		t.Error("it reads on although a look takes no time")
	}
	for range 10 { // a busy machine, near the database
		w.took(nap / 4)
		w.took(3 * nap)
	}
	if read(10); w.readsOn() {
		t.Errorf("it reads on although a look takes %s", w.trip)
	}
	w.trip = 0
	w.took(5 * nap)
	w.took(6 * nap)
	read(10)
	if cause, err := w.Wait(t.Context(), []string{waybill.DefaultRoute}, time.Second); cause != core.WakePoll || err != nil {
		t.Errorf("%s, %v; want poll at once", cause, err)
	}
	if w.readsOn() {
		t.Error("it reads on although it has read since")
	}
	if read(0); w.readsOn() {
		t.Error("it reads on after a read without records")
	}
	w.gap = time.Second
	w.fresh = true
	if w.readsOn() {
		t.Error("it reads on although a record comes once a second")
	}
	w.gap, w.listener.conn = 0, &pgx.Conn{}
	if changed, err := w.stayAwake(t.Context(), nil, time.Hour); changed || err != nil { // it returns
		t.Errorf("%t, %v", changed, err)
	}
	w.listener.conn = nil
}
