package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// ST-01 ST-16: a transaction that cannot be used is refused at once.
func TestStageRefusesUnusableTransactions(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	var none *pgxpool.Tx
	for _, tx := range []pgx.Tx{nil, none} {
		if _, err := o.Stage(t.Context(), tx, message()); !errors.Is(err, core.ErrInvalid) {
			t.Errorf("nil transaction: %v", err)
		}
	}
	if _, err := o.SQL().Stage(t.Context(), nil, message()); !errors.Is(err, core.ErrInvalid) {
		t.Errorf("nil *sql.Tx: %v", err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Stage(t.Context(), tx, message()); !errors.Is(err, pgx.ErrTxClosed) || !strings.Contains(err.Error(), "has ended already") {
		t.Errorf("ended transaction: %v", err)
	}
	stx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := stx.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := o.SQL().Stage(t.Context(), stx, message()); !errors.Is(err, sql.ErrTxDone) || !strings.Contains(err.Error(), "has ended already") {
		t.Errorf("ended *sql.Tx: %v", err)
	}
}

// ST-12 DB-14: all fields survive the store, staged either way.
func TestEveryFieldIsStored(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	odd := `ö "quoted" \back\ {a,b} NULL '`
	when := time.Date(2030, 1, 2, 3, 4, 5, 678901000, time.UTC)
	full := func() core.Message {
		m := core.RawMessage("t.x", "application/json; "+odd, []byte{0, 1, 0xff, '"', '\\'}, core.Key(odd), core.ID(core.NewID()+odd), core.Type(odd),
			core.Subject(odd), core.Header("h", odd+"\n\t"), core.Header("empty", ""), core.OccurredAt(when), core.Priority(7), core.Tenant(odd), core.CorrelationID(odd))
		m.Source, m.CausationID, m.RunID, m.Lineage, m.Expires = odd, odd, odd, []string{"a", odd}, when.Add(time.Hour)
		m.TraceParent, m.TraceState = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b"
		return m
	}
	m1, m2, m3 := full(), full(), core.RawMessage("t.x", "", nil)
	stage(t, pool, o, m1)
	if err := stageSQL(t.Context(), db, o.SQL(), []core.Message{m2, m3}); err != nil {
		t.Fatal(err)
	}
	c := claim(t, o, request(10))
	if len(c.Records) != 3 {
		t.Fatalf("claimed %d", len(c.Records))
	}
	for i, want := range []core.Envelope{m1.Envelope, m2.Envelope} {
		got := c.Records[i].Envelope
		want.HLC = got.HLC
		if diff := cmp.Diff(want, got); diff != "" || got.HLC == 0 {
			t.Errorf("message %d: %s", i, diff)
		}
	}
	if e := c.Records[2].Envelope; e.Body == nil || len(e.Body) != 0 || e.Key != "" || e.Type != "t.x" || e.ContentType != "application/octet-stream" || e.Headers != nil {
		t.Errorf("the bare message: %+v", e)
	}
}

// ST-05: duplicates are told one by one, within one call too.
func TestDuplicatesByMessage(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	stage(t, pool, o, message(core.ID("b")))
	staged := stage(t, pool, o, message(core.ID("a")), message(core.ID("b")), message(core.ID("a")), message(core.ID("c"), core.Routes("r1", "r2", "r1")))
	var got []string
	for _, s := range staged {
		got = append(got, fmt.Sprintf("%s/%s/%v", s.ID, s.Route, s.Duplicate))
	}
	want := "a/default/false b/default/true a/default/true c/r1/false c/r2/false c/r1/true"
	if strings.Join(got, " ") != want {
		t.Fatalf("%s, want %s", strings.Join(got, " "), want)
	}
}

// OP-04: staging makes a span that the message carries.
func TestStageSpan(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	o, pool := newOutbox(t, postgres.Options{TracerProvider: tp})
	ctx, root := tp.Tracer("test").Start(t.Context(), "business")
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := o.Stage(ctx, tx, message())
		return err
	})
	root.End()
	if err != nil {
		t.Fatal(err)
	}
	c := claim(t, o, request(1))
	span := spans.Ended()[0]
	if span.Name() != "waybill stage" || span.Parent().SpanID() != root.SpanContext().SpanID() ||
		c.Records[0].Envelope.SpanContext().SpanID() != span.SpanContext().SpanID() {
		t.Fatalf("span %s, message %s", span.Name(), c.Records[0].Envelope.TraceParent)
	}
}

