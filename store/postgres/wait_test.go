package postgres_test

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres"
)

type woken struct {
	cause core.WakeCause
	after time.Duration
	err   error
}

// sleepThen starts a relay that finds nothing and sleeps, does what wakes it, and returns how it woke.
func sleepThen(t *testing.T, o *postgres.Outbox, limit time.Duration, wake func()) woken {
	t.Helper()
	done := make(chan woken, 1)
	asleep := make(chan struct{})
	var mu sync.Mutex // a read ends before what wakes begins
	var begun atomic.Bool
	go func() {
		for range 3 { // the first waits settle: they connect, and see what was staged before
			holdNext(t, o, want(10))
			if _, err := o.Wait(t.Context(), []string{waybill.DefaultRoute}, 20*time.Millisecond); err != nil {
				t.Error(err)
			}
		}
		close(asleep)
		for {
			mu.Lock()
			if !begun.Load() { // else it could read what is to wake it
				holdNext(t, o, want(10))
			}
			mu.Unlock()
			began := time.Now()
			cause, err := o.Wait(t.Context(), []string{waybill.DefaultRoute}, limit)
			if err == nil && cause != core.WakeNotify && !begun.Load() {
				continue // the end of some other test's transaction woke it
			}
			done <- woken{cause, time.Since(began), err}
			return
		}
	}()
	<-asleep
	timer := time.NewTimer(60 * time.Millisecond) // it sleeps by now
	defer timer.Stop()
	<-timer.C
	mu.Lock()
	begun.Store(true)
	mu.Unlock()
	wake()
	ctx, _ := patience.Context(t.Context(), patience.Limit)
	select {
	case w := <-done:
		if w.err != nil {
			t.Fatal(w.err)
		}
		return w
	case <-ctx.Done():
		t.Fatal("it never woke")
		return woken{}
	}
}

// wakes sleeps and wakes until the cause is want. The end of some other test's transaction may come first, or the
// limit.
func wakes(t *testing.T, o *postgres.Outbox, want core.WakeCause, wake func()) {
	t.Helper()
	// Shorter than a Wait by itself: so its end by the limit is a WakeLimit, and no WakePoll.
	const limit = 3 * time.Second
	patience.Until(t, "woken by "+string(want), func() bool { return sleepThen(t, o, limit, wake).cause == want })
}

