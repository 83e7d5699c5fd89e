package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/store/memory"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// CO-06: a failure is repeated in the process, each time in a fresh transaction, before the broker sees it; a panic
// too. A message that the handler decided about is not repeated.
func TestInProcessRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		store, err := memory.New(memory.Options{Source: "/s"})
		if err != nil {
			t.Fatal(err)
		}
		box, err := inbox.New(store, "c", inbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var runs seen[string]
		h := inbox.Handler(box, topic, func(ctx context.Context, tx *memory.Tx, v note) error {
			d, _ := waybill.DeliveryFrom(ctx)
			runs.add(fmt.Sprintf("%s.%d", d.Envelope.ID, d.Attempt))
			n := 0
			for _, r := range runs.all() {
				if strings.HasPrefix(r, d.Envelope.ID+".") {
					n++
				}
			}
			if _, dirty := tx.Get(d.Envelope.ID); dirty {
				t.Error("the transaction is not a fresh one")
			}
			tx.Put(d.Envelope.ID, "x")
			switch {
			case v.N == 1 && n == 1:
				return errBoom
			case v.N == 1 && n == 2:
				panic("oh")
			case v.N == 2:
				return waybill.Reject(errBoom)
			case v.N == 3 && n < 4:
				return errBoom
			case v.N == 4 && n == 1:
				return waybill.RetryAfter(errBoom, time.Second)
			}
			return nil
		})
		o := consumer.Options{Concurrency: 1, Retry: waybill.RetryDelays(time.Hour), InProcess: waybill.RetryDelays(100*time.Millisecond, 200*time.Millisecond)}
		stop := start(t, b, o, waybill.Subscription{}, h)
		b.publish(t, 4)
		time.Sleep(10 * time.Second)
		want := []string{"id-1.1", "id-1.1", "id-1.1", "id-2.1", "id-3.1", "id-3.1", "id-3.1", "id-4.1", "id-4.2"}
		if diff := cmp.Diff(want, runs.all()); diff != "" {
			t.Error(diff)
		}
		wantDepth(t, b, memtransport.Depth{Delayed: 1, Parked: 1})
		patience.Pass(t, time.Hour)
		stop()
		wantDepth(t, b, memtransport.Depth{Parked: 1})
	})
}

// CO-06: a policy for the process that never ends, or takes long, is refused.
func TestInProcessIsChecked(t *testing.T) {
	t.Parallel()
	for _, b := range []*waybill.Backoff{
		{Attempts: -1},
		{Attempts: 20},
		waybill.RetryDelays(time.Hour),
		{Kind: waybill.BackoffLinear, Base: time.Nanosecond, Cap: time.Hour, Attempts: math.MaxInt},
		{Kind: waybill.BackoffCustom, Custom: func(int, error) (time.Duration, bool) { return 0, true }},
	} {
		if err := (consumer.Options{InProcess: b}).Validate(); !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), "InProcess") {
			t.Errorf("%+v: %v", b, err)
		}
	}
	if err := (consumer.Options{InProcess: &waybill.Backoff{Base: 10 * time.Millisecond, Attempts: 5}}).Validate(); err != nil {
		t.Error(err)
	}
}

// A stop ends the waiting between two tries in the process: the failure is settled by policy.
func TestStopEndsInProcessRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		o := consumer.Options{InProcess: waybill.RetryDelays(time.Minute), Retry: waybill.RetryDelays(time.Hour)}
		stop := start(t, b, o, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error { return errBoom }))
		b.publish(t, 1)
		settle()
		begin := time.Now()
		stop()
		if d := time.Since(begin); d > 0 {
			t.Errorf("the stop took %s", d)
		}
		wantDepth(t, b, memtransport.Depth{Delayed: 1})
	})
}

