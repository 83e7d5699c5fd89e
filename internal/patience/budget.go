package patience

// In a synctest bubble a stall of five minutes costs nothing, and a loop without a pause costs little. So neither shows
// unless the test looks at the clock and counts. A budget does. The helpers that begin a relay, a consumer or a table
// queue in a bubble ask for it.

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// VirtualTime is how much virtual time a test may take unless it says otherwise.
	VirtualTime = 10 * time.Second
	// CallsASecond is how many calls one [Budget.Counter] may count in a second of virtual time, unless the test
	// says otherwise.
	CallsASecond = 200

	endless = 10 // so many times the budget: a loop without a pause
)

// BudgetTB is what a budget needs of a *testing.T.
type BudgetTB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
	Cleanup(fn func())
}

// Budget limits the virtual time that a test takes, and the calls that its engine makes in a second of it. Get it from
// [BudgetOf]. Its methods are safe for concurrent use.
type Budget struct {
	tb BudgetTB

	mu       sync.Mutex
	time     time.Duration
	passed   time.Duration // on purpose
	calls    int
	counters []*counter
	bubbled  bool // it was used in a bubble
}

var budgets sync.Map // by the test

// BudgetOf returns the budget of a test, the same one for each call. At its end the test fails if its bubble has lasted
// for longer than [Budget.Time] beside what it let [Pass], or if there were more calls in a second than [Budget.Calls].
// The time counts from the start of the bubble. Outside of a bubble nothing is limited. Call it with the test of the
// bubble, the one that synctest.Test made.
func BudgetOf(tb BudgetTB) *Budget {
	tb.Helper()
	b := &Budget{tb: tb, time: VirtualTime, calls: CallsASecond}
	if old, ok := budgets.LoadOrStore(tb, b); ok {
		b = old.(*Budget)
		b.use()
		return b
	}
	b.use()
	tb.Cleanup(func() {
		tb.Helper()
		budgets.Delete(tb)
		if !tb.Failed() {
			b.check()
		}
	})
	return b
}

// use notes whether it is called in a bubble.
func (b *Budget) use() {
	if inBubble() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.bubbled = true
	}
}

// Time lets the test take up to most of virtual time instead of [VirtualTime]. The reason names the need.
func (b *Budget) Time(most time.Duration, why string) {
	b.tb.Helper()
	b.reason(why)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.time = most
}

// Pass lets virtual time pass on purpose, such as the hour after which the store cleans: it sleeps for d, and the test
// may take d more.
func Pass(tb BudgetTB, d time.Duration) {
	tb.Helper()
	b := BudgetOf(tb)
	b.mu.Lock()
	b.passed += d
	b.mu.Unlock()
	<-time.After(d)
}

// Calls lets each counter count up to most calls in a second instead of [CallsASecond]. The reason names the need.
func (b *Budget) Calls(most int, why string) {
	b.tb.Helper()
	b.reason(why)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = most
}

func (b *Budget) reason(why string) {
	b.tb.Helper()
	if why == "" {
		b.tb.Fatalf("a budget of its own needs a reason")
	}
}

// Counter returns a function that counts a call of the given name. Each engine of a test has a counter of its own. No
// virtual time passes in a loop without a pause, so the test would not end: a call far beyond the budget takes a
// second.
func (b *Budget) Counter() func(call string) {
	c := &counter{}
	b.mu.Lock()
	b.counters = append(b.counters, c)
	b.mu.Unlock()
	return func(call string) {
		b.use()
		if c.add(call)%(endless*b.mostCalls()) == 0 && inBubble() {
			<-time.After(time.Second)
		}
	}
}

func (b *Budget) mostCalls() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls
}

func (b *Budget) check() {
	b.tb.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !inBubble() {
		if b.bubbled {
			b.tb.Errorf("a bubble has the budget of a test outside of it: call BudgetOf with the test that synctest.Test made")
		}
		return
	}
	if took := time.Since(bubbleBegin) - b.passed; took > b.time {
		b.tb.Errorf("the test took %s of virtual time, more than %s: find what waits, or give a reason to Budget.Time", took, b.time)
	}
	for _, c := range b.counters {
		if most := c.most(); most.sum > b.calls {
			b.tb.Errorf("%d calls in the second that begins at %s of virtual time, more than %d (%s): find the loop, "+
				"or give a reason to Budget.Calls", most.sum, most.begin.Sub(bubbleBegin), b.calls, most)
		}
	}
}

// bubbleBegin is the time at which every bubble begins (testing/synctest says so).
var bubbleBegin = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)

func inBubble() bool { return time.Since(bubbleBegin) < 20*365*24*time.Hour }

// counter counts calls by the second. It keeps the second with the most.
type counter struct {
	mu         sync.Mutex
	now, worst second
}

// second is what was called in a second.
type second struct {
	begin time.Time
	sum   int
	names map[string]int
}

func (s second) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(s.names)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, s.names[name]))
	}
	return strings.Join(parts, ", ")
}

// add counts a call, and returns how many there were in this second.
func (c *counter) add(call string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := time.Now().Truncate(time.Second); !at.Equal(c.now.begin) {
		if c.now.sum > c.worst.sum {
			c.worst = c.now
		}
		c.now = second{begin: at, names: map[string]int{}}
	}
	c.now.sum++
	c.now.names[call]++
	return c.now.sum
}

func (c *counter) most() second {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now.sum > c.worst.sum {
		return c.now
	}
	return c.worst
}
