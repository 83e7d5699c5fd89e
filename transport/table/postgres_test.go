package table_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/table"
)

// TR-07
func TestConformancePostgres(t *testing.T) {
	t.Parallel()
	dsn := testenv.Postgres(t).DSN // of all checks: their queues are their own
	transporttest.Run(t, func(t *testing.T) transporttest.Harness {
		t.Helper()
		t.Parallel()
		b, pool := postgresBackendAt(t, dsn, 8)
		h := suite(t, newHarness(t, b))
		h.Unreadable = func(ctx context.Context, queue string) error {
			o, _ := b.store.(*postgres.Outbox)
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				m := waybill.RawMessage("t.a", "text/plain", nil)
				m.Routes = []string{queue}
				if _, err := o.Stage(ctx, tx, m); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, `UPDATE waybill.waybill_outbox SET attrs = '"not an object"' WHERE route = $1`, queue)
				return err
			})
		}
		return h
	})
}

func postgresBackend(tb testing.TB, conns int32) (backend, *pgxpool.Pool) {
	tb.Helper()
	return postgresBackendAt(tb, testenv.Postgres(tb).DSN, conns)
}

func postgresBackendAt(tb testing.TB, dsn string, conns int32) (backend, *pgxpool.Pool) {
	tb.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	cfg.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return postgresOn(tb, pool), pool
}

func postgresOn(tb testing.TB, pool *pgxpool.Pool) backend {
	tb.Helper()
	o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/test"})
	if err != nil {
		tb.Fatal(err)
	}
	if err := o.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = o.Close(context.Background()) })
	return backend{o, func(ctx context.Context, msgs ...waybill.Message) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := o.Stage(ctx, tx, msgs...)
			return err
		})
	}}
}

var mail = waybill.NewTopic("mail.send", waybill.JSON[int]()).On("mails")

// run runs a consumer of queue until done is closed, and returns when it has stopped.
func run(t *testing.T, sub core.Subscriber, done <-chan struct{}, handlers map[string]waybill.Handler) {
	t.Helper()
	c, err := consumer.New(sub, consumer.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	for queue, h := range handlers {
		inner := h.Handle
		h.Handle = func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			calls.Add(1)
			return inner(ctx, d)
		}
		if err := c.Handle(waybill.Subscription{Queue: queue}, h); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- c.Run(ctx) }()
	patience.Moving(t, "all messages are handled", func() (int64, bool) { return calls.Load(), isClosed(done) })
	cancel()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// TestSmallPool: with the inbox, and ten handlers at a time, on a pool of two connections and of one: everything is
// handled, once.
//
// TQ-06, TQ-01
func TestSmallPool(t *testing.T) {
	t.Parallel()
	for _, conns := range []int32{1, 2} {
		t.Run(strconv.Itoa(int(conns)), func(t *testing.T) {
			t.Parallel()
			b, pool := postgresBackend(t, conns)
			box := newInbox(t, pool)
			if _, err := pool.Exec(t.Context(), "CREATE TABLE effects (n int NOT NULL)"); err != nil {
				t.Fatal(err)
			}
			const total = 60
			var msgs []waybill.Message
			for n := range total {
				msgs = append(msgs, mail.Message(n, waybill.Key(strconv.Itoa(n%20))))
			}
			if err := b.stage(t.Context(), msgs...); err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			var failed sync.Map
			var ok atomic.Int64
			h := inbox.Handler(box, mail, func(ctx context.Context, tx pgx.Tx, n int) error {
				if _, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", n); err != nil {
					return err
				}
				if _, again := failed.LoadOrStore(n, true); !again && n%20 == 7 {
					return waybill.RetryAfter(errors.New("once more"), 10*time.Millisecond)
				}
				return nil
			})
			inner := h.Handle
			h.Handle = func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
				st, err := inner(ctx, d)
				if err == nil && ok.Add(1) == total {
					close(done)
				}
				return st, err
			}
			tr := newTable(t, b.store, table.Options{})
			run(t, tr, done, map[string]waybill.Handler{"mails": h})
			var rows, distinct, left int
			err := pool.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT n), (SELECT count(*) FROM waybill.waybill_outbox) FROM effects").Scan(&rows, &distinct, &left)
			if err != nil || rows != total || distinct != total || left != 0 {
				t.Errorf("%d effects of %d messages, %d rows left, %v", rows, distinct, left, err)
			}
		})
	}
}

