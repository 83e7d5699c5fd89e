package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// of returns a handler that calls f for each message, alone or in batches.
func of(batch bool, f func(d *waybill.Delivery) error) waybill.Handler {
	h := handle(func(_ context.Context, d *waybill.Delivery) error { return f(d) })
	if batch {
		h.BatchSize = 2
		h.Batch = func(_ context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
			for _, d := range ds {
				if err := f(d); err != nil {
					return nil, err
				}
			}
			return make([]waybill.HandlerStatus, len(ds)), nil
		}
	}
	return h
}

// degraded reports whether the health of a queue tells of an outage.
func degraded(c *consumer.Consumer, text string) bool {
	for _, check := range c.Health(context.Background()).Checks {
		if check.Status == waybill.HealthDegraded && strings.Contains(check.Text, text) {
			return true
		}
	}
	return false
}

// CO-05: messages that meet an outage each time stop no others, at any place of the queue and with any key: the others
// are handled within minutes. They cost no attempt, show in the health, and are parked after
// Options.OutageLimit.
func TestOutageOfOneMessage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		concurrency, bad int
		batch, ordered   bool
		slow             bool // the outage shows after a second
	}{
		{concurrency: 1, bad: 1},
		{concurrency: 1, bad: 1, slow: true},
		{concurrency: 8, bad: 1},
		{concurrency: 8, bad: 8, slow: true},
		{concurrency: 8, bad: 5},
		{concurrency: 1, bad: 1, batch: true},
		{concurrency: 8, bad: 1, batch: true},
		{concurrency: 8, bad: 1, ordered: true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := declared(t)
				patience.BudgetOf(t).Time(25*time.Hour, "the limit of a message's own outages is 24 h")
				var good, at atomic.Int32
				h := of(c.batch, func(d *waybill.Delivery) error {
					if d.Attempt != 1 || d.Redeliveries != 0 {
						t.Errorf("%s: attempt %d, redelivery %d", d.Envelope.ID, d.Attempt, d.Redeliveries)
					}
					if strings.HasPrefix(d.Envelope.ID, "bad") {
						if c.slow {
							time.Sleep(time.Second)
						}
						return waybill.Outage(errBoom)
					}
					time.Sleep(time.Second) // so most of them begin later
					good.Add(1)
					return nil
				})
				cons := newConsumer(t, b, consumer.Options{Concurrency: c.concurrency})
				if err := cons.Handle(waybill.Subscription{Queue: queue, InOrder: c.ordered}, h); err != nil {
					t.Fatal(err)
				}
				var es []waybill.Envelope
				for i := range c.bad {
					e := messages(1, waybill.Key("a"), waybill.ID(fmt.Sprint("bad-", i)))
					es = append(es, e...)
				}
				es = append(es, messages(100)...)
				for i := range es {
					if !c.ordered && i%2 == 0 {
						es[i].Key = "a" // behind the bad ones
					}
				}
				b.send(t, es...)
				stop := run(t, cons)
				patience.Pass(t, 10*time.Minute)
				at.Store(good.Load())
				if n := at.Load(); n < 100 {
					t.Errorf("%d of 100 were handled within 10 minutes", n)
				}
				if n := len(b.Parked(queue)); n > 0 {
					t.Errorf("%d are parked after 10 minutes", n)
				}
				if !c.ordered && !degraded(cons, fmt.Sprint("subscribed, but ", c.bad, " messages meet outages")) {
					t.Errorf("the health does not tell: %+v", cons.Health(t.Context()))
				}
				patience.Pass(t, 25*time.Hour)
				wantParked(t, b, waybill.ReasonDeliveries, c.bad)
				wantDepth(t, b, memtransport.Depth{Parked: c.bad})
				if degraded(cons, "") {
					t.Errorf("afterwards: %+v", cons.Health(t.Context()))
				}
				stop()
			})
		})
	}
}

