// Command readme is the README's example: producer, relay and consumer in one process. It needs a Postgres and a
// RabbitMQ; examples/orders is the same story complete, with its own servers.
package main

import (
	"context"
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

// tables are those of the application. Waybill makes its own.
const tables = `
CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, customer text NOT NULL);
CREATE TABLE IF NOT EXISTS bills (order_id text PRIMARY KEY);`

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

// newConsumer returns the consumer that bills orders.
func newConsumer(store *postgres.Store, bus *rabbitmq.Transport) (*consumer.Consumer, error) {
	billing, err := inbox.New(store, "billing", inbox.Options{})
	if err != nil {
		return nil, err
	}
	c, err := consumer.New(bus, consumer.Options{})
	if err != nil {
		return nil, err
	}
	orders := waybill.Subscription{Queue: "billing.orders", Bindings: []string{"orders.*"}}
	return c, c.Handle(orders, inbox.Handler(billing, OrderPlaced, bill))
}

// run works until ctx ends, and finishes what it has begun.
func run(ctx context.Context, pool *pgxpool.Pool, bus *rabbitmq.Transport) error {
	store, err := postgres.New(pool, postgres.Options{Source: "/orders", AutoMigrate: true})
	if err != nil {
		return err
	}
	r, err := relay.New(store, bus, relay.Options{})
	if err != nil {
		return err
	}
	c, err := newConsumer(store, bus)
	if err != nil {
		return err
	}
	if _, err := c.RunOnce(ctx); err != nil { // makes the queue, so that the first message has one
		return err
	}
	if err := place(ctx, store, Order{ID: waybill.NewID(), Customer: "c-1"}); err != nil {
		return err
	}
	return waybill.Run(ctx, c, r)
}

// connect opens the database and the broker, and runs.
func connect(ctx context.Context) error {
	cfg, err := pgxpool.ParseConfig(os.Getenv("POSTGRES_URL"))
	if err != nil {
		return err
	}
	cfg.MaxConns = 20 // ten handlers and the relay's three, with room for place
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, tables); err != nil {
		return err
	}
	bus, err := rabbitmq.Dial(ctx, os.Getenv("RABBITMQ_URL"), rabbitmq.Options{Exchange: "shop"})
	if err != nil {
		return err
	}
	defer bus.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the process ends anyway
	return run(ctx, pool, bus)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := connect(ctx); err != nil {
		slog.Error("stopped", "error", err)
	}
}
