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
)

// longest is the longest pause of the default.
const longest = 30 * time.Second

// broker is a kind of broker, for messages that meet outages.
type broker struct {
	name   string
	sends  bool // it sends messages ahead
	traits func(*core.SubscriberTraits)
}

var brokers = []broker{
	{name: "asked"},
	{name: "sends ahead", sends: true},
	{name: "sends ahead and takes back", sends: true, traits: func(t *core.SubscriberTraits) { t.MaxHold = 30 * time.Minute }},
	{name: "charges releases", traits: func(t *core.SubscriberTraits) { t.AttemptsAreDeliveries, t.MaxHold = true, 12*time.Hour }},
}

// on returns the bus of a broker, which gives what comes back before all others.
func (k broker) on(t *testing.T) (*far, core.Subscriber) {
	t.Helper()
	f := &far{bus: declared(t), trip: time.Millisecond}
	f.traits = k.traits
	if k.sends {
		return f, &sending{f}
	}
	return f, f
}

// bads returns n messages that always meet an outage.
func bads(n int) []waybill.Envelope {
	es := messages(n)
	for i := range es {
		es[i].ID = fmt.Sprint("bad-", i)
	}
	return es
}

// CO-05: behind any number of messages that meet an outage each time, up to those that may wait aside, a message is
// handled after two probes for each of them, at most. Then the queue goes on, and they are parked after
// Options.OutageLimit. None is held for as long as the broker leaves one here.
func TestOutagesAtTheHead(t *testing.T) {
	t.Parallel()
	for _, k := range brokers {
		for _, c := range []struct{ bad, concurrency, prefetch int }{
			{1, 1, 0}, {1, 1, 1}, {2, 1, 0}, {2, 1, 2}, {2, 2, 0}, {5, 2, 20}, {5, 4, 0}, {20, 1, 0}, {20, 4, 4}, {20, 4, 0}, {300, 1, 0}, {300, 2, 2}, {300, 4, 0},
		} {
			t.Run(fmt.Sprintf("%s %+v", k.name, c), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					probes := 2*c.bad + c.concurrency + 1
					patience.BudgetOf(t).Time(time.Duration(probes)*longest, "two probes for each bad message")
					patience.BudgetOf(t).Calls(2000, "what went back for others comes again, one at a time")
					f, on := k.on(t)
					held := map[string]time.Time{}
					f.arrived = func(ds []*waybill.Delivery) {
						f.mu.Lock()
						defer f.mu.Unlock()
						for _, d := range ds {
							held[d.Envelope.ID] = time.Now()
						}
					}
					most := f.SubscriberTraits().MaxHold
					f.gone = func(d *waybill.Delivery) {
						if took := time.Since(held[d.Envelope.ID]); most > 0 && took > most {
							t.Errorf("%s was held for %s", d.Envelope.ID, took)
						}
					}
					var runs, before, good atomic.Int64
					stop := start(t, on, consumer.Options{OutageLimit: time.Hour}, waybill.Subscription{Concurrency: c.concurrency, Prefetch: c.prefetch},
						of(false, func(d *waybill.Delivery) error {
							if strings.HasPrefix(d.Envelope.ID, "bad") {
								runs.Add(1)
								return waybill.Outage(errBoom)
							}
							if good.Add(1) == 1 {
								before.Store(runs.Load())
							}
							return nil
						}))
					f.send(t, append(bads(c.bad), messages(1)...)...)
					patience.Pass(t, time.Duration(probes)*longest)
					if good.Load() != 1 {
						t.Errorf("the good message was not handled within %d pauses; the bad ones ran %d times", probes, runs.Load())
					} else if n := before.Load(); n > int64(probes) {
						t.Errorf("the bad ones ran %d times before the good one, want at most %d", n, probes)
					}
					t.Logf("%d runs before the good one", before.Load())
					es := messages(100)
					for i := range es {
						es[i].ID = fmt.Sprint("later-", i)
					}
					f.send(t, es...)
					patience.Pass(t, longest)
					if n := good.Load(); n != 101 {
						t.Errorf("%d of 101 were handled half a minute later", n)
					}
					patience.Pass(t, time.Hour)
					f.send(t, messages(1, waybill.ID("proof"))...)
					patience.Pass(t, time.Hour)
					stop()
					if n := len(f.Parked(queue)); n != c.bad {
						t.Errorf("%d of %d are parked after the limit", n, c.bad)
					}
				})
			})
		}
	}
}

