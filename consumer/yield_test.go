package consumer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// cuts is a bus whose connection a test can lose: a message that is not settled comes again, and cannot be settled any
// more.
type cuts struct {
	*bus
	before func(acks []core.Ack) (cut bool) // asked before each settle; nil: never

	mu   sync.Mutex
	rcv  *receiver
	held []*waybill.Delivery // not settled, in the order of arrival
}

func (c *cuts) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	rcv, err := c.bus.Subscribe(ctx, sub)
	if err != nil {
		return nil, err
	}
	inner := rcv.(*receiver)
	count := inner.count
	inner.count = func(string) {} // a cut gives each held message back by a call that is not the runner's
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rcv, c.held = inner, nil
	return &cutReceiver{inner, c, count}, nil
}

// cut loses the connection.
func (c *cuts) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.held {
		c.rcv.Settle(context.Background(), []core.Ack{core.AckRelease(d)})
	}
	c.held = nil
}

// lose gives d back, as the end of its lease does.
func (c *cuts) lose(d *waybill.Delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rcv.Settle(context.Background(), []core.Ack{core.AckRelease(d)})
	c.held = slices.DeleteFunc(c.held, func(h *waybill.Delivery) bool { return h == d })
}

// cutReceiver counts the runner's calls.
type cutReceiver struct {
	core.Receiver
	c     *cuts
	count func(call string)
}

func (r *cutReceiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	r.count("receive")
	ds, err := r.Receiver.Receive(ctx, limit)
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	r.c.held = append(r.c.held, ds...)
	return ds, err
}

func (r *cutReceiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	r.count("settle")
	if r.c.before != nil && r.c.before(acks) {
		r.c.cut()
	}
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	results := make(core.Results, len(acks))
	for i := range acks {
		n := slices.Index(r.c.held, acks[i].Delivery)
		if n < 0 {
			results[i] = errLost
			continue
		}
		if results[i] = r.Receiver.Settle(ctx, acks[i:i+1])[0]; results[i] == nil {
			r.c.held = slices.Delete(r.c.held, n, n+1)
		}
	}
	return results
}

// inboxed is a handler behind an inbox: a message that had its effect has none again.
type inboxed struct {
	mu      sync.Mutex
	done    map[string]bool
	effects []string
}

func (x *inboxed) add(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.done[id] {
		x.done[id] = true
		x.effects = append(x.effects, id)
	}
}

// OR-09: a message is given up after the connection was lost, so that it is not parked and comes again. Those behind it
// have no effect before that.
// CO-22; in-order-over-cut of the transport suite has what each transport gives back.
func TestInOrderAfterALostConnection(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]error{"rejected": waybill.Reject(errBoom), "at its last attempt": errBoom} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := &cuts{bus: declared(t)}
				x := inboxed{done: map[string]bool{}}
				stop := start(t, c, consumer.Options{}, waybill.Subscription{InOrder: true, Retry: waybill.RetryDelays()}, handle(func(_ context.Context, d *waybill.Delivery) error {
					if id := d.Envelope.ID; id != "id-1" || x.done["failed"] {
						x.add(id)
						return nil
					}
					x.done["failed"] = true
					c.cut()
					return last
				}))
				c.publish(t, 4, waybill.Key("k"))
				queued(t, c.bus, memtransport.Depth{})
				stop()
				if d := cmp.Diff([]string{"id-1", "id-2", "id-3", "id-4"}, x.effects); d != "" {
					t.Error(d)
				}
			})
		})
	}
}

// OR-09: one message is lost and given up, and those behind it go back, which takes a second. A message that comes
// meanwhile goes back, too.
func TestInOrderReceivesWhileAKeyGoesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &cuts{bus: declared(t)}
		c.before = func(acks []core.Ack) bool {
			if acks[0].Verdict == core.VerdictRelease {
				time.Sleep(time.Second)
			}
			return false
		}
		es := messages(6, waybill.Key("k"))
		x := inboxed{done: map[string]bool{}}
		stop := start(t, c, consumer.Options{}, waybill.Subscription{InOrder: true}, handle(func(_ context.Context, d *waybill.Delivery) error {
			if id := d.Envelope.ID; id != "id-1" || x.done["failed"] {
				x.add(id)
				return nil
			}
			x.done["failed"] = true
			time.Sleep(time.Second)
			c.lose(d)
			time.Sleep(time.Second / 4) // it has come again, and the consumer receives
			return waybill.Reject(errBoom)
		}))
		c.send(t, es[:4]...)
		time.Sleep(3 * time.Second / 2)
		c.send(t, es[4:]...)
		queued(t, c.bus, memtransport.Depth{})
		stop()
		if d := cmp.Diff([]string{"id-1", "id-2", "id-3", "id-4", "id-5", "id-6"}, x.effects); d != "" {
			t.Error(d)
		}
	})
}

