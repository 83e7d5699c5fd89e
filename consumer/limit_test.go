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
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/memory"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// limiter is one process's way to the limiter that all share. A test can count its calls and cut it off.
type limiter struct {
	core.Limiter
	down  atomic.Bool
	slow  time.Duration
	calls *atomic.Int64
}

func (l *limiter) UpdateLimit(ctx context.Context, name string, change func(string, time.Time) string) error {
	l.calls.Add(1)
	if l.down.Load() {
		return waybill.Outage(errBoom)
	}
	travel(l.slow / 2)
	err := l.Limiter.UpdateLimit(ctx, name, change)
	travel(l.slow / 2)
	return err
}

// fleet is several processes with one queue and one limiter.
type fleet struct {
	b     *bus
	store *memory.Store
	calls atomic.Int64
	all   *crowd // over all processes; the groups are the processes
	total *crowd // and as one group
}

func newFleet(t *testing.T, takes time.Duration) *fleet {
	t.Helper()
	store, err := memory.New(memory.Options{Source: "/limits"})
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{b: declared(t), store: store, all: newCrowd(takes), total: newCrowd(takes)}
	f.total.by = func(*waybill.Delivery) string { return "" }
	return f
}

func (f *fleet) limiter() *limiter { return &limiter{Limiter: f.store, calls: &f.calls} }

// handler is the handler of a process.
func (f *fleet) handler(process string, do func(ctx context.Context, d *waybill.Delivery) error) waybill.Handler {
	return handle(func(ctx context.Context, d *waybill.Delivery) error {
		e := *d
		e.Envelope.Tenant = process
		defer f.all.enter(&e)()
		defer f.total.enter(&e)()
		if do != nil {
			return do(ctx, d)
		}
		select {
		case <-time.After(f.all.takes):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// start starts processes p-0, p-1, ….
func (f *fleet) start(t *testing.T, n int, sub waybill.Subscription) (stop func()) {
	t.Helper()
	stops := make([]func(), n)
	for i := range n {
		stops[i] = start(t, f.b, consumer.Options{Limiter: f.limiter()}, sub, f.handler(fmt.Sprint("p-", i), nil))
	}
	return func() {
		t.Helper()
		for _, stop := range stops {
			stop()
		}
	}
}

func (f *fleet) starts() []time.Duration { return f.total.starts[""] }

// A rate holds over all processes, is reached, and costs few questions.
func TestSharedRate(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		rate              float64
		burst, n          int
		processes         int
		questions, within float64 // at most so many; and so much of the ideal time
	}{
		"1,000 a second, one process":    {1000, 0, 10_000, 1, 150, 1.1},
		"1,000 a second, three":          {1000, 0, 10_000, 3, 700, 1.1},
		"four a second, small burst":     {4, 2, 80, 2, 400, 1.1},
		"ten a minute, one after other":  {1.0 / 6, 1, 20, 2, 100, 1.1},
		"one a second, one after other":  {1, 1, 50, 2, 200, 1.25},
		"burst of a minute's worth":      {10, 600, 1200, 2, 1000, 1.1},
		"a hundred a second, half burst": {100, 50, 2000, 3, 1400, 1.15},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t).Calls(2500, "each of 1,000 messages a second is settled")
				patience.BudgetOf(t).Time(2*time.Minute, "as many messages as show a rate of six seconds each")
				f := newFleet(t, time.Millisecond)
				f.b.send(t, messages(tt.n)...)
				stop := f.start(t, tt.processes, waybill.Subscription{Prefetch: 50, Limit: waybill.SharedLimit{Rate: tt.rate, Burst: tt.burst}})
				queued(t, f.b, memtransport.Depth{})
				stop()
				starts := f.starts()
				burst := tt.burst
				if burst == 0 {
					burst = int(tt.rate)
				}
				if len(starts) != tt.n {
					t.Fatalf("%d began, want %d", len(starts), tt.n)
				}
				wantRate(t, sample(starts), tt.rate, burst)
				if ideal := float64(tt.n-burst) / tt.rate; starts[len(starts)-1].Seconds() > ideal*tt.within+1 {
					t.Errorf("it took %s, %gs would do", starts[len(starts)-1], ideal)
				}
				if n := f.calls.Load(); float64(n) > tt.questions {
					t.Errorf("%d questions, want at most %g", n, tt.questions)
				}
			})
		})
	}
}

