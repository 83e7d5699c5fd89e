package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres"
)

// shop is an aggregate.
type shop struct{ core.Recorder }

// ST-03 ST-14: the unit of work and recorders on real transactions: all or nothing, whatever fails.
func TestUnitOfWork(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	exec(t, pool, "CREATE TABLE shops (id int PRIMARY KEY)")
	unit, err := core.NewUnitOfWork(o, func(ctx context.Context, fn func(tx pgx.Tx) error) error { return pgx.BeginFunc(ctx, pool, fn) })
	if err != nil {
		t.Fatal(err)
	}
	var s shop
	s.Record(message(core.ID("recorded")))
	no := errors.New("no")
	for name, tc := range map[string]struct {
		fn   func(ctx context.Context) error
		want error
	}{
		"the function fails": {func(context.Context) error { return no }, no},
		"a bad message":      {func(ctx context.Context) error { return unit.Stage(ctx, message(core.Replace(""))) }, core.ErrInvalid},
		"all is well":        {func(context.Context) error { return nil }, nil},
	} {
		err := unit.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO shops SELECT count(*) FROM shops"); err != nil {
				return err
			}
			if err := errors.Join(unit.Stage(ctx, message()), unit.StageRecorded(ctx, &s)); err != nil {
				return err
			}
			return tc.fn(ctx)
		})
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
	shops, msgs := queryInt(t, pool, "SELECT count(*) FROM shops"), queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox")
	if shops != 1 || msgs != 2 || len(s.Recorded()) != 0 {
		t.Errorf("%d shops, %d messages, %d events still recorded; want 1, 2, 0", shops, msgs, len(s.Recorded()))
	}
}
