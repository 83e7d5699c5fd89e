package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/memory"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

var nothing = handle(func(context.Context, *waybill.Delivery) error { return nil })

// CO-01: a handler for a topic that no binding matches is refused, where that is certain.
func TestHandleRefusesWhatNothingReaches(t *testing.T) {
	t.Parallel()
	placed := waybill.HandlerFor(waybill.NewTopic("orders.placed", waybill.JSON[note]()), func(context.Context, note) error { return nil })
	any, byType := placed, placed
	any.Name, byType.NameIsTopic = waybill.AnyMessage, false
	store, err := memory.New(memory.Options{Source: "/s"})
	if err != nil {
		t.Fatal(err)
	}
	box, err := inbox.New(store, "c", inbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	exactly := func(name string) waybill.Handler {
		return inbox.Handler(box, waybill.NewTopic(name, waybill.JSON[note]()), func(context.Context, *memory.Tx, note) error { return nil })
	}
	batch := inbox.BatchHandler(box, waybill.NewTopic("orders.placed", waybill.JSON[note]()),
		func(context.Context, *memory.Tx, []inbox.Item[note]) error { return nil }, inbox.BatchOptions{})
	for name, c := range map[string]struct {
		bindings []string
		handlers []waybill.Handler
		want     []string // in the error; none = accepted
	}{
		"another word": {
			[]string{"users.*"},
			[]waybill.Handler{placed},
			[]string{`handlers[0]: topic "orders.placed" matches none of the Bindings ["users.*"]`, "add the topic to them"},
		},
		"inbox":           {[]string{"users.*", "orders"}, []waybill.Handler{exactly("users.new"), exactly("orders.placed")}, []string{`handlers[1]: topic "orders.placed"`, `["users.*" "orders"]`}},
		"batches":         {[]string{"users.*"}, []waybill.Handler{batch}, []string{`topic "orders.placed"`}},
		"one word only":   {[]string{"*"}, []waybill.Handler{placed}, []string{`topic "orders.placed"`}},
		"every one":       {[]string{"a.b"}, []waybill.Handler{exactly("x"), exactly("y")}, []string{`topic "x"`, `topic "y"`}},
		"itself":          {[]string{"orders.placed"}, []waybill.Handler{placed}, nil},
		"star":            {[]string{"users.*", "*.placed"}, []waybill.Handler{placed}, nil},
		"hash":            {[]string{"#"}, []waybill.Handler{placed}, nil},
		"hash behind":     {[]string{"orders.placed.#"}, []waybill.Handler{placed}, nil},
		"bound elsewhere": {nil, []waybill.Handler{placed}, nil},
		"any message":     {[]string{"users.*"}, []waybill.Handler{any}, nil},
		"may be a type":   {[]string{"users.*"}, []waybill.Handler{byType}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := newConsumer(t, newBus(t), consumer.Options{}).Handle(waybill.Subscription{Queue: queue, Bindings: c.bindings}, c.handlers...)
			if errors.Is(err, waybill.ErrInvalid) != (c.want != nil) {
				t.Fatalf("error: %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is missing in %q", want, err)
				}
			}
		})
	}
	b := newBus(t)
	// its bindings may be no more than documentation
	b.traits = func(tr *core.SubscriberTraits) { tr.Wildcards = core.WildcardsNone }
	if err := newConsumer(t, b, consumer.Options{}).Handle(waybill.Subscription{Queue: queue, Bindings: []string{"users.new"}}, placed); err != nil {
		t.Error(err)
	}
}

