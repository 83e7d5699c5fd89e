package table_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/table"
)

// TQ-04 DB-10: what is staged while nobody waits, just before the next Receive, is found at once, with and without a
// key, and so is a retry. A look for one kind does not hide the other from the store's wake-up. The poll would come in
// an hour.
func TestNothingWaitsForThePoll(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Calls(1000, "180 attempts, five milliseconds after each other")
			s := newStore(t)
			foundAtOnce(t, backend{s, s.stage}, 60)
		})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		n := 16
		if tier.IsNightly() {
			n = 60
		}
		b, _ := postgresBackend(t, 8)
		foundAtOnce(t, b, n)
	})
}

func foundAtOnce(t *testing.T, b backend, messages int) {
	t.Helper()
	tr := newTable(t, b.store, table.Options{PollMax: time.Hour, Lease: 4 * time.Hour})
	r, err := tr.Subscribe(t.Context(), core.Subscription{Queue: "q", Concurrency: 10, Prefetch: 50})
	if err != nil {
		t.Fatal(err)
	}
	ctx, moved := patience.Context(t.Context(), patience.Limit)
	for n := range messages {
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