// sample leaves out what a check of every pair has no time for.
func sample(starts []time.Duration) []time.Duration { return starts[:min(len(starts), 3000)] }

// A number of handlers holds over all processes, which share it evenly.
func TestSharedConcurrency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(32*time.Second, "2,000 messages of 100 ms in 7 slots")
		f := newFleet(t, 100*time.Millisecond)
		f.b.send(t, messages(2000)...)
		stop := f.start(t, 3, waybill.Subscription{Concurrency: 10, Prefetch: 20, Limit: waybill.SharedLimit{Concurrency: 7}})
		queued(t, f.b, memtransport.Depth{})
		stop()
		if f.total.most[""] != 7 {
			t.Errorf("%d ran at a time, want 7", f.total.most[""])
		}
		// 28.5 s is the least
		if took := f.starts()[len(f.starts())-1]; len(f.starts()) != 2000 || took > 32*time.Second {
			t.Errorf("%d ran in %s", len(f.starts()), took)
		}
		for i := range 3 {
			if n := len(f.all.starts[fmt.Sprint("p-", i)]); n < 500 {
				t.Errorf("process %d ran %d of 2000", i, n)
			}
		}
	})
}

// With more processes than slots every process has its turn.
func TestSharedTurns(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 2} {
		t.Run(strconv.Itoa(slots), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 100*time.Millisecond)
				f.b.send(t, messages(10_000)...)
				stop := f.start(t, 5, waybill.Subscription{Prefetch: 10, Limit: waybill.SharedLimit{Concurrency: slots}})
				patience.Pass(t, 5*time.Minute)
				stop()
				if f.total.most[""] != slots {
					t.Errorf("%d ran at a time, want %d", f.total.most[""], slots)
				}
				if n := len(f.starts()); n < 10*300*slots*8/10 {
					t.Errorf("only %d ran in five minutes", n)
				}
				for p, starts := range f.all.starts {
					last := time.Duration(0)
					for _, at := range starts {
						if at-last > 40*time.Second {
							t.Errorf("%s had no turn from %s to %s", p, last, at)
						}
						last = at
					}
				}
				if len(f.all.starts) != 5 {
					t.Errorf("%d processes had a turn, want 5", len(f.all.starts))
				}
			})
		})
	}
}

// The slots of a process that died are free after its lease, and not before. One that cannot reach the limiter
// begins nothing after its own lease.
func TestSharedSlotsOfTheDead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, time.Second)
		l := f.limiter()
		sub := waybill.Subscription{Concurrency: 2, Prefetch: 2, Limit: waybill.SharedLimit{Concurrency: 2}}
		hang := make(chan struct{})
		subA := sub
		subA.Prefetch = 4 // two wait
		stopA := start(t, f.b, consumer.Options{Limiter: l, DrainTimeout: -1}, subA, f.handler("a", func(context.Context, *waybill.Delivery) error {
			<-hang
			return nil
		}))
		f.b.send(t, messages(20)...)
		settle()
		if got := len(f.all.starts["a"]); got != 2 {
			t.Fatalf("%d run, want 2", got)
		}
		patience.Pass(t, time.Minute)
		stopB := start(t, f.b, consumer.Options{Limiter: f.limiter()}, sub, f.handler("b", nil))
		patience.Pass(t, 10*time.Second)
		if got := len(f.all.starts["b"]); got != 0 {
			t.Fatalf("%d began beside two that run", got)
		}
		l.down.Store(true)
		cut := time.Since(f.all.began)
		patience.Pass(t, time.Minute)
		stopB()
		b := f.all.starts["b"]
		if len(b) != 16 || b[0] < cut+13*time.Second || b[0] > cut+17*time.Second {
			t.Errorf("these began after the cut at %s: %s", cut, b)
		}
		close(hang)
		patience.Pass(t, time.Minute)
		if got := len(f.all.starts["a"]); got != 2 {
			t.Errorf("%d began without a slot", got-2)
		}
		// It is paused. One message can be on trial at this moment; it goes back.
		for i := 0; i < 60 && f.b.Depth(queue).Held > 0; i++ {
			time.Sleep(time.Second) // virtual time
		}
		wantDepth(t, f.b, memtransport.Depth{Ready: 2})
		stopA()
	})
}