// DB-10
func TestWakeUp(t *testing.T) {
	t.Parallel()
	t.Run("by notification", func(t *testing.T) {
		t.Parallel()
		o, pool := newOutbox(t, postgres.Options{})
		wakes(t, o, core.WakeNotify, func() { stage(t, pool, o, message()) })
		if c := holdNext(t, o, want(1)); len(c.Records) != 1 {
			t.Fatal("nothing to hold")
		}
	})
	t.Run("by a row that brings its slot", func(t *testing.T) {
		t.Parallel()
		o, pool := newOutbox(t, postgres.Options{})
		wakes(t, o, core.WakePoll, func() {
			exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body, slot) VALUES ('t.x', '{}', 1)`)
		})
	})
	t.Run("by hand", func(t *testing.T) {
		t.Parallel()
		o, pool := newOutbox(t, postgres.Options{})
		wakes(t, o, core.WakeNotify, func() {
			exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body) VALUES ('t.x', '{}')`)
		})
		c := holdNext(t, o, want(1))
		if len(c.Records) != 1 || c.Records[0].Envelope.Source != "/test" || c.Records[0].Envelope.Type != "t.x" || c.Records[0].Envelope.ID == "" {
			t.Fatalf("%+v", c.Records)
		}
	})
	t.Run("at the limit", func(t *testing.T) {
		t.Parallel()
		o, _ := newOutbox(t, postgres.Options{})
		const limit = 300 * time.Millisecond
		patience.Until(t, "the limit ends a sleep", func() bool {
			w := sleepThen(t, o, limit, func() {})
			if w.cause == core.WakeNotify || w.cause == core.WakeLimit && w.after < limit {
				t.Fatalf("%+v", w)
			}
			return w.cause == core.WakeLimit
		})
	})
	t.Run("by hint", func(t *testing.T) {
		t.Parallel()
		o, _ := newOutbox(t, postgres.Options{})
		wakes(t, o, core.WakeNotify, o.Wake)
	})
	t.Run("not by a rollback, a savepoint's rollback or a later schedule", func(t *testing.T) {
		t.Parallel()
		o, pool := newOutbox(t, postgres.Options{})
		conn, channel := listens(t, pool, o), postgres.SQL(o, "{channel}")
		// a relay sleeps
		exec(t, pool, `SELECT setval('waybill.waybill_outbox_wake', (extract(epoch FROM now()) * 1000)::bigint + 3600000)`)
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Stage(t.Context(), tx, message()); err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			inner, err := tx.Begin(t.Context())
			if err != nil {
				return err
			}
			if _, err := o.Stage(t.Context(), inner, message()); err != nil {
				return err
			}
			if err := inner.Rollback(t.Context()); err != nil {
				return err
			}
			if _, err = o.Stage(t.Context(), tx, message(waybill.Delay(time.Hour))); err != nil {
				return err
			}
			_, err = tx.Exec(t.Context(), `INSERT INTO waybill.waybill_outbox (topic, body, due_at) VALUES ('t.x', '{}', now() + interval '1 hour')`)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if c := holdNext(t, o, want(1)); len(c.Records) != 0 {
			t.Fatal("a rolled back message was held")
		}
		exec(t, pool, "SELECT pg_notify("+channel+", 'marker')")
		stage(t, pool, o, message())
		for _, want := range []string{"marker", waybill.DefaultRoute} {
			if n, err := conn.WaitForNotification(t.Context()); err != nil || n.Payload != want {
				t.Fatalf("notified %+v, %v, want %s", n, err, want)
			}
		}
	})
	t.Run("by a schedule that comes before the relay asks", func(t *testing.T) {
		t.Parallel()
		o, pool := newOutbox(t, postgres.Options{})
		for name, msgs := range map[string][]waybill.Message{
			"one": {message(waybill.Delay(40 * time.Second))}, "two": {message(waybill.Delay(40 * time.Second)), message(waybill.Delay(time.Hour))},
			"with a dedupe key": {message(waybill.Delay(40*time.Second), waybill.DedupeKey("d"))},
		} {
			exec(t, pool, `SELECT setval('waybill.waybill_outbox_wake', 1)`)
			conn := listens(t, pool, o)
			exec(t, pool, `SELECT setval('waybill.waybill_outbox_wake', (extract(epoch FROM now()) * 1000)::bigint + 3600000)`)
			stage(t, pool, o, msgs...)
			exec(t, pool, "SELECT pg_notify("+postgres.SQL(o, "{channel}")+", 'marker')")
			if n, err := conn.WaitForNotification(t.Context()); err != nil || n.Payload != waybill.DefaultRoute {
				t.Errorf("%s: notified %+v, %v", name, n, err)
			}
		}
	})
	t.Run("by a notice", func(t *testing.T) {
		t.Parallel()
		o, pool := newOutbox(t, postgres.Options{})
		conn := listens(t, pool, o)
		exec(t, pool, `SELECT setval('waybill.waybill_outbox_wake', 1)`)
		const notice = `INSERT INTO waybill.waybill_outbox_notices (kind, route, slots) VALUES (1, $1, 1)`
		exec(t, pool, notice, "nobody sleeps")
		exec(t, pool, `SELECT setval('waybill.waybill_outbox_wake', (extract(epoch FROM now()) * 1000)::bigint + 3600000)`)
		exec(t, pool, notice, "r")
		ctx, _ := patience.Context(t.Context(), patience.Limit)
		if n, err := conn.WaitForNotification(ctx); err != nil || n.Payload != "r" {
			t.Errorf("notified %+v, %v", n, err)
		}
	})
	t.Run("not by a role that may not see who sleeps", func(t *testing.T) {
		t.Parallel()
		o, pool := newOutbox(t, postgres.Options{})
		exec(t, pool, `SELECT setval('waybill.waybill_outbox_wake', (extract(epoch FROM now()) * 1000)::bigint + 3600000)`)
		role := "waybill_hand_" + strings.ToLower(rand.Text())
		exec(t, pool, `CREATE ROLE `+role)
		t.Cleanup(func() {
			_, _ = pool.Exec(context.Background(), `DROP OWNED BY `+role)
			_, _ = pool.Exec(context.Background(), `DROP ROLE `+role)
		})
		exec(t, pool, `GRANT USAGE ON SCHEMA waybill TO `+role+`; GRANT INSERT ON waybill.waybill_outbox TO `+role+
			`; GRANT USAGE ON SEQUENCE waybill.waybill_outbox_seq TO `+role)
		exec(t, pool, `SET ROLE `+role+`; INSERT INTO waybill.waybill_outbox (topic, body) VALUES ('t.x', '{}'); RESET ROLE`)
		if c := holdNext(t, o, want(1)); len(c.Records) != 1 {
			t.Error("nothing was put in")
		}
	})
	t.Run("without NOTIFY", func(t *testing.T) {
		t.Parallel()
		o, pool := newOutbox(t, postgres.Options{DisableNotify: true})
		wakes(t, o, core.WakePoll, func() { stage(t, pool, o, message()) })
	})
	t.Run("when the context ends", func(t *testing.T) {
		t.Parallel()
		o, _ := newOutbox(t, postgres.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		for {
			cause, err := o.Wait(ctx, []string{waybill.DefaultRoute}, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if cause == core.WakeStop {
				return
			}
		}
	})
}

// listens returns a connection that hears what relays of o hear.
func listens(t *testing.T, pool *pgxpool.Pool, o *postgres.Outbox) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), "LISTEN "+strings.Trim(postgres.SQL(o, "{channel}"), "'")); err != nil {
		t.Fatal(err)
	}
	return conn
}

