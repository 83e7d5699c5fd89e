package matrix_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
)

// The variables of a process: its part, "relay" or "consumer", and the servers between which it works.
const (
	partVar    = "WAYBILL_MATRIX_PART"
	storeVar   = "WAYBILL_MATRIX_STORE"
	busVar     = "WAYBILL_MATRIX_BUS"
	addressVar = "WAYBILL_MATRIX_ADDRESS"
	brokerVar  = "WAYBILL_MATRIX_BROKER"
)

// orders is handled with one effect each.
var orders = waybill.NewTopic("orders.placed", waybill.JSON[int]())

// subscription is also the name of the route, which is the queue of a table.
var subscription = waybill.Subscription{
	Queue: waybill.DefaultRoute, Bindings: []string{"orders.placed"}, Concurrency: 4,
	Retry: waybill.RetryDelays(100*time.Millisecond, 100*time.Millisecond, time.Second, time.Second, time.Second, time.Second),
}

func TestMain(m *testing.M) {
	part := os.Getenv(partVar)
	if part == "" {
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience.For(3*time.Minute))
	go func() {
		sharedtest.AwaitParent()
		os.Exit(0)
	}()
	err := run(ctx, part)
	cancel()
	slog.Error("process ended", "part", part, "error", err)
	os.Exit(1)
}

// run is a process: a relay or a consumer, until it is killed.
func run(ctx context.Context, part string) error {
	s := stores[slices.IndexFunc(stores, func(s store) bool { return s.name == os.Getenv(storeVar) })]
	b := buses[slices.IndexFunc(buses, func(b bus) bool { return b.name == os.Getenv(busVar) })]
	db, err := s.open(ctx, os.Getenv(addressVar))
	if err != nil {
		return err
	}
	pub, sub, err := b.dial(ctx, os.Getenv(brokerVar), db)
	if err != nil {
		return err
	}
	if part == "relay" {
		opts := relay.Options{BatchSize: 5, Lease: 2 * time.Second, PublishTimeout: time.Second, PollMax: time.Second}
		if pub.Traits().KeyOrder == core.KeyOrderNone {
			opts.Routes = []relay.Route{{Name: waybill.DefaultRoute, Order: waybill.OrderBestEffort}}
		}
		r, err := relay.New(db.outbox, pub, opts)
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}
	c, err := consumer.New(sub, consumer.Options{})
	if err != nil {
		return err
	}
	h := db.handler
	inner := h.Handle
	h.Handle = func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		time.Sleep(5 * time.Millisecond) // so that a kill finds messages in hand
		return inner(ctx, d)
	}
	if err := c.Handle(subscription, h); err != nil {
		return err
	}
	return c.Run(ctx)
}

// TR-06 DB-16: each store with each transport, as at night, or every one of them once: relay and consumer are killed in
// the middle, and every order has one effect.
func TestPairs(t *testing.T) {
	t.Parallel()
	all := os.Getenv("WAYBILL_MATRIX") == "all"
	for i := range max(len(stores), len(buses)) {
		for j := range buses {
			s, b := stores[i%len(stores)], buses[(i+j)%len(buses)]
			if all && i >= len(stores) || !all && j > 0 {
				continue
			}
			t.Run(s.name+" "+b.name, func(t *testing.T) {
				t.Parallel()
				pair(t, s, b)
			})
		}
	}
}

const (
	messages = 240
	kills    = 3 // of each process
)

func pair(t *testing.T, s store, b bus) {
	t.Helper()
	address, broker := s.start(t), b.start(t)
	db, err := s.open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer db.close()
	start := func(part string) *sharedtest.Process {
		return sharedtest.StartProcess(t, partVar+"="+part, storeVar+"="+s.name, busVar+"="+b.name, addressVar+"="+address, brokerVar+"="+broker)
	}
	parts := []string{"consumer", "relay"}
	if b.noRelay {
		parts = parts[:1]
	}
	processes := map[string]*sharedtest.Process{}
	for _, part := range parts {
		processes[part] = start(part)
	}
	bound(t, b, broker, db)
	go stageAll(t, db)
	done := func() int {
		all, err := db.effects(t.Context())
		if err != nil {
			return 0 // busy
		}
		return len(all)
	}
	for n := range kills * len(parts) {
		part := parts[n%len(parts)]
		await(t, processes, fmt.Sprintf("kill %d, of the %s", n+1, part), done, (n+1)*messages/(kills*len(parts)+1))
		processes[part].Kill()
		processes[part] = start(part)
	}
	await(t, processes, "all effects", done, messages)
	for _, p := range processes {
		p.Kill()
	}
	seen := map[int]int{}
	all, err := db.effects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all {
		seen[n]++
	}
	for n := range messages {
		if seen[n] != 1 {
			t.Errorf("order %d has %d effects", n, seen[n])
		}
	}
}

// bound waits until the consumer's queue is there: a message that no queue is bound for waits for longer than a test.
func bound(t *testing.T, b bus, broker string, db *database) {
	t.Helper()
	_, sub, err := b.dial(t.Context(), broker, db)
	if err != nil {
		t.Fatal(err)
	}
	r, err := sub.Subscribe(t.Context(), core.SubscriptionOf(&subscription))
	if err == nil {
		err = r.Close(t.Context())
	}
	if err := errors.Join(err, sub.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// stageAll stages the orders, again where the database is busy.
func stageAll(t *testing.T, db *database) {
	t.Helper()
	for n := range messages {
		for {
			err := db.stage(t.Context(), orders.Message(n, waybill.Key(fmt.Sprint("k", n%7))))
			if err == nil || t.Context().Err() != nil {
				break
			}
			if class := waybill.ClassOf(err); class != waybill.ClassOutage {
				t.Errorf("stage: %v", err)
				return
			}
		}
	}
}

// await waits for so many effects. It shows the output of the processes if they do not come.
func await(t *testing.T, processes map[string]*sharedtest.Process, what string, done func() int, n int) {
	t.Helper()
	defer func() {
		if !t.Failed() {
			return
		}
		for part, p := range processes {
			t.Logf("%s:\n%s", part, p.Log.String())
		}
	}()
	patience.Moving(t, what, func() (int, bool) { now := done(); return now, now >= n })
}
