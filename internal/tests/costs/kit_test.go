//go:build !race

package costs_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

var update = flag.Bool("update", false, "write what was counted into "+path)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

const (
	many  = 10_000 // messages, where what begins and ends a run would show
	some  = 2000   // where each message is a transaction
	queue = "orders"
)

var (
	quiet = slog.New(slog.DiscardHandler)
	topic = waybill.NewTopic("orders.placed", waybill.JSON[order]())
)

type order struct {
	N    int
	Text string
}

// messages returns n messages of 1,000 keys.
func messages(n int) []waybill.Message {
	// One stamp for all: each second of stamps costs a mark, and a slow machine would have more seconds.
	stamp := hlc.Timestamp(time.Now().UnixMilli()) << 16
	out := make([]waybill.Message, n)
	for i := range out {
		out[i] = topic.Message(order{i, "two hundred bytes, as an order may have: " + fmt.Sprintf("%0160d", i)},
			waybill.Key("customer-"+strconv.Itoa(i%1000)), waybill.Header("tenant", "t1"))
		out[i].HLC = stamp
	}
	return out
}

// meter says how often something has happened so far, by column.
type meter func() counts

// count returns the costs of fn for 1,000 of n messages: the meter's counts, and allocations.
func count(t *testing.T, n int, m meter, fn func()) counts {
	t.Helper()
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector empties pools
	before := m()
	var start, end runtime.MemStats
	runtime.ReadMemStats(&start)
	fn()
	runtime.ReadMemStats(&end)
	cost := m()
	for c := range cost {
		cost[c] = (cost[c] - before[c]) * 1000 / float64(n)
	}
	cost[allocs] = float64(end.Mallocs-start.Mallocs) * 1000 / float64(n)
	return cost
}

// relayed returns the costs of a relay that publishes all n due messages, to nowhere.
func relayed(t *testing.T, n int, m meter, s core.OutboxStore) counts {
	t.Helper()
	return count(t, n, m, func() { runRelay(t, s, n) })
}

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// join makes a member that owns all of the default route.
func join(t *testing.T, s core.OutboxStore) core.Session {
	t.Helper()
	m := core.Member{Session: 1, Name: "cost", Heartbeats: 1, Lease: time.Hour, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}}, Capacity: 1, FreeCapacity: 1}
	r, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m, Join: true})
	must(t, err)
	var moves []core.Transfer
	for _, u := range r.Partitions {
		moves = append(moves, core.Transfer{Partition: u.Partition, From: u.Owner, To: m.Session})
	}
	_, err = s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m, Transfers: moves})
	must(t, err)
	return m.Session
}

// read reads all n records in pages, as a relay at the front does.
func read(t *testing.T, s core.OutboxStore, self core.Session, n int) []core.Record {
	t.Helper()
	part := core.RouteSlots{Route: waybill.DefaultRoute, Slots: core.AllSlots}
	var out []core.Record
	for from := int64(0); len(out) < n; {
		p, err := s.Read(t.Context(), self, core.ReadRequest{
			Slots: []core.RouteSlots{part}, Ranges: []core.Range{{RouteSlots: part, AfterSeq: from, UpToSeq: 1 << 62, Limit: relay.DefaultBatchSize}}, Bytes: relay.DefaultBatchBytes,
		})
		must(t, err)
		if len(p.Ranges[0].Records) == 0 {
			t.Fatalf("only %d of %d records were read", len(out), n)
		}
		out = append(out, p.Ranges[0].Records...)
		from = out[len(out)-1].Seq
	}
	return out
}

// settle settles records as published, in batches as a relay does.
func settle(t *testing.T, s core.OutboxStore, self core.Session, records []core.Record) {
	t.Helper()
	for len(records) > 0 {
		some := records[:min(len(records), relay.DefaultBatchSize)]
		outcomes := make([]core.Outcome, len(some))
		for i := range some {
			outcomes[i] = core.Published(&some[i])
		}
		must(t, s.Settle(t.Context(), self, outcomes).FirstErr())
		records = records[len(some):]
	}
}

// inStep is a store that says how many outcomes it has settled. It has no other capabilities, and answers a relay's
// periodic questions by itself: the number of those calls depends on how long a run takes.
type inStep struct {
	core.OutboxStore
	settled chan int
	mu      sync.Mutex
	seen    core.Membership // the latest answer of the database
	sent    int64           // the heartbeats that it was sent
}

// Heartbeat implements core.OutboxStore. The database gets only calls that change something: a busy relay reads
// the membership each second.
func (s *inStep) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen.IsMember && m.Self.Heartbeats == s.sent && !m.Leave && len(m.Evict)+len(m.Transfers) == 0 {
		return s.seen, nil
	}
	seen, err := s.OutboxStore.Heartbeat(ctx, m)
	if err == nil {
		s.seen, s.sent = seen, m.Self.Heartbeats
	}
	return seen, err
}

