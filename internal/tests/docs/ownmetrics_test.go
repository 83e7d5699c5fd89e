package docs_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

func serveMetrics() error {
	exporter, err := otelprometheus.New() // go.opentelemetry.io/otel/exporters/prometheus
	if err != nil {
		return err
	}
	otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter)))
	http.Handle("/metrics", promhttp.Handler())
	return nil
}

// TestOwnMetricsPage runs the lines of docs/metrics.md: a service serves the metrics of its relays and consumers beside
// its own. The provider must be set before they are made.
//
// OP-03
func TestOwnMetricsPage(t *testing.T) {
	if err := serveMetrics(); err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Options{Source: "/shop"})
	if err != nil {
		t.Fatal(err)
	}
	bus, err := memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "q", Bindings: []string{"#"}}}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(store, bus, relay.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	page := httptest.NewRecorder()
	http.DefaultServeMux.ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	if !strings.Contains(page.Body.String(), "\nwaybill_relay_") {
		t.Errorf("the page has no metric of a relay:\n%s", page.Body)
	}
}