// Permits that were not used are of no use later.
func TestSharedRateAfterARest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 0)
		stop := f.start(t, 1, waybill.Subscription{Concurrency: 100, Limit: waybill.SharedLimit{Rate: 100, Burst: 50}})
		for range 16 { // so the process takes ahead
			f.b.publish(t, 1)
			time.Sleep(time.Millisecond)
		}
		patience.Pass(t, 10*time.Second)
		f.b.publish(t, 90)
		queued(t, f.b, memtransport.Depth{})
		stop()
		if len(f.starts()) != 106 {
			t.Errorf("%d began", len(f.starts()))
		}
		wantRate(t, f.starts(), 100, 50)
	})
}

// A state that cannot be read stops the subscription, says what to do, and stays as it is.
func TestSharedLimitOfABrokenState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 0)
		set := func(to string) (was string) {
			if err := f.store.UpdateLimit(t.Context(), queue, func(state string, _ time.Time) string {
				was = state
				return to
			}); err != nil {
				t.Fatal(err)
			}
			return was
		}
		set("?")
		c := newConsumer(t, f.b, consumer.Options{Limiter: f.store})
		if err := c.Handle(waybill.Subscription{Queue: queue, Limit: waybill.SharedLimit{Concurrency: 1}}, f.handler("a", nil)); err != nil {
			t.Fatal(err)
		}
		stop := run(t, c)
		f.b.publish(t, 3)
		patience.Pass(t, time.Minute)
		if check, _ := c.Health(t.Context()).Check("queue " + queue); len(f.starts()) != 0 || !strings.Contains(check.Text, "cannot be read: delete it") {
			t.Errorf("%d began; health: %s", len(f.starts()), check.Text)
		}
		if was := set(""); was != "?" {
			t.Errorf("the state became %q", was)
		}
		patience.Pass(t, time.Minute)
		stop()
		if len(f.starts()) != 3 {
			t.Errorf("%d began", len(f.starts()))
		}
	})
}

// While the limiter is away nothing begins and the subscription is paused; then it goes on.
func TestSharedLimitInAnOutage(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]waybill.SharedLimit{"rate": {Rate: 100}, "slots": {Concurrency: 3}, "both": {Rate: 100, Concurrency: 3}} {
		for order, inOrder := range map[string]bool{"": false, " in order": true} {
			t.Run(name+order, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, time.Millisecond)
					l := f.limiter()
					l.down.Store(true)
					c := newConsumer(t, f.b, consumer.Options{Limiter: l})
					if err := c.Handle(waybill.Subscription{Queue: queue, InOrder: inOrder, Limit: limit}, f.handler("a", nil)); err != nil {
						t.Fatal(err)
					}
					stop := run(t, c)
					f.b.send(t, messages(20, waybill.Key("k"))...)
					patience.Pass(t, 10*time.Minute)
					check, _ := c.Health(t.Context()).Check("queue " + queue)
					if len(f.starts()) != 0 || check.Status != waybill.HealthDegraded || !strings.Contains(check.Text, `limit "q": `) {
						t.Errorf("%d began; health: %s, %s", len(f.starts()), check.Status, check.Text)
					}
					if n := f.calls.Load(); n > 100 {
						t.Errorf("%d questions during the outage", n)
					}
					l.down.Store(false)
					patience.Pass(t, 2*time.Minute)
					stop()
					if len(f.starts()) != 20 {
						t.Errorf("%d of 20 ran", len(f.starts()))
					}
					wantDepth(t, f.b, memtransport.Depth{})
				})
			})
		}
	}
}

// RunOnce gives up when the limiter is away.
func TestRunOnceWithoutALimiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 0)
		l := f.limiter()
		l.down.Store(true)
		c := newConsumer(t, f.b, consumer.Options{Limiter: l})
		if err := c.Handle(waybill.Subscription{Queue: queue, Limit: waybill.SharedLimit{Rate: 1}}, f.handler("a", nil)); err != nil {
			t.Fatal(err)
		}
		f.b.publish(t, 1)
		if _, err := c.RunOnce(t.Context()); err == nil || !errors.Is(err, errBoom) {
			t.Errorf("RunOnce ended with %v", err)
		}
		wantDepth(t, f.b, memtransport.Depth{Ready: 1})
	})
}

