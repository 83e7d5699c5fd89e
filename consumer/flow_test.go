package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// CO-01: by type first, or else by topic; a foreign message without a type reaches its topic's handler.
func TestRouting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var got seen[string]
		to := func(name string) waybill.Handler {
			return waybill.Handler{Name: name, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
				got.add(d.Envelope.ID + " to " + name)
				return waybill.HandlerProcessed, nil
			}}
		}
		stop := start(t, b, consumer.Options{Concurrency: 1}, waybill.Subscription{}, to("orders.placed"), to("orders.cancelled"), to("com.example.order"))
		b.send(t,
			waybill.Envelope{ID: "1", Topic: "orders.placed", Type: "orders.placed"},
			waybill.Envelope{ID: "2", Topic: "orders.cancelled"},
			waybill.Envelope{ID: "3", Topic: "orders.placed", Type: "com.example.order"},
			waybill.Envelope{ID: "4", Topic: "orders.placed", Type: "unknown"},
			waybill.Envelope{ID: "5", Topic: "orders.shipped", Type: "unknown"},
		)
		settle()
		stop()
		want := []string{"1 to orders.placed", "2 to orders.cancelled", "3 to com.example.order", "4 to orders.placed"}
		if diff := cmp.Diff(want, got.all()); diff != "" {
			t.Error(diff)
		}
		wantParked(t, b, waybill.ReasonNoHandler, 1)
	})
}

// CO-02: the decoded value, and the delivery in the context.
func TestDeliveryInContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		ran := false
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, waybill.HandlerFor(topic, func(ctx context.Context, v note) error {
			ran = true
			d, ok := waybill.DeliveryFrom(ctx)
			if !ok || v.N != 1 {
				t.Fatalf("value %v, delivery %v", v, ok)
			}
			e := d.Envelope
			got := []any{d.Queue, d.Attempt, e.Topic, e.Headers["h"], e.Tenant, e.CorrelationID, string(e.Body), e.Lineage}
			want := []any{queue, 1, "note.added", "v", "acme", "c-1", `{"N":1}`, []string{"a", "b"}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			if s := waybill.ScopeFrom(ctx); s.CausationID != "id-1" || s.CorrelationID != "c-1" || len(s.Lineage) != 3 {
				t.Errorf("scope: %+v", s)
			}
			return nil
		}))
		es := messages(1, waybill.Header("h", "v"), waybill.Tenant("acme"), waybill.CorrelationID("c-1"))
		es[0].Lineage = []string{"a", "b"}
		b.send(t, es...)
		settle()
		stop()
		if !ran {
			t.Error("the handler did not run")
		}
	})
}

// CO-03: as many handlers at a time as allowed, and no more; by default ten, and as many messages held.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	tests := []struct {
		options   consumer.Options
		sub       waybill.Subscription
		run, held int
	}{
		{consumer.Options{}, waybill.Subscription{}, 10, 10},
		{consumer.Options{Concurrency: 3}, waybill.Subscription{}, 3, 3},
		{consumer.Options{Concurrency: 3, Prefetch: 30}, waybill.Subscription{}, 3, 30},
		{consumer.Options{Concurrency: 3}, waybill.Subscription{Concurrency: 5}, 5, 5},
		{consumer.Options{Concurrency: 3}, waybill.Subscription{InOrder: true}, 3, 6},
		{consumer.Options{Concurrency: 3}, waybill.Subscription{PerGroup: waybill.GroupLimit{Concurrency: 3}}, 3, 6},
		{consumer.Options{Concurrency: 3}, waybill.Subscription{Concurrency: 5, Prefetch: 7}, 5, 7},
		{consumer.Options{}, waybill.Subscription{Prefetch: 4}, 4, 4},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Calls(210, "a hundred messages, with a receive and a settle each at the most")
			b := declared(t)
			var running atomic.Int32
			release := make(chan struct{})
			stop := start(t, b, tt.options, tt.sub, handle(func(context.Context, *waybill.Delivery) error {
				running.Add(1)
				<-release
				return nil
			}))
			b.publish(t, 100)
			settle()
			if n := int(running.Load()); n != tt.run {
				t.Errorf("%+v: %d run, want %d", tt, n, tt.run)
			}
			if d := b.Depth(queue); d.Held != tt.held {
				t.Errorf("%+v: %d held, want %d", tt, d.Held, tt.held)
			}
			close(release)
			settle()
			wantDepth(t, b, memtransport.Depth{})
			stop()
			if b.most > tt.held {
				t.Errorf("%+v: asked for %d at once, want %d", tt, b.most, tt.held)
			}
		})
	}
}