// CO-05: as long as all messages meet the outage none is to blame, and none is parked, also after Options.OutageLimit.
// Each delivery goes back or away.
func TestOutageOfAll(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{1, 8} {
		synctest.Test(t, func(t *testing.T) {
			b := declared(t)
			patience.BudgetOf(t).Time(30*time.Hour, "the limit of a message's own outages is 24 h")
			var up atomic.Bool
			var handled atomic.Int32
			received := 0
			b.redeliver = func(*waybill.Delivery) { received++ }
			h := handle(func(_ context.Context, d *waybill.Delivery) error {
				if d.Attempt != 1 {
					t.Errorf("attempt %d", d.Attempt)
				}
				if !up.Load() {
					return waybill.Outage(errBoom)
				}
				handled.Add(1)
				return nil
			})
			o := consumer.Options{Concurrency: concurrency, Pause: waybill.Backoff{Cap: 10 * time.Minute}}
			stop := start(t, b, o, waybill.Subscription{}, h)
			b.publish(t, 30)
			patience.Pass(t, 30*time.Hour)
			stop()
			if d := b.Depth(queue); d.Ready+d.Delayed != 30 || d.Held > 0 {
				t.Errorf("depth is %+v, want 30 ready or delayed", d)
			}
			if v := b.verdicts(); v[core.VerdictRelease]+v[free] != received || v[core.VerdictRelease] == 0 {
				t.Errorf("%d deliveries ended as %v", received, v)
			}
			stop = start(t, b, o, waybill.Subscription{}, h)
			patience.Pass(t, 30*time.Hour)
			up.Store(true)
			patience.Pass(t, time.Hour)
			stop()
			if n := handled.Load(); n != 30 || b.verdicts()[core.VerdictReject] > 0 {
				t.Errorf("concurrency %d: %d of 30 were handled, %v", concurrency, n, b.verdicts())
			}
		})
	}
}

// CO-05: Options.OutageLimit bounds the wait of a message; a negative one parks none.
func TestOutageLimit(t *testing.T) {
	t.Parallel()
	for limit, want := range map[time.Duration]int{time.Hour: 1, -1: 0} {
		synctest.Test(t, func(t *testing.T) {
			b := declared(t)
			patience.BudgetOf(t).Time(60*time.Hour, "twice the default of the limit")
			stop := start(t, b, consumer.Options{OutageLimit: limit}, waybill.Subscription{}, of(false, func(d *waybill.Delivery) error {
				if d.Envelope.ID == "id-1" {
					return waybill.Outage(errBoom)
				}
				return nil
			}))
			b.publish(t, 3)
			patience.Pass(t, 10*time.Minute)
			b.send(t, messages(5)[3:]...) // that they are handled tells whose fault it is
			patience.Pass(t, 40*time.Minute)
			wantParked(t, b, waybill.ReasonDeliveries, 0)
			patience.Pass(t, time.Hour)
			wantParked(t, b, waybill.ReasonDeliveries, want)
			patience.Pass(t, 50*time.Hour)
			wantParked(t, b, waybill.ReasonDeliveries, want)
			stop()
		})
	}
}

// CO-05: a batch does not tell which of its messages met the outage. So they go alone then, and one pause is enough.
func TestBatchWithAnOutageOfOneMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var good, down atomic.Int32
		h := handle(func(_ context.Context, d *waybill.Delivery) error {
			if d.Envelope.ID == "id-50" {
				return waybill.Outage(errBoom)
			}
			good.Add(1)
			return nil
		})
		h.BatchSize, h.BatchWait = 100, time.Second
		h.Batch = func(_ context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
			for _, d := range ds {
				if d.Envelope.ID == "id-50" {
					down.Add(1)
					return nil, waybill.Outage(errBoom)
				}
			}
			good.Add(int32(len(ds)))
			return make([]waybill.HandlerStatus, len(ds)), nil
		}
		stop := start(t, b, consumer.Options{Concurrency: 1, Prefetch: 100}, waybill.Subscription{}, h)
		b.publish(t, 100)
		patience.Pass(t, 10*time.Minute)
		stop()
		if good.Load() != 99 || down.Load() != 1 {
			t.Errorf("%d of 99 were handled, %d batches met the outage, want 1", good.Load(), down.Load())
		}
	})
}

