package waybilltest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/waybilltest"
)

func newEnv(t *testing.T, opts waybilltest.Options) *waybilltest.Env {
	t.Helper()
	opts.AllowUnhandled = true // receipts and reminders are for others
	env := waybilltest.New(t, opts)
	handlers, err := billing(env.Store)
	if err != nil {
		t.Fatal(err)
	}
	env.Handle(handlers...)
	return env
}

// TestSynchronous: handlers run when the transaction commits, see its writes, and do not run before.
//
// TE-04, ST-13
func TestSynchronous(t *testing.T) {
	t.Parallel()
	env := newEnv(t, waybilltest.Options{})
	errNo := errors.New("changed my mind")
	err := env.Do(func(ctx context.Context, tx *memory.Tx) error {
		if err := placeOrder(ctx, env.Store, tx, Order{"o-1", 5}); err != nil {
			return err
		}
		return errNo
	})
	if !errors.Is(err, errNo) || len(env.Sent()) > 0 {
		t.Fatalf("%v, %d sent", err, len(env.Sent()))
	}
	err = env.Do(func(ctx context.Context, tx *memory.Tx) error {
		if err := placeOrder(ctx, env.Store, tx, Order{"o-1", 5}); err != nil {
			return err
		}
		if len(env.Sent()) > 0 {
			t.Error("handled before the commit")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	placed, receipt := env.Sent("orders.placed")[0], env.Sent("receipts.ready")[0]
	if receipt.Envelope.CausationID != placed.Envelope.ID || !placed.Handled || receipt.Handled {
		t.Errorf("placed %+v, receipt %+v", placed, receipt)
	}
}

// TestErrorsReachTheTest: a handler's error, panic included, comes out of Do, and the message is parked with its
// reason.
//
// TE-04
func TestErrorsReachTheTest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handle func() error
		want   string
		reason waybill.Reason
	}{
		"error":  {func() error { return errors.New("boom") }, "boom", waybill.ReasonAttempts},
		"reject": {func() error { return waybill.Reject(errors.New("no")) }, "no", waybill.ReasonRejected},
		"panic":  {func() error { panic("ouch") }, "panicked: ouch", waybill.ReasonAttempts},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := waybilltest.New(t, waybilltest.Options{}, waybill.HandlerFor(OrderPlaced, func(context.Context, Order) error { return c.handle() }))
			err := env.Do(func(ctx context.Context, tx *memory.Tx) error {
				_, err := env.Store.Stage(ctx, tx, OrderPlaced.Message(Order{"o-1", 5}, waybill.ID("m-1")))
				return err
			})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "m-1") {
				t.Errorf("got %v", err)
			}
			if p := env.Parked(); len(p) != 1 || p[0].Reason != c.reason {
				t.Errorf("parked %+v", p)
			}
		})
	}
}

// TestScheduled: a scheduled message fires at once, with its due time; with KeepScheduled it waits for Advance, and can
// be cancelled or replaced.
//
// TE-04, ST-08, ST-09, ST-10
func TestScheduled(t *testing.T) {
	t.Parallel()
	env := newEnv(t, waybilltest.Options{})
	env.Stage(Reminder.Message(Order{"o-2", 1}, waybill.DeliverAt(env.Now().Add(time.Hour))), Reminder.Message(Order{"o-1", 1}, waybill.Delay(time.Minute)))
	var due []time.Duration
	for _, s := range env.Sent() {
		due = append(due, s.DueIn)
	}
	if diff := cmp.Diff([]time.Duration{time.Minute, time.Hour}, due); diff != "" {
		t.Error(diff)
	}
	env = newEnv(t, waybilltest.Options{KeepScheduled: true})
	place := func(id string) {
		t.Helper()
		if err := env.Do(func(ctx context.Context, tx *memory.Tx) error { return placeOrder(ctx, env.Store, tx, Order{id, 5}) }); err != nil {
			t.Fatal(err)
		}
	}
	place("o-1")
	place("o-2")
	if w := env.Waiting(); len(w) != 2 || w[0].Due.Sub(env.Now()) != 24*time.Hour {
		t.Errorf("waiting: %+v", w)
	}
	if s := env.Stage(Reminder.Message(Order{"o-1", 7}, waybill.DedupeKey("remind o-1"))); !s[0].Duplicate {
		t.Errorf("staged %+v", s)
	}
	env.Stage(Reminder.Message(Order{"o-1", 7}, waybill.Replace("remind o-1"), waybill.Delay(time.Hour)))
	if st := env.Cancel(waybill.CancelKey{Topic: "orders.reminder", DedupeKey: "remind o-2"}); st != waybill.CancelDone {
		t.Errorf("cancel: %s", st)
	}
	if err := env.Advance(48 * time.Hour); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Order{{"o-1", 7}}, waybilltest.Values(env, Reminder)); diff != "" {
		t.Error(diff)
	}
	if st := env.Cancel(waybill.CancelKey{Topic: "orders.reminder", DedupeKey: "remind o-1"}); st != waybill.CancelNotFound {
		t.Errorf("cancel of what was sent: %s", st)
	}
}