// DB-10: a new number that a heartbeat shows ends a long sleep that no notification ends.
func TestHeartbeatEndsADeepSleep(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{}) // transactions of others make a relay look
	pool := openPool(t, server.DSN("postgres"))
	o := outboxOn(t, pool, postgres.Options{})
	self := session(t, o, waybill.DefaultRoute)
	woken := sleepsDeeply(t, o, pool, self)
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body, slot) VALUES ('t.x', '{}', 1)`)
	if _, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: self}}); err != nil {
		t.Fatal(err)
	}
	endsSleep(t, woken)
}

// DB-10, ST-07: a retry that a relay's own settle stores ends a long sleep when it comes due.
func TestRetryEndsADeepSleep(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{}) // transactions of others make a relay look
	pool := openPool(t, server.DSN("postgres"))
	o := outboxOn(t, pool, postgres.Options{})
	self := session(t, o, waybill.DefaultRoute)
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body, slot) VALUES ('t.x', '{}', 1)`)
	r := read(t, o, self, waybill.DefaultRoute).Ranges[0].Records[0]
	woken := sleepsDeeply(t, o, pool, self)
	if err := o.Settle(t.Context(), self, []core.Outcome{core.Retry(&r, errNo, time.Second)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	endsSleep(t, woken)
}

// sleepsDeeply has a Wait sleep for an hour, and returns what it returns.
func sleepsDeeply(t *testing.T, o *postgres.Outbox, pool *pgxpool.Pool, self core.Session) <-chan error {
	t.Helper()
	patience.Until(t, "nothing is open", func() bool {
		look(t, o, self)
		cause, err := o.Wait(t.Context(), []string{waybill.DefaultRoute}, 10*time.Millisecond)
		return err == nil && cause == core.WakeLimit
	})
	// Another relay sleeps, but not for long enough.
	exec(t, pool, `SELECT setval('waybill.waybill_outbox_wake', (extract(epoch FROM now()) * 1000)::bigint + 600000)`)
	postgres.SleepDeeply(o, time.Hour)
	woken := make(chan error, 1)
	go func() {
		_, err := o.Wait(t.Context(), []string{waybill.DefaultRoute}, 24*time.Hour)
		woken <- err
	}()
	patience.Until(t, "it sleeps for an hour", func() bool {
		return query[bool](t, pool, `SELECT last_value > (extract(epoch FROM now()) * 1000)::bigint + 3600000 FROM waybill.waybill_outbox_wake`)
	})
	return woken
}

// endsSleep fails the test if a Wait sleeps on.
func endsSleep(t *testing.T, woken <-chan error) {
	t.Helper()
	ctx, _ := patience.Context(t.Context(), patience.Limit)
	select {
	case err := <-woken:
		if err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Error("it sleeps on")
	}
}

// DB-10: no notification is sent while no relay sleeps, and a sleeper that died is forgotten.
func TestNotifiesOnlySleepers(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	exec(t, pool, `SELECT setval('waybill.waybill_outbox_wake', 1)`)
	before := queryInt(t, pool, `SELECT last_value FROM waybill.waybill_outbox_wake`)
	stage(t, pool, o, message())
	if after := queryInt(t, pool, `SELECT last_value FROM waybill.waybill_outbox_wake`); after != before {
		t.Fatalf("staging moved the wake-up sequence from %d to %d", before, after)
	}
	if _, err := o.Wait(t.Context(), []string{waybill.DefaultRoute}, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	until := time.UnixMilli(queryInt(t, pool, `SELECT last_value FROM waybill.waybill_outbox_wake`))
	if ahead := time.Until(until); ahead > 2*time.Second {
		t.Fatalf("a relay that died now would be notified for %s", ahead)
	}
}

// counter counts round trips.
type counter struct{ n atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *counter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (c *counter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (c *counter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func tracedPool(tb testing.TB, dsn string) (*pgxpool.Pool, *counter) {
	tb.Helper()
	c := &counter{}
	return openPoolWith(tb, dsn, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = c }), c
}

// look reads the default route from its beginning, as a relay does.
func look(tb testing.TB, o *postgres.Outbox, self core.Session) int {
	tb.Helper()
	return len(read(tb, o, self, waybill.DefaultRoute).Ranges[0].Records)
}

// DB-10: an idle relay makes at most two queries a second. Its pauses are lower bounds: a slow machine makes fewer.
func TestIdleQueries(t *testing.T) {
	tier.Nightly(t, "real pauses of 6 s; the gate has TestPauses of internal/listen")
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{}) // transactions of others make a relay look
	pool, count := tracedPool(t, server.DSN("postgres"))
	o := outboxOn(t, pool, postgres.Options{})
	self := session(t, o, waybill.DefaultRoute)
	began := time.Now()
	for count.n.Load() < 40 { // it settles down, and goes on
		look(t, o, self)
		if _, err := o.Wait(t.Context(), []string{waybill.DefaultRoute}, time.Minute); err != nil {
			t.Fatal(err)
		}
		if n := count.n.Load(); n < 20 {
			began = time.Now()
		}
	}
	// The reads come on top: each wait ends after 4 s.
	if took, least := time.Since(began), 7*time.Second; took < least {
		t.Fatalf("20 queries in %s, want at least %s", took, least)
	}
}

// DB-10: a relay that no notification reaches hears of a transaction that was open at its latest hold, also if that
// was the newest.
func TestWaitHearsWhatWasOpen(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{}) // transactions of others make a relay look
	pool := openPool(t, server.DSN("postgres"))
	o := outboxOn(t, pool, postgres.Options{DisableNotify: true})
	wait := func(limit time.Duration) core.WakeCause {
		t.Helper()
		cause, err := o.Wait(t.Context(), []string{waybill.DefaultRoute}, limit)
		if err != nil {
			t.Fatal(err)
		}
		return cause
	}
	rest := func() {
		t.Helper()
		patience.Until(t, "nothing to do", func() bool {
			for _, r := range holdNext(t, o, want(10)).Records {
				settle(t, o, core.Published(&r))
			}
			return wait(100*time.Millisecond) == core.WakeLimit
		})
	}
	stage(t, pool, o, message())
	for name, tc := range map[string]struct{ early, late func(tx pgx.Tx) error }{
		"the newest": {
			early: func(tx pgx.Tx) error { _, err := o.Stage(t.Context(), tx, message()); return err },
			late:  func(pgx.Tx) error { rest(); return nil },
		},
	} {
		rest()
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			if err := tc.early(tx); err != nil {
				return err
			}
			if c := holdNext(t, o, want(10)); len(c.Records) != 0 {
				t.Errorf("%s: held what is not committed", name)
			}
			return tc.late(tx)
		})
		if err != nil {
			t.Fatal(err)
		}
		if cause := wait(4 * time.Second); cause != core.WakePoll {
			t.Errorf("%s: woken by %v", name, cause)
		}
		if c := holdNext(t, o, want(10)); len(c.Records) != 1 {
			t.Errorf("%s: nothing to hold", name)
		} else {
			settle(t, o, core.Published(&c.Records[0]))
		}
	}
}

