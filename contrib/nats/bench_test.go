package nats_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/core"
)

// BenchmarkPublish compares Publish, in calls of 500 messages of 256 bytes from four callers, with the client's
// asynchronous publisher, which sends the same messages with the same headers. The ratio is of the rates.
func BenchmarkPublish(b *testing.B) {
	const n, size = 20_000, 500
	s := startServer(b, nil)
	bus := dial(b, s.url(), nats.Options{})
	subscribe(b, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	js := client(b, s)
	batch := make([]waybill.Envelope, size)
	for i := range batch {
		batch[i] = waybill.Envelope{
			ID: fmt.Sprintf("0190d3f2-7b1c-7000-8000-%012d", i), Topic: "a", Type: "a", Source: "/bench", Time: time.Unix(1e9, 0).UTC(),
			ContentType: "application/json", Body: make([]byte, 256),
		}
	}
	raw := func(n int) time.Duration {
		started := time.Now()
		for i := range n {
			if _, err := js.PublishMsgAsync(nats.Encode("waybill.t.a", &batch[i%size]), jetstream.WithStallWait(time.Minute)); err != nil {
				b.Fatal(err)
			}
		}
		<-js.PublishAsyncComplete()
		return time.Since(started)
	}
	ours := func(n int) time.Duration {
		started := time.Now()
		calls, errs := make(chan struct{}, n/size), make(chan error, 4)
		for range n / size {
			calls <- struct{}{}
		}
		close(calls)
		for range 4 {
			go func() {
				var err error
				for range calls {
					err = bus.Publish(b.Context(), batch).FirstErr()
				}
				errs <- err
			}()
		}
		for range 4 {
			if err := <-errs; err != nil {
				b.Fatal(err)
			}
		}
		return time.Since(started)
	}
	purge := func() {
		stream, err := js.Stream(b.Context(), "waybill")
		if err == nil {
			err = stream.Purge(b.Context(), jetstream.WithPurgeSubject("waybill.t.>"))
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	raw(n / 4)
	ours(n / 4)
	var theirs, our time.Duration
	for b.Loop() {
		theirs += raw(n)
		our += ours(n)
		purge()
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(n*b.N)/our.Seconds(), "msg/s")
	b.ReportMetric(float64(n*b.N)/theirs.Seconds(), "raw-msg/s")
	b.ReportMetric(theirs.Seconds()/our.Seconds(), "ratio")
}
