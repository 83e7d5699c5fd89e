package waybilltest

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/chance"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
	memtransport "github.com/waybill-go/waybill/transport/memory"
	"github.com/waybill-go/waybill/waybilltest/faults"
)

// maxIdle bounds Loop.Idle in Run, in virtual time.
const maxIdle = 60 * 24 * time.Hour

// LoopOptions configures [Run]. The zero value is usable.
type LoopOptions struct {
	// Source is the CloudEvents source of staged messages; default "/test".
	Source string
	// Relay and Consumer are the options of the engines. Their logs go to the test's unless there is a Logger.
	Relay    relay.Options
	Consumer consumer.Options
	// Subscription is what the handlers are registered on; default the queue "test", bound for every topic, where a
	// message that no handler is for counts as done.
	Subscription waybill.Subscription
}

// Loop is a running system: store, relay, transport, consumer. Time is virtual: time.Sleep, timers and deadlines in the
// test and in handlers take no time.
type Loop struct {
	// Store is the outbox, the inbox and a table of strings.
	Store *memory.Store
	// Bus is the transport. Its Parked lists the messages that the consumer gave up.
	Bus *memtransport.Transport

	t       TB
	opts    LoopOptions
	maxIdle time.Duration                      // bounds Idle
	rest    []waybill.Handler                  // for messages that no other handler is for
	script  func(partner string) faults.Script // what a simulation breaks; nil in Run

	mu        sync.Mutex
	published []waybill.Envelope
	fail      func(waybill.Envelope) error
	stops     []func()
}

// Run runs test in a bubble of virtual time with a Loop whose engines do not run yet: make handlers with Loop.Store,
// then call [Loop.Start]. At the end the engines are stopped.
func Run(t *testing.T, opts LoopOptions, test func(t *testing.T, l *Loop)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t, opts, slog.New(slog.NewTextHandler(t.Output(), nil)))
		defer l.Stop()
		test(t, l)
	})
}

func newLoop(t TB, opts LoopOptions, logger *slog.Logger) *Loop {
	if opts.Source == "" {
		opts.Source = "/test"
	}
	l := &Loop{t: t, maxIdle: maxIdle}
	if opts.Subscription.Queue == "" {
		opts.Subscription.Queue, opts.Subscription.Bindings = Queue, []string{"#"}
		l.rest = []waybill.Handler{{Name: waybill.AnyMessage, Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) { return 0, nil }}}
	}
	if opts.Relay.Logger == nil {
		opts.Relay.Logger = logger
	}
	if opts.Consumer.Logger == nil {
		opts.Consumer.Logger = logger
	}
	l.opts = opts
	var err error
	if l.Store, err = memory.New(memory.Options{Source: opts.Source}); err == nil {
		l.Bus, err = memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: opts.Subscription.Queue, Bindings: opts.Subscription.Bindings}}})
	}
	if err != nil {
		t.Fatalf("waybilltest: %v", err)
	}
	return l
}

// Inbox returns the inbox of Loop.Store for handlers. In [Simulate] its calls fail like those of the engines.
func (l *Loop) Inbox() core.Inbox[*memory.Tx] {
	if l.script == nil {
		return l.Store
	}
	return faults.Inbox(l.Store, l.script("inbox"))
}

// Start starts the relay, and the consumer with handlers if there are any. After [Loop.Stop] it may be called again:
// the new engines find the records and deliveries that the old ones left.
func (l *Loop) Start(handlers ...waybill.Handler) {
	l.t.Helper()
	var (
		store core.OutboxStore = l.Store
		pub   core.Publisher   = bus{l.Bus, l}
		sub   core.Subscriber  = l.Bus
	)
	if l.script != nil {
		store, pub, sub = faults.Store(store, l.script("store")), faults.Publisher(pub, l.script("broker")), faults.Subscriber(sub, l.script("queue"))
	}
	r, err := relay.New(store, pub, l.opts.Relay)
	if err != nil {
		l.t.Fatalf("waybilltest: %v", err)
	}
	l.start("relay", r.Run)
	if len(handlers) == 0 {
		return
	}
	if _, ok := find(handlers, &waybill.Envelope{Topic: waybill.AnyMessage}); !ok {
		handlers = append(slices.Clone(handlers), l.rest...)
	}
	c, err := consumer.New(sub, l.opts.Consumer)
	if err == nil {
		err = c.Handle(l.opts.Subscription, handlers...)
	}
	if err != nil {
		l.t.Fatalf("waybilltest: %v", err)
	}
	l.start("consumer", c.Run)
}

func (l *Loop) start(name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.t.Context()))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := run(ctx); err != nil {
			l.t.Errorf("waybilltest: the %s ended: %v", name, err)
		}
	}()
	l.stops = append(l.stops, func() { cancel(); <-stopped })
}

// Stop stops the engines, as a deployment would: running handlers finish, the rest goes back.
func (l *Loop) Stop() {
	for _, stop := range l.stops {
		stop()
	}
	l.stops = nil
}

// Do runs fn in a transaction and commits it.
func (l *Loop) Do(fn func(ctx context.Context, tx *memory.Tx) error) error {
	tx := l.Store.Begin()
	defer tx.Rollback()
	if err := fn(l.t.Context(), tx); err != nil {
		return err
	}
	return tx.Commit()
}