// CO-05: a message that comes to a queue with nothing but one that meets an outage each time is handled within two
// pauses.
func TestOutageOfALoneMessage(t *testing.T) {
	t.Parallel()
	for _, k := range brokers {
		for _, concurrency := range []int{1, 2, 4} {
			t.Run(fmt.Sprint(k.name, concurrency), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					patience.BudgetOf(t).Time(3*time.Hour, "some hundred probes before")
					f, on := k.on(t)
					var good atomic.Int64
					stop := start(t, on, consumer.Options{Concurrency: concurrency}, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
						if strings.HasPrefix(d.Envelope.ID, "bad") {
							travel(time.Second)
							return waybill.Outage(errBoom)
						}
						good.Add(1)
						return nil
					}))
					f.send(t, bads(1)...)
					patience.Pass(t, 2*time.Hour)
					for n := range int64(100) {
						f.send(t, messages(1, waybill.ID(fmt.Sprint("good-", n)))...)
						patience.Pass(t, 2*longest)
						if got := good.Load(); got != n+1 {
							t.Fatalf("%d of %d were handled", got, n+1)
						}
					}
					stop()
				})
			})
		}
	}
}

// CO-05: with the order kept, messages that meet an outage each time stop only their keys, if there are fewer of them
// than messages may be held.
func TestOutagesAtTheHeadOfKeys(t *testing.T) {
	t.Parallel()
	for _, k := range brokers {
		for _, c := range []struct{ bad, concurrency, prefetch int }{{1, 1, 0}, {19, 1, 20}, {3, 2, 0}, {19, 2, 20}, {19, 4, 20}, {7, 4, 0}} {
			t.Run(fmt.Sprintf("%s %+v", k.name, c), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					probes := 2*c.bad + c.concurrency + 1
					patience.BudgetOf(t).Time(time.Duration(probes)*longest, "two probes for each bad message")
					f, on := k.on(t)
					var good atomic.Int64
					stop := start(t, on, consumer.Options{}, waybill.Subscription{InOrder: true, Concurrency: c.concurrency, Prefetch: c.prefetch, Retry: waybill.RetryDelays(time.Second)},
						handle(func(_ context.Context, d *waybill.Delivery) error {
							if strings.HasPrefix(d.Envelope.ID, "bad") {
								return waybill.Outage(errBoom)
							}
							good.Add(1)
							return nil
						}))
					es := append(bads(c.bad), messages(10)...)
					for i := range es {
						es[i].Key = es[i].ID
					}
					f.send(t, es...)
					patience.Pass(t, time.Duration(probes)*longest)
					if n := good.Load(); n != 10 {
						t.Errorf("%d of 10 were handled within %d pauses", n, probes)
					}
					stop()
				})
			})
		}
	}
}

// CO-05, CO-19: when an outage of all is over, everything is handled at full speed after the next probe, also what has
// waited aside. Until then a bounded number is held, and each message probes at the rate of the pause.
func TestOutageOfAllEnds(t *testing.T) {
	t.Parallel()
	const work = 400 * time.Millisecond
	for _, k := range brokers {
		for _, concurrency := range []int{1, 4} {
			t.Run(fmt.Sprint(k.name, concurrency), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					patience.BudgetOf(t).Calls(2000, "what went back for others comes again, one at a time")
					f, on := k.on(t)
					var up atomic.Bool
					var good, probes atomic.Int64
					stop := start(t, on, consumer.Options{Concurrency: concurrency}, waybill.Subscription{}, of(false, func(*waybill.Delivery) error {
						if !up.Load() {
							probes.Add(1)
							return waybill.Outage(errBoom)
						}
						good.Add(1)
						travel(work)
						return nil
					}))
					f.publish(t, 400)
					patience.Pass(t, 4*time.Hour)
					n := probes.Load() // a pause has a random part of a half
					if least, most := int64(4*time.Hour/longest), int64(2*4*time.Hour/longest); n < least || n > most+10 {
						t.Errorf("%d probes, want %d to %d", n, least, most)
					}
					if d := f.Depth(queue); int64(d.Held) > n/2 || d.Held > 400 {
						t.Errorf("%d are held after %d probes", d.Held, n)
					}
					up.Store(true)
					patience.Pass(t, longest+400*work/time.Duration(concurrency)*5/4)
					if n := good.Load(); n != 400 {
						t.Errorf("%d of 400 were handled within a pause and the time that all of them take", n)
					}
					if n := len(f.Parked(queue)); n > 0 {
						t.Errorf("%d are parked", n)
					}
					stop()
				})
			})
		}
	}
}

