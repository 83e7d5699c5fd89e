package postgres_test

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/store/postgres"
)

// Stage in the transaction that writes the business rows.
func ExampleOutbox_Stage() {
	type order struct{ ID string }
	placed := waybill.NewTopic("orders.placed", waybill.JSON[order]())

	place := func(ctx context.Context, pool *pgxpool.Pool, outbox *postgres.Outbox, o order) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, o.ID); err != nil {
				return err
			}
			_, err := outbox.Stage(ctx, tx, placed.Message(o, waybill.Key(o.ID)))
			return err
		})
	}
	_ = place
}

// Code that has only the context stages through the unit of work. The messages go to the server together with the
// COMMIT.
func ExampleOutbox_UnitOfWork() {
	type order struct{ ID string }
	placed := waybill.NewTopic("orders.placed", waybill.JSON[order]())

	announce := func(ctx context.Context, outbox *postgres.Outbox, o order) error {
		return outbox.UnitOfWork().Stage(ctx, placed.Message(o, waybill.Key(o.ID)))
	}
	place := func(ctx context.Context, outbox *postgres.Outbox, o order) error {
		return outbox.UnitOfWork().Do(ctx, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, o.ID); err != nil {
				return err
			}
			return announce(ctx, outbox, o)
		})
	}
	_ = place
}

// New gives the outbox and the inbox of a database. It does not connect.
func ExampleNew() {
	open := func(ctx context.Context, pool *pgxpool.Pool) (*postgres.Store, error) {
		store, err := postgres.New(pool, postgres.Options{Source: "/orders"})
		if err != nil {
			return nil, err
		}
		return store, store.Migrate(ctx) // when you deploy, as the owner of the schema
	}
	_ = open
}