// TR-09, CO-01: every problem at once, with what to do.
func TestHandleReportsEveryProblem(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	b.traits = func(tr *core.SubscriberTraits) { *tr = core.SubscriberTraits{MaxRetryDelay: time.Minute} }
	c := newConsumer(t, b, consumer.Options{})
	err := c.Handle(
		waybill.Subscription{Bindings: []string{"a.*", ""}, Concurrency: -1, Prefetch: -1},
		nothing, nothing, waybill.Handler{Name: "none"}, waybill.Handler{Handle: nothing.Handle},
	)
	if !errors.Is(err, waybill.ErrInvalid) {
		t.Fatalf("error: %v", err)
	}
	for _, want := range []string{
		"Queue: is empty", "Bindings[0]: \"a.*\" holds a wildcard", "Bindings[1]: is empty", "Concurrency: -1", "Prefetch: -1",
		"cannot deliver again later", "the delay 5m0s is more than the 1m0s", "cannot park", `handlers[1]: "note.added" is handled by an earlier one`,
		`handlers[2]: "none" has no function`, "handlers[3]: the name is empty",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %q", want, err)
		}
	}
	var invalid *waybill.InvalidError
	if errors.As(err, &invalid); len(invalid.Problems) != 11 {
		t.Errorf("%d problems: %q", len(invalid.Problems), invalid.Problems)
	}
	// The subscription asks only for features that the transport has.
	if err := c.Handle(waybill.Subscription{Queue: queue, Retry: waybill.RetryDelays(), DropFailed: true}, nothing); err != nil {
		t.Error(err)
	}
	if err := c.Handle(waybill.Subscription{Queue: queue, Retry: waybill.RetryDelays(), DropFailed: true}, nothing); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("a second subscription of one queue: %v", err)
	}
	if err := c.Handle(waybill.Subscription{Queue: "p", Retry: waybill.RetryDelays(), DropFailed: true}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("no handlers: %v", err)
	}
}

func TestOptionsValidate(t *testing.T) {
	t.Parallel()
	err := consumer.Options{
		Retry: &waybill.Backoff{Base: -1}, Concurrency: 10_001, Prefetch: 65_536, Pause: waybill.Backoff{Kind: waybill.BackoffNone},
		Middleware: []waybill.Middleware{nil},
	}.Validate()
	for _, want := range []string{"Retry.Base", "Concurrency: 10001", "Prefetch: 65536", "Pause.Kind", "Middleware[0]"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
	if err := (consumer.Options{Concurrency: 5, Prefetch: 4}).Validate(); err == nil {
		t.Error("a prefetch below the concurrency is accepted")
	}
	if err := (consumer.Options{}).Validate(); err != nil {
		t.Error(err)
	}
	if _, err := consumer.New(nil, consumer.Options{}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("without a transport: %v", err)
	}
}

// TR-09: the subscription reaches the transport complete.
func TestSubscriptionIsCompleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		var got seen[core.Subscription]
		b.subscribe = func(s core.Subscription) error { got.add(s); return nil }
		retry := &waybill.Backoff{Kind: waybill.BackoffCustom, Custom: func(int, error) (time.Duration, bool) { return 0, false }}
		stop := start(t, b, consumer.Options{}, waybill.Subscription{Retry: retry, Bindings: []string{"a"}}, nothing)
		settle()
		stop()
		s := got.all()[0]
		want := []any{10, 10, 1000, 20, []time.Duration{time.Second, 10 * time.Second, time.Minute, 5 * time.Minute}, []string{"a"}}
		if diff := cmp.Diff(want, []any{s.Concurrency, s.Prefetch, s.MaxPrefetch, s.MaxDeliveries, s.RetryDelays, s.Bindings}); diff != "" {
			t.Error(diff)
		}
	})
}

func TestRunNeedsSomethingToDo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newConsumer(t, newBus(t), consumer.Options{})
		if err := c.Run(t.Context()); !errors.Is(err, waybill.ErrInvalid) {
			t.Errorf("Run of nothing: %v", err)
		}
		if err := c.Handle(waybill.Subscription{Queue: queue}, nothing); err != nil {
			t.Fatal(err)
		}
		stop := run(t, c)
		settle()
		if err := c.Run(t.Context()); err == nil {
			t.Error("a second Run at a time is accepted")
		}
		if err := c.Handle(waybill.Subscription{Queue: "p"}, nothing); !errors.Is(err, waybill.ErrInvalid) {
			t.Errorf("Handle during Run: %v", err)
		}
		stop()
		run(t, c)() // again, after it returned
	})
}