// CO-05, CO-19: in an outage of all nothing is held. When it has ended, but for one message at the head of the queue,
// that one does not stop the others. A stop leaves it to the broker.
func TestOutageOfOneMessageAfterOneOfAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var ended atomic.Bool
		var good atomic.Int32
		stop := start(t, b, consumer.Options{}, waybill.Subscription{Concurrency: 2, Prefetch: 20},
			of(false, func(d *waybill.Delivery) error {
				if d.Envelope.ID == "id-1" || !ended.Load() {
					return waybill.Outage(errBoom)
				}
				if good.Add(1); d.Envelope.ID == "slow" {
					time.Sleep(10 * time.Second)
				}
				return nil
			}))
		b.publish(t, 30)
		patience.Pass(t, 30*time.Minute)
		if d := b.Depth(queue); d.Ready+d.Delayed != 30 || d.Held > 0 {
			t.Errorf("depth is %+v, want 30 ready or delayed", d)
		}
		ended.Store(true)
		patience.Pass(t, 2*time.Minute)
		if n := good.Load(); n != 29 {
			t.Errorf("%d messages were handled, want 29", n)
		}
		b.send(t, messages(1, waybill.ID("slow"))...)
		patience.Pass(t, time.Second)
		go stop()
		patience.Pass(t, time.Second)
		left := func(held int) {
			if d := b.Depth(queue); d.Ready+d.Delayed != 1 || d.Held != held {
				t.Errorf("depth is %+v, want one ready or delayed, and %d held", d, held)
			}
		}
		left(1)
		patience.Pass(t, 10*time.Second)
		left(0)
	})
}

// CO-05: a handler that still runs when a pause begins keeps the place of its message at the broker. The probe gets
// another place.
func TestProbeBesideHandlersThatRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(time.Hour, "a handler runs for so long")
		f := &far{bus: declared(t), trip: time.Millisecond}
		var up atomic.Bool
		var good atomic.Int32
		stop := start(t, &sending{f}, consumer.Options{Concurrency: 4}, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
			switch {
			case strings.HasPrefix(d.Envelope.ID, "slow"):
				travel(time.Hour)
				return nil
			case !up.Load():
				return waybill.Outage(errBoom)
			}
			good.Add(1)
			return nil
		}))
		f.send(t, messages(1, waybill.ID("slow-1"))...)
		f.send(t, messages(1, waybill.ID("slow-2"))...)
		patience.Pass(t, time.Second)
		f.publish(t, 10)
		patience.Pass(t, time.Minute)
		up.Store(true)
		patience.Pass(t, time.Minute)
		if n := good.Load(); n != 10 {
			t.Errorf("%d of 10 were handled while two handlers still run", n)
		}
		patience.Pass(t, time.Hour)
		stop()
		wantDepth(t, f.bus, memtransport.Depth{})
	})
}

// Beside a handler that runs for a message that came again, the others have work as soon as an outage is over: the
// broker sends more than the probe needed.
func TestAllHandlersWorkBesideAMessageThatCameAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(2*time.Hour, "a handler runs for so long")
		f := &far{bus: declared(t), trip: time.Millisecond}
		f.send(t, messages(1, waybill.ID("slow-1"))...)
		dies, err := f.bus.Subscribe(t.Context(), core.Subscription{Queue: queue})
		if err != nil {
			t.Fatal(err)
		}
		if ds, err := dies.Receive(t.Context(), 1); len(ds) != 1 || err != nil {
			t.Fatal(ds, err)
		}
		if err := dies.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		var down atomic.Bool
		var good, running, most atomic.Int32
		stop := start(t, &sending{f}, consumer.Options{Concurrency: 4}, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
			switch {
			case down.Load():
				return waybill.Outage(errBoom)
			case strings.HasPrefix(d.Envelope.ID, "slow"):
				travel(time.Hour)
				return nil
			}
			most.Store(max(most.Load(), running.Add(1)))
			travel(time.Second)
			running.Add(-1)
			good.Add(1)
			return nil
		}))
		patience.Pass(t, time.Minute) // it runs
		down.Store(true)
		f.publish(t, 30)
		patience.Pass(t, time.Minute)
		down.Store(false)
		patience.Pass(t, 2*time.Minute)
		if n, m := good.Load(), most.Load(); n != 30 || m != 3 {
			t.Errorf("%d of 30 were handled, %d at a time beside the handler that runs, want 3", n, m)
		}
		patience.Pass(t, time.Hour)
		stop()
		wantDepth(t, f.bus, memtransport.Depth{})
	})
}

