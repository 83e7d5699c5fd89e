package outboxtest_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxtest"
	"github.com/waybill-go/waybill/store/memory"
)

// DB-17: the suite accepts the memory store, which does everything, in a bubble of testing/synctest.
func TestMemory(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]memory.Options{
		"deletes":         {},
		"keeps published": {Retention: waybill.Retention{Published: waybill.Forever}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outboxtest.RunInBubble(t, func(*testing.T) outboxtest.Harness { return &harness{newStore(opts)} })
		})
	}
}

// Checks of one store do not disturb each other, one after the other.
func TestMemoryShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newBroken(fault{}) // which is also a Meter
		for _, c := range outboxtest.Checks() {
			if err := c.Run(t.Context(), h); err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
	})
}

// Nor do they side by side, but for those that set the database back.
func TestMemorySideBySide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &frozen{harness{newStore(memory.Options{})}}
		var wg sync.WaitGroup
		for _, c := range outboxtest.Checks() {
			wg.Go(func() {
				if err := c.Run(t.Context(), h); err != nil && !errors.Is(err, outboxtest.ErrNotDeclared) {
					t.Errorf("%s: %v", c.Name, err)
				}
			})
		}
		wg.Wait()
	})
}

// The members use two stores on the same data.
func TestMemoryReopened(t *testing.T) {
	t.Parallel()
	outboxtest.RunInBubble(t, func(*testing.T) outboxtest.Harness { return &reopened{harness{newStore(memory.Options{})}} })
}

type reopened struct{ harness }

func (r *reopened) Reopen(context.Context) (core.OutboxStore, error) {
	second := newBroken(fault{})
	second.store = r.store
	return second, nil
}

// frozen is a harness that does not set the database back.
type frozen struct{ h harness }

func (f *frozen) Store() core.OutboxStore { return f.h.store }

func (f *frozen) Begin(ctx context.Context) (outboxtest.Tx, error) { return f.h.Begin(ctx) }

// The suite moves a clock that is the harness's own.
func TestMemoryWithClock(t *testing.T) {
	t.Parallel()
	outboxtest.Run(t, func(*testing.T) outboxtest.Harness {
		c := &clock{now: time.Unix(1e9, 0)}
		return &clocked{harness{newStore(memory.Options{Now: c.Now})}, c}
	})
}

type clocked struct {
	harness
	*clock
}

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Sleep(_ context.Context, d time.Duration) error {
	c.mu.Lock()
	c.now = c.now.Add(d)
	c.mu.Unlock()
	runtime.Gosched()
	return nil
}

func newStore(opts memory.Options) *full {
	opts.Source = "/test"
	s, err := memory.New(opts)
	if err != nil {
		panic(err)
	}
	return &full{Store: s, there: map[int64]bool{}}
}

// harness is the suite's harness around the memory store.
type harness struct{ store *full }

func (h *harness) Store() core.OutboxStore { return h.store }

func (h *harness) Begin(context.Context) (outboxtest.Tx, error) {
	return &tx{tx: h.store.Begin(), store: h.store}, nil
}

func (h *harness) Save(context.Context) (func(context.Context) error, error) {
	img := h.store.Snapshot()
	return func(context.Context) error {
		h.store.Restore(img)
		return nil
	}, nil
}

func (h *harness) Records(_ context.Context, route string) (out []outboxtest.Stored, err error) {
	for _, r := range h.store.States() {
		if r.Route == route {
			out = append(out, outboxtest.Stored{
				ID: r.ID, State: r.State, Attempts: r.Attempts, Crashes: r.Crashes,
				Reason: r.Reason, LastError: r.LastError,
			})
		}
	}
	return out, nil
}

type tx struct {
	tx    *memory.Tx
	store *full
	saved memory.Savepoint
	tells []core.Notice
}

func (t *tx) Stage(_ context.Context, rows ...core.StagedRow) error {
	_, err := t.tx.Stage(rows...)
	return err
}

func (t *tx) Commit(context.Context) error {
	if err := t.tx.Commit(); err != nil {
		return err
	}
	for _, c := range t.tells {
		if err := t.store.tell(c); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) Tell(_ context.Context, c core.Notice) error {
	t.tells = append(t.tells, c)
	return nil
}

func (t *tx) Rollback(context.Context) error { t.tx.Rollback(); return nil }

func (t *tx) Lock(_ context.Context, route, id string) error { return t.tx.Lock(route, id) }

func (t *tx) Redrive(_ context.Context, route, id string) error {
	return t.tx.Redrive(route, id)
}

func (t *tx) Savepoint(context.Context) error {
	t.saved = t.tx.Savepoint()
	return nil
}

func (t *tx) RollbackTo(context.Context) error { return t.tx.RollbackTo(t.saved) }