// Due implements core.OutboxStore. Nothing is scheduled: a relay's question of each second does not reach the database.
func (s *inStep) Due(context.Context, core.Session, []core.RouteSlots, int) (core.DueResult, error) {
	return core.DueResult{NextIn: -1}, nil
}

// Settle implements core.OutboxStore.
func (s *inStep) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	defer func() { s.settled <- len(outcomes) }()
	return s.OutboxStore.Settle(ctx, self, outcomes)
}

// runRelay publishes all n messages that are due to nowhere.
func runRelay(t *testing.T, s core.OutboxStore, n int) {
	t.Helper()
	runRelayWith(t, s, n, relay.Options{})
}

// runRelayWith is runRelay with telemetry. Each batch begins when the one before is settled, so that the counts do not
// depend on how these overlap.
func runRelayWith(t *testing.T, s core.OutboxStore, n int, opts relay.Options) {
	t.Helper()
	store, published := &inStep{OutboxStore: s, settled: make(chan int, n)}, 0
	var turn sync.Mutex
	bus := &sharedtest.Publisher{Before: func(ctx context.Context, batch []waybill.Envelope) error {
		turn.Lock()
		defer turn.Unlock()
		for published > 0 {
			select {
			case k := <-store.settled:
				published -= k
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		published = len(batch)
		return nil
	}}
	opts.Logger, opts.CleanInterval, opts.Lease, opts.PollMin, opts.PollMax = quiet, -1, time.Hour, time.Minute, time.Minute
	opts.Routes = []relay.Route{{Name: waybill.DefaultRoute, Partitions: 1}}
	r, err := relay.New(store, bus, opts)
	must(t, err)
	_, err = r.RunOnce(t.Context())
	must(t, err)
	if bus.Count() != n {
		t.Fatalf("%d of %d messages were published", bus.Count(), n)
	}
}

// consumeAll runs a consumer until its handler has seen n messages, which must be in a queue of bus.
func consumeAll(t *testing.T, bus core.Subscriber, n int, handler func(seen func(n int)) waybill.Handler) {
	t.Helper()
	c, err := consumer.New(bus, consumer.Options{Logger: quiet, Concurrency: 1, Prefetch: 200})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	must(t, c.Handle(waybill.Subscription{Queue: queue}, handler(func(k int) {
		if n -= k; n <= 0 {
			stop()
		}
	})))
	must(t, c.Run(ctx))
	if n != 0 {
		t.Fatalf("%d messages were not handled", n)
	}
}

// consumed counts the costs of a consumer that handles messages one by one, and in batches of 100. The handlers do
// nothing: so the costs are Waybill's own.
func consumed[Tx any](t *testing.T, m meter, store core.Inbox[Tx]) (single, batch counts) {
	t.Helper()
	one := func(box *inbox.Inbox[Tx], seen func(int)) waybill.Handler {
		return inbox.Handler(box, topic, func(context.Context, Tx, order) error { seen(1); return nil })
	}
	hundred := func(box *inbox.Inbox[Tx], seen func(int)) waybill.Handler {
		return inbox.BatchHandler(box, topic, func(_ context.Context, _ Tx, items []inbox.Item[order]) error {
			seen(len(items))
			return nil
		}, inbox.BatchOptions{Size: 100, Wait: time.Minute}) // every batch is full
	}
	run := func(name string, handler func(*inbox.Inbox[Tx], func(int)) waybill.Handler) (cost counts) {
		box, err := inbox.New(store, name, inbox.Options{Logger: quiet, Retention: -1})
		must(t, err)
		for _, n := range []int{100, some} { // the first prepares the statements
			bus, err := memtransport.New(memtransport.Options{})
			must(t, err)
			must(t, bus.Declare(queue, topic.Name()))
			must(t, bus.Publish(t.Context(), envelopes(n)).FirstErr())
			cost = count(t, n, m, func() {
				consumeAll(t, bus, n, func(seen func(int)) waybill.Handler { return handler(box, seen) })
			})
			must(t, bus.Close(t.Context()))
		}
		return cost
	}
	return run("one by one", one), run("batches", hundred)
}

// envelopes returns n messages as a broker has them.
func envelopes(n int) []waybill.Envelope {
	out := make([]waybill.Envelope, n)
	for i, m := range messages(n) {
		out[i] = m.Envelope
		out[i].ID, out[i].Source, out[i].Type, out[i].Time, out[i].HLC = waybill.NewID(), "/costs", topic.Name(), time.Now(), 1<<50
	}
	return out
}
