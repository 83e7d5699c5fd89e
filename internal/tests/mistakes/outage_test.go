package mistakes_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// load stages messages until stop, and counts them. A failure of the database is not counted.
func load(tb testing.TB, pool *pgxpool.Pool, o *postgres.Outbox) (stop func() int) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	done := make(chan struct{})
	var n atomic.Int64
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			msgs := make([]waybill.Message, 5)
			for k := range msgs {
				msgs[k] = waybill.RawMessage("a.b", "application/json", []byte(`{"n":1}`), waybill.Key(fmt.Sprint("k", (i+k)%20)))
			}
			tx, err := pool.Begin(ctx)
			if err != nil {
				continue
			}
			if _, err = o.Stage(ctx, tx, msgs...); err == nil {
				err = tx.Commit(context.WithoutCancel(ctx))
			}
			if err == nil {
				n.Add(int64(len(msgs)))
			} else {
				_ = tx.Rollback(context.WithoutCancel(ctx))
			}
		}
	}()
	var ended atomic.Bool
	stop = func() int {
		if !ended.Swap(true) {
			cancel()
			<-done
		}
		return int(n.Load())
	}
	tb.Cleanup(func() { stop() })
	return stop
}

func pause(tb testing.TB, d time.Duration) {
	tb.Helper()
	select {
	case <-time.After(d):
	case <-tb.Context().Done():
		tb.Fatal(tb.Context().Err())
	}
}

func consumeAll(tb testing.TB, pool *pgxpool.Pool, bus core.Subscriber, log *slog.Logger) *running {
	tb.Helper()
	c := newConsumer(tb, bus, consumer.Options{DrainTimeout: time.Second, Logger: log})
	handler, _ := inboxHandler(tb, pool)
	if err := c.Handle(waybill.Subscription{Queue: "q", Bindings: []string{"a.b"}}, handler); err != nil {
		tb.Fatal(err)
	}
	return start(tb, c)
}

