package table_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transport/table"
)

// TQ-04 DB-10: what is staged while nobody waits, just before the next Receive, is found at once, with and without a
// key, and so is a retry. A look for one kind does not hide the other from the store's wake-up. The poll would come in
// an hour.
func TestNothingWaitsForThePoll(t *testing.T) {
	t.Parallel()
	for name, backend := range map[string]func(t *testing.T) backend{
		"memory": func(t *testing.T) backend {
			t.Helper()
			s := newStore(t)
			return backend{s, s.stage}
		},
		"postgres": func(t *testing.T) backend {
			t.Helper()
			b, _ := postgresBackend(t, 8)
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := backend(t)
			tr, err := table.New(b.store, table.Options{Logger: quiet, PollMax: time.Hour, Lease: 4 * time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tr.Close(context.WithoutCancel(t.Context())) }()
			r, err := tr.Subscribe(t.Context(), core.Subscription{Queue: "q", Concurrency: 10, Prefetch: 50})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
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
		})
	}
}