// Stage stages msgs in a transaction of their own and fails the test if that goes wrong.
func (l *Loop) Stage(msgs ...waybill.Message) (staged []waybill.Staged) {
	l.t.Helper()
	err := l.Do(func(ctx context.Context, tx *memory.Tx) (err error) {
		staged, err = l.Store.Stage(ctx, tx, msgs...)
		return err
	})
	if err != nil {
		l.t.Fatalf("waybilltest: stage: %v", err)
	}
	return staged
}

// Feed puts messages on the bus past the outbox: raw, foreign or poison ones, or a message once more. It fails the test
// if the bus refuses one.
func (l *Loop) Feed(batch ...waybill.Envelope) {
	l.t.Helper()
	if err := l.Bus.Publish(l.t.Context(), batch).FirstErr(); err != nil {
		l.t.Fatalf("waybilltest: feed: %v", err)
	}
}

// FailPublish makes publishes fail as f says, until it is called with nil: waybill.Outage(err) is a broker that is
// down.
func (l *Loop) FailPublish(f func(waybill.Envelope) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = f
}

// Crash has up to n messages of a route out as a relay would that is killed then: it owns the route, and does nothing
// any more. The route goes on when the relays that Start starts have seen it stand still for the lease. Crash returns
// how many messages it got. Call it before Start, or after Stop.
func (l *Loop) Crash(route string, n int, lease time.Duration) int {
	l.t.Helper()
	got, err := crash(l.t.Context(), l.Store, route, n, lease)
	if err != nil {
		l.t.Fatalf("waybilltest: crash: %v", err)
	}
	return got
}

func crash(ctx context.Context, store core.OutboxStore, route string, n int, lease time.Duration) (got int, err error) {
	self := core.Member{
		Session: core.Session(chance.N(int64(1<<62)) + 1), Name: "crashed", Heartbeats: 1, Lease: lease, Capacity: 1, FreeCapacity: 1,
		Routes: []core.ServedRoute{{Route: route, InitialPartitions: core.NumSlots}},
	}
	membership, err := store.Heartbeat(ctx, core.HeartbeatRequest{Self: self, Join: true})
	if err != nil {
		return 0, err
	}
	var moves []core.Transfer
	for _, u := range membership.Partitions {
		if u.Partition.Route == route && u.Owner == 0 {
			moves = append(moves, core.Transfer{Partition: u.Partition, To: self.Session})
		}
	}
	if _, err = store.Heartbeat(ctx, core.HeartbeatRequest{Self: self, Transfers: moves}); err != nil {
		return 0, err
	}
	all := core.Range{RouteSlots: core.RouteSlots{Route: route, Slots: core.AllSlots}, UpToSeq: math.MaxInt64, Limit: n}
	result, err := store.Read(ctx, self.Session, core.ReadRequest{Ranges: []core.Range{all}})
	if err != nil {
		return 0, err
	}
	var want core.HoldRequest
	for _, r := range result.Ranges[0].Records {
		want.Refs = append(want.Refs, r.Ref)
	}
	taken, err := store.Hold(ctx, self.Session, want)
	for _, t := range taken {
		if t.Status == core.HoldGranted {
			got++
		}
	}
	return got, err
}

// Idle lets virtual time pass until nothing waits in the outbox and nothing is on its way to a handler, retries and
// timers included. It looks ever more rarely, every 10 s at last, so the time is a little later then. It fails the test
// after 60 days, in [Simulate] after SimulateOptions.MaxIdle.
func (l *Loop) Idle() {
	l.t.Helper()
	step := time.Millisecond
	for begin := time.Now(); ; step = min(2*step, 10*time.Second) {
		synctest.Wait()
		waiting := 0
		for _, r := range l.Store.Records() {
			if !r.State.Terminal() {
				waiting++
			}
		}
		d := l.Bus.Depth(l.opts.Subscription.Queue)
		if d.Parked = 0; waiting == 0 && d == (memtransport.Depth{}) {
			return
		}
		if time.Since(begin) > l.maxIdle {
			l.t.Fatalf("waybilltest: not idle after %s: %d messages in the outbox, %+v in the queue", l.maxIdle, waiting, d)
		}
		<-time.After(step)
	}
}

// Published returns the messages that the relay published and the bus confirmed, in order.
func (l *Loop) Published() []waybill.Envelope {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]waybill.Envelope, len(l.published))
	for i := range out {
		out[i] = l.published[i].Clone()
	}
	return out
}

// Parked returns the messages that the consumer gave up.
func (l *Loop) Parked() []memtransport.Parked { return l.Bus.Parked(l.opts.Subscription.Queue) }

// bus is the transport as the relay sees it.
type bus struct {
	*memtransport.Transport
	l *Loop
}

func (b bus) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	b.l.mu.Lock()
	fail := b.l.fail
	b.l.mu.Unlock()
	res := make(core.Results, len(batch))
	for i := range batch {
		if fail != nil {
			res[i] = fail(batch[i])
		}
		if res[i] == nil {
			res[i] = b.Transport.Publish(ctx, batch[i:i+1])[0]
		}
		if res[i] == nil {
			b.l.mu.Lock()
			b.l.published = append(b.l.published, batch[i].Clone())
			b.l.mu.Unlock()
		}
	}
	return res
}
