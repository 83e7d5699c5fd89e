package main

import (
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/store/sqlite"
)

// collector is an OTLP receiver, over HTTP and over gRPC.
type collector struct {
	mu      sync.Mutex
	spans   []span
	metrics map[string]bool
	keys    map[string]bool // values of the header x-key
}

type span struct{ service, name, trace, id, parent, link string }

func (c *collector) takeSpans(r *tracepb.ExportTraceServiceRequest, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys[key] = true
	for _, rs := range r.GetResourceSpans() {
		service := ""
		for _, a := range rs.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				one := span{service, s.GetName(), hex.EncodeToString(s.GetTraceId()), hex.EncodeToString(s.GetSpanId()), hex.EncodeToString(s.GetParentSpanId()), ""}
				for _, l := range s.GetLinks() {
					one.link = hex.EncodeToString(l.GetTraceId())
				}
				c.spans = append(c.spans, one)
			}
		}
	}
}

func (c *collector) takeMetrics(r *metricspb.ExportMetricsServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rm := range r.GetResourceMetrics() {
		for _, sm := range rm.GetScopeMetrics() {
			for _, m := range sm.GetMetrics() {
				c.metrics[m.GetName()] = true
			}
		}
	}
}

// grpcTraces and grpcMetrics are the two services, whose methods have one name.
type (
	grpcTraces struct {
		tracepb.UnimplementedTraceServiceServer
		to *collector
	}
	grpcMetrics struct {
		metricspb.UnimplementedMetricsServiceServer
		to *collector
	}
)

func (g grpcTraces) Export(ctx context.Context, r *tracepb.ExportTraceServiceRequest) (*tracepb.ExportTraceServiceResponse, error) {
	key := ""
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("x-key")) > 0 {
		key = md.Get("x-key")[0]
	}
	g.to.takeSpans(r, key)
	return &tracepb.ExportTraceServiceResponse{}, nil
}

func (g grpcMetrics) Export(_ context.Context, r *metricspb.ExportMetricsServiceRequest) (*metricspb.ExportMetricsServiceResponse, error) {
	g.to.takeMetrics(r)
	return &metricspb.ExportMetricsServiceResponse{}, nil
}

// newCollector starts a receiver, and returns its addresses.
func newCollector(t *testing.T) (c *collector, overHTTP, overGRPC string) {
	t.Helper()
	c = &collector{metrics: map[string]bool{}, keys: map[string]bool{}}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		var traces tracepb.ExportTraceServiceRequest
		var metrics metricspb.ExportMetricsServiceRequest
		switch r.URL.Path {
		case "/base/v1/traces":
			if err = proto.Unmarshal(body, &traces); err == nil {
				c.takeSpans(&traces, r.Header.Get("X-Key"))
			}
		case "/base/v1/metrics":
			if err = proto.Unmarshal(body, &metrics); err == nil {
				c.takeMetrics(&metrics)
			}
		default:
			w.WriteHeader(http.StatusNotFound)
		}
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(web.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	tracepb.RegisterTraceServiceServer(server, grpcTraces{to: c})
	metricspb.RegisterMetricsServiceServer(server, grpcMetrics{to: c})
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-served })
	return c, web.URL + "/base", "grpc://" + l.Addr().String()
}

// provider is the tracing of a service.
func provider(t *testing.T, service, endpoint string) *sdktrace.TracerProvider {
	t.Helper()
	to, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(endpoint+"/v1/traces"))
	if err != nil {
		t.Fatal(err)
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(to), sdktrace.WithResource(resource.NewSchemaless(semconv.ServiceName(service))))
}

// OP-04, OP-16: an OTLP receiver sees one trace from the business transaction through staging and publishing, in the
// daemon, to handling, each in its own service; over HTTP and over gRPC. Metrics arrive there, too.
func TestOneTrace(t *testing.T) {
	t.Parallel()
	for _, over := range []string{"http", "grpc"} {
		t.Run(over, func(t *testing.T) {
			t.Parallel()
			c, overHTTP, overGRPC := newCollector(t)
			endpoint := map[string]string{"http": overHTTP, "grpc": overGRPC}[over]
			b := newBench(t)
			shop, billing := provider(t, "shop", overHTTP), provider(t, "billing", overHTTP)
			producer, err := sqlite.Open(t.Context(), b.path, sqlite.Options{Source: "/shop", TracerProvider: shop})
			if err != nil {
				t.Fatal(err)
			}
			daemon := start(t, b.app(), "relay", "--config", write(t, b.base()+"relays:\n  a: {}\ntelemetry:\n  otlp:\n    endpoint: "+endpoint+"\n    headers: x-key=k1\n"))

			ctx, begun := shop.Tracer("shop").Start(t.Context(), "place order")
			tx, err := producer.DB().BeginTx(ctx, nil)
			if err == nil {
				_, err = producer.Stage(ctx, tx, waybill.NewTopic("orders.placed", waybill.JSON[int]()).Message(7))
			}
			if err == nil {
				err = tx.Commit()
			}
			begun.End()
			if err != nil {
				t.Fatal(err)
			}

			handled := make(chan struct{})
			work, err := consumer.New(b.bus, consumer.Options{TracerProvider: billing})
			if err == nil {
				err = work.Handle(waybill.Subscription{Queue: "q"}, waybill.HandlerFor(waybill.NewTopic("orders.placed", waybill.JSON[int]()), func(context.Context, int) error {
					close(handled)
					return nil
				}))
			}
			if err != nil {
				t.Fatal(err)
			}
			working, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- work.Run(working) }()
			select {
			case <-handled:
			case <-time.After(time.Minute):
				t.Error("not handled")
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			daemon.stop()
			daemon.end(t, cli.ExitOK)
			for _, p := range []*sdktrace.TracerProvider{shop, billing} {
				if err := p.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			}
			_ = producer.Close(t.Context())

			c.mu.Lock()
			defer c.mu.Unlock()
			want := begun.SpanContext().TraceID().String()
			services := map[string]int{}
			for _, s := range c.spans {
				t.Logf("%+v", s)
				if s.trace == want || s.link == want {
					services[s.service]++
				}
			}
			if services["shop"] < 2 || services["waybill"] < 1 || services["billing"] < 1 {
				t.Errorf("spans of trace %s by service: %v", want, services)
			}
			if !c.metrics["waybill.relay.published"] || !c.keys["k1"] {
				t.Errorf("metrics %v, headers %v", c.metrics, c.keys)
			}
		})
	}
}
