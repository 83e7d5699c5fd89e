package relay_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxes"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
)

// town is a database with an outbox in memory for each name. It counts the calls.
type town struct {
	tb   testing.TB
	page int

	mu      sync.Mutex
	stores  map[string]*memory.Store
	drawn   map[string]int64
	tx      int64          // the next transaction
	open    map[int64]bool // transactions that are open
	served  map[string]bool
	broken  map[string]error
	refused map[string]string
	silent  map[string]bool // a Peek waits until its context ends
	behind  string          // a Look behind it fails
	count   map[string]int  // of calls by kind; those of stores are "store"
	last    map[string]int  // what takes told
}

func newTown(tb testing.TB, names ...string) *town {
	tb.Helper()
	t := &town{
		tb: tb, page: 250, stores: map[string]*memory.Store{}, drawn: map[string]int64{}, tx: 1, open: map[int64]bool{}, served: map[string]bool{},
		broken: map[string]error{}, refused: map[string]string{}, silent: map[string]bool{}, count: map[string]int{}, last: map[string]int{},
	}
	for _, name := range names {
		t.stores[name] = newStore(tb)
	}
	return t
}

func (t *town) calls(kind string) {
	t.count[kind]++
}

// counted returns how many calls of a kind there were.
func (t *town) counted(kind string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count[kind]
}

// with changes the town, or reads it.
func (t *town) with(fn func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fn()
}

// takes returns how many calls of a kind there were since it was asked before.
func (t *town) takes(kind string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.count[kind] - t.last[kind]
	t.last[kind] = t.count[kind]
	return n
}

// begin stages in a transaction, and returns its commit.
func (t *town) begin(name string, m ...waybill.Message) (commit func()) {
	t.tb.Helper()
	t.mu.Lock()
	s := t.stores[name]
	id := t.tx
	t.tx++
	t.open[id] = true
	t.drawn[name] += int64(len(m))
	t.mu.Unlock()
	tx := s.Begin()
	if _, err := s.Stage(t.tb.Context(), tx, m...); err != nil {
		t.tb.Fatal(err)
	}
	return func() {
		t.tb.Helper()
		if err := tx.Commit(); err != nil {
			t.tb.Fatal(err)
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.open, id)
	}
}

func (t *town) stage(name string, m ...waybill.Message) {
	t.tb.Helper()
	t.begin(name, m...)()
}

func (t *town) set(m map[string]bool, name string, v bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m[name] = v
}

func (t *town) xmin() int64 {
	least := t.tx
	for id := range t.open {
		least = min(least, id)
	}
	return least
}

func (t *town) Look(_ context.Context, after string) (p outboxes.Page, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls("look")
	var names []string
	for name := range t.stores {
		if name > after {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	p.More, p.Xmin = len(names) > t.page, t.xmin()
	for _, name := range names[:min(t.page, len(names))] {
		p.Outboxes = append(p.Outboxes, outboxes.Drawn{Name: name, Last: t.drawn[name], Refused: t.refused[name]})
	}
	if t.behind != "" && after > t.behind {
		return outboxes.Page{}, errors.New("too slow")
	}
	return p, t.broken["look"]
}

func (t *town) Peek(ctx context.Context, name string, routes []string) (s outboxes.State, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls("peek")
	t.calls("peek " + name)
	if t.silent[name] {
		t.mu.Unlock()
		<-ctx.Done()
		t.mu.Lock()
		return s, ctx.Err()
	}
	s = outboxes.State{NextIn: -1, Served: t.served[name], Xmin: t.xmin(), Xmax: t.tx}
	if t.stores[name] == nil {
		return s, t.broken[name]
	}
	for _, r := range t.stores[name].Records() {
		switch in := time.Until(r.Due); {
		case !slices.Contains(routes, r.Route) || r.State != core.StatePending && r.State != core.StateFailed:
		case in <= 0:
			s.Work = true
		case s.NextIn < 0 || in < s.NextIn:
			s.NextIn = in
		}
	}
	return s, t.broken[name]
}

func (t *town) Open(name string) (core.OutboxStore, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls("open")
	return &sharedtest.Store{OutboxStore: t.stores[name], Before: func(context.Context, string, any) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.calls("store")
		return nil
	}}, nil
}

// left returns how many records wait in an outbox.
func (t *town) left(name string) (n int) {
	for _, r := range t.stores[name].Records() {
		if r.State == core.StatePending || r.State == core.StateFailed || r.State == core.StateProcessing {
			n++
		}
	}
	return n
}

func numbered(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("t%04d", i)
	}
	return names
}

