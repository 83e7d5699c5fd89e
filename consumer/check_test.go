package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/internal/patience"
)

// TestHandlersAreChecked: the checks of handlers run before the first message, and a misconfiguration ends Run and
// touches no message. One that comes up later is an outage: the message goes back and waits.
//
// TR-09 CO-05
func TestHandlersAreChecked(t *testing.T) {
	t.Parallel()
	for name, atStart := range map[string]bool{"at start": true, "later": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				bus := newBus(t)
				if err := bus.Declare("q", "a"); err != nil {
					t.Fatal(err)
				}
				if err := bus.Publish(t.Context(), []waybill.Envelope{{ID: "1", Topic: "a"}}).FirstErr(); err != nil {
					t.Fatal(err)
				}
				missing := &waybill.Error{Op: "inbox", Class: waybill.ClassOutage, Err: waybill.ErrMisconfigured}
				handled := make(chan struct{})
				broken := true
				h := waybill.Handler{Name: "a", Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
					if broken {
						broken = false
						return 0, missing
					}
					close(handled)
					return 0, nil
				}}
				if atStart {
					h.Check = func(context.Context) error { return missing }
				}
				c, err := consumer.New(bus, consumer.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Handle(waybill.Subscription{Queue: "q"}, h); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan error, 1)
				go func() { ended <- c.Run(ctx) }()
				if atStart {
					if err := <-ended; !errors.Is(err, waybill.ErrMisconfigured) {
						t.Errorf("Run ended with %v", err)
					}
				} else {
					<-handled // after the pause
					cancel()
					if err := <-ended; err != nil {
						t.Error(err)
					}
				}
				if d := bus.Depth("q"); d.Parked != 0 || atStart && d.Ready != 1 {
					t.Errorf("the queue holds %+v", d)
				}
			})
		})
	}
}

// CO-19: while what handlers need is down, their checks probe, and no message does.
func TestChecksProbeBeforeMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var down atomic.Bool
		var checks, runs atomic.Int32
		away := func() error {
			if down.Load() {
				return waybill.Outage(errors.New("the database is down"))
			}
			return nil
		}
		h := waybill.Handler{
			Name:  waybill.AnyMessage,
			Check: func(context.Context) error { checks.Add(1); return away() },
			Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
				runs.Add(1)
				return 0, away()
			},
		}
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, h)
		time.Sleep(time.Second)
		down.Store(true)
		b.publish(t, 5)
		patience.Pass(t, time.Hour)
		if n, asked := runs.Load(), checks.Load(); n > 5 || asked < 60 {
			t.Errorf("%d runs and %d checks in an hour", n, asked)
		}
		if n := b.Depth(queue).Ready; n != 5 {
			t.Errorf("%d messages in the queue", n)
		}
		down.Store(false)
		patience.Pass(t, time.Minute)
		if d := b.Depth(queue); d.Ready+d.Held+d.Parked != 0 {
			t.Errorf("the queue holds %+v", d)
		}
		stop()
	})
}