// OR-08: a transaction that commits late, behind what was claimed already, is not skipped.
func TestLateCommitIsNotSkipped(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	late, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := o.Stage(t.Context(), late, message(core.ID("late"))); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		stage(t, pool, o, message(), message())
		for _, r := range claim(t, o, request(10)).Records {
			settle(t, o, core.Published(&r))
		}
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	var c core.Claim
	eventually(t, "the late message is behind the front: a lap finds it", func() bool { // not at once if the last one took long
		c = claim(t, o, request(10))
		return len(c.Records) > 0
	})
	if len(c.Records) != 1 || c.Records[0].Envelope.ID != "late" {
		t.Fatalf("%+v", c)
	}
}

// OR-02: messages of a transaction that takes long keep their order behind what was claimed meanwhile, also if no transaction that began
// later has ended.
func TestOrderOfALongTransaction(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{}) // of which the long transaction is the newest
	pool := openPool(t, server.DSN("postgres"))
	o := outboxOn(t, pool, postgres.Options{NotifyOff: true})
	req := request(10)
	req.Session = 7
	var got []string
	take := func() {
		t.Helper()
		c, err := o.Claim(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for i := range c.Records {
			if e := &c.Records[i].Envelope; e.Key == "k" {
				got = append(got, e.ID)
			}
			settle(t, o, core.Published(&c.Records[i]))
		}
	}
	long, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = long.Rollback(context.WithoutCancel(t.Context())) }()
	in := func(id string) {
		t.Helper()
		if _, err := o.Stage(t.Context(), long, message(core.ID(id), core.Key("k"))); err != nil {
			t.Fatal(err)
		}
	}
	in("first")
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); { // horizonDelay, and some claims after it
		take()
		time.Sleep(50 * time.Millisecond) // as an idle relay
	}
	stage(t, pool, o, message(core.Key("other")))
	for range 5 {
		take()
	}
	req.MaxRecords = 1 // claims come out full, and do not look behind
	stage(t, pool, o, message(core.Key("b1")), message(core.Key("b2")), message(core.Key("b3")))
	take()
	in("second")
	if err := long.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both messages", func() bool {
		take()
		return len(got) == 2
	})
	if got[0] != "first" {
		t.Errorf("got %v", got)
	}
}

