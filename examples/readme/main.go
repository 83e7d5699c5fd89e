// Command readme is the README's example: producer, relay and consumer in one process. It needs a Postgres and a
// RabbitMQ; examples/orders is the same story complete, with its own servers.
package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// Order is a business object.
type Order struct{ ID, Customer string }

// OrderPlaced is declared once and used on both sides.
var OrderPlaced = waybill.NewTopic("orders.placed", waybill.JSON[Order]())

// place writes the order and its message in one transaction.
func place(ctx context.Context, store *postgres.Store, o Order) error {
	unit := store.UnitOfWork() // always the same one
	return unit.Do(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (id, customer) VALUES ($1, $2)`, o.ID, o.Customer); err != nil {
			return err
		}
		return unit.Stage(ctx, OrderPlaced.Message(o, waybill.Key(o.Customer)))
	})
}

// bill is the handler: its writes and the inbox mark are one transaction.
func bill(ctx context.Context, tx pgx.Tx, o Order) error {
	_, err := tx.Exec(ctx, `INSERT INTO bills (order_id) VALUES ($1)`, o.ID)
	return err
}

// run works until ctx ends, and finishes what it has begun.
func run(ctx context.Context) error {
	pool, err1 := pgxpool.New(ctx, os.Getenv("POSTGRES_URL")) // …?pool_max_conns=20: more than handlers
	bus, err2 := rabbitmq.Dial(ctx, os.Getenv("RABBITMQ_URL"), rabbitmq.Options{Exchange: "shop"})
	store, err3 := postgres.New(pool, postgres.Options{Source: "/orders", AutoMigrate: true})
	billing, err4 := inbox.New(store, "billing", inbox.Options{})
	r, err5 := relay.New(store, bus, relay.Options{})
	c, err6 := consumer.New(bus, consumer.Options{})
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		return err
	}
	orders := waybill.Subscription{Queue: "billing.orders", Bindings: []string{"orders.*"}}
	if err := c.Handle(orders, inbox.Handler(billing, OrderPlaced, bill)); err != nil {
		return err
	}
	if err := place(ctx, store, Order{ID: waybill.NewID(), Customer: "c-1"}); err != nil {
		return err
	}
	return errors.Join(waybill.Run(ctx, c, r), bus.Close(context.WithoutCancel(ctx)))
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx); err != nil {
		slog.Error("stopped", "error", err)
	}
}
