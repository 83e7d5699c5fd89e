package consumer_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// ahead is a bus that sends messages ahead, until it is told that there is a pause.
type ahead struct {
	*bus
	early atomic.Int32 // releases while it sends
	up    time.Time    // the end of the outage
	flood atomic.Int32 // times it was told to send more than one to those that are held, before that
}

func (a *ahead) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	r, err := a.bus.Subscribe(ctx, sub)
	return &aheadReceiver{Receiver: r, a: a}, err
}

type aheadReceiver struct {
	core.Receiver
	a      *ahead
	silent atomic.Bool
	held   atomic.Int32
}

func (r *aheadReceiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	ds, err := r.Receiver.Receive(ctx, limit)
	r.held.Add(int32(len(ds)))
	return ds, err
}

func (r *aheadReceiver) Pause(context.Context) error {
	travel(10 * time.Millisecond)
	r.silent.Store(true)
	return nil
}

func (r *aheadReceiver) Resume(_ context.Context, n int) error {
	if n != 1+int(r.held.Load()) && time.Now().Before(r.a.up) {
		r.a.flood.Add(1)
	}
	r.silent.Store(false)
	return nil
}

func (r *aheadReceiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	if !r.silent.Load() && slices.ContainsFunc(acks, func(a core.Ack) bool { return a.Verdict == core.VerdictRelease }) {
		r.a.early.Add(1)
	}
	r.held.Add(-int32(len(acks)))
	return r.Receiver.Settle(ctx, acks)
}

// CO-05, CO-19: a pause releases messages only after the broker has been told of the pause. Else the broker sends them
// here at once, and can count a delivery that no handler sees. While a message probes, the broker sends no other one
// ahead.
func TestReleasedAfterThePauseIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		up := time.Now().Add(time.Minute)
		a := &ahead{bus: declared(t), up: up}
		var calls, handled atomic.Int32
		o := consumer.Options{Prefetch: 10, Pause: waybill.Backoff{Jitter: waybill.JitterNone}}
		stop := start(t, a, o, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
			if calls.Add(1); time.Now().Before(up) {
				return waybill.Outage(errBoom)
			}
			handled.Add(1)
			return nil
		}))
		a.publish(t, 30)
		patience.Pass(t, 5*time.Minute)
		stop()
		if n := a.early.Load(); n > 0 || calls.Load() < 35 {
			t.Errorf("released %d times before the broker knew of the pause, in %d calls", n, calls.Load())
		}
		if n := a.flood.Load(); n > 0 {
			t.Errorf("during the outage the broker was told %d times to send all ahead", n)
		}
		if n := handled.Load(); n != 30 {
			t.Errorf("%d handled after the outage, want 30", n)
		}
	})
}
