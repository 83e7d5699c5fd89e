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

	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	memstore "github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/transport/table"
)

// store is a memory store whose calls a test can fail.
type store struct {
	*memstore.Store
	mu     sync.Mutex
	settle func([]core.Outcome) error
	extend func() error
	claim  func(core.ClaimRequest) error
}

func newStore(t *testing.T) *store {
	t.Helper()
	s, err := memstore.New(memstore.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	return &store{Store: s}
}

func (s *store) Claim(ctx context.Context, req core.ClaimRequest) (core.Claim, error) {
	s.mu.Lock()
	f := s.claim
	s.mu.Unlock()
	if f != nil {
		if err := f(req); err != nil {
			return core.Claim{}, err
		}
	}
	return s.Store.Claim(ctx, req)
}

func (s *store) Settle(ctx context.Context, outcomes []core.Outcome) core.Results {
	s.mu.Lock()
	f := s.settle
	s.mu.Unlock()
	if f != nil {
		if err := f(outcomes); err != nil {
			return core.AllFailed(len(outcomes), err)
		}
	}
	return s.Store.Settle(ctx, outcomes)
}

func (s *store) ExtendLeases(ctx context.Context, records []core.Record, lease time.Duration) core.Results {
	s.mu.Lock()
	f := s.extend
	s.mu.Unlock()
	if f != nil {
		if err := f(); err != nil {
			return core.AllFailed(len(records), err)
		}
	}
	return s.Store.ExtendLeases(ctx, records, lease)
}

func (s *store) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

var errDown = &core.Error{Op: "test", Class: core.ClassOutage, Err: errors.New("down")}

func stage(t *testing.T, s *store, msgs ...core.Message) {
	t.Helper()
	tx := s.Begin()
	defer tx.Rollback()
	if _, err := s.Stage(t.Context(), tx, msgs...); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func message(id string, opts ...core.MessageOption) core.Message {
	return core.RawMessage("mail.send", "text/plain", []byte(id), append([]core.MessageOption{core.ID(id), core.Routes("mails")}, opts...)...)
}

func newTable(t *testing.T, s core.OutboxStore, opts table.Options) *table.Transport {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = quiet
	}
	tr, err := table.New(s, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.Close(context.Background()) })
	return tr
}

func subscribe(t *testing.T, tr *table.Transport) core.Receiver {
	t.Helper()
	r, err := tr.Subscribe(t.Context(), core.Subscription{Queue: "mails"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// receive returns the next n deliveries.
func receive(t *testing.T, r core.Receiver, n int) []*core.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
	defer cancel()
	var all []*core.Delivery
	for len(all) < n {
		ds, err := r.Receive(ctx, n-len(all))
		if err != nil && (core.ClassOf(err) != core.ClassOutage || ctx.Err() != nil) {
			t.Fatalf("after %d of %d: %v", len(all), n, err)
		}
		all = append(all, ds...)
	}
	return all
}

// none fails if anything comes within d.
func none(t *testing.T, r core.Receiver, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if ds, err := r.Receive(ctx, 10); err == nil {
		t.Fatalf("message %s came, redeliveries %d", ds[0].Envelope.ID, ds[0].Redeliveries)
	}
}

func settled(t *testing.T, r core.Receiver, acks ...core.Ack) {
	t.Helper()
	if err := r.Settle(t.Context(), acks).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// TestTimersFireWhenDue: timers staged before and while the receiver waits, and retries, come at their time to the
// microsecond, however long the poll interval.
//
// TQ-04
func TestTimersFireWhenDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
			stage(t, s, message(id, core.Delay(d-time.Since(begin))))
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

// plain hides everything that is optional.
type plain struct{ core.OutboxStore }

// TestPolling: a store that is no Waiter is polled with back-off between PollMin and PollMax, and asked at the time of the
// next timer that it knows.
//
// TQ-02
func TestPolling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		var times []time.Time
		s.claim = func(core.ClaimRequest) error { times = append(times, time.Now()); return nil }
		tr := newTable(t, plain{s}, table.Options{})
		r := subscribe(t, tr)
		begin := time.Now()
		none(t, r, time.Minute)
		for i := 1; i < len(times); i++ {
			want := min(time.Second<<(i-1), 10*time.Second)
			if gap := times[i].Sub(times[i-1]); gap > want || gap < want*3/4-time.Millisecond {
				t.Errorf("gap %d is %s, want %s less a quarter at most", i, gap, want)
			}
		}
		staged := time.Now()
		stage(t, s, message("now"), message("later", core.Delay(100*time.Minute)))
		settled(t, r, core.AckDone(receive(t, r, 1)[0]))
		if took := time.Since(begin); took > time.Minute+10*time.Second {
			t.Errorf("found after %s", took)
		}
		receive(t, r, 1)
		if late := time.Since(staged) - 100*time.Minute; late < 0 || late > time.Millisecond {
			t.Errorf("a timer came %s late", late)
		}
	})
}

