package checker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/checker"
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
}

func newPlan(seed uint64) *plan {
	rng := rand.New(rand.NewPCG(seed, 0))
	pick := func(n ...int) int { return n[rng.IntN(len(n))] }
	ms := func(n ...int) time.Duration { return time.Duration(pick(n...)) * time.Millisecond }
	p := &plan{
		seed: seed, relays: 1 + rng.IntN(3), producers: 1 + rng.IntN(3), txs: 2 + rng.IntN(6), keys: 1 + rng.IntN(5),
		pipelined: rng.IntN(3) == 0, zombies: rng.IntN(4) == 0, lasts: ms(5000, 10_000, 20_000), cancels: rng.IntN(2) == 0,
	}
	if rng.IntN(2) == 0 {
		p.skew = ms(-3_600_000, -1500, 1500, 3_600_000)
	}
	lease := ms(500, 1000, 3000)
	p.opts = relay.Options{
		BatchSize: pick(1, 2, 5, 20), Window: pick(1, 2, 4), Lease: lease, PublishTimeout: lease * 8 / 10, PollMin: 20 * time.Millisecond,
		PollMax: lease / 2, DrainTimeout: time.Duration(pick(-1, 300, 1000)) * time.Millisecond,
	}
	if rng.IntN(3) == 0 {
		p.opts.UnroutableHorizon = ms(-1, 2000)
	}
	names := []string{"ordered", "blocking", "loose", "stamped"}
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:1+rng.IntN(3)] {
		r := relay.Route{Name: name, Backoff: &core.Backoff{Base: ms(20, 200), Cap: ms(200, 2000), Attempts: pick(-1, 2, 4)}}
		switch name {
		case "blocking":
			r.BlockAfterAbandon = true
		case "loose":
			r.Order = core.OrderBestEffort
		case "stamped":
			r.Order = core.OrderHLC
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

	crew []*life
	over sync.WaitGroup // relays that are on their way out

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

// history runs the history of seed, in a bubble of its own, and returns what is wrong and the trace.
func history(t *testing.T, seed uint64, broken *breaks) (problems []string, l *checker.Ledger) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{plan: newPlan(seed), t: t, broken: broken, queues: map[string]*checker.Queue{}}
		problems = w.run()
		l = w.l
	})
	return problems, l
}

