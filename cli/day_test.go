package cli_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

// OP-01 OP-19: the commands of docs/runbooks.md name each cause with its cure beside 300,000 messages: an old schema,
// no relay, a broker that is away, a wrong password, a topic without a queue, and a key behind it. Full disks are in
// internal/tests/outages. The log has the times.
func TestDayOfAnOperator(t *testing.T) {
	tier.Nightly(t, "300,000 messages through a broker: a minute")
	const n, behind = 300_000, 1000
	r := newRabbit(t, "q")
	pg := testenv.Postgres(t)
	r.settings = append([]string{"stores.shop.kind=postgres", "stores.shop.url=" + pg.DSN, "relays.shop.transport=mq"}, r.settings...)
	file, settings := r.settings[len(r.settings)-1], r.settings[:len(r.settings)-1]
	ask := func(line string, more ...string) answer {
		t.Helper()
		began := time.Now()
		a := command(t, append(slices.Clip(settings), more...), append(strings.Fields(line), "--config", file)...)
		t.Logf("%6d ms  waybill %s", time.Since(began).Milliseconds(), line)
		return a
	}
	ask("status").is(t, cli.ExitFailed, "run waybill migrate up")
	ask("migrate up").is(t, cli.ExitOK)
	ask("validate").is(t, cli.ExitFindings, `queue "q"`)
	ask("topology declare").is(t, cli.ExitOK)
	ask("validate").is(t, cli.ExitOK, "no problem")

	pool, err := pgxpool.New(t.Context(), pg.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	insert := func(n int, topic, key string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), `INSERT INTO waybill.waybill_outbox (topic, key, body, source, id, own_id)
			SELECT $2, `+key+`, 'body', '/shop', $2 || '-' || i || '-' || `+key+`, true FROM generate_series(1, $1::int) i`, n, topic); err != nil {
			t.Fatal(err)
		}
	}
	insert(1, "lost.x", "'hot'")
	insert(behind, "q.a", "'hot'")
	insert(n, "q.a", "'k' || i % 1000")
	ask("status").is(t, cli.ExitOK, "waits: no relay serves route default")
	ask("validate", "transports.mq.url=amqp://127.0.0.1:1/").is(t, cli.ExitFindings, "transports.mq", "connection refused")
	ask("validate", "transports.mq.url="+r.mq.URLFor("nobody", "s3cret")).is(t, cli.ExitFindings, "transports.mq", "refused the user or its password").not(t, "s3cret")

	outbox, err := postgres.NewOutbox(pool, postgres.Options{Source: "/shop"})
	if err != nil {
		t.Fatal(err)
	}
	relays, err := relay.New(outbox, r.bus, relay.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relays.Run(ctx) }()
	left := func(want int) {
		t.Helper()
		patience.Moving(t, fmt.Sprint(want, " are left"), func() (int, bool) {
			var got int
			if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM waybill.waybill_outbox WHERE settled_at IS NULL`).Scan(&got); err != nil {
				t.Fatal(err)
			}
			return got, got == want
		})
	}
	left(behind + 1)
	ask("status").is(t, cli.ExitOK, "1,001 waiting", "no queue is bound for its topic lost.x")
	ask("keys list --route default").is(t, cli.ExitOK, "hot  ", "1,000", "lost.x-1-hot", "unroutable")
	ask("show default q.a-1-hot").is(t, cli.ExitOK, "message lost.x-1-hot of topic lost.x is before it in its key", "no queue is bound for its topic lost.x")
	ask("validate").is(t, cli.ExitFindings, `topic "lost.x": messages of it wait on route default`)
	if err := testenv.Channel(t, r.mq.URL).QueueBind("q", "lost.#", "waybill", false, nil); err != nil {
		t.Fatal(err)
	}
	left(0)
	ask("status --wait-empty").is(t, cli.ExitOK, "0 waiting")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
