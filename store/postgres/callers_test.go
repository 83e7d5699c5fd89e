package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// P8: a caller whose transaction replaced messages that the relay is sending, and stays open, delays these messages'
// outcomes and nothing else. Nothing is sent twice, no lease is lost, and the caller is no victim of a deadlock.
func TestOpenCallersStopNoRelay(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	const held = 3
	var locked []waybill.Message
	for i := range held {
		locked = append(locked, message(waybill.ID(fmt.Sprint("held", i)), waybill.DedupeKey(fmt.Sprint("d", i))))
	}
	stage(t, pool, o, locked...)

	opts := dispatch.Options{Lease: 2 * time.Second, PollMax: 20 * time.Millisecond}
	opts.Routes = []dispatch.Route{{Name: waybill.DefaultRoute, Partitions: 4}}
	b := &bus{ids: map[string][]string{}}
	out, release := make(chan struct{}, held), make(chan struct{})
	var lost atomic.Int64
	p := newPump(o, opts)
	p.outcome = func(item *dispatch.Item) core.Outcome {
		if item.Lost() {
			lost.Add(1)
		}
		return core.Published(&item.Record)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		stop()
		wg.Wait()
	})
	wg.Go(func() {
		p.run(ctx, nil, 1, 20, func(items []*dispatch.Item) {
			if strings.HasPrefix(items[0].Record.ID, "held") {
				out <- struct{}{}
				<-release
			}
			b.take(items)
		})
	})
	for range held {
		<-out // they are being sent
	}
	tx := begin(t, pool, "SELECT 1")
	replace := func(i int) waybill.CancelStatus {
		t.Helper()
		s, err := o.Stage(t.Context(), tx, message(waybill.ID(fmt.Sprint("new", i)), waybill.Replace(fmt.Sprint("d", i))))
		if err != nil {
			t.Fatalf("the caller's transaction fails: %v", err)
		}
		return s[0].Replaced
	}
	if got := replace(2); got != waybill.CancelInFlight { // its row is locked from now on
		t.Fatalf("replaced what is being sent: %s", got)
	}
	close(release)
	// Meanwhile the relay settles, again and again, records that cannot be settled. The caller passes those
	// settles.
	for range 20 {
		replace(0)
		replace(1)
	}
	stage(t, pool, o, batch("other", 500)...)
	b.has(t, idsOf("other", 500)...)
	gone := func(ids []string) bool {
		return query[int](t, pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE id = ANY ($1)", ids) == 0
	}
	patience.Until(t, "all others are settled beside the open transaction", func() bool {
		return gone(idsOf("other", 500))
	})
	stage(t, pool, o, batch("later", 100)...)
	patience.Until(t, "and what comes later", func() bool { return b.count() >= 600+held && gone(idsOf("later", 100)) })
	if gone([]string{"held2"}) {
		t.Error("a row was deleted that a caller has locked")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("the caller's transaction: %v", err)
	}
	patience.Until(t, "nothing is left", func() bool { return query[int](t, pool, "SELECT count(*) FROM waybill.waybill_outbox") == 0 })
	if lost.Load() != 0 {
		t.Errorf("%d leases were lost", lost.Load())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, ids := range b.ids {
		slices.Sort(ids)
		if n := len(ids); len(slices.Compact(ids)) != n {
			t.Errorf("messages of key %q were sent twice: %v", key, ids)
		}
	}
}

// Time limits of the role are for the application's statements. Those of Waybill have limits of their own, so that a
// role with tight ones can run a relay and an inbox.
func TestTimeLimitsOfTheRole(t *testing.T) {
	t.Parallel()
	dsn := testenv.Postgres(t).DSN
	patient := openPool(t, dsn) // the application's transactions do not run out on a busy machine
	producer := outboxOn(t, patient, postgres.Options{})
	limits := "lock_timeout=1&statement_timeout=1000&idle_in_transaction_session_timeout=1000&default_transaction_isolation=serializable"
	pool := openPool(t, withParam(dsn, limits))
	o := outboxOn(t, pool, postgres.Options{})
	stage(t, patient, producer, batch("a", 300)...)
	one, two := runPump(t, o, waybill.DefaultRoute), runPump(t, o, waybill.DefaultRoute)
	stage(t, patient, producer, batch("b", 300)...)
	patience.Moving(t, "all arrive", func() (int, bool) { n := one.count() + two.count(); return n, n >= 600 })
	patience.Until(t, "all are settled", func() bool { return query[int](t, pool, "SELECT count(*) FROM waybill.waybill_outbox") == 0 })
	if _, err := o.Clean(t.Context(), "me", time.Minute); err != nil {
		t.Error(err)
	}

	in, err := postgres.NewInbox(pool, postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	key := core.InboxKey{Consumer: "c", Source: "/test", ID: "1"}
	first := begin(t, patient, "INSERT INTO waybill.waybill_inbox (consumer, source, id) VALUES ('c', '/test', '1')")
	second := make(chan error)
	go func() {
		status, err := in.Do(context.Background(), key, func(context.Context, pgx.Tx) error { return errNo })
		if err == nil && status != core.InboxDuplicate {
			err = fmt.Errorf("it is %s", status)
		}
		second <- err
	}()
	patience.Until(t, "it waits, for longer than the role's limit", func() bool {
		select {
		case err := <-second:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		return query[int](t, pool, `SELECT count(*) FROM pg_stat_activity
			WHERE wait_event_type = 'Lock' AND datname = current_database() AND now() - query_start > interval '100 ms'`) == 1
	})
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// PostgreSQL refuses to prepare a transaction that notified. With DisableNotify, staging can be part of a two-phase
// commit, and a relay finds it.
func TestTwoPhaseCommit(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{Settings: map[string]string{"max_prepared_transactions": "5"}})
	pool := openPool(t, server.DSN("postgres"))
	for _, disable := range []bool{false, true} {
		o := outboxOn(t, pool, postgres.Options{DisableNotify: disable})
		if !disable { // a relay sleeps
			exec(t, pool, "SELECT setval('waybill.waybill_outbox_wake', (extract(epoch FROM now()) * 1000)::bigint + 600000)")
		}
		id := fmt.Sprint("prepared-", disable)
		tx := begin(t, pool, "SELECT 1")
		if _, err := o.Stage(t.Context(), tx, message(waybill.ID(id))); err != nil {
			t.Fatal(err)
		}
		_, err := tx.Exec(t.Context(), "PREPARE TRANSACTION '"+id+"'")
		if refused := err != nil; refused == disable {
			t.Errorf("with DisableNotify = %v: %v", disable, err)
		}
		if err != nil {
			_ = tx.Rollback(t.Context())
			continue
		}
		b := runPump(t, o, waybill.DefaultRoute)
		exec(t, pool, "COMMIT PREPARED '"+id+"'")
		b.has(t, id)
	}
}
