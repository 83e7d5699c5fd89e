package mistakes_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/store/sqlite"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(stuckConsumer); url != "" {
		runStuckConsumer(url)
		return
	}
	if dsn := os.Getenv(relayProcess); dsn != "" {
		runRelayProcess(dsn, os.Getenv(relayProcess+"_BROKER"))
		return
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

// The words that must turn up nowhere.
const (
	secretPassword = "hunter2-pa55word"
	secretPayload  = "payl0ad-of-nobodys-business"
)

// want is what an error must be.
type want struct {
	is    error         // matched with errors.Is
	class waybill.Class // compared with waybill.ClassOf
	says  []string      // the object, the cause and the cure
}

// check fails the test unless err is what w says, in one clear text.
func check(tb testing.TB, err error, w want) {
	tb.Helper()
	if err == nil {
		tb.Error("no error")
		return
	}
	text := err.Error()
	tb.Logf("%s", text)
	if w.is != nil && !errors.Is(err, w.is) {
		tb.Errorf("is not %q: %s", w.is, text)
	}
	if got := waybill.ClassOf(err); got != w.class {
		tb.Errorf("class %s, not %s: %s", got, w.class, text)
	}
	for _, s := range w.says {
		if !strings.Contains(text, s) {
			tb.Errorf("does not say %q: %s", s, text)
		}
	}
	clean(tb, text)
	if !strings.HasPrefix(text, "waybill") {
		tb.Errorf("does not say whose error it is: %s", text)
	}
	if strings.Count(text, "waybill/")+strings.Count(text, "waybill: ") > 1 {
		tb.Errorf("says more than once whose error it is: %s", text)
	}
	seen := map[string]bool{}
	twice := func(part string) {
		if seen[part] {
			tb.Errorf("says %q twice: %s", part, text)
		}
		seen[part] = true
	}
	if invalid, ok := errors.AsType[*waybill.InvalidError](err); ok {
		for _, p := range invalid.Problems {
			field, _, _ := strings.Cut(p, ":")
			twice(field)
		}
		return
	}
	for part := range strings.SplitSeq(strings.NewReplacer("(", "", ")", "").Replace(text), ": ") {
		if strings.Contains(part, " ") {
			twice(part)
		}
	}
}

// clean fails the test if text tells a secret.
func clean(tb testing.TB, text string) {
	tb.Helper()
	for _, s := range []string{secretPassword, secretPayload, "pw-"} {
		if i := strings.Index(text, s); i >= 0 {
			tb.Errorf("tells a secret: %.300s", text[max(0, i-100):])
		}
	}
}

// newLog returns a logger whose text is checked for secrets at the end of the test.
func newLog(tb testing.TB) (*slog.Logger, *sharedtest.Log) {
	tb.Helper()
	book := &sharedtest.Log{}
	tb.Cleanup(func() {
		clean(tb, book.String())
		if tb.Failed() && book.String() != "" {
			for line := range strings.Lines(book.String()) {
				if !strings.Contains(line, "level=DEBUG") {
					tb.Log(strings.TrimSpace(line))
				}
			}
		}
	})
	return book.Logger(slog.LevelDebug), book
}

// ends runs fn and fails the test if it does not return.
func ends[T any](tb testing.TB, fn func() T) T {
	tb.Helper()
	done := make(chan T, 1)
	limit := patience.For(patience.Limit)
	go func() { done <- fn() }()
	select {
	case v := <-done:
		return v
	case <-time.After(limit):
		tb.Fatalf("hangs: no answer after %s", limit)
		panic("unreachable")
	}
}

func openPool(tb testing.TB, dsn string) *pgxpool.Pool {
	tb.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	cfg.MaxConns = 8
	cfg.ConnConfig.ConnectTimeout = patience.For(5 * time.Second)
	pool, err := pgxpool.NewWithConfig(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return pool
}

// newOutbox returns an outbox on pool without tables.
func newOutbox(tb testing.TB, pool *pgxpool.Pool, opts postgres.Options) *postgres.Outbox {
	tb.Helper()
	opts.Source = "/e2e"
	opts.Logger, _ = newLog(tb)
	o, err := postgres.NewOutbox(pool, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 5*time.Second)
		defer cancel()
		_ = o.Close(ctx)
	})
	return o
}

