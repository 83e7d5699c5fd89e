package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// OR-09: a message that fails is retried in place: its key waits, other keys go on. A message that fails for good lets
// its key go on.
func TestInOrderRetriesInPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(25*time.Second, "three retries in place: 3, 10 and 10 s")
		b := declared(t)
		var got seen[string]
		begin := time.Now()
		h := handle(func(_ context.Context, d *waybill.Delivery) error {
			got.add(fmt.Sprintf("%s.%d@%s", d.Envelope.ID, d.Attempt, time.Since(begin)))
			switch {
			case d.Envelope.ID == "id-1" && d.Attempt == 1:
				return waybill.RetryAfter(errBoom, 3*time.Second)
			case d.Envelope.ID == "id-1" && d.Attempt == 2, d.Envelope.ID == "id-5":
				return errBoom
			}
			return nil
		})
		stop := start(t, b, consumer.Options{}, waybill.Subscription{InOrder: true, Retry: waybill.RetryDelays(time.Second, 10*time.Second)}, h)
		es := messages(6)
		for i := range es {
			es[i].Key = fmt.Sprint("k", i%2) // id-1, 3, 5 are k0
		}
		for i := range es {
			b.send(t, es[i])
			settle()
		}
		queued(t, b, memtransport.Depth{Parked: 1})
		stop()
		want := []string{
			"id-1.1@0s", "id-2.1@0s", "id-4.1@0s", "id-6.1@0s",
			"id-1.2@3s", "id-1.3@13s", "id-3.1@13s",
			"id-5.1@13s", "id-5.2@14s", "id-5.3@24s",
		}
		if diff := cmp.Diff(want, got.all()); diff != "" {
			t.Error(diff)
		}
		wantParked(t, b, waybill.ReasonAttempts, 1)
		if v := b.verdicts(); v[core.VerdictRetry] != 0 || v[core.VerdictRelease] != 0 {
			t.Errorf("verdicts %v", v)
		}
	})
}

// OR-09: at a stop what waits behind a message is released after it, so that a queue that puts back at its head keeps
// the order.
func TestInOrderReleasesInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		stop := start(t, b, consumer.Options{}, waybill.Subscription{InOrder: true}, handle(func(context.Context, *waybill.Delivery) error {
			time.Sleep(time.Second)
			return errBoom
		}))
		b.publish(t, 3, waybill.Key("k"))
		settle()
		stop()
		var got []string
		for _, a := range b.acks {
			got = append(got, fmt.Sprintf("%t %s", a.Verdict == core.VerdictRelease, a.Delivery.Envelope.ID))
		}
		if diff := cmp.Diff([]string{"true id-1", "true id-2", "true id-3"}, got); diff != "" {
			t.Error(diff)
		}
		wantDepth(t, b, memtransport.Depth{Ready: 3})
	})
}

// OR-09: refused at start where the transport cannot.
func TestInOrderIsRefused(t *testing.T) {
	t.Parallel()
	b := declared(t)
	b.traits = func(tr *core.SubscriberTraits) { tr.SingleActive = false }
	c := newConsumer(t, b, consumer.Options{})
	err := c.Handle(waybill.Subscription{Queue: queue, InOrder: true}, handle(func(context.Context, *waybill.Delivery) error { return nil }))
	if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), "InOrder") {
		t.Error(err)
	}
}

// A transport that cannot deliver later can still retry in place.
func TestInOrderNeedsNoDelayedDelivery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		b.traits = func(tr *core.SubscriberTraits) { tr.DelaysRetries = false }
		stop := start(t, b, consumer.Options{}, waybill.Subscription{InOrder: true}, handle(func(_ context.Context, d *waybill.Delivery) error {
			if d.Attempt == 1 {
				return errBoom
			}
			return nil
		}))
		b.publish(t, 3)
		b.publish(t, 3, waybill.Key("k"))
		queued(t, b, memtransport.Depth{})
		stop()
		wantDepth(t, b, memtransport.Depth{})
	})
}

// OR-09, CO-18: through any failures and stops, the effects of a key come in the order of its messages. No message is
// handled before an earlier one of its key is done or parked. Settles fail at random. A message that was decided is
// handled again after a stop only.
func TestInOrderModel(t *testing.T) {
	t.Parallel()
	histories(t, inOrderHistory)
}

