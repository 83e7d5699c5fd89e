package table_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/transport/table"
)

// TestFreeProcessesTakeAll: of 50 processes with one handler each, 20 are busy for long. Messages without a key go to
// the others, at once, although slots of it belong to busy ones; and keys of busy ones go on elsewhere, but for those
// that are handled.
func TestFreeProcessesTakeAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Calls(400, "a poll every 20 ms, and up to 200 messages a second")
		patience.BudgetOf(t).Time(40*time.Second, "all get their share, and some handlers take 20 s")
		const processes, busy = 50, 20
		s := newStore(t)
		var mu sync.Mutex
		var longest, keyed time.Duration
		staged, runs, slow := map[string]time.Time{}, map[string]int{}, 0
		running := map[string]bool{}
		handler := waybill.Handler{Name: "mail.send", Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			mu.Lock()
			id := d.Envelope.ID
			waited := time.Since(staged[id])
			if runs[id]++; runs[id] > 1 {
				t.Errorf("%s runs again", id)
			}
			if k := d.Envelope.Key; k != "" {
				keyed = max(keyed, waited)
				if running[k] {
					t.Errorf("two of key %s at a time", k)
				}
				running[k] = true
			} else {
				longest = max(longest, waited)
			}
			mu.Unlock()
			pause := 5 * time.Millisecond
			if id[0] == 's' {
				mu.Lock()
				slow++
				mu.Unlock()
				pause = 20 * time.Second
			}
			time.Sleep(pause) // virtual time
			mu.Lock()
			defer mu.Unlock()
			delete(running, d.Envelope.Key)
			return waybill.HandlerProcessed, nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range processes {
			c, err := consumer.New(newTable(t, plain{s}, table.Options{Lease: 10 * time.Second, PollMin: 20 * time.Millisecond, PollMax: 20 * time.Millisecond}), consumer.Options{Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Handle(waybill.Subscription{Queue: "mails", Concurrency: 1}, handler); err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				if err := c.Run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		put := func(id string, opts ...waybill.MessageOption) {
			mu.Lock()
			staged[id] = time.Now()
			mu.Unlock()
			stage(t, s, message(id, opts...))
		}
		time.Sleep(5 * time.Second) // virtual time: all have their share
		for i := range busy {
			put(fmt.Sprint("slow", i))
		}
		time.Sleep(3 * time.Second) // virtual time
		for i := range 600 {
			if i%3 == 0 {
				put(fmt.Sprint("keyed", i), waybill.Key(fmt.Sprint("k", i%90)))
			} else {
				put(fmt.Sprint("quick", i))
			}
			time.Sleep(5 * time.Millisecond) // virtual time
		}
		time.Sleep(5 * time.Second) // virtual time
		mu.Lock()
		n, total := len(runs), busy+600
		t.Logf("%d of %d ran; without a key they waited for %s at most, with one for %s", n, total, longest, keyed)
		if n != total || slow != busy || longest > 100*time.Millisecond || keyed > time.Second {
			t.Errorf("%d of %d ran, %d slow ones; without a key they waited for %s at most, with one for %s", n, total, slow, longest, keyed)
		}
		mu.Unlock()
		time.Sleep(20 * time.Second) // virtual time
		cancel()
		wg.Wait()
		if left := len(s.mem.Records()); left > 0 {
			t.Errorf("%d left", left)
		}
	})
}

// CO-20: Receive returns an outage, and nil when it is over, although no message comes.
func TestReceiveSaysThatAnOutageIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		r := subscribe(t, newTable(t, s, table.Options{}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		none(t, r, time.Minute)
		for range 3 {
			s.set(func() { s.call = func(string) error { return errDown } })
			if _, err := r.Receive(ctx, 1); waybill.ClassOf(err) != waybill.ClassOutage {
				t.Fatal(err)
			}
			s.set(func() { s.call = nil })
			for ok := false; !ok; {
				ds, err := r.Receive(ctx, 1)
				if len(ds) > 0 || ctx.Err() != nil {
					t.Fatalf("%d deliveries, %v", len(ds), err)
				}
				ok = err == nil
			}
		}
		none(t, r, time.Minute)
	})
}

// TQ-02: receivers of one process that share a queue, and are both asleep over a waiter, find staged messages soon: the
// store wakes the process for a message that one of them has not read yet, and does not know of the other. The poll
// would come in an hour.
func TestSleepersThatShareAQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		tr := newTable(t, &waiter{OutboxStore: s, wait: deaf}, table.Options{PollMax: time.Hour})
		a, b := subscribe(t, tr), subscribe(t, tr)
		for i := range 5 {
			var staged time.Time
			time.AfterFunc(time.Second+time.Duration(i)*77*time.Millisecond, func() {
				staged = time.Now()
				stage(t, s, message(strconv.Itoa(i)))
			})
			for _, d := range receive(t, a, 1) {
				if took := time.Since(staged); took > 600*time.Millisecond {
					t.Errorf("found after %s", took)
				}
				settled(t, a, core.AckDone(d))
			}
			a, b = b, a
		}
	})
}

// TQ-02: receivers that share a queue over a deaf waiter find a staged record soon, and at once one that another of
// them gives back.
func TestSharedQueueOverADeafWaiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(6*time.Minute, "five messages are held for a minute each")
		s := newStore(t)
		tr := newTable(t, &waiter{OutboxStore: s, wait: deaf}, table.Options{})
		a, b := subscribe(t, tr), subscribe(t, tr)
		none(t, a, time.Minute)
		for i := range 5 {
			none(t, b, time.Duration(60_000+i*77)*time.Millisecond)
			stage(t, s, message(strconv.Itoa(i)))
			staged := time.Now()
			d := receive(t, a, 1)[0]
			if took := time.Since(staged); took > time.Second {
				t.Errorf("found after %s", took)
			}
			time.AfterFunc(time.Minute, func() { a.Settle(context.WithoutCancel(t.Context()), []core.Ack{core.AckRelease(d)}) })
			back := time.Now().Add(time.Minute)
			again := receive(t, b, 1)[0]
			if took := time.Since(back); took > 50*time.Millisecond {
				t.Errorf("found again after %s", took)
			}
			settled(t, b, core.AckDone(again))
		}
	})
}
