package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
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
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/sqlite"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// collector is an OTLP receiver, over HTTP and over gRPC.
type collector struct {
	mu      sync.Mutex
	spans   []span
	metrics map[string]bool
	keys    map[string]bool // values of the header x-key
}

type span struct{ service, name, trace, id, parent string }

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
				c.spans = append(c.spans, span{service, s.GetName(), hex.EncodeToString(s.GetTraceId()), hex.EncodeToString(s.GetSpanId()), hex.EncodeToString(s.GetParentSpanId())})
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

// asPart holds a part, as JSON, of a test binary that plays it.
const asPart = "WAYBILL_TEST_PART"

// placed is what the parts are about.
var placed = waybill.NewTopic("orders.placed", waybill.JSON[int]())

// part is a service in a process of its own: the shop stages a message, billing handles one.
type part struct{ Service, Path, Broker, Collector string }

// start plays p in another process.
func (p part) start(tb testing.TB) *sharedtest.Process {
	tb.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		tb.Fatal(err)
	}
	return sharedtest.StartProcess(tb, asPart+"="+string(text))
}

// play does what the part does, and sends its spans.
func (p part) play() error {
	ctx, _ := patience.Context(context.Background(), time.Minute)
	to, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(p.Collector+"/v1/traces"))
	if err != nil {
		return err
	}
	traces := sdktrace.NewTracerProvider(sdktrace.WithBatcher(to), sdktrace.WithResource(resource.NewSchemaless(semconv.ServiceName(p.Service))))
	if p.Service == "shop" {
		err = p.place(ctx, traces)
	} else {
		err = p.bill(ctx, traces)
	}
	return errors.Join(err, traces.Shutdown(ctx))
}

// place stages one message in a trace.
func (p part) place(ctx context.Context, traces *sdktrace.TracerProvider) error {
	store, err := sqlite.Open(ctx, p.Path, sqlite.Options{Source: "/shop", TracerProvider: traces})
	if err != nil {
		return err
	}
	ctx, span := traces.Tracer("shop").Start(ctx, "place order")
	defer span.End()
	tx, err := store.DB().BeginTx(ctx, nil)
	if err == nil {
		_, err = store.Stage(ctx, tx, placed.Message(7))
	}
	if err == nil {
		err = tx.Commit()
	}
	return errors.Join(err, store.Close(ctx))
}

// bill handles one message.
func (p part) bill(ctx context.Context, traces *sdktrace.TracerProvider) error {
	bus, err := rabbitmq.Dial(ctx, p.Broker, rabbitmq.Options{Exchange: "shop"})
	if err != nil {
		return err
	}
	work, err := consumer.New(bus, consumer.Options{TracerProvider: traces})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	handle := func(context.Context, int) error { stop(); return nil }
	if err := work.Handle(waybill.Subscription{Queue: "billing.orders", Bindings: []string{"orders.*"}}, waybill.HandlerFor(placed, handle)); err != nil {
		return err
	}
	return errors.Join(work.Run(running), bus.Close(ctx))
}

// OP-04, OP-16: an OTLP receiver sees one trace over three processes: from the business transaction through staging, in
// the shop, and publishing, in the daemon, to handling, in billing. The daemon sends over HTTP and over gRPC. Its
// metrics arrive there, too.
func TestOneTrace(t *testing.T) {
	t.Parallel()
	for _, over := range []string{"http", "grpc"} {
		t.Run(over, func(t *testing.T) {
			t.Parallel()
			c, overHTTP, overGRPC := newCollector(t)
			endpoint := map[string]string{"http": overHTTP, "grpc": overGRPC}[over]
			path, broker := filepath.Join(t.TempDir(), "shop.db"), testenv.RabbitMQ(t).URL
			_ = database(t, path)
			billing := part{"billing", "", broker, overHTTP}.start(t)
			patience.Until(t, "billing listens", func() bool { return strings.Contains(billing.Log.String(), "event=consumer.start") })
			shop := part{"shop", path, "", overHTTP}.start(t)
			ended(t, shop)
			daemon := process(t, "relay", "--config", write(t, "stores:\n  shop: {kind: sqlite, path: '"+path+"'}\n"+
				"transports:\n  bus: {kind: rabbitmq, exchange: shop, url: '"+broker+"'}\nrelays:\n  a: {}\n"+
				"telemetry:\n  otlp:\n    endpoint: "+endpoint+"\n    headers: x-key=k1\n"))
			ended(t, billing)
			daemon.Signal(os.Interrupt)
			ended(t, daemon)

			c.mu.Lock()
			defer c.mu.Unlock()
			spans := map[string]span{}
			for _, s := range c.spans {
				spans[s.name] = s
			}
			for _, want := range []struct{ service, name, parent string }{
				{"shop", "place order", ""},
				{"shop", "waybill stage", "place order"},
				{"shop", "create orders.placed", "waybill stage"},
				{"waybill", "publish shop:orders.placed", "create orders.placed"},
				{"billing", "process billing.orders", "create orders.placed"},
			} {
				s := spans[want.name]
				if s.service != want.service || s.parent != spans[want.parent].id || s.trace != spans["place order"].trace {
					t.Errorf("%s: %+v, want a child of %q by %s", want.name, s, want.parent, want.service)
				}
			}
			if len(c.spans) != 5 {
				t.Errorf("%d spans, want 5: %+v", len(c.spans), c.spans)
			}
			if !c.metrics["waybill.relay.published"] || !c.keys["k1"] {
				t.Errorf("metrics %v, headers %v", c.metrics, c.keys)
			}
			if t.Failed() {
				t.Logf("shop:\n%s\nbilling:\n%s\ndaemon:\n%s", shop.Log.String(), billing.Log.String(), daemon.Log.String())
			}
		})
	}
}
