package nats_test

import (
	"context"
	"fmt"

	natsgo "github.com/nats-io/nats.go"

	"github.com/waybill-go/waybill/contrib/nats"
)

func ExampleDial() {
	ctx := context.Background()
	bus, err := nats.Dial(ctx, "nats://host:4222", nats.Options{Bus: "shop"})
	if err != nil {
		fmt.Println("not connected")
		return
	}
	defer func() { _ = bus.Close(ctx) }()
}

// TLS and credentials.
func ExampleOptions() {
	opts := nats.Options{Connection: []natsgo.Option{
		natsgo.RootCAs("ca.pem"), natsgo.ClientCert("cert.pem", "key.pem"), natsgo.UserCredentials("app.creds"),
	}}
	fmt.Println(len(opts.Connection))
	// Output: 3
}
