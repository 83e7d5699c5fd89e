package memory_test

import (
	"context"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

func Example() {
	ctx := context.Background()
	bus, err := memtransport.New(memtransport.Options{
		Queues: []memtransport.Queue{{Name: "billing", Bindings: []string{"orders.*"}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer bus.Close(ctx)

	results := bus.Publish(ctx, []waybill.Envelope{{ID: "1", Topic: "orders.placed"}, {ID: "2", Topic: "users.created"}})
	fmt.Println(results[0])
	fmt.Println(results[1])

	r, err := bus.Subscribe(ctx, core.Subscription{Queue: "billing"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ds, err := r.Receive(ctx, 10)
	if err != nil {
		fmt.Println(err)
		return
	}
	r.Settle(ctx, []core.Ack{core.AckReject(ds[0], waybill.ReasonNoHandler, nil)})
	for _, p := range bus.Parked("billing") {
		fmt.Println(p.Envelope.ID, p.Envelope.Topic, p.Reason)
	}
	// Output:
	// <nil>
	// waybill/memory: publish: topic "users.created": unroutable: no queue is bound for the topic: bind one
	// 1 orders.placed no_handler
}
