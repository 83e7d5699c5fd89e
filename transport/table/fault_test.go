package table_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/transport/table"
)

// checked is a store with a check.
type checked struct {
	core.OutboxStore
	asked int
	err   error
}

func (c *checked) Check(context.Context) error {
	c.asked++
	return c.err
}

// TestStoreIsChecked: no receiver opens over a store that cannot work. The store is asked until it has said yes once.
func TestStoreIsChecked(t *testing.T) {
	t.Parallel()
	c := &checked{OutboxStore: newStore(t), err: errors.New("no table")}
	tr := newTable(t, c, table.Options{})
	for range 2 {
		if _, err := tr.Subscribe(t.Context(), core.Subscription{Queue: "mails"}); !errors.Is(err, c.err) {
			t.Errorf("subscribed with %v", err)
		}
	}
	c.err = nil
	subscribe(t, tr)
	subscribe(t, tr)
	if c.asked != 3 {
		t.Errorf("asked %d times", c.asked)
	}
}

// unreadable is a store whose records cannot be read.
type unreadable struct {
	core.OutboxStore
	err error
}

func (u *unreadable) Hold(ctx context.Context, self core.Session, want core.HoldRequest) ([]core.HoldResult, error) {
	got, err := u.OutboxStore.Hold(ctx, self, want)
	for i := range got {
		if got[i].Record != nil {
			got[i].Record.Err = u.err
		}
	}
	return got, err
}

// TestUnreadableIsTold: a record that cannot be read is delivered with the reason, so that the consumer parks it.
func TestUnreadableIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, message("a"))
		u := &unreadable{OutboxStore: s, err: errors.New("no codec")}
		if d := receive(t, subscribe(t, newTable(t, u, table.Options{})), 1)[0]; !errors.Is(d.Err, u.err) {
			t.Errorf("delivered with %v", d.Err)
		}
	})
}

// TestReceiveBounds: no Receive returns more than it was asked for, and no more are in hand than handlers and prefetch
// allow.
func TestReceiveBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
			stage(t, s, message(id))
		}
		r, err := newTable(t, s, table.Options{}).Subscribe(t.Context(), core.Subscription{Queue: "mails", Concurrency: 3, Prefetch: 6})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if ds, err := r.Receive(ctx, 6); err == nil {
			t.Errorf("%d came to an ended Receive", len(ds))
		}
		var held []*waybill.Delivery
		for range 3 {
			ds, err := r.Receive(t.Context(), 1)
			if err != nil || len(ds) != 1 {
				t.Fatalf("asked for one: %d, %v", len(ds), err)
			}
			held = append(held, ds[0])
		}
		none(t, r, time.Minute)
		settled(t, r, core.AckDone(held[0]))
		receive(t, r, 1)
		none(t, r, time.Minute)
	})
}

// TestHangingCallIsGivenUp: a call to the store that never answers is given up, and made again.
func TestHangingCallIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, message("a"))
		var once sync.Once
		hangs := &sharedtest.Store{OutboxStore: s, Before: func(ctx context.Context, call string, _ any) (err error) {
			if call == "hold" {
				once.Do(func() {
					<-ctx.Done()
					err = ctx.Err()
				})
			}
			return err
		}}
		r := subscribe(t, newTable(t, hangs, table.Options{}))
		if d := receive(t, r, 1)[0]; d.Redeliveries != 0 {
			t.Errorf("%d redeliveries", d.Redeliveries)
		}
	})
}

// TestGivenBackInOrder: messages of a key that are given back at once come again in staged order, given back in any
// order.
//
// OR-02
func TestGivenBackInOrder(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][3]int{"as staged": {0, 1, 2}, "backwards": {2, 1, 0}, "mixed": {1, 0, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				stage(t, s, message("a", waybill.Key("k")), message("b", waybill.Key("k")), message("c", waybill.Key("k")))
				r, err := newTable(t, s, table.Options{}).Subscribe(t.Context(), core.Subscription{Queue: "mails", InOrder: true})
				if err != nil {
					t.Fatal(err)
				}
				ds := receive(t, r, 3)
				settled(t, r, core.AckRelease(ds[order[0]]), core.AckRelease(ds[order[1]]), core.AckRelease(ds[order[2]]))
				var again []string
				for _, d := range receive(t, r, 3) {
					again = append(again, d.Envelope.ID)
				}
				if diff := cmp.Diff([]string{"a", "b", "c"}, again); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// waiter is a store that wakes as a test says.
type waiter struct {
	core.OutboxStore
	mu     sync.Mutex
	calls  int
	routes [][]string
	wait   func(ctx context.Context, limit time.Duration) (core.WakeCause, error)
}

func (w *waiter) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	w.mu.Lock()
	w.calls++
	calls := w.calls
	w.routes = append(w.routes, routes)
	w.mu.Unlock()
	if calls > 10_000 { // a busy loop: virtual time stands still
		<-ctx.Done()
		return core.WakeStop, ctx.Err()
	}
	return w.wait(ctx, limit)
}

func (w *waiter) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls
}

// deaf hears nothing.
func deaf(ctx context.Context, limit time.Duration) (core.WakeCause, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-timer.C:
		return core.WakeLimit, nil
	case <-ctx.Done():
		return core.WakeStop, ctx.Err()
	}
}

