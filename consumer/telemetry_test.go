package consumer_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	apitrace "go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
)

// counts returns every counter's values by name and labels, the number of values of each histogram, and under "at 0"
// the number of counters that have counted nothing.
func counts(t *testing.T, reader *metric.ManualReader) map[string]int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &rm); err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	label := func(name string, set attribute.Set) string {
		return strings.TrimPrefix(name, "waybill.consumer.") + "{" + set.Encoded(attribute.DefaultEncoder()) + "}"
	}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					if p.Value == 0 {
						out["at 0"]++
						continue
					}
					out[label(m.Name, p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					out[label(m.Name, p.Attributes)] = int64(p.Count)
				}
			}
		}
	}
	return out
}

// CO-09, OP-03, OR-07: the metrics of each act.
func TestMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		clock, err := hlc.NewClock(hlc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		reader := metric.NewManualReader()
		released := false
		b.settle = func(acks []core.Ack) error {
			if acks[0].Verdict == core.VerdictRelease && !released {
				released = true
				return errBoom
			}
			return nil
		}
		o := consumer.Options{Concurrency: 1, Clock: clock, MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))}
		stop := start(t, b, o, waybill.Subscription{}, waybill.Handler{Name: topic.Name(), Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			switch d.Envelope.ID {
			case "id-2":
				return waybill.HandlerDuplicate, nil
			case "id-3":
				if d.Attempt > 1 {
					return waybill.HandlerProcessed, nil
				}
				return waybill.HandlerProcessed, waybill.RetryAfter(errBoom, 20*time.Second)
			case "id-4":
				return waybill.HandlerProcessed, waybill.Reject(errBoom)
			case "id-5":
				if released {
					return waybill.HandlerProcessed, nil
				}
				time.Sleep(time.Second) // so that it is released alone
				return waybill.HandlerProcessed, waybill.Outage(errBoom)
			}
			return waybill.HandlerProcessed, nil
		}})
		es := messages(5)
		far, err := hlc.New(time.Now().Add(time.Hour).UnixMilli(), 0)
		if err != nil {
			t.Fatal(err)
		}
		es[0].HLC = far
		for i := range es {
			es[i].Key = "one"
		}
		b.send(t, es...)
		patience.Pass(t, time.Minute)
		want := map[string]int64{
			// active, repeats, lease.lost, returned, dropped, the other delays and failures
			"received{queue=q}": 7, "at 0": 25,
			"messaging.process.duration{messaging.consumer.group.name=q,messaging.operation.name=process," +
				"messaging.operation.type=process,messaging.system=waybill,queue=q}": 7,
			"hlc.rejected{queue=q}": 1, "retries{delay=1m0s,queue=q}": 1,
			"processed{queue=q,status=success}": 3, "processed{queue=q,status=duplicate}": 1, "processed{queue=q,status=retried}": 1,
			"processed{queue=q,status=parked}": 1, "processed{queue=q,status=failed}": 1,
			"transport.failures{error.type=unknown,queue=q,step=release}": 1,
		}
		if diff := cmp.Diff(want, counts(t, reader)); diff != "" {
			t.Error(diff)
		}
		if clock.Rejected() != 1 || clock.Last() >= far {
			t.Errorf("the clock rejected %d stamps and is at %s", clock.Rejected(), clock.Last())
		}
		stop()
	})
}

// OP-03: a subscription that cannot subscribe, that lost its broker, or that ended is not connected.
func TestConnectedGauge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		reader := metric.NewManualReader()
		var away atomic.Bool
		refuse := func() error {
			if away.Load() {
				return &waybill.Error{Op: "test", Class: waybill.ClassOutage, Err: errBoom}
			}
			return nil
		}
		b.receive, b.subscribe = refuse, func(core.Subscription) error { return refuse() }
		connected := func(when string, want int64) {
			t.Helper()
			patience.Pass(t, time.Minute)
			b.send(t, messages(1)...) // a receiver that waits does not see that its broker has gone
			patience.Pass(t, time.Minute)
			var rm metricdata.ResourceMetrics
			if err := reader.Collect(t.Context(), &rm); err != nil {
				t.Fatal(err)
			}
			got := int64(-1)
			for _, sm := range rm.ScopeMetrics {
				for _, m := range sm.Metrics {
					if g, ok := m.Data.(metricdata.Gauge[int64]); ok && m.Name == "waybill.consumer.connected" {
						got = g.DataPoints[0].Value
					}
				}
			}
			if got != want {
				t.Errorf("%s: connected is %d, want %d", when, got, want)
			}
		}
		away.Store(true)
		o := consumer.Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))}
		stop := start(t, b, o, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error { return nil }))
		connected("while it cannot subscribe", 0)
		away.Store(false)
		connected("with a broker", 1)
		away.Store(true)
		connected("after the broker went", 0)
		away.Store(false)
		connected("when the broker is back", 1)
		stop()
		connected("after the end", 0)
	})
}

