package health_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/health"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background)) }

// OP-06: each dependency is broken in turn. The relay stays live; readiness and the deep check name the fault, and no
// secret; all is well again afterwards.
func TestDependenciesBreak(t *testing.T) {
	tier.Nightly(t, "kills its own database and broker: 30 s")
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{})
	broker := testenv.OwnRabbitMQ(t, testenv.RabbitMQOptions{})
	db, err := server.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	var log sharedtest.Log
	outbox, err := postgres.NewOutbox(pool, postgres.Options{Source: "/shop", Logger: log.Logger(0)})
	if err == nil {
		err = outbox.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	bus, err := rabbitmq.Dial(t.Context(), broker.AMQPURL("/"), rabbitmq.Options{Logger: log.Logger(0)})
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(outbox, bus, relay.Options{Logger: log.Logger(0), Lease: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c, err := consumer.New(bus, consumer.Options{Logger: log.Logger(0)})
	if err == nil {
		err = c.Handle(waybill.Subscription{Queue: "bills", Bindings: []string{"bills.#"}}, waybill.HandlerFor(waybill.NewTopic("bills.made", waybill.JSON[int]()), func(context.Context, int) error { return nil }))
	}
	if err != nil {
		t.Fatal(err)
	}
	h := handler(t, health.Options{
		Engines: map[string]health.Checker{"shop": r, "bills": c},
		Deep:    map[string]health.Checker{"store": health.Store(outbox, time.Hour), "bus": health.Transport(bus)}, Timeout: 3 * time.Second,
	})
	want(t, h, 200, 503, 503) // they do not run
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- waybill.Run(ctx, r, c) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, err := range []error{outbox.Close(context.WithoutCancel(ctx)), bus.Close(context.WithoutCancel(ctx))} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	await := func(what, path string, code int, says ...string) {
		t.Helper()
		var last string
		defer func() {
			if t.Failed() {
				t.Log(last)
			}
		}()
		patience.Until(t, what+": "+path, func() bool {
			got, text := get(h, path)
			last = text
			if strings.Contains(text, "guest:guest") || strings.Contains(text, "postgres:postgres") {
				t.Fatalf("tells a secret: %s", text)
			}
			missing := ""
			for _, s := range says {
				if !strings.Contains(text, s) {
					missing = s
				}
			}
			if got == code && missing == "" {
				if live, text := get(h, "/livez"); live != 200 {
					t.Errorf("%s: not live: %s", what, text)
				}
				return true
			}
			last = fmt.Sprintf("%d, not %d, or does not say %q:\n%s", got, code, missing, text)
			return false
		})
	}
	well := func(what string) {
		t.Helper()
		await(what, "/healthz", 200)
		await(what, "/readyz", 200)
	}
	well("at the start")

	server.Kill()
	await("no database", "/readyz", 503, "failed    shop: store: ")
	await("no database", "/healthz", 503, "failed    store: check: ", "ok        bus: check: ")
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	well("database is back")

	broker.Kill()
	await("no broker", "/healthz", 503, "failed    bus: check: ", "ok        store: check: ")
	await("no broker", "/readyz", 503, "failed    bills: queue bills: ", "ok        shop: store: ")
	if err := broker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	well("broker is back")

	conn, err := pgx.Connect(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("ALTER TABLE waybill.waybill_outbox ALTER COLUMN attempts DROP NOT NULL")
	await("schema drifts", "/healthz", 503, "failed    store: schema: 1 differences: ")
	exec("ALTER TABLE waybill.waybill_outbox ALTER COLUMN attempts SET NOT NULL")
	well("schema is right again")
	exec("ALTER TABLE waybill.waybill_outbox RENAME TO gone")
	await("table is gone", "/healthz", 503, "failed    store: check: ", "waybill_outbox")
	exec("ALTER TABLE waybill.gone RENAME TO waybill_outbox")
	well("table is back")
}

// counting is a store that counts as it is told.
type counting struct {
	age                time.Duration
	estimated, atLeast bool
	err                error
}

func (c *counting) Counts(context.Context) ([]admin.Count, error) {
	return []admin.Count{{Route: "default", State: core.StatePending, N: 7, Estimated: c.estimated, AtLeast: c.atLeast, Oldest: c.age}, {Route: "default", State: core.StateAbandoned, N: 1, Oldest: time.Hour}}, c.err
}

// OP-06 OP-20: a backlog that is too old is a failed check, which says how exact its number is.
func TestBacklogIsTooOld(t *testing.T) {
	t.Parallel()
	db := &counting{age: time.Minute}
	h := handler(t, health.Options{Deep: map[string]health.Checker{"store": health.Store(db, 2*time.Minute)}})
	want(t, h, 200, 200, 200)
	db.age = 3 * time.Minute
	if code, text := get(h, "/healthz"); code != 503 || !strings.Contains(text, ": 7 pending on route default, the oldest due for 3m0s") {
		t.Errorf("%d %s", code, text)
	}
	db.estimated = true
	if _, text := get(h, "/healthz"); !strings.Contains(text, ": about 7 pending on route default") {
		t.Error(text)
	}
	db.atLeast = true
	if _, text := get(h, "/healthz"); !strings.Contains(text, ": more than 7 pending on route default") {
		t.Error(text)
	}
	db.err = errors.New("no answer")
	if code, text := get(h, "/healthz"); code != 503 || !strings.Contains(text, "backlog: unknown: no answer") {
		t.Errorf("%d %s", code, text)
	}
}
