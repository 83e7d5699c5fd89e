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

// longest is the longest pause of the default, and away the longest time that a message is away.
const (
	longest = 30 * time.Second
	away    = time.Minute
)

// broker is a kind of broker, for messages that meet outages. Each delivers what is released before all others.
type broker struct {
	name     string
	sends    bool // it sends messages ahead
	dueFirst bool // it delivers a message that is due before all others
	traits   func(*core.SubscriberTraits)
}

var brokers = []broker{
	{name: "asked"},
	{name: "due first", dueFirst: true},
	{name: "sends ahead", sends: true},
	{name: "sends ahead, due first", sends: true, dueFirst: true},
	{name: "has one count", traits: func(t *core.SubscriberTraits) { t.AttemptsAreDeliveries = true }},
}

func (k broker) on(t *testing.T) (*far, core.Subscriber) {
	t.Helper()
	f := &far{bus: declared(t), trip: time.Millisecond}
	f.traits, f.dueFirst = k.traits, k.dueFirst
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

func isBad(d *waybill.Delivery) bool { return strings.HasPrefix(d.Envelope.ID, "bad") }

// CO-05, CO-19: behind any number of messages that meet an outage each time a message is handled after two probes for
// each of them, at most, and none is held meanwhile. Then the queue goes on, and they are parked after
// Options.OutageLimit.
func TestOutagesAtTheHead(t *testing.T) {
	t.Parallel()
	for _, k := range brokers {
		for _, c := range []struct{ bad, concurrency, prefetch int }{
			{1, 1, 0}, {1, 1, 1}, {2, 1, 0}, {2, 1, 2}, {2, 2, 0}, {5, 2, 20}, {5, 4, 0}, {20, 1, 0}, {20, 4, 4}, {20, 4, 0}, {100, 1, 0}, {100, 2, 2}, {100, 4, 0},
		} {
			t.Run(fmt.Sprintf("%s %+v", k.name, c), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					probes := 2*c.bad + c.concurrency + 1
					patience.BudgetOf(t).Time(time.Duration(probes)*longest, "two probes for each bad message")
					patience.BudgetOf(t).Calls(2000, "hundreds of messages are away for a minute each")
					f, on := k.on(t)
					var runs, before, good atomic.Int64
					stop := start(t, on, consumer.Options{OutageLimit: time.Hour}, waybill.Subscription{Concurrency: c.concurrency, Prefetch: c.prefetch},
						of(false, func(d *waybill.Delivery) error {
							if d.Attempt != 1 {
								t.Errorf("%s comes as attempt %d", d.Envelope.ID, d.Attempt)
							}
							if isBad(d) {
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

// CO-05: a broker that charges each delivery to its message, and delivers one that is due before all others, delivers a
// message behind a few that meet an outage each time after six probes for each of them, at most.
func TestOutagesAtTheHeadWithOneCount(t *testing.T) {
	t.Parallel()
	for bad := 1; bad <= 6; bad++ {
		synctest.Test(t, func(t *testing.T) {
			probes := 6 * bad
			patience.BudgetOf(t).Time(time.Duration(probes)*longest, "six probes for each bad message")
			f, on := broker{dueFirst: true, traits: func(t *core.SubscriberTraits) { t.AttemptsAreDeliveries = true }}.on(t)
			var good atomic.Int64
			stop := start(t, on, consumer.Options{Concurrency: 1}, waybill.Subscription{}, of(false, func(d *waybill.Delivery) error {
				if isBad(d) {
					return waybill.Outage(errBoom)
				}
				good.Add(1)
				return nil
			}))
			f.send(t, append(bads(bad), messages(1)...)...)
			patience.Pass(t, time.Duration(probes)*longest)
			if good.Load() != 1 {
				t.Errorf("behind %d bad messages the good one was not handled within %d pauses", bad, probes)
			}
			stop()
		})
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
					stop := start(t, on, consumer.Options{Concurrency: concurrency}, waybill.Subscription{}, of(false, func(d *waybill.Delivery) error {
						if isBad(d) {
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
						of(false, func(d *waybill.Delivery) error {
							if isBad(d) {
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
					if n := f.verdicts()[free]; n > 0 {
						t.Errorf("%d were away, although the order is kept", n)
					}
					stop()
				})
			})
		}
	}
}

// CO-05, CO-19: in an outage of all messages nothing is held between the probes. There is a probe after each pause, and
// the time that a message is away if all are. Between two probes each message is copied once at most, and once more
// after it has probed. When the outage is over, all are handled within three minutes.
func TestOutageOfAllEnds(t *testing.T) {
	t.Parallel()
	const wait = 3 * time.Hour
	for _, k := range brokers {
		for _, n := range []int{1, 2, 10, 200} {
			for _, concurrency := range []int{1, 4} {
				t.Run(fmt.Sprintf("%s, %d of %d", k.name, concurrency, n), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						patience.BudgetOf(t).Calls(3000, "hundreds of messages go away one by one")
						patience.BudgetOf(t).Time(wait, "so long is the outage")
						f, on := k.on(t)
						var up atomic.Bool
						var good, probes, running atomic.Int64
						stop := start(t, on, consumer.Options{Concurrency: concurrency}, waybill.Subscription{}, of(false, func(*waybill.Delivery) error {
							running.Add(1)
							defer running.Add(-1)
							travel(time.Second)
							if !up.Load() {
								probes.Add(1)
								return waybill.Outage(errBoom)
							}
							good.Add(1)
							return nil
						}))
						f.publish(t, n)
						for end := time.Now().Add(wait); time.Now().Before(end); {
							patience.Pass(t, 7*time.Second)
							// A message comes while another one goes.
							if h := f.counts().held; running.Load() == 0 && h > 2 {
								t.Fatalf("%d messages are held, although no handler runs", h)
							}
						}
						// A pause has a random part of a half.
						passes := min(time.Duration(n)*time.Second, away)
						least, most := int64(wait/(longest+passes+2*time.Second)), int64(2*wait/longest)+20
						if k.traits != nil {
							least /= 2 // it is away for the pauses of all
						}
						if p := probes.Load(); p < least || p > most {
							t.Errorf("%d probes, want %d to %d", p, least, most)
						}
						p := int(probes.Load())
						if c, most := f.verdicts()[free], (p+1)*(n+1); c > most {
							t.Errorf("%d copies for %d probes, want at most %d", c, p, most)
						}
						up.Store(true)
						limit := 3 * time.Minute
						if k.traits != nil {
							limit = 10 * time.Minute
						}
						patience.Pass(t, limit+time.Duration(n)*time.Second/time.Duration(concurrency))
						if got := good.Load(); got != int64(n) {
							t.Errorf("%d of %d were handled within %s and the time that they take", got, n, limit)
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
}

// CO-05, CO-19: in an outage of one process another one gets every message. It shares what comes back with the first
// one, which probes, so the last message can be away some times.
func TestOthersGetWhatIsAway(t *testing.T) {
	t.Parallel()
	for _, k := range brokers[:2] {
		synctest.Test(t, func(t *testing.T) {
			f, on := k.on(t)
			patience.BudgetOf(t).Time(2*time.Hour, "so long is the outage")
			var good atomic.Int64
			stopFirst := start(t, on, consumer.Options{Concurrency: 2}, waybill.Subscription{}, of(false, func(*waybill.Delivery) error { return waybill.Outage(errBoom) }))
			f.publish(t, 30)
			patience.Pass(t, time.Hour)
			stop := start(t, on, consumer.Options{Concurrency: 2}, waybill.Subscription{}, of(false, func(*waybill.Delivery) error {
				good.Add(1)
				return nil
			}))
			patience.Pass(t, 15*away)
			if n := good.Load(); n != 30 {
				t.Errorf("%s: %d of 30 were handled by the other process", k.name, n)
			}
			stop()
			stopFirst()
		})
	}
}

// CO-05: messages that take long to meet an outage leave half of one handler's time to the others, however many they
// are: each of the 20 is away for 40 times its own time. How many of them come in one minute is chance, so the time of
// those that come is known, and the handler has no other rest while good ones wait.
func TestSlowOutagesLeaveTimeToOthers(t *testing.T) {
	t.Parallel()
	for _, k := range brokers {
		synctest.Test(t, func(t *testing.T) {
			const bad, each, one = 20, 5 * time.Second, 100 * time.Millisecond
			f, on := k.on(t)
			patience.BudgetOf(t).Time(time.Hour, "two probes for each of 20 bad messages")
			var good, came atomic.Int64
			var known atomic.Bool           // all bad ones are known
			ended := map[string]time.Time{} // of the only handler
			stop := start(t, on, consumer.Options{Concurrency: 1}, waybill.Subscription{}, of(false, func(d *waybill.Delivery) error {
				if isBad(d) {
					if away := time.Since(ended[d.Envelope.ID]); known.Load() && away < 2*bad*each {
						t.Errorf("%s: %s was away for %s, want %s at least", k.name, d.Envelope.ID, away, 2*bad*each)
					}
					came.Add(1)
					travel(each)
					ended[d.Envelope.ID] = time.Now()
					return waybill.Outage(errBoom)
				}
				good.Add(1)
				travel(one)
				return nil
			}))
			f.send(t, append(bads(bad), messages(1)...)...)
			patience.Pass(t, 41*(longest+each))
			f.send(t, messages(1, waybill.ID("then"))...) // so that the last bad one is known, too
			patience.Pass(t, 2*2*bad*each)
			good.Add(-1)
			known.Store(true)
			came.Store(0)
			es := messages(200)
			for i := range es {
				es[i].ID = fmt.Sprint("later-", i)
			}
			f.send(t, es...)
			const window = 2*20*time.Second + 2*5*time.Second
			patience.Pass(t, window)
			// One more bad message ran when the good ones came. Each message costs a receive and a settle.
			n, bads := good.Load(), came.Load()
			if spent := n*int64(one) + (bads+1)*int64(each) + 2*(n+bads)*int64(f.trip); n != 201 && spent < int64(window) {
				t.Errorf("%s: %d of 201 were handled in twice their time, beside %d bad ones", k.name, n, bads)
			}
			patience.Pass(t, 20*bad*each) // each comes again, also while others wait for the handler
			stop()
		})
	}
}

// CO-05: messages that meet an outage at once leave half of the round trips to the others. The broker delivers first
// what is due, and all bad messages together take longer to come than the pause of one lasts.
func TestQuickOutagesLeaveRoundTripsToOthers(t *testing.T) {
	t.Parallel()
	for _, ahead := range []bool{false, true} {
		t.Run(fmt.Sprint("ahead ", ahead), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t).Time(20*time.Minute, "two probes for each of 60 bad messages")
				patience.BudgetOf(t).Calls(1000, "pauses of 20 ms")
				f := &far{bus: declared(t), trip: 4 * time.Millisecond}
				f.dueFirst = true
				f.redeliver = func(d *waybill.Delivery) {
					if isBad(d) {
						d.Redeliveries = 1 // so that few are held
					}
				}
				var on core.Subscriber = f
				if ahead {
					on = &sending{f}
				}
				var good atomic.Int64
				o := consumer.Options{Concurrency: 2, Pause: waybill.Backoff{Base: 20 * time.Millisecond, Cap: 100 * time.Millisecond}}
				stop := start(t, on, o, waybill.Subscription{}, of(false, func(d *waybill.Delivery) error {
					if isBad(d) {
						return waybill.Outage(errBoom)
					}
					good.Add(1)
					return nil
				}))
				defer stop()
				f.send(t, append(bads(60), messages(20)...)...)
				patience.Pass(t, 5*time.Minute)
				if n := good.Load(); n != 20 {
					t.Errorf("%d of 20 are handled, %+v", n, f.Depth(queue))
				}
				es := messages(100)
				for i := range es {
					es[i].ID = fmt.Sprint("later-", i)
				}
				f.send(t, es...)
				patience.Pass(t, 10*time.Second)
				if n := good.Load(); n != 120 {
					t.Errorf("%d of 120 are handled, %+v", n, f.Depth(queue))
				}
			})
		})
	}
}

// A broker that was told to send one message for a probe is told of the others when the outage is that of one message
// alone, also if that one came again: all handlers work beside it.
func TestHandlersWorkBesideAMessageThatCameAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const handlers = 4
		f := &far{bus: declared(t), trip: time.Millisecond}
		f.redeliver = func(d *waybill.Delivery) {
			if isBad(d) {
				d.Redeliveries = 1
			}
		}
		var running, most, good atomic.Int32
		stop := start(t, &sending{f}, consumer.Options{Concurrency: handlers}, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
			if isBad(d) {
				return waybill.Outage(errBoom)
			}
			most.Store(max(most.Load(), running.Add(1)))
			travel(time.Second)
			running.Add(-1)
			good.Add(1)
			return nil
		}))
		f.send(t, bads(1)...)
		patience.Pass(t, 3*time.Minute)
		f.publish(t, 10*handlers)
		patience.Pass(t, 3*time.Minute)
		if n := good.Load(); n != 10*handlers {
			t.Errorf("%d of %d messages were handled", n, 10*handlers)
		}
		if n := most.Load(); n < handlers-1 { // one can run the bad one
			t.Errorf("at most %d of %d handlers worked at the same time", n, handlers)
		}
		stop()
	})
}

// CO-05: over a transport that cannot deliver again later no message is away. Each outage pauses the subscription, so a
// message that meets outages alone does not run without a pause.
func TestOutageWithoutDelaysRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		patience.BudgetOf(t).Time(2*time.Hour, "so long is the outage")
		b.traits = func(t *core.SubscriberTraits) { t.DelaysRetries = false }
		var runs, good atomic.Int64
		stop := start(t, b, consumer.Options{}, waybill.Subscription{Retry: waybill.RetryDelays()}, of(false, func(d *waybill.Delivery) error {
			if isBad(d) {
				runs.Add(1)
				return waybill.Outage(errBoom)
			}
			good.Add(1)
			return nil
		}))
		b.send(t, append(bads(1), messages(1)...)...)
		const wait = time.Hour
		for range int(wait / time.Minute) {
			b.publish(t, 1)
			patience.Pass(t, time.Minute)
		}
		if n := runs.Load(); n < 10 || n > int64(wait/time.Second) {
			t.Errorf("the bad message ran %d times in %s", n, wait)
		}
		if good.Load() == 0 || b.verdicts()[free] > 0 {
			t.Errorf("%d were handled; the deliveries ended as %v", good.Load(), b.verdicts())
		}
		stop()
	})
}

// CO-05: a message that meets its first outage begins a pause, beside many that are known to meet outages alone, and
// that come back first and soon. They let others probe, too, so that the pause ends.
func TestFirstOutageBesideOldOnes(t *testing.T) {
	t.Parallel()
	for _, ahead := range []bool{false, true} {
		t.Run(fmt.Sprint("ahead ", ahead), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t).Time(2*time.Minute, "each message meets many outages")
				patience.BudgetOf(t).Calls(1000, "pauses of 20 ms")
				f := &far{bus: declared(t), trip: 5 * time.Millisecond}
				f.dueFirst = true
				var on core.Subscriber = f
				if ahead {
					on = &sending{f}
				}
				var good atomic.Int64
				o := consumer.Options{Concurrency: 1, Prefetch: 20, Pause: waybill.Backoff{Base: 20 * time.Millisecond, Cap: 100 * time.Millisecond}}
				stop := start(t, on, o, waybill.Subscription{}, of(false, func(d *waybill.Delivery) error {
					if strings.HasPrefix(d.Envelope.ID, "bad") {
						return waybill.Outage(errBoom)
					}
					good.Add(1)
					return nil
				}))
				defer stop()
				for i := range 24 {
					f.send(t, messages(1, waybill.ID(fmt.Sprint("bad-", i)))...)
				}
				f.publish(t, 3)
				patience.Pass(t, 30*time.Second)
				f.send(t, messages(1, waybill.ID("bad-new"))...)
				for i := range 10 {
					f.send(t, messages(1, waybill.ID(fmt.Sprint("later-", i)))...)
				}
				patience.Pass(t, time.Minute)
				if n := good.Load(); n != 13 {
					t.Errorf("%d of 13 are handled, %+v", n, f.Depth(queue))
				}
			})
		})
	}
}
