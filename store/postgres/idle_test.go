package postgres_test

// The costs of an idle relay: Postgres answers it all day, for every service that has one.

import (
	"context"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

// ledger counts round trips by their kind.
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
	l.by["other: "+strings.Join(strings.Fields(sqls[len(sqls)/2]), " ")]++
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

// DB-10: an idle relay makes 30 round trips for 18 heartbeats, which renew a lease of ten seconds for a minute.
func TestIdleRelay(t *testing.T) {
	tier.Nightly(t, "the real pauses of an idle relay: three minutes")
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{}) // transactions of others make a relay look
	l := &ledger{by: map[string]int{}}
	pool := openPoolWith(t, server.DSN("postgres"), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = l })
	o := outboxOn(t, pool, postgres.Options{})
	r, err := relay.New(o, &sharedtest.Publisher{}, relay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	beats := func(n int) {
		patience.Moving(t, "heartbeats", func() (beats int, done bool) {
			beats = l.counts()["heartbeat"]
			return beats, beats >= n
		})
	}
	beats(40) // it settles down: nothing happens for half a minute, and then pauses double
	before := l.counts()
	beats(before["heartbeat"] + 18)
	total := 0
	for kind, n := range l.counts() {
		if n -= before[kind]; n > 0 {
			t.Logf("%3d %s", n, kind)
			total += n
		}
	}
	const pings = 2 // of the connection that shows that the process is there: no tracer sees them
	if total += pings; total > 30 {
		t.Errorf("%d round trips in 18 heartbeats, want at most 30", total)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