// CO-03: one key one at a time in order, others beside it; a retried message does not hold up its key.
func TestKeysRunBesideEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var busy [5]atomic.Int32
		var order [5]seen[int]
		var most, all atomic.Int32
		stop := start(t, b, consumer.Options{}, waybill.Subscription{Prefetch: 60}, handle(func(_ context.Context, d *waybill.Delivery) error {
			v, err := topic.Decode(&d.Envelope)
			if err != nil {
				return err
			}
			key, _ := strconv.Atoi(d.Envelope.Key)
			if busy[key].Add(1) > 1 {
				t.Errorf("two of key %d at a time", key)
			}
			most.Store(max(most.Load(), all.Add(1)))
			defer func() { busy[key].Add(-1); all.Add(-1) }()
			time.Sleep(time.Second)
			if v.N == 7 && d.Attempt == 1 {
				return waybill.RetryAfter(errBoom, time.Hour)
			}
			order[key].add(v.N)
			return nil
		}))
		es := messages(50)
		for i := range es {
			es[i].Key = strconv.Itoa(i % 5)
		}
		begin := time.Now()
		b.send(t, es...)
		patience.Pass(t, 30*time.Second)
		if most.Load() != 5 {
			t.Errorf("at most %d ran at a time, want 5", most.Load())
		}
		wantDepth(t, b, memtransport.Depth{Delayed: 1})
		patience.Pass(t, 2*time.Hour)
		stop()
		for key := range order {
			var want []int
			for n := key + 1; n <= 50; n += 5 {
				if n != 7 {
					want = append(want, n)
				}
			}
			if key == 1 {
				want = append(want, 7)
			}
			if diff := cmp.Diff(want, order[key].all()); diff != "" {
				t.Errorf("key %d after %s: %s", key, time.Since(begin), diff)
			}
		}
	})
}

// CO-05: an outage costs no attempt, releases everything, pauses, probes with one message, and heals by itself.
// While all meet it nothing is held.
func TestOutagePauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		begin := time.Now()
		up := begin.Add(10 * time.Minute)
		var calls seen[time.Duration]
		var handled atomic.Int32
		o := consumer.Options{Pause: waybill.Backoff{Jitter: waybill.JitterNone}}
		stop := start(t, b, o, waybill.Subscription{Retry: waybill.RetryDelays(), MaxDeliveries: 3}, handle(func(_ context.Context, d *waybill.Delivery) error {
			if d.Attempt != 1 || d.Redeliveries != 0 {
				t.Errorf("attempt %d, redelivery %d", d.Attempt, d.Redeliveries)
			}
			if time.Now().Before(up) {
				if time.Now().After(begin) {
					calls.add(time.Since(begin))
				}
				return waybill.Outage(errBoom)
			}
			handled.Add(1)
			return nil
		}))
		b.publish(t, 100)
		patience.Pass(t, 9*time.Minute)
		got := calls.all()
		for i, want := range []int{1, 3, 7, 15, 31, 61, 91} { // one at a time, ever more seldom
			if got[i] != time.Duration(want)*time.Second {
				t.Errorf("probe %d at %s, want %ds", i+1, got[i], want)
			}
		}
		if len(got) != 5+16 {
			t.Errorf("%d probes: %v", len(got), got)
		}
		if d := b.Depth(queue); d.Held > 0 || d.Ready+d.Delayed != 100 || d.Delayed > len(got)-5 {
			t.Errorf("depth is %+v after %d probes", d, len(got))
		}
		if n := b.verdicts()[core.VerdictRelease]; n > 2*20+len(got) {
			t.Errorf("%d released for %d probes", n, len(got))
		}
		patience.Pass(t, 2*time.Minute)
		stop()
		if n := handled.Load(); n != 100 {
			t.Errorf("%d handled after the outage, want 100", n)
		}
		wantDepth(t, b, memtransport.Depth{})
	})
}

