package checker_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/checker"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
)

// A real history takes place in real time, over a real store: a second or two of trouble, then calm. On a busy machine
// all of it takes longer, so that a lease ends where the history wants it to.
var (
	realLease   = patience.For(800 * time.Millisecond)
	realTrouble = patience.For(1200 * time.Millisecond)
	realDrain   = patience.For(60 * time.Second) // without a record less
)

// tx is a producer's transaction on a real store.
type tx interface {
	Stage(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error)
	// Exec runs a statement, as for a savepoint.
	Exec(ctx context.Context, sql string) error
	Commit(ctx context.Context) error
	Rollback()
}

// side is what a history needs of the systems that it runs over.
type side interface {
	// Begin begins a transaction.
	Begin(ctx context.Context) (tx, error)
	// Relay starts the life of a relay.
	Relay(w *realWorld, n int) (*runner, error)
	// Harm does something to connections, for a moment; last says that there is no other time.
	Harm(w *realWorld, d *checker.Dice, last bool)
	// Rows returns how many records are live and how the others stand. It is not called while there is harm.
	Rows(ctx context.Context, routes []string) (live int, final map[checker.Ref]checker.Final, err error)
	// Keeper decides about blocked keys.
	Keeper() admin.BlockedKeys
	// Drain tells the ledger what stands in the queue, in its order, once, and gives each message its effect.
	Drain(w *realWorld) (effects map[checker.Ref]int, err error)
}

// runner is a relay that runs: how to end it, in good order or by a kill, and how to freeze it for a while.
type runner struct {
	end    func(kill bool)
	freeze func(d time.Duration)
}

// realWorld is one history over a side.
type realWorld struct {
	t      *testing.T
	seed   uint64
	name   string
	l      *checker.Ledger
	calm   atomic.Bool
	dice   *checker.Dice
	side   side
	routes []relay.Route
	names  []string
	opts   relay.Options
	faults checker.Faults
	refuse int
	relays int
	crew   []*runner
	born   int
	over   *sync.WaitGroup // killed relays, which end in their own time
}

