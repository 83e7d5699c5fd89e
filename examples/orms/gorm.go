package orms

import (
	"context"
	"database/sql"
	"fmt"

	"gorm.io/gorm"

	"github.com/waybill-go/waybill"
)

// GORMTx returns the transaction below tx, with prepared statements (gorm.Config.PrepareStmt) or without. It is an
// error if tx is not in a transaction.
func GORMTx(tx *gorm.DB) (*sql.Tx, error) {
	pool := tx.Statement.ConnPool
	if prepared, ok := pool.(*gorm.PreparedStmtTX); ok {
		pool = prepared.Tx
	}
	if t, ok := pool.(*sql.Tx); ok {
		return t, nil
	}
	return nil, fmt.Errorf("gorm: %T is not a transaction: stage inside db.Transaction", pool)
}

// PlaceWithGORM writes o and stages its message. The caller's check may still refuse it.
func PlaceWithGORM(ctx context.Context, db *gorm.DB, outbox Outbox, o Order, check func() error) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&o).Error; err != nil {
			return err
		}
		t, err := GORMTx(tx)
		if err != nil {
			return err
		}
		if _, err := outbox.Stage(ctx, t, OrderPlaced.Message(o, waybill.Key(o.ID))); err != nil {
			return err
		}
		return check()
	})
}
