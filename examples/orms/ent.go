package orms

import (
	"context"
	"database/sql"
	"fmt"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"entgo.io/ent/dialect/sql/sqlgraph"
	"entgo.io/ent/schema/field"

	"github.com/waybill-go/waybill"
)

// EntDriver makes ent work in a transaction that you began yourself. A generated ent.Tx does not show the *sql.Tx below
// it, so begin that one, and give the generated client a driver over it:
//
//	client := ent.NewClient(ent.Driver(orms.EntDriver(tx)))
//
// Commit and roll back tx, not the client.
func EntDriver(tx *sql.Tx) dialect.Driver {
	return entDriver{entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})}
}

type entDriver struct{ *entsql.Driver }

// Tx is what ent calls to write several rows at once. They join the transaction that is there.
func (d entDriver) Tx(context.Context) (dialect.Tx, error) { return dialect.NopTx(d), nil }

// Close does nothing: the transaction is the caller's.
func (entDriver) Close() error { return nil }

// EntTx returns the transaction below one that ent's SQL driver began, for programs that use the driver without a
// generated client.
func EntTx(tx dialect.Tx) (*sql.Tx, error) {
	if t, ok := tx.(*entsql.Tx); ok {
		if below, ok := t.ExecQuerier.(*sql.Tx); ok {
			return below, nil
		}
	}
	return nil, fmt.Errorf("ent: %T has no *sql.Tx below it: begin the transaction yourself and use EntDriver", tx)
}

// PlaceWithEnt writes o and stages its message. The caller's check may still refuse it.
func PlaceWithEnt(ctx context.Context, db *sql.DB, outbox Outbox, o Order, check func() error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	if err := createOrder(ctx, EntDriver(tx), o); err != nil {
		return err
	}
	if _, err := outbox.Stage(ctx, tx, OrderPlaced.Message(o, waybill.Key(o.ID))); err != nil {
		return err
	}
	if err := check(); err != nil {
		return err
	}
	return tx.Commit()
}

// PlaceWithEntDriver does the same in a transaction that ent's driver began.
func PlaceWithEntDriver(ctx context.Context, driver *entsql.Driver, outbox Outbox, o Order, check func() error) error {
	tx, err := driver.Tx(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	query, args := entsql.Dialect(dialect.Postgres).Insert("orders").Columns("id", "total").Values(o.ID, o.Total).Query()
	if err := tx.Exec(ctx, query, args, nil); err != nil {
		return err
	}
	below, err := EntTx(tx)
	if err != nil {
		return err
	}
	if _, err := outbox.Stage(ctx, below, OrderPlaced.Message(o, waybill.Key(o.ID))); err != nil {
		return err
	}
	if err := check(); err != nil {
		return err
	}
	return tx.Commit()
}

// createOrder is what a generated client.Order.Create().SetID(o.ID).SetTotal(o.Total).Exec(ctx) comes down to.
func createOrder(ctx context.Context, driver dialect.Driver, o Order) error {
	spec := sqlgraph.NewCreateSpec("orders", sqlgraph.NewFieldSpec("id", field.TypeString))
	spec.ID.Value = o.ID
	spec.SetField("total", field.TypeInt64, o.Total)
	return sqlgraph.CreateNode(ctx, driver, spec)
}
