package sqs_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

const benchRequests = 16

// BenchmarkDrain compares three ways to send 5,000 messages of 256 bytes to one queue of the emulator, in turns, with
// 16 requests in progress: the client alone (SendMessageBatch of 10, with the same attributes), Publish, and a relay
// that drains an outbox in memory. The ratios are of the rates, to the client's. The server is an emulator on the same
// machine: the figures say nothing about Amazon's.
func BenchmarkDrain(b *testing.B) {
	const n = 5_000
	client := newClient(b, testenv.SQS(b))
	opts := withBindings(quick(false), "bench", "bench.#")
	opts.Requests = benchRequests
	bus := newBus(b, client, opts)
	r := subscribe(b, bus, core.Subscription{Queue: "bench"})
	if err := r.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	var raw, published, drained time.Duration
	name := "bench"
	url, err := client.GetQueueUrl(b.Context(), &awssqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		b.Fatal(err)
	}
	timed := func(d *time.Duration, fn func()) {
		if _, err := client.PurgeQueue(b.Context(), &awssqs.PurgeQueueInput{QueueUrl: url.QueueUrl}); err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		fn()
		*d += time.Since(start)
		const depth = types.QueueAttributeNameApproximateNumberOfMessages
		out, err := client.GetQueueAttributes(b.Context(), &awssqs.GetQueueAttributesInput{QueueUrl: url.QueueUrl, AttributeNames: []types.QueueAttributeName{depth}})
		if err != nil || out.Attributes[string(depth)] != strconv.Itoa(n) {
			b.Fatalf("%v messages arrived, want %d (%v)", out, n, err)
		}
	}
	for b.Loop() {
		timed(&raw, func() { rawSend(b, client, url.QueueUrl, n) })
		timed(&published, func() { publishAll(b, bus, n) })
		drain(b, bus, n, func(run func()) { timed(&drained, run) })
	}
	total := float64(n * b.N)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(total/raw.Seconds(), "raw-msg/s")
	b.ReportMetric(raw.Seconds()/published.Seconds(), "publish-ratio")
	b.ReportMetric(raw.Seconds()/drained.Seconds(), "drain-ratio")
}

func benchEnvelope(i int) waybill.Envelope {
	return waybill.Envelope{
		ID: fmt.Sprintf("0190d3f2-7b1c-7000-8000-%012d", i), Topic: "bench.sent", Type: "bench.sent", Source: "/bench", ContentType: "text/plain",
		Time: time.Now(), Body: benchBody,
	}
}

var benchBody = func() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = 'x'
	}
	return b
}()

// rawSend is what the client alone can do.
func rawSend(b *testing.B, client *awssqs.Client, url *string, n int) {
	b.Helper()
	work := make(chan int, n/10)
	for i := 0; i < n; i += 10 {
		work <- i
	}
	close(work)
	var wg sync.WaitGroup
	for range benchRequests {
		wg.Go(func() {
			for first := range work {
				in := &awssqs.SendMessageBatchInput{QueueUrl: url}
				for i := range 10 {
					e := benchEnvelope(first + i)
					id, body := strconv.Itoa(i), string(e.Body)
					in.Entries = append(in.Entries, types.SendMessageBatchRequestEntry{Id: &id, MessageBody: &body, MessageAttributes: map[string]types.MessageAttributeValue{
						"content-type": text(e.ContentType), "ce_specversion": text("1.0"), "ce_id": text(e.ID), "ce_source": text(e.Source), "ce_type": text(e.Type),
						"ce_topic": text(e.Topic), "waybill": text(`{"attributes":{"time":"` + e.Time.Format(time.RFC3339Nano) + `"}}`),
					}})
				}
				if out, err := client.SendMessageBatch(b.Context(), in); err != nil || len(out.Failed) > 0 {
					b.Errorf("%v, %v", out, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func publishAll(b *testing.B, bus *sqstransport.Transport, n int) {
	b.Helper()
	const size = 500
	var wg sync.WaitGroup
	for first := 0; first < n; first += size {
		batch := make([]waybill.Envelope, size)
		for i := range batch {
			batch[i] = benchEnvelope(first + i)
		}
		wg.Go(func() {
			if err := bus.Publish(b.Context(), batch).FirstErr(); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
}

// drain stages n messages and runs a relay until they are sent.
func drain(b *testing.B, bus *sqstransport.Transport, n int, timed func(run func())) {
	b.Helper()
	s, err := memory.New(memory.Options{Source: "/bench"})
	if err != nil {
		b.Fatal(err)
	}
	for first := 0; first < n; first += 1000 {
		var ms []waybill.Message
		for range 1000 {
			ms = append(ms, waybill.RawMessage("bench.sent", "text/plain", benchBody))
		}
		tx := s.Begin()
		if _, err := s.Stage(b.Context(), tx, ms...); err != nil {
			b.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			b.Fatal(err)
		}
	}
	r, err := relay.New(s, bus, relay.Options{Routes: []relay.Route{{Name: waybill.DefaultRoute, Order: waybill.OrderBestEffort}}})
	if err != nil {
		b.Fatal(err)
	}
	timed(func() {
		if _, err := r.RunOnce(b.Context()); err != nil {
			b.Fatal(err)
		}
	})
}
