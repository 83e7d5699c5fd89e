package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/credentials"
)

const defaultInterval = time.Minute

// telemetry is where metrics and traces of a daemon go.
type telemetry struct {
	Env
	metrics http.Handler                  // nil = off
	page    *sdkmetric.ManualReader       // of the dashboard; nil = off
	closers []func(context.Context) error // send what is left
}

func (t *telemetry) close(ctx context.Context) error {
	var errs []error
	for _, fn := range t.closers {
		errs = append(errs, fn(ctx))
	}
	return errors.Join(errs...)
}

// newTelemetry makes the exporters that the settings ask for. A signal that is off costs nothing.
func newTelemetry(ctx context.Context, l *loaded, version string) (*telemetry, error) {
	t := &telemetry{Env: Env{MeterProvider: metricnoop.NewMeterProvider(), TracerProvider: tracenoop.NewTracerProvider()}}
	from, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(semconv.ServiceName("waybill"), semconv.ServiceVersion(version)), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("telemetry: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	opts := []sdkmetric.Option{sdkmetric.WithResource(from)}
	if p := l.Telemetry.Prometheus; l.HTTP.Listen != "" && (p == nil || *p) {
		registry := prometheus.NewRegistry()
		registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo(),
			otelprometheus.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
		if err != nil {
			return nil, fmt.Errorf("telemetry.prometheus: %w", err)
		}
		opts = append(opts, sdkmetric.WithReader(reader))
		t.metrics = promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
	}
	if l.Dashboard.Enabled {
		t.page = sdkmetric.NewManualReader()
		opts = append(opts, sdkmetric.WithReader(t.page))
	}
	if o := &l.Telemetry.OTLP; o.Endpoint != "" {
		target, err := o.target()
		if err != nil {
			return nil, err
		}
		metrics, err := target.metrics(ctx)
		if err != nil {
			return nil, fmt.Errorf("telemetry.otlp.endpoint: %w", err)
		}
		traces, err := target.traces(ctx)
		if err != nil {
			return nil, fmt.Errorf("telemetry.otlp.endpoint: %w", err)
		}
		every := o.Interval
		every = cmp.Or(every, defaultInterval)
		opts = append(opts, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(metrics, sdkmetric.WithInterval(every))))
		share := 1.0
		if o.Sample != nil {
			share = *o.Sample
		}
		tracer := sdktrace.NewTracerProvider(sdktrace.WithResource(from), sdktrace.WithBatcher(traces),
			sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(share))))
		t.TracerProvider, t.closers = tracer, append(t.closers, tracer.Shutdown)
	}
	if len(opts) > 1 {
		meter := sdkmetric.NewMeterProvider(opts...)
		t.MeterProvider, t.closers = meter, append(t.closers, meter.Shutdown)
	}
	return t, nil
}

// schemes of an OTLP endpoint, and whether they are secure.
var schemes = map[string]bool{"http": false, "https": true, "grpc": false, "grpcs": true}

// target is an OTLP endpoint, ready to use.
type target struct {
	url     *url.URL
	tls     *tls.Config // nil = in plain
	headers map[string]string
}

// target checks the settings. An error names the key, and nothing that could be a secret.
func (o *otlpSettings) target() (*target, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, errors.New("telemetry.otlp.endpoint: is no URL, such as http://127.0.0.1:4318")
	}
	secure, known := schemes[u.Scheme]
	switch {
	case !known || u.Host == "":
		return nil, errors.New("telemetry.otlp.endpoint: must begin with http://, https://, grpc:// or grpcs://, and name a host")
	case u.User != nil:
		return nil, errors.New("telemetry.otlp.endpoint: must hold no password: use telemetry.otlp.headers")
	case !secure && !o.TLS.IsZero():
		return nil, fmt.Errorf("telemetry.otlp.tls: is for https and grpcs, not %s", u.Scheme)
	case strings.HasPrefix(u.Scheme, "grpc") && strings.Trim(u.Path, "/") != "":
		return nil, errors.New("telemetry.otlp.endpoint: has a path, which gRPC does not know")
	}
	t := &target{url: u, headers: map[string]string{}}
	if secure {
		if t.tls, err = o.TLS.Config(); err != nil {
			return nil, fmt.Errorf("telemetry.otlp.%w", err)
		}
		if t.tls == nil {
			t.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	}
	if o.Headers.IsZero() {
		return t, nil
	}
	text, err := o.Headers.Value()
	if err != nil {
		return nil, fmt.Errorf("telemetry.otlp.headers: %w", err)
	}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, errors.New("telemetry.otlp.headers: must be name=value, divided by commas")
		}
		t.headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	return t, nil
}

func (t *target) grpc() bool { return strings.HasPrefix(t.url.Scheme, "grpc") }

func (t *target) metrics(ctx context.Context) (sdkmetric.Exporter, error) {
	if t.grpc() {
		opts := []otlpmetricgrpc.Option{otlpmetricgrpc.WithEndpoint(t.url.Host), otlpmetricgrpc.WithHeaders(t.headers), otlpmetricgrpc.WithInsecure()}
		if t.tls != nil {
			opts = append(opts[:2], otlpmetricgrpc.WithTLSCredentials(credentials.NewTLS(t.tls)))
		}
		return otlpmetricgrpc.New(ctx, opts...)
	}
	opts := []otlpmetrichttp.Option{otlpmetrichttp.WithEndpointURL(t.url.JoinPath("v1", "metrics").String()), otlpmetrichttp.WithHeaders(t.headers)}
	if t.tls != nil {
		opts = append(opts, otlpmetrichttp.WithTLSClientConfig(t.tls))
	}
	return otlpmetrichttp.New(ctx, opts...)
}

func (t *target) traces(ctx context.Context) (sdktrace.SpanExporter, error) {
	if t.grpc() {
		opts := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(t.url.Host), otlptracegrpc.WithHeaders(t.headers), otlptracegrpc.WithInsecure()}
		if t.tls != nil {
			opts = append(opts[:2], otlptracegrpc.WithTLSCredentials(credentials.NewTLS(t.tls)))
		}
		return otlptracegrpc.New(ctx, opts...)
	}
	opts := []otlptracehttp.Option{otlptracehttp.WithEndpointURL(t.url.JoinPath("v1", "traces").String()), otlptracehttp.WithHeaders(t.headers)}
	if t.tls != nil {
		opts = append(opts, otlptracehttp.WithTLSClientConfig(t.tls))
	}
	return otlptracehttp.New(ctx, opts...)
}

// checkTelemetry checks what can be checked without a connection.
func (l *loaded) checkTelemetry() {
	o := &l.Telemetry.OTLP
	if s := o.Sample; s != nil && !(*s >= 0 && *s <= 1) { // NaN is in no range
		l.bad("telemetry.otlp.sample", "%g is not between 0 and 1", *s)
	}
	if o.Interval != 0 && o.Interval < time.Second {
		l.bad("telemetry.otlp.interval", "%s is less than 1s", o.Interval)
	}
	if o.Endpoint == "" {
		return
	}
	if _, err := o.target(); err != nil {
		path, text, _ := strings.Cut(err.Error(), ": ")
		if !slices.Contains([]string{"telemetry.otlp.endpoint", "telemetry.otlp.headers"}, path) {
			path = "telemetry.otlp.tls"
		}
		l.bad(path, "%s", text)
	}
}
