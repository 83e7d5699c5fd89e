package table_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	memstore "github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/transport/table"
)

// TestTimersFireWhenDue: timers staged before and while the receiver waits, and retries, come at their time to the
// microsecond, however long the poll interval.
//
// TQ-04
func TestTimersFireWhenDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(30*time.Minute, "the latest of the timers")
		s := newStore(t)
		tr := newTable(t, s, table.Options{PollMin: time.Hour, PollMax: time.Hour, Lease: 3 * time.Hour})
		r := subscribe(t, tr)
		begin := time.Now()
		var mu sync.Mutex
		due := map[string]time.Duration{}
		at := func(d time.Duration) {
			id := d.String()
			mu.Lock()
			due[id] = d
			mu.Unlock()
			stage(t, s, message(id, waybill.Delay(d-time.Since(begin))))
		}
		for i := range 20 {
			at(time.Duration(i+1) * 137 * time.Millisecond)
		}
		go func() {
			time.Sleep(time.Second) // virtual time
			at(1001 * time.Millisecond)
			at(20 * time.Minute)
			at(2 * time.Hour)
			at(3 * time.Second)
		}()
		for n := range 24 {
			d := receive(t, r, 1)[0]
			mu.Lock()
			late := time.Since(begin) - due[d.Envelope.ID]
			mu.Unlock()
			if late < 0 || late > 2*time.Millisecond {
				t.Errorf("timer %s came %s late", d.Envelope.ID, late)
			}
			if n == 3 {
				mu.Lock()
				due[d.Envelope.ID] = time.Since(begin) + 29*time.Minute
				mu.Unlock()
				settled(t, r, core.AckRetry(d, 29*time.Minute, nil))
				continue
			}
			settled(t, r, core.AckDone(d))
		}
	})
}

// TestPolling: a store that is no Waiter is polled with back-off between PollMin and PollMax, and asked at the time
// of the next timer that it knows.
//
// TQ-02
func TestPolling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(101*time.Minute, "the timer")
		s := newStore(t)
		var times []time.Time
		s.call = func(what string) error {
			if what == "hold" {
				times = append(times, time.Now())
			}
			return nil
		}
		tr := newTable(t, plain{s}, table.Options{})
		r := subscribe(t, tr)
		begin := time.Now()
		none(t, r, time.Minute)
		for i := 1; i < len(times); i++ {
			want := min(table.UnwokenPollMin<<min(i-1, 10), table.UnwokenPollMax)
			if gap := times[i].Sub(times[i-1]); gap > want || gap < want*3/4-time.Millisecond {
				t.Errorf("gap %d is %s, want %s less a quarter at most", i, gap, want)
			}
		}
		staged := time.Now()
		stage(t, s, message("now"), message("later", waybill.Delay(100*time.Minute)))
		settled(t, r, core.AckDone(receive(t, r, 1)[0]))
		if took := time.Since(begin); took > time.Minute+table.UnwokenPollMax {
			t.Errorf("found after %s", took)
		}
		receive(t, r, 1)
		if late := time.Since(staged) - 100*time.Minute; late < 0 || late > time.Millisecond {
			t.Errorf("a timer came %s late", late)
		}
	})
}

