package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

const (
	redisQueue     = "bench"
	redisStream    = "{" + redisstreams.DefaultBus + "}:queue:" + redisQueue
	redisPipelines = 4 // in progress at a time, of redisPipeline messages each: what a relay has by default
	redisPipeline  = 500
)

// drainRedis drains a backlog into a stream of a Redis of its own.
func drainRedis(ctx context.Context, env *servers, s scale) (_ []row, err error) {
	server, err := testenv.StartRedis(ctx, testenv.RedisOptions{Config: []string{"appendfsync everysec"}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	defer client.Close() //nolint:errcheck // everything is counted
	bus, err := redisstreams.Dial(ctx, server.URL(), redisstreams.Options{})
	if err != nil {
		return nil, err
	}
	defer bus.Close(ctx) //nolint:errcheck // everything is confirmed
	if _, err := bus.Subscribe(ctx, core.Subscription{Queue: redisQueue, Bindings: []string{"#"}}); err != nil {
		return nil, err
	}
	c := drainCase{name: "drain to Redis Streams, 1,000 keys", target: "≥ 0.85", backlog: s.backlog, body: 256, keys: 1000, relays: 1, bus: bus}
	counted := func(run func(context.Context) (sample, error)) func(context.Context) (sample, error) {
		return func(ctx context.Context) (sample, error) {
			if err := client.XTrimMaxLen(ctx, redisStream, 0).Err(); err != nil {
				return sample{}, err
			}
			one, err := run(ctx)
			if n := client.XLen(ctx, redisStream).Val(); err == nil && n != int64(c.backlog) {
				err = fmt.Errorf("the stream has %d messages, expected %d", n, c.backlog)
			}
			return one, err
		}
	}
	r, err := pairs(ctx, s.pairs,
		counted(func(ctx context.Context) (sample, error) {
			return rawXAdd(ctx, client, c.backlog, make([]byte, c.body))
		}),
		counted(func(ctx context.Context) (sample, error) { return drain(ctx, env, c) }))
	r.name, r.unit, r.target, r.note = c.name, "msg/s", c.target, "in the place of RabbitMQ's CPU that of Redis"
	return []row{r}, err
}

// rawXAdd is the raw limit: the fields that Waybill sends, from memory, by go-redis alone, in pipelines of XADD.
func rawXAdd(ctx context.Context, client *redis.Client, n int, body []byte) (s sample, err error) {
	before, started := readCPU(), time.Now()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(redisPipelines)
	for from := 0; from < n; from += redisPipeline {
		g.Go(func() error {
			p := client.Pipeline()
			for i := range min(redisPipeline, n-from) {
				p.XAdd(ctx, &redis.XAddArgs{Stream: redisStream, Values: []any{
					"ce_specversion", "1.0", "ce_id", "0190d3f2-7b1c-7000-8000-000000000001", "ce_source", "/bench", "ce_type", "bench.topic",
					"ce_time", "2026-03-04T05:06:07.000008Z", "ce_partitionkey", fmt.Sprintf("key-%d", (from+i)%1000), "ce_topic", "bench.topic",
					"ce_datacontenttype", "application/octet-stream", "data", body,
				}})
			}
			_, err := p.Exec(ctx)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return s, err
	}
	return sample{value: float64(n) / time.Since(started).Seconds(), msgs: n, cpu: readCPU().since(before)}, nil
}
