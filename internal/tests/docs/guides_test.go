package docs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/consumer/foreign"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

type Mail struct{ To string }

var MailWanted = waybill.NewTopic("mails.wanted", waybill.JSON[Mail]())

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Abandoned records of the outbox, as docs/retries.md tells it: read, fix, put back.
//
// OP-12
func Example_redrive() {
	ctx := context.Background()
	outbox := must(memory.New(memory.Options{Source: "/shop"}))
	bus := must(memtransport.New(memtransport.Options{}))
	r := must(relay.New(outbox, bus, relay.Options{
		Logger:            slog.New(slog.DiscardHandler),
		UnroutableTimeout: -1, // no queue is bound: give up at once
		Routes: []relay.Route{
			{Name: "default", Backoff: &waybill.Backoff{Base: 5 * time.Second, Cap: 10 * time.Minute, Attempts: 50}},
		},
	}))
	tx := outbox.Begin()
	must(outbox.Stage(ctx, tx, MailWanted.Message(Mail{"a@example.com"}, waybill.ID("m-1")), MailWanted.Message(Mail{"b@example.com"}, waybill.ID("m-2"))))
	if err := tx.Commit(); err != nil {
		panic(err)
	}
	fmt.Println("abandoned:", must(r.RunOnce(ctx)).Abandoned)

	read := func() error {
		abandoned := admin.Filter{States: []core.State{core.StateAbandoned}, Reasons: []waybill.Reason{waybill.ReasonUnroutable}}
		page := admin.PageRequest{Limit: 100}
		for {
			list, err := outbox.List(ctx, abandoned, page)
			if err != nil {
				return err
			}
			for _, m := range list.Records {
				fmt.Println(m.Route, m.Envelope.ID, m.Envelope.Topic, m.Reason)
			}
			if list.Next == 0 {
				return nil
			}
			page.After = list.Next
		}
	}
	if err := read(); err != nil {
		panic(err)
	}

	if err := bus.Declare("mailer", "mails.*"); err != nil { // the cause is fixed
		panic(err)
	}

	putBack := func(dryRun bool) error {
		req := admin.RedriveRequest{
			Filter:         admin.Filter{Reasons: []waybill.Reason{waybill.ReasonUnroutable}, Topics: []string{"mails.wanted"}},
			InboxRetention: inbox.DefaultRetention, // older ones could have their effect twice
			DryRun:         dryRun,
		}
		done, err := admin.RedriveAll(ctx, outbox, req, admin.RedriveOptions{PerSecond: 500})
		fmt.Println(done.Matched, "matched,", done.Changed, "put back, refused:", done.Refused)
		return err
	}
	for _, dryRun := range []bool{true, false} {
		if err := putBack(dryRun); err != nil {
			panic(err)
		}
	}
	fmt.Println("published:", must(r.RunOnce(ctx)).Published)
	// Output:
	// abandoned: 2
	// default m-1 mails.wanted unroutable
	// default m-2 mails.wanted unroutable
	// 2 matched, 2 put back, refused: map[]
	// 2 matched, 2 put back, refused: map[]
	// published: 2
}

// Messages parked at the consumer, on any transport that keeps them.
//
// OP-12
func Example_parked() {
	ctx := context.Background()
	bus := must(memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "mailer", Bindings: []string{"mails.*"}}}}))
	failing := true
	c := must(consumer.New(bus, consumer.Options{Logger: slog.New(slog.DiscardHandler), IdleTimeout: time.Second}))
	send := waybill.HandlerFor(MailWanted, func(context.Context, Mail) error {
		if failing {
			return waybill.Reject(errors.New("no such mailbox"))
		}
		return nil
	})
	err := c.Handle(waybill.Subscription{
		Queue: "mailer",
		// three retries by the broker, then park
		Retry: waybill.RetryDelays(10*time.Second, time.Minute, 10*time.Minute),
		// and before each of them two here
		InProcess: waybill.RetryDelays(50*time.Millisecond, 500*time.Millisecond),
	}, send)
	if err != nil {
		panic(err)
	}
	bus.Publish(ctx, []waybill.Envelope{MailWanted.Message(Mail{"a@example.com"}, waybill.ID("m-1")).Envelope})
	if err := c.Run(ctx); err != nil {
		panic(err)
	}

	repair := func() error {
		parked, ok := core.As[admin.ParkedQueue](bus)
		if !ok {
			return errors.New("this transport does not list what is parked")
		}
		list, err := parked.ListParked(ctx, "mailer", admin.ParkedFilter{}, 100)
		if err != nil {
			return err
		}
		for _, p := range list {
			fmt.Println(p.Position, p.Envelope.ID, p.Envelope.Topic, p.Reason, p.Attempts, p.Error)
		}

		one, err := parked.InspectParked(ctx, "mailer", admin.ParkedFilter{Positions: []int{1}})
		if err != nil {
			return err
		}
		fmt.Println("body:", string(one.Envelope.Body))

		replayed, err := parked.ReplayParked(ctx, admin.ParkedRequest{Queue: "mailer", All: true, PerSecond: 50})
		if err != nil {
			return err
		}
		fmt.Println("replayed:", replayed)

		purged, err := parked.PurgeParked(ctx, admin.ParkedRequest{Queue: "mailer", Filter: admin.ParkedFilter{Reasons: []waybill.Reason{waybill.ReasonExpired}}})
		fmt.Println("purged:", purged)
		return err
	}
	if err := repair(); err != nil {
		panic(err)
	}
	failing = false
	if err := c.Run(ctx); err != nil {
		panic(err)
	}
	fmt.Println("still parked:", must(bus.ParkedDepth(ctx, "mailer")))
	// Output:
	// 1 m-1 mails.wanted rejected 1 no such mailbox
	// body: {"To":"a@example.com"}
	// replayed: 1
	// purged: 0
	// still parked: 0
}

