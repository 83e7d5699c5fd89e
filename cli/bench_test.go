package cli_test

import (
	"context"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
)

type benchJSON struct {
	Store, Transport string
	Messages         int
	Stage, Drain     struct {
		PerSecond float64 `json:"per_second"`
		Calls     struct{ Count int }
	}
	Alone struct{ Count int }
}

// OP-01: bench measures, labels the result, removes what it made, and leaves a store alone in which messages wait.
func TestBench(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	got := decode[benchJSON](t, s.run("bench", "--messages", "25", "--batch", "10", "--alone", "2", "--keys", "2", "--json").is(t, 0))
	if got.Store != "shop (sqlite)" || got.Transport != "none" || got.Messages != 25 || got.Stage.Calls.Count != 3 ||
		got.Drain.Calls.Count == 0 || got.Alone.Count != 2 || got.Stage.PerSecond <= 0 || got.Drain.PerSecond <= 0 {
		t.Errorf("%+v", got)
	}
	s.run("status").is(t, 0, "0 waiting")
	s.run("list").is(t, 0, "no record matches")
	s.stage(message("fine", "mine", waybill.Delay(time.Hour)))
	s.run("bench").is(t, 4, "the store has 1 record waiting: give --beside-waiting")
	s.run("bench", "--beside-waiting", "--messages", "5", "--alone", "0").is(t, 0, "store shop (sqlite), transport none", "5 messages of 256 bytes, 100 in a transaction, without keys", "stage: transactions")
	s.run("list").is(t, 0, "mine")
	s.run("bench", "--messages", "0", "--size", "-1").is(t, 2, "--messages: 0 is not", "--size: -1 is not")
	s.run("bench", "--transport", "nobody", "--beside-waiting").is(t, 2, "has no transport")
}

// OP-01: a bench that is interrupted removes what it staged.
func TestBenchInterrupted(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan answer)
	go func() { done <- commandIn(ctx, s.settings, "bench", "--messages", "1000000", "--batch", "10") }()
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
