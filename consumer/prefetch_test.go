package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// far is a bus with a long way to the broker, and counts the calls of a consumer.
type far struct {
	*bus
	trip time.Duration
	mu   sync.Mutex
	farCounts
	last time.Time // of the latest settle
	told []string  // a Pauser, and then the releases

	arrived func([]*waybill.Delivery) // is told of what a consumer has; nil = nobody
	gone    func(*waybill.Delivery)   // and of what it settles
}

type farCounts struct {
	receives, settles   int
	held, mostHeld      int
	bytes, mostBytes    int
	ask, mostAsk        int
	released            int
	releasedWhileAsking int // releases while a Receive was in progress
}

func (f *far) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	r, err := f.bus.Subscribe(ctx, sub)
	return &farReceiver{Receiver: r, f: f, bytes: sub.ReceiveBytes}, err
}

type farReceiver struct {
	core.Receiver
	f     *far
	bytes int                 // how many one Receive returns
	rest  []*waybill.Delivery // the broker has more
}

// bounded returns so many of the deliveries as a Receive returns; the next Receive begins with the others.
func (r *farReceiver) bounded(ds []*waybill.Delivery, limit int) []*waybill.Delivery {
	ds, r.rest = append(r.rest, ds...), nil
	bytes := 0
	for n, d := range ds {
		if bytes += len(d.Envelope.Body); n+1 == limit || r.bytes > 0 && bytes >= r.bytes {
			ds, r.rest = ds[:n+1], ds[n+1:]
			break
		}
	}
	return ds
}

func (r *farReceiver) note(do func(f *far)) {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	do(r.f)
}

func (r *farReceiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	r.note(func(f *far) { f.receives, f.ask, f.mostAsk = f.receives+1, limit, max(f.mostAsk, limit) })
	var ds []*waybill.Delivery
	var err error
	if len(r.rest) == 0 {
		ds, err = r.Receiver.Receive(ctx, limit)
	}
	if ds = r.bounded(ds, limit); len(ds) > 0 {
		travel(r.f.trip)
	}
	r.note(func(f *far) { f.ask = 0 })
	r.came(ds)
	return ds, err
}

// came notes what a consumer holds now.
func (r *farReceiver) came(ds []*waybill.Delivery) {
	if r.f.arrived != nil {
		r.f.arrived(ds)
	}
	r.note(func(f *far) {
		f.held += len(ds)
		for _, d := range ds {
			f.bytes += len(d.Envelope.Body)
		}
		f.mostHeld, f.mostBytes = max(f.mostHeld, f.held), max(f.mostBytes, f.bytes)
	})
}

// settled notes what it does not hold any more.
func (r *farReceiver) settled(acks []core.Ack) {
	r.note(func(f *far) {
		f.held -= len(acks)
		f.last = time.Now()
		for _, a := range acks {
			f.bytes -= len(a.Delivery.Envelope.Body)
		}
	})
}

func (r *farReceiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	r.went(acks)
	travel(r.f.trip)
	defer r.settled(acks)
	return r.Receiver.Settle(ctx, acks)
}

// went notes that a settle begins.
func (r *farReceiver) went(acks []core.Ack) {
	r.note(func(f *far) {
		f.settles++
		for _, a := range acks {
			if f.gone != nil {
				f.gone(a.Delivery)
			}
			if a.Verdict == core.VerdictRelease {
				f.released++
				if f.ask > 0 {
					f.releasedWhileAsking++
				}
			}
		}
	})
}

func (f *far) counts() farCounts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.farCounts
}

