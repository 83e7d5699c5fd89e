package consumer_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/internal/patience"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// tenants returns n messages of each tenant, one tenant after the other: a-1, a-2, …, b-1, ….
func tenants(n int, names ...string) []waybill.Envelope {
	var all []waybill.Envelope
	for _, name := range names {
		es := messages(n, waybill.Tenant(name))
		for i := range es {
			es[i].ID = fmt.Sprintf("%s-%d", name, i+1)
		}
		all = append(all, es...)
	}
	return all
}

// crowd is a handler that counts how many run at a time, by group.
type crowd struct {
	mu      sync.Mutex
	by      func(d *waybill.Delivery) string
	takes   time.Duration
	running map[string]int
	most    map[string]int
	starts  map[string][]time.Duration
	began   time.Time
}

func newCrowd(takes time.Duration) *crowd {
	return &crowd{
		by: func(d *waybill.Delivery) string { return d.Envelope.Tenant }, takes: takes,
		running: map[string]int{}, most: map[string]int{}, starts: map[string][]time.Duration{}, began: time.Now(),
	}
}

func (c *crowd) handler() waybill.Handler {
	return handle(func(ctx context.Context, d *waybill.Delivery) error {
		defer c.enter(d)()
		select {
		case <-time.After(c.takes):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// enter counts a handler that begins, and returns the function that counts its end.
func (c *crowd) enter(d *waybill.Delivery) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.by(d)
	c.running[g]++
	c.most[g] = max(c.most[g], c.running[g])
	c.starts[g] = append(c.starts[g], time.Since(c.began))
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.running[g]--
	}
}

// now returns how many run.
func (c *crowd) now() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.running)
}

// wantRate checks that in no span more than burst + rate×t of starts are.
func wantRate(t interface{ Errorf(string, ...any) }, starts []time.Duration, rate float64, burst int) {
	for i := range starts {
		for j := i; j < len(starts); j++ {
			span := starts[j] - starts[i]
			if allowed := float64(burst) + rate*span.Seconds() + 1e-6; float64(j-i+1) > allowed {
				t.Errorf("%d begin in %s from %s on; %g are allowed", j-i+1, span, starts[i], allowed)
				return
			}
		}
	}
}

// A tenant at its limit waits, others go on; a waiting message runs as soon as the limit lets it, in order of arrival.
func TestGroupConcurrency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		c := newCrowd(time.Second)
		b.send(t, tenants(12, "flood")...)
		b.send(t, tenants(4, "small", "other", "")...)
		stop := start(t, b, consumer.Options{}, waybill.Subscription{
			Concurrency: 10, Prefetch: 30, PerGroup: waybill.GroupLimit{Concurrency: 2},
		}, c.handler())
		time.Sleep(time.Second / 2)
		if got, want := c.now(), map[string]int{"flood": 2, "small": 2, "other": 2, "": 4}; !maps.Equal(got, want) {
			t.Errorf("these run: %v, want %v", got, want)
		}
		queued(t, b, memtransport.Depth{})
		stop()
		if want := map[string]int{"flood": 2, "small": 2, "other": 2, "": 4}; !maps.Equal(c.most, want) {
			t.Errorf("these ran at a time: %v, want %v", c.most, want)
		}
		sec := func(n ...int) (ds []time.Duration) {
			for _, n := range n {
				ds = append(ds, time.Duration(n)*time.Second)
			}
			return ds
		}
		want := map[string][]time.Duration{"flood": sec(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5), "small": sec(0, 0, 1, 1), "other": sec(0, 0, 1, 1), "": sec(0, 0, 0, 0)}
		if diff := cmp.Diff(want, c.starts); diff != "" {
			t.Error(diff)
		}
		wantDepth(t, b, memtransport.Depth{})
	})
}

// A rate for each tenant, with a burst after a quiet time.
func TestGroupRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		c := newCrowd(0)
		stop := start(t, b, consumer.Options{}, waybill.Subscription{Prefetch: 100, PerGroup: waybill.GroupLimit{Rate: 2, Burst: 3}}, c.handler())
		b.send(t, tenants(9, "a", "b")...)
		patience.Pass(t, time.Minute)
		b.send(t, tenants(2, "a", "b", "c")...)
		settle()
		stop()
		const half = time.Second / 2
		slow := []time.Duration{0, 0, 0, half, 2 * half, 3 * half, 4 * half, 5 * half, 6 * half, time.Minute, time.Minute}
		want := map[string][]time.Duration{"a": slow, "b": slow, "c": {time.Minute, time.Minute}}
		if diff := cmp.Diff(want, c.starts); diff != "" {
			t.Error(diff)
		}
	})
}

