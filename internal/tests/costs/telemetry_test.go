//go:build !race

package costs_test

import (
	"fmt"
	"testing"

	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
)

// OP-03, OP-04: what telemetry costs a relay in allocations, over a store in memory. Off, it costs none: a no-op
// provider is as cheap as no provider, also if the messages carry sampled traces. The SDK's metrics cost one a message.
// Not parallel: allocations are those of the process.
func TestTelemetry(t *testing.T) {
	off := relay.Options{MeterProvider: metricnoop.NewMeterProvider(), TracerProvider: tracenoop.NewTracerProvider()}
	reader := sdkmetric.NewManualReader()
	metrics := relay.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), TracerProvider: off.TracerProvider}
	relayed := func(opts relay.Options, traced bool) counts {
		s, err := memory.New(memory.Options{Source: "/costs"})
		must(t, err)
		msgs := messages(many)
		for i := range msgs {
			if traced {
				msgs[i].TraceParent = fmt.Sprintf("00-%032x-%016x-01", i+1, i+1)
			}
		}
		tx := s.Begin()
		_, err = s.Stage(t.Context(), tx, msgs...)
		must(t, err)
		must(t, tx.Commit())
		return count(t, many, func() counts { return counts{} }, func() { runRelayWith(t, s, many, opts) })
	}
	relayed(off, false) // the first run of a process warms it up
	is := table{
		"memory: relay: no provider":                     relayed(relay.Options{}, false),
		"memory: relay: no provider, sampled traces":     relayed(relay.Options{}, true),
		"memory: relay: no-op providers":                 relayed(off, false),
		"memory: relay: no-op providers, sampled traces": relayed(off, true),
		"memory: relay: metrics":                         relayed(metrics, false),
	}
	check(t, "memory: relay: ", is, "")
	const few = 300 // two runs differ a little; one attribute set a message is 2,000 and more
	for _, pair := range [][2]string{
		{"no provider", "no-op providers"},
		{"no provider", "no provider, sampled traces"},
		{"no provider", "no-op providers, sampled traces"},
	} {
		without, with := is["memory: relay: "+pair[0]][allocs], is["memory: relay: "+pair[1]][allocs]
		if with > without+few {
			t.Errorf("allocations for 1,000 messages: %s %.0f, %s %.0f", pair[0], without, pair[1], with)
		}
	}
}