// empty waits until everything is handled, and returns how long that took.
func (f *far) empty(t *testing.T, what string) time.Duration {
	t.Helper()
	begin := time.Now()
	patience.Moving(t, what, func() (int, bool) {
		d := f.Depth(queue)
		return d.Ready + d.Held, d.Ready+d.Held == 0
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last.Sub(begin)
}

// CO-03: messages that are done at about the same time are settled together. With 1,000 in hand a round is a Receive
// and one settle: 10 ms, if a round trip takes 5 ms. A message that is settled alone leaves its place empty for a
// round.
func TestSettlesGoTogether(t *testing.T) {
	t.Parallel()
	for _, handlers := range []int{1, 10, 100} {
		t.Run(fmt.Sprint(handlers, " handlers"), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t).Calls(450, "five drains of 15,000 messages")
				const trip = 5 * time.Millisecond
				var took time.Duration
				var calls int
				for range 5 {
					f := &far{bus: declared(t), trip: trip}
					f.publish(t, 15_000)
					stop := start(t, f, consumer.Options{Concurrency: handlers, Prefetch: 1000}, waybill.Subscription{},
						handle(func(context.Context, *waybill.Delivery) error { return nil }))
					took += f.empty(t, "all are handled")
					stop()
					calls += f.counts().receives + f.counts().settles
				}
				t.Logf("%s and %d round trips, in 75 rounds", took, calls)
				const most = 75 * 2 * trip // no message goes on its own
				if took > most {
					t.Errorf("five drains of 15,000 messages took %s, want at most %s", took, most)
				}
				if calls > 4*75 {
					t.Errorf("five drains of 15,000 messages took %d round trips, want at most four a round", calls)
				}
			})
		})
	}
}

// CO-03: idle handlers wait for the settles in progress, and ask for all the room together. A settle waits for none.
func TestIdleHandlersAskTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(3*time.Second, "50 rounds of 12 ms")
		f := &far{bus: declared(t), trip: 5 * time.Millisecond}
		var began atomic.Int64
		stop := start(t, f, consumer.Options{Concurrency: 10, Prefetch: 10}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
			time.Sleep(time.Duration(began.Add(1)%10) * 200 * time.Microsecond)
			return nil
		}))
		defer stop()
		f.publish(t, 500)
		took, calls := f.empty(t, "all are handled"), f.counts()
		t.Logf("%s, %d receives and %d settles, in 50 rounds", took, calls.receives, calls.settles)
		if calls.receives > 55 {
			t.Errorf("ten handlers asked %d times for 500 messages, want 50", calls.receives)
		}
		// The settle of the last ones goes beside that of the first ones: otherwise a round takes 15 ms.
		if most := 55 * 12 * time.Millisecond; took > most {
			t.Errorf("500 messages took %s, want at most %s", took, most)
		}
	})
}

// CO-03: slow handlers leave to others what they cannot begin, also if they become slow at once.
func TestSlowHandlersShare(t *testing.T) {
	t.Parallel()
	for _, handlers := range []int{1, 10} {
		for _, quick := range []int{0, 3000} {
			t.Run(fmt.Sprint(handlers, " handlers after ", quick, " quick messages"), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					patience.BudgetOf(t).Time(12*time.Second, "20 messages of a second, two at a time")
					patience.BudgetOf(t).Calls(300, "3,000 quick ones")
					f := &far{bus: declared(t), trip: time.Millisecond}
					var by [2]atomic.Int32
					slow := messages(20)
					for n := range by {
						stop := start(t, f, consumer.Options{Concurrency: handlers}, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
							if strings.HasPrefix(d.Envelope.ID, "slow") {
								by[n].Add(1)
								time.Sleep(time.Second)
							}
							return nil
						}))
						defer stop()
					}
					if quick > 0 {
						f.publish(t, quick)
						f.empty(t, "the quick ones are handled")
					}
					for n := range slow {
						slow[n].ID = fmt.Sprint("slow-", n)
					}
					f.send(t, slow...)
					took := f.empty(t, "the slow ones are handled")
					least := 20 * time.Second / time.Duration(2*handlers)
					t.Logf("%d and %d in %s; %+v", by[0].Load(), by[1].Load(), took, f.counts())
					if took > least*12/10 || by[0].Load() != 10 {
						t.Errorf("%d and %d of 20 messages of a second in %s", by[0].Load(), by[1].Load(), took)
					}
					if n := f.counts().releasedWhileAsking; n > 0 {
						t.Errorf("%d were released while a Receive could take them again", n)
					}
				})
			})
		}
	}
}