// beginFleet runs a fleet until the function that it returns is called.
func beginFleet(tb testing.TB, o outboxes.All, p core.Publisher, opts relay.Options, fleet relay.FleetOptions) (f *relay.Fleet, stop func()) {
	tb.Helper()
	patience.BudgetOf(tb).Time(2*time.Minute, "a fleet lingers, and puts off what failed")
	if opts.Logger == nil {
		opts.Logger = quiet()
	}
	f, err := relay.NewFleet(o, p, opts, fleet)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(tb.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	return f, func() {
		tb.Helper()
		cancel()
		if err := <-done; err != nil {
			tb.Error(err)
		}
	}
}

// OP-13: a thousand idle outboxes cost a look at a page each time, a Peek an hour, and no relay.
func TestIdleFleet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town := newTown(t, numbered(1000)...)
		f, stop := beginFleet(t, town, newBus(), relay.Options{}, relay.FleetOptions{})
		defer stop()
		within(t, time.Minute, "each outbox was seen", func() bool { return town.counted("peek") == 1000 })
		town.takes("look")
		town.takes("peek")
		const minutes = 10
		patience.Pass(t, minutes*time.Minute)
		if n := town.takes("look"); n < minutes*60*8*9/10 || n > minutes*60*8 {
			t.Errorf("%d looks in %d minutes", n, minutes)
		}
		if n := town.takes("peek"); n > 400 {
			t.Errorf("%d outboxes were visited in ten minutes", n)
		}
		if n := town.takes("store"); n > 0 {
			t.Errorf("relays made %d calls", n)
		}
		if h := f.Health(t.Context()); !h.Ready || !strings.Contains(h.String(), "1000 outboxes; 0 of at most 8 relays run") {
			t.Error(h.String())
		}
	})
}

// OP-13: a message to an outbox without a relay is published after the next look at its page. The relay goes on for a
// while, and is gone then.
func TestColdOutbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town, b := newTown(t, numbered(1000)...), newBus()
		_, stop := beginFleet(t, town, b, relay.Options{CleanInterval: -1}, relay.FleetOptions{Linger: 3 * time.Second})
		defer stop()
		within(t, time.Minute, "each outbox was seen", func() bool { return town.counted("peek") == 1000 })
		town.takes("look")
		town.stage("t0777", msg("a", ""))
		within(t, time.Second, "it arrives", func() bool { return b.count() == 1 })
		if n := town.takes("look"); n > 5 {
			t.Errorf("it took %d looks", n)
		}
		town.takes("open")
		patience.Pass(t, time.Second)
		town.stage("t0777", msg("b", ""))
		within(t, time.Second, "the next one, too", func() bool { return b.count() == 2 })
		if n := town.takes("open"); n > 0 {
			t.Errorf("the relay did not linger: %d others ran", n)
		}
		patience.Pass(t, 5*time.Second)
		town.takes("store")
		patience.Pass(t, time.Minute)
		if n := town.takes("store"); n > 0 {
			t.Errorf("the relay still runs: %d calls", n)
		}
	})
}