// CO-04: a policy that panics, overflows, hangs, ends its goroutine, or asks for more than the broker can hold parks
// the message; one with the error in hand retries only chosen errors.
func TestBadPoliciesPark(t *testing.T) {
	t.Parallel()
	for name, custom := range map[string]func(int, error) (time.Duration, bool){
		"panic":     func(int, error) (time.Duration, bool) { panic("oh") },
		"negative":  func(int, error) (time.Duration, bool) { return math.MinInt64, true },
		"overflow":  func(int, error) (time.Duration, bool) { return math.MaxInt64, true },
		"too long":  func(int, error) (time.Duration, bool) { return 25 * time.Hour, true },
		"hang":      func(int, error) (time.Duration, bool) { time.Sleep(time.Hour); return 0, true },
		"goexit":    func(int, error) (time.Duration, bool) { runtime.Goexit(); return 0, true },
		"selective": func(_ int, err error) (time.Duration, bool) { return time.Second, !errors.Is(err, errBoom) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := declared(t)
				b.traits = func(tr *core.SubscriberTraits) { tr.MaxRetryDelay = 24 * time.Hour }
				policy := &waybill.Backoff{Kind: waybill.BackoffCustom, Custom: custom}
				stop := start(t, b, consumer.Options{}, waybill.Subscription{Retry: policy}, handle(func(context.Context, *waybill.Delivery) error { return errBoom }))
				b.publish(t, 1)
				patience.Pass(t, 10*time.Second)
				stop()
				want := waybill.ReasonRetryPolicy
				if name == "selective" {
					want = waybill.ReasonRejected
				}
				wantParked(t, b, want, 1)
				patience.Pass(t, 2*time.Hour)
			})
		})
	}
}

// CO-15: a message without a handler is parked by default, dropped with a warning on request, or handled by a
// catch-all.
func TestUnknownMessages(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		o     consumer.Options
		any   bool
		depth memtransport.Depth
	}{
		"park":      {depth: memtransport.Depth{Parked: 1}},
		"drop":      {o: consumer.Options{Unknown: consumer.UnknownDrop}},
		"catch all": {any: true, o: consumer.Options{Unknown: consumer.UnknownDrop}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := declared(t)
				var text sharedtest.Log
				reader := metric.NewManualReader()
				tc.o.Logger, tc.o.MeterProvider = slog.New(slog.NewTextHandler(&text, nil)), metric.NewMeterProvider(metric.WithReader(reader))
				var caught seen[string]
				hs := []waybill.Handler{handle(func(context.Context, *waybill.Delivery) error { return nil })}
				if tc.any {
					hs = append(hs, waybill.Handler{Name: waybill.AnyMessage, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
						caught.add(d.Envelope.ID)
						return 0, nil
					}})
				}
				stop := start(t, b, tc.o, waybill.Subscription{}, hs...)
				b.publish(t, 1)
				b.send(t, waybill.Envelope{ID: "x", Topic: "stranger"})
				settle()
				stop()
				wantDepth(t, b, tc.depth)
				if len(caught.all()) == 1 != tc.any {
					t.Errorf("caught %v", caught.all())
				}
				dropped := counts(t, reader)["processed{queue=q,status=dropped}"]
				if name == "drop" != (dropped == 1) || name == "drop" != strings.Contains(text.String(), "event=consumer.dropped") {
					t.Errorf("%d dropped, log %s", dropped, text.String())
				}
			})
		})
	}
}

