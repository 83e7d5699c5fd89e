// Package suitetest runs the checks of a conformance suite as subtests, and tells what it left out and why.
package suitetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/internal/patience"
)

// Suite is a conformance suite.
type Suite struct {
	// Name is that of its package.
	Name string
	// Timeout bounds one check on an idle machine.
	Timeout time.Duration
	// NotDeclared is the error of a check that does not apply.
	NotDeclared error
}

// Check is one check of a suite.
type Check struct {
	Name string
	// Prepare makes the harness and returns the check on it. The suite's timeout begins after that.
	Prepare func(t *testing.T) func(ctx context.Context) error
}

// With returns checks, each on a harness that newHarness makes for it. of returns the name of a check, and its
// function.
func With[C, H any](
	checks []C, newHarness func(t *testing.T) H, of func(c C) (name string, run func(ctx context.Context, h H) error),
) []Check {
	list := make([]Check, len(checks))
	for i := range checks {
		name, run := of(checks[i])
		list[i] = Check{Name: name, Prepare: func(t *testing.T) func(context.Context) error {
			t.Helper()
			h := newHarness(t)
			return func(ctx context.Context) error { return run(ctx, h) }
		}}
	}
	return list
}

// Run makes every check a subtest.
func (s *Suite) Run(t *testing.T, checks []Check) {
	t.Helper()
	sum := s.tally(t, len(checks))
	for _, c := range checks {
		t.Run(c.Name, func(t *testing.T) { s.one(t, &c, sum) })
	}
}

// RunInBubble is Run with every check in a testing/synctest bubble of its own.
func (s *Suite) RunInBubble(t *testing.T, checks []Check) {
	t.Helper()
	sum := s.tally(t, len(checks))
	for _, c := range checks {
		t.Run(c.Name, func(t *testing.T) {
			// A goroutine that an adapter leaves blocked for ever keeps its bubble from ending.
			if err := Guard(func() { synctest.Test(t, func(t *testing.T) { s.one(t, &c, sum) }) }); err != nil && !t.Failed() {
				t.Errorf("check %s leaves something behind: %v", c.Name, err)
			}
		})
	}
}

// RunSpread is Run with a worker for each newHarness, side by side. checksWith returns the checks with one. Every check
// runs once.
func RunSpread[H any](t *testing.T, s *Suite, checksWith func(newHarness func(t *testing.T) H) []Check, newHarness []func(t *testing.T) H) {
	t.Helper()
	workers := make([][]Check, len(newHarness))
	for i, fn := range newHarness {
		workers[i] = checksWith(fn)
	}
	if len(workers) == 0 {
		t.Fatal("no harness")
	}
	sum := s.tally(t, len(workers[0]))
	next := make(chan int, len(workers[0]))
	for i := range workers[0] {
		next <- i
	}
	close(next)
	var running sync.WaitGroup
	for _, checks := range workers {
		running.Go(func() {
			for i := range next {
				t.Run(checks[i].Name, func(t *testing.T) { s.one(t, &checks[i], sum) })
			}
		})
	}
	running.Wait()
}

func (s *Suite) one(t *testing.T, c *Check, sum *tally) {
	t.Helper()
	var run func(ctx context.Context) error
	if err := Guard(func() { run = c.Prepare(t) }); err != nil {
		t.Fatalf("check %s: the harness: %v", c.Name, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience.For(s.Timeout))
	defer cancel()
	switch err := run(ctx); {
	case errors.Is(err, s.NotDeclared):
		sum.skip(c.Name, err)
		t.Skip(err)
	case err != nil:
		sum.ran()
		t.Error(err)
	default:
		sum.ran()
	}
}

// tally counts the checks that ran, and keeps those that were skipped.
type tally struct {
	mu      sync.Mutex
	run     int
	skipped []string // why: name, name
	names   map[string][]string
}

// tally makes a tally, which t logs at its end.
func (s *Suite) tally(t *testing.T, n int) *tally {
	t.Helper()
	sum := &tally{names: map[string][]string{}}
	t.Cleanup(func() { t.Log(sum.text(s.Name, n)) })
	return sum
}

func (y *tally) ran() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.run++
}

func (y *tally) skip(name string, err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	why := err.Error()
	if y.names[why] == nil {
		y.skipped = append(y.skipped, why)
	}
	y.names[why] = append(y.names[why], name)
}

// text lists the checks that ran, of n, and those that did not.
func (y *tally) text(name string, n int) string {
	y.mu.Lock()
	defer y.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d of %d checks ran", name, y.run, n)
	for _, why := range y.skipped {
		fmt.Fprintf(&b, "\n  skipped, %s: %s", why, strings.Join(y.names[why], ", "))
	}
	return b.String()
}