// A group that rests for a moment does not wait for longer afterwards.
func TestGroupRateAfterARest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		c := newCrowd(0)
		stop := start(t, b, consumer.Options{}, waybill.Subscription{PerGroup: waybill.GroupLimit{Rate: 2, Burst: 3}}, c.handler())
		b.send(t, tenants(2, "a")...)
		time.Sleep(100 * time.Millisecond)
		b.send(t, tenants(3, "a")...)
		queued(t, b, memtransport.Depth{})
		stop()
		const ms = time.Millisecond
		if diff := cmp.Diff([]time.Duration{0, 0, 100 * ms, 500 * ms, 1000 * ms}, c.starts["a"]); diff != "" {
			t.Error(diff)
		}
	})
}

// CO-19: a message that has its place in a group, but no handler yet, when a pause releases it, leaves no trace.
func TestGroupsGoOnAfterAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		failed := false
		var done seen[string]
		h := handle(func(_ context.Context, d *waybill.Delivery) error {
			switch id := d.Envelope.ID; {
			case id == "b-1":
				time.Sleep(5 * time.Second)
			case id == "a-3" && !failed: // a-4 may begin too
				failed = true
				return waybill.Outage(errBoom)
			}
			done.add(d.Envelope.ID)
			return nil
		})
		b.send(t, append(tenants(4, "a"), tenants(1, "b")...)...)
		stop := start(t, b, consumer.Options{Concurrency: 1}, waybill.Subscription{Prefetch: 10, PerGroup: waybill.GroupLimit{Rate: 1, Burst: 2}}, h)
		queued(t, b, memtransport.Depth{})
		stop()
		if got := done.all(); !failed || len(got) != 5 {
			t.Errorf("these were handled: %v, want five", got)
		}
	})
}

// OR-09: with the order kept a limit holds up a key with all that is behind it, and a retry in place counts.
func TestGroupsKeepTheOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(25*time.Second, "a rate of one in ten seconds")
		b := declared(t)
		var got seen[string]
		begin := time.Now()
		h := handle(func(_ context.Context, d *waybill.Delivery) error {
			got.add(fmt.Sprintf("%s.%d@%s", d.Envelope.ID, d.Attempt, time.Since(begin)))
			if d.Envelope.ID == "a-1" && d.Attempt == 1 {
				return errBoom
			}
			return nil
		})
		es := tenants(2, "a", "b")
		for i := range es {
			es[i].Key = "k-" + es[i].Tenant
		}
		for i := range es {
			b.send(t, es[i])
		}
		stop := start(t, b, consumer.Options{}, waybill.Subscription{
			InOrder: true, Retry: waybill.RetryDelays(time.Second), PerGroup: waybill.GroupLimit{Rate: 0.1},
		}, h)
		queued(t, b, memtransport.Depth{})
		stop()
		all := got.all()
		slices.SortStableFunc(all, func(x, y string) int { return strings.Compare(x[:1], y[:1]) })
		want := []string{"a-1.1@0s", "a-1.2@10s", "a-2.1@20s", "b-1.1@0s", "b-2.1@10s"}
		if diff := cmp.Diff(want, all); diff != "" {
			t.Error(diff)
		}
	})
}

// CO-11 CO-19: a stop, and a pause, releases at once the messages that wait for their group.
func TestGroupsReleaseWhatWaits(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]bool{"stop": false, "pause": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := declared(t)
				fail := make(chan struct{})
				h := handle(func(ctx context.Context, _ *waybill.Delivery) error {
					select {
					case <-fail:
						return waybill.Outage(errBoom)
					case <-ctx.Done():
						return ctx.Err()
					}
				})
				b.send(t, tenants(5, "a")...)
				stop := start(t, b, consumer.Options{Pause: waybill.Backoff{Base: time.Hour, Cap: time.Hour}, DrainTimeout: time.Minute},
					waybill.Subscription{PerGroup: waybill.GroupLimit{Concurrency: 1}}, h)
				settle()
				if outage {
					close(fail)
					settle()
					wantDepth(t, b, memtransport.Depth{Ready: 5})
				} else {
					time.AfterFunc(time.Second, func() { // while the handler that runs is drained
						wantDepth(t, b, memtransport.Depth{Ready: 4, Held: 1})
						close(fail)
					})
				}
				stop()
				wantDepth(t, b, memtransport.Depth{Ready: 5})
			})
		})
	}
}

