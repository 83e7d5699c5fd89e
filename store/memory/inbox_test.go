package memory_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/inboxtest"
	"github.com/waybill-go/waybill/store/memory"
)

// boxHarness runs the inbox suite. An effect is a value of its own name.
type boxHarness struct {
	s      *memory.Store
	serial *atomic.Int64
	ahead  *atomic.Int64 // how far the store's clock is before that of the bubble
}

func (h boxHarness) Inbox() core.Inbox[*memory.Tx] { return h.s }

func (h boxHarness) Effect(_ context.Context, tx *memory.Tx, name string) error {
	tx.Put(fmt.Sprintf("%s#%d", name, h.serial.Add(1)), "")
	return nil
}

func (h boxHarness) Effects(_ context.Context, name string) (int, error) {
	n := 0
	for i := range h.serial.Load() {
		if _, ok := h.s.Get(fmt.Sprintf("%s#%d", name, i+1)); ok {
			n++
		}
	}
	return n, nil
}

func (h boxHarness) Begin(context.Context) (*memory.Tx, func(context.Context, bool) error, error) {
	tx := h.s.Begin()
	return tx, func(_ context.Context, commit bool) error {
		if commit {
			return tx.Commit()
		}
		tx.Rollback()
		return nil
	}, nil
}

func (h boxHarness) Break(_ context.Context, tx *memory.Tx) error {
	err := errors.New("constraint violated")
	tx.Fail(err)
	return err
}

func (h boxHarness) Disposable() bool { return true }

// Sleep makes the harness an inboxtest.Clock.
func (h boxHarness) Sleep(_ context.Context, d time.Duration) error {
	h.ahead.Add(int64(d))
	return nil
}

func newBoxHarness(tb testing.TB) boxHarness {
	tb.Helper()
	ahead := new(atomic.Int64)
	s, err := memory.New(memory.Options{
		Source: "/test", Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
	})
	if err != nil {
		tb.Fatal(err)
	}
	return boxHarness{s, new(atomic.Int64), ahead}
}

func TestInboxConformance(t *testing.T) { // TE-01 IN-01 IN-02 IN-03 IN-04 IN-07
	inboxtest.RunInBubble(t, func(t *testing.T) inboxtest.Harness[*memory.Tx] {
		t.Helper()
		return newBoxHarness(t)
	})
}

func TestMarksConformance(t *testing.T) { // IN-07
	t.Parallel()
	inboxtest.RunMarksInBubble(t, func(*testing.T) core.MarkStore { return &memory.Marks{} })
}

func BenchmarkInbox(b *testing.B) {
	inboxtest.Benchmark(b, func(b *testing.B) inboxtest.Harness[*memory.Tx] {
		b.Helper()
		return newBoxHarness(b)
	})
}
