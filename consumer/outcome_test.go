package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// CO-04: the default policy's delays, each held exactly; then parked.
func TestRetriesByDefaultPolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		if err := b.Declare("other", "#"); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		var at seen[string]
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
			at.add(fmt.Sprintf("attempt %d at %s", d.Attempt, time.Since(begin)))
			return errBoom
		}))
		b.publish(t, 1)
		patience.Pass(t, time.Hour)
		stop()
		want := []string{"attempt 1 at 0s", "attempt 2 at 1s", "attempt 3 at 11s", "attempt 4 at 1m11s", "attempt 5 at 6m11s"}
		if diff := cmp.Diff(want, at.all()); diff != "" {
			t.Error(diff)
		}
		wantParked(t, b, waybill.ReasonAttempts, 1)
		if p := b.Parked(queue); p[0].Err != "boom" || p[0].Attempt != 5 {
			t.Errorf("parked with %q after attempt %d", p[0].Err, p[0].Attempt)
		}
		// CO-17: a retry goes to the failing queue only
		if got := b.Depth("other"); got.Ready != 1 || got.Delayed != 0 {
			t.Errorf("the other queue holds %+v", got)
		}
	})
}

// CO-04, CO-05, CO-07: each result of a handler settles the message in its way.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	custom := func(f func(int, error) (time.Duration, bool)) *waybill.Backoff {
		return &waybill.Backoff{Kind: waybill.BackoffCustom, Custom: f}
	}
	tests := []struct {
		name   string
		retry  *waybill.Backoff
		longer time.Duration // the transport's bound on delays
		handle func() error
		reason waybill.Reason // parked with it, or
		delay  time.Duration  // retried after it
		text   string
	}{
		{name: "failure", handle: func() error { return errBoom }, delay: time.Second, text: "boom"},
		{name: "rejected", handle: func() error { return waybill.Reject(errBoom) }, reason: waybill.ReasonRejected, text: "boom"},
		{name: "rejected and wrapped", handle: func() error { return fmt.Errorf("here: %w", waybill.Reject(errBoom)) }, reason: waybill.ReasonRejected, text: "here: boom"},
		{name: "permanent", handle: func() error { return &waybill.Error{Class: waybill.ClassPermanent, Reason: waybill.ReasonTooLarge} }, reason: waybill.ReasonTooLarge},
		{name: "retry after", handle: func() error { return waybill.RetryAfter(errBoom, 7*time.Second) }, delay: 7 * time.Second, text: "boom"},
		{name: "retry after no time", handle: func() error { return waybill.RetryAfter(errBoom, 0) }, delay: time.Millisecond, text: "boom"},
		{name: "retry after with attempts spent", retry: waybill.RetryDelays(), handle: func() error { return waybill.RetryAfter(errBoom, time.Second) }, reason: waybill.ReasonAttempts},
		{name: "retry after more than can be held", longer: 10 * time.Minute, handle: func() error { return waybill.RetryAfter(errBoom, time.Hour) }, delay: 10 * time.Minute},
		{name: "empty policy", retry: waybill.RetryDelays(), handle: func() error { return errBoom }, reason: waybill.ReasonAttempts},
		{name: "panic", handle: func() error { panic("oh") }, delay: time.Second, text: "the handler panicked: oh"},
		{name: "panic with an error", handle: func() error { panic(waybill.Reject(errBoom)) }, delay: time.Second, text: "boom"},
		{name: "goexit", handle: func() error { runtime.Goexit(); return nil }, delay: time.Second},
		{
			name: "policy panics", retry: custom(func(int, error) (time.Duration, bool) { panic("oh") }),
			handle: func() error { return errBoom }, reason: waybill.ReasonRetryPolicy, text: "boom",
		},
		{
			name: "policy answers nonsense", retry: custom(func(int, error) (time.Duration, bool) { return -1, true }),
			handle: func() error { return errBoom }, reason: waybill.ReasonRetryPolicy, text: "boom",
		},
		{
			name: "policy asks for too much", longer: 10 * time.Minute, retry: custom(func(int, error) (time.Duration, bool) { return time.Hour, true }),
			handle: func() error { return errBoom }, reason: waybill.ReasonRetryPolicy, text: "boom",
		},
		{
			name: "policy sees the error and declines", retry: custom(func(_ int, err error) (time.Duration, bool) { return 0, !errors.Is(err, errBoom) }),
			handle: func() error { return errBoom }, reason: waybill.ReasonRejected, text: "boom",
		},
		{
			name: "policy sees the error and goes on", retry: custom(func(n int, _ error) (time.Duration, bool) { return time.Duration(n) * 3 * time.Second, true }),
			handle: func() error { return errBoom }, delay: 3 * time.Second,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := declared(t)
				b.traits = func(tr *core.SubscriberTraits) { tr.MaxRetryDelay = tt.longer }
				stop := start(t, b, consumer.Options{}, waybill.Subscription{Retry: tt.retry}, handle(func(_ context.Context, d *waybill.Delivery) error {
					if d.Envelope.ID == "id-2" {
						return nil
					}
					return tt.handle()
				}))
				b.publish(t, 2)
				settle()
				got := b.verdicts()
				if tt.reason != "" {
					wantParked(t, b, tt.reason, 1)
				} else {
					wantDepth(t, b, memtransport.Depth{Delayed: 1})
				}
				stop()
				if got[core.VerdictDone] != 1 || got[core.VerdictRetry]+got[core.VerdictReject] != 1 {
					t.Errorf("verdicts: %v", got)
				}
				i := slices.IndexFunc(b.acks, func(a core.Ack) bool { return a.Verdict != core.VerdictDone })
				if a := b.acks[i]; a.Delay != tt.delay || !strings.Contains(a.Err, tt.text) {
					t.Errorf("settled with delay %s and error %q, want %s and %q", a.Delay, a.Err, tt.delay, tt.text)
				}
			})
		})
	}
}

