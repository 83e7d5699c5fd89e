package mongo

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/transport/memory"
)

type order struct {
	ID string `json:"id"`
}

var orderPlaced = waybill.NewTopic("orders.placed", waybill.JSON[order]())

// worker is a relay, and a consumer with the inbox, over one transport.
type worker struct {
	stop context.CancelFunc
	wg   sync.WaitGroup
}

func startWorker(t *testing.T, s *Store, bus *memory.Transport, handle func(ctx context.Context, tx Tx, o order) error) *worker {
	t.Helper()
	r, err := relay.New(s, bus, relay.Options{BatchSize: 10, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	box, err := inbox.New(s, "billing", inbox.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	c, err := consumer.New(bus, consumer.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Handle(waybill.Subscription{Queue: "billing", Bindings: []string{"orders.*"}, Concurrency: 3}, inbox.Handler(box, orderPlaced, handle))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &worker{stop: cancel}
	for name, run := range map[string]func(context.Context) error{"relay": r.Run, "consumer": c.Run} {
		w.wg.Go(func() {
			if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	return w
}

func (w *worker) end() {
	w.stop()
	w.wg.Wait()
}

// Orders go from a transaction through the relay and a broker to a handler whose writes are one transaction with the
// mark. Relay and consumer are ended in the middle, with messages out, and started again: each order has one effect,
// also if its handler failed first. DB-15 ST-01 IN-01 IN-02 IN-04 IN-07.
func TestEndToEnd(t *testing.T) {
	t.Parallel()
	s := open(t, Options{PollInterval: 20 * time.Millisecond})
	bills := s.db.Collection("bills")
	if err := s.db.CreateCollection(t.Context(), "bills"); err != nil {
		t.Fatal(err)
	}
	bus, err := memory.New(memory.Options{Queues: []memory.Queue{{Name: "billing", Bindings: []string{"orders.*"}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bus.Close(context.Background()) }()
	const orders = 60
	var mu sync.Mutex
	runs := map[string]int{}
	handle := func(ctx context.Context, _ Tx, o order) error {
		if _, err := bills.InsertOne(ctx, bson.M{"order": o.ID}); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if runs[o.ID]++; runs[o.ID] == 1 && o.ID[len(o.ID)-1] == '7' {
			return waybill.RetryAfter(errors.New("no"), time.Millisecond)
		}
		return nil
	}
	count := func() int {
		n, err := bills.CountDocuments(t.Context(), bson.M{})
		if err != nil {
			t.Fatal(err)
		}
		return int(n)
	}
	w := startWorker(t, s, bus, handle)
	defer func() { w.end() }()
	u, err := s.NewUnitOfWork()
	if err != nil {
		t.Fatal(err)
	}
	errNo := errors.New("changed my mind")
	for i := range orders {
		o := order{fmt.Sprint("o-", i)}
		for _, fail := range []error{errNo, nil} { // a transaction that is rolled back sends nothing
			err := u.Do(t.Context(), func(ctx context.Context, _ Tx) error {
				if err := u.Stage(ctx, orderPlaced.Message(o, waybill.Key(strconv.Itoa(i%5)))); err != nil {
					return err
				}
				return fail
			})
			if !errors.Is(err, fail) || fail == nil && err != nil {
				t.Fatal(err)
			}
		}
		if i%20 == 10 {
			patience.Until(t, "something was billed", func() bool { return count() > 0 })
			w.end()
			w = startWorker(t, s, bus, handle)
		}
	}
	patience.Moving(t, "all is billed", func() (int, bool) { n := count(); return n, n >= orders })
	patience.Until(t, "the outbox is empty", func() bool {
		n, err := s.outbox.CountDocuments(t.Context(), bson.M{})
		return err == nil && n == 0
	})
	var names []string
	if err := bills.Distinct(t.Context(), "order", bson.M{}).Decode(&names); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != orders || len(names) != orders {
		t.Errorf("%d bills of %d orders, want %d", n, len(names), orders)
	}
}