// migrate makes all tables.
func migrate(tb testing.TB, pool *pgxpool.Pool) *postgres.Migrations {
	tb.Helper()
	m, err := postgres.NewMigrations(postgres.MigrationOptions{Source: "/test"})
	if err != nil {
		tb.Fatal(err)
	}
	if err := m.Up(tb.Context(), pool); err != nil {
		tb.Fatal(err)
	}
	return m
}

func exec(tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	tb.Helper()
	if _, err := pool.Exec(tb.Context(), sql, args...); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
}

// number returns the result of a query for one number.
func number(tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) int {
	tb.Helper()
	var n int
	if err := pool.QueryRow(tb.Context(), sql, args...).Scan(&n); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return n
}

// service is a program with one of the stores, which has a transaction of its own kind.
type service struct {
	name  string
	store core.OutboxStore
	// stage stages and commits, or rolls back. use, if not nil, sees the transaction first.
	stage func(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error)
	// after stages in a transaction that has been committed.
	after func(ctx context.Context, msgs ...waybill.Message) error
	// none stages without a transaction.
	none func(ctx context.Context, msgs ...waybill.Message) error
}

// outboxes returns an outbox of every kind, with limits.
func outboxes(tb testing.TB, limits waybill.Limits) []service {
	tb.Helper()
	pool := openPool(tb, testenv.Postgres(tb).DSN)
	migrate(tb, pool)
	pg := newOutbox(tb, pool, postgres.Options{Limits: limits})
	lite, err := sqlite.Open(tb.Context(), filepath.Join(tb.TempDir(), "app.db"), sqlite.Options{Source: "/e2e", Limits: limits, AutoMigrate: true})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = lite.Close(context.WithoutCancel(tb.Context())) })
	mem, err := memory.New(memory.Options{Source: "/e2e", Limits: limits})
	if err != nil {
		tb.Fatal(err)
	}
	return []service{
		{
			name: "postgres", store: pg,
			stage: func(ctx context.Context, msgs ...waybill.Message) (staged []waybill.Staged, err error) {
				err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					staged, err = pg.Stage(ctx, tx, msgs...)
					return err
				})
				return staged, err
			},
			after: func(ctx context.Context, msgs ...waybill.Message) error {
				tx, err := pool.Begin(ctx)
				if err == nil {
					err = tx.Commit(ctx)
				}
				if err != nil {
					return err
				}
				_, err = pg.Stage(ctx, tx, msgs...)
				return err
			},
			none: func(ctx context.Context, msgs ...waybill.Message) error {
				_, err := pg.Stage(ctx, nil, msgs...)
				return err
			},
		},
		{
			name: "sqlite", store: lite,
			stage: func(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error) {
				tx, err := lite.DB().BeginTx(ctx, nil)
				if err != nil {
					return nil, err
				}
				staged, err := lite.Stage(ctx, tx, msgs...)
				if err != nil {
					return nil, errors.Join(err, tx.Rollback())
				}
				return staged, tx.Commit()
			},
			after: func(ctx context.Context, msgs ...waybill.Message) error {
				tx, err := lite.DB().BeginTx(ctx, nil)
				if err == nil {
					err = tx.Commit()
				}
				if err != nil {
					return err
				}
				_, err = lite.Stage(ctx, tx, msgs...)
				return err
			},
			none: func(ctx context.Context, msgs ...waybill.Message) error {
				_, err := lite.Stage(ctx, (*sql.Tx)(nil), msgs...)
				return err
			},
		},
		{
			name: "memory", store: mem,
			stage: func(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error) {
				tx := mem.Begin()
				staged, err := mem.Stage(ctx, tx, msgs...)
				if err != nil {
					tx.Rollback()
					return nil, err
				}
				return staged, tx.Commit()
			},
			after: func(ctx context.Context, msgs ...waybill.Message) error {
				tx := mem.Begin()
				if err := tx.Commit(); err != nil {
					return err
				}
				_, err := mem.Stage(ctx, tx, msgs...)
				return err
			},
			none: func(ctx context.Context, msgs ...waybill.Message) error {
				_, err := mem.Stage(ctx, nil, msgs...)
				return err
			},
		},
	}
}

