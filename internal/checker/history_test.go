package checker_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/checker"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
)

// breaks are what a test breaks on purpose. Nil fields break nothing.
type breaks struct {
	store func(core.OutboxStore) core.OutboxStore
	bus   func(core.Publisher) core.Publisher
	inbox func(core.Inbox[*memory.Tx]) core.Inbox[*memory.Tx]
}

// plan is a random history: everything that a seed decides before it begins.
type plan struct {
	seed      uint64
	relays    int
	producers int
	txs       int // of each producer
	keys      int
	routes    []relay.Route
	opts      relay.Options
	pipelined bool
	skew      time.Duration
	store     checker.Faults
	bus       checker.Faults
	zombies   bool
	lasts     time.Duration // how long things go wrong
	cancels   bool
	long      bool // some transactions take long
}

func newPlan(seed uint64) *plan {
	rng := rand.New(rand.NewPCG(seed, 0))
	pick := func(n ...int) int { return n[rng.IntN(len(n))] }
	ms := func(n ...int) time.Duration { return time.Duration(pick(n...)) * time.Millisecond }
	p := &plan{
		seed: seed, relays: 1 + rng.IntN(3), producers: 1 + rng.IntN(3), txs: 2 + rng.IntN(6), keys: 1 + rng.IntN(5),
		pipelined: rng.IntN(3) == 0, zombies: rng.IntN(4) == 0, lasts: ms(5000, 10_000, 20_000), cancels: rng.IntN(2) == 0,
		long: rng.IntN(3) == 0,
	}
	if rng.IntN(2) == 0 {
		p.skew = ms(-3_600_000, -1500, 1500, 3_600_000)
	}
	lease := ms(500, 1000, 3000)
	p.opts = relay.Options{
		BatchSize: pick(1, 2, 5, 20), Window: pick(1, 2, 4), Lease: lease, PublishTimeout: lease * time.Duration(pick(8, 8, 30)) / 10, PollMin: 20 * time.Millisecond,
		PollMax: lease / 2, DrainTimeout: time.Duration(pick(-1, 300, 1000)) * time.Millisecond,
	}
	if rng.IntN(3) == 0 {
		p.opts.UnroutableTimeout = ms(-1, 2000)
	}
	names := []string{"ordered", "blocking", "loose", "stamped"}
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	partitions := pick(1, 3, 16, 64)
	for _, name := range names[:1+rng.IntN(3)] {
		r := relay.Route{Name: name, Partitions: partitions, Backoff: &waybill.Backoff{Base: ms(20, 200), Cap: ms(200, 2000), Attempts: pick(-1, 2, 4)}}
		switch name {
		case "blocking":
			r.BlockAfterAbandon = true
		case "loose":
			r.Order = waybill.OrderBestEffort
		case "stamped":
			r.Order = waybill.OrderBestEffortHLC
		}
		p.routes = append(p.routes, r)
	}
	rate := pick(0, 10, 40, 120)
	p.store = checker.Faults{
		Before: rate, After: rate, Late: rate / 2, Panic: rate / 4, Delay: rate, Partial: rate,
		MaxDelay: 2 * lease, Latency: ms(0, 5, 50), Spell: pick(0, 0, 30, 100),
	}
	rate = pick(0, 10, 40, 120)
	p.bus = checker.Faults{
		Before: rate, After: rate, Late: rate, Panic: rate / 4, Delay: rate, Partial: rate, MaxDelay: 2 * lease, Latency: ms(0, 5, 50),
		Reject: pick(0, 20, 100), Permanent: pick(0, 20), Unroutable: pick(0, 20), TopicOnly: pick(0, 10),
	}
	return p
}

// world is a history that runs.
type world struct {
	*plan
	t      *testing.T
	broken *breaks
	l      *checker.Ledger
	mem    *memory.Store
	inbox  core.Inbox[*memory.Tx]
	calm   atomic.Bool
	queues map[string]*checker.Queue
	dice   *checker.Dice
	born   uint64

	crew   []*life
	over   sync.WaitGroup // relays that are on their way out
	begun  time.Time
	steady time.Time // when nobody is frozen or cut off any more

	mu   sync.Mutex
	refs []checker.Ref // committed, to cancel some
}