// CO-12: Run ends when there has been nothing to do for a while, not before, and not during an outage; RunOnce counts,
// and gives up at an outage.
func TestIdleAndRunOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(160*time.Second, "three handlers of 20 s, and an outage of a minute")
		b := declared(t)
		down := atomic.Bool{}
		h := handle(func(_ context.Context, d *waybill.Delivery) error {
			if down.Load() {
				return waybill.Outage(errBoom)
			}
			time.Sleep(20 * time.Second)
			if d.Envelope.ID == "id-2" && d.Attempt == 1 {
				return errBoom
			}
			return nil
		})
		c := newConsumer(t, b, consumer.Options{
			IdleTimeout: 5 * time.Second, Retry: waybill.RetryDelays(time.Second), Pause: waybill.Backoff{Cap: 10 * time.Second},
		})
		if err := c.Handle(waybill.Subscription{Queue: queue, Concurrency: 2}, h); err != nil {
			t.Fatal(err)
		}
		b.publish(t, 3)
		begin := time.Now()
		got, err := c.RunOnce(t.Context())
		if want := (consumer.Counts{Received: 4, Processed: 3, Retried: 1}); err != nil || got != want {
			t.Errorf("counts %+v, want %+v; error %v", got, want, err)
		}
		if d := time.Since(begin); d < 46*time.Second || d > 52*time.Second {
			t.Errorf("it took %s", d)
		}
		wantDepth(t, b, memtransport.Depth{})
		if err := c.Run(t.Context()); err != nil { // nothing to do
			t.Error(err)
		}

		down.Store(true)
		b.publish(t, 1)
		begin = time.Now()
		got, err = c.RunOnce(t.Context())
		if !errors.Is(err, errBoom) || got.Released != 1 || time.Since(begin) > 5*time.Second {
			t.Errorf("at an outage: %+v, error %v after %s", got, err, time.Since(begin))
		}
		wantDepth(t, b, memtransport.Depth{Ready: 1})
		time.AfterFunc(time.Minute, func() { down.Store(false) })
		begin = time.Now()
		if err := c.Run(t.Context()); err != nil || time.Since(begin) < time.Minute {
			t.Errorf("Run ended after %s with %v, in the middle of an outage", time.Since(begin), err)
		}
		wantDepth(t, b, memtransport.Depth{})
	})
}

// CO-12: a broker that cannot be reached is not an idle one: Run waits for it, also if it is asked less often than
// IdleTimeout, and handles what is there then.
func TestIdleIsNotUnreachable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		up := time.Now().Add(8 * time.Second)
		b.receive = func() error {
			if time.Now().Before(up) {
				return waybill.Outage(errBoom)
			}
			return nil
		}
		c := newConsumer(t, b, consumer.Options{IdleTimeout: time.Second, Pause: waybill.Backoff{Base: 3 * time.Second, Cap: 3 * time.Second, Jitter: waybill.JitterNone}})
		if err := c.Handle(waybill.Subscription{Queue: queue}, nothing); err != nil {
			t.Fatal(err)
		}
		b.publish(t, 1)
		begin := time.Now()
		if err := c.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); time.Now().Before(up) {
			t.Errorf("Run ended after %s, in the middle of the outage", took)
		}
		wantDepth(t, b, memtransport.Depth{})
	})
}

// CO-12: a broker that cannot be reached ends RunOnce with its error.
func TestRunOnceWithoutBroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		b.subscribe = func(core.Subscription) error { return waybill.Outage(errBoom) }
		c := newConsumer(t, b, consumer.Options{})
		if err := c.Handle(waybill.Subscription{Queue: queue}, handle(func(context.Context, *waybill.Delivery) error { return nil })); err != nil {
			t.Fatal(err)
		}
		if _, err := c.RunOnce(t.Context()); !errors.Is(err, errBoom) {
			t.Error(err)
		}
	})
}

