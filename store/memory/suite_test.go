package memory_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/inboxtest"
	"github.com/waybill-go/waybill/core/storetest"
	"github.com/waybill-go/waybill/store/memory"
)

// harness runs the conformance suite on a store in memory.
type harness struct{ s *memory.Store }

func (h harness) Store() core.OutboxStore { return h.s }

func (h harness) Begin(context.Context) (storetest.Tx, error) { return suiteTx{h.s, h.s.Begin()}, nil }

func (h harness) Records(_ context.Context, route string) ([]storetest.StoredRecord, error) {
	var out []storetest.StoredRecord
	for _, r := range h.s.Records() {
		if r.Route == route {
			out = append(out, storetest.StoredRecord{
				ID: r.Envelope.ID, State: r.State, Attempts: r.Attempts, Crashes: r.Crashes, Reason: r.Reason, LastError: r.LastError,
			})
		}
	}
	return out, nil
}

func (h harness) Corrupt(_ context.Context, _ string, seq int64) error { return h.s.Corrupt(seq) }

type suiteTx struct {
	s  *memory.Store
	tx *memory.Tx
}

func (t suiteTx) Stage(ctx context.Context, msgs ...core.Message) ([]core.Staged, error) {
	return t.s.Stage(ctx, t.tx, msgs...)
}

func (t suiteTx) Cancel(ctx context.Context, keys ...core.CancelKey) ([]core.CancelStatus, error) {
	return t.s.Cancel(ctx, t.tx, keys...)
}

func (t suiteTx) Commit(context.Context) error { return t.tx.Commit() }

func (t suiteTx) Rollback(context.Context) error {
	t.tx.Rollback()
	return nil
}

func TestConformance(t *testing.T) { // TE-01 DB-17
	storetest.RunInBubble(t, func(t *testing.T) storetest.Harness {
		t.Helper()
		return harness{newStore(t)}
	})
}

// boxHarness runs the inbox suite. An effect is a value of its own name.
type boxHarness struct {
	s      *memory.Store
	serial *atomic.Int64
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

func TestInboxConformance(t *testing.T) { // TE-01 IN-01 IN-02 IN-03 IN-04 IN-07
	inboxtest.RunInBubble(t, func(t *testing.T) inboxtest.Harness[*memory.Tx] {
		t.Helper()
		return boxHarness{newStore(t), new(atomic.Int64)}
	})
}

func BenchmarkStore(b *testing.B) {
	storetest.Benchmark(b, func(b *testing.B) storetest.Harness {
		b.Helper()
		return harness{newStore(b)}
	})
}

func BenchmarkInbox(b *testing.B) {
	inboxtest.Benchmark(b, func(b *testing.B) inboxtest.Harness[*memory.Tx] {
		b.Helper()
		return boxHarness{newStore(b), new(atomic.Int64)}
	})
}
