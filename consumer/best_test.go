package consumer_test

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// sending is a far bus that sends messages ahead: a Receive takes those that have arrived. A settle gives its places to
// the next messages, which arrive a round trip after it was sent.
type sending struct{ *far }

func (s *sending) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	inner := sub
	inner.Prefetch = cmp.Or(sub.MaxPrefetch, sub.Prefetch) // the broker's bound is below
	r, err := s.far.Subscribe(ctx, inner)
	if err != nil {
		return nil, err
	}
	end, stop := context.WithCancel(context.WithoutCancel(ctx))
	sr := &sendingReceiver{farReceiver: r.(*farReceiver), most: sub.Prefetch, stop: stop, change: make(chan struct{}, 1), arrived: make(chan struct{}, 1)}
	sr.running.Go(func() { sr.send(end) })
	return sr, nil
}

type sendingReceiver struct {
	*farReceiver
	stop            context.CancelFunc
	running         sync.WaitGroup
	change, arrived chan struct{}

	mu        sync.Mutex
	most      int // 0 = paused
	unsettled int
	here      []*waybill.Delivery
}

func ring(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// send is the broker.
func (r *sendingReceiver) send(ctx context.Context) {
	for ctx.Err() == nil {
		r.mu.Lock()
		free := r.most - r.unsettled
		r.mu.Unlock()
		if free <= 0 {
			select {
			case <-r.change:
			case <-ctx.Done():
			}
			continue
		}
		ds, err := r.Receiver.Receive(ctx, free)
		if err != nil {
			return
		}
		r.mu.Lock()
		r.unsettled += len(ds)
		r.mu.Unlock()
		r.running.Go(func() {
			travel(r.f.trip / 2)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.here = append(r.here, ds...)
			ring(r.arrived)
		})
	}
}

func (r *sendingReceiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	for {
		r.mu.Lock()
		n := min(limit, len(r.here))
		ds := r.here[:n:n]
		r.here = r.here[n:]
		r.mu.Unlock()
		if n > 0 {
			r.came(ds)
			return ds, nil
		}
		select {
		case <-r.arrived:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (r *sendingReceiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	r.went(acks)
	travel(r.f.trip / 2)
	results := r.Receiver.Settle(context.WithoutCancel(ctx), acks)
	r.mu.Lock()
	r.unsettled -= len(acks)
	ring(r.change)
	r.mu.Unlock()
	travel(r.f.trip / 2)
	r.settled(acks)
	return results
}

func (r *sendingReceiver) Pause(ctx context.Context) error { return r.Resume(ctx, 0) }

func (r *sendingReceiver) Resume(_ context.Context, n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.most = n
	ring(r.change)
	return nil
}

func (r *sendingReceiver) Close(ctx context.Context) error {
	r.stop()
	r.running.Wait()
	return r.farReceiver.Close(ctx)
}

// handling is what a process takes for a message beside its handler: a processor does about 50,000 a second.
const handling = 20 * time.Microsecond

// CO-25, CO-03: without a Prefetch a consumer is within 10 % of the best Prefetch: for few and many handlers, quick and
// slow ones, near and far, and for brokers that are asked and for such that send ahead. The time of a drain is virtual.
func TestWithinATenthOfTheBest(t *testing.T) {
	t.Parallel()
	const most = 1000 // the greatest number that a consumer chooses
	for _, ahead := range []bool{false, true} {
		for _, handlers := range []int{1, 10, 100} {
			for _, work := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
				for _, trip := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond} {
					t.Run(fmt.Sprintf("ahead %t, %d handlers of %s, %s", ahead, handlers, work, trip), func(t *testing.T) {
						t.Parallel()
						first, rest := 2000, 4000
						if work > 0 { // half a second each
							first = min(handlers*int(time.Second/work)/2, first)
							rest = min(handlers*int(time.Second/work)/2, rest)
						}
						synctest.Test(t, func(t *testing.T) {
							if trip > 0 && work == 0 && !ahead {
								patience.BudgetOf(t).Calls(450, "all in less than a second of virtual time")
							} else {
								patience.BudgetOf(t).Calls(40_000, "quick handlers beside their broker")
							}
							patience.BudgetOf(t).Time(time.Minute, "three drains, half a second each")
							drain := func(prefetch int) (begin, took time.Duration, held farCounts) {
								f := &far{bus: declared(t), trip: trip}
								var on core.Subscriber = f
								if ahead {
									on = &sending{f}
								}
								processor := make(chan struct{}, 1)
								f.publish(t, first)
								stop := start(t, on, consumer.Options{Concurrency: handlers, Prefetch: prefetch}, waybill.Subscription{},
									handle(func(context.Context, *waybill.Delivery) error {
										processor <- struct{}{}
										time.Sleep(handling)
										<-processor
										if work > 0 {
											time.Sleep(work)
										}
										return nil
									}))
								defer stop()
								begin = f.empty(t, "the first ones are handled")
								f.publish(t, rest)
								return begin, f.empty(t, "all are handled"), f.counts()
							}
							ownBegin, own, held := drain(0)
							var best, begin time.Duration
							at := 0
							for _, prefetch := range []int{max(200, 2*handlers), most} {
								if first, took, _ := drain(prefetch); at == 0 || took < best {
									begin, best, at = first, took, prefetch
								}
							}
							t.Logf("%s and %s, with Prefetch %d %s and %s", ownBegin, own, at, begin, best)
							if own*9 > best*10 {
								t.Errorf("%d messages took %s, with Prefetch %d %s", rest, own, at, best)
							}
							if ownBegin > begin+150*time.Millisecond {
								t.Errorf("the first ones took %s, with Prefetch %d %s", ownBegin, at, begin)
							}
							if held.mostHeld > most || held.mostAsk > most {
								t.Errorf("%d were held, and it asked for %d, want at most %d", held.mostHeld, held.mostAsk, most)
							}
						})
					})
				}
			}
		}
	}
}

// CO-25: a message waits for about a tenth of a second for a handler, and at most two. If the handlers become slow at
// once, each message that waits goes back, and another consumer could have it. The consumer looks each 25 ms, and
// believes what four looks in a row find. A look may have been just before, so that five of them pass: 125 ms. A round
// trip to the broker is 1 ms.
func TestHoldsATenthOfASecond(t *testing.T) {
	t.Parallel()
	const hold, back = 200 * time.Millisecond, 130 * time.Millisecond
	for _, ahead := range []bool{false, true} {
		for _, handlers := range []int{1, 10, 100} {
			for _, c := range []struct{ quick, slow time.Duration }{
				{time.Millisecond, 50 * time.Millisecond},
				{time.Millisecond, time.Second},
				{20 * time.Millisecond, 10 * time.Second},
			} {
				t.Run(fmt.Sprintf("ahead %t, %d handlers of %s and then of %s", ahead, handlers, c.quick, c.slow), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						patience.BudgetOf(t).Calls(10_000, "quick handlers")
						patience.BudgetOf(t).Time(time.Minute, "handlers of ten seconds at the end")
						f := &far{bus: declared(t), trip: time.Millisecond}
						var on core.Subscriber = f
						if ahead {
							on = &sending{f}
						}
						var slow atomic.Bool
						w := &waits{arrived: map[*waybill.Delivery]time.Time{}}
						f.arrived, f.gone = w.arrive, w.leave
						stop := start(t, on, consumer.Options{Concurrency: handlers}, waybill.Subscription{},
							handle(func(_ context.Context, d *waybill.Delivery) error {
								w.leave(d)
								if slow.Load() {
									time.Sleep(c.slow)
								} else {
									time.Sleep(c.quick)
								}
								return nil
							}))
						defer stop()
						const warm = 200 * time.Millisecond
						f.publish(t, handlers*int(warm/c.quick)+20*handlers+1200)
						patience.Pass(t, warm)
						quick := w.most()
						slow.Store(true)
						w.anew()
						patience.Pass(t, time.Second)
						t.Logf("the longest wait was %s, and then %s more; %d went back", quick, w.most(), f.counts().released)
						if quick > hold {
							t.Errorf("a message waited for %s, want at most %s", quick, hold)
						}
						if most := w.most(); most > back {
							t.Errorf("a message waited for %s more when the handlers were slow, want at most %s", most, back)
						}
						slow.Store(false)
					})
				})
			}
		}
	}
}

// waits are how long messages waited for a handler, or until they went back.
type waits struct {
	mu      sync.Mutex
	arrived map[*waybill.Delivery]time.Time
	longest time.Duration
}

func (w *waits) arrive(ds []*waybill.Delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range ds {
		w.arrived[d] = time.Now()
	}
}

// anew forgets the past: all that wait do so from now on.
func (w *waits) anew() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.longest = 0
	for d := range w.arrived {
		w.arrived[d] = time.Now()
	}
}

// leave notes that d waits no longer.
func (w *waits) leave(d *waybill.Delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at, ok := w.arrived[d]; ok {
		delete(w.arrived, d)
		w.longest = max(w.longest, time.Since(at))
	}
}

// most returns the longest wait, of those that still wait, too.
func (w *waits) most() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	most := w.longest
	for _, at := range w.arrived {
		most = max(most, time.Since(at))
	}
	return most
}
