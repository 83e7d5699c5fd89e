package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
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
// with a harness of one worker. No two workers must share one database: some checks look at all of it.
func RunSpread(t *testing.T, newHarness ...func(t *testing.T) Harness) {
	t.Helper()
	suitetest.RunSpread(t, &conformance, checksWith, newHarness)
}

// RunInBubble is Run with every check in a testing/synctest bubble of its own, in which waiting takes no time. The
// harness is made inside the bubble.
func RunInBubble(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	conformance.RunInBubble(t, checksWith(newHarness))
}

var conformance = suitetest.Suite{Name: "storetest", Timeout: Timeout, NotDeclared: ErrNotDeclared}

func checksWith(newHarness func(t *testing.T) Harness) []suitetest.Check {
	return suitetest.With(Checks(), newHarness, func(c Check) (string, func(context.Context, Harness) error) { return c.Name, c.Run })
}

// Benchmark measures staging in several batch sizes. Reading and settling are the engine's: measure them with it.
func Benchmark(b *testing.B, newHarness func(b *testing.B) Harness) {
	b.Helper()
	for _, n := range []int{1, 100, 500} {
		b.Run(fmt.Sprintf("stage/%d", n), func(b *testing.B) {
			k := newKit(b.Context(), newHarness(b))
			msgs := k.msgs(n, waybill.Key("key"), waybill.ID("")) // new ids each time
			bench(b, n, func() error { return k.tryStage(k.ctx, msgs...) })
		})
	}
}

// bench runs fn, which handles n messages, for as long as b wants.
func bench(b *testing.B, n int, fn func() error) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		if err := fn(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*float64(n)/b.Elapsed().Seconds(), "msg/s")
}