// TestCrash: what a dead receiver held comes to another one when its lease ends, counted as a redelivery and not as an attempt;
// from the second crash on it comes alone.
//
// TQ-03, CO-08
func TestCrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, message("a"), message("b"), message("c"))
		die := func() { // claim as a process would that is killed then
			req := core.ClaimRequest{Owner: "dead", Routes: []core.RouteOrder{{Route: "mails"}}, MaxRecords: 1, Lease: time.Second}
			for {
				c, err := s.Claim(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				if len(c.Records) == 1 {
					return
				}
				req.Alone = c.Suspects
			}
		}
		die()
		r := subscribe(t, newTable(t, s, table.Options{}))
		first := receive(t, r, 2)
		begin := time.Now()
		d := receive(t, r, 1)[0]
		if took := time.Since(begin); d.Envelope.ID != "a" || d.Redeliveries != 1 || d.Attempt != 1 || took != time.Second {
			t.Errorf("%s came after %s with %d redeliveries, attempt %d", d.Envelope.ID, took, d.Redeliveries, d.Attempt)
		}
		settled(t, r, core.AckGiveBack(d), core.AckGiveBack(first[0]), core.AckGiveBack(first[1]))
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		die()                       // "a" again
		time.Sleep(2 * time.Second) // virtual time
		r = subscribe(t, newTable(t, s, table.Options{}))
		innocent := receive(t, r, 2)
		none(t, r, 10*time.Second) // the suspect waits until nothing else is held
		settled(t, r, core.AckDone(innocent[0]), core.AckDone(innocent[1]))
		suspect := receive(t, r, 1)[0]
		if suspect.Envelope.ID != "a" || suspect.Redeliveries != 2 {
			t.Errorf("suspect %s with %d redeliveries", suspect.Envelope.ID, suspect.Redeliveries)
		}
		stage(t, s, message("d"))
		none(t, r, 10*time.Second) // nothing else is claimed while it is held
		settled(t, r, core.AckDone(suspect))
		if d := receive(t, r, 1)[0]; d.Envelope.ID != "d" {
			t.Errorf("%s came", d.Envelope.ID)
		}
	})
}

// TestSlowHandlers: leases are renewed for as long as a delivery is held, so that nobody else gets it.
//
// TQ-05
func TestSlowHandlers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, message("a"), message("b", core.Key("k")), message("c", core.Key("k")))
		var logged bytes.Buffer
		tr := newTable(t, s, table.Options{Lease: time.Second, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		r := subscribe(t, tr)
		ds := receive(t, r, 2)
		other := subscribe(t, newTable(t, s, table.Options{}))
		none(t, other, 10*time.Second)
		settled(t, r, core.AckDone(ds[0]), core.AckDone(ds[1]))
		settled(t, r, core.AckDone(receive(t, r, 1)[0])) // it waited behind its key, with a lease
		none(t, other, 10*time.Second)
		if st := tr.Stats(); st.LostAtRenew+st.LostAtSettle > 0 || !strings.Contains(logged.String(), "event=held_long") {
			t.Errorf("%+v; log: %s", st, logged.String())
		}
	})
}

// TestExtensionShorterThanTheLease: a delivery that was extended by less than what was left of its lease is renewed from there on.
//
// TQ-05
func TestExtensionShorterThanTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, message("a"))
		r := subscribe(t, newTable(t, s, table.Options{Lease: time.Minute}))
		d := receive(t, r, 1)[0]
		extender, ok := r.(core.DeliveryExtender)
		if !ok {
			t.Fatal("deliveries cannot be extended")
		}
		if err := extender.ExtendDeliveries(t.Context(), []*core.Delivery{d}, 5*time.Second).FirstErr(); err != nil {
			t.Fatal(err)
		}
		none(t, subscribe(t, newTable(t, s, table.Options{})), 29*time.Second)
		settled(t, r, core.AckDone(d))
	})
}