// TestCrash: the deliveries of a dead process come to another one when its lease ends, counted as a redelivery and not
// as an attempt; from the second crash on a message comes alone.
//
// TQ-03, CO-08
func TestCrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		opts := table.Options{Lease: time.Second}
		stage(t, s, message("a"), message("b"), message("c"))
		die := func() { // receive as a process would that is killed then
			p := newProcess(s)
			if d := receive(t, subscribe(t, newTable(t, p, opts)), 1)[0]; d.Envelope.ID != "a" {
				t.Fatalf("%s came", d.Envelope.ID)
			}
			p.gone.Store(true)
		}
		die()
		r := subscribe(t, newTable(t, s, opts))
		first := receive(t, r, 2)
		begin := time.Now()
		d := receive(t, r, 1)[0]
		if took := time.Since(begin); d.Envelope.ID != "a" || d.Redeliveries != 1 || d.Attempt != 1 || took < 600*time.Millisecond || took > 2*time.Second {
			t.Errorf("%s came after %s with %d redeliveries, attempt %d", d.Envelope.ID, took, d.Redeliveries, d.Attempt)
		}
		settled(t, r, core.AckRelease(d), core.AckRelease(first[0]), core.AckRelease(first[1]))
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		die() // "a" again
		r = subscribe(t, newTable(t, s, opts))
		innocent := receive(t, r, 2)
		none(t, r, 10*time.Second) // the suspect waits until nothing else is held
		settled(t, r, core.AckDone(innocent[0]), core.AckDone(innocent[1]))
		suspect := receive(t, r, 1)[0]
		if suspect.Envelope.ID != "a" || suspect.Redeliveries != 2 {
			t.Errorf("suspect %s with %d redeliveries", suspect.Envelope.ID, suspect.Redeliveries)
		}
		stage(t, s, message("d"))
		none(t, r, 10*time.Second) // nothing else is taken while it is held
		settled(t, r, core.AckDone(suspect))
		if d := receive(t, r, 1)[0]; d.Envelope.ID != "d" {
			t.Errorf("%s came", d.Envelope.ID)
		}
	})
}

// TestSlowHandlers: leases are renewed for as long as a delivery is held, so that no other process gets it.
//
// TQ-05
func TestSlowHandlers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, message("a"), message("b", waybill.Key("k")), message("c", waybill.Key("k")))
		var logged bytes.Buffer
		tr := newTable(t, s, table.Options{Lease: time.Second, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		r := subscribe(t, tr)
		ds := receive(t, r, 2)
		other := subscribe(t, newTable(t, s, table.Options{}))
		none(t, other, 6*time.Minute)
		settled(t, r, core.AckDone(ds[0]), core.AckDone(ds[1]))
		settled(t, r, core.AckDone(receive(t, r, 1)[0])) // it waited behind its key, with a lease
		none(t, other, 10*time.Second)
		if st := tr.Stats(); st.LostAtRenew+st.LostAtSettle > 0 || !strings.Contains(logged.String(), "event=table.held_long") {
			t.Errorf("%+v; log: %s", st, logged.String())
		}
	})
}

// TestLeaseLost: that another process took a delivery over is counted with its phase, and the late settle changes
// nothing.
//
// TQ-05
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	for phase, ack := range map[string]func(*waybill.Delivery) core.Ack{
		"settle": core.AckDone,
		"retry":  func(d *waybill.Delivery) core.Ack { return core.AckRetry(d, time.Second, nil) },
		"renew":  core.AckDone,
	} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				stage(t, s, message("a"))
				var logged bytes.Buffer
				p := newProcess(s)
				tr := newTable(t, p, table.Options{Lease: time.Second, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
				r := subscribe(t, tr)
				d := receive(t, r, 1)[0]
				p.gone.Store(true)
				other := subscribe(t, newTable(t, s, table.Options{Lease: time.Second}))
				taken := receive(t, other, 1)[0]
				p.gone.Store(false)
				if phase == "renew" {
					time.Sleep(time.Second) // virtual time
				}
				err := r.Settle(tenMinutes(t), []core.Ack{ack(d)}).FirstErr()
				if !errors.Is(err, waybill.ErrLeaseLost) {
					t.Errorf("settled with %v", err)
				}
				st := tr.Stats()
				got := map[string]int64{"settle": st.LostAtSettle, "retry": st.LostAtRetry, "renew": st.LostAtRenew}
				want := map[string]int64{"settle": 0, "retry": 0, "renew": 0}
				want[phase] = 1
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
				if logged.Len() > 0 { // the consumer tells it
					t.Errorf("logged: %s", logged.String())
				}
				settled(t, other, core.AckDone(taken))
			})
		})
	}
}

