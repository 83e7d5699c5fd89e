package health_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/waybill-go/waybill/health"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
	bus "github.com/waybill-go/waybill/transport/memory"
)

func Example() {
	outbox, err := memory.New(memory.Options{Source: "/orders"})
	if err != nil {
		panic(err)
	}
	broker, err := bus.New(bus.Options{})
	if err != nil {
		panic(err)
	}
	r, err := relay.New(outbox, broker, relay.Options{})
	if err != nil {
		panic(err)
	}
	probes, err := health.New(health.Options{
		Engines: map[string]health.Checker{"orders": r},
		Deep: map[string]health.Checker{
			"store": health.Store(outbox, 5*time.Minute),
			"bus":   health.Transport(broker),
		},
	})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/livez", probes)
	mux.Handle("/readyz", probes)
	mux.Handle("/healthz", probes)

	ask := func(path string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, nil))
		fmt.Println(path, w.Code)
	}
	ask("/livez")
	ask("/readyz") // nobody called Run
	// Output:
	// /livez 200
	// /readyz 503
}