// OP-13: a timer and a retry are published when they are due, though no number is drawn then. Until then no relay runs.
func TestFleetWaitsForTimers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town, b := newTown(t, "a", "b"), newBus()
		b.answer = func(e *waybill.Envelope, nth int) error {
			if e.ID == "retry" && nth == 1 {
				return errNo
			}
			return nil
		}
		routes := []relay.Route{{Backoff: waybill.RetryDelays(20*time.Minute, 20*time.Minute)}}
		_, stop := beginFleet(t, town, b, relay.Options{Routes: routes}, relay.FleetOptions{})
		defer stop()
		town.stage("a", msg("timer", "", waybill.Delay(20*time.Minute)))
		town.stage("b", msg("retry", ""))
		patience.Pass(t, time.Minute)
		town.takes("store")
		patience.Pass(t, 14*time.Minute)
		if n := town.takes("store"); n > 0 || b.count() > 0 {
			t.Errorf("relays made %d calls, and published %q", n, b.ids())
		}
		patience.Pass(t, 6*time.Minute)
		within(t, 2*time.Second, "both arrive", func() bool { return b.count() == 2 })
	})
}

// OP-13: a transaction commits after its number was seen, and after a Peek that could not see its record. No other
// number is drawn. A transaction that is open for long causes no visits.
func TestFleetSeesLateCommits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town, b := newTown(t, "a", "b"), newBus()
		_, stop := beginFleet(t, town, b, relay.Options{}, relay.FleetOptions{})
		defer stop()
		within(t, time.Minute, "each outbox was seen", func() bool { return town.counted("peek") == 2 })
		commit := town.begin("a", msg("late", ""))
		patience.Pass(t, 2*time.Second)
		if n := town.takes("peek"); n != 3 {
			t.Errorf("%d peeks, want one more for the number", n)
		}
		long := town.begin("b") // of another program: it is always open
		patience.Pass(t, 10*time.Second)
		if n := town.takes("peek"); n > 0 {
			t.Errorf("%d peeks although nothing has happened", n)
		}
		commit()
		within(t, time.Second, "it arrives", func() bool { return b.count() == 1 })
		patience.Pass(t, 10*time.Second)
		town.takes("peek")
		for range 20 { // another program always has a transaction open, each for a moment
			next := town.begin("b")
			long()
			long = next
			patience.Pass(t, 500*time.Millisecond)
		}
		long()
		if n := town.takes("peek"); n > 2 {
			t.Errorf("%d peeks although nothing has happened", n)
		}
	})
}

// OP-13: outboxes with endless work have all places. One message of another outbox, and one of each of a hundred, get
// theirs. No key is out of order.
func TestFleetIsFair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Calls(1000, "two relays always have work")
		town, b := newTown(t, numbered(104)...), newBus()
		b.latency = 10 * time.Millisecond
		busy := []string{"t0000", "t0001", "t0002"}
		for _, name := range busy {
			town.stage(name, msgs(10_000, noKey)...)
		}
		routes := []relay.Route{{RatePerSecond: 100}}
		_, stop := beginFleet(t, town, b, relay.Options{Routes: routes}, relay.FleetOptions{Active: 2})
		defer stop()
		patience.Pass(t, 16*time.Second)
		for _, name := range busy {
			if n := town.left(name); n == 10_000 {
				t.Errorf("nothing of %s was published", name)
			}
		}
		for _, name := range numbered(104)[3:] {
			town.stage(name, msg("one of "+name, ""))
		}
		within(t, 90*time.Second, "all others arrive", func() bool {
			return !slices.ContainsFunc(numbered(104)[3:], func(name string) bool { return town.left(name) > 0 })
		})
	})
}

// OP-13: an outbox that is broken is named, and asked ever more rarely; the others go on. It comes back by itself.
func TestFleetWithABrokenOutbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log sharedtest.Log
		town, b := newTown(t, "a", "b", "c"), newBus()
		town.with(func() { town.broken["b"] = errors.New("the table is gone") })
		f, stop := beginFleet(t, town, b, relay.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, relay.FleetOptions{})
		defer stop()
		town.stage("a", msg("a", ""))
		town.stage("b", msg("b", ""))
		town.stage("c", msg("c", ""))
		within(t, 2*time.Second, "the others arrive", func() bool { return b.count() == 2 })
		patience.Pass(t, 5*time.Minute)
		town.takes("peek")
		patience.Pass(t, 5*time.Minute)
		if n := town.takes("peek"); n > 8 {
			t.Errorf("%d peeks in five minutes", n)
		}
		if h := f.Health(t.Context()); !h.Ready || !strings.Contains(h.String(), "1 of 3 cannot be served: b: the table is gone") {
			t.Error(h.String())
		}
		if n := strings.Count(log.String(), "event=fleet.outbox_failed"); n != 1 {
			t.Errorf("told %d times:\n%s", n, &log)
		}
		town.mu.Lock()
		delete(town.broken, "b")
		town.mu.Unlock()
		within(t, 61*time.Second, "it is back", func() bool { return b.count() == 3 })
		within(t, 10*time.Second, "health knows", func() bool {
			return !strings.Contains(f.Health(t.Context()).String(), "cannot be served")
		})
	})
}