// CO-13: at most so many a second begin, with a burst; nonsense means no limit; a stop releases what waits.
func TestThrottle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var at seen[time.Duration]
		begin := time.Now()
		o := consumer.Options{Middleware: []waybill.Middleware{consumer.Throttle(10, 3)}, DrainTimeout: -1}
		stop := start(t, b, o, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error { at.add(time.Since(begin)); return nil }))
		b.publish(t, 8)
		patience.Pass(t, time.Minute)
		const ms = time.Millisecond
		if diff := cmp.Diff([]time.Duration{0, 0, 0, 100 * ms, 200 * ms, 300 * ms, 400 * ms, 500 * ms}, at.all()); diff != "" {
			t.Error(diff)
		}
		b.publish(t, 5)
		settle()
		stop()
		wantDepth(t, b, memtransport.Depth{Ready: 2})
		for _, rate := range []float64{0, -1, math.NaN(), math.Inf(1)} {
			h := consumer.Throttle(rate, 0)(func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
				return waybill.HandlerDuplicate, nil
			})
			for range 1000 {
				if st, err := h(t.Context(), nil); st != waybill.HandlerDuplicate || err != nil {
					t.Fatal(st, err)
				}
			}
		}
	})
}

// CO-13: Subscription.Timeout ends the context of one run of a handler. A handler that returned because of it has
// failed an attempt, with an error of any class. Each retry in the process has the whole time. A handler that was
// quick, and one that decided for good, are not concerned.
func TestSubscriptionTimeout(t *testing.T) {
	t.Parallel()
	const limit = 30 * time.Second
	untilEnd := func(ctx context.Context, _ *waybill.Delivery) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		handle func(ctx context.Context, d *waybill.Delivery) error
		sub    waybill.Subscription
		reason waybill.Reason // with which the message is parked; empty = it is done
		text   string         // of its error
		took   time.Duration
	}{
		"returns at the end": {
			handle: untilEnd, reason: waybill.ReasonAttempts, took: limit,
			text: "waybill/consumer: timeout: the handler ran longer than Subscription.Timeout, 30s: context deadline exceeded",
		},
		"takes it for an outage": {
			handle: func(ctx context.Context, d *waybill.Delivery) error { return waybill.Outage(untilEnd(ctx, d)) },
			reason: waybill.ReasonAttempts, took: limit, text: "the handler ran longer than Subscription.Timeout, 30s",
		},
		"each retry in the process": {
			handle: untilEnd, sub: waybill.Subscription{InProcess: waybill.RetryDelays(time.Second)},
			reason: waybill.ReasonAttempts, took: 2*limit + time.Second, text: "the handler ran longer than Subscription.Timeout, 30s",
		},
		"decides for good": {
			handle: func(ctx context.Context, d *waybill.Delivery) error { return waybill.Reject(untilEnd(ctx, d)) },
			reason: waybill.ReasonRejected, took: limit, text: "context deadline exceeded",
		},
		"late, but done": {handle: func(ctx context.Context, d *waybill.Delivery) error { _ = untilEnd(ctx, d); return nil }, took: limit},
		"quick":          {handle: func(context.Context, *waybill.Delivery) error { time.Sleep(limit - 1); return nil }, took: limit - 1},
		"quick failure": {
			handle: func(context.Context, *waybill.Delivery) error { time.Sleep(limit - 1); return errBoom },
			reason: waybill.ReasonAttempts, took: limit - 1, text: "boom",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := declared(t)
				begin, took := time.Now(), time.Duration(0)
				b.settle = func([]core.Ack) error { took = time.Since(begin); return nil }
				c.sub.Timeout, c.sub.Retry = limit, waybill.RetryDelays()
				stop := start(t, b, consumer.Options{}, c.sub, handle(c.handle))
				b.publish(t, 1)
				patience.Pass(t, 10*limit)
				stop()
				if took != c.took {
					t.Errorf("settled after %s, want %s", took, c.took)
				}
				if c.reason == "" {
					wantDepth(t, b, memtransport.Depth{})
					return
				}
				wantParked(t, b, c.reason, 1)
				if p := b.Parked(queue); len(p) == 1 && !strings.Contains(p[0].Err, c.text) {
					t.Errorf("parked with %q, want %q", p[0].Err, c.text)
				}
			})
		})
	}
}

