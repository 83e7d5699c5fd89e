// Package historytest runs random histories of producers and relays over real stores, in real time, and has a checker
// judge them. The tests of stores share it; only tests import it.
//
// # Guarantees
//
// A history passes only if its ledger finds nothing wrong: no message is lost, each has one effect, and keys keep their
// order. A failure names the seed that repeats the plan of its history.
//
// # Concurrency
//
// [Run] runs some histories side by side.
//
// # Ownership
//
// The relays of a history end with it, also those that were killed.
//
// # Limits
//
// The flags -seed, -times and -whole are those of the binary of the tests. The interleaving of goroutines is not
// repeated: replay a seed some dozen times.
package historytest

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"regexp"
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
	"github.com/waybill-go/waybill/internal/sleep"
	"github.com/waybill-go/waybill/relay"
)

// The flags of a test's binary.
var (
	Seed  = flag.Uint64("seed", 0, "replay the history of this seed, instead of random ones")
	Times = flag.Int("times", 100, "how often to replay -seed: goroutines interleave differently each time")
	Whole = flag.Bool("whole", false, "print everything that happened in a history that fails")
)

// A history takes place in real time: a second or two of trouble, then calm. On a busy machine all of it takes longer,
// so that a lease ends where the history wants it to. Drain is how long no record may become less.
var (
	Lease   = patience.For(800 * time.Millisecond)
	trouble = patience.For(1200 * time.Millisecond)
	Drain   = patience.For(60 * time.Second)
)

// Message matches the id of a message of a history.
var Message = regexp.MustCompile(`p\d-\d{3}`)

// Deadline returns a function that says whether half of the time is over that go test gives to the package: then no
// history begins any more. The tests say in their logs how many there were.
func Deadline(t *testing.T) (late func() bool) {
	t.Helper()
	end, ok := t.Deadline()
	half := time.Until(end) / 2
	return func() bool { return ok && time.Until(end) < half }
}

// Tx is a producer's transaction on a real store.
type Tx interface {
	Stage(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error)
	// Exec runs a statement, as for a savepoint.
	Exec(ctx context.Context, sql string) error
	Commit(ctx context.Context) error
	Rollback()
}

// Side is what a history needs of the systems that it runs over.
type Side interface {
	// Begin begins a transaction.
	Begin(ctx context.Context) (Tx, error)
	// Relay starts the life of a relay.
	Relay(w *World, n int) (*Runner, error)
	// Harm does something to connections, for a moment; last says that there is no other time.
	Harm(w *World, d *checker.Dice, last bool)
	// Rows returns how many records are live and how the others stand. It is not called while there is harm.
	Rows(ctx context.Context, routes []string) (live int, final map[checker.Ref]checker.Final, err error)
	// Keeper decides about blocked keys.
	Keeper() admin.BlockedKeys
	// Drain tells the ledger what stands in the queue, in its order, once, and gives each message its effect.
	Drain(w *World) (effects map[checker.Ref]int, err error)
}

// Runner is a relay that runs: End ends it, in good order or by a kill, and Freeze freezes it for a while.
type Runner struct {
	End    func(kill bool)
	Freeze func(d time.Duration)
}

// World is one history over a side. The exported fields are for the side.
type World struct {
	T       *testing.T
	Seed    uint64
	Ledger  *checker.Ledger
	Dice    *checker.Dice
	Routes  []relay.Route
	Names   []string // of the routes
	Options relay.Options
	Faults  checker.Faults  // of the store
	Refuse  int             // how many messages of a thousand the broker refuses
	Over    *sync.WaitGroup // killed relays, which end in their own time

	name   string
	calm   atomic.Bool
	side   Side
	relays int
	crew   []*Runner
	born   int
}