// OR-09: however often connections are lost, the effects of a key come in the order of its messages, and a parked
// message takes no other one's place.
func TestInOrderCutsModel(t *testing.T) {
	t.Parallel()
	histories(t, cutHistory)
}

func cutHistory(t *testing.T, rt *rapid.T, seed uint64, batch bool) {
	t.Helper()
	patience.BudgetOf(t).Time(5*time.Minute, "retries in place of 100 ms to 1 s, begun again after each cut")
	rng := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	random := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rng.IntN(n)
	}
	c := &cuts{bus: declared(t)}
	begin := time.Now()
	cut := func(one int) bool { return random(one) == 0 && time.Since(begin) < time.Minute }
	c.before = func([]core.Ack) bool { return cut(8) }
	const n, keys = 60, 4
	es := messages(n)
	place, byKey := map[string]int{}, map[string]int{}
	for i := range es {
		es[i].Key = fmt.Sprint("k", rng.IntN(keys))
		place[es[i].ID] = byKey[es[i].Key]
		byKey[es[i].Key]++
	}
	last := map[string]int{} // one more than the place of the latest effect, by key
	settled := map[string]bool{}
	parked := map[string]bool{}
	c.settle = func(acks []core.Ack) error {
		mu.Lock()
		defer mu.Unlock()
		for _, a := range acks {
			parked[a.Delivery.Envelope.ID] = parked[a.Delivery.Envelope.ID] || a.Verdict == core.VerdictReject
		}
		return nil
	}
	effect := func(d *waybill.Delivery) {
		id, key := d.Envelope.ID, d.Envelope.Key
		if settled[id] {
			return // the inbox knows it
		}
		settled[id] = true
		if place[id] < last[key] {
			rt.Errorf("seed %d: %s, number %d of %s, has its effect after number %d", seed, id, place[id], key, last[key]-1)
		}
		last[key] = max(last[key], place[id]+1)
	}
	one := func(d *waybill.Delivery) error {
		time.Sleep(time.Duration(random(50)) * time.Millisecond)
		if cut(20) {
			c.cut()
		}
		mu.Lock()
		defer mu.Unlock()
		switch r := rng.IntN(10); {
		case settled[d.Envelope.ID]:
		case r < 2:
			return errBoom
		case r == 2:
			return waybill.Reject(errBoom)
		}
		effect(d)
		return nil
	}
	h := handle(func(_ context.Context, d *waybill.Delivery) error { return one(d) })
	if batch {
		h.BatchSize = 8
		h.Batch = func(_ context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
			time.Sleep(time.Duration(random(50)) * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			if rng.IntN(2) == 0 {
				return nil, errBoom
			}
			for _, d := range ds {
				effect(d)
			}
			return make([]waybill.HandlerStatus, len(ds)), nil
		}
	}
	c.send(t, es...)
	o := consumer.Options{Concurrency: 3, Prefetch: 12, Retry: waybill.RetryDelays(100*time.Millisecond, time.Second)}
	stop := start(t, c, o, waybill.Subscription{InOrder: true, MaxDeliveries: -1}, h)
	rest(t, c.bus, 4*time.Minute)
	stop()
	if d := c.Depth(queue); d.Ready+d.Held+d.Delayed != 0 {
		rt.Errorf("seed %d: %+v is left", seed, d)
	}
	for _, e := range es {
		if !settled[e.ID] && !parked[e.ID] {
			rt.Errorf("seed %d: %s has had no effect and is not parked: %+v, %d parked", seed, e.ID, c.Depth(queue), len(c.Parked(queue)))
		}
	}
}
