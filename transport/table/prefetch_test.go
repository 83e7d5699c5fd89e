package table_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/transport/table"
)

// These tests run consumers as a program has them that sets no option, over a store that is a round trip of virtual
// time away.

// replica runs a consumer of the queue of mails until the test ends.
func replica(t *testing.T, s *sharedtest.Store, o consumer.Options, handle func(id string)) {
	t.Helper()
	o.Logger = quiet
	c, err := consumer.New(newTable(t, s, table.Options{}), o)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Handle(waybill.Subscription{Queue: "mails"}, waybill.Handler{Name: waybill.AnyMessage, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		handle(d.Envelope.ID)
		return waybill.HandlerProcessed, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, c)
}

// begin runs c until the test ends.
func begin(t *testing.T, c *consumer.Consumer) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); run.Wait() })
}

// CO-03: quick handlers without a Prefetch cost the store about as many round trips as with the best one.
func TestQuickHandlersNeedFewCalls(t *testing.T) {
	t.Parallel()
	const first, n = 4_000, 14_000
	drain := func(prefetch int) (calls int64, took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Calls(900, "14,000 messages")
			s := newStore(t)
			var count atomic.Int64
			far := &sharedtest.Store{OutboxStore: s, Before: func(context.Context, string, any) error {
				count.Add(1)
				time.Sleep(time.Millisecond) // virtual time
				return nil
			}}
			var handled atomic.Int64
			var at atomic.Int64 // the calls until the first ones were handled
			var begin, end time.Time
			done := make(chan struct{})
			for i := range n {
				stage(t, s, message(fmt.Sprint("m-", i)))
			}
			replica(t, far, consumer.Options{Prefetch: prefetch}, func(string) {
				switch handled.Add(1) {
				case first:
					at.Store(count.Load())
					begin = time.Now()
				case n:
					end = time.Now()
					close(done)
				}
			})
			<-done
			calls, took = count.Load()-at.Load(), end.Sub(begin)
		})
		return calls, took
	}
	var calls, best int64
	var took, bestTook time.Duration
	for range 3 { // one differs from the next by a tenth, as goroutines go on in any order
		n, d := drain(1000)
		best, bestTook = best+n, bestTook+d
		n, d = drain(0)
		calls, took = calls+n, took+d
	}
	t.Logf("%d calls and %s, with Prefetch 1,000 %d and %s", calls, took, best, bestTook)
	if took*8 > bestTook*10 {
		t.Errorf("%d calls and %s, with Prefetch 1,000 %d and %s", calls, took, best, bestTook)
	}
}

// CO-03: two replicas share messages of slow handlers, also after quick ones.
func TestReplicasShareSlowMessages(t *testing.T) {
	t.Parallel()
	for _, quick := range []int{0, 3000} {
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Calls(900, "3,000 quick messages")
			s := newStore(t)
			far := &sharedtest.Store{OutboxStore: s, Before: func(context.Context, string, any) error {
				time.Sleep(time.Millisecond) // virtual time
				return nil
			}}
			var handled, slow atomic.Int64
			var by [2]atomic.Int64
			for i := range quick {
				stage(t, s, message(fmt.Sprint("m-", i)))
			}
			for n := range by {
				replica(t, far, consumer.Options{}, func(id string) {
					if handled.Add(1); id[0] == 's' {
						by[n].Add(1)
						time.Sleep(time.Second) // virtual time
						slow.Add(1)
					}
				})
			}
			wait := func(what string, n *atomic.Int64, want int64) {
				patience.Moving(t, what, func() (int64, bool) { return n.Load(), n.Load() == want })
			}
			wait("the quick ones are handled", &handled, int64(quick))
			begin := time.Now()
			for i := range 20 {
				stage(t, s, message(fmt.Sprint("slow-", i)))
			}
			wait("the slow ones are handled", &slow, 20)
			took := time.Since(begin)
			t.Logf("after %d quick ones: %d and %d in %s", quick, by[0].Load(), by[1].Load(), took)
			if by[0].Load() != 10 || took > 1300*time.Millisecond {
				t.Errorf("after %d quick ones: %d and %d in %s", quick, by[0].Load(), by[1].Load(), took)
			}
		})
	}
}