// OP-13: outboxes that do not answer lose their places to the others, and are put off and named like broken ones.
// Otherwise they would keep all places, and each message of the others would wait for them.
func TestFleetWithSilentOutboxes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 30
		var log sharedtest.Log
		town, b := newTown(t, numbered(n+1)...), newBus()
		silent, good := numbered(n), numbered(n + 1)[n]
		town.with(func() {
			for _, name := range silent {
				town.silent[name] = true
			}
		})
		f, stop := beginFleet(t, town, b, relay.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, relay.FleetOptions{})
		defer stop()
		patience.BudgetOf(t).Time(12*time.Minute, "the pauses of outboxes that do not answer double up to a minute")
		patience.Pass(t, 5*time.Minute)
		for i := range 5 {
			town.stage(good, msg("m"+strconv.Itoa(i), ""))
			within(t, 2*placeTime, "it arrives beside those that do not answer", func() bool { return b.count() == i+1 })
			patience.Pass(t, 37*time.Second)
		}
		if h := f.Health(t.Context()); !h.Ready || !strings.Contains(h.String(), "30 of 31 cannot be served: t0000: ") || !strings.Contains(log.String(), "it did not answer for 5s, and others waited") {
			t.Error(h.String())
		}
	})
}

// placeTime is how long an outbox keeps its place while others wait in line.
const placeTime = 5 * time.Second

// OP-13: outboxes that have work, all of which waits behind abandoned messages, are put off although there are more of
// them than places. Otherwise their relays would begin and end for ever.
func TestFleetOfBlockedOutboxes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 24
		town, b := newTown(t, numbered(n)...), newBus()
		b.answer = func(*waybill.Envelope, int) error {
			return &waybill.Error{Op: "test", Class: waybill.ClassPermanent, Err: errors.New("never")}
		}
		for _, name := range numbered(n) {
			town.stage(name, msg("a", "k"), msg("b", "k"))
		}
		_, stop := beginFleet(t, town, b, relay.Options{Routes: []relay.Route{{BlockAfterAbandon: true}}}, relay.FleetOptions{})
		defer stop()
		patience.BudgetOf(t).Time(6*time.Minute, "their pauses double up to a minute")
		patience.Pass(t, 5*time.Minute)
		if visits := town.takes("peek"); visits > 20*n {
			t.Errorf("%d visits of %d outboxes in five minutes", visits, n)
		}
	})
}

// OP-13: a round of looks that fails in its middle forgets no outbox. Otherwise all behind it would be visited anew,
// when the database has the least time for them.
func TestFleetRemembers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town := newTown(t, numbered(1000)...)
		f, stop := beginFleet(t, town, newBus(), relay.Options{}, relay.FleetOptions{})
		defer stop()
		within(t, time.Minute, "each outbox was seen", func() bool { return town.counted("peek") == 1000 })
		town.with(func() { town.behind = "t0300" })
		patience.Pass(t, 2*time.Second)
		if h := f.Health(t.Context()); h.Ready || !strings.Contains(h.String(), "1000 outboxes; ") {
			t.Error(h.String())
		}
		town.takes("peek")
		town.with(func() { town.behind = "" })
		patience.Pass(t, 5*time.Second)
		if n := town.takes("peek"); n > 20 {
			t.Errorf("%d outboxes were visited anew", n)
		}
	})
}

