package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// rawPublish is the raw limit of a drain: n bodies from memory, on one channel, persistent, mandatory, with pipelined
// confirms, by amqp091-go alone.
func rawPublish(ctx context.Context, url string, n int, body []byte) (s sample, err error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ch, err := conn.Channel()
	if err != nil {
		return s, err
	}
	if err := ch.Confirm(false); err != nil {
		return s, err
	}
	const window = 2000
	confirms := ch.NotifyPublish(make(chan amqp.Confirmation, window))
	returns := ch.NotifyReturn(make(chan amqp.Return, window))
	before, started := readCPU(), time.Now()
	done := make(chan error, 1)
	free := make(chan struct{}, window)
	go func() {
		for range n {
			select {
			case c, ok := <-confirms:
				if !ok || !c.Ack {
					done <- errors.New("not confirmed")
					return
				}
				<-free
			case <-ctx.Done():
				done <- ctx.Err()
				return
			}
		}
		done <- nil
	}()
	for i := range n {
		free <- struct{}{}
		err := ch.PublishWithContext(ctx, "bench", "bench.topic", true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, ContentType: "application/octet-stream", MessageId: fmt.Sprintf("%036d", i), Body: body,
		})
		if err != nil {
			return s, err
		}
	}
	if err := <-done; err != nil {
		return s, err
	}
	if len(returns) > 0 {
		return s, errors.New("messages were returned")
	}
	took := time.Since(started)
	return sample{value: float64(n) / took.Seconds(), msgs: n, cpu: readCPU().since(before)}, nil
}
