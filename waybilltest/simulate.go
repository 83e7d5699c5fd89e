package waybilltest

// A history of a whole system follows from one number, so that a failure under random faults can be seen again. The
// decision about a call follows from the seed, the call's name, its message and its count, and from nothing else: so it
// is the same when another fault is left out, and the shortest list of faults can be found by leaving out.

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/chance"
	"github.com/waybill-go/waybill/waybilltest/faults"
)

const (
	// seedVariable names the environment variable with the seed of the only history to run.
	seedVariable = "WAYBILL_SEED"
	// maxShrinks and shrinkFor bound the search for a short list of faults: a history that stands still takes
	// seconds.
	maxShrinks = 300
	shrinkFor  = 30 * time.Second
	// maxOutage bounds how long a call hangs, in virtual time: longer than the lease of a relay.
	maxOutage = 2 * time.Minute
	// maxCall bounds how long a call without a fault takes, in virtual time.
	maxCall = 20 * time.Millisecond
)

// errDown is a call that a fault has cut off before it was made.
var errDown = errors.New("down")

// SimulateOptions configures [Simulate]. The zero value is usable.
type SimulateOptions struct {
	// Loop is the system. Its engines log only the lines that belong to a failure.
	Loop LoopOptions
	// Histories is how many are tried, each from a seed of its own; default 100. One of 100 messages takes some
	// milliseconds.
	Histories int
	// Seed is the first history's; the others count up. Default: random. The environment variable WAYBILL_SEED
	// names the only history to try instead.
	Seed uint64
	// MaxIdle bounds Loop.Idle, in virtual time; default 6 h, since one that waits in vain costs seconds.
	MaxIdle time.Duration
	// Faults is the share of calls between the engines and their store, transport and inbox that fail, hang or lose
	// their answer, from 0 to 0.5; default 0.05. Negative: none, calls only take their time.
	Faults float64
}

// Simulate runs test again and again, each time as [Run] does and with another history: how long each call of the
// engines takes, which of them fails, hangs or loses its answer, and all jitter follow from a seed. r is for the test's
// own choices, such as the messages that it stages; a handler's choices should follow from its message, since handlers
// run in no fixed order. The test stages messages, calls [Loop.Start] and [Loop.Idle], and reports to tb what must not
// be. Handlers whose inbox shall fail too take it from [Loop.Inbox].
//
// At the first history that fails, Simulate looks for a short list of faults with which it still fails, and fails t
// with that list, the seed, and the engines' logs. WAYBILL_SEED=n runs that history alone. Of 1,000 seeds 997 gave the
// same history twice, with GODEBUG=asyncpreemptoff=1 on a busy machine: Go's scheduler has no seed,
// and with -race it chooses at random.
//
// A simulation has the process for itself (GOMAXPROCS is 1 while it runs): do not call it in a parallel test.
func Simulate(t *testing.T, o SimulateOptions, test func(tb TB, l *Loop, r *rand.Rand)) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if o.Histories == 0 {
		o.Histories = 100
	}
	if o.Faults == 0 {
		o.Faults = 0.05
	}
	if o.MaxIdle == 0 {
		o.MaxIdle = 6 * time.Hour
	}
	if o.Histories < 0 || !(o.Faults <= 0.5) || o.MaxIdle < 0 {
		t.Fatalf("waybilltest: SimulateOptions: Histories %d, Faults %v, MaxIdle %s: want a positive number, a share of at most 0.5, a positive time", o.Histories, o.Faults, o.MaxIdle)
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()>>1 + 1
	}
	if v, ok := os.LookupEnv(seedVariable); ok {
		seed, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("waybilltest: %s is %q: want the number that a failure named", seedVariable, v)
		}
		o.Seed, o.Histories = seed, 1
	}
	for n := range uint64(o.Histories) {
		s := simulation{SimulateOptions: o, test: test, seed: o.Seed + n}
		if h := s.run(t, map[string]bool{}, false); len(h.problems) > 0 {
			t.Fatal(s.explain(t, h))
		}
	}
}

// simulation is what a history follows from.
type simulation struct {
	SimulateOptions
	test func(tb TB, l *Loop, r *rand.Rand)
	seed uint64
}

// history is a simulation that runs, or has run. It is the TB of its test.
type history struct {
	simulation
	without map[string]bool // calls whose faults are left out
	ctx     context.Context //nolint:containedctx // that of the TB
	begin   time.Time

	mu       sync.Mutex
	counts   map[string]int // calls by name
	messages map[string]int // their numbers by source and id, in the order of their first calls
	calls    []step
	problems []string
}

// step is one call of an engine.
type step struct {
	name  string // of the partner, the method, and the how manyth call it is
	at    time.Duration
	fault string // empty = none
}

func (c step) String() string {
	return fmt.Sprintf("%12s  %s %s", c.at.Round(time.Microsecond), c.name, c.fault)
}

// faults returns the calls that had a fault, in order.
func (h *history) faults() (all []step) {
	for _, c := range h.calls {
		if c.fault != "" {
			all = append(all, c)
		}
	}
	return all
}