// OP-13: the relay of an outbox that is gone, such as under another name now, ends, and the outbox is forgotten.
func TestFleetWithoutAnOutbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town, b := newTown(t, "a", "b"), newBus()
		f, stop := beginFleet(t, town, b, relay.Options{Routes: []relay.Route{{RatePerSecond: 10}}}, relay.FleetOptions{})
		defer stop()
		town.stage("a", msgs(10_000, noKey)...)
		within(t, 5*time.Second, "its relay runs", func() bool { return b.count() > 10 })
		town.with(func() {
			delete(town.stores, "a")
			town.broken["a"] = errors.New("the table is gone")
		})
		within(t, 10*time.Second, "it is forgotten", func() bool {
			h := f.Health(t.Context()).String()
			return strings.Contains(h, "1 outboxes; 0 of at most") && !strings.Contains(h, "cannot be served")
		})
	})
}

// OP-13: health names the outboxes whose relays cannot publish, and why. An outbox that was broken counts as served as
// soon as its relay runs, however long it does.
func TestFleetTellsWhatHindersItsRelays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town, b := newTown(t, "a", "b"), newBus()
		var back atomic.Bool
		b.answer = func(*waybill.Envelope, int) error {
			if back.Load() {
				return nil
			}
			return waybill.Outage(errors.New("nobody listens"))
		}
		town.with(func() { town.broken["b"] = errors.New("the table is gone") })
		f, stop := beginFleet(t, town, b, relay.Options{}, relay.FleetOptions{Linger: time.Hour})
		defer stop()
		town.stage("a", msg("a", ""))
		town.stage("b", msg("b", ""))
		says := func(texts ...string) func() bool {
			return func() bool {
				h := f.Health(t.Context())
				for _, text := range texts {
					if _, after, found := strings.Cut(text, "!"); found == strings.Contains(h.String(), cmp.Or(after, text)) {
						return false
					}
				}
				return h.Ready
			}
		}
		within(t, 5*time.Second, "health names both", says("1 of 1 are hindered: a: route default: breaker open", "nobody listens",
			"1 of 2 cannot be served: b: the table is gone"))
		town.with(func() { delete(town.broken, "b") })
		within(t, 61*time.Second, "both are served", says("2 of 2 are hindered: a: route default: breaker open", "!cannot be served"))
		back.Store(true)
		within(t, 2*time.Minute, "all is well", says("!hindered", "!cannot be served"))
		if b.count() != 2 {
			t.Errorf("%d messages", b.count())
		}
	})
}

// OP-13: an outbox that is refused is named, and never opened; a relay that serves it ends at the next look. It is
// served as soon as it is not refused any more.
func TestFleetRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log sharedtest.Log
		town, b := newTown(t, "a", "b", "c"), newBus()
		town.with(func() { town.refused["b"] = "b belongs to a stranger" })
		f, stop := beginFleet(t, town, b, relay.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, relay.FleetOptions{Linger: time.Hour})
		defer stop()
		refused := func(name string) bool {
			h := f.Health(t.Context())
			return h.Ready && strings.Contains(h.String(), "1 of 3 cannot be served: "+name+": "+name+" belongs to a stranger")
		}
		town.stage("a", msg("a", ""))
		town.stage("b", msg("b", ""))
		within(t, 2*time.Second, "the other arrives", func() bool { return b.count() == 1 })
		patience.Pass(t, time.Minute)
		if n := town.counted("peek b"); n != 0 || !refused("b") {
			t.Errorf("%d peeks; %s", n, f.Health(t.Context()))
		}
		town.with(func() { town.refused = map[string]string{"a": "a belongs to a stranger"} })
		within(t, 2*time.Second, "it is served, and the relay of the other ends", func() bool {
			return b.count() == 2 && refused("a") && strings.Contains(f.Health(t.Context()).String(), "; 1 of at most")
		})
		town.stage("a", msg("a2", ""))
		patience.Pass(t, time.Minute)
		if b.count() != 2 {
			t.Errorf("%d messages", b.count())
		}
		town.with(func() { town.refused = map[string]string{} })
		within(t, 2*time.Second, "both are served", func() bool {
			return b.count() == 3 && !strings.Contains(f.Health(t.Context()).String(), "cannot be served")
		})
		town.with(func() { town.refused = map[string]string{"c": "c belongs to a stranger"} })
		within(t, 2*time.Second, "an outbox with nothing new is refused", func() bool { return refused("c") })
		town.with(func() { town.refused = map[string]string{} })
		within(t, 2*time.Second, "it is not refused any more", func() bool { return !refused("c") })
		if n := strings.Count(log.String(), "event=fleet.outbox_failed"); n != 3 {
			t.Errorf("told %d times:\n%s", n, &log)
		}
	})
}

