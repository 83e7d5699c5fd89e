package patience

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// budgeted is a test that notes its failures and its cleanup.
type budgeted struct {
	failed  string
	cleanup []func()
}

func (f *budgeted) Helper()                           {}
func (f *budgeted) Errorf(format string, args ...any) { f.failed += fmt.Sprintf(format, args...) }
func (f *budgeted) Fatalf(format string, args ...any) { f.Errorf(format, args...) }
func (f *budgeted) Failed() bool                      { return f.failed != "" }
func (f *budgeted) Cleanup(fn func())                 { f.cleanup = append(f.cleanup, fn) }

// spend runs fn in a bubble as a test with a budget, and returns why the test failed.
func spend(t *testing.T, fn func(b *Budget)) (failed string) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		f := &budgeted{}
		fn(BudgetOf(f))
		for _, end := range f.cleanup {
			end()
		}
		failed = f.failed
	})
	return failed
}

// calls counts n calls in each of some seconds.
func calls(b *Budget, seconds, n int) {
	count := b.Counter()
	for range seconds {
		for i := range n {
			count([]string{"read", "due"}[i%2])
		}
		time.Sleep(time.Second)
	}
}

func TestBudget(t *testing.T) {
	for _, c := range []struct {
		name string
		fn   func(b *Budget)
		says string // empty: the test passes
	}{
		{"in time", func(*Budget) { time.Sleep(VirtualTime) }, ""},
		{"late", func(*Budget) { time.Sleep(VirtualTime + 1) }, "took 10.000000001s of virtual time, more than 10s"},
		{"in its own time", func(b *Budget) { b.Time(time.Hour, "waits"); time.Sleep(time.Hour) }, ""},
		{"late for its own time", func(b *Budget) { b.Time(time.Hour, "waits"); time.Sleep(time.Hour + 1) }, "more than 1h0m0s"},
		{"on purpose", func(b *Budget) { Pass(b.tb, time.Hour); time.Sleep(VirtualTime) }, ""},
		{"late beside what is on purpose", func(b *Budget) { Pass(b.tb, time.Hour); time.Sleep(VirtualTime + 1) }, "took 10.000000001s"},
		{"without a reason", func(b *Budget) { b.Time(time.Hour, "") }, "needs a reason"},
		{"few calls", func(b *Budget) { calls(b, 3, CallsASecond) }, ""},
		{"two engines", func(b *Budget) { many(b.Counter(), 150); many(b.Counter(), 150) }, ""},
		{"many calls", func(b *Budget) { calls(b, 3, 10); calls(b, 1, 201); calls(b, 3, 20) }, "201 calls in the second that begins at 3s of virtual time, more than 200 (due 100, read 101)"},
		{"many calls at the end", func(b *Budget) { count := b.Counter(); calls(b, 1, 5); many(count, 201) }, "201 calls in the second that begins at 1s"},
		{"many calls for a reason", func(b *Budget) { b.Calls(201, "load"); calls(b, 1, 201) }, ""},
		{"without a pause", func(b *Budget) { endlessly(b, 5*time.Second) }, "2000 calls in the second that begins at 0s"},
		{"more than it says", func(b *Budget) { b.Calls(201, "load"); calls(b, 1, 202) }, "more than 201"},
	} {
		if got := spend(t, c.fn); (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q, want %q", c.name, got, c.says)
		}
	}
	outside := &budgeted{}
	count := BudgetOf(outside).Counter()
	synctest.Test(t, func(*testing.T) { count("read") })
	if outside.cleanup[0](); !strings.Contains(outside.failed, "a test outside of it") {
		t.Errorf("a bubble with the budget of its outer test: %q", outside.failed)
	}
	f := &budgeted{}
	if b := BudgetOf(f); b != BudgetOf(f) {
		t.Error("a test has two budgets")
	}
	if f.cleanup[0](); f.failed != "" || len(f.cleanup) != 1 {
		t.Errorf("outside of a bubble: %q, %d checks", f.failed, len(f.cleanup))
	}
}

// endlessly calls without a pause until d has passed.
func endlessly(b *Budget, d time.Duration) {
	count, begun := b.Counter(), time.Now()
	for time.Since(begun) < d {
		count("read")
	}
}

func many(count func(string), n int) {
	for range n {
		count("read")
	}
}
