package postgres_test

// The costs of an idle relay: Postgres answers it all day, for every service that has one.

import (
	"bytes"
	"context"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/table"
)

// ledger counts round trips by their kind. Tracers see no pings, so these are counted where they are sent.
type ledger struct {
	mu sync.Mutex
	by map[string]int
}

// kinds are texts that only statements of one kind have, in the order in which they are looked for.
var kinds = []struct{ text, kind string }{
	{"SET heartbeats", "heartbeat"},
	{"unavailable FROM", "heartbeat"},
	{"pg_snapshot_xip", "read"},
	{"p.repeats", "due"},
	{"_wake\"", "look"},
	{"SELECT 0::bigint", "look"},
}

func (l *ledger) note(sqls ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range kinds {
		for _, sql := range sqls {
			if strings.Contains(sql, k.text) {
				l.by[k.kind]++
				return
			}
		}
	}
	other := strings.Join(strings.Fields(sqls[len(sqls)/2]), " ")
	l.by["other: "+other[:min(len(other), 120)]]++
}

// The kinds of pings. A pool pings a connection that it hands out after more than a second of rest: that is the pool's
// own setting, and no cost of ours.
const (
	anyPing  = "ping"
	poolPing = "ping of the pool"
)

func (l *ledger) add(kind string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.by[kind]++
}

// watch counts the round trips and pings of a pool.
func (l *ledger) watch(cfg *pgxpool.Config) {
	cfg.ConnConfig.Tracer = l
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &pinged{Conn: conn, l: l}, err
	}
	cfg.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool {
		if p.IdleDuration <= time.Second { // as without ShouldPing
			return false
		}
		l.add(poolPing)
		return true
	}
}

// pinged counts pings.
type pinged struct {
	net.Conn
	l *ledger
}

func (c *pinged) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("-- ping")) {
		c.l.add(anyPing)
	}
	return c.Conn.Write(b)
}

func (l *ledger) counts() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.by)
}

func (l *ledger) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	l.note(q.SQL)
	return ctx
}
func (l *ledger) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (l *ledger) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	var sqls []string
	for _, q := range b.Batch.QueuedQueries {
		sqls = append(sqls, q.SQL)
	}
	l.note(sqls...)
	return ctx
}
func (l *ledger) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (l *ledger) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// TestIdleRelay: an idle relay makes 30 round trips for 18 heartbeats, which renew a lease of ten seconds for a
// minute. Its own pings are among them. Three minutes are counted: in one, a pause of half a minute can end three times
// instead of two.
//
// DB-10.
func TestIdleRelay(t *testing.T) {
	tier.Nightly(t, "the real pauses of an idle relay: six minutes")
	t.Parallel()
	l, o := idleOutbox(t)
	r, err := relay.New(o, &sharedtest.Publisher{}, relay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l.idle(t, r.Run, 40, 54, 90)
}

// TestIdleTableQueue: a consumer that is alone on an idle table queue makes 40 round trips for 18 heartbeats, which are
// five seconds apart. Its own pings are among them, and its cleaning.
//
// DB-10.
func TestIdleTableQueue(t *testing.T) {
	tier.Nightly(t, "the real pauses of an idle table queue: ten minutes")
	t.Parallel()
	l, o := idleOutbox(t)
	tr, err := table.New(o, table.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := consumer.New(tr, consumer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := waybill.Handler{Name: "mail.send", Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) { return 0, nil }}
	if err := c.Handle(waybill.Subscription{Queue: "mails"}, h); err != nil {
		t.Fatal(err)
	}
	l.idle(t, c.Run, 55, 54, 120)
}

// idleOutbox returns an outbox on a server of its own: transactions of others make a waiter look.
func idleOutbox(t *testing.T) (*ledger, *postgres.Outbox) {
	t.Helper()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{})
	l := &ledger{by: map[string]int{}}
	pool := openPoolWith(t, server.DSN("postgres"), l.watch)
	return l, outboxOn(t, pool, postgres.Options{})
}

// idle has run settle down for some heartbeats, and then counts the round trips of some more.
func (l *ledger) idle(t *testing.T, run func(context.Context) error, settle, counted, want int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	beats := func(n int) map[string]int {
		patience.Moving(t, "heartbeats", func() (beats int, done bool) {
			beats = l.counts()["heartbeat"]
			return beats, beats >= n
		})
		return l.counts()
	}
	before := beats(settle) // nothing happens for half a minute, and then pauses double
	after := beats(before["heartbeat"] + counted)
	total := 0
	for _, kind := range slices.Sorted(maps.Keys(after)) {
		n := after[kind] - before[kind]
		if n > 0 {
			t.Logf("%3d %s", n, kind)
		}
		if kind == poolPing {
			n = -n // they are among the others
		}
		total += n
	}
	if total > want {
		t.Errorf("%d round trips in %d heartbeats, want at most %d", total, counted, want)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