// OP-13: the database is away, at the start and later. Health tells, and all goes on when it is back. An outbox that is
// gone is forgotten.
func TestFleetWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town, b := newTown(t, "a", "b"), newBus()
		outage := func(err error) {
			town.with(func() { town.broken["look"] = err })
		}
		outage(down())
		f, stop := beginFleet(t, town, b, relay.Options{}, relay.FleetOptions{})
		defer stop()
		town.stage("a", msg("a", ""))
		for _, what := range []string{"at the start", "later"} {
			within(t, 2*time.Second, what, func() bool {
				h := f.Health(t.Context())
				return h.Live && !h.Ready && strings.Contains(h.String(), "down")
			})
			before := b.count()
			outage(nil)
			within(t, 2*time.Second, what, func() bool { return b.count() == before+1 && f.Health(t.Context()).Ready })
			patience.Pass(t, 10*time.Second)
			outage(down())
			town.stage("a", msg(what, ""))
		}
		outage(nil)
		patience.Pass(t, 10*time.Second)
		town.mu.Lock()
		delete(town.stores, "b")
		town.mu.Unlock()
		within(t, 2*time.Second, "b is forgotten", func() bool { return strings.Contains(f.Health(t.Context()).String(), "1 outboxes") })
	})
}

// OP-13: an outbox that another process serves gets no relay, and is looked at every few seconds: that process may die.
func TestFleetBesideAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town, b := newTown(t, "a"), newBus()
		town.served["a"] = true
		_, stop := beginFleet(t, town, b, relay.Options{}, relay.FleetOptions{})
		defer stop()
		for i := range 40 {
			town.stage("a", msg(strconv.Itoa(i), ""))
			patience.Pass(t, 500*time.Millisecond)
		}
		if n := town.takes("peek"); n > 6 || b.count() > 0 || town.takes("store") > 0 {
			t.Errorf("%d peeks, %d messages", n, b.count())
		}
		town.set(town.served, "a", false)
		within(t, 6*time.Second, "the fleet takes over", func() bool { return b.count() == 40 })
	})
}

// OP-13: an outbox whose messages cannot go now does not turn in a circle. What is new goes at once, and what waits
// goes within a minute after the reason has ended.
func TestFleetWithAPausedRoute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town, b := newTown(t, "a"), newBus()
		f, stop := beginFleet(t, town, b, relay.Options{Routes: []relay.Route{{}, {Name: "other"}}}, relay.FleetOptions{Linger: time.Second})
		defer stop()
		if err := f.Pause("typo"); !errors.Is(err, waybill.ErrInvalid) {
			t.Error(err)
		}
		if err := f.Pause(waybill.DefaultRoute); err != nil {
			t.Fatal(err)
		}
		town.stage("a", msg("paused", ""))
		patience.Pass(t, 5*time.Minute)
		town.takes("peek")
		patience.Pass(t, 5*time.Minute)
		if n := town.takes("peek"); n > 8 || b.count() > 0 {
			t.Errorf("%d peeks in five minutes, %d messages", n, b.count())
		}
		town.stage("a", msg("of another route", "", waybill.Routes("other")))
		within(t, time.Second, "another route goes", func() bool { return b.count() == 1 })
		patience.Pass(t, 10*time.Second)
		if err := f.Resume(waybill.DefaultRoute); err != nil {
			t.Fatal(err)
		}
		within(t, 61*time.Second, "all go", func() bool { return b.count() == 2 })
	})
}

