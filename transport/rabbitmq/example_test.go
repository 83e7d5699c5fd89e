package rabbitmq_test

import (
	"context"
	"fmt"
	"os"
	"time"

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
		Exchange:      "shop",
		Passive:       true,
		ManagementURL: os.Getenv("RABBITMQ_MANAGEMENT_URL"), // https://host:15671; without it arguments and bindings are not verified
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = bus.Close(ctx)
}

// What a pipeline provisions: the same subscriptions as the service has.
func ExampleNewTopology() {
	save := func(string, []byte) {}
	topology, err := rabbitmq.NewTopology(rabbitmq.Options{Exchange: "shop"},
		waybill.Subscription{Queue: "billing", Bindings: []string{"orders.*"}, Retry: waybill.RetryDelays(10*time.Second, time.Minute)},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	users := rabbitmq.Users{Relay: "shop-relay", Consumer: "shop-billing", Operator: "shop-operator"}
	fmt.Println(topology.Permissions().Consumer)
	definitions, err := topology.Definitions("shop", users) // rabbitmqctl import_definitions
	if err != nil {
		fmt.Println(err)
		return
	}
	save("definitions.json", definitions)
	save("rabbitmq.tf", []byte(topology.Terraform("shop", users)))
	// Output: {^$ ^(shop\.dlx|shop\.delay_10s|shop\.delay_1m)$ ^billing$}
}

// What is on the broker and should not be, or the other way round.
func ExampleTransport_DriftFrom() {
	var (
		ctx      context.Context
		bus      *rabbitmq.Transport
		topology rabbitmq.Topology
	)
	check := func() error {
		differences, err := bus.DriftFrom(ctx, topology)
		if err != nil {
			return err
		}
		for _, d := range differences {
			fmt.Printf("%s: want %s, have %s\n", d.Object, d.Want, d.Have)
		}
		return nil
	}
	_ = check
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