func newInbox(t *testing.T, pool *pgxpool.Pool) *inbox.Inbox[pgx.Tx] {
	t.Helper()
	in, err := postgres.NewInbox(pool, postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	box, err := inbox.New(in, "mailer", inbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return box
}

// TestConnections: five subscriptions with ten handlers each need three connections of the pool at most.
//
// TQ-06
func TestConnections(t *testing.T) {
	t.Parallel()
	shared, pool := postgresBackend(t, 30)
	const queues, each = 5, 40
	var msgs []waybill.Message
	for n := range each {
		for q := range queues {
			msgs = append(msgs, waybill.RawMessage("mail.send", "", nil, waybill.Routes(fmt.Sprint("q", q)), waybill.ID(fmt.Sprint(q, "-", n))))
		}
	}
	if err := shared.stage(t.Context(), msgs...); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var n atomic.Int64
	handlers := map[string]waybill.Handler{}
	for q := range queues {
		handlers[fmt.Sprint("q", q)] = waybill.Handler{Name: "mail.send", Handle: func(ctx context.Context, _ *waybill.Delivery) (waybill.HandlerStatus, error) {
			if n.Add(1) == queues*each {
				close(done)
			}
			return 0, nil
		}}
	}
	pool.Reset() // forgets the connections that staging used
	tr := newTable(t, shared.store, table.Options{})
	run(t, tr, done, handlers)
	if conns := pool.Stat().TotalConns(); conns > 3 {
		t.Errorf("%d connections", conns)
	}
	if s := tr.Stats(); s.HandedOut != queues*each || s.Settles > queues*each/2 {
		t.Errorf("%+v: settles do not go together", s)
	}
}

// TestKilledProcess: the deliveries of a process that vanished come to another one when its lease ends, with
// Redeliveries 1.
//
// CO-08, TQ-03
func TestKilledProcess(t *testing.T) {
	tier.Nightly(t, "leases of a server end in real time: 8 s (TestCrash is virtual)")
	t.Parallel()
	b, pool := postgresBackend(t, 4)
	if err := b.stage(t.Context(), mail.Message(1, waybill.ID("a")), mail.Message(2, waybill.ID("b"), waybill.Key("k"))); err != nil {
		t.Fatal(err)
	}
	cfg := pool.Config()
	dead, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	gone := subscribe(t, newTable(t, postgresOn(t, dead).store, table.Options{Lease: 300 * time.Millisecond}))
	receive(t, gone, 2)
	dead.Close() // it says nothing more
	r := subscribe(t, newTable(t, b.store, table.Options{Lease: 300 * time.Millisecond}))
	for _, d := range receive(t, r, 2) {
		if d.Redeliveries != 1 || d.Attempt != 1 {
			t.Errorf("%s: redeliveries %d, attempt %d", d.Envelope.ID, d.Redeliveries, d.Attempt)
		}
		settled(t, r, core.AckDone(d))
	}
}

// TestFreeProcessesTakeAllPostgres: 50 receivers with one handler each; while some handlers take long, messages without
// a key go to the others.
//
// CO-17
func TestFreeProcessesTakeAllPostgres(t *testing.T) {
	tier.Nightly(t, "50 processes poll one server: 10 s (TestFreeProcessesTakeAll is virtual)")
	t.Parallel()
	b, pool := postgresBackend(t, 20)
	const receivers, slow, quick = 50, 15, 600
	release, began, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	runs, busy := map[string]int{}, 0
	handler := waybill.Handler{Name: "mail.send", Handle: func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		mu.Lock()
		if runs[d.Envelope.ID]++; runs[d.Envelope.ID] > 1 {
			t.Errorf("%s runs again", d.Envelope.ID)
		}
		long := strings.HasPrefix(d.Envelope.ID, "slow")
		if long {
			if busy++; busy == slow {
				close(began)
			}
		}
		if len(runs) == slow+quick {
			close(done)
		}
		mu.Unlock()
		if long {
			<-release
		}
		return waybill.HandlerProcessed, nil
	}}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range receivers {
		c, err := consumer.New(newTable(t, plain{b.store}, table.Options{PollMin: 100 * time.Millisecond, PollMax: 100 * time.Millisecond}), consumer.Options{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Handle(waybill.Subscription{Queue: "mails", Concurrency: 1}, handler); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	var msgs []waybill.Message
	for i := range slow {
		msgs = append(msgs, mail.Message(i, waybill.ID(fmt.Sprint("slow", i))))
	}
	if err := b.stage(t.Context(), msgs...); err != nil {
		t.Fatal(err)
	}
	wait := func(what string, ch chan struct{}) {
		patience.Moving(t, what, func() (int, bool) {
			mu.Lock()
			defer mu.Unlock()
			return len(runs), isClosed(ch)
		})
	}
	wait("slow ones", began)
	msgs = nil
	for i := range quick {
		msgs = append(msgs, mail.Message(i, waybill.ID(fmt.Sprint("quick", i))))
	}
	start := time.Now()
	if err := b.stage(t.Context(), msgs...); err != nil {
		t.Fatal(err)
	}
	wait("quick ones", done) // while all slow ones go on
	t.Logf("%d quick ones took %s, %d connections", quick, time.Since(start), pool.Stat().TotalConns())
	close(release)
	cancel()
	wg.Wait()
}

// TestKilledProcessIsMissedPostgres: the deliveries of a process that vanished, with its connections, come to another
// one although its lease lasts: the server knows that it is gone.
//
// TQ-03, DB-24
func TestKilledProcessIsMissedPostgres(t *testing.T) {
	t.Parallel()
	b, pool := postgresBackend(t, 4)
	if err := b.stage(t.Context(), mail.Message(1, waybill.ID("a")), mail.Message(2, waybill.ID("b"), waybill.Key("k"))); err != nil {
		t.Fatal(err)
	}
	cfg := pool.Config()
	cfg.ConnConfig.RuntimeParams["application_name"] = "killed"
	dead, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	opts := table.Options{Lease: time.Hour}
	receive(t, subscribe(t, newTable(t, postgresOn(t, dead).store, opts)), 2)
	patience.Until(t, "it shows that it is there", func() bool {
		r, err := b.store.Heartbeat(t.Context(), core.HeartbeatRequest{})
		return err == nil && len(r.Members) == 1 && r.Members[0].Presence != 0
	})
	dead.Close() // it says nothing more, and connects no more
	if _, err := pool.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'killed'"); err != nil {
		t.Fatal(err)
	}
	r := subscribe(t, newTable(t, b.store, opts))
	ctx, moved := patience.Context(t.Context(), patience.Limit)
	for n := 0; n < 2; {
		ds, err := r.Receive(ctx, 2)
		if err != nil {
			t.Fatalf("after %d of 2: %v", n, err)
		}
		moved()
		for _, d := range ds {
			if d.Redeliveries != 1 {
				t.Errorf("%s came with %d redeliveries, want 1", d.Envelope.ID, d.Redeliveries)
			}
			settled(t, r, core.AckDone(d))
		}
		n += len(ds)
	}
}
