package relay

import (
	"errors"
	"testing"
	"time"

	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
)

// OP-03, OP-04: with no-op providers nothing is allocated to count a message with any outcome, and a publish call with
// sampled messages makes no spans. Not parallel: allocations are those of the process.
func TestTelemetryOff(t *testing.T) {
	tel, err := newTelemetry(&Options{MeterProvider: metricnoop.NewMeterProvider(), TracerProvider: tracenoop.NewTracerProvider()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, refused := t.Context(), errors.New("refused")
	rt := &route{served: served{Route: Route{Name: "r"}}, transport: "t"}
	rt.labels = tel.routeLabels(ctx, "r", "t", core.Description{System: "t"})
	for name, count := range map[string]func(){
		"published": func() { tel.published(ctx, rt, 1, time.Second) },
		"age":       func() { tel.age(ctx, rt, time.Second) },
		"failed":    func() { tel.failed(ctx, rt, waybill.ClassRejected, refused) },
		"abandoned": func() { tel.abandoned(ctx, rt, waybill.ReasonRejected) },
		"lost":      func() { tel.leaseLost(ctx, rt) },
		"read":      func() { tel.read(ctx, time.Second) },
		"settled":   func() { tel.settled(ctx, time.Second) },
		"woke":      func() { tel.woke(ctx, core.WakePoll) },
	} {
		if n := testing.AllocsPerRun(100, count); n > 0 {
			t.Errorf("%s: %.0f allocations", name, n)
		}
	}
	c := &call{route: rt}
	for range 100 {
		c.add(&dispatch.Item{Record: core.Record{Envelope: waybill.Envelope{
			ID: "a", Topic: "t.a", TraceParent: "00-0000000000000000000000000000000a-000000000000000b-01",
		}}})
	}
	if spans := tel.startPublish(ctx, c); spans != nil {
		t.Errorf("%d spans", len(spans))
	}
	if n := testing.AllocsPerRun(100, func() { tel.startPublish(ctx, c) }); n > 20 {
		t.Errorf("a call with 100 sampled messages: %.0f allocations", n)
	}
}
