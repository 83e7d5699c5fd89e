package rabbitmq_test

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

const benchBatch = 500

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPublish compares Publish with what the driver does at best: one channel, pipelined, with confirms, to a quorum queue. Each
// iteration publishes 20,000 messages of 256 bytes each way, in turns, and the ratios are reported: of the rates (higher is better) and of
// the CPU time a message (lower is better).
func BenchmarkPublish(b *testing.B) {
	for _, conc := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("callers=%d", conc), func(b *testing.B) {
			mq := testenv.RabbitMQ(b)
			bus := dial(b, mq.URL, rabbitmq.Options{})
			bench := newBench(b, mq.URL, bus)
			const n = 20_000
			bench.raw(b, n/4)
			bench.transport(b, n/4, conc)
			var raw, ours, rawCPU, oursCPU time.Duration
			b.ResetTimer()
			for b.Loop() {
				c0, t0 := cpu(), time.Now()
				bench.raw(b, n)
				c1, t1 := cpu(), time.Now()
				bench.transport(b, n, conc)
				c2, t2 := cpu(), time.Now()
				raw += t1.Sub(t0)
				ours += t2.Sub(t1)
				rawCPU += c1 - c0
				oursCPU += c2 - c1
				b.StopTimer()
				bench.purge(b)
				b.StartTimer()
			}
			total := float64(n * b.N)
			b.ReportMetric(total/raw.Seconds(), "raw-msg/s")
			b.ReportMetric(total/ours.Seconds(), "msg/s")
			b.ReportMetric(raw.Seconds()/ours.Seconds(), "ratio")
			b.ReportMetric(float64(rawCPU.Nanoseconds())/total, "raw-cpu-ns/msg")
			b.ReportMetric(float64(oursCPU.Nanoseconds())/total, "cpu-ns/msg")
			b.ReportMetric(oursCPU.Seconds()/rawCPU.Seconds(), "cpu-ratio")
		})
	}
}

type pubBench struct {
	ch   *amqp.Channel
	bus  *rabbitmq.Transport
	body []byte
}

func newBench(tb testing.TB, url string, bus *rabbitmq.Transport) *pubBench {
	tb.Helper()
	r, err := bus.Subscribe(tb.Context(), core.Subscription{Queue: "bench", Bindings: []string{"bench.#"}})
	if err != nil {
		tb.Fatal(err)
	}
	if err := r.Close(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	ch := raw(tb, url)
	if err := ch.Confirm(false); err != nil {
		tb.Fatal(err)
	}
	return &pubBench{ch: ch, bus: bus, body: make([]byte, 256)}
}

func (p *pubBench) purge(tb testing.TB) {
	tb.Helper()
	if _, err := p.ch.QueuePurge("bench", false); err != nil {
		tb.Fatal(err)
	}
}

// raw publishes with the driver alone: a window of 2,000 on one channel, the same properties, no headers.
func (p *pubBench) raw(tb testing.TB, n int) {
	tb.Helper()
	const window = 2000
	flight := make([]*amqp.DeferredConfirmation, 0, n)
	done := 0
	now := time.Now()
	for i := range n {
		if len(flight)-done >= window {
			if !flight[done].Wait() {
				tb.Fatal("nacked")
			}
			done++
		}
		c, err := p.ch.PublishWithDeferredConfirm("waybill", "bench.raw", true, false, amqp.Publishing{
			ContentType: "application/json", DeliveryMode: amqp.Persistent, MessageId: fmt.Sprintf("0190d3f2-7b1c-7000-8000-%012d", i), Timestamp: now, Type: "bench.raw",
			AppId: "/bench", Body: p.body,
		})
		if err != nil {
			tb.Fatal(err)
		}
		flight = append(flight, c)
	}
	for ; done < len(flight); done++ {
		if !flight[done].Wait() {
			tb.Fatal("nacked")
		}
	}
}

// transport publishes batches of 500 with conc callers.
func (p *pubBench) transport(tb testing.TB, n, conc int) {
	tb.Helper()
	var wg sync.WaitGroup
	now := time.Now()
	for c := range conc {
		wg.Go(func() {
			batch := make([]core.Envelope, benchBatch)
			for i := range batch {
				batch[i] = core.Envelope{
					ID: fmt.Sprintf("0190d3f2-7b1c-7000-8%03d-%012d", c, i), Topic: "bench.ours", Type: "bench.ours", Source: "/bench",
					ContentType: "application/json", Time: now, Key: "key", HLC: 1 << 50, Body: p.body,
				}
			}
			for range n / conc / benchBatch {
				if err := p.bus.Publish(tb.Context(), batch).FirstErr(); err != nil {
					tb.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
