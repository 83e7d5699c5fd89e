package core_test

import (
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A store that is not in this module stages with a stamper: it writes each row in the caller's transaction.
func ExampleNewStamper() {
	stamper, err := core.NewStamper(core.StamperOptions{Source: "/orders"})
	if err != nil {
		panic(err)
	}
	placed := waybill.NewTopic("orders.placed", waybill.JSON[string]())
	message := placed.Message("17", waybill.ID("m-1"), waybill.Routes("broker", "audit"), waybill.Delay(time.Minute))

	rows, err := stamper.Stamp(context.Background(), []waybill.Message{message})
	if err != nil {
		panic(err)
	}
	for _, r := range rows {
		fmt.Println(r.Route, r.Envelope.Source, r.Envelope.ID, r.Delay)
	}
	// Output:
	// broker /orders m-1 1m0s
	// audit /orders m-1 1m0s
}