// CO-03: a message that came again after a process had ended can end this one, too. That counts against all messages
// that are held, so few are.
func TestFewBesideRedelivered(t *testing.T) {
	t.Parallel()
	// With one handler there is a call for each message, and a round trip takes a millisecond.
	for handlers, calls := range map[int]int{1: 1000, 10: 400} {
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Calls(calls, "500 messages, one at a time for each handler, and 5,000 others")
			f := &far{bus: declared(t), trip: time.Millisecond}
			var most atomic.Int32
			f.redeliver = func(d *waybill.Delivery) {
				if strings.HasPrefix(d.Envelope.ID, "again") {
					d.Redeliveries = 1
				}
			}
			h := handle(func(_ context.Context, d *waybill.Delivery) error {
				if strings.HasPrefix(d.Envelope.ID, "again") {
					most.Store(max(most.Load(), int32(f.counts().held)))
				}
				return nil
			})
			stop := start(t, f, consumer.Options{Concurrency: handlers}, waybill.Subscription{}, h)
			defer stop()
			f.publish(t, 5000)
			f.empty(t, "the first ones are handled")
			again := messages(500)
			for n := range again {
				again[n].ID = fmt.Sprint("again-", n)
			}
			patience.Pass(t, 2*time.Second)
			f.send(t, again...)
			f.empty(t, "those that came again are handled")
			if n := int(most.Load()); n > handlers {
				t.Errorf("%d were held beside one that came again, and %d handlers", n, handlers)
			}
		})
	}
}

// CO-03: while a message that came again is handled, quick ones beside it do not raise the number.
func TestFewWhileRedeliveredRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Calls(2500, "quick messages, one at a time for each handler")
		f := &far{bus: declared(t), trip: time.Millisecond}
		f.redeliver = func(d *waybill.Delivery) {
			if d.Envelope.ID == "again" {
				d.Redeliveries = 1
			}
		}
		var runs atomic.Bool
		var most, beside atomic.Int32
		stop := start(t, f, consumer.Options{Concurrency: 10}, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
			if d.Envelope.ID == "again" {
				runs.Store(true)
				time.Sleep(time.Second)
				runs.Store(false)
			} else if runs.Load() {
				beside.Add(1)
				most.Store(max(most.Load(), int32(f.counts().held)))
			}
			return nil
		}))
		defer stop()
		again := messages(1)
		again[0].ID = "again"
		f.send(t, again...)
		f.publish(t, 5000)
		f.empty(t, "all are handled")
		if n := most.Load(); n > 10 || beside.Load() < 1000 {
			t.Errorf("%d were held, and %d were handled, beside one that came again, and 10 handlers", n, beside.Load())
		}
	})
}

// CO-03: before a body has shown its size, a batch handler asks for few messages: not every transport bounds the bytes
// of one Receive.
func TestFirstQuestionIsSmall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		f := &far{bus: declared(t), trip: time.Millisecond}
		var got batches
		stop := start(t, f, consumer.Options{}, waybill.Subscription{}, got.handler(0, func([]string) error { return nil }, nil))
		defer stop()
		patience.Pass(t, time.Second)
		if n := f.counts().ask; n < 1 || n > 64 {
			t.Errorf("it waits for %d messages, want 64 at most", n)
		}
	})
}

// CO-03: a pace is forgotten when there is nothing to do: the next messages can be slow.
func TestPaceIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &far{bus: declared(t), trip: time.Millisecond}
		stop := start(t, f, consumer.Options{}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error { return nil }))
		defer stop()
		f.publish(t, 5000)
		f.empty(t, "all are handled")
		patience.Pass(t, 2*time.Second)
		if n := f.counts().ask; n != 10 {
			t.Errorf("it waits for %d messages, want 10", n)
		}
	})
}