// TestOutage: while the store is away settles wait for it; nothing is lost and no attempt is spent.
func TestOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(61*time.Minute, "an outage of 30 s, and a retry after an hour")
		s := newStore(t)
		stage(t, s, message("a"), message("b"), message("c"))
		r := subscribe(t, newTable(t, s, table.Options{}))
		ds := receive(t, r, 3)
		s.set(func() { s.settle = func([]core.Outcome) error { return errDown } })
		begin := time.Now()
		time.AfterFunc(30*time.Second, func() { s.set(func() { s.settle = nil }) })
		settled(t, r, core.AckDone(ds[0]), core.AckRetry(ds[1], time.Hour, nil))
		if took := time.Since(begin); took < 30*time.Second || took > 36*time.Second {
			t.Errorf("settled after %s", took)
		}
		s.set(func() { s.settle = func([]core.Outcome) error { return errDown } })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Settle(ctx, []core.Ack{core.AckDone(ds[2])}).FirstErr(); waybill.ClassOf(err) != waybill.ClassOutage {
			t.Errorf("given up with %v", err)
		}
		synctest.Wait() // it is tried for the last time
		s.set(func() { s.settle = nil; s.call = func(string) error { return errDown } })
		ctx = tenMinutes(t)
		if _, err := r.Receive(ctx, 1); waybill.ClassOf(err) != waybill.ClassOutage || ctx.Err() != nil {
			t.Errorf("received with %v", err)
		}
		s.set(func() { s.call = nil })
		if d := receive(t, r, 1)[0]; d.Envelope.ID != "b" || d.Attempt != 2 {
			t.Errorf("%s came, attempt %d", d.Envelope.ID, d.Attempt)
		}
		none(t, r, time.Hour) // c was settled when that was possible again
	})
}

// TestCancelledReceiveLosesNothing: the delivery of a Receive that ended goes to the next one, or back.
func TestCancelledReceiveLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, message("a"), message("b"))
		s.call = func(what string) error {
			if what == "hold" {
				time.Sleep(time.Second) // virtual time
			}
			return nil
		}
		r := subscribe(t, newTable(t, s, table.Options{}))
		brief := func(r core.Receiver) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if ds, err := r.Receive(ctx, 1); err == nil {
				t.Fatalf("received %d", len(ds))
			}
		}
		brief(r)
		settled(t, r, core.AckDone(receive(t, r, 1)[0]))
		brief(r)
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		other := subscribe(t, newTable(t, s, table.Options{}))
		begin := time.Now()
		if d := receive(t, other, 1)[0]; d.Envelope.ID != "b" || d.Redeliveries != 0 || time.Since(begin) > 2*time.Second {
			t.Errorf("%s, %d redeliveries, after %s", d.Envelope.ID, d.Redeliveries, time.Since(begin))
		}
	})
}

