package listen

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
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
		w.Read(time.Now(), &core.ReadRequest{Ranges: []core.Range{{RouteSlots: core.RouteSlots{Route: waybill.DefaultRoute}, UpToSeq: 1 << 62}}},
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

// DB-10: pauses double up to the safety poll. Work begins them anew.
func TestPauses(t *testing.T) {
	t.Parallel()
	w := New(Options{})
	next := func() (sum time.Duration) {
		for range 7 {
			sum += w.nextPause(nil)
		}
		return sum
	}
	if first := next(); first != 127*firstPoll {
		t.Errorf("the first seven pauses take %s", first)
	}
	for range 3 {
		if p := w.nextPause(nil); p != safetyPoll {
			t.Errorf("an idle relay pauses for %s, want %s", p, safetyPoll)
		}
	}
	rg := []core.Range{{UpToSeq: 1 << 62}}
	w.Read(time.Now(), &core.ReadRequest{Ranges: rg}, &core.ReadResult{Ranges: []core.Records{{}}})
	if p := w.nextPause(nil); p != safetyPoll {
		t.Errorf("after an empty read it pauses for %s", p)
	}
	w.Read(time.Now(), &core.ReadRequest{Ranges: rg}, &core.ReadResult{Ranges: []core.Records{{Records: make([]core.Record, 1)}}})
	if p := w.nextPause(nil); p != firstPoll {
		t.Errorf("after work it pauses for %s", p)
	}
}

// DB-10: while notifications arrive, no transaction is open and nothing has happened for long, pauses double up to the
// deep poll. Each of these conditions is needed.
func TestDeepPauses(t *testing.T) {
	t.Parallel()
	routes := []string{waybill.DefaultRoute}
	for _, tc := range []struct {
		name string
		with func(w *Waiter)
		want time.Duration
	}{
		{"all is well", func(*Waiter) {}, deepPoll},
		{"LISTEN was lost", func(w *Waiter) { w.listener.conn = nil }, safetyPoll},
		{"no notification has arrived yet", func(w *Waiter) { w.listener.self = selfPrefix }, safetyPoll},
		{"a transaction is open", func(w *Waiter) { w.seen[routes[0]] = seen{before: 7} }, safetyPoll},
		{"something has happened", func(w *Waiter) { w.stirred() }, safetyPoll},
	} {
		w := New(Options{})
		w.listener.conn, w.calmFrom = &pgx.Conn{}, time.Now().Add(-calmFor)
		last := time.Duration(0)
		for range 20 {
			p := w.nextPause(routes)
			if p > 2*max(last, firstPoll) {
				t.Errorf("%s: a pause of %s comes after one of %s", tc.name, p, last)
			}
			last = p
		}
		tc.with(w)
		if p := w.nextPause(routes); p != tc.want {
			t.Errorf("%s: it pauses for %s, want %s", tc.name, p, tc.want)
		}
	}
}

// sleepDeeply has a Wait on a new outbox sleep for an hour, and returns the channel of its cause to wake.
func sleepDeeply(t *testing.T, w *Waiter, pool *pgxpool.Pool) <-chan core.WakeCause {
	t.Helper()
	ctx, routes := t.Context(), []string{waybill.DefaultRoute}
	patience.Until(t, "it listens", func() bool {
		_, err := w.Wait(ctx, routes, time.Millisecond)
		return err == nil && w.listener.works()
	})
	w.seen[routes[0]] = seen{}                           // all of the empty outbox
	soon := time.Now().Add(10 * time.Minute).UnixMilli() // another relay sleeps, but not for long enough
	if _, err := pool.Exec(ctx, "SELECT setval('waybill.waybill_outbox_wake', $1)", soon); err != nil {
		t.Fatal(err)
	}
	w.SleepDeeply(time.Hour)
	woken := make(chan core.WakeCause, 1)
	go func() {
		cause, err := w.Wait(ctx, routes, 24*time.Hour)
		if err != nil {
			t.Error(err)
		}
		woken <- cause
	}()
	patience.Until(t, "it sleeps for an hour", func() bool { return wakeUntil(t, pool) > soon+time.Minute.Milliseconds() })
	return woken
}

// hearsOf fails unless a Wait ends because of cause.
func hearsOf(t *testing.T, woken <-chan core.WakeCause, want core.WakeCause) {
	t.Helper()
	ctx, _ := patience.Context(t.Context(), patience.Limit)
	select {
	case cause := <-woken:
		if cause != want {
			t.Errorf("woken by %s, want %s", cause, want)
		}
	case <-ctx.Done():
		t.Fatal("it sleeps on")
	}
}

// silentSQL stages without a notification: a row that brings its slot is taken for one that a program has staged.
const silentSQL = "INSERT INTO waybill.waybill_outbox (source, topic, body, slot) VALUES ('/test', 't.x', '', 1)"

// DB-10: a relay that sleeps for long looks as soon as its connection is lost: it may have missed a notification.
func TestDeepSleepEndsWithTheConnection(t *testing.T) {
	t.Parallel()
	w, pool, _ := newWaiter(t)
	woken := sleepDeeply(t, w, pool)
	if _, err := pool.Exec(t.Context(), silentSQL); err != nil {
		t.Fatal(err)
	}
	_, err := pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE '%set' || 'val(%' AND pid <> pg_backend_pid()`)
	if err != nil {
		t.Fatal(err)
	}
	hearsOf(t, woken, core.WakePoll)
}

// DB-10: what another statement of the relay saw ends a long sleep, if it is news.
func TestDeepSleepEndsWithWhatAHeartbeatSaw(t *testing.T) {
	t.Parallel()
	for name, news := range map[string]seen{"a number": {last: 8, lastNotice: 4}, "a notice": {last: 7, lastNotice: 5}, "an end": {last: 7, lastNotice: 4, before: 3}} {
		w := New(Options{})
		w.seen["r"] = seen{last: 7, lastNotice: 4, before: news.before}
		w.enter([]string{"r"})
		w.Saw(7, 4, 2)
		w.Saw(6, 3, 2) // an older answer
		if w.hint {
			t.Errorf("%s: old news end it", name)
		}
		if w.Saw(news.last, news.lastNotice, 3); !w.hint {
			t.Errorf("%s: it sleeps on", name)
		}
		w.hint = false
		w.ended()
		if w.Saw(9, 9, 9); w.hint {
			t.Errorf("%s: the next Wait, which looks by itself, ends at once", name)
		}
	}
}

// DB-10, ST-07: what comes due shortens the sleep under way, and ends the Wait for its route once.
func TestWhatComesDueEndsASleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		w := New(Options{})
		left := func(want time.Duration, routes ...string) {
			t.Helper()
			if got := w.left(routes, time.Now().Add(time.Hour)); got != want {
				t.Errorf("a Wait for %v lasts %s, want %s", routes, got, want)
			}
		}
		began, ended := time.Now(), make(chan bool)
		go func() { ended <- w.sleepUntil(t.Context(), []string{"r"}, time.Hour) }()
		synctest.Wait()
		w.DueIn("r", 2*time.Second)
		if <-ended || !time.Now().Equal(began) {
			t.Errorf("the sleep under way ends after %s", time.Since(began))
		}
		left(2*time.Second, "q", "r")
		w.DueIn("r", 3*time.Second)
		w.DueIn("r", 0)
		w.DueIn("r", -1)
		left(2*time.Second, "r")
		w.DueIn("r", time.Second)
		left(time.Second, "r")
		left(time.Hour, "q")
		time.Sleep(time.Second)
		left(0, "r")
		w.timedOut([]string{"q"})
		left(0, "r")
		w.timedOut([]string{"r"})
		left(time.Hour, "r")
	})
}

// DB-10: where no relay has announced its sleep until now, a pause stays short: a Stage that is under way may not
// notify.
func TestDeepSleepNeedsAnUnbrokenAnnouncement(t *testing.T) {
	t.Parallel()
	w, pool, _ := newWaiter(t)
	w.listener.keep(t.Context())
	for _, tc := range []struct {
		until  int64
		lapsed bool
	}{{1, true}, {time.Now().Add(time.Hour).UnixMilli(), false}} {
		if _, err := pool.Exec(t.Context(), "SELECT setval('waybill.waybill_outbox_wake', $1)", tc.until); err != nil {
			t.Fatal(err)
		}
		w.calmFrom = time.Time{}
		if _, err := w.lookAround(t.Context(), []string{waybill.DefaultRoute}, deepPoll); err != nil {
			t.Fatal(err)
		}
		if w.lapsed != tc.lapsed || w.calmFrom.IsZero() == tc.lapsed {
			t.Errorf("said until %d: lapsed: %v, calm since %s", tc.until, w.lapsed, w.calmFrom)
		}
	}
}

// DB-10, SE-01: of two relays that say at a time until when they sleep, the later one shortens nothing: it says
// nothing, and its pause stays short. It does not wait for the lock of the other one either: a role that may do no more
// than connect can take that lock, and keep it.
func TestAnnouncementIsNotShortened(t *testing.T) {
	t.Parallel()
	w, pool, log := newWaiter(t)
	ctx := t.Context()
	w.listener.keep(ctx)
	other, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback(context.WithoutCancel(ctx))
	if _, err := other.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", announceLock(schema.NewNames("", "", "").Channel())); err != nil {
		t.Fatal(err)
	}
	soon := time.Now().Add(safetyPoll / 2).UnixMilli()
	for _, until := range []int64{1, soon} {
		if _, err := pool.Exec(ctx, "SELECT setval('waybill.waybill_outbox_wake', $1)", until); err != nil {
			t.Fatal(err)
		}
		w.lapsed, w.calmFrom = false, time.Time{}
		if _, err := w.lookAround(ctx, []string{waybill.DefaultRoute}, deepPoll); err != nil {
			t.Fatal(err)
		}
		if got := wakeUntil(t, pool); got != until || !w.lapsed || w.calmFrom.IsZero() || w.listener.conn == nil || log.Len() > 0 {
			t.Errorf("it is said until %d, want %d; lapsed %t, calm since %s; log: %s", got, until, w.lapsed, w.calmFrom, log)
		}
	}
	if err := other.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := w.lookAround(ctx, []string{waybill.DefaultRoute}, deepPoll); err != nil {
		t.Fatal(err)
	}
	if got := wakeUntil(t, pool); got <= soon {
		t.Errorf("with the lock it is said until %d", got)
	}

	// Another relay says so between the look of this one and its lock: here a function in place of the lock does.
	hence := time.Now().Add(time.Hour).UnixMilli()
	for _, sql := range []string{
		"CREATE SCHEMA slow",
		"CREATE FUNCTION slow.taken(bigint) RETURNS boolean LANGUAGE sql VOLATILE AS $$ SELECT setval('waybill.waybill_outbox_wake', " +
			strconv.FormatInt(hence, 10) + ") > 0 $$",
		"SELECT setval('waybill.waybill_outbox_wake', 1)",
	} {
		if _, err := w.listener.conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	w.sleep = strings.Replace(w.sleep, "pg_catalog.pg_try_advisory_xact_lock(", "slow.taken(", 1)
	if _, err := w.lookAround(ctx, []string{waybill.DefaultRoute}, safetyPoll); err != nil {
		t.Fatal(err)
	}
	if got := wakeUntil(t, pool); got != hence {
		t.Errorf("it is said until %d, want %d", got, hence)
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
		w.Read(time.Now(), &core.ReadRequest{Ranges: []core.Range{{UpToSeq: 1 << 62}}}, &core.ReadResult{Ranges: []core.Records{{Records: make([]core.Record, records)}}})
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

// DB-10: a steady load ends each Wait with its first look. The listener hears the notification to itself all the same:
// without it the relay would look every millisecond, for as long as the load lasts.
func TestHearsItselfUnderALoad(t *testing.T) {
	t.Parallel()
	w, _, _ := newWaiter(t)
	patience.Until(t, "it hears itself", func() bool {
		w.mu.Lock()
		w.worked, w.gap = time.Now(), busyGap
		w.mu.Unlock()
		if cause, err := w.Wait(t.Context(), []string{waybill.DefaultRoute}, time.Hour); cause != core.WakePoll || err != nil {
			t.Fatalf("%s, %v; want poll at once", cause, err)
		}
		return w.listener.works()
	})
}

// DB-10: two relays that have one store value are told so. They never use its connection at a time, and rely on nothing
// that the other one has read: both poll.
func TestWaitOfTwoRelays(t *testing.T) {
	t.Parallel()
	w, _, _ := newWaiter(t)
	routes := []string{waybill.DefaultRoute}
	wait := func() error {
		_, err := w.Wait(t.Context(), routes, patience.Limit)
		return err
	}
	w.Read(time.Now(), &core.ReadRequest{Ranges: []core.Range{{RouteSlots: core.RouteSlots{Route: waybill.DefaultRoute}, UpToSeq: 1 << 62}}},
		&core.ReadResult{Ranges: []core.Records{{}}}) // of the other relay, which has read all
	w.Wake()
	if err := wait(); err != nil { // one at a time
		t.Fatal(err)
	}
	first := make(chan error, 1)
	go func() {
		for t.Context().Err() == nil {
			if err := wait(); err != nil {
				first <- err
				return
			}
		}
	}()
	patience.Until(t, "the first relay waits", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.waits
	})
	errs := []error{wait()}
	ctx, _ := patience.Context(t.Context(), patience.Limit)
	select {
	case err := <-first:
		errs = append(errs, err)
	case <-ctx.Done():
		t.Fatal("the first relay relies on what the other one has read")
	}
	for _, err := range append(errs, wait()) {
		if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "make one for each") {
			t.Errorf("got %v", err)
		}
	}
	if w.listener.conn != nil {
		t.Error("a connection is left, and nobody to close it")
	}
}
