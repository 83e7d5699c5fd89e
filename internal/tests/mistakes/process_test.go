package mistakes_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	osexec "os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// relayProcess is the variable that makes the test binary a relay: the database's address. With _BROKER behind it, the
// broker's; with _SLOW, whether its broker stops to answer.
const relayProcess = "WAYBILL_BADINPUT_RELAY"

// slow answers for its first records, and then keeps every answer back: a kill finds records in flight.
type slow struct {
	core.Publisher
	sent *atomic.Int64
}

func (s slow) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	res := s.Publisher.Publish(ctx, batch)
	if s.sent.Add(int64(len(batch))) > 100 {
		<-ctx.Done()
	}
	return res
}

func (s slow) Unwrap() any { return s.Publisher }

// runRelayProcess relays until it is killed.
func runRelayProcess(dsn, broker string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience.For(2*time.Minute))
	defer cancel()
	fail := func(err error) {
		if err != nil {
			slog.Error("relay process", "error", err)
			os.Exit(1)
		}
	}
	pool, err := pgxpool.New(ctx, dsn)
	fail(err)
	o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/e2e"})
	fail(err)
	bus, err := rabbitmq.Dial(ctx, broker, rabbitmq.Options{})
	fail(err)
	var pub core.Publisher = bus
	opts := relay.Options{BatchSize: 20, Lease: patience.For(2 * time.Second), PublishTimeout: patience.For(time.Second), PollMax: time.Second}
	if os.Getenv(relayProcess+"_SLOW") == "true" {
		pub, opts.PublishTimeout = slow{bus, new(atomic.Int64)}, time.Hour
	}
	r, err := relay.New(o, pub, opts)
	fail(err)
	fail(r.Run(ctx))
}

// Relays are killed at any time, one after the other: a record that they held comes back, costs no attempt, and has one
// effect.
func TestRelayKilled(t *testing.T) { // P2 P3 P4
	t.Parallel()
	pg, mq := testenv.Postgres(t), testenv.RabbitMQ(t)
	pool := openPool(t, pg.DSN)
	migrate(t, pool)
	exec(t, pool, "CREATE TABLE seen (id text, n int)")
	o := newOutbox(t, pool, postgres.Options{})
	bus := dial(t, mq.URL, rabbitmq.Options{})
	declareAll(t, bus)
	var delivered atomic.Int64
	c := newConsumer(t, bus, consumer.Options{DrainTimeout: time.Second, Middleware: []waybill.Middleware{func(next waybill.HandleFunc) waybill.HandleFunc {
		return func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			delivered.Add(1)
			return next(ctx, d)
		}
	}}})
	handler, _ := inboxHandler(t, pool)
	if err := c.Handle(waybill.Subscription{Queue: "q", Bindings: []string{"a.b"}}, handler); err != nil {
		t.Fatal(err)
	}
	con := start(t, c)
	var msgs []waybill.Message
	for i := range 1000 {
		msgs = append(msgs, waybill.RawMessage("a.b", "application/json", []byte(`{"n":1}`), waybill.Key(fmt.Sprint("k", i%50))))
	}
	if _, err := stageOn(t, pool, o, msgs...); err != nil {
		t.Fatal(err)
	}
	begin := func(slow bool) *osexec.Cmd {
		t.Helper()
		cmd := osexec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), relayProcess+"="+pg.DSN, relayProcess+"_BROKER="+mq.URL, fmt.Sprintf("%s_SLOW=%t", relayProcess, slow))
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	left := func() int { return number(t, pool, "SELECT count(*) FROM waybill.waybill_outbox") }
	inFlight := func() int {
		return number(t, pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE id IN (SELECT id FROM seen)")
	}
	for range 3 {
		before := left()
		cmd := begin(true)
		patience.Until(t, "the process relays, and has records in flight", func() bool {
			return left() < before-40 && inFlight() > 0
		})
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
	}
	cmd := begin(false)
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	attempts := 0
	defer func() {
		if !t.Failed() {
			return
		}
		rows, err := pool.Query(context.WithoutCancel(t.Context()), "SELECT state || ' key ' || key || ' seq ' || seq || ' crashes ' || crashes || ' attempts ' || attempts || ' due ' || coalesce(due_at::text, '-') || ' held by ' || hold || ' err ' || last_error FROM waybill.waybill_outbox ORDER BY seq LIMIT 20")
		if err != nil {
			t.Log(err)
			return
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		t.Log(left(), "left", err, "\n"+strings.Join(texts, "\n"))
	}()
	patience.Moving(t, "everything is published", func() (int, bool) {
		n := left()
		attempts = max(attempts, number(t, pool, "SELECT coalesce(max(attempts), 0) FROM waybill.waybill_outbox"))
		return n, n == 0
	})
	patience.Moving(t, "everything is handled", func() (int, bool) {
		n := number(t, pool, "SELECT count(DISTINCT id) FROM seen")
		return n, n == len(msgs)
	})
	if n := number(t, pool, "SELECT count(*) FROM seen"); n != len(msgs) || attempts != 0 {
		t.Errorf("%d effects of %d messages, %d attempts", n, len(msgs), attempts)
	}
	con.stop()
	again := int(delivered.Load()) - len(msgs)
	t.Logf("%d records were in flight when their relay was killed, and were sent again", again)
	if again <= 0 {
		t.Error("no relay was killed with records in flight: the test proves nothing")
	}
}