func inOrderHistory(t *testing.T, rt *rapid.T, seed uint64, batch bool) {
	t.Helper()
	patience.BudgetOf(t).Time(2*time.Minute, "seven rounds of up to 5 s, with pauses and retries of seconds")
	rng := rand.New(rand.NewPCG(seed, 1))
	b := declared(t)
	const n, keys = 60, 4
	next := map[string]int{} // the place of the next message of a key
	place := map[string]int{}
	es := messages(n)
	byKey := map[string]int{}
	for i := range es {
		es[i].Key = fmt.Sprint("k", rng.IntN(keys))
		place[es[i].ID] = byKey[es[i].Key]
		byKey[es[i].Key]++
	}
	var mu sync.Mutex
	random := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rng.IntN(n)
	}
	var down atomic.Bool // settles fail
	b.settle = func(acks []core.Ack) error {
		if acks[0].Verdict != core.VerdictRelease && (down.Load() || random(4) == 0) {
			return errBoom
		}
		return nil
	}
	decided := map[string]bool{} // since the latest start
	begins := func(d *waybill.Delivery) {
		key := d.Envelope.Key
		if id := d.Envelope.ID; decided[id] {
			rt.Errorf("seed %d: %s, number %d of %s, is handled again after it was decided", seed, id, place[id], key)
		}
	}
	nap := func() { time.Sleep(time.Duration(random(50)) * time.Millisecond) }
	// one decides about d; it moves its key on if d is done or given up.
	one := func(d *waybill.Delivery) error {
		nap()
		mu.Lock()
		defer mu.Unlock()
		begins(d)
		key, p := d.Envelope.Key, place[d.Envelope.ID]
		if p > next[key] {
			rt.Errorf("seed %d: %s, number %d of %s, is handled while number %d is not done", seed, d.Envelope.ID, p, key, next[key])
		}
		last := func() { // what fails for the last time is parked
			if d.Attempt >= 4 {
				next[key], decided[d.Envelope.ID] = max(next[key], p+1), true
			}
		}
		switch r := rng.IntN(20); {
		case r < 4:
			last()
			return errBoom
		case r == 4:
			return waybill.Outage(errBoom)
		case r == 5:
			next[key], decided[d.Envelope.ID] = max(next[key], p+1), true
			return waybill.Reject(errBoom)
		case r == 6:
			last()
			panic("oh")
		}
		next[key], decided[d.Envelope.ID] = max(next[key], p+1), true
		return nil
	}
	h := handle(func(_ context.Context, d *waybill.Delivery) error { return one(d) })
	if batch {
		h.BatchSize = 8
		h.Batch = func(_ context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
			nap()
			mu.Lock()
			defer mu.Unlock()
			after := map[string]int{}
			for _, d := range ds {
				begins(d)
				key, p := d.Envelope.Key, place[d.Envelope.ID]
				if p > max(next[key], after[key]) {
					rt.Errorf("seed %d: %s, number %d of %s, is in a batch while number %d is not done", seed, d.Envelope.ID, p, key, next[key])
				}
				after[key] = max(after[key], p+1)
			}
			switch r := rng.IntN(8); {
			case r == 0:
				return nil, waybill.Outage(errBoom)
			case r < 4:
				return nil, errBoom
			}
			for key, p := range after {
				next[key] = max(next[key], p)
			}
			for _, d := range ds {
				decided[d.Envelope.ID] = true
			}
			return make([]waybill.HandlerStatus, len(ds)), nil
		}
	}
	for _, e := range es {
		b.send(t, e)
	}
	o := consumer.Options{Concurrency: 3, Prefetch: 12, Retry: waybill.RetryDelays(100*time.Millisecond, time.Second, time.Second), Pause: waybill.Backoff{Cap: 2 * time.Second}}
	for range 6 { // stopped and started again
		stop := start(t, b, o, waybill.Subscription{InOrder: true, MaxDeliveries: -1}, h)
		time.Sleep(time.Duration(random(4000)) * time.Millisecond)
		down.Store(random(3) == 0)
		time.Sleep(time.Duration(random(1000)) * time.Millisecond)
		stop()
		down.Store(false)
		clear(decided)
	}
	stop := start(t, b, o, waybill.Subscription{InOrder: true, MaxDeliveries: -1}, h)
	rest(t, b, 10*time.Minute)
	stop()
	if d := b.Depth(queue); d.Ready+d.Held+d.Delayed != 0 {
		rt.Errorf("seed %d: %+v is left", seed, d)
	}
}

