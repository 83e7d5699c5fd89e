package redisstreams_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// For a cluster or Sentinel pass a client of your own, which stays yours.
func ExampleNew() {
	addrs := []string{"node1:6379", "node2:6379", "node3:6379"}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, MaxRetries: -1})
	bus, err := redisstreams.New(client, redisstreams.Options{Bus: "shop"})
	defer client.Close()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer bus.Close(context.Background())
	fmt.Println(bus.Describe().System)
	// Output: redis
}

// A transport on its own: usually a relay publishes, and a consumer receives.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	server, err := testenv.StartRedis(ctx, testenv.RedisOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	url := server.URL() // such as redis://user:password@host:6379/0
	bus, err := redisstreams.Dial(ctx, url, redisstreams.Options{Bus: "shop"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer bus.Close(ctx)
	r, err := bus.Subscribe(ctx, core.Subscription{Queue: "billing", Bindings: []string{"orders.*"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	results := bus.Publish(ctx, []waybill.Envelope{{ID: "1", Topic: "orders.placed", Body: []byte(`{"order":42}`)}})
	fmt.Println("published:", results.FirstErr() == nil)

	deliveries, err := r.Receive(ctx, 10)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range deliveries {
		fmt.Println(d.Envelope.Topic, string(d.Envelope.Body))
		fmt.Println("settled:", r.Settle(ctx, []core.Ack{core.AckDone(d)}).FirstErr() == nil)
	}
	// Output:
	// published: true
	// orders.placed {"order":42}
	// settled: true
}
