package table_test

// A process has several queues over one transport, and makes few calls at a time. These tests count the calls of their
// settles, and see that none waits for another queue's.

import (
	"context"
	"errors"
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
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/transport/table"
)

// queues runs a consumer of n queues over one transport until the test ends. It counts what each handles.
func queues(t *testing.T, s core.OutboxStore, n int, work func()) (handled []atomic.Int64) {
	t.Helper()
	c, err := consumer.New(newTable(t, s, table.Options{}), consumer.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	handled = make([]atomic.Int64, n)
	for i := range handled {
		err = c.Handle(waybill.Subscription{Queue: fmt.Sprint("q", i)}, waybill.Handler{Name: waybill.AnyMessage, Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
			work()
			handled[i].Add(1)
			return waybill.HandlerProcessed, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	begin(t, c)
	return handled
}

// fill stages so many messages for each of n queues.
func fill(t *testing.T, s *store, n, messages int) {
	t.Helper()
	for i := range n * messages {
		id := fmt.Sprint("m-", i)
		stage(t, s, waybill.RawMessage("mail.send", "text/plain", []byte(id), waybill.ID(id), waybill.Routes(fmt.Sprint("q", i%n))))
	}
}

// farGroups is a table.GroupSettler that is a round trip of virtual time away.
type farGroups struct {
	sharedtest.Store
	mem  *store
	fail atomic.Bool

	mu                       sync.Mutex
	calls, settles, together int
	refused                  int
}

func newFarGroups(t *testing.T, travel func()) *farGroups {
	t.Helper()
	f := &farGroups{mem: newStore(t)}
	f.Store = sharedtest.Store{OutboxStore: f.mem, Before: func(_ context.Context, call string, _ any) error {
		f.mu.Lock()
		f.calls++
		if call == "settle" {
			f.settles++
		}
		f.mu.Unlock()
		travel()
		return nil
	}}
	return f
}

func (f *farGroups) SettleGroup(ctx context.Context, selves []core.Session, outcomes [][]core.Outcome) bool {
	_ = f.Before(ctx, "settle", nil)
	f.mu.Lock()
	if f.fail.Load() {
		f.refused++
		f.mu.Unlock()
		return false
	}
	f.together += len(selves)
	f.mu.Unlock()
	for i, self := range selves {
		if f.mem.Settle(ctx, self, outcomes[i]).FirstErr() != nil {
			return false
		}
	}
	return true
}

// TestSettlesOfManyQueuesGoTogether: settles of many queues of a process go together: those that wait for a place are
// one call. If they cannot, each goes alone.
//
// TQ-07
func TestSettlesOfManyQueuesGoTogether(t *testing.T) {
	t.Parallel()
	const n, messages = 8, 500
	run := func(groups, fail bool) (calls, settles, refused int, took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Calls(900, "thousands of messages")
			f := newFarGroups(t, func() { time.Sleep(5 * time.Millisecond) }) // virtual time
			f.fail.Store(fail)
			fill(t, f.mem, n, messages)
			var s core.OutboxStore = f
			if !groups {
				s = &f.Store
			}
			begin := time.Now()
			handled := queues(t, s, n, func() { time.Sleep(3 * time.Millisecond) }) // virtual time
			all := func() (sum int64) {
				for i := range handled {
					sum += handled[i].Load()
				}
				return sum
			}
			patience.Moving(t, "all are handled", func() (int64, bool) { return all(), all() >= n*messages })
			took = time.Since(begin)
			if sum := all(); sum != n*messages {
				t.Errorf("%d were handled, want %d", sum, n*messages)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			calls, settles, refused = f.calls, f.settles, f.refused
			t.Logf("groups %t, refused %t: %d calls, %d settles, %d of them in groups, %s", groups, fail, calls, settles, f.together, took)
		})
		return calls, settles, refused, took
	}
	calls, settles, _, took := run(true, false)
	aloneCalls, aloneSettles, _, alone := run(false, false)
	if settles*2 > aloneSettles || calls > aloneCalls || took > alone {
		t.Errorf("%d calls, %d settles, %s; alone %d, %d, %s", calls, settles, took, aloneCalls, aloneSettles, alone)
	}
	// A refusal is known for a second. Two calls can be in progress by then.
	if _, _, refused, took := run(true, true); refused < 1 || refused > 2*int(1+took/time.Second) {
		t.Errorf("%d groups were refused in %s", refused, took)
	}
}

// TestSlowSettleHoldsUpItsQueueAlone: no handler waits for the settle of another queue.
func TestSlowSettleHoldsUpItsQueueAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Calls(900, "thousands of messages")
		const n = 2000
		s := newStore(t)
		fill(t, s, 2, n)
		end := make(chan struct{})
		slow := &sharedtest.Store{OutboxStore: s, Before: func(ctx context.Context, _ string, arg any) error {
			time.Sleep(time.Millisecond) // virtual time
			if list, ok := arg.([]core.Outcome); ok && len(list) > 0 && list[0].Ref().Route == "q0" {
				select {
				case <-end:
				case <-ctx.Done():
					return errors.New("slow")
				}
			}
			return nil
		}}
		handled := queues(t, slow, 2, func() {})
		patience.Moving(t, "the other queue is handled", func() (int64, bool) { return handled[1].Load(), handled[1].Load() == n })
		if m := handled[0].Load(); m == n {
			t.Error("the settles of the first queue were not slow")
		}
		close(end)
		patience.Moving(t, "the first queue is handled", func() (int64, bool) { return handled[0].Load(), handled[0].Load() == n })
	})
}
