package checker_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/internal/checker"
	"github.com/waybill-go/waybill/internal/historytest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
)

var (
	seedFlag, timesFlag, traceFlag = historytest.Seed, historytest.Times, historytest.Whole
	countFlag                      = flag.Int("histories", number("WAYBILL_CHECKER_HISTORIES", histories(500, nightlyHistories)), "random histories in memory")
)

func TestMain(m *testing.M) {
	if os.Getenv(childRelay) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		ctx, cancel := context.WithTimeout(ctx, patience.For(2*time.Minute)) // even if the test hangs
		defer cancel()
		if err := runChildRelay(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "relay process:", err)
		}
		return
	}
	debug.SetGCPercent(400) // histories are short-lived garbage
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background), goleak.IgnoreAnyFunction(testenv.IdleMongoDB))
}

// histories returns how many histories there are in the gate, or at night.
func histories(gate, night int) int {
	if tier.IsNightly() {
		return night
	}
	return gate
}

// number returns the value of an environment variable.
func number(name string, def int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return def
}

// P1 P2 P3 P4 P5 P7 OR-02 OR-03 OR-04 OR-05 OR-08 DB-23 DB-24 TE-03: random histories of producers, relays, a broker,
// consumers and operators, all of which fail before and after every step, in virtual time. Relays join, leave, stand
// still, lose their connection, and are killed while they release partitions.
func TestHistories(t *testing.T) {
	t.Parallel()
	n, first := *countFlag, uint64(time.Now().UnixNano())
	if *seedFlag != 0 {
		n = *timesFlag
	}
	var next, done, staged, arrived atomic.Int64
	begin, late := time.Now(), historytest.Deadline(t)
	t.Cleanup(func() {
		took := time.Since(begin)
		t.Logf("%d histories of %d, %d messages, %d arrivals in %s: %.0f a second", done.Load(), n, staged.Load(), arrived.Load(), took.Round(time.Millisecond),
			float64(done.Load())/took.Seconds())
	})
	for i := range 4 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			for !t.Failed() {
				k := next.Add(1)
				if k > int64(n) || k > 100 && late() {
					return
				}
				seed := first + uint64(k)
				if *seedFlag != 0 {
					seed = *seedFlag
				}
				problems, l := history(t, seed, nil)
				s, a := l.Size()
				staged.Add(int64(s))
				arrived.Add(int64(a))
				done.Add(1)
				if len(problems) > 0 {
					t.Errorf("history %d: %s", k, report(seed, problems, l))
				}
			}
		})
	}
}

// report lists the problems of a history, the way to see it again, and the events of the messages concerned.
func report(seed uint64, problems []string, l *checker.Ledger) string {
	text := strings.Join(problems, "\n")
	words := append(historytest.Message.FindAllString(text, 4), "kill", "stop", "start", "calm", "no answer")
	if *traceFlag {
		words = nil
	}
	return fmt.Sprintf("seed %d; replay with: go test ./internal/checker -run 'TestHistories' -seed %d -whole\n%s\n%s", seed, seed, text, l.Trace(words...))
}