// CO-13: without a Timeout a handler has a quarter of an hour, with a negative one as long as it likes.
func TestDefaultTimeout(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		timeout, took time.Duration
		again         *waybill.Backoff // in the process
	}{"unset": {0, 15 * time.Minute, nil}, "unset, with tries in the process": {0, 15 * time.Minute, waybill.RetryDelays()}, "negative": {-1, time.Hour, nil}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := declared(t)
				begin, took := time.Now(), time.Duration(0)
				b.settle = func([]core.Ack) error { took = time.Since(begin); return nil }
				stop := start(t, b, consumer.Options{}, waybill.Subscription{Timeout: c.timeout, InProcess: c.again}, handle(func(ctx context.Context, _ *waybill.Delivery) error {
					select {
					case <-ctx.Done():
					case <-time.After(time.Hour):
					}
					return nil
				}))
				b.publish(t, 1)
				patience.Pass(t, 90*time.Minute)
				stop()
				if took < c.took || took > c.took+c.took/100 {
					t.Errorf("settled after %s, want %s, or a hundredth more", took, c.took)
				}
			})
		})
	}
}

// CO-13, CO-11: a handler that a stop cut off is no timeout: its message is released.
func TestSubscriptionTimeoutIsNoStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		stop := start(t, b, consumer.Options{DrainTimeout: -1}, waybill.Subscription{Timeout: time.Minute},
			handle(func(ctx context.Context, _ *waybill.Delivery) error { <-ctx.Done(); return ctx.Err() }))
		b.publish(t, 1)
		settle()
		stop()
		wantDepth(t, b, memtransport.Depth{Ready: 1})
	})
}

// CO-13: a batch has one time limit. When that is over its messages are handled one by one, each with a limit.
func TestSubscriptionTimeoutOfABatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var at seen[time.Duration]
		begin := time.Now()
		h := handle(func(ctx context.Context, _ *waybill.Delivery) error {
			deadline, _ := ctx.Deadline()
			at.add(deadline.Sub(begin))
			time.Sleep(time.Second)
			return nil
		})
		h.Batch = func(ctx context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
			<-ctx.Done()
			return nil, waybill.Outage(ctx.Err())
		}
		b.publish(t, 3)
		stop := start(t, b, consumer.Options{Concurrency: 1}, waybill.Subscription{Timeout: 10 * time.Second}, h)
		patience.Pass(t, time.Minute)
		stop()
		want := []time.Duration{20 * time.Second, 21 * time.Second, 22 * time.Second}
		if diff := cmp.Diff(want, at.all()); diff != "" {
			t.Error(diff)
		}
		wantDepth(t, b, memtransport.Depth{})
	})
}

// TQ-05: a delivery that was lost meanwhile is logged and counted.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var text sharedtest.Log
		reader := metric.NewManualReader()
		b.settle = func([]core.Ack) error { return errLost }
		o := consumer.Options{Logger: slog.New(slog.NewTextHandler(&text, nil)), MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))}
		stop := start(t, b, o, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error { time.Sleep(time.Minute); return nil }))
		b.publish(t, 1)
		patience.Pass(t, 2*time.Minute)
		stop()
		for _, want := range []string{"event=consumer.lease_lost", "phase=settle", "step=ack", "id=id-1", "queue=q", "attempt=1", "held=1m0s", "deliveries=1"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%s is missing in %s", want, text.String())
			}
		}
		if n := counts(t, reader)["lease.lost{queue=q}"]; n != 1 {
			t.Errorf("counted %d", n)
		}
	})
}