// CO-11: at a stop what waits for a permit is released at once, handlers are drained under their slots, and the slots
// are given back.
func TestSharedLimitAtAStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(25*time.Second, "the handler that is drained takes 20 s")
		f := newFleet(t, 20*time.Second)
		sub := waybill.Subscription{Concurrency: 5, Limit: waybill.SharedLimit{Concurrency: 1}}
		stopA := start(t, f.b, consumer.Options{Limiter: f.limiter(), DrainTimeout: time.Minute}, sub, f.handler("a", nil))
		f.b.publish(t, 3)
		settle()
		stopB := start(t, f.b, consumer.Options{Limiter: f.limiter(), DrainTimeout: time.Minute}, sub, f.handler("b", nil))
		time.AfterFunc(time.Second, func() { // b has what a released
			if d := f.b.Depth(queue); d.Held != 3 || f.total.now()[""] != 1 {
				t.Errorf("the queue holds %+v", d)
			}
		})
		stopA()
		patience.Pass(t, time.Minute)
		stopB()
		if f.total.most[""] != 1 {
			t.Errorf("%d ran at a time", f.total.most[""])
		}
		if b := f.all.starts["b"]; len(b) != 2 || b[0] < 20*time.Second || b[0] > 21*time.Second {
			t.Errorf("b began %s, want at 20s and 40s", b)
		}
	})
}

// A process that has nothing to do asks nothing and keeps nothing.
func TestSharedLimitWhenIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 0)
		stop := f.start(t, 2, waybill.Subscription{Limit: waybill.SharedLimit{Concurrency: 2, Rate: 10}})
		patience.Pass(t, time.Hour)
		if n := f.calls.Load(); n != 0 {
			t.Errorf("%d questions without a message", n)
		}
		f.b.publish(t, 5)
		patience.Pass(t, time.Hour)
		if n := f.calls.Load(); n > 20 {
			t.Errorf("%d questions for five messages", n)
		}
		if err := f.store.UpdateLimit(t.Context(), queue, func(state string, _ time.Time) string {
			if strings.Contains(state, "holders") {
				t.Errorf("left behind: %s", state)
			}
			return state
		}); err != nil {
			t.Error(err)
		}
		stop()
	})
}

// Each message of a batch takes a permit, and a batch takes one slot.
func TestSharedLimitOfBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(30*time.Second, "300 messages at 20 a second, batches of a second")
		f := newFleet(t, 0)
		var mu sync.Mutex
		var starts []time.Duration
		running, most := 0, 0
		h := f.handler("a", nil)
		h.BatchSize = 30
		h.Batch = func(_ context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
			mu.Lock()
			for range ds {
				starts = append(starts, time.Since(f.all.began))
			}
			running++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
			return make([]waybill.HandlerStatus, len(ds)), nil
		}
		stop := start(t, f.b, consumer.Options{Limiter: f.limiter()}, waybill.Subscription{
			Prefetch: 100, Limit: waybill.SharedLimit{Rate: 20, Burst: 40, Concurrency: 2},
		}, h)
		f.b.publish(t, 300)
		queued(t, f.b, memtransport.Depth{})
		stop()
		if len(starts) != 300 || most != 2 {
			t.Errorf("%d began, %d batches at a time", len(starts), most)
		}
		wantRate(t, starts, 20, 40)
	})
}