// ST-02 DB-02 DB-03: one round trip each, for any number of messages.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	pool, count := tracedPool(t, testenv.Postgres(t).DSN)
	o := outboxOn(t, pool, postgres.Options{})
	if err := o.Seed(t.Context()); err != nil {
		t.Fatal(err)
	}
	msgs := make([]waybill.Message, 500)
	for i := range msgs {
		msgs[i] = message(waybill.Key(strings.Repeat("k", i%7)))
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := count.n.Load()
	if _, err := o.Stage(t.Context(), tx, msgs...); err != nil {
		t.Fatal(err)
	}
	if n := count.n.Load() - before; n != 1 {
		t.Errorf("staging 500 messages made %d round trips", n)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	self := session(t, o, waybill.DefaultRoute)
	before = count.n.Load()
	c := read(t, o, self, waybill.DefaultRoute).Ranges[0]
	if n := count.n.Load() - before; n != 1 || len(c.Records) != 500 {
		t.Errorf("reading %d records made %d round trips", len(c.Records), n)
	}
	var out []core.Outcome
	for i := range c.Records {
		switch i % 4 {
		case 0:
			out = append(out, core.Published(&c.Records[i]))
		case 1:
			out = append(out, core.Retry(&c.Records[i], context.DeadlineExceeded, time.Second))
		case 2:
			out = append(out, core.Abandon(&c.Records[i], waybill.ReasonRejected, context.DeadlineExceeded))
		default:
			out = append(out, core.Release(&c.Records[i], 0, false))
		}
	}
	before = count.n.Load()
	settleBy(t, o, self, out...)
	if n := count.n.Load() - before; n != 1 {
		t.Errorf("settling 500 outcomes made %d round trips", n)
	}
}

// DB-10: LISTEN is opened again after it was lost.
func TestListenLost(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	o, pool := newOutbox(t, postgres.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	listening := func() int64 {
		return queryInt(t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%set' || 'val(%' AND pid <> pg_backend_pid()`)
	}
	ctx, stop := context.WithCancel(t.Context())
	self := session(t, o, waybill.DefaultRoute)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			if _, err := tryHoldNext(ctx, o, self, want(1)); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			if _, err := o.Wait(ctx, []string{waybill.DefaultRoute}, time.Second); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	}()
	patience.Until(t, "it listens", func() bool { return listening() == 1 })
	exec(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%set' || 'val(%' AND pid <> pg_backend_pid()`)
	patience.Until(t, "it is lost", func() bool { return listening() == 0 })
	patience.Until(t, "it listens again", func() bool { return listening() == 1 })
	stop()
	<-over
	if !strings.Contains(log.String(), "event=postgres.listen_lost") {
		t.Errorf("not logged: %s", log.String())
	}
}

// TestCalmRelayIsNotified: a relay that gets a record now and then sleeps as soon as it has read it, so that the next
// commit notifies it: it does not look a thousand times a second.
//
// DB-10
func TestCalmRelayIsNotified(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{}) // transactions of others make a relay look
	pool, count := tracedPool(t, server.DSN("postgres"))
	o := outboxOn(t, pool, postgres.Options{})
	wait := func(limit time.Duration) (queries int64) {
		t.Helper()
		before := count.n.Load()
		if _, err := o.Wait(t.Context(), []string{waybill.DefaultRoute}, limit); err != nil {
			t.Fatal(err)
		}
		return count.n.Load() - before
	}
	for i := range 8 {
		stage(t, pool, o, message())
		wait(300 * time.Millisecond)
		for range 2 { // what had not ended when the first read was made has by then
			for _, r := range holdNext(t, o, want(10)).Records {
				settle(t, o, core.Published(&r))
			}
		}
		if n := wait(15 * time.Millisecond); i > 1 && n > 4 {
			t.Errorf("%d queries in 15 ms after a record", n)
		}
	}
}

// DB-10: relays that sleep use up few transaction ids, however many they are: autovacuum must freeze for each.
func TestIdleTransactionIDs(t *testing.T) {
	tier.Nightly(t, "real pauses of 5 s; the gate has TestOneSaysThatAllSleep of internal/listen")
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{Settings: map[string]string{"autovacuum": "off"}})
	pool := openPool(t, server.DSN("postgres"))
	const relays = 5
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for range relays {
		o := outboxOn(t, pool, postgres.Options{})
		self := session(t, o, waybill.DefaultRoute)
		wg.Go(func() {
			for ctx.Err() == nil {
				look(t, o, self)
				if _, err := o.Wait(ctx, []string{waybill.DefaultRoute}, time.Minute); err != nil {
					t.Error(err)
				}
			}
		})
	}
	drawn := func() int64 {
		return query[int64](t, pool, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
	}
	asleep := func() bool {
		return query[bool](t, pool, "SELECT last_value > (extract(epoch FROM now()) * 1000)::bigint + 1000 FROM waybill.waybill_outbox_wake")
	}
	patience.Until(t, "they sleep", asleep)
	<-time.After(time.Second) // all of them
	before, began := drawn(), time.Now()
	<-time.After(4 * time.Second)
	// All of them together renew what they said every 1.2 s or more, at worst all at once: more time allows more.
	if n, most := drawn()-before, relays*(int64(time.Since(began)/(1200*time.Millisecond))+1); n > most {
		t.Errorf("%d relays that slept used up %d transaction ids, want at most %d", relays, n, most)
	}
}
