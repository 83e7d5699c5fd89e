package mistakes_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/recurring"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/store/sqlite"
)

// Four runners make up for 200 missed ticks at the same time, and are stopped in the middle of it again and again: each
// tick is staged once.
func TestRecurring(t *testing.T) { // OP-14
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		pool := openPool(t, testenv.Postgres(t).DSN)
		migrate(t, pool)
		store, err := postgres.New(pool, postgres.Options{Source: "/e2e"})
		if err != nil {
			t.Fatal(err)
		}
		stageTicks(t, store, store, func(topic string) int {
			return number(t, pool, fmt.Sprintf("SELECT count(*) FROM waybill.waybill_outbox WHERE topic = '%s'", topic))
		}, func() int { return number(t, pool, "SELECT count(*) FROM waybill.waybill_outbox") })
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "waybill.db"), sqlite.Options{Source: "/e2e", AutoMigrate: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close(context.WithoutCancel(t.Context())) })
		count := func(where string) (n int) {
			if err := store.DB().QueryRowContext(t.Context(), "SELECT count(*) FROM waybill_outbox"+where).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		stageTicks(t, store, store, func(topic string) int { return count(fmt.Sprintf(" WHERE topic = '%s'", topic)) }, func() int { return count("") })
	})
}

func stageTicks[Tx any](t *testing.T, in core.Inbox[Tx], out waybill.Stager[Tx], of func(topic string) int, all func() int) {
	t.Helper()
	const missed = 200
	from := time.Now().UTC().Truncate(time.Minute).Add(-missed * time.Minute)
	topic := func(tick time.Time) string { return tick.UTC().Format("ticks.0102.1504") }
	job := recurring.Job{
		Name: "minutes", Schedule: "* * * * *", Late: 5 * time.Hour, All: true, From: from,
		Message: func(tick time.Time) (waybill.Message, error) {
			return waybill.RawMessage(topic(tick), "text/plain", nil), nil
		},
	}
	var group sync.WaitGroup
	end, cancel := context.WithCancel(t.Context())
	defer group.Wait()
	defer cancel()
	for n := range 4 {
		group.Go(func() {
			for run := 0; end.Err() == nil; run++ {
				r, err := recurring.New(in, out, []recurring.Job{job}, recurring.Options{Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Error(err)
					return
				}
				ctx, stop := context.WithTimeout(end, time.Duration(20+10*n+50*run)*time.Millisecond)
				if err := r.Run(ctx); err != nil {
					t.Error(err)
				}
				stop()
			}
		})
	}
	patience.Moving(t, "all ticks are staged", func() (int, bool) { n := all(); return n, n > missed })
	for i := range missed + 1 {
		if n := of(topic(from.Add(time.Duration(i) * time.Minute))); n != 1 {
			t.Errorf("tick %d was staged %d times", i, n)
		}
	}
	n := all()
	if ticks := int(time.Since(from)/time.Minute) + 1; n > ticks {
		t.Errorf("%d messages for %d ticks", n, ticks)
	}
}
