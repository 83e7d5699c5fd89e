// Command readme holds the README's example, so that it compiles. It needs a Postgres and a RabbitMQ; examples/orders
// is the same story complete, with its own servers.
package main

import (
	"context"
	"errors"
	"log/slog"
	"os"

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
func place(ctx context.Context, outbox *postgres.Outbox, o Order) error {
	unit := outbox.UnitOfWork()
	return unit.Do(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (id, customer) VALUES ($1, $2)`, o.ID, o.Customer); err != nil {
			return err
		}
		return unit.Stage(ctx, OrderPlaced.Message(o, waybill.Key(o.Customer)))
	})
}

// runRelay moves messages to the broker, in a process of its own or beside the producer.
func runRelay(ctx context.Context, outbox *postgres.Outbox, bus *rabbitmq.Transport) error {
	r, err := relay.New(outbox, bus, relay.Options{})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// runConsumer gives each message exactly one effect: the handler's writes and the inbox mark are one transaction.
func runConsumer(ctx context.Context, bus *rabbitmq.Transport, outbox *postgres.Outbox, billing *inbox.Inbox[pgx.Tx]) error {
	c, err := consumer.New(bus, consumer.Options{Clock: outbox.Clock()})
	if err != nil {
		return err
	}
	err = c.Handle(waybill.Subscription{Queue: "billing.orders", Bindings: []string{"orders.*"}},
		inbox.Handler(billing, OrderPlaced, func(ctx context.Context, tx pgx.Tx, o Order) error {
			_, err := tx.Exec(ctx, `INSERT INTO bills (order_id) VALUES ($1)`, o.ID)
			return err
		}))
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

func main() {
	if err := run(context.Background(), os.Getenv("POSTGRES_URL"), os.Getenv("RABBITMQ_URL")); err != nil {
		slog.Error("stopped", "error", err)
		os.Exit(1)
	}
}

// run wires the three together in one process.
func run(ctx context.Context, postgresURL, rabbitmqURL string) error {
	pool, err := pgxpool.New(ctx, postgresURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	outbox, err := postgres.NewOutbox(pool, postgres.Options{Source: "/orders"})
	if err != nil {
		return err
	}
	marks, err := postgres.NewInbox(pool, postgres.InboxOptions{})
	if err != nil {
		return err
	}
	if err := errors.Join(outbox.Migrate(ctx), marks.Migrate(ctx)); err != nil {
		return err
	}
	billing, err := inbox.New(marks, "billing", inbox.Options{})
	if err != nil {
		return err
	}
	bus, err := rabbitmq.Dial(ctx, rabbitmqURL, rabbitmq.Options{Exchange: "shop", Lazy: true})
	if err != nil {
		return err
	}
	defer bus.Close(context.WithoutCancel(ctx)) //nolint:errcheck // ending anyway
	go func() {
		if err := runRelay(ctx, outbox, bus); err != nil {
			slog.Error("relay ended", "error", err)
		}
	}()
	if err := place(ctx, outbox, Order{ID: waybill.NewID(), Customer: "c-1"}); err != nil {
		return err
	}
	return runConsumer(ctx, bus, outbox, billing)
}
