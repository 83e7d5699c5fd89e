package sqlite

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"modernc.org/sqlite"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

func fresh(tb testing.TB, params string) *sql.DB {
	tb.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(tb.TempDir(), "fresh.db")+"?_pragma=busy_timeout(5000)"+params)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { db.Close() })
	return db
}

func newStore(tb testing.TB, db *sql.DB, opts Options) *Store {
	tb.Helper()
	opts.Source = "/test"
	opts.Logger = cmp.Or(opts.Logger, quiet)
	s, err := New(db, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close(context.WithoutCancel(tb.Context())) })
	return s
}

func schema(tb testing.TB, db *sql.DB) string {
	tb.Helper()
	var all string
	if err := db.QueryRowContext(tb.Context(), "SELECT coalesce(group_concat(type || ' ' || name, ', '), '') FROM (SELECT * FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY name)").Scan(&all); err != nil {
		tb.Fatal(err)
	}
	return all
}

// DB-06
func TestMigrateUpAndDown(t *testing.T) {
	t.Parallel()
	s := newStore(t, fresh(t, ""), Options{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := s.Migrate(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	up := schema(t, s.DB())
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	stage(t, s, raw("a", ""))
	m, err := NewMigrations(MigrationOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if v, err := m.Applied(t.Context(), s.DB()); v != m.Newest() || err != nil {
		t.Errorf("applied %d, %v", v, err)
	}
	if err := m.Down(t.Context(), s.DB(), 0); err != nil {
		t.Fatal(err)
	}
	if got := schema(t, s.DB()); got != "" {
		t.Errorf("after all the way down: %s", got)
	}
	if v, err := m.Applied(t.Context(), s.DB()); v != 0 || err != nil {
		t.Errorf("applied after all the way down: %d, %v", v, err)
	}
	if err := m.Up(t.Context(), s.DB()); err != nil {
		t.Fatal(err)
	}
	if got := schema(t, s.DB()); got != up {
		t.Errorf("up again: %s, want %s", got, up)
	}
	stage(t, s, raw("a", ""))
	if err := m.Down(t.Context(), s.DB(), m.Newest()+1); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("unknown version: %v", err)
	}
	ups, err := fs.Glob(m.FS(), "*.up.sql")
	if err != nil || len(ups) != m.Newest() || !strings.HasPrefix(ups[0], "0001_") {
		t.Errorf("migrations %v, %v", ups, err)
	}
}

// DB-06: the script makes what Migrate makes, under any prefix.
func TestMigrationsAsScript(t *testing.T) {
	t.Parallel()
	m, err := NewMigrations(MigrationOptions{Prefix: "shop_"})
	if err != nil {
		t.Fatal(err)
	}
	db := fresh(t, "")
	run(t, db, m.SQL())
	s := newStore(t, db, Options{Prefix: "shop_"})
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if diffs, err := s.Drift(t.Context()); len(diffs) > 0 || err != nil {
		t.Errorf("%v, %v", diffs, err)
	}
	if _, err := NewMigrations(MigrationOptions{Prefix: "a b"}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("bad prefix: %v", err)
	}
}

// OP-05: the log says once that tables were created.
func TestMigrateIsLogged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := newStore(t, fresh(t, ""), Options{Logger: slog.New(slog.NewTextHandler(&out, nil))})
	for range 2 {
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if text := out.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "prefix=waybill_ from_version=0 to_version=2") {
		t.Errorf("log: %s", text)
	}
}

// OP-04: staging makes a span that the message carries.
func TestStageSpan(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	s := open(t, Options{TracerProvider: tp})
	ctx, root := tp.Tracer("test").Start(t.Context(), "business")
	if _, err := tryStage(ctx, s, raw("a", "")); err != nil {
		t.Fatal(err)
	}
	root.End()
	r := get(t, s, join(t, s, "default").Session, "default", "a")
	created, span := spans.Ended()[0], spans.Ended()[1]
	if span.Name() != "waybill stage" || span.Parent().SpanID() != root.SpanContext().SpanID() ||
		created.Parent().SpanID() != span.SpanContext().SpanID() ||
		core.SpanContextOf(&r.Envelope).SpanID() != created.SpanContext().SpanID() {
		t.Fatalf("spans %s and %s, message %s", created.Name(), span.Name(), r.Envelope.TraceParent)
	}
}

// Close does not wait for longer than its context allows.
func TestCloseEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := newStore(t, fresh(t, ""), Options{AutoMigrate: true})
	s.watch.lock <- struct{}{} // as a query does
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("%v", err)
	}
	<-s.watch.lock
}

