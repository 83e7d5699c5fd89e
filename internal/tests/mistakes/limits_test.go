package mistakes_test

import (
	"context"
	"encoding/json"
	"strconv"
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
	"github.com/waybill-go/waybill/store/postgres"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// counting counts statements about limits.
type counting struct{ n atomic.Int64 }

func (c *counting) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "_limits") {
		c.n.Add(1)
	}
	return ctx
}

func (*counting) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// limitedFleet is two processes with one queue and one database, each with a pool of its own.
type limitedFleet struct {
	bus        *memtransport.Transport
	pools      [2]*pgxpool.Pool
	boxes      [2]*postgres.Inbox
	statements counting

	running, most, began atomic.Int64
	byProcess            [2]atomic.Int64
}

func newLimitedFleet(t *testing.T) *limitedFleet {
	t.Helper()
	f := &limitedFleet{bus: memoryBus(t)}
	dsn := testenv.Postgres(t).DSN
	for i := range f.pools {
		cfg, err := pgxpool.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		cfg.MaxConns, cfg.ConnConfig.Tracer = 2, &f.statements
		if f.pools[i], err = pgxpool.NewWithConfig(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.pools[i].Close)
		if f.boxes[i], err = postgres.NewInbox(f.pools[i], postgres.InboxOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.boxes[0].Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *limitedFleet) publish(t *testing.T, n int) {
	t.Helper()
	es := make([]waybill.Envelope, n)
	for i := range es {
		es[i] = waybill.Envelope{ID: "m-" + strconv.Itoa(i), Topic: "work.wanted"}
	}
	if err := f.bus.Publish(t.Context(), es).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// start starts process i. Its handler counts, and does the work.
func (f *limitedFleet) start(t *testing.T, i int, sub waybill.Subscription, work func()) *running {
	t.Helper()
	c := newConsumer(t, f.bus, consumer.Options{Limiter: f.boxes[i], DrainTimeout: -1})
	sub.Queue = "q"
	if err := c.Handle(sub, waybill.Handler{Name: "work.wanted", Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
		now := f.running.Add(1)
		for most := f.most.Load(); now > most && !f.most.CompareAndSwap(most, now); most = f.most.Load() {
		}
		f.began.Add(1)
		f.byProcess[i].Add(1)
		work()
		f.running.Add(-1)
		return waybill.HandlerProcessed, nil
	}}); err != nil {
		t.Fatal(err)
	}
	return start(t, c)
}

// Over two processes no more begin than the rate allows, no more run than the limit allows, and a thousand
// messages cost few statements.
func TestLimitsOverTwoProcesses(t *testing.T) {
	t.Parallel()
	const n, rate, burst, slots = 2500, 1000, 500, 3
	for name, limit := range map[string]waybill.SharedLimit{"rate": {Rate: rate, Burst: burst}, "slots": {Concurrency: slots}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newLimitedFleet(t)
			f.publish(t, n)
			from := time.Now()
			var stops []*running
			for i := range f.pools {
				stops = append(stops, f.start(t, i, waybill.Subscription{Concurrency: 10, Prefetch: 100, Limit: limit}, func() {
					if limit.Concurrency > 0 {
						<-time.After(time.Millisecond) // so that handlers meet
					}
				}))
			}
			patience.Moving(t, "all messages are handled", func() (float64, bool) {
				// in the time from before the first to after the last no more can have begun
				began := float64(f.began.Load())
				if allowed := burst + rate*time.Since(from).Seconds(); limit.Rate > 0 && began > allowed {
					t.Fatalf("%g began, %g are allowed", began, allowed)
				}
				return began, began == n && f.bus.Depth("q") == memtransport.Depth{}
			})
			for _, r := range stops {
				r.stop()
			}
			if most := f.most.Load(); limit.Concurrency > 0 && most > slots {
				t.Errorf("%d ran at a time, want at most %d", most, slots)
			}
			if got := f.statements.n.Load(); limit.Rate > 0 && got > n/5 {
				t.Errorf("%d statements for %d messages", got, n)
			}
			t.Logf("%d statements, %d and %d messages", f.statements.n.Load(), f.byProcess[0].Load(), f.byProcess[1].Load())
		})
	}
}

// The slots of a process that died are another one's as soon as their lease is over, and not before. One that
// stops gives them back.
func TestLimitOfADeadProcess(t *testing.T) {
	t.Parallel()
	f := newLimitedFleet(t)
	sub := waybill.Subscription{Concurrency: 2, Prefetch: 2, Limit: waybill.SharedLimit{Concurrency: 2}}
	hang := make(chan struct{})
	first := f.start(t, 0, sub, func() { <-hang })
	f.publish(t, 6)
	patience.Until(t, "two handlers run", func() bool { return f.running.Load() == 2 })
	died := time.Now()
	f.pools[0].Close() // it is never heard of again
	second := f.start(t, 1, sub, func() {})
	patience.Until(t, "another process waits, or the lease is over", func() bool {
		return len(holders(t, f.boxes[1], false)) == 2 || f.byProcess[1].Load() > 0
	})
	if f.byProcess[1].Load() != 0 && time.Since(died) < 10*time.Second { // the lease goes on
		t.Fatal("it began something beside the handlers that run")
	}
	holders(t, f.boxes[1], true)
	patience.Until(t, "it handles the rest", func() bool { return f.byProcess[1].Load() == 4 })
	second.stop()
	if left := holders(t, f.boxes[1], false); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	close(hang)
	first.stop()
}

// holders returns the processes that have slots of the limit or wait for some. It can end the leases of those that have
// some, as if their time had passed.
func holders(t *testing.T, l core.Limiter, end bool) map[string]map[string]int64 {
	t.Helper()
	var state struct {
		Holders map[string]map[string]int64 `json:"holders"`
	}
	if err := l.UpdateLimit(t.Context(), "q", func(text string, _ time.Time) string {
		state.Holders = nil
		if text == "" {
			return text
		}
		if err := json.Unmarshal([]byte(text), &state); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if !end {
			return text
		}
		for _, h := range state.Holders {
			if h["slots"] > 0 {
				h["until"] = 1
			}
		}
		changed, _ := json.Marshal(&state)
		return string(changed)
	}); err != nil {
		t.Fatal(err)
	}
	return state.Holders
}