// With the order kept a retry in place takes a permit, and suspects do.
func TestSharedLimitOfRetries(t *testing.T) {
	t.Parallel()
	for name, suspects := range map[string]bool{"in order": false, "suspects": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t).Time(15*time.Second, "15 runs at one a second")
				f := newFleet(t, 0)
				if suspects {
					f.b.redeliver = func(d *waybill.Delivery) { d.Redeliveries = 10 }
				}
				h := f.handler("a", func(_ context.Context, d *waybill.Delivery) error {
					if d.Attempt < 3 && !suspects {
						return errBoom
					}
					return nil
				})
				stop := start(t, f.b, consumer.Options{Limiter: f.limiter()}, waybill.Subscription{
					InOrder: !suspects, Retry: waybill.RetryDelays(time.Millisecond, time.Millisecond), Limit: waybill.SharedLimit{Rate: 1, Burst: 2},
				}, h)
				f.b.publish(t, 5, waybill.Key("k"))
				queued(t, f.b, memtransport.Depth{})
				stop()
				if want := map[bool]int{true: 5, false: 15}[suspects]; len(f.starts()) != want {
					t.Errorf("%d began, want %d", len(f.starts()), want)
				}
				wantRate(t, f.starts(), 1, 2)
				wantDepth(t, f.b, memtransport.Depth{})
			})
		})
	}
}

// A limiter that answers slowly makes the subscription slow, and the limit holds.
func TestSharedLimitOfASlowLimiter(t *testing.T) {
	t.Parallel()
	for slow, want := range map[time.Duration]int{150 * time.Millisecond: 100, 700 * time.Millisecond: 100, 3 * time.Second: 0} {
		t.Run(slow.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 0)
				l := f.limiter()
				l.slow = slow
				c := newConsumer(t, f.b, consumer.Options{Limiter: l})
				if err := c.Handle(waybill.Subscription{Queue: queue, Limit: waybill.SharedLimit{Rate: 10, Concurrency: 5}}, f.handler("a", nil)); err != nil {
					t.Fatal(err)
				}
				stop := run(t, c)
				f.b.publish(t, 100)
				patience.Pass(t, 10*time.Minute)
				check, _ := c.Health(t.Context()).Check("queue " + queue)
				if paused := check.Status != waybill.HealthOK; paused != (want == 0) || paused && !strings.Contains(check.Text, "its permits have lapsed") {
					t.Errorf("health: %s", check.Text)
				}
				stop()
				if len(f.starts()) != want {
					t.Errorf("%d began, want %d", len(f.starts()), want)
				}
				wantRate(t, f.starts(), 10, 10)
			})
		})
	}
}

// Health names the limits that messages wait for, and stays ready.
func TestHealthOfLimits(t *testing.T) {
	t.Parallel()
	for want, sub := range map[string]waybill.Subscription{
		`limited: 4 wait for a permit of limit "quota"`:     {Limit: waybill.SharedLimit{Name: "quota", Rate: 0.01}, Prefetch: 10},
		"limited: 4 wait for the limit of their group":      {PerGroup: waybill.GroupLimit{Rate: 0.01}},
		`limited: 1 wait for a permit of limit "the queue"`: {Queue: "the queue", Limit: waybill.SharedLimit{Rate: 0.01}},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 0)
				if sub.Queue == "" {
					sub.Queue = queue
				} else if err := f.b.Declare(sub.Queue, "#"); err != nil {
					t.Fatal(err)
				}
				c := newConsumer(t, f.b, consumer.Options{Limiter: f.store})
				if err := c.Handle(sub, f.handler("a", nil)); err != nil {
					t.Fatal(err)
				}
				stop := run(t, c)
				f.b.publish(t, 5, waybill.Tenant("a"))
				time.Sleep(time.Second)
				h := c.Health(t.Context())
				check, _ := h.Check("queue " + sub.Queue)
				if !h.Ready || check.Status != waybill.HealthOK || !strings.Contains(check.Text, want) {
					t.Errorf("ready %t, %s: %s", h.Ready, check.Status, check.Text)
				}
				stop()
			})
		})
	}
}

