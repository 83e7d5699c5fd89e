package waybill_test

import (
	"fmt"

	"github.com/waybill-go/waybill"
)

// Declare a topic once, and use it in the producer and in the consumer.
func ExampleNewTopic() {
	type order struct {
		ID    string `json:"id"`
		Cents int    `json:"cents"`
	}
	placed := waybill.NewTopic("orders.placed", waybill.JSON[order]())

	message := placed.Message(order{ID: "17", Cents: 995}, waybill.Key("17"))
	fmt.Println(message.Topic, message.Key, string(message.Body))

	received, err := placed.Decode(&message.Envelope)
	fmt.Println(received.Cents, err)
	// Output:
	// orders.placed 17 {"id":"17","cents":995}
	// 995 <nil>
}
