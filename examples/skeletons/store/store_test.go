package store_test

import (
	"context"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxtest"
	"github.com/waybill-go/waybill/core/storetest"
	"github.com/waybill-go/waybill/examples/skeletons/store"
)

func newStore(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.New("/skeleton")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TE-07: the store with which docs/adapters.md begins passes both suites.
func TestOutbox(t *testing.T) {
	t.Parallel()
	outboxtest.RunInBubble(t, func(t *testing.T) outboxtest.Harness {
		t.Helper()
		return outboxHarness{newStore(t)}
	})
}

func TestStage(t *testing.T) {
	t.Parallel()
	storetest.RunInBubble(t, func(t *testing.T) storetest.Harness {
		t.Helper()
		return stageHarness{newStore(t)}
	})
}

// outboxHarness stages rows that the suite makes.
type outboxHarness struct{ s *store.Store }

func (h outboxHarness) Store() core.OutboxStore { return h.s }

func (h outboxHarness) SingleWriter() bool { return true }

func (h outboxHarness) Begin(ctx context.Context) (outboxtest.Tx, error) {
	tx, err := h.s.Begin(ctx)
	return rowTx{tx}, err
}

type rowTx struct{ *store.Tx }

func (tx rowTx) Stage(_ context.Context, rows ...core.StagedRow) error { return tx.StageRows(rows...) }

func (tx rowTx) Commit(context.Context) error { return tx.Tx.Commit() }

func (tx rowTx) Rollback(context.Context) error {
	tx.Tx.Rollback()
	return nil
}

// stageHarness stages messages through the stager.
type stageHarness struct{ s *store.Store }

func (h stageHarness) Store() core.OutboxStore { return h.s }

func (h stageHarness) Begin(ctx context.Context) (storetest.Tx, error) {
	tx, err := h.s.Begin(ctx)
	return messageTx{h.s, tx}, err
}

type messageTx struct {
	s  *store.Store
	tx *store.Tx
}

func (m messageTx) Stage(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error) {
	return m.s.Stage(ctx, m.tx, msgs...)
}

func (m messageTx) Commit(context.Context) error { return m.tx.Commit() }

func (m messageTx) Rollback(context.Context) error {
	m.tx.Rollback()
	return nil
}
