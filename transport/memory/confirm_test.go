package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/transport/memory"
)

// TestConfirmHandled: a publish lasts until every queue's copy is settled, and fails as the handlers say.
//
// TR-06
func TestConfirmHandled(t *testing.T) {
	t.Parallel()
	sub := func(q string) core.Subscription { return core.Subscription{Queue: q, Bindings: []string{"a"}} }
	cause := errors.New("no")
	for name, c := range map[string]struct {
		first, second func(*waybill.Delivery) core.Ack
		class         waybill.Class
		reason        waybill.Reason
		ok            bool
	}{
		"both done":   {core.AckDone, core.AckDone, 0, "", true},
		"one retries": {core.AckDone, func(d *waybill.Delivery) core.Ack { return core.AckRetry(d, time.Minute, cause) }, waybill.ClassRejected, "", false},
		"one rejects": {
			func(d *waybill.Delivery) core.Ack { return core.AckReject(d, waybill.ReasonNoHandler, cause) }, core.AckDone, waybill.ClassPermanent, waybill.ReasonNoHandler, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t)
				bus, err := memory.New(memory.Options{ConfirmHandled: true})
				if err != nil {
					t.Fatal(err)
				}
				ctx := t.Context()
				results := make(chan core.Results, 1)
				receivers := []core.Receiver{mustSubscribe(t, bus, sub("one")), mustSubscribe(t, bus, sub("two"))}
				go func() { results <- bus.Publish(ctx, []waybill.Envelope{{ID: "1", Topic: "a"}}) }()
				for i, ack := range []func(*waybill.Delivery) core.Ack{c.first, c.second} {
					ds, err := receivers[i].Receive(ctx, 1)
					if err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					if len(results) > 0 {
						t.Fatal("confirmed before both copies were settled")
					}
					if err := receivers[i].Settle(ctx, []core.Ack{ack(ds[0])}).FirstErr(); err != nil {
						t.Fatal(err)
					}
				}
				err = (<-results).FirstErr()
				if (err == nil) != c.ok || waybill.ClassOf(err) != c.class || waybill.ReasonOf(err) != c.reason {
					t.Errorf("published with %v, class %s", err, waybill.ClassOf(err))
				}
				if d := bus.Depth("one"); d != (memory.Depth{}) {
					t.Errorf("the queue still holds %+v", d)
				}
			})
		})
	}
}

// TestConfirmHandledGivesUp: when the publisher stops waiting, its undelivered messages are cancelled; when the
// transport closes, the publisher learns it.
func TestConfirmHandledGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		bus, err := memory.New(memory.Options{ConfirmHandled: true})
		if err != nil {
			t.Fatal(err)
		}
		in := mustSubscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := bus.Publish(ctx, []waybill.Envelope{{ID: "1", Topic: "a"}}).FirstErr(); waybill.ClassOf(err) != waybill.ClassOutage {
			t.Errorf("timed out with %v, want an outage", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if ds, err := in.Receive(ctx, 1); err == nil {
			t.Errorf("received %d cancelled messages", len(ds))
		}
		results := make(chan core.Results, 1)
		go func() { results <- bus.Publish(t.Context(), []waybill.Envelope{{ID: "2", Topic: "a"}}) }()
		synctest.Wait()
		if err := bus.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := (<-results).FirstErr(); !errors.Is(err, waybill.ErrClosed) {
			t.Errorf("closed with %v", err)
		}
	})
}

func mustSubscribe(t *testing.T, bus *memory.Transport, sub core.Subscription) core.Receiver {
	t.Helper()
	in, err := bus.Subscribe(t.Context(), sub)
	if err != nil {
		t.Fatal(err)
	}
	return in
}
