package kafka_test

import (
	"context"
	"crypto/tls"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/waybill-go/waybill/contrib/kafka"
)

func ExampleDial() {
	ctx := context.Background()
	bus, err := kafka.Dial(ctx, "host1:9092,host2:9092", kafka.Options{Bus: "shop", Replicas: 3, MinInSync: 2})
	if err != nil {
		fmt.Println("not connected")
		return
	}
	defer func() { _ = bus.Close(ctx) }()
}

// TLS and credentials.
func ExampleOptions() {
	opts := kafka.Options{Client: []kgo.Opt{
		kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS13}),
		kgo.SASL(scram.Auth{User: "app", Pass: "secret"}.AsSha512Mechanism()),
	}}
	fmt.Println(len(opts.Client))
	// Output: 2
}