// newRealWorld returns the history of seed. Its routes are its own.
func newRealWorld(t *testing.T, seed uint64, name string, s side, unseen bool) *realWorld {
	t.Helper()
	w := &realWorld{t: t, seed: seed, name: name, side: s}
	w.dice = checker.NewDice(seed, 1, &w.calm)
	d := w.dice
	kinds := []string{"ordered", "blocking", "loose"}
	rules := map[string]checker.Rule{}
	for _, k := range kinds[:1+d.N(3)] {
		r := relay.Route{Name: name + "-" + k, Backoff: &waybill.Backoff{Base: 20 * time.Millisecond, Cap: 100 * time.Millisecond, Attempts: []int{-1, 3}[d.N(2)]}}
		r.BlockAfterAbandon, r.Partitions = k == "blocking", []int{1, 4, 16, 64}[d.N(4)]
		if k == "loose" {
			r.Order = waybill.OrderBestEffort
		}
		w.routes, w.names = append(w.routes, r), append(w.names, r.Name)
		rules[r.Name] = checker.Rule{PerKey: k != "loose", Block: k == "blocking"}
	}
	w.l = checker.NewLedger(checker.Options{Routes: rules, Now: time.Now, Zombies: true, Unseen: unseen})
	w.opts = relay.Options{
		BatchSize: []int{1, 3, 20}[d.N(3)], Window: 1 + d.N(3), Lease: realLease, PublishTimeout: realLease * 7 / 10, PollMin: 5 * time.Millisecond,
		PollMax: 200 * time.Millisecond, DrainTimeout: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
	w.relays = 1 + d.N(3)
	rate := []int{0, 10, 40}[d.N(3)]
	w.faults = checker.Faults{Before: rate, After: rate, Late: rate / 2, Partial: rate, Delay: rate, MaxDelay: realLease}
	w.refuse = []int{0, 30, 100}[d.N(3)]
	return w
}

func (w *realWorld) start() {
	w.born++
	r, err := w.side.Relay(w, w.born)
	if err != nil {
		w.l.Note("relay %d did not start: %v", w.born, err)
		return
	}
	w.crew = append(w.crew, r)
}

func (w *realWorld) end(kill bool) {
	if len(w.crew) > 0 {
		w.crew[0].end(kill)
		w.crew = w.crew[1:]
	}
}

// run runs the history and returns the problems.
func (w *realWorld) run() []string {
	for range w.relays {
		w.start()
	}
	ctx := w.t.Context()
	var producers sync.WaitGroup
	for i := range 1 + w.dice.N(3) {
		producers.Go(func() { w.produce(ctx, i) })
	}
	for end := time.Now().Add(realTrouble); time.Now().Before(end); {
		time.Sleep(w.dice.Up(realTrouble / 4))
		switch w.dice.N(6) {
		case 0:
			w.end(w.dice.N(3) > 0)
			w.start()
		case 4: // one joins; another is killed while it releases partitions
			w.start()
			if w.dice.N(2) == 0 {
				time.Sleep(w.dice.Up(50 * time.Millisecond))
				w.end(true)
			}
		case 5:
			if len(w.crew) > 0 {
				w.crew[w.dice.N(len(w.crew))].freeze(w.dice.Up(2 * realLease))
			}
		case 1, 2:
			w.side.Harm(w, w.dice, false)
		case 3:
			w.operate(ctx, true)
		}
	}
	w.side.Harm(w, w.dice, true)
	producers.Wait()
	w.calm.Store(true)
	w.l.Note("calm")
	if w.dice.N(2) == 0 {
		w.end(true)
	}
	begun := time.Now()
	moved, left := begun, -1
	for helped := false; ; {
		if late := time.Since(moved) > realDrain/2; len(w.crew) == 0 || late && !helped {
			helped = helped || late
			w.start()
		}
		live, _, err := w.side.Rows(ctx, w.names)
		if err == nil && live == 0 {
			break
		}
		if err == nil && live != left {
			moved, left = time.Now(), live
		}
		if time.Since(moved) > realDrain {
			w.l.Note("not drained: %d left, %v", live, err)
			break
		}
		w.operate(ctx, false)
		time.Sleep(50 * time.Millisecond)
	}
	if took := time.Since(begun); took > 6*realLease { // breakers, mostly: they probe less and less often
		w.t.Logf("drained %s after the trouble; batch %d, window %d\n%s", took.Round(time.Millisecond), w.opts.BatchSize, w.opts.Window, w.l.Trace())
	}
	for len(w.crew) > 0 {
		w.end(false)
	}
	w.l.Wait()
	effects, err := w.side.Drain(w)
	if err != nil {
		return []string{"drain: " + err.Error()}
	}
	_, final, err := w.side.Rows(ctx, w.names)
	if err != nil {
		return []string{"rows: " + err.Error()}
	}
	return w.l.Verify(final, effects)
}

// operate decides about blocked heads.
func (w *realWorld) operate(ctx context.Context, failed bool) {
	keeper := w.side.Keeper()
	if keeper == nil {
		return
	}
	for _, r := range w.routes {
		if r.Order != waybill.OrderPerKey {
			continue
		}
		keys, _, err := keeper.BlockedKeys(ctx, admin.BlockedKeysRequest{Route: r.Name, BlockAfterAbandon: r.BlockAfterAbandon, Limit: 10})
		if err != nil {
			continue // the database is away, maybe
		}
		for i := range keys {
			k := &keys[i]
			if !failed && k.Cause != "abandoned" {
				continue
			}
			action := admin.HeadAction(1 + w.dice.N(3))
			reason := map[admin.HeadAction]waybill.Reason{admin.HeadSkip: waybill.ReasonSkipped, admin.HeadSetAside: waybill.ReasonSetAside}[action]
			w.l.Decide(checker.Ref{Route: r.Name, ID: k.Head.Envelope.ID}, reason, false, func() bool {
				err := keeper.DecideHead(ctx, r.Name, k.Key, k.Head.Envelope.ID, action)
				// After an outage it may have been done.
				return err == nil || waybill.ClassOf(err) == waybill.ClassOutage
			})
		}
	}
}

// produce stages messages in transactions. Some roll back, wholly or to a savepoint; of some it is not known; some take
// long; some messages are staged again.
func (w *realWorld) produce(ctx context.Context, i int) {
	d := checker.NewDice(w.seed, uint64(10+i), &w.calm)
	var mine []waybill.Message
	for n := range 3 + d.N(6) {
		time.Sleep(d.Up(realTrouble / 8))
		led := w.l.Begin()
		db, err := w.side.Begin(ctx)
		if err != nil {
			continue
		}
		ok := true
		var fresh []waybill.Message
		one := d.N(2) == 0 // several of one key
		for j := range 1 + d.N(6) {
			key := ""
			if k := d.N(5); k < 4 {
				key = []string{"hot", "hot", "a", "b"}[k]
			}
			if one {
				key = "hot"
			}
			id := fmt.Sprintf("p%d-%d%02d", i, n%10, j)
			r := w.names[d.N(len(w.names))]
			m := waybill.RawMessage(strings.ReplaceAll(r, "-", "."), "text/plain", []byte(id), waybill.ID(id), waybill.Key(key), waybill.Routes(r))
			if d.N(8) == 0 {
				m.Delay = d.Up(time.Second) + time.Millisecond
			}
			again := len(mine) > 0 && d.N(12) == 0
			if again {
				m = mine[d.N(len(mine))]
			}
			vain := !again && d.N(10) == 0
			if vain {
				m.ID += "-in-vain"
				err = db.Exec(ctx, "SAVEPOINT vain")
			}
			at := led.Savepoint()
			var staged []waybill.Staged
			if err == nil {
				staged, err = db.Stage(ctx, m)
			}
			if err == nil && !again { // the first one counts
				led.Staged(&m, staged[0])
			}
			if err == nil && vain {
				led.RollbackTo(at)
				err = db.Exec(ctx, "ROLLBACK TO SAVEPOINT vain")
			}
			if err != nil {
				ok = false
				break
			}
			if !vain {
				fresh = append(fresh, m)
			}
			if d.N(25) == 0 { // it is watched by itself
				time.Sleep(time.Second + d.Up(realLease))
			}
		}
		if !ok || d.N(6) == 0 {
			led.Rollback(db.Rollback)
			continue
		}
		mine = append(mine, fresh...)
		if err := led.Commit(func() error { return db.Commit(ctx) }); err != nil {
			w.l.Note("commit of producer %d: %v", i, err)
		}
	}
}

// goRelay runs a relay in this process, over a store and publishers of its own. done is called when it has ended.
func (w *realWorld) goRelay(n int, store core.OutboxStore, publisher func(p *checker.Process, route string, i int) core.Publisher, done func()) (*runner, error) {
	p := checker.NewProcess(w.l, "r"+strconv.Itoa(n), w.seed, 1000+uint64(n), &w.calm)
	s, err := checker.NewStore(store, p, &w.faults)
	if err != nil {
		return nil, err
	}
	o := w.opts
	o.Name = p.Name
	o.Routes = slices.Clone(w.routes)
	for i := range o.Routes {
		o.Routes[i].Publisher = publisher(p, o.Routes[i].Name, i)
	}
	r, err := relay.New(s, nil, o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	w.l.Note("start %s", p.Name)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil { // as a supervisor: an exchange that is not there at first contact ends it
			if err := r.Run(ctx); err != nil {
				w.l.Note("relay %s ended: %v", p.Name, err)
				time.Sleep(50 * time.Millisecond)
			}
		}
	}()
	w.over.Go(func() {
		<-over
		done()
	})
	return &runner{
		end: func(kill bool) {
			if kill {
				p.Kill()
			} else {
				w.l.Note("stop %s", p.Name)
			}
			cancel()
			if !kill {
				<-over
			}
		},
		freeze: func(d time.Duration) {
			if w.dice.N(2) == 0 {
				p.Freeze(d)
			} else {
				p.Cut(d)
			}
		},
	}, nil
}

// runReal runs histories, some side by side, and reports figures.
func runReal(t *testing.T, n, workers int, one func(t *testing.T, seed uint64, i int) *realWorld) {
	t.Helper()
	first := uint64(time.Now().UnixNano())
	if *seedFlag != 0 {
		first, n = *seedFlag, min(n, *timesFlag)
	}
	begin, late := time.Now(), deadline(t)
	var next, done, staged, arrived atomic.Int64
	var over sync.WaitGroup
	t.Cleanup(over.Wait)
	var pool sync.WaitGroup
	// not parallel subtests: these are as many as there are processors, and histories mostly wait
	for range workers {
		pool.Go(func() {
			for !t.Failed() {
				k := int(next.Add(1))
				if k > n || k > workers && late() {
					return
				}
				seed := first
				if *seedFlag == 0 {
					seed += uint64(k)
				}
				t.Run(strconv.Itoa(k), func(t *testing.T) {
					w := one(t, seed, k)
					w.over = &over
					if problems := w.run(); len(problems) > 0 {
						t.Error(reportReal(t, seed, problems, w.l))
					}
					s, a := w.l.Size()
					staged.Add(int64(s))
					arrived.Add(int64(a))
					done.Add(1)
				})
			}
		})
	}
	pool.Wait()
	took := time.Since(begin)
	t.Logf("%d histories, %d messages, %d arrivals in %s: %.1f a second", done.Load(), staged.Load(), arrived.Load(), took.Round(time.Millisecond), float64(done.Load())/took.Seconds())
}

func reportReal(t *testing.T, seed uint64, problems []string, l *checker.Ledger) string {
	t.Helper()
	text := strings.Join(problems, "\n")
	words := append(message.FindAllString(text, 4), "kill", "stop", "start", "calm", "harm", "not drained", "commit", "declare")
	if *traceFlag {
		words = nil
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	return fmt.Sprintf("seed %d; replay with: go test ./internal/checker -run '^%s$' -seed %d -whole\n%s\n%s\n%s", seed, name, seed, text, l.Trace(words...), text)
}