// TestKeyOrder: messages of a key reach handlers in staged order over two processes, through retries and parking, and
// never two at a time. Other keys do not wait.
//
// OR-02, OR-09
func TestKeyOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Calls(400, "two processes divide a queue while its 100 messages are handled")
		s := newStore(t)
		const keys, each = 5, 20
		var mu sync.Mutex
		var order [keys][]int
		var running [keys]int
		tries := map[string]int{}
		handler := waybill.Handler{Name: "mail.send", Handle: func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			var k, n int
			if _, err := fmt.Sscanf(d.Envelope.ID, "%d-%d", &k, &n); err != nil {
				return 0, err
			}
			mu.Lock()
			tries[d.Envelope.ID]++
			first := tries[d.Envelope.ID] == 1
			if running[k]++; running[k] > 1 {
				t.Errorf("two of key %d run at a time", k)
			}
			if first {
				order[k] = append(order[k], n)
			} else if order[k][len(order[k])-1] != n {
				t.Errorf("%s is retried after %v", d.Envelope.ID, order[k])
			}
			mu.Unlock()
			time.Sleep(10 * time.Millisecond) // virtual time
			mu.Lock()
			running[k]--
			mu.Unlock()
			switch {
			case n%7 == 3 && first:
				return 0, errors.New("try again")
			case n%7 == 5:
				return 0, waybill.Reject(errors.New("no"))
			}
			return 0, nil
		}}
		for n := range each {
			for k := range keys {
				stage(t, s, message(fmt.Sprintf("%d-%d", k, n), waybill.Key(fmt.Sprint("key", k))))
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 2 {
			c, err := consumer.New(newTable(t, s, table.Options{}), consumer.Options{Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Handle(waybill.Subscription{Queue: "mails", Prefetch: 100}, handler); err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				if err := c.Run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		patience.Pass(t, 2*time.Minute)
		cancel()
		wg.Wait()
		for k := range keys {
			if len(order[k]) != each || !slices.IsSorted(order[k]) {
				t.Errorf("key %d came in order %v", k, order[k])
			}
		}
		for _, r := range s.mem.Records() {
			if r.State != core.StateAbandoned || r.Reason != waybill.ReasonRejected {
				t.Errorf("%s is left %s", r.Envelope.ID, r.State)
			}
		}
	})
}

// TestParkedBlocksItsKeyInOrder: with BlockAfterAbandon a parked message blocks its key, also for a subscription with
// InOrder.
//
// OR-02, OR-09
func TestParkedBlocksItsKeyInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(time.Minute, "so long nothing else may come")
		s := newStore(t)
		stage(t, s, message("a", waybill.Key("k")), message("b", waybill.Key("k")), message("c", waybill.Key("k")), message("d", waybill.Key("l")))
		c, err := consumer.New(newTable(t, s, table.Options{BlockAfterAbandon: true}), consumer.Options{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var got []string
		if err := c.Handle(waybill.Subscription{Queue: "mails", InOrder: true}, waybill.Handler{Name: waybill.AnyMessage, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, d.Envelope.ID)
			if d.Envelope.ID == "a" {
				return 0, waybill.Reject(errors.New("no"))
			}
			return waybill.HandlerProcessed, nil
		}}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
		slices.Sort(got)
		if !slices.Equal(got, []string{"a", "d"}) {
			t.Errorf("handled %v, a is parked and blocks b and c", got)
		}
	})
}

// TestParks: a message that fails for good in the consumer stays in the table with reason and error: attempts spent,
// crashed too often, without a handler, expired.
//
// TQ-01, TQ-03, CO-15
func TestParks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(310*time.Second, "retries after a minute, and nothing more in five")
		s := newStore(t)
		const off = -1 // a cleaning can find an expired one first, and notes no error
		stage(t, s, message("crashes"))
		for range 3 { // three processes die with it
			p := newProcess(s)
			r := subscribe(t, newTable(t, p, table.Options{Lease: time.Second, CleanInterval: off}))
			if d := receive(t, r, 1)[0]; d.Envelope.ID != "crashes" {
				t.Fatalf("%s came", d.Envelope.ID)
			}
			p.gone.Store(true)
		}
		stage(t, s, message("fails"), waybill.RawMessage("mail.other", "", nil, waybill.ID("other"), waybill.Routes("mails")),
			message("expires", waybill.Delay(time.Second), waybill.TTL(time.Millisecond)))
		c, err := consumer.New(newTable(t, s, table.Options{CleanInterval: off}), consumer.Options{Logger: quiet, Retry: waybill.RetryDelays(time.Second, time.Minute), MaxDeliveries: 3})
		if err != nil {
			t.Fatal(err)
		}
		ran := 0
		err = c.Handle(waybill.Subscription{Queue: "mails"}, waybill.Handler{Name: "mail.send", Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			if ran++; d.Envelope.ID != "fails" {
				t.Errorf("%s was handled", d.Envelope.ID)
			}
			return 0, errors.New("boom")
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if err := c.Run(ctx); err != nil {
			t.Fatal(err)
		}
		got := map[string]waybill.Reason{}
		for _, r := range s.mem.Records() {
			if r.State == core.StateAbandoned && r.LastError != "" {
				got[r.Envelope.ID] = r.Reason
			}
		}
		want := map[string]waybill.Reason{"fails": waybill.ReasonAttempts, "crashes": waybill.ReasonDeliveries, "other": waybill.ReasonNoHandler, "expires": waybill.ReasonExpired}
		if diff := cmp.Diff(want, got); diff != "" || ran != 3 {
			t.Errorf("ran %d times; parked: %s", ran, diff)
		}
	})
}

