package relay_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
)

// RL-12
func TestHooksNeverBreakTheRelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		var seen atomic.Int32
		free := make(chan struct{})
		o := relay.Options{Hooks: relay.Hooks{OnPublished: func(relay.Event) {
			if seen.Add(1) == 1 {
				<-free // as slow as can be
			}
			panic("hook")
		}}}
		stage(t, s, msgs(6000, noKey)...)
		stop := begin(t, newRelay(t, s, b, o))
		within(t, time.Second, "published beside a hook that hangs", func() bool { return b.count() == 6000 })
		close(free)
		synctest.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if n := seen.Load(); n < 4096 || n > 4098 {
			t.Errorf("%d hooks ran", n)
		}
	})
}

// RL-06 RL-12
func TestBreakerHook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.answer = func(_ *waybill.Envelope, nth int) error {
			if nth < 3 {
				return down()
			}
			return nil
		}
		var seen []string
		o := relay.Options{Hooks: relay.Hooks{OnBreaker: func(e relay.Event) { seen = append(seen, fmt.Sprint(e.Route, " ", e.Err != nil)) }}}
		stage(t, s, msg("a", ""))
		stop := begin(t, newRelay(t, s, b, o))
		within(t, time.Minute, "published", func() bool { return b.count() == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		if d := cmp.Diff([]string{"default true", "default true", "default false"}, seen); d != "" {
			t.Error(d)
		}
	})
}

// OP-05
func TestLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Calls(1000, "300 retries, each due at a time of its own: a Due, a read and a settle each")
		s, b := newStore(t), newBus()
		b.answer = func(e *waybill.Envelope, _ int) error {
			if e.ID == "m00000" {
				return &waybill.Error{Class: waybill.ClassPermanent, Err: errors.New("never")}
			}
			return errNo
		}
		var buf bytes.Buffer
		stage(t, s, msgs(300, noKey)...)
		stop := begin(t, newRelay(t, s, b, relay.Options{Logger: slog.New(slog.NewJSONHandler(&buf, nil))}))
		patience.Pass(t, 5*time.Minute)
		if err := stop(); err != nil {
			t.Error(err)
		}
		lines := map[string]int{}
		suppressed := 0.0
		for line := range strings.Lines(buf.String()) {
			var l map[string]any
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatal(err)
			}
			event, _ := l["event"].(string)
			lines[fmt.Sprint(l["level"], " ", event)]++
			for _, k := range []string{"route", "id", "attempt"} {
				if _, ok := l[k]; !ok && (event == "relay.retry" || event == "relay.abandoned") {
					t.Errorf("no %s in %s", k, line)
				}
			}
			if n, ok := l["suppressed"].(float64); ok {
				suppressed += n
			}
		}
		if lines["ERROR relay.abandoned"] != 1 || lines["INFO relay.start"] != 1 || lines["INFO relay.stop"] != 1 ||
			lines["WARN relay.retry"] < 5 || lines["WARN relay.retry"] > 160 {
			t.Errorf("%v", lines)
		}
		if suppressed < 1000 {
			t.Errorf("%v suppressed", suppressed)
		}
	})
}

// OP-04 OP-03
func TestTelemetry(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tp := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
	reader := metric.NewManualReader()
	mp := metric.NewMeterProvider(metric.WithReader(reader))
	s := storeWith(t, memory.Options{Source: "/test", TracerProvider: tp})
	ctx, root := tp.Tracer("app").Start(t.Context(), "request")
	stageIn(ctx, t, s, msg("a", ""), msg("bad", ""))
	root.End()
	b := newBus()
	b.answer = func(e *waybill.Envelope, _ int) error {
		if e.ID == "bad" {
			return errNo
		}
		return nil
	}
	if _, err := newRelay(t, s, b, relay.Options{MeterProvider: mp, TracerProvider: tp}).RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	var published []trace.ReadOnlySpan
	for _, sp := range spans.Ended() {
		if sp.SpanContext().TraceID() != root.SpanContext().TraceID() {
			t.Errorf("span %s has a trace of its own", sp.Name())
		}
		if sp.Name() == "publish t.a" {
			published = append(published, sp)
		}
	}
	if len(published) != 2 {
		t.Fatalf("%d publish spans", len(published))
	}
	checkPublishSpans(t, published, core.SpanContextOf(&b.arrived[0]))
	var rm metricdata.ResourceMetrics
	if err := reader.Collect(context.WithoutCancel(t.Context()), &rm); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				zero := 0
				for _, p := range d.DataPoints {
					if p.Value == 0 {
						zero++
						continue
					}
					got[m.Name] += fmt.Sprint(p.Value, " ", p.Attributes.Encoded(attribute.DefaultEncoder()), "; ")
				}
				got[m.Name] += fmt.Sprint(zero, " at 0")
			case metricdata.Histogram[float64]:
				got[m.Name] = strconv.FormatBool(d.DataPoints[0].Count > 0)
				if strings.HasPrefix(m.Name, "messaging.") {
					got[m.Name] = d.DataPoints[0].Attributes.Encoded(attribute.DefaultEncoder())
				}
			}
		}
	}
	want := map[string]string{
		"waybill.relay.published":     "1 route=default,transport=relay_test; 0 at 0",
		"waybill.relay.failures":      "1 class=rejected,error.type=rejected,route=default,transport=relay_test; 6 at 0",
		"waybill.relay.abandoned":     "8 at 0",
		"waybill.relay.lease.lost":    "1 at 0",
		"waybill.relay.breaker.state": "1 at 0",
		"waybill.relay.message.age":   "true",
		"waybill.relay.read.duration": "true",
		"messaging.client.operation.duration": "messaging.operation.name=publish,messaging.operation.type=send," +
			"messaging.system=waybill,route=default",
		"waybill.relay.settle.duration": "true",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A second Run is refused while one goes on; afterwards the relay can be run again.
func TestOneRunAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		r := newRelay(t, s, b, relay.Options{})
		stop := begin(t, r)
		synctest.Wait()
		if _, err := r.RunOnce(t.Context()); err == nil {
			t.Error("two at a time")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		stage(t, s, msg("a", ""))
		if c, err := r.RunOnce(t.Context()); err != nil || c.Published != 1 {
			t.Errorf("%+v %v", c, err)
		}
	})
}

