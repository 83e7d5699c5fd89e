package dashboard_test

import (
	"context"
	"net/http"
	"os"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/relay"
)

// An application mounts the dashboard beside its own pages. The metrics that it shows come from a reader of its own,
// which the application gives to its MeterProvider.
func Example() {
	mount := func(ctx context.Context, mux *http.ServeMux, store core.OutboxStore, bus core.Publisher, parked admin.ParkedQueue) (*relay.Relay, error) {
		reader := sdkmetric.NewManualReader()
		meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		r, err := relay.New(store, bus, relay.Options{MeterProvider: meters})
		if err != nil {
			return nil, err
		}
		page, err := dashboard.New(dashboard.Options{
			Path:     "/waybill",
			Outboxes: []dashboard.Outbox{{Name: "shop", Store: store, Relay: r}},
			Queues:   []dashboard.Queue{{Name: "billing.orders", Parked: parked}},
			Metrics:  reader,
			// Hashes are made by htpasswd -nB. Without users print page.SignInURL(base).
			Users: map[string]dashboard.User{"ada": {Password: os.Getenv("ADAS_PASSWORD_HASH"), Right: dashboard.RightAct}},
		})
		if err != nil {
			return nil, err
		}
		mux.Handle("/waybill/", page)
		go func() { _ = page.Run(ctx) }() // the charts go on while nobody looks
		return r, nil
	}
	_ = mount
}
