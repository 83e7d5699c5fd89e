package outboxtest

import (
	"context"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core/internal/suitetest"
)

// Timeout bounds one check in Run.
const Timeout = 2 * time.Minute

// Run makes every check a subtest with a new harness; a harness can be shared, since every check works on routes of its
// own. Checks of undeclared features are skipped, and told of in
// the log.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	conformance.Run(t, checksWith(newHarness))
}

// RunSpread is Run with a worker for each newHarness, side by side, since checks mostly wait. Every check runs once,
// with a harness of one worker. No two workers must share one database: some checks set it back.
func RunSpread(t *testing.T, newHarness ...func(t *testing.T) Harness) {
	t.Helper()
	workers := make([][]suitetest.Check, len(newHarness))
	for i, fn := range newHarness {
		workers[i] = checksWith(fn)
	}
	conformance.RunSpread(t, workers)
}

// RunInBubble is Run with every check in a testing/synctest bubble of its own, in which waiting takes no time. The
// harness is made inside the bubble.
func RunInBubble(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	conformance.RunInBubble(t, checksWith(newHarness))
}

var conformance = suitetest.Suite{Name: "outboxtest", Timeout: Timeout, NotDeclared: ErrNotDeclared}

func checksWith(newHarness func(t *testing.T) Harness) []suitetest.Check {
	var list []suitetest.Check
	for _, c := range Checks() {
		list = append(list, suitetest.Check{Name: c.Name, Prepare: func(t *testing.T) func(context.Context) error {
			t.Helper()
			h := newHarness(t)
			return func(ctx context.Context) error { return c.Run(ctx, h) }
		}})
	}
	return list
}
