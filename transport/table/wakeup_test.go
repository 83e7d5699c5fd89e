package table_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/transport/table"
)

// TQ-04 DB-10: a record that is staged while no Receive waits, just before the next one, is found at once, with and
// without a key, and so is a retry. A look for one kind does not hide the other from the store's wake-up. The poll
// would come in an hour.
func TestNothingWaitsForThePoll(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Calls(1000, "180 attempts, five milliseconds after each other")
			s := newStore(t)
			foundAtOnce(t, backend{s, s.stage})
		})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		b, _ := postgresBackend(t, 8)
		foundAtOnce(t, b)
	})
}

// TQ-04: while a receiver asks which timers are due, it does not wait for the store's wake-up: that would come at once,
// for the same timer, again and again, until wake-ups are slowed down. A message that is staged right after that is
// found at once.
func TestDueIsNoVainWakeup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		due := time.Now().Add(3 * time.Second)
		s.call = func(what string) error {
			if what == "due" && time.Now().Equal(due) {
				time.Sleep(20 * time.Millisecond) // a round trip
			}
			return nil
		}
		r := subscribe(t, newTable(t, s, table.Options{PollMin: time.Hour, PollMax: time.Hour}))
		stage(t, s, message("timer", waybill.Delay(time.Until(due))))
		var staged time.Time
		time.AfterFunc(time.Until(due)+25*time.Millisecond, func() {
			staged = time.Now()
			stage(t, s, message("next"))
		})
		for _, id := range []string{"timer", "next"} {
			d := receive(t, r, 1)[0]
			if d.Envelope.ID != id {
				t.Errorf("%s came, want %s", d.Envelope.ID, id)
			}
			settled(t, r, core.AckDone(d))
		}
		if took := time.Since(staged); took > time.Millisecond {
			t.Errorf("found after %s", took)
		}
	})
}

func foundAtOnce(t *testing.T, b backend) {
	t.Helper()
	tr := newTable(t, b.store, table.Options{PollMax: time.Hour, Lease: 4 * time.Hour})
	r, err := tr.Subscribe(t.Context(), core.Subscription{Queue: "q", Concurrency: 10, Prefetch: 50})
	if err != nil {
		t.Fatal(err)
	}
	ctx, moved := patience.Context(t.Context(), patience.Limit)
	for n := range 60 {
		m := waybill.RawMessage("a", "text/plain", nil)
		m.Routes = []string{"q"}
		if n%2 == 0 {
			m.Key = "k"
		}
		if err := b.stage(ctx, m); err != nil {
			t.Fatal(err)
		}
		for attempt := 1; attempt <= 3; attempt++ {
			moved()
			ds, err := r.Receive(ctx, 1)
			if err != nil {
				t.Fatalf("message %d, key %q, attempt %d: %v", n, m.Key, attempt, err)
			}
			ack := core.AckDone(ds[0])
			if attempt < 3 {
				ack = core.AckRetry(ds[0], 5*time.Millisecond, errors.New("not yet"))
			}
			if err := r.Settle(ctx, []core.Ack{ack}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
