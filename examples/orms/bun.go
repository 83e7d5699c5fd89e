package orms

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill"
)

// PlaceWithBun writes o and stages its message. The caller's check may still refuse it.
func PlaceWithBun(ctx context.Context, db *bun.DB, outbox Outbox, o Order, check func() error) error {
	return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := tx.NewInsert().Model(&o).Exec(ctx); err != nil {
			return err
		}
		if _, err := outbox.Stage(ctx, tx.Tx, OrderPlaced.Message(o, waybill.Key(o.ID))); err != nil {
			return err
		}
		return check()
	})
}
