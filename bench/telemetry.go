package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// scrapeEvery is how often the metrics are read. Real scrapers come every 15 s or so; a drain is shorter.
const scrapeEvery = time.Second

// providers is the telemetry of a relay.
type providers struct {
	meter  metric.MeterProvider
	tracer trace.TracerProvider
	stop   func(ctx context.Context)
}

// off is the telemetry of a daemon that has none.
func off() (*providers, error) {
	return &providers{metricnoop.NewMeterProvider(), tracenoop.NewTracerProvider(), func(context.Context) {}}, nil
}

// metricsOn counts and is scraped, as the daemon is.
func metricsOn() (*providers, error) {
	p, err := off()
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		return nil, err
	}
	meter := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	page := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	ended := make(chan struct{})
	var scraper sync.WaitGroup
	scraper.Go(func() {
		ticks := time.NewTicker(scrapeEvery)
		defer ticks.Stop()
		for {
			select {
			case <-ticks.C:
				page.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/metrics", nil))
			case <-ended:
				return
			}
		}
	})
	p.meter, p.stop = meter, func(ctx context.Context) {
		close(ended)
		scraper.Wait()
		_ = meter.Shutdown(ctx) // nothing is sent
	}
	return p, nil
}

// allOn makes spans too, sampled as the daemon does if it is told nothing. They go nowhere.
func allOn() (*providers, error) {
	p, err := metricsOn()
	if err != nil {
		return nil, err
	}
	tracer := sdktrace.NewTracerProvider(sdktrace.WithBatcher(discard{}), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(1))))
	stop := p.stop
	p.tracer, p.stop = tracer, func(ctx context.Context) {
		stop(ctx)
		_ = tracer.Shutdown(ctx) // nothing is sent
	}
	return p, nil
}

// discard is an exporter that sends nothing.
type discard struct{}

func (discard) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }

func (discard) Shutdown(context.Context) error { return nil }

// telemetryCost compares the CPU time that this process takes for a drain with telemetry and without. In both, messages
// carry the trace context of their producers. It decides how many spans there are: a sampled message has one.
func telemetryCost(ctx context.Context, env *servers, s scale) (rows []row, err error) {
	c := drainCase{backlog: s.backlog, body: 256, relays: 1}
	if _, err := observed(ctx, env, c, off); err != nil { // the first drain of a process warms it up
		return nil, err
	}
	for _, to := range []string{"nowhere", "RabbitMQ"} {
		for _, k := range []struct {
			name, target string
			sampled      int // one message in so many
			on           func() (*providers, error)
		}{
			{"metrics", "≤ 1.05", 100, metricsOn},
			{"metrics and traces, 1 message in 100 sampled", "≤ 1.05", 100, allOn},
			{"metrics and traces, every message sampled", "reported", 1, allOn},
		} {
			c.sampled, c.nowhere = k.sampled, to == "nowhere"
			name := fmt.Sprintf("CPU of the process for 1,000 drained to %s: %s, against no telemetry", to, k.name)
			var without sample
			var ratios []sample
			r, err := pairs(ctx, s.pairs,
				func(ctx context.Context) (_ sample, err error) {
					without, err = observed(ctx, env, c, off)
					return without, err
				},
				func(ctx context.Context) (sample, error) {
					with, err := observed(ctx, env, c, k.on)
					ratios = append(ratios, sample{value: with.value / without.value})
					fmt.Fprintf(os.Stderr, "%s: %.2f ms, %.2f ms: %.3f\n", name, with.value*1000, without.value*1000, with.value/without.value)
					return with, err
				})
			if err != nil {
				return nil, err
			}
			r.name, r.unit, r.target, r.note = name, "ms", k.target, fmt.Sprintf("median of the pairs' ratios: %.3f", median(ratios, value))
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// observed is a drain with telemetry. Its value is the CPU time of this process for 1,000 messages.
func observed(ctx context.Context, env *servers, c drainCase, open func() (*providers, error)) (sample, error) {
	p, err := open()
	if err != nil {
		return sample{}, err
	}
	defer p.stop(context.WithoutCancel(ctx))
	c.telemetry = p
	runtime.GC() // what the run before left
	s, err := drain(ctx, env, c)
	s.value = s.cpu.self.Seconds() * 1000 / float64(max(s.msgs, 1))
	return s, err
}

// traceParent is the trace context of the n-th message, from 1.
func traceParent(n int, sampled bool) string {
	flags := 0
	if sampled {
		flags = 1
	}
	return fmt.Sprintf("00-%032x-%016x-%02x", n, n, flags)
}