// CO-10: misconfiguration on first contact ends Run with the errors of all subscriptions.
func TestMisconfiguredEndsRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		b.subscribe = func(s core.Subscription) error {
			switch s.Queue {
			case "slow":
				time.Sleep(time.Second)
			case "fine":
				return nil
			}
			return fmt.Errorf("queue %s: %w", s.Queue, waybill.ErrMisconfigured)
		}
		c := newConsumer(t, b, consumer.Options{})
		for _, q := range []string{"one", "slow", "fine"} {
			if err := c.Handle(waybill.Subscription{Queue: q}, nothing); err != nil {
				t.Fatal(err)
			}
		}
		err := c.Run(t.Context())
		if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "queue one") || !strings.Contains(err.Error(), "queue slow") {
			t.Errorf("Run: %v", err)
		}
	})
}

// CO-10: afterwards nothing ends Run; it tries again with back-off, and resumes.
func TestTransportFailures(t *testing.T) {
	t.Parallel()
	outage := &waybill.Error{Op: "test", Class: waybill.ClassOutage, Err: errBoom}
	closed := &waybill.Error{Op: "test", Class: waybill.ClassOutage, Err: waybill.ErrClosed}
	for name, failure := range map[string]error{"outage": outage, "closed": closed, "unknown": errBoom, "misconfigured": waybill.ErrMisconfigured} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := declared(t)
				begin := time.Now()
				up := begin.Add(5 * time.Minute)
				fail := func() error {
					if now := time.Now(); now.After(begin) && now.Before(up) {
						return failure
					}
					return nil
				}
				b.receive = fail
				b.subscribe = func(core.Subscription) error { return fail() }
				var handled atomic.Int32
				stop := start(t, b, consumer.Options{}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
					handled.Add(1)
					return nil
				}))
				b.publish(t, 1)
				time.Sleep(time.Second)
				b.publish(t, 1) // wakes the receiver; from now on it fails
				patience.Pass(t, time.Minute)
				b.publish(t, 1)
				patience.Pass(t, 10*time.Minute)
				stop()
				if handled.Load() != 3 {
					t.Errorf("%d handled, want 3", handled.Load())
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				if n := len(b.times) + b.attempts; n < 10 || n > 40 {
					t.Errorf("%d calls of the transport in 5 min of failures", n)
				}
				if (name == "outage") != (b.attempts == 1) {
					t.Errorf("subscribed %d times", b.attempts)
				}
			})
		})
	}
}

// CO-10: an outage at the start is waited for.
func TestBrokerDownAtStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		up := time.Now().Add(time.Minute)
		b.subscribe = func(core.Subscription) error {
			if time.Now().Before(up) {
				return errBoom
			}
			return nil
		}
		var handled atomic.Int32
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
			handled.Add(1)
			return nil
		}))
		b.publish(t, 1)
		patience.Pass(t, 2*time.Minute)
		if handled.Load() != 1 {
			t.Error("the message was not handled after the outage")
		}
		stop()
		up = time.Now().Add(time.Hour)
		stop = start(t, b, consumer.Options{}, waybill.Subscription{}, nothing)
		patience.Pass(t, time.Minute)
		stop() // while the broker is down
	})
}

// CO-10: a message that could not be settled comes again; nothing spins meanwhile.
func TestSettleFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		up := time.Now().Add(time.Minute)
		b.settle = func([]core.Ack) error {
			if time.Now().Before(up) {
				return errLost
			}
			return nil
		}
		c := newConsumer(t, b, consumer.Options{})
		var ran atomic.Int32
		if err := c.Handle(waybill.Subscription{Queue: queue}, handle(func(context.Context, *waybill.Delivery) error { ran.Add(1); return nil })); err != nil {
			t.Fatal(err)
		}
		stop := run(t, c)
		b.publish(t, 3)
		patience.Pass(t, 2*time.Minute)
		wantDepth(t, b, memtransport.Depth{Held: 3})
		stop()
		wantDepth(t, b, memtransport.Depth{Ready: 3})
		stop = run(t, c)
		settle()
		stop()
		if ran.Load() != 6 {
			t.Errorf("%d runs, want 6", ran.Load())
		}
		wantDepth(t, b, memtransport.Depth{})
	})
}

// CO-10: a broker that refuses every settle and delivers again does not make the consumer spin.
func TestSettleFailureDoesNotSpin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		b.comeBack = true
		b.settle = func([]core.Ack) error { return errLost }
		var ran atomic.Int32
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
			if ran.Add(1) > 1000 {
				time.Sleep(time.Second) // it spins: without this the five minutes never end
			}
			return nil
		}))
		b.publish(t, 1)
		patience.Pass(t, 5*time.Minute)
		stop()
		if n := ran.Load(); n < 5 || n > 40 {
			t.Errorf("%d runs in 5 min", n)
		}
	})
}