// DB-04 DB-11: rows that were put in by hand with times that no clock shows are read as any others, and stop nothing.
func TestInfinity(t *testing.T) {
	t.Parallel()
	now := func(e time.Time) bool { return time.Since(e).Abs() < time.Hour }
	for name, tc := range map[string]struct {
		never bool
		ok    func(r *core.Record) bool
	}{
		"due_at infinity":       {never: true},
		"due_at -infinity":      {ok: func(*core.Record) bool { return true }},
		"expires_at infinity":   {ok: func(r *core.Record) bool { return r.Envelope.Expires.IsZero() }},
		"expires_at -infinity":  {ok: func(r *core.Record) bool { return r.Envelope.Expires.Equal(time.Unix(0, 0)) }},
		"occurred_at infinity":  {ok: func(r *core.Record) bool { return now(r.Envelope.Time) }},
		"occurred_at -infinity": {ok: func(r *core.Record) bool { return now(r.Envelope.Time) }},
		"ready_since infinity":  {ok: func(r *core.Record) bool { return r.Age < time.Hour }},
		"ready_since -infinity": {ok: func(r *core.Record) bool { return r.Age < time.Hour }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, pool := newOutbox(t, postgres.Options{})
			column, value, _ := strings.Cut(name, " ")
			claimed := map[string]bool{}
			take := func(req core.ClaimRequest) {
				t.Helper()
				c, err := o.Claim(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				for i := range c.Records {
					r := &c.Records[i]
					claimed[r.Envelope.ID] = true
					if r.Envelope.Key == "odd" && (tc.never || !tc.ok(r)) {
						t.Errorf("%+v", r)
					}
					settle(t, o, core.Retry(r, errors.New("no"), time.Hour))
				}
			}
			front, general := request(10), request(10)
			general.Routes[0].SkipTopics = []string{"none"} // which needs a look at each row
			for i, req := range []core.ClaimRequest{front, general} {
				odd, plain := fmt.Sprint("odd-", i), fmt.Sprint("plain-", i)
				exec(t, pool, fmt.Sprintf(`INSERT INTO waybill.waybill_outbox (topic, body, id, key, holds, %s) VALUES ('t.x', '{}', $1, 'odd', $2, $3::text::timestamptz)`, column), odd, tc.never, value)
				stage(t, pool, o, message(core.ID(plain)))
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { // what is locked is not promoted, and so the next that is due
					_, err := tx.Exec(t.Context(), "SELECT FROM waybill.waybill_outbox WHERE id = $1 FOR UPDATE", odd)
					if err == nil {
						take(req)
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				eventually(t, "all that is due", func() bool {
					take(req)
					return claimed[plain] && (tc.never || claimed[odd])
				})
				exec(t, pool, "UPDATE waybill.waybill_outbox SET key = 'was' || id WHERE id = $1", odd) // it holds back the next
			}
			stored, err := o.Inspect(t.Context(), core.DefaultRoute, "odd-0")
			if err != nil || tc.never != (stored.DueIn == math.MaxInt64) {
				t.Errorf("inspect: %+v, error %v", stored, err)
			}
			if l, err := o.List(t.Context(), core.Filter{}, core.Page{}); err != nil || len(l.Records) != 4 {
				t.Errorf("list: %d, error %v", len(l.Records), err)
			}
			if keys, _, err := o.BlockedKeys(t.Context(), core.DefaultRoute, false, "", 10); err != nil || len(keys) != 2 {
				t.Errorf("blocked keys: %+v, error %v", keys, err)
			}
			if counts, err := o.Counts(t.Context()); err != nil || len(counts) == 0 || counts[0].Oldest > time.Hour {
				t.Errorf("counts: %+v, error %v", counts, err)
			}
			for _, key := range []string{"wasodd-0", "wasodd-1"} {
				if err := o.DecideHead(t.Context(), core.DefaultRoute, key, key[3:], core.HeadRequeue); err != nil && !strings.Contains(err.Error(), "expired at 1970") {
					t.Errorf("decide: %v", err)
				}
			}
		})
	}
}

// DB-02: nine in ten claims update in place, so that indexes are not written.
func TestClaimsAreHOT(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	body := strings.Repeat("x", 300)
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, key, body) SELECT 't.x', CASE WHEN i % 2 = 0 THEN 'k' || i ELSE '' END, $1 FROM generate_series(1, 10000) i`, []byte(body))
	for claimed := 0; claimed < 10_000; {
		c := claim(t, o, request(500))
		if len(c.Records) == 0 {
			t.Fatalf("no more after %d", claimed)
		}
		claimed += len(c.Records)
	}
	var updated, hot int64
	eventually(t, "statistics", func() bool {
		exec(t, pool, `SELECT pg_stat_clear_snapshot()`)
		err := pool.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'waybill_outbox'`).Scan(&updated, &hot)
		return err == nil && updated >= 10_000
	})
	if hot*10 < updated*9 {
		t.Fatalf("%d of %d updates were HOT", hot, updated)
	}
}