// New returns the history of seed. Its routes are its own. The ledger judges by opts.
func New(t *testing.T, seed uint64, name string, s Side, opts checker.Options) *World {
	t.Helper()
	w := &World{T: t, Seed: seed, name: name, side: s}
	w.Dice = checker.NewDice(seed, 1, &w.calm)
	d := w.Dice
	kinds := []string{"ordered", "blocking", "loose"}
	rules := map[string]checker.Rule{}
	for _, k := range kinds[:1+d.N(3)] {
		r := relay.Route{Name: name + "-" + k, Backoff: &waybill.Backoff{Base: 20 * time.Millisecond, Cap: 100 * time.Millisecond, Attempts: []int{-1, 3}[d.N(2)]}}
		r.BlockAfterAbandon, r.Partitions = k == "blocking", []int{1, 4, 16, 64}[d.N(4)]
		if k == "loose" {
			r.Order = waybill.OrderBestEffort
		}
		w.Routes, w.Names = append(w.Routes, r), append(w.Names, r.Name)
		rules[r.Name] = checker.Rule{PerKey: k != "loose", Block: k == "blocking"}
	}
	opts.Routes, opts.Now, opts.Zombies = rules, time.Now, true
	w.Ledger = checker.NewLedger(opts)
	w.Options = relay.Options{
		BatchSize: []int{1, 3, 20}[d.N(3)], Window: 1 + d.N(3), Lease: Lease, PublishTimeout: Lease * 7 / 10, PollMin: 5 * time.Millisecond,
		PollMax: 200 * time.Millisecond, DrainTimeout: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
	w.relays = 1 + d.N(3)
	rate := []int{0, 10, 40}[d.N(3)]
	w.Faults = checker.Faults{Before: rate, After: rate, Late: rate / 2, Partial: rate, Delay: rate, MaxDelay: Lease}
	w.Refuse = []int{0, 30, 100}[d.N(3)]
	return w
}

func (w *World) start() {
	w.born++
	r, err := w.side.Relay(w, w.born)
	if err != nil {
		w.Ledger.Note("relay %d did not start: %v", w.born, err)
		return
	}
	w.crew = append(w.crew, r)
}

func (w *World) end(kill bool) {
	if len(w.crew) > 0 {
		w.crew[0].End(kill)
		w.crew = w.crew[1:]
	}
}

// run runs the history and returns the problems.
func (w *World) run() []string {
	for range w.relays {
		w.start()
	}
	ctx := w.T.Context()
	var producers sync.WaitGroup
	for i := range 1 + w.Dice.N(3) {
		producers.Go(func() { w.produce(ctx, i) })
	}
	for end := time.Now().Add(trouble); time.Now().Before(end); {
		_ = sleep.For(ctx, w.Dice.Up(trouble/4))
		switch w.Dice.N(6) {
		case 0:
			w.end(w.Dice.N(3) > 0)
			w.start()
		case 4: // one joins; another is killed while it releases partitions
			w.start()
			if w.Dice.N(2) == 0 {
				_ = sleep.For(ctx, w.Dice.Up(50*time.Millisecond))
				w.end(true)
			}
		case 5:
			if len(w.crew) > 0 {
				w.crew[w.Dice.N(len(w.crew))].Freeze(w.Dice.Up(2 * Lease))
			}
		case 1, 2:
			w.side.Harm(w, w.Dice, false)
		case 3:
			w.operate(ctx, true)
		}
	}
	w.side.Harm(w, w.Dice, true)
	producers.Wait()
	w.calm.Store(true)
	w.Ledger.Note("calm")
	if w.Dice.N(2) == 0 {
		w.end(true)
	}
	begun := time.Now()
	moved, left := begun, -1
	for helped := false; ; {
		if late := time.Since(moved) > Drain/2; len(w.crew) == 0 || late && !helped {
			helped = helped || late
			w.start()
		}
		live, _, err := w.side.Rows(ctx, w.Names)
		if err == nil && live == 0 {
			break
		}
		if err == nil && live != left {
			moved, left = time.Now(), live
		}
		if time.Since(moved) > Drain {
			w.Ledger.Note("not drained: %d left, %v", live, err)
			break
		}
		w.operate(ctx, false)
		_ = sleep.For(ctx, 50*time.Millisecond)
	}
	if took := time.Since(begun); took > 6*Lease { // breakers, mostly: they probe less and less often
		w.T.Logf("drained %s after the trouble; batch %d, window %d\n%s", took.Round(time.Millisecond), w.Options.BatchSize, w.Options.Window, w.Ledger.Trace())
	}
	for len(w.crew) > 0 {
		w.end(false)
	}
	w.Ledger.Wait()
	effects, err := w.side.Drain(w)
	if err != nil {
		return []string{"drain: " + err.Error()}
	}
	_, final, err := w.side.Rows(ctx, w.Names)
	if err != nil {
		return []string{"rows: " + err.Error()}
	}
	return w.Ledger.Verify(final, effects)
}

// operate decides about blocked heads.
func (w *World) operate(ctx context.Context, failed bool) {
	keeper := w.side.Keeper()
	if keeper == nil {
		return
	}
	for _, r := range w.Routes {
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
			action := admin.HeadAction(1 + w.Dice.N(3))
			reason := map[admin.HeadAction]waybill.Reason{admin.HeadSkip: waybill.ReasonSkipped, admin.HeadSetAside: waybill.ReasonSetAside}[action]
			w.Ledger.Decide(checker.Ref{Route: r.Name, ID: k.Head.Envelope.ID}, reason, false, func() bool {
				err := keeper.DecideHead(ctx, r.Name, k.Key, k.Head.Envelope.ID, action)
				// After an outage it may have been done.
				return err == nil || waybill.ClassOf(err) == waybill.ClassOutage
			})
		}
	}
}

