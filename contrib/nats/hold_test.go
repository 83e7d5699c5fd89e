package nats_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/core"
)

const briefHold = 2 * time.Second

// What was fetched and waits for Receive is renewed.
func TestFetchedIsRenewed(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	bus := dial(t, s.url(), nats.Options{HoldFor: briefHold})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if ds, err := r.Receive(ctx, 1); err == nil {
		t.Fatalf("%d deliveries came", len(ds))
	}
	publish(t, bus, "a")
	wait(t.Context(), 4*briefHold) // without a renewal it is delivered again
	d := receive(t, r)
	if d.Redeliveries != 0 {
		t.Errorf("%d redeliveries", d.Redeliveries)
	}
	done(t, r, d)
}

// A receiver does not settle what it has held for too long: it is another's, or comes again.
func TestHeldForTooLong(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	bus := dial(t, s.url(), nats.Options{HoldFor: briefHold})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, "a")
	stale(t, r, receive(t, r))
}

// What came again is another delivery, although the receiver's own clock says that the first one is still held.
func TestComesAgainWhileHeld(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	bus := dial(t, s.url(), nats.Options{HoldFor: time.Hour})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, "a")
	first := receive(t, r)
	if err := client(t, s).Conn().Publish(nats.ReplyOf(first), []byte("-NAK")); err != nil {
		t.Fatal(err)
	}
	stale(t, r, first)
}

// stale fails unless first comes again, and is nobody's then.
func stale(t *testing.T, r core.Receiver, first *waybill.Delivery) {
	t.Helper()
	again := receive(t, r)
	if again.Redeliveries != 1 {
		t.Errorf("%d redeliveries, want 1", again.Redeliveries)
	}
	renewer, _ := core.As[core.DeliveryRenewer](r)
	for what, err := range map[string]error{
		"settle": r.Settle(t.Context(), []core.Ack{core.AckRetry(first, 0, nil)}).FirstErr(),
		"renew":  renewer.RenewDeliveries(t.Context(), []*waybill.Delivery{first}, briefHold).FirstErr(),
	} {
		if !errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("%s what was held for too long: %v", what, err)
		}
	}
	done(t, r, again)
}