// DB-02: an old snapshot elsewhere, which keeps dead rows from being removed, does not slow claims down.
func TestOldSnapshotDoesNotSlowClaims(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("moves 30,000 rows")
	}
	o, pool := newOutbox(t, postgres.Options{})
	old, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := old.Exec(t.Context(), `SELECT 1`); err != nil {
		t.Fatal(err)
	}
	round := func() time.Duration {
		exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body) SELECT 't.x', '' FROM generate_series(1, 3000)`)
		var took time.Duration
		for done := 0; done < 3000; {
			began := time.Now()
			c := claim(t, o, request(500))
			took += time.Since(began)
			out := make([]core.Outcome, len(c.Records))
			for i := range out {
				out[i] = core.Published(&c.Records[i])
			}
			settle(t, o, out...)
			done += len(out)
		}
		return took
	}
	first := round() + round()
	var last time.Duration
	for range 8 {
		last = round()
	}
	if last > 3*first {
		t.Fatalf("claims took %s at first and %s behind 27,000 dead rows", first/2, last)
	}
}

// DB-02 OR-02: relays that claim at once hold no record twice, split no key, and all find work.
func TestManyRelays(t *testing.T) {
	t.Parallel()
	_, pool := newOutbox(t, postgres.Options{})
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, key, body) SELECT 't.x', CASE WHEN i % 3 > 0 THEN 'k' || i % 50 ELSE '' END, '' FROM generate_series(1, 3000) i`)
	var mu sync.Mutex
	seen, last, leased := map[int64]int{}, map[string]int64{}, map[string]int{}
	share := make([]int, 4)
	var wg sync.WaitGroup
	for relay := range share {
		o := outboxOn(t, pool, postgres.Options{})
		wg.Go(func() {
			for {
				c, err := o.Claim(t.Context(), request(20))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				mine := map[string]bool{}
				for i := range c.Records {
					r := &c.Records[i]
					seen[r.Seq]++
					if k := r.Envelope.Key; k != "" {
						if !mine[k] {
							mine[k] = true
							if leased[k]++; leased[k] > 1 {
								t.Errorf("key %s is claimed twice", k)
							}
						}
						if r.Seq < last[k] {
							t.Errorf("key %s: %d after %d", k, r.Seq, last[k])
						}
						last[k] = r.Seq
					}
				}
				share[relay] += len(c.Records)
				done := len(seen) == 3000
				mu.Unlock()
				out := make([]core.Outcome, len(c.Records))
				for i := range out {
					out[i] = core.Published(&c.Records[i])
				}
				mu.Lock()
				for k := range mine {
					leased[k]--
				}
				mu.Unlock()
				if err := o.Settle(t.Context(), out).FirstErr(); err != nil {
					t.Error(err)
					return
				}
				if done {
					return
				}
			}
		})
	}
	wg.Wait()
	for seq, n := range seen {
		if n > 1 {
			t.Errorf("record %d was claimed %d times", seq, n)
		}
	}
	for relay, n := range share {
		if n == 0 {
			t.Errorf("relay %d found no work: %v", relay, share)
		}
	}
}

