package topology_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// A pipeline provisions the subscriptions that the service has.
func ExampleNew() {
	save := func(string, []byte) {}
	shop, err := topology.New(topology.Options{Exchange: "shop"},
		waybill.Subscription{Queue: "billing", Bindings: []string{"orders.*"}, Retry: waybill.RetryDelays(10*time.Second, time.Minute)},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	users := topology.Users{Relay: "shop-relay", Consumer: "shop-billing", Operator: "shop-operator"}
	fmt.Println(shop.Permissions().Consumer)
	definitions, err := shop.Definitions("shop", users) // rabbitmqctl import_definitions
	if err != nil {
		fmt.Println(err)
		return
	}
	save("definitions.json", definitions)
	save("rabbitmq.tf", []byte(shop.Terraform("shop", users)))
	// Output: {^$ ^shop\.dlx\.billing$ ^billing$}
}

// The example lists missing and surplus objects of the broker.
func ExampleBroker_Compare() {
	var (
		ctx  context.Context
		shop topology.Topology
	)
	check := func() error {
		broker, err := topology.NewBroker(topology.BrokerOptions{
			URL:   os.Getenv("RABBITMQ_MANAGEMENT_URL"), // https://user:password@host:15671
			VHost: "shop",
		})
		if err != nil {
			return err
		}
		differences, err := broker.Compare(ctx, shop)
		if err != nil {
			return err
		}
		for _, d := range differences {
			fmt.Printf("%s: want %s, have %s; %s\n", d.Object, d.Want, d.Have, d.Fix)
		}
		return nil
	}
	_ = check
}
