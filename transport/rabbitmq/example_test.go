package rabbitmq_test

import (
	"context"
	"fmt"

	"github.com/waybill-go/waybill/transport/rabbitmq"
)

func ExampleDial() {
	ctx := context.Background()
	bus, err := rabbitmq.Dial(ctx, "amqp://user:password@host:5672/vhost", rabbitmq.Options{Exchange: "shop", Prefix: "staging."})
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = bus.Close(ctx)
}
