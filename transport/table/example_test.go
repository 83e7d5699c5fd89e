package table_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/store/memory"
	postgres "github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/table"
)

type Mail struct{ To, Text string }

// The route is the queue.
var SendMail = waybill.NewTopic("mails.send", waybill.JSON[Mail]()).On("mails")

// remind stages a mail for tomorrow, in the caller's transaction.
func remind(ctx context.Context, box *postgres.Outbox, tx pgx.Tx, m Mail) error {
	_, err := box.Stage(ctx, tx, SendMail.Message(m, waybill.Key(m.To), waybill.Delay(24*time.Hour)))
	return err
}

// work handles mails until ctx ends: no broker, no relay.
func work(ctx context.Context, pool *pgxpool.Pool, marks *inbox.Inbox[pgx.Tx]) error {
	box, err := postgres.NewOutbox(pool, postgres.Options{Source: "/shop"})
	if err != nil {
		return err
	}
	queue, err := table.New(box, table.Options{})
	if err != nil {
		return err
	}
	c, err := consumer.New(queue, consumer.Options{})
	if err != nil {
		return err
	}
	err = c.Handle(waybill.Subscription{Queue: "mails", Concurrency: 4},
		inbox.Handler(marks, SendMail, func(ctx context.Context, tx pgx.Tx, m Mail) error {
			_, err := tx.Exec(ctx, "INSERT INTO sent_mails (recipient, body) VALUES ($1, $2)", m.To, m.Text)
			return err
		}))
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// tuned gives two queues options of their own.
func tuned(store core.OutboxStore) (*table.Transport, error) {
	return table.New(store, table.Options{
		Queues: map[string]table.QueueOptions{
			"reports": {Lease: 10 * time.Minute},        // few and slow
			"clicks":  {Order: waybill.OrderBestEffort}, // many, and no order
		},
	})
}

func Example() {
	_, _, _ = remind, work, tuned // shown in docs/table-queue.md
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	store, err := memory.New(memory.Options{Source: "/shop"})
	if err != nil {
		fmt.Println(err)
		return
	}
	tx := store.Begin()
	if _, err := store.Stage(ctx, tx, SendMail.Message(Mail{"ann@example.org", "hello"})); err != nil {
		fmt.Println(err)
		return
	}
	if err := tx.Commit(); err != nil {
		fmt.Println(err)
		return
	}
	queue, err := table.New(store, table.Options{Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := consumer.New(queue, consumer.Options{Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = c.Handle(waybill.Subscription{Queue: "mails"}, waybill.HandlerFor(SendMail, func(_ context.Context, m Mail) error {
		fmt.Println("to", m.To)
		cancel()
		return nil
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.Run(ctx), len(store.Records()))
	// Output:
	// to ann@example.org
	// <nil> 0
}

// New makes the outbox table itself the queue: no broker, no relay. A route is a queue.
func ExampleNew() {
	ctx := context.Background()
	store, err := memory.New(memory.Options{Source: "/shop"})
	if err != nil {
		panic(err)
	}
	tx := store.Begin()
	if _, err := store.Stage(ctx, tx, SendMail.Message(Mail{To: "ann@example.com"})); err != nil {
		panic(err)
	}
	if err := tx.Commit(); err != nil {
		panic(err)
	}
	queue, err := table.New(store, table.Options{})
	if err != nil {
		panic(err)
	}
	c, err := consumer.New(queue, consumer.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	err = c.Handle(waybill.Subscription{Queue: "mails"}, waybill.HandlerFor(SendMail, func(_ context.Context, m Mail) error {
		fmt.Println("mail to", m.To)
		return nil
	}))
	if err != nil {
		panic(err)
	}
	if _, err := c.RunOnce(ctx); err != nil {
		panic(err)
	}
	// Output: mail to ann@example.com
}