// CO-05, CO-19: in an outage of one process another one gets every message, also those that have waited aside in the
// first one.
func TestOthersGetWhatWaitsAside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		patience.BudgetOf(t).Time(2*time.Hour, "a message goes back after minutes")
		var good atomic.Int64
		stopFirst := start(t, b, consumer.Options{Concurrency: 2}, waybill.Subscription{}, of(false, func(*waybill.Delivery) error { return waybill.Outage(errBoom) }))
		b.publish(t, 30)
		patience.Pass(t, time.Hour)
		stop := start(t, b, consumer.Options{Concurrency: 2}, waybill.Subscription{}, of(false, func(*waybill.Delivery) error {
			good.Add(1)
			return nil
		}))
		patience.Pass(t, 5*time.Minute+longest)
		if n := good.Load(); n != 30 {
			t.Errorf("%d of 30 were handled by the other process", n)
		}
		stop()
		stopFirst()
	})
}

// CO-05: more bad messages than can wait aside, by their number or by their bytes, cost time only if the first ones are
// known to be bad: they are parked after Options.OutageLimit, and the others take their places.
func TestMoreOutagesThanWaitAside(t *testing.T) {
	t.Parallel()
	for _, k := range brokers[:2] {
		for _, c := range []struct {
			known, more, bytes int
			pause, limit       time.Duration
		}{{480, 40, 0, time.Second, 20 * time.Minute}, {3, 3, 8 << 20, longest, 10 * time.Minute}} {
			t.Run(fmt.Sprintf("%s %+v", k.name, c), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					patience.BudgetOf(t).Time(4*time.Hour, "the limit of a message's own outages is an hour")
					patience.BudgetOf(t).Calls(2000, "then hundreds are parked")
					f, on := k.on(t)
					var good atomic.Int64
					var mostHeld atomic.Int64
					o := consumer.Options{Concurrency: 1, OutageLimit: c.limit, Pause: waybill.Backoff{Base: 100 * time.Millisecond, Cap: c.pause}}
					stop := start(t, on, o, waybill.Subscription{}, of(false, func(d *waybill.Delivery) error {
						mostHeld.Store(max(mostHeld.Load(), int64(f.Depth(queue).Held)))
						if strings.HasPrefix(d.Envelope.ID, "bad") {
							return waybill.Outage(errBoom)
						}
						good.Add(1)
						return nil
					}))
					es := bads(c.known + c.more)
					for i := range es {
						es[i].Body = make([]byte, c.bytes)
					}
					f.send(t, append(es[:c.known:c.known], messages(1)...)...)
					patience.Pass(t, time.Duration(2*c.known+1)*c.pause)
					f.send(t, append(es[c.known:], messages(1, waybill.ID("last"))...)...)
					patience.Pass(t, 2*c.limit)
					if n := good.Load(); n != 2 {
						t.Errorf("%d of 2 were handled; depth is %+v", n, f.Depth(queue))
					}
					if n := mostHeld.Load(); n > 520 {
						t.Errorf("%d messages were held, want 500 and those that the broker sends ahead", n)
					}
					if most := f.counts().mostBytes; most > 32<<20+c.bytes {
						t.Errorf("%d bytes were held, want 32 MiB and one message", most)
					}
					stop()
				})
			})
		}
	}
}

// CO-05: messages that take long to meet an outage leave half of one handler's time to the others, however many they
// are.
func TestSlowOutagesLeaveTimeToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		patience.BudgetOf(t).Time(time.Hour, "two probes for each of 20 bad messages")
		var good atomic.Int64
		stop := start(t, b, consumer.Options{Concurrency: 1}, waybill.Subscription{}, of(false, func(d *waybill.Delivery) error {
			if strings.HasPrefix(d.Envelope.ID, "bad") {
				travel(5 * time.Second)
				return waybill.Outage(errBoom)
			}
			good.Add(1)
			travel(100 * time.Millisecond)
			return nil
		}))
		b.send(t, append(bads(20), messages(1)...)...)
		patience.Pass(t, 41*(longest+5*time.Second))
		es := messages(200)
		for i := range es {
			es[i].ID = fmt.Sprint("later-", i)
		}
		b.send(t, es...)
		patience.Pass(t, 2*20*time.Second+2*5*time.Second)
		if n := good.Load(); n != 201 {
			t.Errorf("%d of 201 were handled in twice their time", n)
		}
		stop()
	})
}
