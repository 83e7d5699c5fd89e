package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/postgres"
)

// arrivals is a broker: the messages that arrived, and their order for each key.
type arrivals struct {
	mu    sync.Mutex
	seen  map[string]bool
	last  map[string]int64 // by key: the greatest sequence that arrived
	wrong []string
	n     atomic.Int64
}

func newArrivals() *arrivals {
	return &arrivals{seen: map[string]bool{}, last: map[string]int64{}}
}

func (a *arrivals) take(items []*dispatch.Item) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, item := range items {
		r := &item.Record
		if a.seen[r.ID] {
			continue
		}
		a.seen[r.ID] = true
		if key := r.Envelope.Key; key != "" {
			if r.Seq < a.last[key] {
				a.wrong = append(a.wrong, fmt.Sprintf("%d of key %s came after %d", r.Seq, key, a.last[key]))
			}
			a.last[key] = max(a.last[key], r.Seq)
		}
		a.n.Add(1)
	}
}

// TestMembersShareAndTakeOver: three members share an outbox, one of them is killed in the middle of its work,
// another one joins. Everything arrives, in the order of its key.
func TestMembersShareAndTakeOver(t *testing.T) { // DB-24 OR-02 RL-10
	t.Parallel()
	const n, keys = 12_000, 50
	s, pool := newOutbox(t, postgres.Options{})
	fill(t, s, func() (pgx.Tx, error) { return pool.Begin(t.Context()) }, "r", n, keys)
	broker := newArrivals()
	ctx, stop := context.WithCancel(t.Context())
	var members sync.WaitGroup
	defer members.Wait()
	defer stop()
	join := func(killed <-chan struct{}) {
		p := newPump(s, dispatch.Options{Routes: []dispatch.Route{{Name: "r", Partitions: 12}}, Lease: patience.For(2 * time.Second)})
		members.Go(func() {
			p.run(ctx, killed, 50, 4, func(items []*dispatch.Item) {
				select {
				case <-time.After(2 * time.Millisecond):
					// A publish takes its time, so that no relay has everything at once.
				case <-ctx.Done():
				}
				broker.take(items)
			})
		})
	}
	kill := make(chan struct{})
	join(nil)
	join(nil)
	join(kill)
	patience.Moving(t, "a third arrives", func() (int64, bool) { at := broker.n.Load(); return at, at >= n/3 })
	close(kill)
	join(nil)
	patience.Moving(t, "all arrive", func() (int64, bool) { at := broker.n.Load(); return at, at == n })
	broker.mu.Lock()
	defer broker.mu.Unlock()
	if len(broker.wrong) > 0 {
		t.Errorf("%d out of order: %s", len(broker.wrong), broker.wrong[0])
	}
}
