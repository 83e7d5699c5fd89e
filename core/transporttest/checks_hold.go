package transporttest

import (
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// How long a delivery is a receiver's.
var holdChecks = []named{
	{
		"hold-renewed", ofSubscriber,
		"A delivery that is renewed every third of HoldFor stays its receiver's for longer than HoldFor.", holdRenewed,
	},
	{
		"hold-ends", ofSubscriber,
		"A delivery that is not renewed is another receiver's after HoldFor, and its first receiver cannot take it away.", holdEnds,
	},
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

// holdRenewed holds twice HoldFor, as a slow handler does, while another receiver waits.
func holdRenewed(k *kit) {
	r, other, d := k.hold()
	renewer, ok := core.As[core.DeliveryRenewer](r)
	k.needs(ok, "core.DeliveryRenewer of the receiver")
	for start := time.Now(); time.Since(start) < 2*k.sub.HoldFor; {
		ds, err := receiveBriefly(k.ctx, other, 1, k.sub.HoldFor/3)
		k.must("receive", err)
		if len(ds) > 0 {
			k.fail("another receiver got the delivery, which was renewed every third of %s", k.sub.HoldFor)
		}
		res := results(k.ctx, k, "renew", 1, func() core.Results {
			return renewer.RenewDeliveries(k.ctx, []*waybill.Delivery{d}, k.sub.HoldFor)
		})
		k.must("renew", res.FirstErr())
	}
	k.settle(r, core.AckDone(d))
	k.nothing(other, "the message was done")
	k.nothing(r, "the message was done")
}

// holdEnds holds for too long.
func holdEnds(k *kit) {
	r, other, d := k.hold()
	ctx, _, cancel := k.patient(k.sub.HoldFor)
	defer cancel()
	ds, err := collect(ctx, other, 1, func([]*waybill.Delivery) error { return nil })
	k.must("receive what another receiver has held for too long", err)
	if ds[0].Envelope.ID != d.Envelope.ID {
		k.fail("message %s came, want %s", ds[0].Envelope.ID, d.Envelope.ID)
	}
	if k.sub.CountsRedeliveries && ds[0].Redeliveries != 1 {
		k.fail("Redeliveries is %d after the first delivery was held for too long, want 1", ds[0].Redeliveries)
	}
	late := settle(k.ctx, r, core.AckDone(d))
	if late != nil && !errors.Is(late, waybill.ErrLeaseLost) {
		k.fail("a settle after HoldFor: %w; want waybill.ErrLeaseLost, or a success where the broker does not check who settles", late)
	}
	if err := settle(k.ctx, other, core.AckDone(ds[0])); err != nil && (late != nil || !errors.Is(err, waybill.ErrLeaseLost)) {
		k.fail("the receiver that has the delivery now could not settle it: %w", err)
	}
	k.nothing(r, "the message was done")
	k.nothing(other, "the message was done")
}