// CO-08: suspects obey the rate of their group, and are not lost behind what waits.
func TestGroupsAndSuspects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		b.suspects("s")
		c := newCrowd(0)
		es := tenants(4, "a")
		es[1].ID, es[3].ID = "s-1", "s-2"
		b.send(t, es...)
		stop := start(t, b, consumer.Options{}, waybill.Subscription{PerGroup: waybill.GroupLimit{Rate: 1, Concurrency: 1}}, c.handler())
		queued(t, b, memtransport.Depth{})
		stop()
		if len(c.starts["a"]) != 4 {
			t.Errorf("handled at %v, want four", c.starts["a"])
		}
		wantRate(t, c.starts["a"], 1, 1)
		wantDepth(t, b, memtransport.Depth{})
	})
}

// CO-08 CO-19: a pause forgets the messages that waited in groups: later a suspect goes alone, and Health reports no
// waiting message.
func TestNoGroupWaitsAfterAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		b.suspects("s")
		failed := false
		var done seen[string]
		h := handle(func(_ context.Context, d *waybill.Delivery) error {
			if !failed {
				failed = true
				return waybill.Outage(errBoom)
			}
			done.add(d.Envelope.ID)
			return nil
		})
		b.send(t, tenants(5, "a")...)
		c := newConsumer(t, b, consumer.Options{})
		if err := c.Handle(waybill.Subscription{Queue: queue, PerGroup: waybill.GroupLimit{Concurrency: 1}}, h); err != nil {
			t.Fatal(err)
		}
		stop := run(t, c)
		time.Sleep(4 * time.Second)
		suspect := tenants(1, "b")
		suspect[0].ID = "s-1"
		b.send(t, suspect...)
		time.Sleep(4 * time.Second)
		if got := done.all(); len(got) != 6 {
			t.Errorf("these were handled: %v, want six, the suspect too", got)
		}
		if h := c.Health(t.Context()); strings.Contains(h.String(), "limited") {
			t.Errorf("health: %s", h)
		}
		wantDepth(t, b, memtransport.Depth{})
		stop()
	})
}

// Groups are what By says. A By that panics parks its message.
func TestGroupsOfOnesOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		c := newCrowd(time.Second)
		c.by = func(d *waybill.Delivery) string { return d.Envelope.Headers["region"] }
		es := append(messages(3, waybill.Header("region", "eu")), messages(1, waybill.Header("region", "?"))...)
		es[3].ID = "id-4"
		b.send(t, es...)
		stop := start(t, b, consumer.Options{}, waybill.Subscription{PerGroup: waybill.GroupLimit{Concurrency: 1, By: func(d *waybill.Delivery) string {
			if d.Envelope.ID == "id-4" {
				panic("no such region")
			}
			return c.by(d)
		}}}, c.handler())
		queued(t, b, memtransport.Depth{Parked: 1})
		stop()
		if c.most["eu"] != 1 || len(c.starts["eu"]) != 3 {
			t.Errorf("%v ran, %v at a time", c.starts, c.most)
		}
		wantParked(t, b, waybill.ReasonRejected, 1)
		if p := b.Parked(queue); !strings.Contains(p[0].Err, "PerGroup.By panicked: no such region") {
			t.Error(p[0].Err)
		}
	})
}

