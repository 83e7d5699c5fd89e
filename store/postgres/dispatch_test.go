package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/store/postgres"
)

// arrivals is a broker: what arrived, and in which order for each key.
type arrivals struct {
	mu    sync.Mutex
	seen  map[string]bool
	last  map[string]int64 // by key: the greatest sequence that arrived
	wrong []string
	n     atomic.Int64
	all   chan struct{}
	want  int
}

func newArrivals(want int) *arrivals {
	return &arrivals{seen: map[string]bool{}, last: map[string]int64{}, all: make(chan struct{}), want: want}
}

func (a *arrivals) take(items []*dispatch.Item) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, it := range items {
		r := &it.Record
		if a.seen[r.ID] {
			continue
		}
		a.seen[r.ID] = true
		if key := r.Envelope.Key; key != "" {
			if r.Seq < a.last[key] {
				a.wrong = append(a.wrong, fmt.Sprintf("%d of key %s came after %d", r.Seq, key, a.last[key]))
			}
			a.last[key] = max(a.last[key], r.Seq)
		}
		if a.n.Add(1) == int64(a.want) {
			close(a.all)
		}
	}
}

// TestMembersShareAndTakeOver: three members share an outbox, one of them is killed in the middle of its work,
// another one joins. Everything arrives, in the order of its key.
func TestMembersShareAndTakeOver(t *testing.T) { // DB-24 OR-02 RL-10
	t.Parallel()
	const n, keys = 12_000, 50
	s, pool := newOutbox(t, postgres.Options{})
	fill(t, s, func() (pgx.Tx, error) { return pool.Begin(t.Context()) }, "r", n, keys)
	broker := newArrivals(n)
	ctx, stop := context.WithCancel(t.Context())
	var members sync.WaitGroup
	defer members.Wait()
	defer stop()
	join := func(killed <-chan struct{}) {
		p := newPump(s, dispatch.Options{Routes: []dispatch.Route{{Name: "r", Units: 12}}, Lease: time.Second})
		members.Go(func() {
			p.run(ctx, killed, 50, 4, func(items []*dispatch.Item) {
				select {
				case <-time.After(2 * time.Millisecond): // a publish takes its time, so that nobody has everything at once
				case <-ctx.Done():
				}
				broker.take(items)
			})
		})
	}
	kill := make(chan struct{})
	join(nil)
	join(nil)
	join(kill)
	for broker.n.Load() < n/3 {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("nothing goes on")
		}
	}
	close(kill)
	join(nil)
	select {
	case <-broker.all:
	case <-time.After(time.Minute):
		t.Errorf("%d of %d arrived within a minute", broker.n.Load(), n)
	}
	broker.mu.Lock()
	defer broker.mu.Unlock()
	if len(broker.wrong) > 0 {
		t.Errorf("%d out of order: %s", len(broker.wrong), broker.wrong[0])
	}
}

// BenchmarkDispatch drains an outbox by members of one process, each with a pool of its own, to a publisher that does
// nothing. It reports the share of what a bare loop of SELECT and DELETE reaches in the same run: go test -run xxx
// -bench Dispatch -benchtime 200000x.
func BenchmarkDispatch(b *testing.B) {
	for _, tc := range []struct{ keys, members int }{{0, 1}, {1000, 1}, {1, 1}, {1000, 2}, {1000, 4}} {
		b.Run(fmt.Sprintf("keys=%d/members=%d", tc.keys, tc.members), func(b *testing.B) {
			s, pool := newOutbox(b, postgres.Options{})
			begin := func() (pgx.Tx, error) { return pool.Begin(b.Context()) }
			fill(b, s, begin, "raw", b.N, tc.keys)
			fill(b, s, begin, "r", b.N, tc.keys)
			exec(b, pool, "ANALYZE")
			raw := selectAndDelete(b, pool, b.N)
			broker := newArrivals(b.N)
			ctx, stop := context.WithCancel(b.Context())
			var members sync.WaitGroup
			b.ResetTimer()
			began := time.Now()
			for range tc.members {
				p := newPump(s, dispatch.Options{Routes: []dispatch.Route{{Name: "r"}}})
				members.Go(func() { p.run(ctx, nil, 500, 8, broker.take) })
			}
			<-broker.all
			took := time.Since(began)
			stop()
			members.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/took.Seconds(), "records/s")
			b.ReportMetric(raw.Seconds()/took.Seconds(), "of-raw")
		})
	}
}

// selectAndDelete drains route raw by hand: 500 rows a transaction.
func selectAndDelete(b *testing.B, pool interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}, n int,
) time.Duration {
	b.Helper()
	began := time.Now()
	var last int64
	for done := 0; done < n; {
		err := pgx.BeginTxFunc(b.Context(), pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
			rows, err := tx.Query(b.Context(), `SELECT seq, id, topic, key, type, source, content_type, occurred_at, body FROM waybill.waybill_outbox
				WHERE route = 'raw' AND seq > $1 ORDER BY seq LIMIT 500`, last)
			if err != nil {
				return err
			}
			var seq int64
			var id, topic, key, kind, source, contentType string
			var at time.Time
			var body []byte
			first := last
			_, err = pgx.ForEachRow(rows, []any{&seq, &id, &topic, &key, &kind, &source, &contentType, &at, &body}, func() error {
				done++
				last = seq
				return nil
			})
			if err := errors.Join(err, rows.Err()); err != nil {
				return err
			}
			_, err = tx.Exec(b.Context(), "DELETE FROM waybill.waybill_outbox WHERE route = 'raw' AND seq > $1 AND seq <= $2", first, last)
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(began)
}

// BenchmarkHotKey has b.N records of one key in front of a tenth as many of others, and a publisher that takes a
// millisecond. It reports when the others were out.
func BenchmarkHotKey(b *testing.B) {
	s, pool := newOutbox(b, postgres.Options{})
	begin := func() (pgx.Tx, error) { return pool.Begin(b.Context()) }
	others := max(b.N/15, 2) // one in 1,000 of them has the hot key
	fill(b, s, begin, "r", b.N, 1)
	fill(b, s, begin, "r", others, 1000)
	var hot, rest atomic.Int64
	out := make(chan struct{})
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	p := newPump(s, dispatch.Options{Routes: []dispatch.Route{{Name: "r"}}})
	var members sync.WaitGroup
	b.ResetTimer()
	began := time.Now()
	members.Go(func() {
		p.run(ctx, nil, 500, 8, func(items []*dispatch.Item) {
			<-time.After(time.Millisecond)
			for _, it := range items {
				if it.Record.Envelope.Key == "k"+strconv.Itoa(0) {
					hot.Add(1)
				} else if rest.Add(1) == int64(others-(others+999)/1000) {
					close(out)
				}
			}
		})
	})
	<-out
	took := time.Since(began)
	b.ReportMetric(took.Seconds(), "s-until-others-are-out")
	b.ReportMetric(float64(hot.Load())/took.Seconds(), "hot/s")
	stop()
	members.Wait()
}
