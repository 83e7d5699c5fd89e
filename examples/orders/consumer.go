package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/store/postgres"
)

// runConsumer bills orders until ctx ends. Run as many of them as you like: they share the queue.
func runConsumer(ctx context.Context, cfg config) error {
	pool, err := cfg.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	marks, err := postgres.NewInbox(pool, postgres.InboxOptions{})
	if err != nil {
		return err
	}
	billing, err := inbox.New(marks, "billing", inbox.Options{})
	if err != nil {
		return err
	}
	bus, err := cfg.bus(ctx)
	if err != nil {
		return err
	}
	defer bus.Close(context.WithoutCancel(ctx)) //nolint:errcheck // stopping anyway
	c, err := consumer.New(bus, consumer.Options{Middleware: []waybill.Middleware{countDeliveries}})
	if err != nil {
		return err
	}
	if err := c.Handle(billingQueue, inbox.Handler(billing, OrderPlaced, bill)); err != nil {
		return err
	}
	return c.Run(ctx)
}

// bill is the effect: it writes in the transaction that also marks the message as handled.
func bill(ctx context.Context, tx pgx.Tx, o Order) error {
	if _, err := tx.Exec(ctx, `INSERT INTO bills (order_id, cents) VALUES ($1, $2)`, o.ID, o.Cents); err != nil {
		return fmt.Errorf("write the bill: %w", err)
	}
	return nil
}
