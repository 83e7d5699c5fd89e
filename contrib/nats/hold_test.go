package nats_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/tier"
)

var briefHold = sync.OnceValue(func() time.Duration { return patience.For(2 * time.Second) })

// A fetched message that waits for Receive is renewed. Its stay depends on the speed of the machine: nightly.
func TestFetchedIsRenewed(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	bus := dial(t, s.url(), nats.Options{HoldFor: briefHold()})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	renewals := make(chan *natsgo.Msg, 1000)
	if _, err := client(t, s).Conn().ChanSubscribe("$JS.ACK.waybill.q.>", renewals); err != nil {
		t.Fatal(err)
	}
	abandon(t, s, r)
	publish(t, bus, "a")
	for range 3 {
		select {
		case m := <-renewals:
			if string(m.Data) != "+WPI" {
				t.Fatalf("the server is told %q", m.Data)
			}
		case <-time.After(patience.For(patience.Limit)):
			t.Fatal("it is not renewed")
		}
	}
	if tier.IsNightly() {
		wait(t.Context(), 4*briefHold()) // without a renewal it is delivered again
	}
	d := receive(t, r)
	if tier.IsNightly() && d.Redeliveries != 0 {
		t.Errorf("%d redeliveries", d.Redeliveries)
	}
	done(t, r, d)
}

// A receiver does not settle what it has held for too long: it is another's, or comes again.
func TestHeldForTooLong(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	bus := dial(t, s.url(), nats.Options{HoldFor: briefHold()})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, "a")
	stale(t, r, receive(t, r))
}

// A message that came again is another delivery, although the receiver's own clock says that the first one is still
// held.
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

// stale fails unless first comes again, and cannot be settled then.
func stale(t *testing.T, r core.Receiver, first *waybill.Delivery) {
	t.Helper()
	again := receive(t, r)
	if again.Redeliveries != 1 {
		t.Errorf("%d redeliveries, want 1", again.Redeliveries)
	}
	renewer, _ := core.As[core.DeliveryRenewer](r)
	for what, err := range map[string]error{
		"settle": r.Settle(t.Context(), []core.Ack{core.AckRetry(first, 0, nil)}).FirstErr(),
		"renew":  renewer.RenewDeliveries(t.Context(), []*waybill.Delivery{first}, briefHold()).FirstErr(),
	} {
		if !errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("%s what was held for too long: %v", what, err)
		}
	}
	done(t, r, again)
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
