// Command orders is a small service in four processes, on real Postgres and RabbitMQ, and a template for your own:
//
//	producer.go   places orders: business row and message in one transaction
//	relay.go      moves messages from the outbox to the broker
//	consumer.go   bills each order exactly once, through the inbox
//	audit.go      a single reader that writes down in which order messages arrive
//
// Started without a role it runs all of them as processes of their own, for a while, and then a verifier counts
// business rows and effect rows. With -chaos it kills processes, broker and database and cuts the network meanwhile,
// and fails on any loss, doubled effect or per-key inversion.
//
//	go run ./examples/orders
//	go run ./examples/orders -chaos 60s
//	go run ./examples/orders -postgres postgres://… -rabbitmq amqp://…
//
// The last one uses servers of your own; it takes no -chaos.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	var o options
	flag.DurationVar(&o.run, "for", 10*time.Second, "how long to place orders")
	flag.DurationVar(&o.chaos, "chaos", 0, "how long to place orders while processes, servers and network are broken; wins over -for")
	flag.StringVar(&o.postgres, "postgres", "", "address of a Postgres database; empty starts a private server")
	flag.StringVar(&o.rabbitmq, "rabbitmq", "", "address of a RabbitMQ virtual host; empty starts a private broker")
	flag.IntVar(&o.rate, "rate", 200, "orders a second")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "seed of the chaos")
	flag.Parse()

	// The first signal stops gracefully, a second one at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() { <-ctx.Done(); stop() }()
	if err := runRole(ctx, flag.Arg(0), o); err != nil {
		fmt.Fprintf(os.Stderr, "orders %s: %v\n", flag.Arg(0), err)
		os.Exit(1)
	}
}

func runRole(ctx context.Context, role string, o options) error {
	switch role {
	case "":
		return demo(ctx, o)
	case "producer":
		return runProducer(ctx, configFromEnv())
	case "relay":
		return runRelay(ctx, configFromEnv())
	case "consumer":
		return runConsumer(ctx, configFromEnv())
	case "audit":
		return runAudit(ctx, configFromEnv())
	}
	return errors.New("unknown role; the roles are producer, relay, consumer, audit")
}