// TestRetryPolicy: with a policy the retries run at once; without luck the message is parked and the last error comes
// out.
func TestRetryPolicy(t *testing.T) {
	t.Parallel()
	fails := 2
	env := waybilltest.New(t, waybilltest.Options{Retry: waybill.RetryDelays(time.Second, time.Minute)},
		waybill.HandlerFor(OrderPlaced, func(context.Context, Order) error {
			if fails--; fails >= 0 {
				return errors.New("boom")
			}
			return nil
		}))
	env.Stage(OrderPlaced.Message(Order{"o-1", 5}))
	var got []string
	for _, s := range env.Sent() {
		got = append(got, fmt.Sprintf("%d %s %v", s.Attempt, s.DueIn, s.Result.Err))
	}
	if diff := cmp.Diff([]string{"1 0s boom", "2 1s boom", "3 1m0s <nil>"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestStagedOrder: messages of several routes come in the order in which they were staged, timers that fall due at one
// time each with its own wait.
//
// TE-04
func TestStagedOrder(t *testing.T) {
	t.Parallel()
	env := waybilltest.New(t, waybilltest.Options{AllowUnhandled: true})
	env.Stage(OrderPlaced.Message(Order{"o-1", 1}, waybill.Routes("b")), OrderPlaced.Message(Order{"o-2", 2}, waybill.Routes("a"), waybill.Delay(time.Minute)),
		OrderPlaced.Message(Order{"o-3", 3}, waybill.Routes("b"), waybill.Delay(time.Minute)), OrderPlaced.Message(Order{"o-4", 4}, waybill.Routes("a")))
	var got []string
	for _, s := range env.Sent() {
		o, err := OrderPlaced.Decode(&s.Envelope)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(o.ID, " ", s.Route, " ", s.DueIn))
	}
	if diff := cmp.Diff([]string{"o-1 b 0s", "o-4 a 0s", "o-2 a 1m0s", "o-3 b 1m0s"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestLocked: a message that an open transaction has cancelled is left alone until the transaction has ended, and no
// other message is.
func TestLocked(t *testing.T) {
	t.Parallel()
	env := waybilltest.New(t, waybilltest.Options{AllowUnhandled: true, KeepScheduled: true})
	env.Stage(OrderPlaced.Message(Order{"o-1", 1}, waybill.ID("m-1"), waybill.Delay(time.Minute)), OrderPlaced.Message(Order{"o-2", 2}, waybill.Delay(time.Minute)))
	tx := env.Store.Begin()
	statuses, err := env.Store.Cancel(t.Context(), tx, waybill.CancelKey{ID: "m-1"})
	if err != nil || statuses[0] != waybill.CancelDone {
		t.Fatal(statuses, err)
	}
	if err := env.Advance(time.Hour); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Order{{"o-2", 2}}, waybilltest.Values(env, OrderPlaced)); diff != "" {
		t.Error(diff)
	}
	tx.Rollback()
	if err := env.Drain(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Order{{"o-2", 2}, {"o-1", 1}}, waybilltest.Values(env, OrderPlaced)); diff != "" {
		t.Error(diff)
	}
}

// TestOutageKeeps: an outage ends the drain; the message waits for the next one.
func TestOutageKeeps(t *testing.T) {
	t.Parallel()
	down := true
	env := waybilltest.New(t, waybilltest.Options{}, waybill.HandlerFor(OrderPlaced, func(context.Context, Order) error {
		if down {
			return waybill.Outage(errors.New("down"))
		}
		return nil
	}))
	err := env.Do(func(ctx context.Context, tx *memory.Tx) error {
		_, err := env.Store.Stage(ctx, tx, OrderPlaced.Message(Order{"o-1", 5}), OrderPlaced.Message(Order{"o-2", 5}, waybill.TTL(time.Minute)))
		return err
	})
	if waybill.ClassOf(err) != waybill.ClassOutage || len(env.Waiting()) != 2 || len(env.Sent()) != 1 {
		t.Fatalf("%v, %d wait, %d sent", err, len(env.Waiting()), len(env.Sent()))
	}
	down = false
	if err := env.Advance(time.Hour); waybill.ReasonOf(err) != waybill.ReasonExpired || len(env.Waiting()) > 0 || len(env.Parked()) != 1 {
		t.Errorf("%v, waiting %+v", err, env.Waiting())
	}
}

// TestEndless: handlers that stage for ever are found.
func TestEndless(t *testing.T) {
	t.Parallel()
	env := waybilltest.New(t, waybilltest.Options{})
	env.Handle(waybill.HandlerFor(OrderPlaced, func(ctx context.Context, o Order) error {
		return env.Do(func(ctx context.Context, tx *memory.Tx) error {
			_, err := env.Store.Stage(ctx, tx, OrderPlaced.Message(o))
			return err
		})
	}))
	err := env.Do(func(ctx context.Context, tx *memory.Tx) error {
		_, err := env.Store.Stage(ctx, tx, OrderPlaced.Message(Order{"o-1", 5}))
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "for ever") {
		t.Errorf("got %v", err)
	}
}

// TestLoop: the real engines on virtual time: retries, a timer, a duplicate, poison, a relay that died, a restart.
//
// TE-04
func TestLoop(t *testing.T) {
	t.Parallel()
	waybilltest.Run(t, waybilltest.LoopOptions{}, func(t *testing.T, l *waybilltest.Loop) {
		t.Helper()
		handlers, err := billing(l.Store)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Do(func(ctx context.Context, tx *memory.Tx) error { return placeOrder(ctx, l.Store, tx, Order{"o-1", 5}) }); err != nil {
			t.Fatal(err)
		}
		if n := l.Crash(waybill.DefaultRoute, 10, time.Minute); n != 1 {
			t.Fatalf("crashed with %d messages", n)
		}
		begin := time.Now()
		reminded := 0
		handlers = append(handlers, waybill.HandlerFor(Reminder, func(context.Context, Order) error {
			reminded++
			if took := time.Since(begin); took < 24*time.Hour || took > 24*time.Hour+time.Second {
				t.Errorf("reminded after %s", took)
			}
			return nil
		}))
		l.Start(handlers...)
		time.Sleep(30 * time.Second) // virtual time
		if len(l.Published()) > 0 {
			t.Error("published before the lease of the dead relay ended")
		}
		time.Sleep(31 * time.Second) // virtual time
		if bill, _ := l.Store.Get("bill/o-1"); bill != "5" {
			t.Errorf("billed %q", bill)
		}
		l.Stop()
		l.Feed(l.Published()[0], waybill.Envelope{ID: "poison", Topic: "orders.placed", Body: []byte("{")})
		l.Start(handlers...)
		l.Idle()
		if reminded != 1 {
			t.Errorf("reminded %d times", reminded)
		}
		if p := l.Parked(); len(p) != 1 || p[0].Envelope.ID != "poison" || p[0].Reason != waybill.ReasonUndecodable {
			t.Errorf("parked %+v", p)
		}
		receipts := 0
		for _, m := range l.Published() {
			if m.Topic == ReceiptReady.Name() {
				receipts++
			}
		}
		if receipts != 1 {
			t.Errorf("%d receipts: the duplicate had an effect", receipts)
		}
	})
}