// declareAll declares what consumeAll consumes, so that a relay that is there first finds no topic unroutable.
func declareAll(tb testing.TB, bus core.Subscriber) {
	tb.Helper()
	r, err := bus.Subscribe(tb.Context(), core.Subscription{Queue: "q", Bindings: []string{"a.b"}, RetryDelays: consumer.DefaultRetry().Delays})
	if err != nil {
		tb.Fatal(err)
	}
	if err := r.Close(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

func TestBrokerDownAtStart(t *testing.T) { // RL-06 P7
	t.Parallel()
	pool := openPool(t, testenv.Postgres(t).DSN)
	migrate(t, pool)
	exec(t, pool, "CREATE TABLE seen (id text, n int)")
	o := newOutbox(t, pool, postgres.Options{})
	mq := testenv.RabbitMQ(t)
	proxy := testenv.NewProxy(t, strings.Split(strings.SplitN(mq.URL, "@", 2)[1], "/")[0])
	proxy.Refuse()
	for range 10 {
		if _, err := stageOn(t, pool, o, waybill.RawMessage("a.b", "application/json", []byte(`{"n":1}`), waybill.Key("k"))); err != nil {
			t.Fatal(err)
		}
	}
	// Without Lazy the program is told at once.
	log, book := newLog(t)
	_, err := rabbitmq.Dial(t.Context(), proxy.URL(mq.URL), rabbitmq.Options{Logger: log})
	check(t, err, want{class: waybill.ClassOutage, says: []string{"waybill/rabbitmq: connect", proxy.Addr(), "check host and port"}})

	bus := dial(t, proxy.URL(mq.URL), rabbitmq.Options{Lazy: true})
	rel := start(t, newRelay(t, o, bus, relay.Options{Logger: log, DrainTimeout: time.Second}))
	patience.Until(t, "a warning of the relay", func() bool { return strings.Contains(book.String(), "check host and port") })
	conLog, conBook := newLog(t)
	con := consumeAll(t, pool, bus, conLog)
	waiting := func() int {
		return number(t, pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE attempts = 0 AND crashes = 0 AND state = 1")
	}
	const tries = 3
	patience.Moving(t, "the broker is tried again and again", func() (int, bool) {
		n := strings.Count(conBook.String(), "cannot subscribe")
		return n, n >= tries
	})
	if n := waiting(); n != 10 {
		t.Errorf("%d of 10 wait untouched after %d tries", n, tries)
	}
	if err := proxy.Accept(); err != nil {
		t.Fatal(err)
	}
	patience.Moving(t, "all are handled", func() (int, bool) {
		n := number(t, pool, "SELECT count(*) FROM seen")
		return n, n == 10
	})
	patience.Until(t, "the outbox is empty", func() bool { return number(t, pool, "SELECT count(*) FROM waybill.waybill_outbox") == 0 })

	// And it stops while the broker is a black hole.
	proxy.Blackhole(testenv.Up | testenv.Down)
	if _, err := stageOn(t, pool, o, waybill.RawMessage("a.b", "application/json", []byte(`{"n":1}`))); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "it is out for so long that its hold is written", func() bool {
		return number(t, pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE hold <> 0") == 1
	})
	// how long that may take, relay's TestStopAtTheDrainLimit and consumer's TestDrainWhileSettlesHang say
	t.Logf("relay stopped in %s, consumer in %s", rel.stop(), con.stop())
	if n := number(t, pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE attempts = 0 AND state = 1"); n != 1 {
		t.Error("the record in flight was not handed back unharmed")
	}
}

// It is not parallel: it measures the heap, which holds the data of other tests as well.
func TestBrokerKilledUnderLoad(t *testing.T) { // RL-06 P7 P2
	tier.Nightly(t, "kills a broker of its own and is not parallel: 20 s; TestBrokerDownAtStart has the outage in the gate")
	pool := openPool(t, testenv.Postgres(t).DSN)
	migrate(t, pool)
	exec(t, pool, "CREATE TABLE seen (id text, n int)")
	o := newOutbox(t, pool, postgres.Options{})
	server := testenv.OwnRabbitMQ(t, testenv.RabbitMQOptions{})
	mq, err := server.OpenVHost(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bus := dial(t, mq.URL, rabbitmq.Options{})
	declareAll(t, bus)
	con := consumeAll(t, pool, bus, nil)
	begin := time.Now()
	// since begin: the broker was there again; the first message was published after that
	var back, first atomic.Int64
	hooks := relay.Hooks{OnPublished: func(relay.Event) {
		if back.Load() > 0 {
			first.CompareAndSwap(0, int64(time.Since(begin)))
		}
	}}
	rel := start(t, newRelay(t, o, bus, relay.Options{DrainTimeout: time.Second, Hooks: hooks}))
	stop := load(t, pool, o)
	patience.Until(t, "messages flow", func() bool { return number(t, pool, "SELECT count(*) FROM seen") > 50 })
	pause(t, max(0, testenv.DefinitionsOnDisk-time.Since(begin)))
	server.Kill()
	killed, heap := time.Now(), heapBytes()
	worst := 0
	for time.Since(killed) < outage(t) {
		pause(t, 250*time.Millisecond)
		worst = max(worst, number(t, pool, "SELECT coalesce(max(attempts + crashes), 0) FROM waybill.waybill_outbox"))
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	grown := float64(heapBytes()) / float64(heap)
	up := time.Now()
	back.Store(int64(time.Since(begin)))
	patience.Until(t, "publishing goes on", func() bool { return first.Load() > 0 })
	t.Logf("after %s: publishing again %s after the broker was back; the heap grew to %.1f times", up.Sub(killed).Round(time.Second),
		time.Duration(first.Load()-back.Load()).Round(10*time.Millisecond), grown)
	if grown > 3 {
		t.Errorf("the heap grew to %.1f times", grown)
	}
	pause(t, time.Second)
	staged := stop()
	patience.Moving(t, "everything is published", func() (int, bool) {
		worst = max(worst, number(t, pool, "SELECT coalesce(max(attempts + crashes), 0) FROM waybill.waybill_outbox"))
		left := number(t, pool, "SELECT count(*) FROM waybill.waybill_outbox")
		return left, left == 0
	})
	t.Logf("%d messages; all published %s after the broker was back", staged, time.Since(up).Round(100*time.Millisecond))
	patience.Until(t, "everything is handled", func() bool { return number(t, pool, "SELECT count(*) FROM seen") >= staged })
	if n, m := number(t, pool, "SELECT count(*) FROM seen"), number(t, pool, "SELECT count(DISTINCT id) FROM seen"); n != staged || m != staged {
		t.Errorf("%d effects of %d messages, %d were staged", n, m, staged)
	}
	if worst != 0 {
		t.Errorf("the outage cost %d attempts", worst)
	}
	rel.stop()
	con.stop()
}

// outage is how long the broker stays away: WAYBILL_OUTAGE, or a few seconds.
func outage(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("WAYBILL_OUTAGE")
	if text == "" {
		return 6 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal("WAYBILL_OUTAGE:", err)
	}
	return d
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// flow is a relay and a consumer on a database of their own, at work.
type flow struct {
	server   *testenv.PostgresServer
	pool     *pgxpool.Pool
	outbox   *postgres.Outbox
	bus      *rabbitmq.Transport
	rel, con *running
	stop     func() int // ends the load, and returns what was staged
}

func flowing(t *testing.T) *flow {
	t.Helper()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{})
	f := &flow{server: server, pool: openPool(t, server.DSN("postgres"))}
	migrate(t, f.pool)
	exec(t, f.pool, "CREATE TABLE seen (id text, n int)")
	f.outbox = newOutbox(t, f.pool, postgres.Options{})
	f.bus = dial(t, testenv.RabbitMQ(t).URL, rabbitmq.Options{})
	declareAll(t, f.bus)
	f.con = consumeAll(t, f.pool, f.bus, nil)
	f.rel = start(t, newRelay(t, f.outbox, f.bus, relay.Options{DrainTimeout: time.Second, Lease: patience.For(5 * time.Second), PublishTimeout: patience.For(2 * time.Second), PollMax: time.Second}))
	f.stop = load(t, f.pool, f.outbox)
	patience.Until(t, "messages flow", func() bool { return number(t, f.pool, "SELECT count(*) FROM seen") > 50 })
	return f
}

// ended waits until all that was staged is handled, and stops both.
func (f *flow) ended(t *testing.T, staged int) {
	t.Helper()
	patience.Moving(t, "everything is published and handled", func() ([2]int, bool) {
		left, seen := number(t, f.pool, "SELECT count(*) FROM waybill.waybill_outbox"), number(t, f.pool, "SELECT count(*) FROM seen")
		return [2]int{left, seen}, left == 0 && seen >= staged
	})
	f.rel.stop()
	f.con.stop()
}

// The database stops answering, with all connections open. Run ends all the same; the records that it held come back.
func TestDatabaseFrozen(t *testing.T) { // RL-01 P8
	t.Parallel()
	f := flowing(t)
	f.server.Pause()
	defer f.server.Resume()
	pause(t, 2*time.Second)
	took := make(chan time.Duration, 2)
	go func() { took <- f.rel.stop() }()
	go func() { took <- f.con.stop() }()
	// how long that may take, relay's TestStopWhileTheStoreHangs and consumer's TestDrainWhileSettlesHang say
	for range 2 {
		t.Logf("Run ended after %s", (<-took).Round(10*time.Millisecond))
	}
	f.server.Resume()
	staged := f.stop()
	f.rel = start(t, newRelay(t, f.outbox, f.bus, relay.Options{DrainTimeout: time.Second}))
	f.con = consumeAll(t, f.pool, f.bus, nil)
	f.ended(t, staged)
}

// The database is killed and comes back: neither Run ends, nothing is lost, nothing has two effects.
func TestDatabaseKilled(t *testing.T) { // RL-07 P7
	t.Parallel()
	f := flowing(t)
	f.server.Kill()
	pause(t, 3*time.Second)
	if err := f.server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	pause(t, time.Second)
	staged := f.stop() // a commit whose answer was lost may have staged five more
	f.ended(t, staged)
	seen, distinct := number(t, f.pool, "SELECT count(*) FROM seen"), number(t, f.pool, "SELECT count(DISTINCT id) FROM seen")
	if seen != distinct || seen > staged+5 {
		t.Errorf("%d effects of %d messages, %d were staged", seen, distinct, staged)
	}
}
