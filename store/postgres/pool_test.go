package postgres_test

import (
	"context"
	"database/sql"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/memory"
)

// One connection for producers, relay, inbox and handlers of a whole service: everything waits for it, nothing waits
// for ever, and both engines say at their start that the pool is small.
func TestPoolOfOne(t *testing.T) { // OP-11
	t.Parallel()
	const messages = 60
	run := func(t *testing.T, outbox *postgres.Outbox, store func() (waybill.Handler, error), stage func(i int) error, free func(ctx context.Context) error) {
		t.Helper()
		var log sharedtest.Log
		logger := slog.New(slog.NewJSONHandler(&log, nil))
		bus, err := memory.New(memory.Options{Queues: []memory.Queue{{Name: "q", Bindings: []string{"#"}}}})
		if err != nil {
			t.Fatal(err)
		}
		rel, err := relay.New(outbox, bus, relay.Options{Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		cons, err := consumer.New(bus, consumer.Options{Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		h, err := store()
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		handled := 0
		inner := h.Handle
		h.Handle = func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			st, err := inner(ctx, d)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && st == waybill.HandlerProcessed {
				handled++
			}
			return st, err
		}
		if err := cons.Handle(waybill.Subscription{Queue: "q"}, h); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- waybill.Run(ctx, rel, cons) }()
		for i := range messages {
			if err := stage(i); err != nil {
				t.Fatal(err)
			}
		}
		patience.Moving(t, "all are handled", func() (int, bool) {
			mu.Lock()
			defer mu.Unlock()
			return handled, handled >= messages
		})
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := free(t.Context()); err != nil {
			t.Errorf("the connection did not come back: %v", err)
		}
		for _, event := range []string{"relay.pool_small", "consumer.pool_small"} {
			if n := strings.Count(log.String(), `"`+event+`"`); n != 1 {
				t.Errorf("%d lines of %s, want 1\n%s", n, event, log.String())
			}
		}
		if s := log.String(); strings.Contains(s, "lease_lost") || strings.Contains(s, "consumer.settle") {
			t.Errorf("it did not work smoothly:\n%s", s)
		}
	}
	topic := waybill.NewTopic("orders.placed", waybill.JSON[int]())

	t.Run("pgx", func(t *testing.T) {
		t.Parallel()
		pool := openPoolWith(t, newPool(t).Config().ConnString(), func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
		outbox, err := postgres.NewOutbox(pool, postgres.Options{Source: "/test"})
		if err != nil {
			t.Fatal(err)
		}
		started(t, outbox)
		store, err := postgres.NewInbox(pool, postgres.InboxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		handler := func() (waybill.Handler, error) {
			box, err := inbox.New(store, "billing", inbox.Options{})
			return inbox.Handler(box, topic, func(ctx context.Context, tx pgx.Tx, v int) error {
				_, err := tx.Exec(ctx, "SELECT $1::int", v)
				return err
			}), err
		}
		run(t, outbox, handler, func(i int) error {
			return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := outbox.Stage(t.Context(), tx, topic.Message(i, waybill.Key(strconv.Itoa(i%5))))
				return err
			})
		}, pool.Ping)
	})

	t.Run("database/sql", func(t *testing.T) {
		t.Parallel()
		db := openDB(t, newPool(t).Config().ConnString(), 1)
		outbox := sqlOutboxOn(t, db, postgres.Options{})
		store, err := postgres.NewSQLInbox(db, postgres.InboxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		handler := func() (waybill.Handler, error) {
			box, err := inbox.New(store, "billing", inbox.Options{})
			return inbox.Handler(box, topic, func(ctx context.Context, tx *sql.Tx, v int) error {
				_, err := tx.ExecContext(ctx, "SELECT $1::int", v)
				return err
			}), err
		}
		run(t, outbox, handler, func(i int) error {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			if _, err := outbox.SQL().Stage(t.Context(), tx, topic.Message(i, waybill.Key(strconv.Itoa(i%5)))); err != nil {
				return err
			}
			return tx.Commit()
		}, db.PingContext)
	})
}
