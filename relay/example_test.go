package relay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

type Invoice struct{ Tenant, ID string }

// Mails go on a route of their own. The topic chooses it, not the message.
var (
	InvoiceDue = waybill.NewTopic("invoices.due", waybill.JSON[Invoice]())
	MailWanted = waybill.NewTopic("mails.wanted", waybill.JSON[Invoice]()).On("mails")
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func orPanic(err error) {
	if err != nil {
		panic(err)
	}
}

func exampleStore() (*memory.Store, *memtransport.Transport) {
	store := must(memory.New(memory.Options{Source: "/billing"}))
	bus := must(memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "q", Bindings: []string{"#"}}}}))
	return store, bus
}

// Three routes on one broker: a big tenant gets three times what a small one gets while both have work, and mails leave
// at ten a second at most. The staging code chooses the route, by tenant or by topic.
func ExampleRoute_fairShare() {
	store, bus := exampleStore()
	ctx := context.Background()

	r, err := relay.New(store, bus, relay.Options{Logger: slog.New(slog.DiscardHandler), Routes: []relay.Route{
		{Name: "big", Weight: 3},
		{Name: "small"},
		{Name: "mails", RatePerSecond: 10},
	}})
	orPanic(err)

	tx := store.Begin()
	for i := range 3 {
		for _, tenant := range []string{"big", "small"} {
			v := Invoice{tenant, strconv.Itoa(i)}
			_, err := store.Stage(ctx, tx,
				// the route of the tenant
				InvoiceDue.Message(v, waybill.Routes(tenant), waybill.Tenant(tenant)),
				MailWanted.Message(v)) // the route of the topic
			orPanic(err)
		}
	}
	orPanic(tx.Commit())

	start := time.Now()
	counts := must(r.RunOnce(ctx))
	fmt.Println(counts.Published, "published, mails at a rate:", time.Since(start) > 400*time.Millisecond)
	// Output: 12 published, mails at a rate: true
}

// With Lanes a route has three priority lanes. An urgent message does not stand behind a backlog of the others, and the
// low lane is never starved.
func ExampleRoute_lanes() {
	store, bus := exampleStore()
	ctx := context.Background()

	r, err := relay.New(store, bus, relay.Options{Logger: slog.New(slog.DiscardHandler), BatchSize: 10, Window: 1, Routes: []relay.Route{
		{Name: "default", Lanes: true},
	}})
	orPanic(err)

	tx := store.Begin()
	for i := range 100 {
		_, err := store.Stage(ctx, tx, waybill.RawMessage("reports.ready", "text/plain", nil, waybill.InLane(waybill.LaneLow), waybill.ID(fmt.Sprint("report-", i))))
		orPanic(err)
	}
	_, err = store.Stage(ctx, tx, waybill.RawMessage("alarms.raised", "text/plain", nil, waybill.InLane(waybill.LaneHigh), waybill.ID("alarm")))
	orPanic(err)
	orPanic(tx.Commit())

	must(r.RunOnce(ctx))
	rcv := must(bus.Subscribe(ctx, core.Subscription{Queue: "q"}))
	place := slices.IndexFunc(must(rcv.Receive(ctx, 1000)), func(d *waybill.Delivery) bool { return d.Envelope.ID == "alarm" })
	fmt.Println("the alarm was among the first twenty:", place < 20) // lanes are published side by side
	// Output: the alarm was among the first twenty: true
}

// Pause stops a route while the others go on: for a maintenance of the service behind it, say.
func ExampleRelay_Pause() {
	store, bus := exampleStore()
	ctx := context.Background()
	r := must(relay.New(store, bus, relay.Options{Logger: slog.New(slog.DiscardHandler), Routes: []relay.Route{{Name: "default"}, {Name: "mails"}}}))

	orPanic(r.Pause("mails"))

	tx := store.Begin()
	must(store.Stage(ctx, tx, MailWanted.Message(Invoice{}), InvoiceDue.Message(Invoice{})))
	orPanic(tx.Commit())
	fmt.Println(must(r.RunOnce(ctx)).Published)

	orPanic(r.Resume("mails"))
	fmt.Println(must(r.RunOnce(ctx)).Published)
	// Output:
	// 1
	// 1
}

// Health behind HTTP: one address for liveness, one for readiness and for people.
func ExampleRelay_Health() {
	store, bus := exampleStore()
	r := must(relay.New(store, bus, relay.Options{Logger: slog.New(slog.DiscardHandler)}))

	mux := http.NewServeMux()
	mux.HandleFunc("/live", func(w http.ResponseWriter, req *http.Request) {
		if !r.Health(req.Context()).Live {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/ready", func(w http.ResponseWriter, req *http.Request) {
		h := r.Health(req.Context())
		if !h.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(h)
	})

	fmt.Print(r.Health(context.Background()))
	// Output:
	// live: true, ready: false
	// failed   run: not running
	// ok       backlog: 0 waiting, none due
	// ok       unserved: none
}

// One process relays for several databases: a relay each, named after both ends.
func ExampleRelay_Run_severalDatabases() {
	ctx, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer stop()
	bus := must(memtransport.New(memtransport.Options{}))
	tenants := map[string]core.OutboxStore{
		"tenant-1": must(memory.New(memory.Options{Source: "/tenant-1"})),
		"tenant-2": must(memory.New(memory.Options{Source: "/tenant-2"})),
	}

	all, ctx := errgroup.WithContext(ctx)
	for name, store := range tenants {
		r, err := relay.New(store, bus, relay.Options{Name: name + " to bus", Logger: slog.New(slog.DiscardHandler)})
		orPanic(err)
		all.Go(func() error { return r.Run(ctx) })
	}
	fmt.Println(all.Wait())
	// Output: <nil>
}

// New makes a relay of a store and a publisher. RunOnce sends the due records, and returns; Run works until its context
// ends.
func ExampleNew() {
	ctx := context.Background()
	store, bus := exampleStore()
	tx := store.Begin()
	must(store.Stage(ctx, tx, InvoiceDue.Message(Invoice{Tenant: "acme", ID: "i-1"})))
	orPanic(tx.Commit())

	r := must(relay.New(store, bus, relay.Options{}))
	counts := must(r.RunOnce(ctx))
	fmt.Println("published:", counts.Published)
	// Output: published: 1
}

// Many tenants share a route, and none starves: the route has sub-routes, and each tenant belongs to one. The backlog
// of one tenant does not stand before the message of another.
func ExampleRoute_subRoutes() {
	const subRoutes = 16
	store, bus := exampleStore()
	ctx := context.Background()
	r := must(relay.New(store, bus, relay.Options{Logger: slog.New(slog.DiscardHandler), BatchSize: 10, Window: 1, Routes: []relay.Route{
		{Name: "invoices", SubRoutes: subRoutes},
	}}))

	tx := store.Begin()
	send := func(tenant, id string) {
		must(store.Stage(ctx, tx, InvoiceDue.Message(Invoice{tenant, id}, waybill.ID(tenant+id), waybill.Tenant(tenant),
			waybill.Routes(waybill.SubRoute("invoices", tenant, subRoutes)))))
	}
	for i := range 100 {
		send("big", strconv.Itoa(i))
	}
	send("small", "")
	orPanic(tx.Commit())

	must(r.RunOnce(ctx))
	rcv := must(bus.Subscribe(ctx, core.Subscription{Queue: "q"}))
	place := slices.IndexFunc(must(rcv.Receive(ctx, 1000)), func(d *waybill.Delivery) bool { return d.Envelope.ID == "small" })
	fmt.Println("the small tenant was among the first twenty:", place < 20)
	// Output: the small tenant was among the first twenty: true
}