func (w *world) run() []string {
	rules := map[string]checker.Rule{}
	for _, r := range w.routes {
		rules[r.Name] = checker.Rule{PerKey: r.Order == core.OrderPerKey, Block: r.BlockAfterAbandon}
	}
	w.l = checker.NewLedger(checker.Options{Routes: rules, Now: w.now, Exact: true, Zombies: w.zombies})
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
		w.queues[r.Name] = checker.NewQueue(w.l, r.Name, traits, func(e core.Envelope) { arrivals <- &delivery{r.Name, e} })
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
	w.l.Note("calm")
	if len(w.crew) == 0 || w.dice.N(2) == 0 { // relays that saw the trouble must get over it, and new ones too
		w.end(w.dice.N(2) == 0)
		w.start()
	}
	w.drain()
	for len(w.crew) > 0 {
		w.end(false)
	}
	w.over.Wait()
	w.l.Wait()
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
	s, err := checker.NewStore(inner, p, &w.store)
	if err != nil {
		w.t.Fatal(err)
	}
	o := w.opts
	o.Name, o.Logger, o.MeterProvider, o.TracerProvider = name, slog.New(slog.DiscardHandler), noop.NewMeterProvider(), tracenoop.NewTracerProvider()
	o.Routes = slices.Clone(w.routes)
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

// chaos kills, stops and starts relays, and does what operators do, until its time is over.
func (w *world) chaos() {
	end := time.Now().Add(w.lasts)
	for time.Now().Before(end) {
		time.Sleep(w.dice.Up(w.lasts / 8))
		switch w.dice.N(10) {
		case 0, 1:
			w.end(true)
			w.start()
		case 2:
			w.end(false)
			w.start()
		case 3:
			w.end(true)
			time.Sleep(w.dice.Up(3 * w.opts.Lease))
			w.start()
		case 4, 5:
			w.operate(true)
		case 6:
			w.redrive()
		case 7:
			w.sweep()
		case 8:
			w.cancel()
		}
	}
}

// operate decides about the heads of blocked keys.
func (w *world) operate(failed bool) {
	for _, r := range w.routes {
		if r.Order != core.OrderPerKey {
			continue
		}
		keys, _, err := w.mem.BlockedKeys(w.t.Context(), r.Name, r.BlockAfterAbandon, "", 10)
		if err != nil {
			w.t.Error(err)
		}
		for i := range keys {
			k := &keys[i]
			if !failed && k.Cause != "abandoned" {
				continue
			}
			action := core.HeadAction(1 + w.dice.N(3))
			reason := map[core.HeadAction]core.Reason{core.HeadSkip: core.ReasonSkipped, core.HeadPark: core.ReasonParked}[action]
			w.l.Decide(checker.Ref{Route: r.Name, ID: k.Head.Envelope.ID}, reason, false, func() bool {
				err := w.mem.DecideHead(w.t.Context(), r.Name, k.Key, k.Head.Envelope.ID, action)
				if err != nil && !errors.Is(err, core.ErrNotFound) && !errors.Is(err, core.ErrInFlight) && !errors.Is(err, core.ErrInvalid) {
					w.t.Errorf("decide: %v", err)
				}
				return err == nil
			})
		}
	}
}

// redrive puts back some of what was abandoned.
func (w *world) redrive() {
	for _, r := range w.mem.Records() {
		if r.State != core.StateAbandoned && r.State != core.StateFailed || w.dice.N(2) == 0 {
			continue
		}
		force := w.dice.N(2) == 0
		block := slices.ContainsFunc(w.routes, func(x relay.Route) bool { return x.Name == r.Route && x.BlockAfterAbandon })
		w.l.Decide(checker.Ref{Route: r.Route, ID: r.Envelope.ID}, core.ReasonNone, force, func() bool {
			done, err := w.mem.Redrive(w.t.Context(), core.RedriveRequest{
				Filter: core.Filter{IDs: []string{r.Envelope.ID}, Routes: []string{r.Route}}, Force: force, BlockAfterAbandon: block,
			})
			if err != nil {
				w.t.Errorf("redrive: %v", err)
			}
			return done.Changed > 0
		})
	}
}

// sweep lets the store abandon what expired.
func (w *world) sweep() {
	w.l.Swept(func() (gone []checker.Ref) {
		before := map[checker.Ref]bool{}
		for _, r := range w.mem.Records() {
			before[checker.Ref{Route: r.Route, ID: r.Envelope.ID}] = r.State == core.StateAbandoned
		}
		if _, err := w.mem.Clean(w.t.Context(), "cleaner", time.Second); err != nil {
			w.t.Error(err)
		}
		for _, r := range w.mem.Records() {
			if ref := (checker.Ref{Route: r.Route, ID: r.Envelope.ID}); r.State == core.StateAbandoned && !before[ref] {
				gone = append(gone, ref)
			}
		}
		return gone
	})
}

// cancel withdraws a few messages, in a transaction that may roll back.
func (w *world) cancel() {
	w.mu.Lock()
	refs := slices.Clone(w.refs)
	w.mu.Unlock()
	if !w.cancels || len(refs) == 0 {
		return
	}
	var keys []core.CancelKey
	for range 1 + w.dice.N(3) {
		r := refs[len(refs)-1-w.dice.N(min(len(refs), 10))]
		keys = append(keys, core.CancelKey{Route: r.Route, ID: r.ID})
	}
	led, tx := w.l.Begin(), w.mem.Begin()
	statuses, err := w.mem.Cancel(w.t.Context(), tx, keys...)
	if err != nil {
		led.Rollback(tx.Rollback)
		return
	}
	for i, k := range keys {
		led.Withdrawn(checker.Ref{Route: k.Route, ID: k.ID}, statuses[i])
	}
	time.Sleep(w.dice.Up(w.opts.Lease))
	if w.dice.N(3) == 0 {
		led.Rollback(tx.Rollback)
	} else if err := led.Commit(tx.Commit); err != nil {
		w.t.Errorf("commit of a cancel: %v", err)
	}
}

// produce stages messages in transactions, some of which stay open for long or roll back.
func (w *world) produce(i int) {
	d := checker.NewDice(w.seed, uint64(10+i), &w.calm)
	n := 0
	var mine []core.Message
	replaced := map[string]checker.Ref{} // the newest of each dedupe key, which is this producer's own
	for range w.txs {
		time.Sleep(d.Up(w.lasts / time.Duration(w.txs)))
		led, tx := w.l.Begin(), w.mem.Begin()
		before := maps.Clone(replaced)
		var fresh []checker.Ref
		var msgs []core.Message
		ok := true
		for range 1 + d.N(4) {
			n++
			m := w.message(d, fmt.Sprintf("p%d-%03d", i, n))
			again := len(mine) > 0 && !w.cancels && d.N(12) == 0
			if again {
				m = mine[d.N(len(mine))]
			} else if w.cancels && d.N(6) == 0 {
				m.DedupeKey, m.Replace = fmt.Sprintf("p%d-d%d", i, d.N(2)), d.N(2) == 0
			}
			staged, err := w.mem.Stage(w.t.Context(), tx, m)
			if err != nil {
				w.t.Errorf("stage: %v", err)
				ok = false
				break
			}
			ref := checker.Ref{Route: staged[0].Route, ID: staged[0].ID}
			if m.Replace && staged[0].Replaced != core.CancelNotFound {
				led.Withdrawn(replaced[ref.Route+m.Topic+m.DedupeKey], staged[0].Replaced)
			}
			if again {
				continue // the first one counts
			}
			led.Staged(&m, staged[0])
			if !staged[0].Duplicate {
				fresh, msgs = append(fresh, ref), append(msgs, m)
				if m.DedupeKey != "" {
					replaced[ref.Route+m.Topic+m.DedupeKey] = ref
				}
			}
			if d.N(4) == 0 {
				time.Sleep(d.Up(time.Second))
			}
		}
		if !ok || d.N(6) == 0 {
			led.Rollback(tx.Rollback)
			replaced = before
			continue
		}
		if err := led.Commit(tx.Commit); err != nil {
			w.t.Errorf("commit: %v", err)
			continue
		}
		mine = append(mine, msgs...)
		w.mu.Lock()
		w.refs = append(w.refs, fresh...)
		w.mu.Unlock()
	}
}

// message returns a random message.
func (w *world) message(d *checker.Dice, id string) core.Message {
	key := ""
	switch k := d.N(10); {
	case k < 4:
		key = "hot"
	case k < 9:
		key = "k" + strconv.Itoa(d.N(w.keys))
	}
	m := core.RawMessage("t."+strconv.Itoa(d.N(2)), "text/plain", []byte(id), core.ID(id), core.Key(key), core.Routes(w.routes[d.N(len(w.routes))].Name))
	if d.N(6) == 0 {
		m.Delay = time.Millisecond + d.Up(5*time.Second)
	}
	if w.skew == 0 && d.N(12) == 0 {
		m.TTL = time.Millisecond + d.Up(6*time.Second)
	}
	return m
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

// delivery is what a consumer gets.
type delivery struct {
	route string
	env   core.Envelope
}

var errHandler = errors.New("checker: the handler fails")

// consume handles deliveries with an effect each, some of them several times and side by side.
func (w *world) consume(d *checker.Dice, from <-chan *delivery) {
	for x := range from {
		var again sync.WaitGroup
		if d.N(10) == 0 {
			again.Go(func() { w.handle(d, x) })
		}
		w.handle(d, x)
		again.Wait()
		if d.N(10) == 0 { // the ack was lost
			w.handle(d, x)
		}
	}
}

// handle retries until it succeeds.
func (w *world) handle(d *checker.Dice, x *delivery) {
	key := core.InboxKey{Consumer: x.route, Source: x.env.Source, ID: x.env.ID}
	once := func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = errHandler
			}
		}()
		_, err = w.inbox.Do(w.t.Context(), key, func(_ context.Context, tx *memory.Tx) error {
			if d.Roll(50) {
				return errHandler
			}
			name := x.route + "/" + x.env.ID
			n, _ := tx.Get(name)
			time.Sleep(d.Up(5 * time.Millisecond))
			tx.Put(name, n+"x")
			if d.Roll(20) {
				panic("a fault")
			}
			if d.Roll(50) {
				return errHandler
			}
			return nil
		})
		return err
	}
	for once() != nil {
	}
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
