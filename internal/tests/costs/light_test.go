//go:build !race

package costs_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

// tripKinds counts the round trips of a relay by their purpose.
type tripKinds struct{ reads, settles, looks, dues, others atomic.Int64 }

func (l *tripKinds) note(sql string) {
	switch {
	case strings.Contains(sql, "pg_snapshot_xip"):
		l.reads.Add(1)
	case strings.Contains(sql, "DELETE FROM"):
		l.settles.Add(1)
	case strings.Contains(sql, "SELECT 0::bigint") || strings.Contains(sql, "_wake\""):
		l.looks.Add(1)
	case strings.Contains(sql, "p.repeats"):
		l.dues.Add(1)
	default:
		l.others.Add(1)
	}
}

func (l *tripKinds) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	l.note(q.SQL)
	return ctx
}
func (l *tripKinds) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (l *tripKinds) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	var all strings.Builder
	for _, q := range b.Batch.QueuedQueries {
		all.WriteString(q.SQL)
	}
	l.note(all.String())
	return ctx
}
func (l *tripKinds) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (l *tripKinds) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// TestLightLoad: a message that comes alone costs the relay one read and one settle. It does not look whether there are
// more: the next commit notifies it. A relay that saves makes one read in 25 ms and one settle in 100 ms, however many
// messages come. Reads that find nothing, and looks, come with time, so that a slow run has more of them.
//
// DB-10.
func TestLightLoad(t *testing.T) {
	for _, pacing := range []relay.Pacing{relay.PacingPrompt, relay.PacingSaving} {
		t.Run(pacing.String(), func(t *testing.T) {
			server := testenv.OwnPostgres(t, testenv.PostgresOptions{Settings: calm})
			side, err := pgx.Connect(t.Context(), server.DSN("postgres"))
			must(t, err)
			defer side.Close(context.WithoutCancel(t.Context()))
			_, err = side.Exec(t.Context(), "CREATE DATABASE app")
			must(t, err)
			open := func(tracer pgx.QueryTracer) (*postgres.Outbox, *pgxpool.Pool) {
				cfg, err := pgxpool.ParseConfig(server.DSN("app"))
				must(t, err)
				cfg.ConnConfig.Tracer = tracer
				pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
				must(t, err)
				t.Cleanup(pool.Close)
				o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/costs", Logger: quiet})
				must(t, err)
				return o, pool
			}
			is := &tripKinds{}
			o, pool := open(nil)
			must(t, o.Migrate(t.Context()))
			served, _ := open(is)
			defer served.Close(context.WithoutCancel(t.Context()))
			bus := &sharedtest.Publisher{}
			r, err := relay.New(served, bus, relay.Options{Logger: quiet, Pacing: pacing})
			must(t, err)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.Run(ctx) }()
			send := func(n int) {
				for _, m := range messages(n) {
					arrived, settled := bus.Count(), is.settles.Load()
					must(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { _, err := o.Stage(t.Context(), tx, m); return err }))
					if pacing == relay.PacingPrompt {
						patience.Until(t, "it is published and settled", func() bool { return bus.Count() > arrived && is.settles.Load() > settled })
					}
					patience.Pass(t, 5*time.Millisecond) // it stays awake if more come
				}
			}
			const n = 200
			send(50)
			began, reads, settles, looks, dues := time.Now(), is.reads.Load(), is.settles.Load(), is.looks.Load(), is.dues.Load()
			send(n)
			took := time.Since(began)
			reads, settles, looks, dues = is.reads.Load()-reads, is.settles.Load()-settles, is.looks.Load()-looks, is.dues.Load()-dues
			t.Logf("%d messages in %s: %d reads, %d settles, %d looks, %d looks for timers", n, took, reads, settles, looks, dues)
			in := func(d time.Duration) int64 { return int64(took/d) + 5 }
			most := tripKinds{}
			switch pacing {
			case relay.PacingPrompt:
				most.reads.Store(n + n/5 + in(50*time.Millisecond))
				most.settles.Store(n + 5)
				most.looks.Store(n/5 + in(100*time.Millisecond))
			case relay.PacingSaving:
				most.reads.Store(in(24 * time.Millisecond))
				most.settles.Store(in(100 * time.Millisecond))
				most.looks.Store(in(24 * time.Millisecond))
			}
			if reads > most.reads.Load() || settles > most.settles.Load() || looks > most.looks.Load() {
				t.Errorf("want at most %d, %d and %d", most.reads.Load(), most.settles.Load(), most.looks.Load())
			}
			stop()
			must(t, <-ended)
		})
	}
}