// stored counts the live records of a store.
func stored(tb testing.TB, store core.OutboxStore) (n int) {
	tb.Helper()
	c, ok := core.As[admin.Counter](store)
	if !ok {
		tb.Fatal("the store does not count")
	}
	counts, err := c.Counts(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	for _, c := range counts {
		if !c.State.Terminal() {
			n += int(c.N)
		}
	}
	return n
}

func raw(topic string, opts ...waybill.MessageOption) waybill.Message {
	return waybill.RawMessage(topic, "application/json", []byte(`"`+secretPayload+`"`), opts...)
}

func newRelay(tb testing.TB, store core.OutboxStore, bus core.Publisher, opts relay.Options) *relay.Relay {
	tb.Helper()
	if opts.Logger == nil {
		opts.Logger, _ = newLog(tb)
	}
	r, err := relay.New(store, bus, opts)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// running is a Run in progress.
type running struct {
	tb     testing.TB
	cancel context.CancelFunc
	done   chan error
}

// start runs r, a relay or a consumer, until stop or the end of the test.
func start(tb testing.TB, r interface {
	Run(ctx context.Context) error
},
) *running {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	run := &running{tb: tb, cancel: cancel, done: make(chan error, 1)}
	go func() { run.done <- r.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		select {
		case err := <-run.done:
			if err != nil {
				tb.Logf("Run: %.300s", err)
			}
		case <-time.After(patience.For(patience.Limit)):
			tb.Error("Run hangs after the end of its context")
		}
	})
	return run
}

// end waits for Run to end by itself, and returns its error.
func (r *running) end() error {
	r.tb.Helper()
	return ends(r.tb, func() error {
		err := <-r.done
		r.done <- err
		return err
	})
}

// stop ends Run's context and returns how long Run took to return.
func (r *running) stop() time.Duration {
	r.tb.Helper()
	begin := time.Now()
	r.cancel()
	if err := r.end(); err != nil {
		r.tb.Errorf("Run: %v", err)
	}
	return time.Since(begin)
}

func dial(tb testing.TB, url string, opts rabbitmq.Options) *rabbitmq.Transport {
	tb.Helper()
	if opts.ConnectTimeout == 0 {
		opts.ConnectTimeout = patience.For(rabbitmq.DefaultConnectTimeout) // as by default, on an idle machine
	}
	if opts.Logger == nil {
		opts.Logger, _ = newLog(tb)
	}
	bus, err := rabbitmq.Dial(tb.Context(), url, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 5*time.Second)
		defer cancel()
		_ = bus.Close(ctx)
	})
	return bus
}

func newConsumer(tb testing.TB, bus core.Subscriber, opts consumer.Options) *consumer.Consumer {
	tb.Helper()
	if opts.Logger == nil {
		opts.Logger, _ = newLog(tb)
	}
	c, err := consumer.New(bus, opts)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// seen collects what handlers got.
type seen struct {
	mu  sync.Mutex
	ids map[string]int
}

func (s *seen) add(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids == nil {
		s.ids = map[string]int{}
	}
	s.ids[id]++
}

func (s *seen) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids)
}

func (s *seen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(s.ids)
}

// body is what foreign messages hold.
type body struct {
	N int `json:"n"`
}

// inboxHandler returns a handler that writes what it gets into table seen, under an inbox on pool.
func inboxHandler(tb testing.TB, pool *pgxpool.Pool) (waybill.Handler, *seen) {
	tb.Helper()
	store, err := postgres.NewInbox(pool, postgres.InboxOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	box, err := inbox.New(store, "billing", inbox.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	calls := &seen{}
	return inbox.Handler(box, waybill.NewTopic("a.b", waybill.JSON[body]()), func(ctx context.Context, tx pgx.Tx, b body) error {
		d, _ := waybill.DeliveryFrom(ctx)
		calls.add(d.Envelope.ID)
		_, err := tx.Exec(ctx, "INSERT INTO seen VALUES ($1, $2)", d.Envelope.ID, b.N)
		return err
	}), calls
}
