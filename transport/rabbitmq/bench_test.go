package rabbitmq_test

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
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

// BenchmarkPublish compares Publish with the driver at its best: one channel, pipelined, with confirms, to a quorum
// queue. Each iteration publishes 20,000 messages of 256 bytes each way, in turns: the driver without headers (bare),
// Publish, and the driver with the same headers (same). The ratios are of the rates (higher is better) and of the CPU
// time a message (lower is better).
func BenchmarkPublish(b *testing.B) {
	for _, conc := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("callers=%d", conc), func(b *testing.B) {
			bench := newBench(b)
			const n = 20_000
			var bare, same, ours spent
			bench.raw(b, n/4, false, &bare)
			bench.transport(b, n/4, conc, &ours)
			bare, ours = spent{}, spent{}
			for b.Loop() {
				bench.raw(b, n, false, &bare)
				bench.transport(b, n, conc, &ours)
				bench.raw(b, n, true, &same)
				bench.purge(b)
			}
			total := float64(n * b.N)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(total/ours.wall.Seconds(), "msg/s")
			b.ReportMetric(total/bare.wall.Seconds(), "bare-msg/s")
			b.ReportMetric(total/same.wall.Seconds(), "same-msg/s")
			b.ReportMetric(bare.wall.Seconds()/ours.wall.Seconds(), "bare-ratio")
			b.ReportMetric(same.wall.Seconds()/ours.wall.Seconds(), "same-ratio")
			b.ReportMetric(float64(ours.cpu.Nanoseconds())/total, "cpu-ns/msg")
			b.ReportMetric(ours.cpu.Seconds()/bare.cpu.Seconds(), "bare-cpu-ratio")
			b.ReportMetric(ours.cpu.Seconds()/same.cpu.Seconds(), "same-cpu-ratio")
		})
	}
}

// spent is wall and CPU time, summed over runs.
type spent struct{ wall, cpu time.Duration }

func (s *spent) since(t0 time.Time, c0 time.Duration) {
	s.wall += time.Since(t0)
	s.cpu += cpu() - c0
}

type pubBench struct {
	url  string
	ch   *amqp.Channel
	bus  *rabbitmq.Transport
	body []byte
}

// newBench starts a broker with memory enough never to block.
func newBench(tb testing.TB) *pubBench {
	tb.Helper()
	url := testenv.OwnRabbitMQ(tb, testenv.RabbitMQOptions{
		AllCPUs: true, Config: []string{"vm_memory_high_watermark.absolute = 4GB"},
	}).AMQPURL("/")
	bus := dial(tb, url, rabbitmq.Options{})
	r, err := bus.Subscribe(tb.Context(), core.Subscription{Queue: "bench", Bindings: []string{"bench.#"}})
	if err != nil {
		tb.Fatal(err)
	}
	if err := r.Close(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	ch := testenv.Channel(tb, url)
	if err := ch.Confirm(false); err != nil {
		tb.Fatal(err)
	}
	return &pubBench{url: url, ch: ch, bus: bus, body: make([]byte, 256)}
}

func (p *pubBench) purge(tb testing.TB) {
	tb.Helper()
	if _, err := p.ch.QueuePurge("bench", false); err != nil {
		tb.Fatal(err)
	}
}

// raw publishes with the driver alone: a window of 2,000 on one channel, the same properties, with the same headers or
// with none.
func (p *pubBench) raw(tb testing.TB, n int, headers bool, s *spent) {
	tb.Helper()
	defer s.since(time.Now(), cpu())
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
		id := fmt.Sprintf("0190d3f2-7b1c-7000-8000-%012d", i)
		m := amqp.Publishing{
			ContentType: "application/json", DeliveryMode: amqp.Persistent, MessageId: id, Timestamp: now, Type: "bench.raw",
			AppId: "/bench", Body: p.body,
		}
		if headers {
			m.Headers = amqp.Table{
				"cloudEvents_specversion": "1.0",
				"cloudEvents_time":        now.Format(time.RFC3339Nano), "cloudEvents_partitionkey": "key",
				"cloudEvents_hlc": "01125899906842624-00000",
			}
		}
		c, err := p.ch.PublishWithDeferredConfirm("waybill", "bench.raw", true, false, m)
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
func (p *pubBench) transport(tb testing.TB, n, conc int, s *spent) {
	tb.Helper()
	defer s.since(time.Now(), cpu())
	var wg sync.WaitGroup
	now := time.Now()
	for c := range conc {
		wg.Go(func() {
			batch := make([]waybill.Envelope, benchBatch)
			for i := range batch {
				batch[i] = waybill.Envelope{
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
	if tb.Failed() {
		tb.FailNow()
	}
}

// BenchmarkConsume compares Receive and Settle with the driver's own consumer, prefetch 500, one acknowledgement a
// message.
func BenchmarkConsume(b *testing.B) {
	bench := newBench(b)
	bus := bench.bus
	const n = 20_000
	var bare, ours, filling spent
	for b.Loop() {
		bench.transport(b, n, 2, &filling)
		func() {
			ch := testenv.Channel(b, bench.url)
			defer func() { _ = ch.Close() }()
			if err := ch.Qos(500, 0, false); err != nil {
				b.Fatal(err)
			}
			defer bare.since(time.Now(), cpu())
			deliveries, err := ch.Consume("bench", "", false, false, false, false, nil)
			if err != nil {
				b.Fatal(err)
			}
			for range n {
				d := <-deliveries
				if err := d.Ack(false); err != nil {
					b.Fatal(err)
				}
			}
		}()
		bench.transport(b, n, 2, &filling)
		func() {
			defer ours.since(time.Now(), cpu())
			r, err := bus.Subscribe(b.Context(), core.Subscription{Queue: "bench", Prefetch: 500})
			if err != nil {
				b.Fatal(err)
			}
			for got := 0; got < n; {
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
				got += len(ds)
			}
			if err := r.Close(b.Context()); err != nil {
				b.Fatal(err)
			}
		}()
	}
	total := float64(n * b.N)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(total/ours.wall.Seconds(), "msg/s")
	b.ReportMetric(bare.wall.Seconds()/ours.wall.Seconds(), "ratio")
	b.ReportMetric(float64(ours.cpu.Nanoseconds())/total, "cpu-ns/msg")
	b.ReportMetric(ours.cpu.Seconds()/bare.cpu.Seconds(), "cpu-ratio")
}
