package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// DB-10: behind PgBouncer, which shares connections by transaction, everything works but notifications, and neither a
// LISTEN nor a lock stays in a session that others use.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{})
	const sessions = 2
	dsn := testenv.NewPooler(t, server, sessions).DSN("postgres")
	pool := openPool(t, dsn)
	o := outboxOn(t, pool, postgres.Options{})
	if token, lost, err := o.Acquire(t.Context()); token != 0 || lost != nil || err != nil {
		t.Errorf("acquired with %d, %v, %v", token, lost != nil, err)
	}
	for range 3 {
		if _, err := o.Wait(t.Context(), []string{waybill.DefaultRoute}, 100*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	left := func(when string) {
		t.Helper()
		var open []pgx.Tx // all sessions at once
		for range sessions {
			tx := begin(t, pool, "SELECT 1")
			open = append(open, tx)
			var channels, locks int
			if err := tx.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_listening_channels()),
				(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')`).Scan(&channels, &locks); err != nil {
				t.Fatal(err)
			}
			if channels+locks != 0 {
				t.Errorf("%s a session listens to %d channels, and there are %d locks", when, channels, locks)
			}
		}
		for _, tx := range open {
			_ = tx.Rollback(context.Background())
		}
	}
	left("after the start")
	stage(t, pool, o, batch("a", 200)...)
	b := runPump(t, o, waybill.DefaultRoute)
	b.has(t, idsOf("a", 200)...)
	stage(t, pool, o, batch("b", 200)...)
	b.has(t, idsOf("b", 200)...)
	left("beside a relay")
}

// pgx prepares statements unless told otherwise. Behind a pooler that fails, and the error says what to set.
func TestPgBouncerNeedsAQueryMode(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{})
	direct := openPool(t, server.DSN("postgres"))
	outboxOn(t, direct, postgres.Options{})
	dsn := strings.Replace(testenv.NewPooler(t, server, 2).DSN("postgres"), "default_query_exec_mode=exec", "default_query_exec_mode=cache_statement", 1)
	o, err := postgres.NewOutbox(openPool(t, dsn), postgres.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "a statement is on another connection", func() bool {
		failed := make(chan error, 4)
		for range cap(failed) {
			go func() {
				_, err := o.List(context.Background(), admin.Filter{}, admin.PageRequest{})
				failed <- err
			}()
		}
		found := false
		for range cap(failed) {
			err := <-failed
			if err == nil {
				continue
			}
			found = true
			if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "default_query_exec_mode=exec") {
				t.Errorf("it does not say what to do: %v", err)
			}
		}
		return found
	})
}