// life is a running relay.
type life struct {
	p    *checker.Process
	stop context.CancelFunc
}

// now is the store's clock.
func (w *world) now() time.Time { return time.Now().Add(w.skew) }

// history runs the history of seed, in a bubble of its own, and returns the problems and the trace.
func history(t *testing.T, seed uint64, broken *breaks) (problems []string, l *checker.Ledger) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { // after the budget's
			if t.Failed() && broken == nil {
				t.Logf("seed %d; replay with: go test ./internal/checker -run 'TestHistories' -seed %d -whole", seed, seed)
				if *traceFlag && l != nil {
					t.Log(l.Trace())
				}
			}
		})
		w := &world{begun: time.Now(), plan: newPlan(seed), t: t, broken: broken, queues: map[string]*checker.Queue{}}
		partitions := len(w.routes) * w.routes[0].Partitions
		patience.BudgetOf(t).Calls(patience.CallsASecond+2*partitions, "a relay that leaves releases each of its partitions, and again without an answer")
		if broken != nil {
			patience.BudgetOf(t).Calls(10*patience.CallsASecond, "records whose settles a broken store forgets are read again and again")
		}
		problems = w.run()
		l = w.l
	})
	return problems, l
}

func (w *world) run() []string {
	rules := map[string]checker.Rule{}
	for _, r := range w.routes {
		rules[r.Name] = checker.Rule{PerKey: r.Order == waybill.OrderPerKey, Block: r.BlockAfterAbandon}
	}
	w.l = checker.NewLedger(checker.Options{Routes: rules, Now: w.now, Exact: true, Zombies: w.zombies, Limit: w.limit()})
	w.dice = checker.NewDice(w.seed, 1, &w.calm)
	var err error
	if w.mem, err = memory.New(memory.Options{Source: "/checker", Now: w.now}); err != nil {
		w.t.Fatal(err)
	}
	w.inbox = w.mem
	if w.broken != nil && w.broken.inbox != nil {
		w.inbox = w.broken.inbox(w.mem)
	}
	traits := core.PublisherTraits{Confirmed: true, DetectsUnroutable: true, KeyOrder: core.KeyOrderSerial}
	if w.pipelined {
		traits.KeyOrder = core.KeyOrderPipelinedPrefix
	}
	arrivals := make(chan *delivery, 1<<12)
	for _, r := range w.routes {
		w.queues[r.Name] = checker.NewQueue(w.l, r.Name, traits, func(e waybill.Envelope) { arrivals <- &delivery{r.Name, e} })
	}
	var consumers, producers sync.WaitGroup
	for i := range 2 {
		consumers.Go(func() { w.consume(checker.NewDice(w.seed, uint64(100+i), &w.calm), arrivals) })
	}
	for range w.relays {
		w.start()
	}
	for i := range w.producers {
		producers.Go(func() { w.produce(i) })
	}
	w.chaos()
	producers.Wait()
	w.calm.Store(true)
	time.Sleep(time.Until(w.steady))
	if over := time.Since(w.begun) + 40*w.opts.Lease; w.broken == nil {
		patience.BudgetOf(w.t).Time(over, "the trouble, and some leases to get over it: 16 at most in 1,500 histories")
	} else {
		patience.BudgetOf(w.t).Time(over+6*time.Minute, "what is broken is given five minutes more")
	}
	w.l.Calm()
	if len(w.crew) == 0 || w.dice.N(2) == 0 { // relays that saw the trouble must get over it, and new ones too
		w.end(w.dice.N(2) == 0)
		w.start()
	}
	w.drain()
	w.rebalance()
	for len(w.crew) > 0 {
		w.end(false)
	}
	w.over.Wait()
	w.l.Wait()
	time.Sleep(10 * w.opts.Lease) // a relay that has to end does not wait for calls that are late
	close(arrivals)
	consumers.Wait()
	return w.verify()
}

