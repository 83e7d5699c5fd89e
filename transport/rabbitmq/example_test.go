package rabbitmq_test

import (
	"context"
	"fmt"
	"os"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
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

// A service in production, as a user that may configure nothing.
func ExampleDial_passive() {
	ctx := context.Background()
	bus, err := rabbitmq.Dial(ctx, os.Getenv("AMQP_URL"), rabbitmq.Options{
		Exchange: "shop",
		Passive:  true,
		// https://host:15671; without it arguments and bindings are not verified
		ManagementURL: os.Getenv("RABBITMQ_MANAGEMENT_URL"),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = bus.Close(ctx)
}

// A handler reads a property that the Envelope has no field for.
func Example_native() {
	handle := func(ctx context.Context, order string) error {
		d, _ := waybill.DeliveryFrom(ctx)
		if m, ok := waybill.Native[amqp.Delivery](d); ok {
			fmt.Println(m.Exchange, m.UserId, m.Headers["x-death"])
		}
		return nil
	}
	_ = handle
}

// Parked messages: read, fix, replay.
func ExampleTransport_ReplayParked() {
	var (
		ctx context.Context
		bus *rabbitmq.Transport
	)
	repair := func() error {
		parked, err := bus.ListParked(ctx, "billing", admin.ParkedFilter{Reasons: []waybill.Reason{waybill.ReasonAttempts}}, 100)
		if err != nil {
			return err
		}
		for _, p := range parked {
			fmt.Println(p.Envelope.ID, p.Envelope.Topic, p.Reason, p.Attempts, p.At, p.Error)
		}
		replayed, err := bus.ReplayParked(ctx, admin.ParkedRequest{
			Queue:     "billing",
			Filter:    admin.ParkedFilter{Topics: []string{"orders.placed"}},
			PerSecond: 50,
			Progress:  func(looked, total int) { fmt.Printf("%d of %d\n", looked, total) },
		})
		fmt.Println("replayed", replayed)
		return err
	}
	_ = repair
}
