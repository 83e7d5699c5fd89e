package sqlite

import (
	"context"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core/storetest"
)

// suiteHarness is the harness of core/storetest.
type suiteHarness struct{ *harness }

func (h suiteHarness) Begin(ctx context.Context) (storetest.Tx, error) {
	tx, err := h.begin(ctx)
	return suiteTx{tx}, err
}

func (h suiteHarness) Corrupt(ctx context.Context, route string, seq int64) error {
	_, err := h.store.DB().ExecContext(ctx, `UPDATE waybill_outbox SET attrs = '{"a":' WHERE route = ? AND seq = ?`, route, seq)
	return err
}

// WithRetention makes the harness a storetest.Retainer.
func (h suiteHarness) WithRetention(_ context.Context, r waybill.Retention) (storetest.Harness, error) {
	s, err := New(h.store.DB(), Options{Source: "/test", Retention: r})
	return suiteHarness{&harness{store: s}}, err
}

type suiteTx struct{ *testTx }

func (x suiteTx) Stage(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error) {
	return x.store.Stage(ctx, x.Tx, msgs...)
}

func (x suiteTx) Cancel(ctx context.Context, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error) {
	return x.store.Cancel(ctx, x.Tx, keys...)
}

// workers is how many checks of the suite run side by side, each worker on a database of its own.
const workers = 4

// ST-01 ST-02 ST-05 ST-07 ST-08 ST-09 ST-10 ST-11 ST-15 DB-01 DB-09 DB-10 DB-12 DB-16 DB-18 OR-05 OP-18 TE-11
func TestStore(t *testing.T) {
	t.Parallel()
	var harnesses []func(*testing.T) storetest.Harness
	for range workers {
		s := open(t, Options{})
		harnesses = append(harnesses, func(*testing.T) storetest.Harness { return suiteHarness{&harness{store: s}} })
	}
	storetest.RunSpread(t, harnesses...)
}
