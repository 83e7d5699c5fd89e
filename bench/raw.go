package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"
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
		if err := ch.PublishWithContext(ctx, "bench", "bench.topic", true, false, rawMessage(i, body)); err != nil {
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

// rawHotKey is the raw limit of a drain in which half of the messages have one key: half of n go one by one, each after
// the confirm of the one before, and the others go beside them, pipelined.
func rawHotKey(ctx context.Context, url string, n int, body []byte) (sample, error) {
	before, started := readCPU(), time.Now()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return rawOneByOne(ctx, url, n-n/2, body) })
	g.Go(func() error { _, err := rawPublish(ctx, url, n/2, body); return err })
	err := g.Wait()
	return sample{value: float64(n) / time.Since(started).Seconds(), msgs: n, cpu: readCPU().since(before)}, err
}

func rawOneByOne(ctx context.Context, url string, n int, body []byte) (err error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	for i := range n {
		confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "bench", "bench.topic", true, false, rawMessage(i, body))
		if err != nil {
			return err
		}
		if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
			return errors.Join(errors.New("not confirmed"), err)
		}
	}
	return nil
}

func rawMessage(i int, body []byte) amqp.Publishing {
	return amqp.Publishing{DeliveryMode: amqp.Persistent, ContentType: "application/octet-stream", MessageId: fmt.Sprintf("%036d", i), Body: body}
}
