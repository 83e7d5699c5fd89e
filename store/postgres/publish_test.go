package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

// looker does not let a batch be published before it has seen the relay's database without an open transaction. The
// next read may run meanwhile, but ends by itself; one that the publish stands in would stay open.
type looker struct {
	watch *pgxpool.Pool
	limit time.Duration
}

// look returns nil as soon as no other connection to the database is in a transaction.
func (l *looker) look(ctx context.Context, _ []waybill.Envelope) error {
	deadline := time.Now().Add(l.limit)
	for {
		var open int
		var what string
		err := l.watch.QueryRow(ctx, `SELECT count(*), coalesce(string_agg(state || ': ' || left(query, 200), '; '), '') FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND xact_start IS NOT NULL`).Scan(&open, &what)
		if err != nil || open == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d transactions are open during a publish: %s", open, what)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// RL-02: a publish stands in no transaction of the database; and the test sees one that does.
func TestPublishOutsideTransactions(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	watch := openPool(t, pool.Config().ConnString())
	for i := range 5 {
		stage(t, pool, o, message(waybill.Key(fmt.Sprint("k", i%2))), message())
	}
	l := &looker{watch: watch, limit: patience.For(patience.Limit)}
	bus := &sharedtest.Publisher{Before: l.look}
	r, err := relay.New(o, bus, relay.Options{BatchSize: 3, PublishTimeout: 2 * patience.For(patience.Limit)})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		c, err := r.RunOnce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if c.Failed > 0 {
			t.Fatalf("a transaction was open during a publish: %+v", c)
		}
	}
	if n := bus.Count(); n != 10 {
		t.Errorf("published %d of 10 messages", n)
	}

	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	l.limit = 50 * time.Millisecond
	if err := bus.Publish(t.Context(), make([]waybill.Envelope, 1)).FirstErr(); err == nil {
		t.Error("an open transaction was not seen")
	}
}
