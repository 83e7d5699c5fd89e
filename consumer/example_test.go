package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/store/memory"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

type Order struct {
	ID    string
	Total int
}

var (
	OrderPlaced    = waybill.NewTopic("orders.placed", waybill.JSON[Order]())
	OrderCancelled = waybill.NewTopic("orders.cancelled", waybill.JSON[Order]())
)

// Two topics on one queue, each with its typed handler and an effect that happens once.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	bus, err := memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "billing.orders", Bindings: []string{"orders.*"}}}})
	if err != nil {
		panic(err)
	}
	store, err := memory.New(memory.Options{Source: "/billing"})
	if err != nil {
		panic(err)
	}
	billing, err := inbox.New(store, "billing", inbox.Options{})
	if err != nil {
		panic(err)
	}
	c, err := consumer.New(bus, consumer.Options{Logger: slog.New(slog.DiscardHandler), Concurrency: 1})
	if err != nil {
		panic(err)
	}
	err = c.Handle(waybill.Subscription{Queue: "billing.orders", Bindings: []string{"orders.*"}},
		inbox.Handler(billing, OrderPlaced, func(_ context.Context, tx *memory.Tx, o Order) error {
			tx.Put("invoice/"+o.ID, strconv.Itoa(o.Total))
			fmt.Println("invoice for", o.ID)
			return nil
		}),
		inbox.Handler(billing, OrderCancelled, func(_ context.Context, tx *memory.Tx, o Order) error {
			tx.Put("invoice/"+o.ID, "void")
			fmt.Println("void", o.ID)
			cancel() // the example ends here
			return nil
		}))
	if err != nil {
		panic(err)
	}

	placed := OrderPlaced.Message(Order{ID: "A-1", Total: 30}, waybill.ID("m-1")).Envelope
	cancelled := OrderCancelled.Message(Order{ID: "A-1"}, waybill.ID("m-2")).Envelope
	bus.Publish(ctx, []waybill.Envelope{placed, placed, cancelled}) // the broker delivers the first twice

	if err := c.Run(ctx); err != nil { // until ctx ends: map SIGTERM to it with signal.NotifyContext
		panic(err)
	}
	fmt.Println(store.Get("invoice/A-1"))
	// Output:
	// invoice for A-1
	// void A-1
	// void true
}

// A handler's error decides about the message.
func Example_errors() {
	charge := func(ctx context.Context, o Order) error {
		switch {
		case o.Total < 0:
			// park it: no retry can help
			return waybill.Reject(fmt.Errorf("order %s has a negative total", o.ID))
		case o.Total == 0:
			return waybill.RetryAfter(fmt.Errorf("order %s has no total yet", o.ID), 30*time.Second)
		case ctx.Err() != nil:
			return waybill.Outage(ctx.Err()) // what it needs is down: release it, pause, probe
		case o.Total > 1000:
			// retried by the subscription's policy
			return fmt.Errorf("order %s is too large for one charge", o.ID)
		}
		return nil
	}
	for _, total := range []int{-1, 0, 2000, 5} {
		err := charge(context.Background(), Order{ID: "A-1", Total: total})
		fmt.Println(waybill.ClassOf(err), err)
	}
	// Output:
	// permanent order A-1 has a negative total
	// rejected order A-1 has no total yet
	// unknown order A-1 is too large for one charge
	// unknown <nil>
}

