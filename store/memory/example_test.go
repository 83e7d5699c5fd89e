package memory_test

import (
	"context"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/store/memory"
)

// Stage a message in the transaction that writes the business data, and look at the outbox.
func ExampleNew() {
	placed := waybill.NewTopic("orders.placed", waybill.JSON[string]())
	store, err := memory.New(memory.Options{Source: "/orders"})
	if err != nil {
		panic(err)
	}

	tx := store.Begin()
	defer tx.Rollback() // does nothing after the commit
	tx.Put("order/17", "placed")
	if _, err := store.Stage(context.Background(), tx, placed.Message("17")); err != nil {
		panic(err)
	}
	fmt.Println("before the commit:", len(store.Records()))
	if err := tx.Commit(); err != nil {
		panic(err)
	}
	for _, r := range store.Records() {
		fmt.Println("after the commit:", r.Envelope.Topic, string(r.Envelope.Body))
	}
	// Output:
	// before the commit: 0
	// after the commit: orders.placed "17"
}