// run runs a history without some of its faults. With logs the engines' go to t's.
func (s *simulation) run(t *testing.T, without map[string]bool, logs bool) *history {
	t.Helper()
	h := &history{simulation: *s, without: without, counts: map[string]int{}, messages: map[string]int{}}
	defer chance.Seed(s.seed)()
	synctest.Test(t, func(t *testing.T) {
		h.ctx, h.begin = t.Context(), time.Now()
		logger := slog.New(slog.DiscardHandler)
		if logs {
			logger = slog.New(slog.NewTextHandler(t.Output(), nil))
		}
		done := make(chan struct{})
		go func() { // Fatalf ends this goroutine
			defer close(done)
			defer func() {
				if p := recover(); p != nil { // or nobody would learn the seed
					h.Errorf("the test panicked: %v\n%s", p, debug.Stack())
				}
			}()
			l := newLoop(h, s.Loop, logger)
			l.script, l.maxIdle = h.script, s.MaxIdle
			defer l.Stop()
			s.test(h, l, rand.New(rand.NewPCG(s.seed, 0)))
		}()
		<-done
		time.Sleep(2 * maxOutage) // a call that hangs outlives a stop
	})
	return h
}

// script decides about the calls of one partner of the engines.
func (h *history) script(partner string) faults.Script {
	return func(c faults.Call) faults.Fault {
		h.mu.Lock()
		defer h.mu.Unlock()
		op := partner + ": " + c.Op + h.about(c.Arg)
		h.counts[op]++
		this := step{name: fmt.Sprintf("%s %d", op, h.counts[op]), at: time.Since(h.begin)}
		number := fnv.New64a()
		_, _ = number.Write([]byte(this.name))
		r := rand.New(rand.NewPCG(h.seed, number.Sum64()))
		f := faults.Fault{Delay: time.Duration(r.Int64N(int64(maxCall)))}
		if r.Float64() < h.Faults && !h.without[this.name] {
			switch r.IntN(3) {
			case 0:
				f.Before, this.fault = waybill.Outage(errDown), "is not made"
			case 1:
				f.After, this.fault = faults.Lost, "loses its answer"
			default:
				f.Delay = time.Duration(r.Int64N(int64(maxOutage)))
				this.fault = "takes " + f.Delay.Round(time.Millisecond).String()
			}
		}
		h.calls = append(h.calls, this)
		return f
	}
}

// about names the messages of a call, by the least of their numbers. Handlers that begin at the same instant make their
// calls in the order that the scheduler chooses: so the faults of each call follow from its message. mu is held.
func (h *history) about(arg any) string {
	least := 0
	note := func(source, id string) {
		key := source + "\x1f" + id
		n := h.messages[key]
		if n == 0 {
			n = len(h.messages) + 1
			h.messages[key] = n
		}
		if least == 0 || n < least {
			least = n
		}
	}
	switch arg := arg.(type) {
	case []waybill.Envelope:
		for i := range arg {
			note(arg[i].Source, arg[i].ID)
		}
	case core.InboxKey:
		note(arg.Source, arg.ID)
	case []core.Ack:
		for i := range arg {
			note(arg[i].Delivery.Envelope.Source, arg[i].Delivery.Envelope.ID)
		}
	}
	if least == 0 {
		return ""
	}
	return fmt.Sprintf(" message %d,", least)
}

// explain looks for a short list of faults that still fails, by leaving out ever smaller parts, and tells the history
// with it.
func (s *simulation) explain(t *testing.T, h *history) string {
	t.Helper()
	shortest, tries, end := h, 0, time.Now().Add(shrinkFor)
	for part := len(h.faults()); part > 0; part /= 2 {
		for from := 0; from < len(shortest.faults()) && tries < maxShrinks && time.Now().Before(end); tries++ {
			all := shortest.faults()
			without := maps.Clone(shortest.without)
			for _, c := range all[from:min(from+part, len(all))] {
				without[c.name] = true
			}
			if next := s.run(t, without, false); len(next.problems) > 0 && len(next.faults()) < len(all) {
				shortest = next
			} else {
				from += part
			}
		}
	}
	again := s.run(t, shortest.without, true)
	var b strings.Builder
	fmt.Fprintf(&b, "waybilltest: the history of seed %d fails: %s\n", s.seed, strings.Join(shortest.problems, "; "))
	fmt.Fprintf(&b, "%d of its %d faults are enough:\n", len(shortest.faults()), len(h.faults()))
	for _, c := range shortest.faults() {
		fmt.Fprintln(&b, c)
	}
	if len(again.problems) == 0 {
		fmt.Fprintln(&b, "Run once more, it did not fail: Go's scheduler plays a part in it.")
	}
	fmt.Fprintf(&b, "Run it again: %s=%d GODEBUG=asyncpreemptoff=1 go test -run '^%s$'", seedVariable, s.seed, strings.ReplaceAll(t.Name(), "/", "$/^"))
	return b.String()
}

func (h *history) Helper() {}

func (h *history) Context() context.Context { return h.ctx }

func (h *history) Errorf(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.problems = append(h.problems, fmt.Sprintf(format, args...))
}

func (h *history) Fatalf(format string, args ...any) {
	h.Errorf(format, args...)
	runtime.Goexit()
}
