package obs

import (
	"context"
	"runtime/debug"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Scope is the instrumentation scope of all spans and metrics.
const Scope = "github.com/waybill-go/waybill"

// version is the version of this module in the running program.
var version = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	if info.Main.Path == Scope {
		return info.Main.Version
	}
	for _, m := range info.Deps {
		if m.Path == Scope {
			return m.Version
		}
	}
	return ""
})

// Tracer returns the tracer of tp; nil means the global provider.
func Tracer(tp trace.TracerProvider) trace.Tracer {
	if tp == nil {
		tp = otel.GetTracerProvider()
	}
	return tp.Tracer(Scope, trace.WithInstrumentationVersion(version()), trace.WithSchemaURL(semconv.SchemaURL))
}

// Meter returns the meter of mp; nil means the global provider.
func Meter(mp metric.MeterProvider) metric.Meter {
	if mp == nil {
		mp = otel.GetMeterProvider()
	}
	return mp.Meter(Scope, metric.WithInstrumentationVersion(version()), metric.WithSchemaURL(semconv.SchemaURL))
}

// Buckets are the bounds of every histogram, in seconds: 1 ms to 1 day.
func Buckets() metric.HistogramOption {
	return metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10,
		30, 60, 300, 900, 3600, 21600, 86400)
}

// storesKnown marks a context of WithoutStores.
type storesKnown struct{}

// WithoutStores returns a context for a collection of metrics that leaves out what a store must be asked for: its
// caller asks the stores itself.
func WithoutStores(ctx context.Context) context.Context {
	return context.WithValue(ctx, storesKnown{}, true)
}

// AsksStores reports whether a collection asks stores; see [WithoutStores].
func AsksStores(ctx context.Context) bool { return ctx.Value(storesKnown{}) == nil }
