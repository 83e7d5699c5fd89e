package consumer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/memory"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// dice decides which faults happen. It stops deciding for them when healed.
type dice struct {
	mu     sync.Mutex
	rnd    *rand.Rand
	healed bool
}

// hit reports whether a fault of probability 1/n happens.
func (d *dice) hit(n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.healed && d.rnd.IntN(n) == 0
}

func (d *dice) heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.healed = true
}

type world struct {
	messages, keys, replicas int
	rounds                   []int // how many seconds each lasts before the consumers are stopped
	seed                     uint64
	settleFaults             bool
}

// CO-10, CO-11, IN-01 (the promises P3 and P8): through any failures, and however often consumers stop and start,
// nothing is lost and each effect happens once.
func TestFaults(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := world{
			messages: rapid.IntRange(1, 60).Draw(rt, "messages"),
			keys:     rapid.IntRange(0, 5).Draw(rt, "keys"),
			replicas: rapid.IntRange(1, 3).Draw(rt, "replicas"),
			rounds:   rapid.SliceOfN(rapid.IntRange(0, 40), 1, 5).Draw(rt, "rounds"),
			seed:     rapid.Uint64().Draw(rt, "seed"), settleFaults: rapid.Bool().Draw(rt, "settle faults"),
		}
		var err error
		synctest.Test(t, func(t *testing.T) { err = w.run(t) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

func (w *world) run(t *testing.T) error {
	t.Helper()
	d := &dice{rnd: rand.New(rand.NewPCG(w.seed, 1))}
	patience.BudgetOf(t).Time(10*time.Minute, "five rounds of up to 40 s with their drains, retries after a minute")
	b := declared(t)
	outage := &waybill.Error{Op: "test", Class: waybill.ClassOutage, Err: errBoom}
	b.receive = func() error {
		switch {
		case d.hit(20):
			return outage
		case d.hit(20):
			return waybill.ErrClosed // everything unsettled comes again
		}
		return nil
	}
	b.subscribe = func(core.Subscription) error {
		if d.hit(3) {
			return outage
		}
		return nil
	}
	b.settle = func([]core.Ack) error {
		if w.settleFaults && d.hit(5) {
			return errBoom
		}
		return nil
	}
	b.redeliver = func(del *waybill.Delivery) {
		if d.hit(10) {
			del.Redeliveries = 600 // a suspect
		}
	}
	store, err := memory.New(memory.Options{Source: "/test"})
	if err != nil {
		return err
	}
	box, err := inbox.New(store, "test", inbox.Options{})
	if err != nil {
		return err
	}
	es := messages(w.messages)
	for i := range es {
		if w.keys > 0 {
			es[i].Key = strconv.Itoa(i % w.keys)
		}
	}
	b.send(t, es...)

	var problems seen[string]
	var stops []func()
	start := func() {
		for range w.replicas {
			stops = append(stops, w.replica(t, b, box, d, &problems))
		}
	}
	stopAll := func() {
		var wg sync.WaitGroup
		for _, stop := range stops {
			wg.Go(stop)
		}
		wg.Wait()
		stops = nil
	}
	for _, seconds := range w.rounds {
		start()
		time.Sleep(time.Duration(seconds) * time.Second)
		stopAll()
	}
	d.heal()
	start() // what a failed settle left behind came back when its consumer stopped
	rest(t, b, time.Hour)
	stopAll()

	for i := range w.messages {
		if got, _ := store.Get("id-" + strconv.Itoa(i+1)); got != "1" {
			problems.add(fmt.Sprintf("message %d had %q effects", i+1, got))
		}
	}
	if depth := b.Depth(queue); depth != (memtransport.Depth{}) {
		problems.add(fmt.Sprintf("left in the queue: %+v", depth))
	}
	if all := problems.all(); len(all) > 0 {
		return fmt.Errorf("%+v: %q", *w, all)
	}
	return nil
}

// replica starts a consumer whose handler counts its effects in its transaction and fails in many ways.
func (w *world) replica(t *testing.T, b *bus, box *inbox.Inbox[*memory.Tx], d *dice, problems *seen[string]) (stop func()) {
	t.Helper()
	var mu sync.Mutex
	busy := map[string]bool{}
	h := inbox.Handler(box, topic, func(ctx context.Context, tx *memory.Tx, v note) error {
		key := ""
		if del, ok := waybill.DeliveryFrom(ctx); ok {
			key = del.Envelope.Key
		}
		if key != "" {
			mu.Lock()
			if busy[key] {
				problems.add("two of key " + key + " at a time")
			}
			busy[key] = true
			mu.Unlock()
			defer func() {
				mu.Lock()
				busy[key] = false
				mu.Unlock()
			}()
		}
		name := "id-" + strconv.Itoa(v.N)
		was, _ := tx.Get(name)
		n, _ := strconv.Atoi(was)
		tx.Put(name, strconv.Itoa(n+1))
		if d.hit(4) {
			select {
			case <-time.After(20 * time.Second):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		switch {
		case d.hit(6):
			return errBoom
		case d.hit(10):
			panic("boom")
		case d.hit(10):
			return waybill.RetryAfter(errBoom, time.Minute)
		case d.hit(15):
			return waybill.Outage(errBoom)
		}
		return nil
	})
	o := consumer.Options{Concurrency: 4, MaxDeliveries: -1, Retry: &waybill.Backoff{Kind: waybill.BackoffConstant, Attempts: -1}}
	if w.seed%2 == 0 {
		o.MaxDeliveries = 1000
	}
	return start(t, b, o, waybill.Subscription{}, h)
}