// CO-10: a lost connection fails the settles of all held messages, each by itself. The loss counts once: the messages
// that come again do not wait for a pause that has doubled with each.
func TestLostConnectionPausesOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		b.comeBack = true
		lost := 0
		b.settle = func(acks []core.Ack) error {
			if lost < 10 {
				lost += len(acks)
				return errLost
			}
			return nil
		}
		var n atomic.Int32
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
			time.Sleep(time.Duration(n.Add(1)) * 100 * time.Millisecond) // each is settled alone
			return nil
		}))
		b.publish(t, 10)
		time.Sleep(10 * time.Second)
		wantDepth(t, b, memtransport.Depth{})
		stop()
	})
}

// CO-10: a settle that failed makes one pause. Later messages are received at once, also while no other one was
// settled.
func TestPauseForASettleIsMadeOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		b.comeBack = true
		var lost atomic.Bool
		b.settle = func([]core.Ack) error {
			if lost.CompareAndSwap(false, true) {
				return errLost
			}
			return nil
		}
		var begun atomic.Int32
		end := make(chan struct{})
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
			if begun.Add(1) > 1 {
				<-end
			}
			return nil
		}))
		b.publish(t, 1)
		time.Sleep(2 * time.Second)
		all := messages(4)
		b.send(t, all[1]) // what came back can have been received before the settle failed: the pause is now
		time.Sleep(2 * time.Second)
		for _, m := range all[2:] {
			b.send(t, m)
			time.Sleep(100 * time.Millisecond)
		}
		if n := begun.Load(); n != 5 {
			t.Errorf("%d of 5 handlers have begun", n)
		}
		close(end)
		stop()
	})
}

// CO-10: after a settle that failed altogether, settles that work end the pauses between receives.
func TestSettlesThatWorkAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Calls(2000, "each of 1,000 messages may be settled alone")
		b := declared(t)
		b.comeBack = true
		failed := false
		b.settle = func([]core.Ack) error {
			if failed {
				return nil
			}
			failed = true
			return errLost
		}
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, nothing)
		b.publish(t, 1)
		time.Sleep(5 * time.Second)
		wantDepth(t, b, memtransport.Depth{})
		b.publish(t, 1000)
		time.Sleep(time.Second)
		wantDepth(t, b, memtransport.Depth{})
		stop()
	})
}

// CO-10: an outcome that a receiver calls invalid is not stored again: the receiver does not hold that message, and the
// others go on.
func TestInvalidSettleHoldsUpNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		b.settle = func(acks []core.Ack) error {
			if acks[0].Delivery.Envelope.ID == "id-1" {
				return waybill.Invalid("settle", "the message is another receiver's")
			}
			return nil
		}
		var ran seen[string]
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
			ran.add(d.Envelope.ID)
			return nil
		}))
		b.publish(t, 1)
		settle()
		b.send(t, messages(4)[1:]...)
		time.Sleep(time.Second)
		if got := ran.all(); len(got) != 4 {
			t.Errorf("%v were handled, want all four, once", got)
		}
		wantDepth(t, b, memtransport.Depth{Held: 1})
		stop()
	})
}

// CO-10: when a receiver has closed, a message that waited for a handler does not begin any more: it comes again
// through the next receiver, and runs once.
func TestNothingBeginsAfterItsReceiverClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var closed atomic.Bool
		b.receive = func() error {
			if closed.CompareAndSwap(true, false) {
				return waybill.ErrClosed
			}
			return nil
		}
		var ran seen[string]
		stop := start(t, b, consumer.Options{Concurrency: 1, Prefetch: 20}, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
			if ran.add(d.Envelope.ID); d.Envelope.ID == "id-1" {
				time.Sleep(4 * time.Second) // its receiver closes meanwhile
			}
			return nil
		}))
		es := messages(12)
		b.send(t, es[:11]...)
		settle()
		closed.Store(true)
		b.send(t, es[11:]...) // ends the Receive that waits
		time.Sleep(9 * time.Second)
		got := map[string]int{}
		for _, id := range ran.all() {
			got[id]++
		}
		for _, e := range es[1:] {
			if got[e.ID] != 1 {
				t.Errorf("%s ran %d times", e.ID, got[e.ID])
			}
		}
		wantDepth(t, b, memtransport.Depth{})
		stop()
	})
}