// produce stages messages in transactions. Some roll back, wholly or to a savepoint; of some it is not known; some take
// long; some messages are staged again.
func (w *World) produce(ctx context.Context, i int) {
	d := checker.NewDice(w.Seed, uint64(10+i), &w.calm)
	var mine []waybill.Message
	for n := range 3 + d.N(6) {
		_ = sleep.For(ctx, d.Up(trouble/8))
		led := w.Ledger.Begin()
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
			r := w.Names[d.N(len(w.Names))]
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
				_ = sleep.For(ctx, time.Second+d.Up(Lease))
			}
		}
		if !ok || d.N(6) == 0 {
			led.Rollback(db.Rollback)
			continue
		}
		mine = append(mine, fresh...)
		if err := led.Commit(func() error { return db.Commit(ctx) }); err != nil {
			w.Ledger.Note("commit of producer %d: %v", i, err)
		}
	}
}

// Relay runs a relay in this process, over a store and publishers of its own. done is called when it has ended.
func (w *World) Relay(n int, store core.OutboxStore, publisher func(p *checker.Process, route string, i int) core.Publisher, done func()) (*Runner, error) {
	p := checker.NewProcess(w.Ledger, "r"+strconv.Itoa(n), w.Seed, 1000+uint64(n), &w.calm)
	s := checker.NewStore(store, p, &w.Faults)
	o := w.Options
	o.Name = p.Name
	o.Routes = slices.Clone(w.Routes)
	for i := range o.Routes {
		o.Routes[i].Publisher = publisher(p, o.Routes[i].Name, i)
	}
	r, err := relay.New(s, nil, o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.T.Context()))
	w.Ledger.Note("start %s", p.Name)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil { // as a supervisor: an exchange that is not there at first contact ends it
			if err := r.Run(ctx); err != nil {
				w.Ledger.Note("relay %s ended: %v", p.Name, err)
				_ = sleep.For(ctx, 50*time.Millisecond)
			}
		}
	}()
	w.Over.Go(func() {
		<-over
		done()
	})
	return &Runner{
		End: func(kill bool) {
			if kill {
				p.Kill()
			} else {
				w.Ledger.Note("stop %s", p.Name)
			}
			cancel()
			if !kill {
				<-over
			}
		},
		Freeze: func(d time.Duration) {
			if w.Dice.N(2) == 0 {
				p.Freeze(d)
			} else {
				p.Cut(d)
			}
		},
	}, nil
}

// Run runs histories, some side by side, and reports figures.
func Run(t *testing.T, n, workers int, one func(t *testing.T, seed uint64, i int) *World) {
	t.Helper()
	first := uint64(time.Now().UnixNano())
	if *Seed != 0 {
		first, n = *Seed, min(n, *Times)
	}
	begin, late := time.Now(), Deadline(t)
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
				if *Seed == 0 {
					seed += uint64(k)
				}
				t.Run(strconv.Itoa(k), func(t *testing.T) {
					w := one(t, seed, k)
					w.Over = &over
					if problems := w.run(); len(problems) > 0 {
						t.Error(report(t, seed, problems, w.Ledger))
					}
					s, a := w.Ledger.Size()
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

func report(t *testing.T, seed uint64, problems []string, l *checker.Ledger) string {
	t.Helper()
	text := strings.Join(problems, "\n")
	words := append(Message.FindAllString(text, 4), "kill", "stop", "start", "calm", "harm", "not drained", "commit", "declare")
	if *Whole {
		words = nil
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	return fmt.Sprintf("seed %d; replay with: go test -run '^%s$' -seed %d -whole\n%s\n%s\n%s", seed, name, seed, text, l.Trace(words...), text)
}
