// Package patience says how long a test waits for an event. A fixed limit makes the speed of the machine part of the
// verdict: a test that needs one second on an idle machine needs twenty beside seven others. So a limit counts from the
// last progress, not from the beginning, and it is longer on a busy machine.
//
//	patience.Until(t, "the queue is empty", func() bool { return depth() == 0 })
//	patience.Moving(t, "all arrive", func() (int, bool) { n := count(); return n, n == 1000 })
//	ctx, moved := patience.Context(t.Context(), patience.Limit) // ends when moved was not called for that long
//
// # Guarantees
//
// A wait that succeeds never fails a test, however long it took. A wait without progress ends: at the latest after its
// limit times [Factor]. In a synctest bubble the limits are of virtual time. There a [Budget] says how much of it a
// test may take.
//
// # Concurrency
//
// All functions are safe for concurrent use.
//
// # Limits
//
// Do not wait for the absence of an event: send a marker behind it, and wait for the marker.
package patience

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Limit is how long a test waits without progress on an idle machine. Only a test that fails takes so long.
const Limit = 30 * time.Second

// look is the pause between looks at a condition.
const look = 5 * time.Millisecond

// TB is what a wait needs of a *testing.T.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Context() context.Context
}

// Variable is the environment variable that sets [Factor] instead of a measurement.
const Variable = "WAYBILL_TEST_PATIENCE"

// Factor says how many times as long as on an idle machine work takes here: at least 1, at most 20. It is measured
// once a process: the number of runnable threads, or their mean over the last minute, for each processor.
var Factor = sync.OnceValue(func() float64 {
	if f, err := strconv.ParseFloat(os.Getenv(Variable), 64); err == nil {
		return bounded(f)
	}
	text, _ := os.ReadFile("/proc/loadavg") // elsewhere than on Linux: 1
	return bounded(load(string(text)) / float64(runtime.NumCPU()))
})

func bounded(f float64) float64 { return min(max(f, 1), 20) }

// load reads the greater one of the mean of the last minute and the number of threads that run now. The format is that
// of proc_loadavg(5).
func load(text string) float64 {
	fields := strings.Fields(text)
	if len(fields) < 4 {
		return 0
	}
	mean, _ := strconv.ParseFloat(fields[0], 64)
	running, _, _ := strings.Cut(fields[3], "/")
	now, _ := strconv.ParseFloat(running, 64)
	return max(mean, now)
}

// For returns d times [Factor].
func For(d time.Duration) time.Duration { return time.Duration(float64(d) * Factor()) }

// Until polls ok until it returns true. It fails the test if that does not happen for [Limit] times [Factor].
func Until(tb TB, what string, ok func() bool) {
	tb.Helper()
	Moving(tb, what, func() (struct{}, bool) { return struct{}{}, ok() })
}

// Moving polls until done. The limit starts anew at each change of at, such as the number of messages that arrived. It
// fails the test if at does not change for [Limit] times [Factor].
func Moving[T comparable](tb TB, what string, state func() (at T, done bool)) {
	tb.Helper()
	limit := For(Limit)
	last, since := *new(T), time.Now()
	for {
		at, done := state()
		if done {
			return
		}
		if at != last {
			last, since = at, time.Now()
		}
		if time.Since(since) > limit {
			tb.Fatalf("no progress for %s, at %v: %s", limit, at, what)
		}
		select {
		case <-time.After(look):
		case <-tb.Context().Done():
			tb.Fatalf("%v: %s", context.Cause(tb.Context()), what)
		}
	}
}

// Context returns a context that ends when moved was not called for d times [Factor], or with ctx. Its cause is then
// [context.DeadlineExceeded]. It holds a timer until then.
func Context(ctx context.Context, d time.Duration) (_ context.Context, moved func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	d = For(d)
	timer := time.AfterFunc(d, func() { cancel(context.DeadlineExceeded) })
	context.AfterFunc(ctx, func() { timer.Stop() })
	return ctx, func() { timer.Reset(d) }
}