// CO-05: a released message is not run again before the pause is over, and a probe that says nothing about the outage
// leads to the next at once. A message that has failed as a probe twice is away for the next pause, so that another one
// probes.
func TestProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		begin := time.Now()
		var calls seen[string]
		o := consumer.Options{Concurrency: 1, Prefetch: 10, Pause: waybill.Backoff{Jitter: waybill.JitterNone}}
		stop := start(t, b, o, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
			since := time.Since(begin).Truncate(time.Second)
			calls.add(d.Envelope.ID + " at " + since.String())
			time.Sleep(time.Millisecond) // meanwhile the receiver waits for more
			switch {
			case since == time.Second && d.Envelope.ID == "id-1":
				return &waybill.Error{Class: waybill.ClassPermanent, Reason: waybill.ReasonUndecodable, Err: errBoom}
			case since < 5*time.Second:
				return waybill.Outage(errBoom)
			}
			return nil
		}))
		b.publish(t, 3)
		queued(t, b, memtransport.Depth{Parked: 1})
		stop()
		want := []string{"id-1 at 0s", "id-1 at 1s", "id-2 at 1s", "id-2 at 3s", "id-3 at 7s", "id-2 at 7s"}
		if diff := cmp.Diff(want, calls.all()); diff != "" {
			t.Error(diff)
		}
	})
}

// CO-05: a message that was received but not started does not run in an outage; a probe without a result leads to the
// next.
func TestOutageReleasesUnstarted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var up atomic.Bool
		var ran seen[string]
		o := consumer.Options{Concurrency: 1, Prefetch: 10, Pause: waybill.Backoff{Jitter: waybill.JitterNone}}
		stop := start(t, b, o, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
			ran.add(d.Envelope.ID)
			if _, err := topic.Decode(&d.Envelope); err != nil {
				return err
			}
			if !up.Load() {
				return waybill.Outage(errBoom)
			}
			return nil
		}))
		es := messages(10)
		for i := range es {
			es[i].Key = "one"
		}
		es[1].Body = nil
		b.send(t, es...)
		settle()
		if diff := cmp.Diff([]string{"id-1"}, ran.all()); diff != "" {
			t.Error(diff)
		}
		wantDepth(t, b, memtransport.Depth{Ready: 10})
		up.Store(true)
		time.Sleep(2 * time.Second)
		stop()
		want := []string{"id-1"}
		for i := range 10 {
			want = append(want, fmt.Sprintf("id-%d", i+1))
		}
		if diff := cmp.Diff(want, ran.all()); diff != "" {
			t.Error(diff)
		}
	})
}