// DB-02 DB-18 ST-01: what was committed, attempts included, survives a SIGKILL of the database; meanwhile errors are outages.
func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{})
	pool := openPool(t, server.DSN("postgres"))
	o := outboxOn(t, pool, postgres.Options{})
	stage(t, pool, o, message(core.ID("1"), core.Key("k")), message(core.ID("2"), core.Key("k")))
	c := claim(t, o, request(1))
	settle(t, o, core.Retry(&c.Records[0], errors.New("no"), 0))
	c = claim(t, o, request(1))
	// A claim need not be on disk when it is answered. What commits after it takes it there.
	if _, err := pool.Exec(t.Context(), `CREATE TABLE later ()`); err != nil {
		t.Fatal(err)
	}
	open, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Stage(t.Context(), open, message(core.ID("uncommitted"))); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	if err := open.Commit(t.Context()); err == nil {
		t.Fatal("committed on a dead server")
	}
	if _, err := o.Claim(t.Context(), request(1)); core.ClassOf(err) != core.ClassOutage {
		t.Errorf("claim: %v", err)
	}
	if err := o.Settle(t.Context(), []core.Outcome{core.Published(&c.Records[0])}).FirstErr(); core.ClassOf(err) != core.ClassOutage {
		t.Errorf("settle: %v", err)
	}
	eventually(t, "a wait says so; what was put back may end one before it looks", func() bool {
		_, err := o.Wait(t.Context(), []string{core.DefaultRoute}, time.Second)
		return core.ClassOf(err) == core.ClassOutage
	})
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease is still there", func() bool {
		return o.Settle(t.Context(), []core.Outcome{core.Retry(&c.Records[0], errors.New("no"), 0)}).FirstErr() == nil
	})
	c = claim(t, o, request(10))
	if len(c.Records) != 2 || c.Records[0].Attempts != 2 || c.Records[0].Envelope.ID != "1" || c.Records[1].Envelope.ID != "2" {
		t.Fatalf("%+v", c.Records)
	}
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
	if c := claim(t, o, request(1)); len(c.Records) != 1 {
		t.Fatal("nothing claimed")
	}
	if _, err := o.Wait(t.Context(), []string{core.DefaultRoute}, time.Millisecond); err != nil {
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

// DB-02: a user's default isolation does not matter, and neither do poolers' modes of the driver.
func TestIsolationAndExecModes(t *testing.T) {
	t.Parallel()
	for _, params := range []string{
		"default_transaction_isolation=serializable", "default_query_exec_mode=exec", "default_query_exec_mode=simple_protocol", "default_query_exec_mode=cache_describe",
	} {
		t.Run(params, func(t *testing.T) {
			t.Parallel()
			dsn := testenv.Postgres(t).DSN
			pool := openPool(t, dsn+"&"+params)
			o := outboxOn(t, pool, postgres.Options{Table: params[len(params)-5:]})
			stage(t, pool, o, message(core.Key("k"), core.Header("a", "b")), message(core.Delay(time.Hour)), message())
			c := claim(t, o, request(10))
			if len(c.Records) != 2 {
				t.Fatalf("claimed %d", len(c.Records))
			}
			settle(t, o, core.Published(&c.Records[0]), core.Retry(&c.Records[1], errors.New("no"), 0))
			in, err := postgres.NewInbox(pool, postgres.InboxOptions{Table: "in" + params[len(params)-5:]})
			if err != nil {
				t.Fatal(err)
			}
			if err := in.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := in.Do(t.Context(), core.InboxKey{Consumer: "c", Source: "s", ID: "i"}, func(context.Context, pgx.Tx) error { return nil }); err != nil {
				t.Fatal(err)
			}
			if _, err := o.Wait(t.Context(), []string{core.DefaultRoute}, time.Millisecond); err != nil {
				t.Fatal(err)
			}
			if _, err := o.Counts(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
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

// OR-02: nothing of a key is claimed while another claim holds a later record of it: not what committed late, and not
// what was put back, however far behind the leased ones are.
func TestKeyWaitsForLaterLeases(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	late, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := o.Stage(t.Context(), late, message(core.ID("late"), core.Key("k"))); err != nil {
		t.Fatal(err)
	}
	stage(t, pool, o, message(core.ID("early"), core.Key("k")))
	held := claim(t, o, request(10)).Records
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := claim(t, o, request(10)); len(c.Records) != 0 {
		t.Fatalf("claimed %s while %s is leased", c.Records[0].Envelope.ID, held[0].Envelope.ID)
	}
	settle(t, o, core.Published(&held[0]))
	eventually(t, "the late message is behind the front: a lap finds it", func() bool { // not at once if the last one took long
		held = claim(t, o, request(10)).Records
		return len(held) > 0
	})
	if held[0].Envelope.ID != "late" {
		t.Fatalf("claimed %s", held[0].Envelope.ID)
	}
	settle(t, o, core.Published(&held[0]))

	msgs := make([]core.Message, 60)
	for i := range msgs {
		msgs[i] = message(core.Key("long"))
	}
	stage(t, pool, o, msgs...)
	held = claim(t, o, request(60)).Records
	if len(held) != 60 {
		t.Fatalf("claimed %d records", len(held))
	}
	for i := range 50 {
		settle(t, o, core.Release(&held[i], 0))
	}
	for range 5 {
		if c := claim(t, o, request(1)); len(c.Records) != 0 {
			t.Fatalf("claimed the head while the tail is leased")
		}
	}
	for i := 50; i < 60; i++ {
		settle(t, o, core.Release(&held[i], 0))
	}
	if c := claim(t, o, request(60)); len(c.Records) != 60 {
		t.Fatalf("claimed %d records", len(c.Records))
	}
}

// DB-04: suspects are reported also if a claim looks on after it met them. Here two relays died with the heads of all keys.
func TestSuspectsAtTheHeadOfEveryKey(t *testing.T) {
	t.Parallel()
	pool := openPool(t, testenv.Postgres(t).DSN)
	o := outboxOn(t, pool, postgres.Options{})
	for _, sql := range []string{
		`INSERT INTO waybill.waybill_outbox (topic, body, key, state, crashes, lease_until, lease_token)
		 SELECT 't', '', 'k' || i, 2, 1, now() - interval '1 minute', 1 FROM generate_series(1, 17) i`,
		"INSERT INTO waybill.waybill_outbox (topic, body, key) SELECT 't', '', 'k' || (i % 17 + 1) FROM generate_series(1, 240) i",
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(20 * time.Second) // how often claims look at the heads is a matter of time
	for met := 0; met < 5; {
		c, err := o.Claim(t.Context(), request(20))
		if err != nil || len(c.Records) > 0 {
			t.Fatalf("%+v %v", c, err)
		}
		if c.Suspects {
			met++
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d claims met the suspects", met)
		}
	}
}