// CO-03: a give-back lets no message of a key pass another, and costs no message a delivery.
func TestWhatIsNotGivenBack(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		key     func(n int) string
		one     bool // the broker has one count
		release bool
	}{
		"without a key":              {func(int) string { return "" }, false, true},
		"with keys":                  {func(n int) string { return fmt.Sprint("k", n) }, false, false},
		"a broker with one count":    {func(int) string { return "" }, true, false},
		"with keys, and one without": {func(n int) string { return strings.Repeat("k", min(n, 19)%19) }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t).Time(25*time.Second, "40 messages of a second, two at a time")
				patience.BudgetOf(t).Calls(300, "3,000 quick ones")
				f := &far{bus: declared(t), trip: time.Millisecond}
				f.traits = func(tr *core.SubscriberTraits) { tr.AttemptsAreDeliveries = tt.one }
				var slow atomic.Bool
				retry := waybill.RetryDelays(time.Second)
				stop := start(t, f, consumer.Options{Concurrency: 2}, waybill.Subscription{Retry: retry}, handle(func(context.Context, *waybill.Delivery) error {
					if slow.Load() {
						time.Sleep(time.Second)
					}
					return nil
				}))
				defer stop()
				f.publish(t, 3000)
				f.empty(t, "the quick ones are handled")
				slow.Store(true)
				list := messages(40)
				for n := range list {
					list[n].ID, list[n].Key = fmt.Sprint("slow-", n), tt.key(n)
				}
				f.send(t, list...)
				f.empty(t, "the slow ones are handled")
				if n := f.counts().released; (n > 0) != tt.release {
					t.Errorf("%d were released", n)
				}
			})
		})
	}
}

// CO-03: messages behind one of their key keep no handler idle.
func TestStuckMessagesKeepNoHandlerIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &far{bus: declared(t), trip: time.Millisecond}
		var running atomic.Int32
		end := make(chan struct{})
		stop := start(t, f, consumer.Options{Concurrency: 4}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
			running.Add(1)
			<-end
			return nil
		}))
		list := messages(8)
		for n := range 4 {
			list[n].Key = "k"
		}
		f.send(t, list...)
		patience.Pass(t, time.Second)
		if n := running.Load(); n != 4 {
			t.Errorf("%d handlers run, want 4", n)
		}
		close(end)
		f.empty(t, "all are handled")
		stop()
	})
}

// CO-03, CO-25, CO-26, IN-08: the bodies that a consumer holds are bounded, for any handlers and any Prefetch, and also
// when they become large at once.
func TestHeldBytes(t *testing.T) {
	t.Parallel()
	const body, limit, n = 700 << 10, 64 << 20, 3000
	for name, isLarge := range map[string]func(n int) bool{
		"all are large":     func(int) bool { return true },
		"some are large":    func(n int) bool { return n%3 == 0 },
		"they become large": func(at int) bool { return at > n/2 },
	} {
		for _, inOrder := range []bool{false, true} {
			for _, c := range []struct {
				batch    bool
				prefetch int
			}{{false, 0}, {true, 0}, {true, 1000}} {
				batch, prefetch := c.batch, c.prefetch
				t.Run(fmt.Sprintf("%s, in order %t, batches %t, prefetch %d", name, inOrder, batch, prefetch), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						patience.BudgetOf(t).Calls(400, "3,000 messages, about a hundred at a time")
						if !batch || name == "they become large" {
							patience.BudgetOf(t).Calls(2100, "3,000 messages, some of them one by one")
						}
						f := &far{bus: declared(t), trip: time.Millisecond}
						large := make([]byte, body)
						var came atomic.Int32
						f.redeliver = func(d *waybill.Delivery) { // all have one body
							if isLarge(int(came.Add(1))) {
								d.Envelope.Body = large
							}
						}
						var got batches
						work := func() error {
							time.Sleep(10 * time.Millisecond)
							return nil
						}
						h := got.handler(0, func([]string) error { return work() }, nil)
						if !batch {
							h = handle(func(context.Context, *waybill.Delivery) error { return nil })
						}
						f.publish(t, n)
						stop := start(t, f, consumer.Options{Prefetch: prefetch}, waybill.Subscription{InOrder: inOrder}, h)
						f.empty(t, "all are handled")
						stop()
						most := f.counts()
						t.Logf("%d MiB in %d messages were held at most", most.mostBytes>>20, most.mostHeld)
						if most.mostBytes > limit || batch && most.mostBytes < limit/2 {
							t.Errorf("want at most %d MiB, and with batches at least half of it", limit>>20)
						}
					})
				})
			}
		}
	}
}

