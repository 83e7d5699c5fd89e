package listen

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres/internal/conns"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

// newWaiter returns a Waiter on a fresh outbox, and what it logs.
func newWaiter(t *testing.T) (*Waiter, *pgxpool.Pool, *strings.Builder) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testenv.Postgres(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	m, err := schema.New(schema.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	log := &strings.Builder{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	w := New(Options{
		Conns: conns.Pool(pool), Names: schema.NewNames("", "", ""),
		Logger: func() *slog.Logger { return logger },
	})
	t.Cleanup(func() { w.Close(context.Background()) })
	return w, pool, log
}

// DB-10: behind a pooler that shares connections by transaction, LISTEN goes to a session that is not ours. The relay
// notices that a notification to itself does not arrive, says so, and polls.
func TestDeadListenIsNoticed(t *testing.T) {
	t.Parallel()
	w, pool, log := newWaiter(t)
	w.listener.listen = `LISTEN "of somebody else"`
	routes := []string{waybill.DefaultRoute}
	look := func() int {
		t.Helper()
		if _, err := w.Wait(t.Context(), routes, time.Second); err != nil {
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
	if _, err := pool.Exec(t.Context(), "INSERT INTO waybill.waybill_outbox (source, topic, body) VALUES ('/test', 't.x', '')"); err != nil {
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
			w, pool, log := newWaiter(t)
			if tc.dead {
				w.listener.listen = `LISTEN "of somebody else"`
			}
			for end := time.Now().Add(2 * selfTimeout); time.Now().Before(end); {
				w.Wake() // it never gets to sleep
				if _, err := w.Wait(t.Context(), []string{waybill.DefaultRoute}, time.Second); err != nil {
					t.Fatal(err)
				}
				if _, err := pool.Exec(t.Context(), `SELECT pg_sleep(0.02)`); err != nil { // the work
					t.Fatal(err)
				}
			}
			if noticed := strings.Contains(log.String(), "did not arrive"); noticed != tc.dead {
				t.Fatalf("lost: %v: %s", noticed, log.String())
			}
			if listens := w.listener.works(); listens == tc.dead {
				t.Fatalf("it listens: %v", listens)
			}
		})
	}
}