// checkPublishSpans compares the spans of the messages "a" and "bad" with OpenTelemetry's conventions for messaging. A
// message carries the context of the span that created it.
func checkPublishSpans(t *testing.T, published []trace.ReadOnlySpan, travels oteltrace.SpanContext) {
	t.Helper()
	for _, sp := range published {
		want := map[attribute.Key]string{
			"messaging.system": "waybill", "messaging.operation.name": "publish", "messaging.operation.type": "send",
			"messaging.destination.name": "t.a", "messaging.message.id": "a", "messaging.message.body.size": "1",
			"waybill.route": "default", "waybill.attempt": "1",
		}
		if sp.Status().Description != "" {
			want["messaging.message.id"], want["messaging.message.body.size"], want["error.type"] = "bad", "3", "rejected"
		}
		for _, a := range sp.Attributes() {
			if want[a.Key] != a.Value.String() {
				t.Errorf("attribute %s = %q, want %q", a.Key, a.Value.String(), want[a.Key])
			}
			delete(want, a.Key)
		}
		if len(want) > 0 {
			t.Errorf("no attributes %v", want)
		}
		if links := sp.Links(); sp.SpanKind() != oteltrace.SpanKindClient || len(links) != 1 || links[0].SpanContext.SpanID() != sp.Parent().SpanID() {
			t.Errorf("kind %s, links %v", sp.SpanKind(), links)
		}
		if sp.Status().Description == "" && travels.SpanID() != sp.Parent().SpanID() {
			t.Errorf("span %s travels, want %s, which created the message", travels.SpanID(), sp.Parent().SpanID())
		}
	}
}

// RL-30: messages that expired during a long outage write some lines, and not one each; one that the broker refuses for
// good always has its own.
func TestManyExpired(t *testing.T) {
	t.Parallel()
	const n = 2000
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(time.Hour, "the messages expire first")
		s, b := newStore(t), newBus()
		b.answer = func(*waybill.Envelope, int) error {
			return &waybill.Error{Class: waybill.ClassPermanent, Err: errors.New("never")}
		}
		old := msgs(n, noKey)
		for i := range old {
			old[i].Expires = time.Now().Add(time.Minute)
		}
		stage(t, s, old...)
		patience.Pass(t, 10*time.Minute)
		refused := msgs(100, noKey)
		for i := range refused {
			refused[i].ID = fmt.Sprint("refused-", i)
		}
		stage(t, s, refused...)
		var buf sharedtest.Log
		stop := begin(t, newRelay(t, s, b, relay.Options{Logger: slog.New(slog.NewTextHandler(&buf, nil))}))
		patience.Pass(t, 5*time.Minute)
		if err := stop(); err != nil {
			t.Error(err)
		}
		expired, others := 0, 0
		for line := range strings.Lines(buf.Take()) {
			switch {
			case !strings.Contains(line, "event=relay.abandoned"):
			case strings.Contains(line, "reason=expired"):
				expired++
			default:
				others++
			}
		}
		if got := states(s)[core.StateAbandoned]; got != n+len(refused) || expired < 1 || expired > 20 || others != len(refused) {
			t.Errorf("%d abandoned, %d lines about expired messages, %d about others", got, expired, others)
		}
	})
}