// CO-03: one message comes, however large it is.
func TestOneLargeMessageComes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &far{bus: declared(t), trip: time.Millisecond}
		large := make([]byte, 80<<20)
		f.redeliver = func(d *waybill.Delivery) { d.Envelope.Body = large }
		stop := start(t, f, consumer.Options{Concurrency: 1}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
			time.Sleep(time.Second)
			return nil
		}))
		defer stop()
		f.publish(t, 3)
		f.empty(t, "all are handled")
		if n := f.counts().mostHeld; n != 1 {
			t.Errorf("%d were held", n)
		}
	})
}

// pushing is a far bus that sends messages ahead.
type pushing struct{ *far }

func (p *pushing) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	p.told = append(p.told, fmt.Sprint("begin ", sub.Prefetch))
	r, err := p.bus.Subscribe(ctx, sub)
	return &pushingReceiver{farReceiver{Receiver: r, f: p.far, bytes: sub.ReceiveBytes}}, err
}

type pushingReceiver struct{ farReceiver }

func (r *pushingReceiver) Pause(context.Context) error {
	r.note(func(f *far) { f.told = append(f.told, "pause") })
	return nil
}

func (r *pushingReceiver) Resume(_ context.Context, n int) error {
	r.note(func(f *far) { f.told = append(f.told, strconv.Itoa(n)) })
	return nil
}

func (r *pushingReceiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	if acks[0].Verdict == core.VerdictRelease {
		r.note(func(f *far) { f.told = append(f.told, "release") })
	}
	return r.farReceiver.Settle(ctx, acks)
}

// CO-03: a broker that sends ahead is told how much, seldom, and before anything goes back.
func TestBrokerIsToldHowMuchToSend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pushing{&far{bus: declared(t), trip: time.Millisecond}}
		var slow atomic.Bool
		stop := start(t, p, consumer.Options{}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
			if slow.Load() {
				time.Sleep(time.Second)
			}
			return nil
		}))
		defer stop()
		p.publish(t, 20_000)
		p.empty(t, "the quick ones are handled")
		slow.Store(true)
		list := messages(40)
		for n := range list {
			list[n].ID = fmt.Sprint("slow-", n)
		}
		p.send(t, list...)
		p.empty(t, "the slow ones are handled")
		p.mu.Lock()
		defer p.mu.Unlock()
		t.Log(p.told)
		at := slices.Index(p.told, "release")
		if p.told[0] != "begin 10" || at < 3 || at > 7 || p.told[at-2] != "1000" || p.told[at-1] != "10" || len(p.told) != at+1 {
			t.Errorf("told %v", p.told)
		}
		for _, told := range p.told[1 : at-1] {
			if !slices.Contains([]string{"20", "40", "80", "160", "320", "640", "1000"}, told) {
				t.Errorf("told %s, which is neither double nor all: %v", told, p.told)
			}
		}
	})
}