// CO-03: a limit completes the zero fields of a subscription.
func TestLimitsComplete(t *testing.T) {
	t.Parallel()
	type counts struct{ Concurrency, Prefetch, Max int }
	for name, tt := range map[string]struct {
		sub  waybill.Subscription
		want counts
	}{
		"one a minute":             {waybill.Subscription{Limit: waybill.SharedLimit{Rate: 1.0 / 60}}, counts{1, 1, 1}},
		"a tenth a second":         {waybill.Subscription{Limit: waybill.SharedLimit{Rate: 0.1}}, counts{6, 6, 6}},
		"a thousand a second":      {waybill.Subscription{Limit: waybill.SharedLimit{Rate: 1000}}, counts{10, 10, 110}},
		"slow, with a concurrency": {waybill.Subscription{Concurrency: 4, Limit: waybill.SharedLimit{Rate: 1.0 / 60}}, counts{4, 4, 4}},
		"slow, with a prefetch":    {waybill.Subscription{Prefetch: 4, Limit: waybill.SharedLimit{Rate: 1.0 / 60}}, counts{1, 4, 0}},
		"two at a time":            {waybill.Subscription{Limit: waybill.SharedLimit{Concurrency: 2}}, counts{2, 2, 1000}},
		"many at a time":           {waybill.Subscription{Limit: waybill.SharedLimit{Concurrency: 100}}, counts{10, 10, 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := declared(t)
				var got counts
				b.subscribe = func(sub core.Subscription) error {
					got = counts{sub.Concurrency, sub.Prefetch, sub.MaxPrefetch}
					return nil
				}
				stop := start(t, b, consumer.Options{Limiter: newFleet(t, 0).store}, tt.sub, handle(func(context.Context, *waybill.Delivery) error { return nil }))
				settle()
				stop()
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// With any messages, the limit holds over all processes, and everything is handled.
func TestSharedLimitsAtRandom(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		limit := waybill.SharedLimit{Concurrency: rapid.IntRange(0, 4).Draw(rt, "slots"), Rate: rapid.SampledFrom([]float64{0, 0.5, 3, 50}).Draw(rt, "rate")}
		if limit.Rate > 0 {
			limit.Burst = int(limit.Rate/2+1) + rapid.IntRange(0, 4).Draw(rt, "burst")
		}
		if limit.Rate == 0 && limit.Concurrency == 0 {
			limit.Concurrency = 1
		}
		processes := rapid.IntRange(1, 4).Draw(rt, "processes")
		n := rapid.IntRange(1, 60).Draw(rt, "messages")
		sub := waybill.Subscription{Limit: limit, Concurrency: rapid.IntRange(1, 6).Draw(rt, "handlers"), Prefetch: 8}
		takes := rapid.SampledFrom([]time.Duration{0, time.Millisecond, 700 * time.Millisecond, 20 * time.Second}).Draw(rt, "takes")
		slow := rapid.SampledFrom([]time.Duration{0, time.Millisecond, 60 * time.Millisecond, 400 * time.Millisecond}).Draw(rt, "slow")
		long := rapid.SliceOfN(rapid.IntRange(0, 3), n, n).Draw(rt, "long")
		gaps := rapid.SliceOfN(rapid.SampledFrom([]int{0, 0, 50, 300, 1000}), n, n).Draw(rt, "gaps")
		stopped := rapid.IntRange(0, processes-1).Draw(rt, "stopped")
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Time(70*time.Minute, "60 messages of up to 80 s in one slot")
			f := newFleet(t, takes)
			stops := make([]func(), processes)
			for i := range stops {
				l := f.limiter()
				l.slow = slow
				stops[i] = start(t, f.b, consumer.Options{Limiter: l, DrainTimeout: time.Minute}, sub, f.handler(strconv.Itoa(i), func(_ context.Context, d *waybill.Delivery) error {
					n, _ := strconv.Atoi(strings.TrimPrefix(d.Envelope.ID, "id-"))
					time.Sleep(takes * time.Duration(long[n-1]))
					return nil
				}))
			}
			for i, e := range messages(n) {
				f.b.send(t, e)
				time.Sleep(time.Duration(gaps[i]) * time.Millisecond)
			}
			for i := range stopped {
				stops[i]()
			}
			rest(t, f.b, time.Hour)
			for _, stop := range stops[stopped:] {
				stop()
			}
			if got := len(f.starts()); got != n {
				rt.Errorf("%d of %d began", got, n)
			}
			if most := f.total.most[""]; limit.Concurrency > 0 && most > limit.Concurrency {
				rt.Errorf("%d ran at a time", most)
			}
			if limit.Rate > 0 {
				wantRate(rt, f.starts(), limit.Rate, limit.Burst)
			}
		})
	})
}