// DB-06: a schema that is missing, old or of another program gives one error with object, cause and cure.
func TestCheckNamesTheCure(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, spoil, object, cause string }{
		{"missing", "DROP TABLE waybill_meta; DROP TABLE waybill_inbox; DROP TABLE waybill_outbox", "waybill_outbox", "does not exist"},
		{"old", "UPDATE waybill_meta SET value = -1 WHERE name = 'version'", "waybill_outbox", "has version -1"},
		{"no outbox", "DROP TABLE waybill_outbox", "waybill_outbox", "lacks the columns"},
		{
			"foreign outbox", "DROP TABLE waybill_outbox; CREATE TABLE waybill_outbox (id TEXT)", "waybill_outbox",
			"lacks the columns seq, route",
		},
		{"foreign inbox", "ALTER TABLE waybill_inbox RENAME COLUMN source TO origin", "waybill_inbox", "lacks the columns source"},
		{"foreign meta", "DROP TABLE waybill_meta; CREATE TABLE waybill_meta (x TEXT)", "waybill_meta", "no such column"},
		{"no index", "DROP INDEX waybill_outbox_key", "waybill_outbox", "lacks the indexes waybill_outbox_key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, fresh(t, ""), Options{})
			if err := s.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			run(t, s.DB(), tt.spoil)
			err := s.Check(t.Context())
			if !errors.Is(err, waybill.ErrMisconfigured) || waybill.ClassOf(err) != waybill.ClassOutage ||
				!strings.Contains(err.Error(), tt.object) || !strings.Contains(err.Error(), tt.cause) {
				t.Errorf("check: %v", err)
			}
		})
	}
}

// DB-29
func TestCheckRefusesUnsafeSettings(t *testing.T) {
	t.Parallel()
	for _, params := range []string{"&_pragma=journal_mode(MEMORY)", "&_pragma=journal_mode(OFF)", "&_pragma=synchronous(OFF)", "&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"} {
		s := newStore(t, fresh(t, params), Options{AutoMigrate: true})
		if err := s.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) {
			t.Errorf("%s: %v", params, err)
		}
	}
}