// CO-11: prefetched messages go back at once, running handlers finish, all subscriptions at the same time.
func TestDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		if err := b.Declare("p", "#"); err != nil {
			t.Fatal(err)
		}
		c := newConsumer(t, b, consumer.Options{Concurrency: 2, Prefetch: 8})
		var ended atomic.Int32
		slow := handle(func(ctx context.Context, _ *waybill.Delivery) error {
			time.Sleep(10 * time.Second)
			if ctx.Err() != nil {
				t.Error("the handler's context ended while it may drain")
			}
			ended.Add(1)
			return nil
		})
		for _, q := range []string{queue, "p"} {
			if err := c.Handle(waybill.Subscription{Queue: q}, slow); err != nil {
				t.Fatal(err)
			}
		}
		stop := run(t, c)
		es := messages(10)
		for i := range es {
			es[i].Key = []string{"", "k"}[i%2]
		}
		b.send(t, es...)
		time.Sleep(2 * time.Second)
		begin := time.Now()
		go func() {
			time.Sleep(time.Millisecond)
			wantDepth(t, b, memtransport.Depth{Ready: 8, Held: 2})
		}()
		stop()
		if took := time.Since(begin); took != 8*time.Second {
			t.Errorf("draining took %s, want 8s", took)
		}
		if ended.Load() != 4 {
			t.Errorf("%d handlers ended, want 4", ended.Load())
		}
		wantDepth(t, b, memtransport.Depth{Ready: 8})
		if v := b.verdicts(); v[core.VerdictDone] != 4 || v[core.VerdictRelease] != 12 {
			t.Errorf("verdicts: %v", v)
		}
	})
}

// CO-11: at the drain timeout the handlers' contexts are cancelled, and the messages that they give up are released at
// no cost.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ timeout, want time.Duration }{{0, 15 * time.Second}, {3 * time.Second, 3 * time.Second}, {-1, 0}} {
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Time(15*time.Second, "the drain timeout and the grace after it")
			b := declared(t)
			stop := start(t, b, consumer.Options{DrainTimeout: tt.timeout}, waybill.Subscription{Retry: waybill.RetryDelays()}, handle(func(ctx context.Context, d *waybill.Delivery) error {
				<-ctx.Done()
				switch d.Envelope.ID {
				case "id-1":
					return waybill.Outage(ctx.Err())
				case "id-2":
					return waybill.Reject(errBoom)
				case "id-3":
					return nil
				}
				return ctx.Err()
			}))
			b.publish(t, 5)
			settle()
			begin := time.Now()
			stop()
			if took := time.Since(begin); took != tt.want {
				t.Errorf("draining took %s, want %s", took, tt.want)
			}
			wantDepth(t, b, memtransport.Depth{Ready: 3, Parked: 1})
			wantParked(t, b, waybill.ReasonRejected, 1)
		})
	}
}

// CO-11: a handler that ignores its context is left behind; its message is released, its late result ignored.
func TestDrainLeavesHandlerBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(25*time.Second, "a stop gives up a handler that does not end")
		b := declared(t)
		release := make(chan struct{})
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
			<-release
			return nil
		}))
		b.publish(t, 2)
		settle()
		begin := time.Now()
		stop()
		if took := time.Since(begin); took > 30*time.Second {
			t.Errorf("draining took %s", took)
		}
		wantDepth(t, b, memtransport.Depth{Ready: 2})
		close(release)
		settle()
		wantDepth(t, b, memtransport.Depth{Ready: 2})
	})
}