// CO-03: with any messages, no group is above its limits, everything is handled, and keys keep their order.
func TestGroupsAtRandom(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		limit := waybill.GroupLimit{Concurrency: rapid.IntRange(0, 3).Draw(rt, "concurrency"), Rate: rapid.SampledFrom([]float64{0, 0.5, 3, 50}).Draw(rt, "rate")}
		if limit.Rate > 0 {
			limit.Burst = rapid.IntRange(1, 4).Draw(rt, "burst")
		}
		sub := waybill.Subscription{
			InOrder: rapid.Bool().Draw(rt, "in order"), PerGroup: limit,
			Concurrency: rapid.IntRange(1, 6).Draw(rt, "handlers"), Retry: waybill.RetryDelays(time.Second, time.Second, time.Second, time.Second),
		}
		n := rapid.IntRange(1, 40).Draw(rt, "messages")
		es := messages(n)
		failures := map[string]int{}
		for i := range es {
			es[i].Tenant = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(rt, "tenant")
			es[i].Key = es[i].Tenant + rapid.SampledFrom([]string{"", "k", "l"}).Draw(rt, "key")
			failures[es[i].ID] = rapid.SampledFrom([]int{0, 0, 0, 1, 3}).Draw(rt, "failures")
		}
		takes := rapid.SampledFrom([]time.Duration{0, time.Millisecond, 700 * time.Millisecond}).Draw(rt, "takes")
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Time(3*time.Minute, "rates of one in two seconds")
			b := declared(t)
			c := newCrowd(takes)
			var done seen[string]
			h := handle(func(_ context.Context, d *waybill.Delivery) error {
				defer c.enter(d)()
				time.Sleep(takes)
				if d.Attempt <= failures[d.Envelope.ID] {
					return errBoom
				}
				done.add(d.Envelope.ID)
				return nil
			})
			stop := start(t, b, consumer.Options{}, sub, h)
			for i := range es {
				b.send(t, es[i])
				if i%7 == 6 {
					time.Sleep(300 * time.Millisecond)
				}
			}
			rest(t, b, time.Hour)
			stop()
			if got := len(done.all()); got != n {
				rt.Errorf("%d of %d were handled", got, n)
			}
			for g, most := range c.most {
				if g == "" {
					continue
				}
				if limit.Concurrency > 0 && most > limit.Concurrency {
					rt.Errorf("%d of %s ran at a time", most, g)
				}
				if limit.Rate > 0 {
					wantRate(rt, c.starts[g], limit.Rate, limit.Burst)
				}
			}
			if sub.InOrder {
				at := map[string]int{}
				for i, id := range done.all() {
					at[id] = i
				}
				last := map[string]string{}
				for i := range es {
					if before := last[es[i].Key]; es[i].Key != "" && before != "" && at[before] > at[es[i].ID] {
						rt.Errorf("%s was handled before %s, of one key", es[i].ID, before)
					}
					last[es[i].Key] = es[i].ID
				}
			}
		})
	})
}

// Every problem of limits is told at once, with the field and the cure.
func TestLimitProblems(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	batch := waybill.Handler{Name: "a", Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) { return 0, nil }}
	batch.Batch = func(context.Context, []*waybill.Delivery) ([]waybill.HandlerStatus, error) { return nil, nil }
	for name, tt := range map[string]struct {
		sub  waybill.Subscription
		want []string
	}{
		"groups and batches": {waybill.Subscription{PerGroup: waybill.GroupLimit{Concurrency: 1}}, []string{`PerGroup: handlers[0], "a", takes batches`}},
		"groups": {
			waybill.Subscription{PerGroup: waybill.GroupLimit{Concurrency: -1, Rate: -1, Burst: -1}},
			[]string{"PerGroup.Concurrency: -1", "PerGroup.Rate: -1", "PerGroup.Burst: -1"},
		},
		"no limiter": {waybill.Subscription{Limit: waybill.SharedLimit{Rate: 1}}, []string{"Limit: it holds over all processes and needs a limiter", "set Options.Limiter"}},
		"shared": {
			waybill.Subscription{Limit: waybill.SharedLimit{Name: strings.Repeat("x", 300), Rate: 0.001, Burst: -1, Concurrency: 1 << 20}},
			[]string{"Limit.Name: ", "Limit.Rate: 0.001", "Limit.Burst: -1", "Limit.Concurrency: 1048576"},
		},
		"a small burst": {waybill.Subscription{Limit: waybill.SharedLimit{Rate: 100, Burst: 10}}, []string{"Limit.Burst: 10 is less than half a second's worth, 50"}},
		"a name alone":  {waybill.Subscription{Limit: waybill.SharedLimit{Name: "a"}}, []string{"Limit: has neither a Rate nor a Concurrency"}},
		"a burst alone": {waybill.Subscription{PerGroup: waybill.GroupLimit{Burst: 5}}, []string{"PerGroup.Burst: is of no use without a Rate"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.sub.Queue = queue
			err := newConsumer(t, b, consumer.Options{}).Handle(tt.sub, batch)
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nlacks %s", err, want)
				}
			}
		})
	}
}
