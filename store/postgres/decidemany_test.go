package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

// counted counts the steps of a decision about many.
type counted struct {
	*postgres.Outbox
	lists, decisions atomic.Int64
}

func (c *counted) List(ctx context.Context, f admin.Filter, p admin.PageRequest) (admin.Listing, error) {
	c.lists.Add(1)
	return c.Outbox.List(ctx, f, p)
}

func (c *counted) DecideRecords(ctx context.Context, req admin.DecideRequest) ([]admin.Decision, error) {
	c.decisions.Add(1)
	return c.Outbox.DecideRecords(ctx, req)
}

// backlog fills an outbox with due records: a quarter has the topic t0, and ten have the tenant few.
func backlog(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	postgres.Indexed(t, pool, func() {
		exec(t, pool, fmt.Sprintf(`INSERT INTO waybill.waybill_outbox (topic, key, body, attrs)
			SELECT 't' || i %% 4, CASE WHEN i %% 2 = 0 THEN '' ELSE 'k' || i %% 1000 END, 'body',
				CASE WHEN i %% %d = 3 THEN '{"tenant": "few"}'::jsonb END
			FROM generate_series(1, %d) i`, n/10, n))
	})
	exec(t, pool, "VACUUM ANALYZE waybill.waybill_outbox")
}

// OP-18 ST-09: with a backlog and the broker down, an operator's decision is carried out by the relay, for a tenant
// with few records as for a quarter of all, and by the command alone when the relay is gone. WAYBILL_SCALE sets the
// backlog.
func TestDecisionsWhileTheBrokerIsDown(t *testing.T) {
	t.Parallel()
	n := 20_000
	if os.Getenv("WAYBILL_SCALE") != "" {
		n = large(t)
	}
	o, pool := newOutbox(t, postgres.Options{})
	backlog(t, pool, n)
	c := &counted{Outbox: o}
	down := func(context.Context, []waybill.Envelope) error {
		return &waybill.Error{Op: "test: publish", Class: waybill.ClassOutage, Err: errors.New("connection refused")}
	}
	r, err := relay.New(o, &sharedtest.Publisher{Before: down}, relay.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- r.Run(ctx) }()
	patience.Until(t, "the relay owns the route", func() bool {
		return queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox_partitions WHERE owner = 0") == 0 &&
			queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox_partitions") > 0
	})
	steps := func(what string, fn func() error) {
		t.Helper()
		c.lists.Store(0)
		c.decisions.Store(0)
		began := time.Now()
		if err := fn(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		t.Logf("%s of %d took %s: %d pages, %d calls about decisions", what, n, time.Since(began).Round(time.Millisecond), c.lists.Load(), c.decisions.Load())
	}
	few := admin.TerminateRequest{Filter: admin.Filter{Tenants: []string{"few"}}, Reason: waybill.ReasonSetAside}
	steps("setting a tenant's ten aside", func() error {
		sum, err := admin.DecideAll(t.Context(), c, few, admin.TerminateOptions{})
		if err == nil && sum != (admin.TerminateResult{Matched: 10, Ended: 10}) {
			err = fmt.Errorf("%+v", sum)
		}
		return err
	})
	if pages := c.lists.Load(); pages > int64(n/admin.DefaultPageBudget+1) {
		t.Errorf("%d pages for ten records of %d", pages, n)
	}
	steps("purging a topic", func() error {
		told := 0
		opts := admin.TerminateOptions{Result: func(admin.Decision) { told++ }}
		sum, err := admin.PurgeAll(t.Context(), c, admin.PurgeRequest{Filter: admin.Filter{Topics: []string{"t0"}}}, opts)
		if err == nil && (sum.Ended.Ended != n/4 || sum.Purged.Deleted != n/4 || told != n/4) {
			err = fmt.Errorf("%+v, %d told", sum, told)
		}
		return err
	})
	cancel()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	steps("skipping a topic without a relay", func() error {
		sum, err := admin.DecideAll(t.Context(), c, admin.TerminateRequest{Filter: admin.Filter{Topics: []string{"t1"}}, Reason: waybill.ReasonSkipped}, admin.TerminateOptions{})
		if err == nil && sum.Ended != n/4 {
			err = fmt.Errorf("%+v", sum)
		}
		return err
	})
	if calls := c.decisions.Load(); calls > int64(n/4/admin.MaxPageLimit+1) {
		t.Errorf("%d calls to end %d records that nobody owns", calls, n/4)
	}
	for what, count := range map[string]int{
		"topic = 't0'": 0, "topic = 't1' AND reason = 'skipped'": n / 4, "reason = 'set_aside'": 10,
		"state = 1": n/2 - 10,
	} {
		if got := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE "+what); got != int64(count) {
			t.Errorf("%s: %d records, want %d", what, got, count)
		}
	}
	if left := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox_notices WHERE kind = 4"); left > 0 {
		t.Errorf("%d decisions are left", left)
	}
}