// A transaction over an attached file is not atomic, so nothing that belongs to one works there: a process that is
// killed between the commits of the two files would leave a message without its rows, or a mark without its effects.
func TestAttachedFile(t *testing.T) {
	t.Parallel()
	s := newStore(t, fresh(t, ""), Options{AutoMigrate: true})
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.DB().SetMaxOpenConns(1)
	run(t, s.DB(), "ATTACH DATABASE '"+filepath.Join(t.TempDir(), "shop.db")+"' AS shop")
	inTx := func(fn func(tx *sql.Tx) error) error {
		tx, err := s.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		return fn(tx)
	}
	key := core.InboxKey{Consumer: "c", Source: "s", ID: "i"}
	ran := false
	_, do := s.Do(t.Context(), key, func(context.Context, *sql.Tx) error { ran = true; return nil })
	_, batch := s.DoBatch(t.Context(), []core.InboxKey{key}, func(context.Context, *sql.Tx, []int) error { ran = true; return nil })
	for name, err := range map[string]error{
		"check": s.Check(t.Context()), "do": do, "batch": batch,
		"stage":  inTx(func(tx *sql.Tx) error { _, err := s.Stage(t.Context(), tx, raw("a", "")); return err }),
		"cancel": inTx(func(tx *sql.Tx) error { _, err := s.Cancel(t.Context(), tx, waybill.CancelKey{ID: "1"}); return err }),
		"mark":   inTx(func(tx *sql.Tx) error { _, err := s.Mark(t.Context(), tx, key); return err }),
	} {
		if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), `"shop"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if ran {
		t.Error("a handler ran")
	}
	run(t, s.DB(), "DETACH DATABASE shop")
	if err := inTx(func(tx *sql.Tx) error { _, err := s.Stage(t.Context(), tx, raw("a", "")); return err }); err != nil {
		t.Error(err)
	}
}

// Without tables every method says what to do.
func TestUseWithoutTables(t *testing.T) {
	t.Parallel()
	s := newStore(t, fresh(t, ""), Options{})
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, stageErr := s.Stage(t.Context(), tx, raw("a", ""))
	tx.Rollback()
	_, heartbeatErr := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 1}, Join: true})
	_, readErr := s.Read(t.Context(), 1, core.ReadRequest{})
	_, doErr := s.Do(t.Context(), core.InboxKey{Consumer: "c", Source: "s", ID: "i"}, func(context.Context, *sql.Tx) error { return nil })
	_, waitErr := s.Wait(t.Context(), []string{"default"}, time.Second)
	_, countErr := s.Counts(t.Context())
	for name, err := range map[string]error{
		"stage": stageErr, "heartbeat": heartbeatErr, "read": readErr, "do": doErr, "wait": waitErr, "counts": countErr, "check": s.Check(t.Context()),
		"settle": s.Settle(t.Context(), 1, []core.Outcome{core.Published(&core.Record{})}).FirstErr(),
	} {
		if !errors.Is(err, waybill.ErrMisconfigured) || waybill.ClassOf(err) != waybill.ClassOutage ||
			!strings.Contains(err.Error(), "Migrate") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// DB-08
func TestPrefixesDoNotHeartbeat(t *testing.T) {
	t.Parallel()
	db := fresh(t, "")
	a, b := newStore(t, db, Options{Prefix: "a_", AutoMigrate: true}), newStore(t, db, Options{Prefix: "b_", AutoMigrate: true})
	for _, s := range []*Store{a, b} {
		if err := s.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stage(t, a, raw("only in a", ""))
	if rs := read(t, b, join(t, b, "default").Session, "default"); len(rs) != 0 {
		t.Errorf("b read %s", ids(rs))
	}
	if strings.Contains(schema(t, db), "waybill") {
		t.Errorf("schema: %s", schema(t, db))
	}
	m, err := NewMigrations(MigrationOptions{Prefix: "b_"})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Down(t.Context(), db, 0); err != nil {
		t.Fatal(err)
	}
	if rs := read(t, a, join(t, a, "default").Session, "default"); ids(rs) != "only in a " {
		t.Errorf("a read %s", ids(rs))
	}
}

// DB-13: a store closes only a database that it opened, and works on one that is limited to one connection.
func TestOwnDatabase(t *testing.T) {
	t.Parallel()
	db := fresh(t, "")
	db.SetMaxOpenConns(1)
	s := newStore(t, db, Options{AutoMigrate: true})
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	self := join(t, s, "default").Session
	if rs := read(t, s, self, "default"); len(rs) != 0 {
		t.Fatal("not empty")
	}
	go func() {
		if _, err := tryStage(t.Context(), s, raw("a", "k")); err != nil {
			t.Error(err)
		}
	}()
	waiting, _ := patience.Context(t.Context(), patience.Limit)
	if cause, err := s.Wait(waiting, []string{"default"}, time.Hour); cause != core.WakeNotify || err != nil {
		t.Fatal(cause, err)
	}
	settle(t, s, self, core.Published(get(t, s, self, "default", "a")))
	if st, err := s.Do(t.Context(), core.InboxKey{Consumer: "c", Source: "s", ID: "i"},
		func(context.Context, *sql.Tx) error { return nil }); st != core.InboxNew || err != nil {
		t.Fatal(st, err)
	}
	for range 2 {
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Read(t.Context(), self, core.ReadRequest{}); !errors.Is(err, waybill.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
	if err := db.PingContext(t.Context()); err != nil {
		t.Errorf("the store closed what it did not open: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	notADatabase := filepath.Join(dir, "text.db")
	if err := os.WriteFile(notADatabase, []byte(strings.Repeat("this is no database. ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	good := Options{Source: "/s"}
	for _, tt := range []struct {
		path string
		opts Options
		want error
	}{
		{":memory:", good, waybill.ErrInvalid},
		{"", good, waybill.ErrInvalid},
		{"file:x.db", good, waybill.ErrInvalid},
		{filepath.Join(dir, "no", "x.db"), good, waybill.ErrMisconfigured},
		{dir, good, waybill.ErrMisconfigured},
		{notADatabase, good, waybill.ErrMisconfigured},
		{filepath.Join(dir, "x.db"), Options{
			Prefix: "a b", BusyTimeout: -1, PollInterval: time.Hour, TTL: -1,
			Limits: waybill.Limits{MaxHeaders: -1},
		}, waybill.ErrInvalid},
		{filepath.Join(dir, "x.db"), Options{Source: "/s", Prefix: "sqlite_"}, waybill.ErrInvalid},
	} {
		s, err := Open(t.Context(), tt.path, tt.opts)
		if !errors.Is(err, tt.want) {
			t.Errorf("%q: %v", tt.path, err)
		}
		if s != nil {
			s.Close(t.Context())
		}
	}
	err := Options{Prefix: "a b", BusyTimeout: -1, PollInterval: time.Hour, TTL: -1, Limits: waybill.Limits{MaxHeaders: -1}}.Validate()
	for _, field := range []string{"Source", "Prefix", "BusyTimeout", "PollInterval", "TTL", "Limits.MaxHeaders"} {
		if !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is missing in %v", field, err)
		}
	}
}

// The mapping of SQLite's result codes.
func TestKinds(t *testing.T) {
	t.Parallel()
	want := map[kind][]int{
		kindOutage: {
			4, 5, 6, 7, 9, 10, 13, 14, 15, 17, 22,
			5 | 2<<8,  // BUSY_SNAPSHOT
			10 | 4<<8, // IOERR_FSYNC
		},
		kindMisconfigured: {3, 8, 11, 23, 24, 26, 8 | 4<<8 /* READONLY_DBMOVED */},
		kindTooBig:        {18},
		kindUnknown:       {1, 2, 12, 16, 19, 20, 21, 25},
	}
	n := 0
	for k, codes := range want {
		for _, code := range codes {
			n++
			if got := kindOf(code); got != k {
				t.Errorf("%d (%s): %d, want %d", code, sqlite.ErrorCodeString[code], got, k)
			}
		}
	}
	if n < 26 {
		t.Errorf("only %d codes", n)
	}
}

// Locked, full and spoiled files, as the driver reports them.
func TestErrorClasses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	a, b := openAt(t, path, Options{BusyTimeout: 50 * time.Millisecond}), openAt(t, path, Options{BusyTimeout: 50 * time.Millisecond})
	stage(t, a, raw("a", ""))
	tx, err := a.DB().BeginTx(t.Context(), nil) // holds the write lock
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 1}, Join: true})
	if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("locked: %v", err)
	}
	_, err = b.Do(t.Context(), core.InboxKey{Consumer: "c", Source: "s", ID: "i"}, func(context.Context, *sql.Tx) error { return nil })
	if waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("locked: %v", err)
	}
	tx.Rollback()

	db := fresh(t, "&_pragma=max_page_count(60)&_pragma=page_size(4096)")
	full := newStore(t, db, Options{AutoMigrate: true})
	if err := full.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, db, "CREATE TABLE own (x BLOB)")
	if tx, err = db.BeginTx(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	_, err = full.Stage(t.Context(), tx, waybill.RawMessage("big", "", make([]byte, 200_000)))
	tx.Rollback()
	if waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("full: %v", err)
	}
	_, err = full.Do(t.Context(), core.InboxKey{Consumer: "c", Source: "s", ID: "i"}, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO own VALUES (zeroblob(200000))")
		return fmt.Errorf("handler: %w", err)
	})
	if waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("full in a handler: %v", err)
	}
	_, err = full.Do(t.Context(), core.InboxKey{Consumer: "c", Source: "s", ID: "i"}, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO not_there VALUES (1)")
		return err
	})
	if err == nil || waybill.ClassOf(err) != waybill.ClassUnknown {
		t.Errorf("a mistake of the handler's own: %v", err)
	}
}

// ST-16: a transaction that has ended, or none, is refused with a clear error.
func TestStageNeedsAnOpenTransaction(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	if _, err := s.Stage(t.Context(), nil, raw("a", "")); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("nil: %v", err)
	}
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	tx.Rollback()
	if _, err := s.Stage(t.Context(), tx, raw("a", "")); !errors.Is(err, sql.ErrTxDone) ||
		!errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), "use it before its commit") {
		t.Errorf("ended: %v", err)
	}
}

// More messages than one statement takes.
// ST-02
func TestStageMany(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	msgs := make([]waybill.Message, waybill.MaxMessages)
	for i := range msgs {
		msgs[i] = raw(strconv.Itoa(i%(len(msgs)-1)), strconv.Itoa(i%10))
	}
	staged := stage(t, s, msgs...)
	for i := range staged {
		if staged[i].Duplicate != (i == len(msgs)-1) {
			t.Fatalf("%d: %+v", i, staged[i])
		}
	}
	rs := read(t, s, join(t, s, "default").Session, "default")
	if len(rs) != len(msgs)-1 {
		t.Fatalf("read %d", len(rs))
	}
	for i := range rs {
		if rs[i].ID != strconv.Itoa(i) {
			t.Fatalf("%d: %s", i, rs[i].ID)
		}
	}
}

// DB-13: the first use may be in a transaction of the application that holds the write lock and the only connection.
func TestFirstUseInATransaction(t *testing.T) {
	t.Parallel()
	key := core.InboxKey{Consumer: "c", Source: "s", ID: "i"}
	uses := map[string]func(ctx context.Context, s *Store, tx *sql.Tx) error{
		"stage": func(ctx context.Context, s *Store, tx *sql.Tx) error {
			_, err := s.Stage(ctx, tx, raw("a", ""))
			return err
		},
		"cancel": func(ctx context.Context, s *Store, tx *sql.Tx) error {
			_, err := s.Cancel(ctx, tx, waybill.CancelKey{ID: "a"})
			return err
		},
		"mark": func(ctx context.Context, s *Store, tx *sql.Tx) error { _, err := s.Mark(ctx, tx, key); return err },
	}
	for name, use := range uses {
		for _, auto := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " auto ", auto), func(t *testing.T) {
				t.Parallel()
				db := fresh(t, "&_txlock=immediate")
				db.SetMaxOpenConns(1)
				if !auto {
					if err := newStore(t, db, Options{}).Migrate(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				s := newStore(t, db, Options{AutoMigrate: auto})
				ctx, _ := patience.Context(t.Context(), patience.Limit)
				for _, commit := range []bool{false, true} {
					tx, err := db.BeginTx(ctx, nil)
					if err != nil {
						t.Fatal(err)
					}
					if err := use(ctx, s, tx); err != nil {
						t.Error(err)
					}
					if !commit {
						err = tx.Rollback()
					} else {
						err = tx.Commit()
					}
					if err != nil {
						t.Error(err)
					}
				}
				if err := s.Check(ctx); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestLockedIsToBeRunAgain: a transaction that meets the lock of another one is to be run again.
func TestLockedIsToBeRunAgain(t *testing.T) {
	t.Parallel()
	file := "file:" + filepath.Join(t.TempDir(), "locked.db")
	var errs []error
	for range 2 {
		db, err := sql.Open("sqlite", file)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		_, err = db.ExecContext(t.Context(), "BEGIN IMMEDIATE")
		errs = append(errs, err)
	}
	if err := classify("test", errs[1]); errs[0] != nil || !errors.Is(err, waybill.ErrRetryTx) ||
		waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("%v, then %v", errs[0], err)
	}
}

// cutOff is a database whose question about the version comes too late.
type cutOff struct {
	querier
	cancel context.CancelFunc
	asked  int
}

func (c *cutOff) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if c.asked++; c.asked == 2 {
		c.cancel()
	}
	return c.querier.QueryRowContext(ctx, query, args...)
}

// A caller that gives up while the version is read learns nothing about the tables: that is no misconfiguration, which
// would end a relay.
func TestCancelledWhileTheVersionIsRead(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "app.db"), Options{Source: "/test"})
	if err == nil {
		err = s.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.WithoutCancel(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err = s.migrations.applied(ctx, &cutOff{querier: s.db, cancel: cancel})
	if !errors.Is(err, context.Canceled) || errors.Is(err, waybill.ErrMisconfigured) {
		t.Error(err)
	}
}