// Three in the morning: the log of the relay, and the brake.
//
// OP-12
func Example_night() {
	ctx := context.Background()
	outbox := must(memory.New(memory.Options{Source: "/shop"}))
	bus := must(memtransport.New(memtransport.Options{}))
	r := must(relay.New(outbox, bus, relay.Options{Routes: []relay.Route{
		{Name: "default"},
		{Name: "mails", RatePerSecond: 200}, // what the mail service can bear, also after an outage
	}}))

	look := func() {
		h := r.Health(ctx)
		for _, check := range h.Checks {
			fmt.Println(check.Name, check.Status, check.Text)
		}
	}

	brake := func() error {
		if err := r.Pause("mails"); err != nil {
			return err
		}
		// …
		fmt.Println("paused")
		return r.Resume("mails")
	}
	_, _ = look, brake
	// Output:
}

// Consumers while a service moves over, as docs/migrating.md tells it.
//
// OP-12
func Example_movingConsumers() {
	ctx := context.Background()
	store := must(memory.New(memory.Options{Source: "/billing"}))

	// Old messages carry their id in a header, new ones where CloudEvents has it.
	sub := waybill.Subscription{
		Queue: "billing", Bindings: []string{"orders.*"},
		Foreign: foreign.IDFromHeader("event_id", "/orders"),
	}
	box := must(inbox.New(store, "billing", inbox.Options{}))
	oldOne := &waybill.Delivery{Queue: "billing", Envelope: waybill.Envelope{Topic: "orders.paid", Headers: map[string]string{"event_id": "m-1"}}}
	newOne := &waybill.Delivery{Queue: "billing", Envelope: waybill.Envelope{Source: "/orders", ID: "m-1", Topic: "orders.paid", Type: "orders.paid"}}
	if err := sub.Foreign(&oldOne.Envelope); err != nil {
		panic(err)
	}
	fmt.Println(must(box.Key(oldOne)) == must(box.Key(newOne)))

	// The old consumer, for as long as it runs: the same marks, in its own transaction.
	handleOld := func(tx *memory.Tx, source, id string, work func() error) error {
		status, err := box.Mark(ctx, tx, source, id)
		if err != nil || status == core.InboxDuplicate {
			return err
		}
		return work()
	}
	for range 2 {
		tx := store.Begin()
		if err := handleOld(tx, "/orders", "m-1", func() error { fmt.Println("billed"); return nil }); err != nil {
			panic(err)
		}
		if err := tx.Commit(); err != nil {
			panic(err)
		}
	}
	// Output:
	// true
	// billed
}

// Slow work has a queue of its own, as docs/handlers.md tells it.
func subscribe(c *consumer.Consumer, send, render waybill.Handler) error {
	err := errors.Join(
		c.Handle(waybill.Subscription{Queue: "mailer", Bindings: []string{"mails.*"}}, send),
		c.Handle(waybill.Subscription{
			Queue: "reports", Bindings: []string{"reports.*"},
			Concurrency: 2, Prefetch: 2, // nothing waits in the buffer
			Timeout: 20 * time.Minute,
			Retry:   waybill.RetryDelays(5*time.Minute, time.Hour),
		}, render))
	return err
}

// Limits over all processes, and for each tenant in one, as docs/handlers.md tells it.
func limits(bus core.Subscriber, store core.Limiter, charge, export waybill.Handler) (*consumer.Consumer, error) {
	c, err := consumer.New(bus, consumer.Options{Limiter: store})
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		c.Handle(waybill.Subscription{
			Queue: "payments", Bindings: []string{"payments.*"},
			Limit: waybill.SharedLimit{Rate: 100, Concurrency: 20}, // what the payment service allows us
		}, charge),
		c.Handle(waybill.Subscription{
			Queue: "exports", Bindings: []string{"exports.*"},
			Concurrency: 10, Prefetch: 500,
			PerGroup: waybill.GroupLimit{Concurrency: 2}, // by tenant
		}, export))
	return c, err
}

// OP-12
func Example_handlers() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the next signal is not caught

	bus := must(memtransport.New(memtransport.Options{}))
	c := must(consumer.New(bus, consumer.Options{}))
	render := waybill.Handler{Name: "reports.wanted", Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) { return 0, nil }}
	fmt.Println(subscribe(c, waybill.HandlerFor(MailWanted, func(context.Context, Mail) error { return nil }), render))
	_ = limits
	// Output: <nil>
}
