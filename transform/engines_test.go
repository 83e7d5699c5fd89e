package transform_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/transform"
	memtransport "github.com/waybill-go/waybill/transport/memory"
	"github.com/waybill-go/waybill/waybilltest/faults"
)

// ring is a key source that does not answer before the key is added.
type ring struct {
	mu   sync.Mutex
	keys map[string][]byte
}

func (r *ring) find(_ context.Context, id string) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k, ok := r.keys[id]; ok {
		return k, nil
	}
	return nil, errors.New("no answer")
}

func (r *ring) add(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys = maps.Clone(r.keys)
	if r.keys == nil {
		r.keys = map[string][]byte{}
	}
	r.keys[id] = keys[id]
}

// Blobs that are away at the relay, and a key source that does not answer the consumer, delay messages for hours. They
// cost no attempt, lose nothing, and keep the order.
func TestEngines(t *testing.T) { // ST-18 P2 P3 P5 P7
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		kept, known := &blobs{down: true}, &ring{}
		steps := func(id string) []transform.Step {
			return []transform.Step{transform.Gzip{MinBytes: 1}, transform.Encrypt{KeyID: id, Keys: known.find}, transform.ClaimCheck{Blobs: kept, MinBytes: 1}}
		}
		known.add("old")
		store, err := memory.New(memory.Options{Source: "/test"})
		if err != nil {
			t.Fatal(err)
		}
		bus, err := memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "q", Bindings: []string{"#"}}}})
		if err != nil {
			t.Fatal(err)
		}
		// the relay's secrets are others than the consumer's
		atRelay := steps("new")
		atRelay[1] = transform.Encrypt{KeyID: "new", Keys: transform.StaticKeys(keys)}
		pub, err := transform.Publisher(bus, atRelay...)
		if err != nil {
			t.Fatal(err)
		}
		r, err := relay.New(faults.Store(store, counted(t)), pub, relay.Options{})
		if err != nil {
			t.Fatal(err)
		}
		marks, err := inbox.New(store, "billing", inbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		topic := waybill.NewTopic("orders.placed", waybill.JSON[string]())
		var mu sync.Mutex
		var got []string
		bill := inbox.Handler(marks, topic, func(ctx context.Context, _ *memory.Tx, v string) error {
			d, _ := waybill.DeliveryFrom(ctx)
			mu.Lock()
			defer mu.Unlock()
			got = append(got, v)
			if string(d.Envelope.Body) != `"`+v+`"` || d.Envelope.Headers[transform.Header] != "" {
				t.Errorf("the context has %q with headers %v", d.Envelope.Body, d.Envelope.Headers)
			}
			return nil
		})
		bill, err = transform.Handler(bill, steps("")...)
		if err != nil {
			t.Fatal(err)
		}
		c, err := consumer.New(faults.Subscriber(bus, counted(t)), consumer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Handle(waybill.Subscription{Queue: "q", Bindings: []string{"orders.*"}, Concurrency: 1, InOrder: true}, bill); err != nil {
			t.Fatal(err)
		}
		var want []string
		tx := store.Begin()
		for i := range 20 {
			want = append(want, fmt.Sprint("order ", i))
			if _, err := store.Stage(t.Context(), tx, topic.Message(want[i], waybill.Key("k"))); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- waybill.Run(ctx, c, r) }()

		patience.Pass(t, 3*time.Hour)
		for _, rec := range store.Records() {
			if rec.State != core.StatePending || rec.Attempts != 0 {
				t.Errorf("while blobs are away a record is %s with %d attempts", rec.State, rec.Attempts)
			}
		}
		kept.set(false)
		patience.Pass(t, 3*time.Hour)
		if n, parked := len(store.Records()), bus.Parked("q"); n != 0 || len(parked) != 0 {
			t.Errorf("%d records are left, %d are parked", n, len(parked))
		}
		mu.Lock()
		if len(got) != 0 {
			t.Errorf("handled %v without the key", got)
		}
		mu.Unlock()
		known.add("new")
		patience.Pass(t, time.Hour)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if !slices.Equal(got, want) || len(bus.Parked("q")) != 0 {
			t.Errorf("handled %v, parked %d", got, len(bus.Parked("q")))
		}
	})
}

// counted counts the calls of an engine for the budget of the test.
func counted(t *testing.T) faults.Script {
	t.Helper()
	count := patience.BudgetOf(t).Counter()
	return func(c faults.Call) faults.Fault {
		count(c.Op)
		return faults.Fault{}
	}
}