// CO-03, CO-26: a broker that sends ahead begins with few messages for any handlers: the sizes of the bodies are not
// known yet. In order it cannot be told another number, so no batch waits for more.
func TestBrokerSendsFewFirst(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		sub      waybill.Subscription
		handlers int
		single   bool
		begin    int
		more     bool
		most     int
	}{
		"batches":                  {begin: 64, more: true, most: 2000},
		"a Prefetch":               {sub: waybill.Subscription{Prefetch: 1000}, begin: 64, more: true, most: 1000},
		"a small Prefetch":         {sub: waybill.Subscription{Prefetch: 160}, handlers: 80, single: true, begin: 160, most: 160},
		"in order":                 {sub: waybill.Subscription{InOrder: true}, begin: 64, most: 64},
		"in order, many handlers":  {sub: waybill.Subscription{InOrder: true}, handlers: 100, begin: 100, most: 100},
		"in order with a Prefetch": {sub: waybill.Subscription{InOrder: true, Prefetch: 500}, begin: 500, most: 500},
		"groups":                   {sub: waybill.Subscription{PerGroup: waybill.GroupLimit{Concurrency: 1}}, handlers: 100, single: true, begin: 100, more: true, most: 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t).Calls(500, "thousands of messages")
				p := &pushing{&far{bus: declared(t), trip: time.Millisecond}}
				var got batches
				h := got.handler(0, nil, nil)
				if tt.single {
					h = handle(func(context.Context, *waybill.Delivery) error { return nil })
				} else if !tt.more {
					h.BatchWait = time.Minute // a batch that waits in vain spends the budget
				}
				stop := start(t, p, consumer.Options{Concurrency: tt.handlers}, tt.sub, h)
				synctest.Wait()
				p.mu.Lock()
				told := fmt.Sprint(p.told)
				p.mu.Unlock()
				if want := fmt.Sprintf("[begin %d]", tt.begin); told != want {
					t.Errorf("told %s before a message has come, want %s", told, want)
				}
				p.publish(t, 50*tt.begin) // whole batches
				p.empty(t, "all are handled")
				stop()
				p.mu.Lock()
				defer p.mu.Unlock()
				if more := len(p.told) > 1; more != tt.more {
					t.Errorf("told %v; want another number: %t", p.told, tt.more)
				}
				if p.mostHeld > tt.most {
					t.Errorf("%d were held, want at most %d", p.mostHeld, tt.most)
				}
			})
		})
	}
}

// gauges returns the values of the gauges.
func gauges(t *testing.T, reader *metric.ManualReader) map[string]int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &rm); err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			if data, ok := m.Data.(metricdata.Gauge[int64]); ok {
				out[strings.TrimPrefix(m.Name, "waybill.consumer.")] = data.DataPoints[0].Value
			}
		}
	}
	return out
}

// OP-10: Health says how much is held, and why. So do the metrics.
func TestHealthSaysWhatIsHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &far{bus: declared(t), trip: time.Millisecond}
		var again atomic.Bool
		f.redeliver = func(d *waybill.Delivery) {
			if again.Load() {
				d.Redeliveries = 1
			}
		}
		patience.BudgetOf(t).Time(40*time.Second, "three times handlers of ten seconds")
		patience.BudgetOf(t).Calls(400, "20,000 messages")
		var slow atomic.Bool
		var handled atomic.Int32
		var quick string
		reader := metric.NewManualReader()
		c := newConsumer(t, f, consumer.Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
		says := func() string {
			checks := c.Health(t.Context()).Checks
			return checks[len(checks)-1].Text
		}
		err := c.Handle(waybill.Subscription{Queue: queue}, handle(func(context.Context, *waybill.Delivery) error {
			if handled.Add(1) == 15_000 {
				quick = says()
			}
			if slow.Load() {
				time.Sleep(10 * time.Second)
			}
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		stop := run(t, c)
		defer stop()
		want := func(text string) {
			t.Helper()
			patience.Moving(t, "Health says "+text, func() (int, bool) {
				return f.Depth(queue).Ready, strings.Contains(says(), text)
			})
		}
		want("0 deliveries held of at most 10, ")
		f.publish(t, 20_000)
		f.empty(t, "all are handled")
		if !strings.Contains(quick, "of at most 1000: what handlers settle in 100ms") {
			t.Errorf("quick handlers: %s", quick)
		}
		slow.Store(true)
		f.send(t, messages(30, waybill.Key(""))...)
		want("of at most 10: handlers did not begin what waited within 100ms")
		patience.Pass(t, 10*time.Millisecond) // the release
		if g := gauges(t, reader); g["held"] != 10 || g["prefetch"] != 10 || counts(t, reader)["returned{queue=q}"] != 20 {
			t.Errorf("gauges %v, counters %v", g, counts(t, reader))
		}
		again.Store(true)
		slow.Store(false)
		f.empty(t, "all are handled")
		again.Store(false)
		f.publish(t, 5000)
		want("of at most 10: there was nothing to do")
	})
}