// CO-05: after an outage the message that probes takes an hour. The others do not wait for it: one more at a time
// probes, and the first that ends well ends the pause.
func TestProbeThatTakesLong(t *testing.T) {
	t.Parallel()
	for name, sub := range map[string]waybill.Subscription{"any order": {}, "in order": {InOrder: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t).Time(2*time.Hour, "a handler runs for so long")
				f := &far{bus: declared(t), trip: time.Millisecond}
				var up atomic.Bool
				var good, slow atomic.Int32
				stop := start(t, f, consumer.Options{Concurrency: 4}, sub, handle(func(_ context.Context, d *waybill.Delivery) error {
					switch {
					case !up.Load():
						return waybill.Outage(errBoom)
					case strings.HasPrefix(d.Envelope.ID, "slow"):
						slow.Add(1)
						travel(time.Hour)
						return nil
					}
					good.Add(1)
					return nil
				}))
				f.send(t, messages(1, waybill.ID("slow-1"))...)
				f.send(t, messages(1, waybill.ID("slow-2"))...)
				patience.Pass(t, 10*time.Second)
				up.Store(true)
				patience.Pass(t, 2*time.Minute) // both probe
				for i := range 20 {
					f.send(t, messages(1, waybill.ID(fmt.Sprint("good-", i)))...)
				}
				patience.Pass(t, 2*time.Minute)
				if n, m := good.Load(), slow.Load(); n != 20 || m != 2 {
					t.Errorf("%d of 20 were handled, and %d of 2 run", n, m)
				}
				patience.Pass(t, time.Hour)
				stop()
				wantDepth(t, f.bus, memtransport.Depth{})
			})
		})
	}
}

// hourly is a handler that takes an hour, or meets an outage until the dependency is up.
func hourly(up *atomic.Bool) waybill.Handler {
	return handle(func(context.Context, *waybill.Delivery) error {
		if !up.Load() {
			return waybill.Outage(errBoom)
		}
		travel(time.Hour)
		return nil
	})
}

// A message that probed for so long that others could probe beside it, and came to a good end, ends the pause, too.
func TestProbeThatTookLongEndsThePause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(2*time.Hour, "a handler runs for so long")
		f := &far{bus: declared(t), trip: time.Millisecond}
		var up atomic.Bool
		c := newConsumer(t, f, consumer.Options{Concurrency: 4})
		err := c.Handle(waybill.Subscription{Queue: queue}, hourly(&up))
		if err != nil {
			t.Fatal(err)
		}
		stop := run(t, c)
		f.send(t, messages(1)...)
		patience.Pass(t, 10*time.Second)
		up.Store(true)
		patience.Pass(t, 90*time.Minute)
		if check, _ := c.Health(t.Context()).Check("queue " + queue); check.Status != waybill.HealthOK {
			t.Errorf("the only message has come to a good end: %+v", check)
		}
		stop()
		wantDepth(t, f.bus, memtransport.Depth{})
	})
}

// Probes that take long are as many as handlers are free: no more messages are held that only wait.
func TestProbesAreAsManyAsHandlers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(6*time.Hour, "a handler runs for so long")
		f := &far{bus: declared(t), trip: time.Millisecond}
		var up atomic.Bool
		stop := start(t, f, consumer.Options{Concurrency: 2}, waybill.Subscription{Prefetch: 10}, hourly(&up))
		f.publish(t, 5)
		patience.Pass(t, 10*time.Second)
		up.Store(true)
		patience.Pass(t, 30*time.Minute)
		wantDepth(t, f.bus, memtransport.Depth{Ready: 3, Held: 2})
		patience.Pass(t, 4*time.Hour)
		stop()
		wantDepth(t, f.bus, memtransport.Depth{})
	})
}
