package kafka_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/core"
)

// benchSize is how many messages a call of Publish has, as a relay makes them.
const benchSize = 500

// benchBatch returns messages of 256 bytes of 100 keys.
func benchBatch() []waybill.Envelope {
	batch := make([]waybill.Envelope, benchSize)
	for i := range batch {
		batch[i] = waybill.Envelope{
			ID: fmt.Sprintf("0190d3f2-7b1c-7000-8000-%012d", i), Topic: "a", Type: "a", Source: "/bench", Time: time.Unix(1e9, 0).UTC(),
			Key: fmt.Sprint("k", i%100), ContentType: "application/json", Body: make([]byte, 256),
		}
	}
	return batch
}

// report tells both rates and their ratio. Each pair of measures is of one moment.
func report(b *testing.B, n int, theirs, ours time.Duration) {
	b.Helper()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(n*b.N)/ours.Seconds(), "msg/s")
	b.ReportMetric(float64(n*b.N)/theirs.Seconds(), "raw-msg/s")
	b.ReportMetric(theirs.Seconds()/ours.Seconds(), "ratio")
}

// bare returns the bare client with the same settings.
func bare(b *testing.B, address string, more ...kgo.Opt) *kgo.Client {
	b.Helper()
	opts := []kgo.Opt{kgo.SeedBrokers(strings.Split(address, ",")...), kgo.ProducerLinger(0)}
	c, err := kgo.NewClient(append(opts, more...)...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	return c
}

// BenchmarkPublish compares Publish in calls of 500, from one and from four callers, with the bare client, which sends
// the same records in the same calls.
func BenchmarkPublish(b *testing.B) {
	const n = 40_000
	for _, callers := range []int{1, 4} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			address, opts := node(b), options()
			bus, c := dial(b, address, opts), bare(b, address)
			batch := benchBatch()
			measure := func(call func() error) time.Duration {
				var group errgroup.Group
				started := time.Now()
				for range callers {
					group.Go(func() error {
						for range n / benchSize / callers {
							if err := call(); err != nil {
								return err
							}
						}
						return nil
					})
				}
				if err := group.Wait(); err != nil {
					b.Fatal(err)
				}
				return time.Since(started)
			}
			raw := func() error {
				records := make([]*kgo.Record, benchSize)
				for i := range batch {
					records[i] = kafka.Encode(opts.Bus, &batch[i])
				}
				return c.ProduceSync(context.WithoutCancel(b.Context()), records...).FirstErr()
			}
			// Callers of one id would join each other, so each call has ids of its own.
			ours := func() error {
				own := make([]waybill.Envelope, benchSize)
				for i := range own {
					own[i] = batch[i]
					own[i].ID = fmt.Sprintf("%s%07d", batch[i].ID[:29], busCount.Add(1)%1e7)
				}
				return bus.Publish(context.WithoutCancel(b.Context()), own).FirstErr()
			}
			measure(raw)
			measure(ours)
			var theirs, our time.Duration
			for b.Loop() {
				theirs += measure(raw)
				our += measure(ours)
			}
			report(b, n, theirs, our)
		})
	}
}

// BenchmarkConsume compares Receive and Settle of 100 with the bare client, which commits what it has polled, 100
// records at a time. Neither has a handler.
func BenchmarkConsume(b *testing.B) {
	const n = 20_000
	address, opts := node(b), options()
	bus := dial(b, address, opts)
	r := subscribe(b, bus, "q", "a")
	c := bare(b, address, kgo.ConsumerGroup(opts.Bus+".bare"), kgo.ConsumeTopics(opts.Bus), kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	batch := benchBatch()
	raw := func() time.Duration {
		started := time.Now()
		for left := n; left > 0; {
			records := c.PollRecords(b.Context(), 100).Records()
			if err := c.CommitRecords(b.Context(), records...); err != nil {
				b.Fatal(err)
			}
			left -= len(records)
		}
		return time.Since(started)
	}
	ours := func() time.Duration {
		started := time.Now()
		for left := n; left > 0; {
			ds, err := r.Receive(b.Context(), 100)
			if err != nil {
				b.Fatal(err)
			}
			acks := make([]core.Ack, len(ds))
			for i, d := range ds {
				acks[i] = core.AckDone(d)
			}
			if err := r.Settle(b.Context(), acks).FirstErr(); err != nil {
				b.Fatal(err)
			}
			left -= len(ds)
		}
		return time.Since(started)
	}
	fill := func() {
		for range n / benchSize {
			if err := bus.Publish(b.Context(), batch).FirstErr(); err != nil {
				b.Fatal(err)
			}
		}
	}
	fill()
	raw() // both join their groups
	ours()
	var theirs, our time.Duration
	for b.Loop() {
		fill()
		theirs += raw()
		our += ours()
	}
	report(b, n, theirs, our)
}