// TestDeafWaiter: the poll finds records that a waiter does not hear of, also those that came while a key was held, and
// one wait is for all queues.
//
// TQ-02
func TestDeafWaiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(31*time.Second, "three messages wait for the poll")
		s := newStore(t)
		w := &waiter{OutboxStore: s, wait: deaf}
		const poll = 10 * time.Second
		tr := newTable(t, w, table.Options{PollMax: poll})
		r := subscribe(t, tr)
		go func() { _, _ = subscribeTo(t, tr, "others").Receive(t.Context(), 1) }()
		none(t, r, time.Minute)
		soon := func(id string) *waybill.Delivery {
			t.Helper()
			staged := time.Now()
			d := receive(t, r, 1)[0]
			if took := time.Since(staged); d.Envelope.ID != id || took > poll+time.Second {
				t.Errorf("%s came after %s, want %s", d.Envelope.ID, took, id)
			}
			return d
		}
		stage(t, s, message("a", waybill.Key("k")))
		d := soon("a")
		stage(t, s, message("b", waybill.Key("k")))
		settled(t, r, core.AckDone(d))
		settled(t, r, core.AckRetry(soon("b"), time.Second, nil))
		soon("b")
		w.mu.Lock()
		defer w.mu.Unlock()
		if !slices.ContainsFunc(w.routes, func(routes []string) bool { return len(routes) == 2 }) {
			t.Errorf("waited for %v", w.routes)
		}
	})
}

// TestWaiterFails: a waiter that fails is asked again, later each time, and a poll every ten seconds goes on meanwhile.
//
// TQ-02
func TestWaiterFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		w := &waiter{OutboxStore: s, wait: func(context.Context, time.Duration) (core.WakeCause, error) { return core.WakePoll, errDown }}
		r := subscribe(t, newTable(t, w, table.Options{}))
		none(t, r, time.Hour)
		if n := w.count(); n < 30 || n > 200 { // every 30 s to a minute
			t.Errorf("asked %d times in an hour", n)
		}
		stage(t, s, message("a"))
		staged := time.Now()
		receive(t, r, 1)
		if took := time.Since(staged); took > 11*time.Second {
			t.Errorf("it came after %s", took)
		}
	})
}

// TestVainWakeups: a waiter that wakes for nothing does not make receivers spin.
//
// TQ-02
func TestVainWakeups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &waiter{OutboxStore: newStore(t), wait: func(context.Context, time.Duration) (core.WakeCause, error) { return core.WakeNotify, nil }}
		none(t, subscribe(t, newTable(t, w, table.Options{})), time.Minute)
		if n := w.count(); n < 100 || n > 1300 { // every 50 ms, after the first few
			t.Errorf("asked %d times in a minute", n)
		}
	})
}

// TestCloseAnswersSettles: a Settle that is under way when the receiver is closed gets an answer.
func TestCloseAnswersSettles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, message("a"))
		r := subscribe(t, newTable(t, s, table.Options{}))
		d := receive(t, r, 1)[0]
		s.set(func() { s.settle = func([]core.Outcome) error { return errDown } })
		answer := make(chan error, 1)
		go func() { answer <- r.Settle(context.WithoutCancel(t.Context()), []core.Ack{core.AckDone(d)}).FirstErr() }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Close(ctx); waybill.ClassOf(err) != waybill.ClassOutage {
			t.Error("closed:", err)
		}
		synctest.Wait()
		select {
		case err := <-answer:
			if !errors.Is(err, waybill.ErrClosed) {
				t.Errorf("answered %v", err)
			}
		default:
			t.Error("no answer")
		}
	})
}

// TestCloseWaitsForSettles: Close stores the settles that are under way, and gives back the rest, before it returns.
func TestCloseWaitsForSettles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, message("a"), message("b"))
		p := &sharedtest.Store{OutboxStore: s, Before: func(ctx context.Context, call string, _ any) error {
			if call == "settle" {
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		}}
		r := subscribe(t, newTable(t, p, table.Options{}))
		ds := receive(t, r, 2)
		go r.Settle(t.Context(), []core.Ack{core.AckDone(ds[0])})
		synctest.Wait()
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if left := s.mem.Records(); len(left) != 1 || left[0].Envelope.ID != "b" {
			t.Errorf("left: %+v", left)
		}
		other := subscribe(t, newTable(t, s, table.Options{}))
		begin := time.Now()
		if d := receive(t, other, 1)[0]; d.Envelope.ID != "b" || time.Since(begin) > time.Second {
			t.Errorf("%s came after %s", d.Envelope.ID, time.Since(begin))
		}
	})
}

// TestCloseLeavesNoCallBehind: the calls to the store that Close cancelled have ended when it returns.
func TestCloseLeavesNoCallBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, message("a"))
		var running atomic.Int32
		p := &sharedtest.Store{OutboxStore: s, Before: func(ctx context.Context, call string, _ any) error {
			if call != "settle" {
				return nil
			}
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			time.Sleep(100 * time.Millisecond) // virtual time
			return ctx.Err()
		}}
		r := subscribe(t, newTable(t, p, table.Options{}))
		d := receive(t, r, 1)[0]
		go r.Settle(t.Context(), []core.Ack{core.AckDone(d)})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_ = r.Close(ctx)
		if n := running.Load(); n != 0 {
			t.Errorf("%d calls go on", n)
		}
	})
}
