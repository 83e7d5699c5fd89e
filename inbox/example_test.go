package inbox_test

import (
	"context"
	"fmt"
	"strconv"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/store/memory"
)

// A handler is a plain function: here it is called as a consumer would, twice with one message.
func ExampleHandler() {
	ctx := context.Background()
	store, err := memory.New(memory.Options{Source: "/billing"})
	if err != nil {
		panic(err)
	}
	billing, err := inbox.New(store, "billing", inbox.Options{})
	if err != nil {
		panic(err)
	}
	handler := inbox.Handler(billing, paid, func(ctx context.Context, tx *memory.Tx, p payment) error {
		tx.Put("balance", strconv.Itoa(p.Amount))
		// a follow-up in the same transaction, caused by the message
		_, err := store.Stage(ctx, tx, paid.Message(p))
		return err
	})

	message := &waybill.Delivery{
		Envelope: paid.Message(payment{Amount: 5}, waybill.ID("m-1")).Envelope,
		Queue:    "billing.payments", Attempt: 1,
	}
	for range 2 {
		status, err := handler.Handle(ctx, message)
		fmt.Println(status == waybill.HandlerDuplicate, err)
	}
	fmt.Println(store.Get("balance"))
	// Output:
	// false <nil>
	// true <nil>
	// 5 true
}

// An inbox in a transaction of the caller's own, for messages that no consumer of Waybill delivers.
func ExampleNew() {
	ctx := context.Background()
	store, err := memory.New(memory.Options{Source: "/billing"})
	if err != nil {
		panic(err)
	}
	billing, err := inbox.New(store, "billing", inbox.Options{})
	if err != nil {
		panic(err)
	}
	for range 2 { // the same message arrives twice
		tx := store.Begin()
		status, err := billing.Mark(ctx, tx, "/payments", "m-1")
		if err != nil {
			panic(err)
		}
		if status == core.InboxNew {
			tx.Put("balance", "5")
		}
		if err := tx.Commit(); err != nil {
			panic(err)
		}
		fmt.Println(status)
	}
	// Output:
	// new
	// duplicate
}

// An inbox for effects that no transaction can hold, such as a call of another service.
func ExampleNewAtLeastOnce() {
	ctx := context.Background()
	var marks memory.Marks // in a service a core.MarkStore that outlives it
	billing, err := inbox.NewAtLeastOnce(&marks, "billing", 0, inbox.Options{})
	if err != nil {
		panic(err)
	}
	handler := inbox.Handler(billing, paid, func(ctx context.Context, _ inbox.NoTx, p payment) error {
		d, _ := waybill.DeliveryFrom(ctx)
		fmt.Println("charge", p.Amount, "with idempotency key", d.Envelope.ID)
		return nil
	})
	message := &waybill.Delivery{
		Envelope: paid.Message(payment{Amount: 5}, waybill.ID("m-1")).Envelope,
		Queue:    "billing.payments", Attempt: 1,
	}
	for range 2 {
		status, err := handler.Handle(ctx, message)
		fmt.Println(status == waybill.HandlerDuplicate, err)
	}
	// Output:
	// charge 5 with idempotency key m-1
	// false <nil>
	// true <nil>
}
