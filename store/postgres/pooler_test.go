package postgres

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
)

// DB-10: behind a pooler that shares connections by transaction, LISTEN goes to a session that is not ours. The relay
// notices that a notification to itself does not arrive, says so, and polls.
func TestDeadListenIsNoticed(t *testing.T) {
	t.Parallel()
	o, pool := newPlanOutbox(t)
	var log strings.Builder
	o.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
	o.waiter.listen = `LISTEN "of somebody else"`
	t.Cleanup(func() { _ = o.Close(context.Background()) })
	routes := []string{waybill.DefaultRoute}
	look := func() int {
		t.Helper()
		if _, err := o.Wait(t.Context(), routes, time.Second); err != nil {
			t.Fatal(err)
		}
		var n int
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM waybill.waybill_outbox").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for end := time.Now().Add(15 * time.Second); !strings.Contains(log.String(), "did not arrive"); {
		if time.Now().After(end) {
			t.Fatal("not noticed")
		}
		look()
	}
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := o.Stage(t.Context(), tx, waybill.RawMessage("t.x", "text/plain", nil))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); look() == 0; {
		if time.Now().After(end) {
			t.Fatal("nothing was found by polling")
		}
	}
}

// DB-10: a relay that is always busy never sleeps on its connection, and does not take that for a dead LISTEN; a dead
// one is noticed all the same.
func TestBusyRelayKnowsWhetherItListens(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		dead bool
	}{{"alive", false}, {"dead", true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o, pool := newPlanOutbox(t)
			var log strings.Builder
			o.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
			if tc.dead {
				o.waiter.listen = `LISTEN "of somebody else"`
			}
			t.Cleanup(func() { _ = o.Close(context.Background()) })
			for end := time.Now().Add(2 * selfTimeout); time.Now().Before(end); {
				o.Wake() // it never gets to sleep
				if _, err := o.Wait(t.Context(), []string{waybill.DefaultRoute}, time.Second); err != nil {
					t.Fatal(err)
				}
				if _, err := pool.Exec(t.Context(), `SELECT pg_sleep(0.02)`); err != nil { // the work
					t.Fatal(err)
				}
			}
			if noticed := strings.Contains(log.String(), "did not arrive"); noticed != tc.dead {
				t.Fatalf("lost: %v: %s", noticed, log.String())
			}
			if listens := o.waiter.conn != nil && o.waiter.self == ""; listens == tc.dead {
				t.Fatalf("it listens: %v", listens)
			}
		})
	}
}