// OP-13, DB-09: a cold outbox is cleaned about once an hour, not all of them at once.
func TestFleetCleans(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		names := numbered(60)
		town, b := newTown(t, names...), newBus()
		for _, name := range names {
			town.stores[name] = retaining(t, waybill.Retention{Published: time.Minute})
		}
		_, stop := beginFleet(t, town, b, relay.Options{}, relay.FleetOptions{})
		defer stop()
		for _, name := range names {
			town.stage(name, msg(name, ""))
		}
		patience.Pass(t, 2*time.Minute)
		kept := func() (n int) {
			for _, name := range names {
				n += len(town.stores[name].Records())
			}
			return n
		}
		for minutes := 2; minutes < 60; minutes += 10 {
			if n := kept(); minutes < 30 && n < 10 {
				t.Errorf("after %d minutes only %d outboxes are not cleaned", minutes, n)
			}
			patience.Pass(t, 10*time.Minute)
		}
		if n := kept(); n > 0 || b.count() != len(names) {
			t.Errorf("%d records are left after an hour, %d messages", n, b.count())
		}
	})
}

// toClean is a town with an outbox that no Clean gets clean.
type toClean struct {
	*town
	name   string
	cleans atomic.Int64
}

func (c *toClean) Open(name string) (core.OutboxStore, error) {
	s, err := c.town.Open(name)
	if name != c.name {
		return s, err
	}
	return &uncleanable{s, &c.cleans}, err
}

type uncleanable struct {
	core.OutboxStore
	cleans *atomic.Int64
}

func (u *uncleanable) Clean(ctx context.Context, _ string, _ time.Duration) (core.Cleaned, error) {
	u.cleans.Add(1)
	batch := time.NewTimer(time.Second) // virtual time
	defer batch.Stop()
	select {
	case <-batch.C:
		return core.Cleaned{Leader: true, More: true}, nil
	case <-ctx.Done():
		return core.Cleaned{}, ctx.Err()
	}
}

// OP-13: an outbox with much to clean loses its place to the others, and goes on a minute later. It is none that cannot
// be served, and its messages come meanwhile.
func TestFleetCleansOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town, b := newTown(t, "a", "b"), newBus()
		c := &toClean{town: town, name: "a"}
		f, stop := beginFleet(t, c, b, relay.Options{Routes: []relay.Route{{RatePerSecond: 1}}}, relay.FleetOptions{Active: 1})
		defer stop()
		patience.BudgetOf(t).Time(100*time.Minute, "an outbox is cleaned once an hour")
		patience.BudgetOf(t).Calls(1000, "a relay always has work")
		town.stage("b", msgs(10_000, noKey)...) // they always wait for the place
		within(t, 62*time.Minute, "it is cleaned", func() bool { return c.cleans.Load() > 0 })
		for i := range 10 {
			town.stage("a", msg("a"+strconv.Itoa(i), ""))
			patience.Pass(t, time.Minute)
			if h := f.Health(t.Context()).String(); strings.Contains(h, "cannot be served") {
				t.Fatal(h)
			}
		}
		if n := c.cleans.Load(); n < 30 {
			t.Errorf("%d cleanings in ten minutes", n)
		}
		if n := town.left("a"); n > 1 {
			t.Errorf("%d messages wait", n)
		}
	})
}

// OP-13: wrong options are told together.
func TestFleetOptions(t *testing.T) {
	t.Parallel()
	_, err := relay.NewFleet(nil, newBus(), relay.Options{BatchSize: -1}, relay.FleetOptions{Active: -1, Linger: -1})
	for _, text := range []string{"outboxes: is nil", "BatchSize: -1", "Active: is -1", "Linger: is -1ns"} {
		if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), text) {
			t.Errorf("%q is missing in %v", text, err)
		}
	}
	f, err := relay.NewFleet(newTown(t), newBus(), relay.Options{}, relay.FleetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if h := f.Health(t.Context()); h.Ready || !h.Live {
		t.Error(h.String())
	}
}