// CO-07, CO-08, CO-15: unusable messages do not reach a handler.
func TestParkedWithoutHandler(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*waybill.Delivery)
		sub    waybill.Subscription
		reason waybill.Reason
	}{
		{"body cannot be decoded", func(d *waybill.Delivery) { d.Envelope.Body = []byte("{") }, waybill.Subscription{}, waybill.ReasonUndecodable},
		{"marked by the transport", func(d *waybill.Delivery) {
			d.Err = &waybill.Error{Class: waybill.ClassPermanent, Reason: waybill.ReasonIDConflict, Err: errBoom}
		}, waybill.Subscription{}, waybill.ReasonIDConflict},
		{"marked without a reason", func(d *waybill.Delivery) { d.Err = errBoom }, waybill.Subscription{}, waybill.ReasonUndecodable},
		{"expired", func(d *waybill.Delivery) { d.Envelope.Expires = time.Now() }, waybill.Subscription{}, waybill.ReasonExpired},
		{"no handler", func(d *waybill.Delivery) { d.Envelope.Topic, d.Envelope.Type = "other", "another" }, waybill.Subscription{}, waybill.ReasonNoHandler},
		{"deliveries", func(d *waybill.Delivery) { d.Redeliveries = 20 }, waybill.Subscription{}, waybill.ReasonDeliveries},
		{"deliveries, own bound", func(d *waybill.Delivery) { d.Redeliveries = 3 }, waybill.Subscription{MaxDeliveries: 3}, waybill.ReasonDeliveries},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := declared(t)
				b.redeliver = tt.change
				stop := start(t, b, consumer.Options{}, tt.sub, waybill.HandlerFor(topic, func(context.Context, note) error {
					t.Error("the handler ran")
					return nil
				}))
				b.publish(t, 1)
				settle()
				stop()
				wantParked(t, b, tt.reason, 1)
				if strings.Contains(b.Parked(queue)[0].Err, `{"N":1}`) {
					t.Error("the error holds the payload")
				}
			})
		})
	}
}

// CO-08: below the bound, with the bound off, or with an unknown count, the handler runs.
func TestDeliveriesBelowTheBound(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ redeliveries, limit int }{{19, 0}, {1000, -1}, {-1, 1}, {0, 1}, {10, 0}} {
		synctest.Test(t, func(t *testing.T) {
			b := declared(t)
			b.redeliver = func(d *waybill.Delivery) { d.Redeliveries = tt.redeliveries }
			stop := start(t, b, consumer.Options{}, waybill.Subscription{MaxDeliveries: tt.limit}, handle(func(context.Context, *waybill.Delivery) error { return nil }))
			b.publish(t, 3)
			settle()
			stop()
			if n := b.verdicts()[core.VerdictDone]; n != 3 {
				t.Errorf("redeliveries %d, bound %d: %d handled, want 3", tt.redeliveries, tt.limit, n)
			}
		})
	}
}