// CO-08: a suspect runs alone, after everything else was settled or released, and nothing is received meanwhile.
func TestSuspectsAreHandledAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(22*time.Second, "each of ten suspects runs alone for a second")
		b := declared(t)
		b.redeliver = func(d *waybill.Delivery) {
			if n, _ := strconv.Atoi(strings.TrimPrefix(d.Envelope.ID, "id-")); n%3 == 0 {
				d.Redeliveries = 10
			}
		}
		b.settle = func([]core.Ack) error { time.Sleep(100 * time.Millisecond); return nil }
		var running, ran, suspects atomic.Int32
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
			alone := running.Add(1) == 1
			defer running.Add(-1)
			ran.Add(1)
			if d.Redeliveries == 0 {
				time.Sleep(time.Second)
				return nil
			}
			suspects.Add(1)
			if got := b.Depth(queue); !alone || got.Held != 1 {
				t.Errorf("%s was not alone, or not everything was settled: %+v", d.Envelope.ID, got)
			}
			time.Sleep(time.Second)
			if got := b.Depth(queue); running.Load() != 1 || got.Held != 1 {
				t.Errorf("%s did not stay alone: %+v", d.Envelope.ID, got)
			}
			return nil
		}))
		es := messages(30)
		for i := range es {
			es[i].Key = strconv.Itoa(i % 20)
		}
		b.send(t, es...)
		queued(t, b, memtransport.Depth{})
		stop()
		if ran.Load() != 30 || suspects.Load() != 10 {
			t.Errorf("%d ran, %d of them suspects; want 30 and 10", ran.Load(), suspects.Load())
		}
	})
}

// CO-08: over restarts, a poison message among innocents.
func TestPoisonDoesNotTakeInnocents(t *testing.T) {
	t.Parallel()
	const n = 40
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(10*time.Hour+time.Minute, "30 processes, of which ten meet no poison and run for an hour")
		b := declared(t)
		b.publish(t, n)
		var done sync.Map
		var left []string
		var crashes atomic.Int32
		// Each round is a process: when it meets the poison, none of its later acts reaches the broker.
		for range 30 {
			crashed := make(chan struct{})
			var dead atomic.Bool
			b.settle = func([]core.Ack) error {
				if dead.Load() {
					return errors.New("the process is dead")
				}
				return nil
			}
			stop := start(t, b, consumer.Options{Concurrency: 4, Prefetch: n, DrainTimeout: -1}, waybill.Subscription{}, handle(func(ctx context.Context, d *waybill.Delivery) error {
				if dead.Load() {
					return nil
				}
				if d.Envelope.ID == "id-5" {
					dead.Store(true)
					crashes.Add(1)
					close(crashed)
					<-ctx.Done()
					return ctx.Err()
				}
				time.Sleep(time.Second)
				if !dead.Load() {
					done.Store(d.Envelope.ID, true)
				}
				return nil
			}))
			settle()
			select {
			case <-crashed:
			case <-time.After(time.Hour):
			}
			stop()
		}
		for _, p := range b.Parked(queue) {
			left = append(left, p.Envelope.ID)
		}
		handled := 0
		done.Range(func(any, any) bool { handled++; return true })
		if diff := cmp.Diff([]string{"id-5"}, left); diff != "" || handled != n-1 {
			t.Errorf("parked: %v; %d of %d innocents handled", left, handled, n-1)
		}
		if crashes.Load() != 20 {
			t.Errorf("%d crashes", crashes.Load())
		}
	})
}

// CO-17: two consumers share a queue; what one releases reaches the other at once.
func TestConsumersShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(16*time.Second, "the drain timeout of a replica whose handlers hang")
		b := declared(t)
		var counts [2]atomic.Int32
		hold := make(chan struct{})
		replica := func(i int) func() {
			return start(t, b, consumer.Options{Concurrency: 2, Prefetch: 10}, waybill.Subscription{}, handle(func(ctx context.Context, _ *waybill.Delivery) error {
				if i == 0 {
					select {
					case <-hold:
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				counts[i].Add(1)
				time.Sleep(time.Second)
				return nil
			}))
		}
		stop0 := replica(0)
		b.publish(t, 20)
		settle()
		stop1 := replica(1)
		patience.Pass(t, 20*time.Second)
		if n := counts[1].Load(); n != 10 {
			t.Errorf("the second handled %d, want 10", n)
		}
		begin := time.Now()
		stop0() // its 2 running are cut off after the drain timeout, its 8 prefetched go back at once
		patience.Pass(t, 10*time.Second)
		if n := counts[1].Load(); n != 20 {
			t.Errorf("the second handled %d after %s, want 20", n, time.Since(begin))
		}
		stop1()
		wantDepth(t, b, memtransport.Depth{})
	})
}