// CO-11: a stop waits for DrainTimeout, five seconds for handlers that ignore their context, five for settles that
// hang, as those over a connection into which nothing goes any more, and five for a close that hangs.
func TestDrainWhileSettlesHang(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		deaf  bool // the handler ignores its context
		close bool // it hangs, too
		want  time.Duration
	}{{false, false, 6 * time.Second}, {true, false, 11 * time.Second}, {false, true, 11 * time.Second}, {true, true, 16 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Time(17*time.Second, "a stop gives up handlers, settles and a close")
			b := declared(t)
			end := make(chan struct{})
			b.settle = func([]core.Ack) error {
				<-end
				return errBoom
			}
			if tt.close {
				b.close = func(ctx context.Context) { <-ctx.Done() }
			}
			h := handle(func(ctx context.Context, _ *waybill.Delivery) error {
				if tt.deaf {
					<-end
				}
				<-ctx.Done()
				return ctx.Err()
			})
			stop := start(t, b, consumer.Options{DrainTimeout: time.Second}, waybill.Subscription{}, h)
			b.publish(t, 3)
			settle()
			begin := time.Now()
			stop()
			if took := time.Since(begin); took != tt.want {
				t.Errorf("draining took %s, want %s", took, tt.want)
			}
			close(end)
			settle()
		})
	}
}

// CO-13: the first middleware is outermost, and the timeout ends a handler's context.
func TestMiddleware(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var order seen[string]
		name := func(n string) waybill.Middleware {
			return func(next waybill.HandleFunc) waybill.HandleFunc {
				return func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
					order.add(n)
					return next(ctx, d)
				}
			}
		}
		o := consumer.Options{Middleware: []waybill.Middleware{name("a"), consumer.Timeout(time.Second), name("b"), consumer.Timeout(0)}}
		stop := start(t, b, o, waybill.Subscription{Retry: waybill.RetryDelays(time.Hour)}, handle(func(ctx context.Context, d *waybill.Delivery) error {
			if d.Envelope.ID == "id-2" {
				panic("inside")
			}
			<-ctx.Done()
			return waybill.Outage(ctx.Err()) // as a database would put it
		}))
		b.publish(t, 1)
		time.Sleep(1500 * time.Millisecond)
		if diff := cmp.Diff([]string{"a", "b"}, order.all()); diff != "" {
			t.Error(diff)
		}
		wantDepth(t, b, memtransport.Depth{Delayed: 1}) // retried by policy, no pause
		b.publish(t, 2)
		time.Sleep(1500 * time.Millisecond)
		wantDepth(t, b, memtransport.Depth{Delayed: 3, Held: 0})
		stop()
	})
}

// CO-01: bindings are refused by the level of wildcards that the transport has.
func TestWildcardLevels(t *testing.T) {
	t.Parallel()
	levels := map[string]core.Wildcards{
		"orders.placed": core.WildcardsNone, "orders.*": core.WildcardsWord, "*.placed": core.WildcardsWord, "a*.b": core.WildcardsWord,
		"orders.#": core.WildcardsTail, "*.#": core.WildcardsTail, "#": core.WildcardsTail, "#.placed": core.WildcardsAll, "a.#.b": core.WildcardsAll,
	}
	for binding, need := range levels {
		for has := core.WildcardsNone; has <= core.WildcardsAll; has++ {
			b := newBus(t)
			b.traits = func(tr *core.SubscriberTraits) { tr.Wildcards = has }
			err := newConsumer(t, b, consumer.Options{}).Handle(waybill.Subscription{Queue: queue, Bindings: []string{binding}}, waybill.Handler{
				Name: "any.type", Handle: nothing.Handle,
			})
			if (err != nil) != (need > has) {
				t.Errorf("%q on a transport with %s: %v", binding, has, err)
			}
		}
	}
}

// CO-08: where the transport has one count for attempts and deliveries, the policy must fit into it.
func TestOneCountForAttemptsAndDeliveries(t *testing.T) {
	t.Parallel()
	for deliveries, fine := range map[int]bool{0: true, -1: true, 4: false, 5: true} {
		b := newBus(t)
		b.traits = func(tr *core.SubscriberTraits) { tr.AttemptsAreDeliveries = true }
		err := newConsumer(t, b, consumer.Options{}).Handle(waybill.Subscription{Queue: queue, MaxDeliveries: deliveries}, nothing)
		if (err == nil) != fine || err != nil && !strings.Contains(err.Error(), "MaxDeliveries: 4 is less than the attempts of Retry") {
			t.Errorf("%d deliveries: %v", deliveries, err)
		}
	}
}
