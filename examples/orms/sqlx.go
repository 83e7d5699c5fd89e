package orms

import (
	"context"

	"github.com/jmoiron/sqlx"

	"github.com/waybill-go/waybill"
)

// PlaceWithSQLX writes o and stages its message. The caller's check may still refuse it.
func PlaceWithSQLX(ctx context.Context, db *sqlx.DB, outbox Outbox, o Order, check func() error) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	if _, err := tx.NamedExecContext(ctx, "INSERT INTO orders (id, total) VALUES (:id, :total)", o); err != nil {
		return err
	}
	if _, err := outbox.Stage(ctx, tx.Tx, OrderPlaced.Message(o, waybill.Key(o.ID))); err != nil {
		return err
	}
	if err := check(); err != nil {
		return err
	}
	return tx.Commit()
}