// TestLeaseLost: a lease that another claim took is logged and counted with its phase, and the late settle changes
// nothing.
//
// TQ-05
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	for phase, ack := range map[string]func(*core.Delivery) core.Ack{
		"settle": core.AckDone,
		"retry":  func(d *core.Delivery) core.Ack { return core.AckRetry(d, time.Second, nil) },
		"renew":  core.AckDone,
	} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				stage(t, s, message("a"))
				var logged bytes.Buffer
				tr := newTable(t, s, table.Options{Lease: time.Second, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
				r := subscribe(t, tr)
				d := receive(t, r, 1)[0]
				s.set(func() { s.extend = func() error { return errDown } })
				other := subscribe(t, newTable(t, s, table.Options{}))
				taken := receive(t, other, 1)[0]
				if phase == "renew" {
					s.set(func() { s.extend = nil })
					time.Sleep(time.Second) // virtual time
				}
				err := r.Settle(t.Context(), []core.Ack{ack(d)}).FirstErr()
				if !errors.Is(err, core.ErrLeaseLost) {
					t.Errorf("settled with %v", err)
				}
				st := tr.Stats()
				got := map[string]int64{"settle": st.LostAtSettle, "retry": st.LostAtRetry, "renew": st.LostAtRenew}
				want := map[string]int64{"settle": 0, "retry": 0, "renew": 0}
				want[phase] = 1
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
				for _, attr := range []string{"event=lease_lost", "phase=" + phase, "id=a", "queue=mails", "attempt=1", "held="} {
					if !strings.Contains(logged.String(), attr) {
						t.Errorf("%s is not in the log: %s", attr, logged.String())
					}
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
		s := newStore(t)
		stage(t, s, message("a"), message("b"), message("c"))
		r := subscribe(t, newTable(t, s, table.Options{}))
		ds := receive(t, r, 3)
		s.set(func() { s.settle = func([]core.Outcome) error { return errDown } })
		begin := time.Now()
		time.AfterFunc(30*time.Second, func() { s.set(func() { s.settle = nil }) })
		settled(t, r, core.AckDone(ds[0]), core.AckRetry(ds[1], time.Second, nil))
		if took := time.Since(begin); took < 30*time.Second || took > 36*time.Second {
			t.Errorf("settled after %s", took)
		}
		s.set(func() { s.settle = func([]core.Outcome) error { return errDown } })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Settle(ctx, []core.Ack{core.AckDone(ds[2])}).FirstErr(); core.ClassOf(err) != core.ClassOutage {
			t.Errorf("given up with %v", err)
		}
		synctest.Wait() // it is tried for the last time
		s.set(func() { s.settle = nil; s.claim = func(core.ClaimRequest) error { return errDown } })
		if _, err := r.Receive(t.Context(), 1); core.ClassOf(err) != core.ClassOutage {
			t.Errorf("received with %v", err)
		}
		s.set(func() { s.claim = nil })
		got := map[string]int{}
		for _, d := range receive(t, r, 2) {
			got[d.Envelope.ID] = d.Attempt
		}
		if diff := cmp.Diff(map[string]int{"b": 2, "c": 1}, got); diff != "" {
			t.Error(diff)
		}
	})
}

// TestCancelledReceiveLosesNothing: the claim of a Receive that ended goes to the next one, or back.
func TestCancelledReceiveLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, message("a"), message("b"))
		slow := func(core.ClaimRequest) error { time.Sleep(time.Second); return nil } // virtual time
		s.claim = slow
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

