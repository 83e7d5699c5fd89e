package redisstreams_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

const (
	benchMessages = 20_000
	benchBatch    = 100
)

func benchEnvelope(i int) waybill.Envelope {
	return waybill.Envelope{
		ID: fmt.Sprintf("0190d3f2-7b1c-7000-8000-%012d", i), Topic: "bench.topic", Type: "bench.topic", Source: "/bench",
		ContentType: "application/json", Time: time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC), Key: fmt.Sprint("key-", i%1000), Body: make([]byte, 256),
	}
}

// rawPublish publishes with the driver alone, each caller batches of XADD in one pipeline: the same fields and bytes.
func rawPublish(b *testing.B, client *redis.Client, key string, callers int, fields [][]any) time.Duration {
	b.Helper()
	return timed(b, callers, func(from, to int) error {
		for ; from < to; from += benchBatch {
			p := client.Pipeline()
			for i := from; i < min(from+benchBatch, to); i++ {
				p.XAdd(b.Context(), &redis.XAddArgs{Stream: key, Values: fields[i]})
			}
			if _, err := p.Exec(b.Context()); err != nil {
				return err
			}
		}
		return nil
	})
}

// timed divides the messages among callers.
func timed(b *testing.B, callers int, fn func(from, to int) error) time.Duration {
	b.Helper()
	start := time.Now()
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			if err := fn(c*benchMessages/callers, (c+1)*benchMessages/callers); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// BenchmarkPublish compares Publish, and the drain of a relay, with pipelined XADDs of the same bytes in batches of the
// same size, in turns.
func BenchmarkPublish(b *testing.B) {
	server := testenv.OwnRedis(b, testenv.RedisOptions{Config: []string{"appendfsync everysec"}})
	for _, callers := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			opts := prepared(redisstreams.Options{})
			bus := dial(b, server.URL(), opts)
			r, err := bus.Subscribe(context.WithoutCancel(b.Context()), core.Subscription{Queue: "q", Bindings: []string{"bench.#"}})
			if err != nil {
				b.Fatal(err)
			}
			if err := r.Close(b.Context()); err != nil {
				b.Fatal(err)
			}
			client := raw(b, server.URL())
			key := "{" + opts.Bus + "}:queue:q"
			batch := make([]waybill.Envelope, benchMessages)
			fields := make([][]any, benchMessages)
			for i := range batch {
				batch[i] = benchEnvelope(i)
				fields[i] = redisstreams.Fields(&batch[i])
			}
			var bare, ours, drained time.Duration
			for b.Loop() {
				bare += rawPublish(b, client, key, callers, fields)
				client.XTrimMaxLen(b.Context(), key, 0)
				ours += timed(b, callers, func(from, to int) error {
					for ; from < to; from += benchBatch {
						if err := bus.Publish(b.Context(), batch[from:min(from+benchBatch, to)]).FirstErr(); err != nil {
							return err
						}
					}
					return nil
				})
				client.XTrimMaxLen(b.Context(), key, 0)
				drained += drain(b, bus, batch)
				if n := client.XLen(b.Context(), key).Val(); n != benchMessages {
					b.Fatalf("%d messages arrived", n)
				}
				client.XTrimMaxLen(b.Context(), key, 0)
			}
			total := float64(benchMessages * b.N)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(total/bare.Seconds(), "raw-msg/s")
			b.ReportMetric(total/ours.Seconds(), "msg/s")
			b.ReportMetric(total/drained.Seconds(), "drain-msg/s")
			b.ReportMetric(bare.Seconds()/ours.Seconds(), "ratio")
			b.ReportMetric(bare.Seconds()/drained.Seconds(), "drain-ratio")
		})
	}
}

// drain has a relay publish the messages from a store in memory.
func drain(b *testing.B, bus *redisstreams.Transport, batch []waybill.Envelope) time.Duration {
	b.Helper()
	store, err := memory.New(memory.Options{Source: "/bench"})
	if err != nil {
		b.Fatal(err)
	}
	for from := 0; from < len(batch); from += 1000 {
		var list []waybill.Message
		for _, e := range batch[from : from+1000] {
			list = append(list, waybill.Message{Envelope: e})
		}
		tx := store.Begin()
		if _, err := store.Stage(b.Context(), tx, list...); err != nil {
			b.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			b.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	left := len(batch)
	var mu sync.Mutex
	r, err := relay.New(store, bus, relay.Options{Logger: quiet(), Hooks: relay.Hooks{OnPublished: func(relay.Event) {
		mu.Lock()
		defer mu.Unlock()
		if left--; left == 0 {
			close(done)
		}
	}}})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	start := time.Now()
	wg.Go(func() { _ = r.Run(ctx) })
	select {
	case <-done:
	case <-time.After(time.Minute):
		b.Error("the drain takes too long")
	}
	took := time.Since(start)
	cancel()
	wg.Wait()
	return took
}
