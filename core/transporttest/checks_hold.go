package transporttest

import (
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// How long a delivery is a receiver's.
var holdChecks = []named{
	{"hold-renewed", ofSubscriber, holdRenewed},
	{"hold-ends", ofSubscriber, holdEnds},
}

// maxHold is the longest HoldFor that the suite waits for.
const maxHold = 15 * time.Second

// hold opens two receivers of a queue with one message, and returns the one that has it first.
func (k *kit) hold() (r, other core.Receiver, d *waybill.Delivery) {
	k.needs(k.sub.HoldFor > 0, "SubscriberTraits.HoldFor")
	k.needs(k.sub.HoldFor <= maxHold, "SubscriberTraits.HoldFor of at most "+maxHold.String()+": let the harness set a short one")
	name := k.name()
	a, b := k.subscribe(name, name+".a"), k.subscribe(name, name+".a")
	k.publish(message(name+".a", 0))
	if r, d = k.either(a, b); r == a {
		return r, b, d
	}
	return r, a, d
}

// starts is how often a check of HoldFor begins anew when the machine was too slow for it.
const starts = 20

// inTime calls fn, which says whether the machine was fast enough, until it was.
func (k *kit) inTime(fn func() bool) {
	for range starts {
		if fn() {
			return
		}
	}
	k.needs(false, "a machine that is fast enough for SubscriberTraits.HoldFor: let the harness set a longer one")
}

// A delivery that is renewed every third of HoldFor stays its receiver's for longer than HoldFor.
//
// The check holds twice HoldFor, as a slow handler does, while another receiver waits.
func holdRenewed(k *kit) {
	k.inTime(func() bool {
		begun := time.Now()
		r, other, d := k.hold()
		renewer, ok := core.As[core.DeliveryRenewer](r)
		k.needs(ok, "core.DeliveryRenewer of the receiver")
		late := func() bool { return time.Since(begun) > k.sub.HoldFor*9/10 } // since the last renewal began
		for start := time.Now(); time.Since(start) < 2*k.sub.HoldFor; {
			ds, err := receiveBriefly(k.ctx, other, 1, k.sub.HoldFor/3)
			switch {
			case late():
				return false
			case len(ds) > 0:
				k.fail("another receiver got the delivery, which was renewed every third of %s", k.sub.HoldFor)
			}
			k.must("receive", err)
			next := time.Now()
			res := results(k.ctx, k, "renew", 1, func() core.Results {
				return renewer.RenewDeliveries(k.ctx, []*waybill.Delivery{d}, k.sub.HoldFor)
			})
			if late() {
				return false
			}
			k.must("renew", res.FirstErr())
			begun = next
		}
		err := settle(k.ctx, r, core.AckDone(d))
		if late() {
			return false
		}
		k.must("settle", err)
		k.nothing(other, "the message was done")
		k.nothing(r, "the message was done")
		return true
	})
}

// A delivery that is not renewed is another receiver's after HoldFor, and its first receiver cannot take it away.
//
// The check holds for too long.
func holdEnds(k *kit) {
	k.inTime(func() bool {
		r, other, d := k.hold()
		ctx, _, cancel := k.patient(k.sub.HoldFor)
		defer cancel()
		var begun time.Time
		ds, err := collect(ctx, other, 1, func([]*waybill.Delivery) error { begun = time.Now(); return nil })
		k.must("receive what another receiver has held for too long", err)
		k.failIf(ds[0].Envelope.ID != d.Envelope.ID, "message %s came, want %s", ds[0].Envelope.ID, d.Envelope.ID)
		if k.sub.CountsRedeliveries && ds[0].Redeliveries != 1 {
			k.fail("Redeliveries is %d after the first delivery was held for too long, want 1", ds[0].Redeliveries)
		}
		late := settle(k.ctx, r, core.AckDone(d))
		k.failIf(late != nil && !errors.Is(late, waybill.ErrLeaseLost),
			"a settle after HoldFor: %w; want waybill.ErrLeaseLost, or a success where the broker does not check who settles", late)
		err = settle(k.ctx, other, core.AckDone(ds[0]))
		if time.Since(begun) > k.sub.HoldFor/2 {
			return false
		}
		k.failIf(err != nil && (late != nil || !errors.Is(err, waybill.ErrLeaseLost)),
			"the receiver that has the delivery now could not settle it: %w", err)
		k.nothing(r, "the message was done")
		k.nothing(other, "the message was done")
		return true
	})
}
