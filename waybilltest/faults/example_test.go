package faults_test

import (
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	memtransport "github.com/waybill-go/waybill/transport/memory"
	"github.com/waybill-go/waybill/waybilltest/faults"
)

func ExampleSubscriber() {
	tr, err := memtransport.New(memtransport.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	script := faults.All(
		faults.On("settle", 1, 3, faults.Fault{After: waybill.ErrLeaseLost}), // another consumer has them
		faults.On("receive", 2, 2, faults.Fault{Before: faults.Lost}),        // the connection is lost
	)
	bus := faults.Subscriber(tr, script)
	_, whole := core.As[core.Publisher](bus)
	fmt.Println(bus.SubscriberTraits().KeyOrder, whole)
	// Output: true true
}