// A middleware that logs how each handler ended, and a time limit for the handlers of a queue.
func Example_middleware() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: timeless}))
	logged := func(next waybill.HandleFunc) waybill.HandleFunc {
		return func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			begin := time.Now()
			status, err := next(ctx, d)
			logger.InfoContext(ctx, "handled", "topic", d.Envelope.Topic, "id", d.Envelope.ID, "attempt", d.Attempt,
				"status", status, "error", err, "took", time.Since(begin))
			return status, err
		}
	}
	bus, err := memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "mails", Bindings: []string{"orders.*"}}}})
	if err != nil {
		panic(err)
	}
	c, err := consumer.New(bus, consumer.Options{
		Middleware: []waybill.Middleware{logged}, // around the handlers of all queues
		Logger:     slog.New(slog.DiscardHandler), Concurrency: 1,
	})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	placed := waybill.HandlerFor(OrderPlaced, func(ctx context.Context, _ Order) error {
		<-ctx.Done() // the mail server does not answer
		return ctx.Err()
	})
	placed.Handle = consumer.Timeout(10 * time.Millisecond)(placed.Handle) // around one handler
	err = c.Handle(waybill.Subscription{
		Queue: "mails", Bindings: []string{"orders.*"}, Retry: waybill.RetryDelays(),
		Timeout: time.Minute, // of all handlers of this queue
	}, placed, waybill.HandlerFor(OrderCancelled, func(context.Context, Order) error {
		cancel() // the example ends here
		return nil
	}))
	if err != nil {
		panic(err)
	}
	bus.Publish(ctx, []waybill.Envelope{
		OrderPlaced.Message(Order{ID: "A-1"}, waybill.ID("m-1")).Envelope, OrderCancelled.Message(Order{ID: "A-1"}, waybill.ID("m-2")).Envelope,
	})
	if err := c.Run(ctx); err != nil {
		panic(err)
	}
	// Output:
	// level=INFO msg=handled topic=orders.placed id=m-1 attempt=1 status=processed error="waybill/consumer: timeout: the handler took longer than 10ms: context deadline exceeded"
	// level=INFO msg=handled topic=orders.cancelled id=m-2 attempt=1 status=processed error=<nil>
}

// timeless leaves out of a log what differs from run to run.
func timeless(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == "took" {
		return slog.Attr{}
	}
	return a
}

// A retry policy that sees the error.
func ExampleNew() {
	bus, err := memtransport.New(memtransport.Options{})
	if err != nil {
		panic(err)
	}
	c, err := consumer.New(bus, consumer.Options{})
	if err != nil {
		panic(err)
	}
	onlyOutages := &waybill.Backoff{
		Kind:   waybill.BackoffCustom,
		Delays: []time.Duration{time.Second, time.Minute}, // what a broker with fixed delays declares
		Custom: func(attempt int, err error) (time.Duration, bool) {
			return time.Duration(attempt) * time.Second, waybill.ClassOf(err) == waybill.ClassRejected
		},
	}
	err = c.Handle(waybill.Subscription{Queue: "mail", Retry: onlyOutages}, waybill.HandlerFor(OrderPlaced,
		func(context.Context, Order) error { return nil }))
	fmt.Println(err)
	fmt.Println(c.Handle(waybill.Subscription{Queue: "mail"}))
	// Output:
	// <nil>
	// waybill/consumer: subscription of queue "mail": handlers: there are none; give at least one; Queue: it has a subscription already; give all its handlers in one call
}

// At most two handlers at a time over all processes, fifty messages a second, and one handler for each tenant. A real
// limiter is the inbox or the store of a database that all processes share.
func ExampleConsumer_Handle_limits() {
	ctx, cancel := context.WithCancel(context.Background())
	bus, err := memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "billing.orders", Bindings: []string{"orders.*"}}}})
	if err != nil {
		panic(err)
	}
	store, err := memory.New(memory.Options{Source: "/billing"})
	if err != nil {
		panic(err)
	}
	c, err := consumer.New(bus, consumer.Options{Logger: slog.New(slog.DiscardHandler), Limiter: store})
	if err != nil {
		panic(err)
	}
	err = c.Handle(waybill.Subscription{
		Queue: "billing.orders", Bindings: []string{"orders.*"},
		Limit:    waybill.SharedLimit{Concurrency: 2, Rate: 50},
		PerGroup: waybill.GroupLimit{Concurrency: 1},
	}, waybill.HandlerFor(OrderPlaced, func(_ context.Context, o Order) error {
		fmt.Println("charge", o.ID)
		cancel() // the example ends here
		return nil
	}))
	if err != nil {
		panic(err)
	}
	m := OrderPlaced.Message(Order{ID: "o-1"}, waybill.Tenant("acme"), waybill.ID("m-1"))
	if err := bus.Publish(ctx, []waybill.Envelope{m.Envelope}).FirstErr(); err != nil {
		panic(err)
	}
	if err := c.Run(ctx); err != nil {
		panic(err)
	}
	// Output: charge o-1
}
