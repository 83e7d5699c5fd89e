package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
)

const (
	kafkaCalls = 4 // in progress at a time, of kafkaCall records each: what a relay has by default
	kafkaCall  = 500
)

// withKafka runs fn with a bus on a Kafka of one node of its own, and the bare client with the same settings.
func withKafka(ctx context.Context, fn func(bus *kafka.Transport, bare *kgo.Client, address string) error) (err error) {
	server, err := testenv.StartKafka(ctx, testenv.KafkaOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	bus, err := kafka.Dial(ctx, server.Addr(), kafka.Options{Bus: "bench"})
	if err != nil {
		return err
	}
	defer bus.Close(ctx) //nolint:errcheck // everything is confirmed
	bare, err := kgo.NewClient(kgo.SeedBrokers(server.Addr()), kgo.ProducerLinger(0), kgo.DefaultProduceTopic("bench"))
	if err != nil {
		return err
	}
	defer bare.Close()
	return fn(bus, bare, server.Addr())
}

// drainKafka drains a backlog into a Kafka.
func drainKafka(ctx context.Context, env *servers, s scale) (rows []row, err error) {
	err = withKafka(ctx, func(bus *kafka.Transport, bare *kgo.Client, _ string) error {
		c := drainCase{name: "drain to Kafka, 1,000 keys", target: "≥ 0.6", backlog: s.backlog, body: 256, keys: 1000, relays: 1, bus: bus}
		r, err := pairs(ctx, s.pairs,
			func(ctx context.Context) (sample, error) {
				return rawProduce(ctx, bare, c.backlog, make([]byte, c.body))
			},
			func(ctx context.Context) (sample, error) { return drain(ctx, env, c) })
		r.name, r.unit, r.target, r.note = c.name, "msg/s", c.target, "in the place of RabbitMQ's CPU that of Kafka"
		rows = []row{r}
		return err
	})
	return rows, err
}

// rawProduce is the raw limit: the headers that Waybill sends, from memory, by franz-go alone, in four calls of 500 at
// a time.
func rawProduce(ctx context.Context, client *kgo.Client, n int, body []byte) (s sample, err error) {
	header := func(name, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: name, Value: []byte(value)} }
	before, started := readCPU(), time.Now()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(kafkaCalls)
	for from := 0; from < n; from += kafkaCall {
		g.Go(func() error {
			records := make([]*kgo.Record, min(kafkaCall, n-from))
			for i := range records {
				key := fmt.Sprintf("key-%d", (from+i)%1000)
				records[i] = &kgo.Record{Key: []byte(key), Value: body, Headers: []kgo.RecordHeader{
					header("ce_specversion", "1.0"), header("ce_id", "0190d3f2-7b1c-7000-8000-000000000001"), header("ce_source", "/bench"),
					header("ce_type", "bench.topic"), header("ce_time", "2026-03-04T05:06:07.000008Z"), header("ce_partitionkey", key),
					header("ce_topic", "bench.topic"), header("content-type", "application/octet-stream"),
				}}
			}
			return client.ProduceSync(ctx, records...).FirstErr()
		})
	}
	if err := g.Wait(); err != nil {
		return s, err
	}
	return sample{value: float64(n) / time.Since(started).Seconds(), msgs: n, cpu: readCPU().since(before)}, nil
}

// latencyKafka measures at a paced rate: from the return of the commit to the arrival at a consumer, against a direct
// produce from its start to the arrival at the same kind of consumer.
func latencyKafka(ctx context.Context, env *servers, s scale) (rows []row, err error) {
	p50 := row{name: "commit to arrival over Kafka at 200 msg/s, p50, against a direct produce", unit: "ms", target: "≤ 1.7"}
	p99 := row{name: "commit to arrival over Kafka at 200 msg/s, p99, against a direct produce", unit: "ms", target: "reported"}
	cores := row{name: "cores of producers, relay, Postgres and Kafka at 200 msg/s", unit: "cores", target: "≤ 0.4"}
	err = withKafka(ctx, func(bus *kafka.Transport, bare *kgo.Client, address string) error {
		arrive := func(c *clocks) (func() error, error) { return kafkaArrivals(ctx, address, c) }
		direct := func(ctx context.Context, _ *servers, s scale) ([]time.Duration, error) {
			return pacedTo(s, pacedRate, arrive, func(i uint64, body []byte, c *clocks) error {
				c.note(c.sent, i, time.Now())
				return bare.ProduceSync(ctx, &kgo.Record{Value: body}).FirstErr()
			})
		}
		ours := func(ctx context.Context, env *servers, s scale) ([]time.Duration, error) {
			return staged(ctx, env, bus, false, relay.PacingPrompt, func(send sender) ([]time.Duration, error) { return pacedTo(s, pacedRate, arrive, send) })
		}
		for range s.pairs {
			for _, m := range []struct {
				run func(context.Context, *servers, scale) ([]time.Duration, error)
				to  func(*row) *[]sample
			}{
				{direct, func(r *row) *[]sample { return &r.raw }},
				{ours, func(r *row) *[]sample { return &r.ours }},
			} {
				before, started := readCPU(), time.Now()
				ds, err := m.run(ctx, env, s)
				if err != nil {
					return err
				}
				used := readCPU().since(before).total().Seconds() / time.Since(started).Seconds()
				for r, value := range map[*row]float64{&p50: percentile(ds, 0.5).Seconds(), &p99: percentile(ds, 0.99).Seconds(), &cores: used} {
					list := m.to(r)
					*list = append(*list, sample{value: value})
				}
			}
		}
		return nil
	})
	return []row{p50, p99, cores}, err
}

// kafkaArrivals reads the bus from its end on, by franz-go, and notes when messages arrive.
func kafkaArrivals(ctx context.Context, address string, c *clocks) (stop func() error, err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.ConsumeTopics("bench"), kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
	if err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	go func() {
		first := true
		for {
			fetches := client.PollFetches(ctx)
			if fetches.IsClientClosed() || ctx.Err() != nil {
				return
			}
			now := time.Now()
			fetches.EachRecord(func(rec *kgo.Record) {
				if len(rec.Value) < 8 { // of the one that asks whether it reads
					if first {
						first = false
						close(ready)
					}
					return
				}
				c.note(c.arrived, binary.BigEndian.Uint64(rec.Value), now)
			})
		}
	}()
	// It reads from the end on, wherever that is when it begins: so it is asked until it answers.
	for {
		if err := client.ProduceSync(ctx, &kgo.Record{Topic: "bench", Value: []byte("?")}).FirstErr(); err != nil {
			client.Close()
			return nil, err
		}
		select {
		case <-ready:
			return func() error { client.Close(); return nil }, nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}