// OR-09: messages that wait for their retry in place leave their handlers to others that come.
func TestInOrderReceivesWhileOthersWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		const failing = 7
		begun := make(chan struct{}, failing)
		var good sync.WaitGroup
		good.Add(1)
		h := handle(func(_ context.Context, d *waybill.Delivery) error {
			if d.Envelope.ID == "good" {
				good.Done()
				return nil
			}
			begun <- struct{}{}
			time.Sleep(time.Second) // until all of them run
			return waybill.RetryAfter(errBoom, time.Hour)
		})
		stop := start(t, b, consumer.Options{}, waybill.Subscription{InOrder: true, Concurrency: failing, Prefetch: failing + 1}, h)
		begin := time.Now()
		es := messages(failing + 1)
		for i := range es {
			es[i].Key = fmt.Sprint("k", i)
		}
		es[failing].ID = "good"
		for i := range failing {
			b.send(t, es[i])
		}
		for range failing {
			<-begun
		}
		time.Sleep(2 * time.Second) // all of them wait
		b.send(t, es[failing])
		good.Wait()
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("handled after %s", took)
		}
		stop()
	})
}

// OR-09: a suspect that waits for its retry has not ended the process: others are handled meanwhile.
func TestInOrderSuspectWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		b.redeliver = func(d *waybill.Delivery) {
			if d.Envelope.ID == "id-1" {
				d.Redeliveries = 2
			}
		}
		var good sync.WaitGroup
		good.Add(1)
		stop := start(t, b, consumer.Options{}, waybill.Subscription{InOrder: true, MaxDeliveries: 4}, handle(func(_ context.Context, d *waybill.Delivery) error {
			if d.Envelope.ID != "id-1" {
				good.Done()
				return nil
			}
			return waybill.RetryAfter(errBoom, time.Hour)
		}))
		begin := time.Now()
		es := messages(2)
		es[0].Key, es[1].Key = "k", "other"
		b.send(t, es[0])
		settle()
		b.send(t, es[1])
		good.Wait()
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("handled after %s", took)
		}
		stop()
	})
}

// OR-09: a message that waits in place for its retry is given up before the broker takes it back: a handler then runs
// no more often than its policy allows. A policy that is longer is refused.
func TestInOrderEndsBeforeTheBrokerTakesItBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most = 30 * time.Minute
		patience.BudgetOf(t).Time(most, "a message waits in place for as long as it may")
		b := declared(t)
		b.traits = func(tr *core.SubscriberTraits) { tr.AckTimeout = most }
		var log sharedtest.Log
		begin, runs := time.Now(), make(chan time.Duration, 100)
		o := consumer.Options{Logger: log.Logger(slog.LevelWarn)}
		sub := waybill.Subscription{InOrder: true, Retry: waybill.RetryDelays(time.Second, time.Minute)}
		stop := start(t, b, o, sub, handle(func(context.Context, *waybill.Delivery) error {
			runs <- time.Since(begin)
			return waybill.RetryAfter(errBoom, 2*time.Hour)
		}))
		e := messages(1)[0]
		e.Key = "k"
		b.send(t, e)
		var last time.Duration
		for range 3 {
			last = <-runs
		}
		if last < 10*time.Minute || last >= most {
			t.Errorf("the third run was after %s", last)
		}
		settle()
		stop()
		if len(runs) > 0 {
			t.Errorf("%d runs more", len(runs))
		}
		if !strings.Contains(log.String(), "event=consumer.delay_capped") {
			t.Errorf("the log does not say so: %s", log.String())
		}
		sub = waybill.Subscription{Queue: "q", InOrder: true, Retry: waybill.RetryDelays(10*time.Minute, 6*time.Minute)}
		err := newConsumer(t, b, consumer.Options{}).Handle(sub, handle(func(context.Context, *waybill.Delivery) error { return nil }))
		if err == nil || !strings.Contains(err.Error(), "Retry: the delays add up to 16m0s") {
			t.Errorf("a policy that is too long: %v", err)
		}
	})
}
