package cli_test

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
)

type benchJSON struct {
	Store, Transport string
	Messages         int
	Stage, Drain     phaseJSON
	Paced            phaseJSON
	Staged, Again    int
}

type phaseJSON struct {
	PerSecond float64 `json:"per_second"`
	CPU       int64   `json:"cpu_ns_per_1000"`
	Took      struct{ Count int }
}

// OP-01: bench measures, labels the result, removes what it made, and leaves a store alone in which messages wait.
func TestBench(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	got := decode[benchJSON](t, s.run("bench", "--messages", "25", "--per-transaction", "10", "--paced", "2", "--keys", "2", "--json").is(t, 0))
	if got.Store != "shop (sqlite)" || got.Transport != "none" || got.Messages != 25 || got.Stage.Took.Count != 3 ||
		got.Drain.Took.Count == 0 || got.Paced.Took.Count != 2 || got.Stage.PerSecond <= 0 || got.Drain.PerSecond <= 0 {
		t.Errorf("%+v", got)
	}
	s.run("status").is(t, 0, "0 waiting")
	s.run("list").is(t, 0, "no record matches")
	s.stage(message("fine", "mine", waybill.Delay(time.Hour)))
	s.run("bench").is(t, 4, "the store has 1 record waiting: give --beside-waiting")
	s.run("bench", "--beside-waiting", "--messages", "5", "--paced", "0").is(t, 0, "store shop (sqlite), transport none", "5 messages of 256 bytes, 100 in a transaction, without keys", "stage: transactions")
	s.run("list").is(t, 0, "mine")
	s.run("bench", "--messages", "0", "--size", "-1").is(t, 2, "--messages: 0 is not", "--size: -1 is not")
	s.run("bench", "--transport", "nobody", "--beside-waiting").is(t, 2, "has no transport")
}

// OP-09: without a configuration bench measures in this process, and counts every delivery of several relays and
// consumers exactly.
func TestBenchEmbedded(t *testing.T) {
	t.Parallel()
	args := []string{"bench", "--json", "--messages", "300", "--paced", "20", "--rate", "1000", "--keys", "7", "--relays", "2", "--batch-size", "50", "--window", "2"}
	for _, more := range [][]string{nil, {"--consumers", "1"}, {"--consumers", "2", "--concurrency", "3", "--prefetch", "5", "--inbox"}, {"--consumers", "1", "--in-order"}} {
		got := decode[benchJSON](t, command(t, nil, append(args, more...)...).is(t, 0))
		if got.Staged != 320 || got.Again != 0 || got.Drain.PerSecond <= 0 || got.Paced.PerSecond <= 0 || got.Paced.Took.Count != 20 {
			t.Errorf("%v: %+v", more, got)
		}
		if got.Store != "embedded (sqlite)" || got.Transport != map[bool]string{true: "none", false: "embedded (memory)"}[more == nil] {
			t.Errorf("%v: %+v", more, got)
		}
		if runtime.GOOS == "linux" && (got.Stage.CPU <= 0 || got.Drain.CPU <= 0 || got.Paced.CPU <= 0) {
			t.Errorf("%v: no CPU time: %+v", more, got)
		}
	}
}

// OP-09: all that is wrong with the flags is one error.
func TestBenchFlags(t *testing.T) {
	t.Parallel()
	a := command(t, nil, "bench", "--messages", "0", "--relays", "17", "--window", "0", "--batch-size", "0", "--consumers", "-1", "--rate", "0").is(t, 2,
		"waybill: arguments: 6 problems", "--messages: 0 is not", "--relays: 17 is not between 1 and 16", "--window: 0 is not", "--batch-size: 0 is not",
		"--consumers: -1 is not", "--rate: 0 is not")
	if n := strings.Count(a.err, "problems"); n != 1 {
		t.Errorf("%d errors: %s", n, a.err)
	}
	command(t, nil, "bench", "--inbox", "--in-order", "--prefetch", "3").is(t, 2, "3 problems", "--inbox: there are no consumers", "--in-order: there are no consumers",
		"--prefetch: 3 is less than --concurrency, 10")
}

// OP-01: a bench that is interrupted removes what it staged.
func TestBenchInterrupted(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan answer)
	go func() {
		done <- commandIn(ctx, s.settings, "bench", "--messages", "1000000", "--per-transaction", "10")
	}()
	for n := 0; n == 0; {
		if err := s.store.DB().QueryRowContext(t.Context(), "SELECT count(*) FROM waybill_outbox").Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if a := <-done; a.code != 1 {
		t.Error(a)
	}
	s.run("list").is(t, 0, "no record matches")
}