// TestSubscriptionsDoNotWakeLate: while one queue is busy for long, another one that comes to rest is still woken at
// once.
func TestSubscriptionsDoNotWakeLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		tr := newTable(t, s, table.Options{})
		busy, idle := subscribe(t, tr), subscribeTo(t, tr, "idle")
		stage(t, s, message("a"))
		held := receive(t, busy, 1)
		go func() {
			time.Sleep(time.Second + time.Millisecond) // virtual time
			for i := range 5 {
				stage(t, s, message(fmt.Sprint("noise", i))) // nobody receives these
			}
			stage(t, s, waybill.RawMessage("mail.send", "", nil, waybill.ID("b"), waybill.Routes("idle")))
		}()
		begin := time.Now()
		receive(t, idle, 1)
		if took := time.Since(begin); took > 1100*time.Millisecond {
			t.Errorf("came after %s", took)
		}
		if n := tr.Stats().Holds; n > 30 {
			t.Errorf("%d deliveries", n)
		}
		settled(t, busy, core.AckDone(held[0]))
	})
}

// TestBadInput: every problem is named at once, with its cure.
func TestBadInput(t *testing.T) {
	t.Parallel()
	has := func(err error, want ...string) {
		t.Helper()
		if err == nil || !errors.Is(err, waybill.ErrInvalid) {
			t.Fatalf("got %v", err)
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q does not say %q", err, w)
			}
		}
	}
	_, err := table.New((*memstore.Store)(nil), table.Options{})
	has(err, "store: is nil")
	_, err = table.New(newStore(t), table.Options{
		PollMin: time.Minute, PollMax: time.Second, Lease: time.Millisecond, Order: 9, Owner: "a\x00",
		Queues: map[string]table.QueueOptions{"": {}, "q": {Order: waybill.OrderBestEffort, BlockAfterAbandon: true, PollMin: -1}},
	})
	has(err, "PollMax", "Lease", "Order: 9", "Owner", `Queues[""]`, `Queues["q"].BlockAfterAbandon`, `Queues["q"].PollMin`)
	tr := newTable(t, newStore(t), table.Options{Queues: map[string]table.QueueOptions{"loose": {Order: waybill.OrderBestEffort}}})
	_, err = tr.Subscribe(t.Context(), core.Subscription{Queue: "q", Bindings: []string{"mail.*"}})
	has(err, "wildcard")
	_, err = tr.Subscribe(t.Context(), core.Subscription{Queue: "loose", InOrder: true})
	has(err, "InOrder")
	_, err = subscribe(t, tr).Receive(t.Context(), 0)
	has(err, "limit")
}

// TestCloseOverADeafStore: a call to the store that does not end with its context does not hold up Close.
func TestCloseOverADeafStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, message("a"))
		tr := newTable(t, s, table.Options{})
		r := subscribe(t, tr)
		d := receive(t, r, 1)
		hangs := make(chan struct{})
		s.set(func() { s.settle = func([]core.Outcome) error { <-hangs; return errDown } })
		go r.Settle(t.Context(), []core.Ack{core.AckDone(d[0])})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		if err := r.Close(ctx); waybill.ClassOf(err) != waybill.ClassOutage {
			t.Error("closed:", err)
		}
		if took := time.Since(begin); took > 3*time.Second { // virtual time
			t.Error("it took", took)
		}
		close(hangs)
		synctest.Wait()
	})
}