// start begins the life of a relay.
func (w *world) start() {
	w.born++
	name := "r" + strconv.Itoa(int(w.born))
	p := checker.NewProcess(w.l, name, w.seed, 1000+w.born, &w.calm)
	var inner core.OutboxStore = w.mem
	if w.broken != nil && w.broken.store != nil {
		inner = w.broken.store(inner)
	}
	count := patience.BudgetOf(w.t).Counter()
	inner = &sharedtest.Store{OutboxStore: inner, Before: func(_ context.Context, call string, _ any) error {
		count(call)
		return nil
	}}
	s := checker.NewStore(inner, p, &w.store)
	o := w.opts
	o.Name, o.Logger, o.MeterProvider, o.TracerProvider = name, slog.New(slog.DiscardHandler), noop.NewMeterProvider(), tracenoop.NewTracerProvider()
	o.Routes = slices.Clone(w.routes)
	o.Hooks.OnBreaker = func(e relay.Event) { w.l.Paused(e.Route, e.RetryIn) }
	for i := range o.Routes {
		var bus core.Publisher = checker.NewPublisher(w.queues[o.Routes[i].Name], p, &w.bus, w.seed, w.born<<4+uint64(i))
		if w.broken != nil && w.broken.bus != nil {
			bus = w.broken.bus(bus)
		}
		o.Routes[i].Publisher = bus
	}
	r, err := relay.New(s, nil, o)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	p.OnKill(cancel)
	w.l.Note("start %s", name)
	w.crew = append(w.crew, &life{p, cancel})
	w.over.Go(func() {
		if err := r.Run(ctx); err != nil {
			w.t.Errorf("relay: %v", err)
		}
	})
}

// end ends the oldest relay, by a kill or in good order.
func (w *world) end(kill bool) {
	if len(w.crew) == 0 {
		return
	}
	x := w.crew[0]
	w.crew = w.crew[1:]
	if kill {
		x.p.Kill()
	} else {
		w.l.Note("stop %s", x.p.Name)
	}
	x.stop()
}

// drain waits until nothing is left to relay. Operators decide about what blocks.
func (w *world) drain() {
	end := time.Now().Add(5 * time.Minute)
	for time.Now().Before(end) {
		live := 0
		counts, err := w.mem.Counts(w.t.Context())
		if err != nil {
			w.t.Error(err)
		}
		for _, c := range counts {
			if !c.State.Terminal() {
				live += int(c.N)
			}
		}
		if live == 0 {
			return
		}
		time.Sleep(w.opts.Lease)
		w.operate(false)
	}
}

// rebalance waits until the partitions are shared fairly. They are given up one by one.
func (w *world) rebalance() {
	limit := 10*w.opts.Lease + time.Duration(4*len(w.routes)*w.routes[0].Partitions)*w.store.Latency
	var unfair error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(w.opts.Lease) {
		r, err := w.mem.Heartbeat(w.t.Context(), core.HeartbeatRequest{})
		if err != nil {
			w.t.Error(err)
		}
		if unfair = checker.Shares(&r); unfair == nil {
			return
		}
	}
	w.l.Problem("shares: %v, %s after everything was done", unfair, limit)
}

func (w *world) verify() []string {
	final, effects := map[checker.Ref]checker.Final{}, map[checker.Ref]int{}
	for _, r := range w.mem.Records() {
		final[checker.Ref{Route: r.Route, ID: r.Envelope.ID}] = checker.Final{State: r.State, Reason: r.Reason, Attempts: r.Attempts, Crashes: r.Crashes}
	}
	for _, ref := range w.l.Refs() {
		if v, ok := w.mem.Get(ref.Route + "/" + ref.ID); ok {
			effects[ref] = len(v)
		}
	}
	return w.l.Verify(final, effects)
}