// OP-03: the number of parked messages is read every 30 s.
func TestParkedDepth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		reader := metric.NewManualReader()
		depth := func() (n int64) {
			n = -1
			var rm metricdata.ResourceMetrics
			if err := reader.Collect(t.Context(), &rm); err != nil {
				t.Fatal(err)
			}
			for _, sm := range rm.ScopeMetrics {
				for _, m := range sm.Metrics {
					if g, ok := m.Data.(metricdata.Gauge[int64]); ok && m.Name == "waybill.consumer.parked.depth" {
						n = g.DataPoints[0].Value
					}
				}
			}
			return n
		}
		c, err := consumer.New(b.Transport, consumer.Options{Logger: quiet, MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Handle(waybill.Subscription{Queue: queue}, handle(func(context.Context, *waybill.Delivery) error { return waybill.Reject(errBoom) })); err != nil {
			t.Fatal(err)
		}
		stop := run(t, c)
		settle()
		b.publish(t, 3)
		settle()
		if n := depth(); n != 0 {
			t.Errorf("at the start: %d", n)
		}
		patience.Pass(t, 31*time.Second)
		if n := depth(); n != 3 {
			t.Errorf("after 30 s: %d", n)
		}
		stop()
	})
}

// Background functions of handlers run beside them, once a run, and end with it; a panic stops nothing else.
func TestBackground(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var events seen[string]
		h := handle(func(context.Context, *waybill.Delivery) error { return nil })
		h.Background = func(ctx context.Context) { events.add("begin"); <-ctx.Done(); events.add("end") }
		bad := waybill.Handler{Name: "bad", Handle: h.Handle, Background: func(context.Context) { panic("oh") }}
		c := newConsumer(t, b, consumer.Options{})
		if err := c.Handle(waybill.Subscription{Queue: queue}, h, bad); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			stop := run(t, c)
			b.publish(t, 1)
			settle()
			stop()
		}
		if diff := cmp.Diff([]string{"begin", "end", "begin", "end"}, events.all()); diff != "" {
			t.Error(diff)
		}
		wantDepth(t, b, memtransport.Depth{})
	})
}

// IN-05: the inbox purges while the consumer runs.
func TestConsumerPurgesInbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		store, err := memory.New(memory.Options{Source: "/s"})
		if err != nil {
			t.Fatal(err)
		}
		box, err := inbox.New(store, "c", inbox.Options{Retention: 48 * time.Hour, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		runs := atomic.Int64{}
		h := inbox.Handler(box, topic, func(context.Context, *memory.Tx, note) error { runs.Add(1); return nil })
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, h)
		b.publish(t, 1)
		patience.Pass(t, 47*time.Hour)
		b.publish(t, 1)
		settle()
		if runs.Load() != 1 {
			t.Error("forgotten before its time")
		}
		patience.Pass(t, 3*time.Hour)
		b.publish(t, 1)
		settle()
		if runs.Load() != 2 {
			t.Error("not purged")
		}
		stop()
	})
}

// nilError panics where a nil one is asked for its text.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// CO-10: an error that panics is a failure as any other.
func TestErrorThatPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		stop := start(t, b, consumer.Options{Retry: waybill.RetryDelays(time.Second)}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
			var err *nilError
			return err
		}))
		b.publish(t, 1)
		queued(t, b, memtransport.Depth{Parked: 1})
		stop()
		wantDepth(t, b, memtransport.Depth{Parked: 1})
	})
}

// RM-09: a retry that comes before its time goes on waiting, as the same attempt, and its handler does not run.
func TestRetryThatCameEarlyWaitsOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		begin := time.Now()
		due := begin.Add(time.Hour)
		b.redeliver = func(d *waybill.Delivery) { d.NotBefore = due }
		b.settle = func(acks []core.Ack) error { // as a transport that holds a message for five minutes at most
			for i := range acks {
				if acks[i].Verdict == core.VerdictRetry {
					acks[i].Delay = min(acks[i].Delay, 5*time.Minute)
				}
			}
			return nil
		}
		var ran time.Time
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
			ran = time.Now()
			return nil
		}))
		b.publish(t, 1)
		patience.Pass(t, 2*time.Hour)
		stop()
		if took := ran.Sub(begin); took < time.Hour || took > time.Hour+time.Second {
			t.Errorf("the handler ran after %s", took)
		}
	})
}