// TestKeyOrder: messages of a key reach handlers in staged order over two processes, through retries and parking, and never
// two at a time. Other keys do not wait.
//
// OR-02, OR-09
func TestKeyOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		const keys, each = 5, 20
		var mu sync.Mutex
		var order [keys][]int
		var running [keys]int
		tries := map[string]int{}
		handler := core.Handler{Name: "mail.send", Handle: func(ctx context.Context, d *core.Delivery) (core.HandlerStatus, error) {
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
				return 0, core.Reject(errors.New("no"))
			}
			return 0, nil
		}}
		for n := range each {
			for k := range keys {
				stage(t, s, message(fmt.Sprintf("%d-%d", k, n), core.Key(fmt.Sprint("key", k))))
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 2 {
			c, err := consumer.New(newTable(t, s, table.Options{BatchSize: 100}), consumer.Options{Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Handle(core.Subscription{Queue: "mails", Prefetch: 100}, handler); err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				if err := c.Run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(2 * time.Minute) // virtual time
		cancel()
		wg.Wait()
		for k := range keys {
			if len(order[k]) != each || !slices.IsSorted(order[k]) {
				t.Errorf("key %d came in order %v", k, order[k])
			}
		}
		for _, r := range s.Records() {
			if r.State != core.StateAbandoned || r.Reason != core.ReasonRejected {
				t.Errorf("%s is left %s", r.Envelope.ID, r.State)
			}
		}
	})
}

// TestParkedBlocksItsKeyInOrder: with BlockAfterAbandon a parked message blocks its key, also for a subscription with InOrder.
//
// OR-02, OR-09
func TestParkedBlocksItsKeyInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, message("a", core.Key("k")), message("b", core.Key("k")), message("c", core.Key("k")), message("d", core.Key("l")))
		c, err := consumer.New(newTable(t, s, table.Options{BlockAfterAbandon: true}), consumer.Options{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var got []string
		if err := c.Handle(core.Subscription{Queue: "mails", InOrder: true}, core.Handler{Name: core.AnyMessage, Handle: func(_ context.Context, d *core.Delivery) (core.HandlerStatus, error) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, d.Envelope.ID)
			if d.Envelope.ID == "a" {
				return 0, core.Reject(errors.New("no"))
			}
			return core.HandlerProcessed, nil
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

// TestParks: through the consumer, what fails for good stays in the table with reason and error: attempts spent, crashed too
// often, without a handler, expired.
//
// TQ-01, TQ-03, CO-15
func TestParks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, message("fails"), message("crashes"), core.RawMessage("mail.other", "", nil, core.ID("other"), core.Routes("mails")),
			message("expires", core.Delay(time.Second), core.TTL(time.Millisecond)))
		for i := range 3 { // three processes die with it
			req := core.ClaimRequest{Routes: []core.RouteOrder{{Route: "mails"}}, MaxRecords: 2, Lease: time.Millisecond, Alone: i == 2}
			c, err := s.Claim(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if i < 2 { // the other one was not to blame
				s.Settle(t.Context(), []core.Outcome{core.Release(&c.Records[0], 0)})
			}
			time.Sleep(time.Millisecond) // virtual time
		}
		c, err := consumer.New(newTable(t, s, table.Options{}), consumer.Options{Logger: quiet, Retry: core.Schedule(time.Second, time.Minute), MaxDeliveries: 3})
		if err != nil {
			t.Fatal(err)
		}
		ran := 0
		err = c.Handle(core.Subscription{Queue: "mails"}, core.Handler{Name: "mail.send", Handle: func(_ context.Context, d *core.Delivery) (core.HandlerStatus, error) {
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
		got := map[string]core.Reason{}
		for _, r := range s.Records() {
			if r.State == core.StateAbandoned && r.LastError != "" {
				got[r.Envelope.ID] = r.Reason
			}
		}
		want := map[string]core.Reason{"fails": core.ReasonAttempts, "crashes": core.ReasonDeliveries, "other": core.ReasonNoHandler, "expires": core.ReasonExpired}
		if diff := cmp.Diff(want, got); diff != "" || ran != 3 {
			t.Errorf("ran %d times; parked: %s", ran, diff)
		}
	})
}

// TestSubscriptionsDoNotWakeLate: while one queue is busy for long, another one that comes to rest is still woken at once.
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
			stage(t, s, core.RawMessage("mail.send", "", nil, core.ID("b"), core.Routes("idle")))
		}()
		begin := time.Now()
		receive(t, idle, 1)
		if took := time.Since(begin); took > 1100*time.Millisecond {
			t.Errorf("came after %s", took)
		}
		if n := tr.Stats().Claims; n > 20 {
			t.Errorf("%d claims", n)
		}
		settled(t, busy, core.AckDone(held[0]))
	})
}

func subscribeTo(t *testing.T, tr *table.Transport, queue string) core.Receiver {
	t.Helper()
	r, err := tr.Subscribe(t.Context(), core.Subscription{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestBadInput: every problem is named at once, with its cure.
func TestBadInput(t *testing.T) {
	t.Parallel()
	has := func(err error, want ...string) {
		t.Helper()
		if err == nil || !errors.Is(err, core.ErrInvalid) {
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
		BatchSize: -1, PollMin: time.Minute, PollMax: time.Second, Lease: time.Millisecond, Order: 9, Owner: "a\x00",
		Queues: map[string]table.QueueOptions{"": {}, "q": {BatchSize: 20_000, Order: core.OrderBestEffort, BlockAfterAbandon: true, PollMin: -1}},
	})
	has(err, "BatchSize", "PollMax", "Lease", "Order: 9", "Owner", `Queues[""]`, `Queues["q"].BatchSize`, `Queues["q"].BlockAfterAbandon`, `Queues["q"].PollMin`)
	_, err = table.New(unordered{newStore(t)}, table.Options{})
	has(err, "does not claim in the order per_key")
	tr := newTable(t, newStore(t), table.Options{Queues: map[string]table.QueueOptions{"loose": {Order: core.OrderBestEffort}}})
	_, err = tr.Subscribe(t.Context(), core.Subscription{Queue: "q", Bindings: []string{"mail.*"}})
	has(err, "wildcard")
	_, err = tr.Subscribe(t.Context(), core.Subscription{Queue: "loose", InOrder: true})
	has(err, "InOrder")
	_, err = subscribe(t, tr).Receive(t.Context(), 0)
	has(err, "limit")
}

type unordered struct{ core.OutboxStore }

func (unordered) Traits() core.StoreTraits { return core.StoreTraits{} }
