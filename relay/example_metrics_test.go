package relay_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/waybill-go/waybill/relay"
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

// A service serves the metrics of its relays and consumers beside its own. The provider must be set before they are
// made.
//
// OP-03
func ExampleNew_metrics() {
	orPanic(serveMetrics())
	store, bus := exampleStore()
	r, err := relay.New(store, bus, relay.Options{Logger: slog.New(slog.DiscardHandler)})
	orPanic(err)
	_, err = r.RunOnce(context.Background())
	orPanic(err)

	server := httptest.NewServer(nil)
	defer server.Close()
	page, err := http.Get(server.URL + "/metrics")
	orPanic(err)
	defer page.Body.Close()
	text := string(must(io.ReadAll(page.Body)))
	fmt.Println(strings.Contains(text, "\nwaybill_relay_"))
	// Output: true
}