// OP-04: the process span is a child of the span that staged the message, and the handler runs under it.
func TestTraces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		spans := tracetest.NewSpanRecorder()
		tp := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
		inside := map[string]apitrace.SpanContext{}
		stop := start(t, b, consumer.Options{Concurrency: 1, TracerProvider: tp}, waybill.Subscription{}, handle(func(ctx context.Context, d *waybill.Delivery) error {
			inside[d.Envelope.ID] = apitrace.SpanContextFromContext(ctx)
			if d.Envelope.ID == "id-2" {
				return waybill.Reject(errBoom)
			}
			return nil
		}))
		es := messages(3)
		es[0].TraceParent, es[0].TraceState = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "k=v"
		es[1].TraceParent = "nonsense"
		b.send(t, es...)
		settle()
		stop()
		ended := spans.Ended()
		if len(ended) != 3 {
			t.Fatalf("%d spans", len(ended))
		}
		for i, s := range ended {
			id := es[i].ID
			if got := inside[id]; got.SpanID() != s.SpanContext().SpanID() {
				t.Errorf("%s: the handler ran under span %s, want %s", id, got.SpanID(), s.SpanContext().SpanID())
			}
			if s.Name() != "process q" || s.SpanKind() != apitrace.SpanKindConsumer || (s.Status().Description == "boom") != (i == 1) {
				t.Errorf("%s: span %s of kind %s, status %v", id, s.Name(), s.SpanKind(), s.Status())
			}
		}
		want := map[attribute.Key]string{
			"messaging.system": "waybill", "messaging.operation.name": "process", "messaging.operation.type": "process",
			"messaging.consumer.group.name": "q", "messaging.destination.name": "note.added:q", "messaging.message.id": es[1].ID,
			"messaging.message.body.size": strconv.Itoa(len(es[1].Body)), "waybill.attempt": "1", "error.type": "permanent",
		}
		for _, a := range ended[1].Attributes() {
			if want[a.Key] != a.Value.String() {
				t.Errorf("attribute %s = %q, want %q", a.Key, a.Value.String(), want[a.Key])
			}
			delete(want, a.Key)
		}
		if len(want) > 0 {
			t.Errorf("no attributes %v", want)
		}
		if links := ended[0].Links(); len(links) != 1 || links[0].SpanContext.SpanID() != ended[0].Parent().SpanID() || len(ended[1].Links()) > 0 {
			t.Errorf("links %v and %v", links, ended[1].Links())
		}
		if p := ended[0].Parent(); p.SpanID().String() != "b7ad6b7169203331" || p.TraceID() != ended[0].SpanContext().TraceID() ||
			ended[0].SpanContext().TraceState().String() != "k=v" {
			t.Errorf("parent: %v", p)
		}
		if ended[1].Parent().IsValid() || ended[2].Parent().IsValid() {
			t.Error("a span without a known parent has one")
		}
	})
}

// OP-05: every line has event and queue; levels; repeated warnings are limited; bodies never.
func TestLogs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var buf sharedtest.Log
		o := consumer.Options{Concurrency: 1, Logger: slog.New(slog.NewJSONHandler(&buf, &slog.HandlerOptions{Level: slog.LevelDebug}))}
		stop := start(t, b, o, waybill.Subscription{Retry: waybill.RetryDelays(time.Hour)}, waybill.HandlerFor(topic, func(_ context.Context, v note) error {
			switch v.N {
			case 1:
				return nil
			case 2:
				panic("oh")
			case 3:
				return waybill.Reject(errBoom)
			}
			return errBoom
		}))
		es := messages(40)
		es[39].Body = []byte(`{"N":"secret"}`)
		b.send(t, es...)
		settle()
		patience.Pass(t, time.Minute)
		b.publish(t, 5)
		settle()
		stop()
		type line struct {
			Level, Event, Queue, ID, Error, Stack, Reason string
			Attempt                                       int
			Suppressed                                    int
		}
		got := map[string]int{}
		leftOut := 0
		for text := range strings.SplitSeq(strings.TrimSpace(buf.String()), "\n") {
			var l line
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				t.Fatal(err)
			}
			got[l.Level+" "+l.Event]++
			leftOut += l.Suppressed
			if l.Event == "" || l.Queue != queue {
				t.Errorf("event or queue is missing: %s", text)
			}
			if l.ID != "" && l.Attempt != 1 {
				t.Errorf("attempt is missing: %s", text)
			}
			if l.Event == "consumer.retry" && l.ID == "id-2" && !strings.Contains(l.Stack, "telemetry_test.go") {
				t.Errorf("the stack is missing: %s", text)
			}
		}
		want := map[string]int{
			"INFO consumer.start": 1, "INFO consumer.stop": 1, "INFO consumer.stopped": 1, "DEBUG consumer.done": 2,
			"WARN consumer.retry": 10 + 3, "WARN consumer.parked": 2, "ERROR consumer.parked": 1,
			"DEBUG consumer.subscribed": 1, "DEBUG consumer.received": 45, "DEBUG consumer.settled": 45, "DEBUG consumer.retry": 37 - 10,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if leftOut != 37-10 {
			t.Errorf("%d lines were left out, want 27", leftOut)
		}
		if strings.Contains(buf.String(), "secret") {
			t.Error("a body is in the log")
		}
	})
}

// The line of a start has the number of messages that the subscription holds at first, not the greatest one.
func TestStartSaysPrefetch(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		prefetch int
		want     string
	}{
		"adapts": {0, "concurrency=3 prefetch=3 adapts=true"},
		"fixed":  {7, "concurrency=3 prefetch=7 adapts=false"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var buf sharedtest.Log
				o := consumer.Options{Concurrency: 3, Prefetch: tc.prefetch, Logger: slog.New(slog.NewTextHandler(&buf, nil))}
				stop := start(t, declared(t), o, waybill.Subscription{}, waybill.HandlerFor(topic, func(context.Context, note) error { return nil }))
				settle()
				stop()
				if !strings.Contains(buf.String(), "event=consumer.start "+tc.want) {
					t.Errorf("want %s in\n%s", tc.want, buf.String())
				}
			})
		})
	}
}
