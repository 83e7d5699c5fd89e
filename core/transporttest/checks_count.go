package transporttest

import (
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// The rules of counting: attempts, redeliveries, and the parts of a message that every delivery keeps.
var countChecks = []named{
	{"release-costs-nothing", ofSubscriber, releaseCostsNothing},
	{"retry-is-no-redelivery", ofSubscriber, retryIsNoRedelivery},
	{"stops-in-order", ofSubscriber, stopsInOrder},
	{"one-count", ofSubscriber, oneCount},
	{"redelivery-keeps-properties", ofSubscriber, redeliveryKeepsProperties},
	{"unreadable", ofSubscriber, unreadable},
}

// counts gives up unless d has these counts. Redeliveries need not be known.
func (k *kit) counts(d *waybill.Delivery, attempt, redeliveries int, after string) {
	k.failIf(d.Attempt != attempt, "%s: Attempt is %d, want %d", after, d.Attempt, attempt)
	k.failIf(d.Redeliveries > redeliveries || k.sub.CountsRedeliveries && d.Redeliveries != redeliveries,
		"%s: Redeliveries is %d, want %d", after, d.Redeliveries, redeliveries)
}

// twoCounts skips the check for brokers with one count.
func (k *kit) twoCounts() {
	k.needs(!k.sub.AttemptsAreDeliveries, "an Attempt apart from deliveries (SubscriberTraits.AttemptsAreDeliveries)")
}

// A release raises neither Attempt nor Redeliveries, however often.
//
// The check releases as often as a consumer does in an outage of the handler's database, which releases at each probe.
func releaseCostsNothing(k *kit) {
	k.twoCounts()
	r, name := k.queue("a")
	k.publish(message(name+".a", 0))
	for i := range 25 { // more than MaxDeliveries
		d := k.receive(r, 1)[0]
		k.counts(d, 1, k.once(i, d), fmt.Sprintf("released %d times", i))
		k.settle(r, core.AckRelease(d))
	}
	k.settle(r, core.AckRetry(k.receive(r, 1)[0], tier1, nil))
	for i := range 3 {
		d := k.receive(r, 1)[0]
		k.counts(d, 2, k.once(i, d), fmt.Sprintf("retried, and released %d times", i))
		k.settle(r, core.AckRelease(d))
	}
	k.consume(r, 1)
}

// once returns the redeliveries that d may have after n releases: none, or one by Harness.ReleasesCountOnce.
func (k *kit) once(n int, d *waybill.Delivery) int {
	if k.h.ReleasesCountOnce && n > 0 && d.Redeliveries == 1 {
		return 1
	}
	return 0
}

// A retry raises Attempt, and not Redeliveries.
func retryIsNoRedelivery(k *kit) {
	k.twoCounts()
	r, name := k.queue("a")
	k.publish(message(name+".a", 0))
	for i := range 4 {
		d := k.receive(r, 1)[0]
		k.counts(d, i+1, 0, fmt.Sprintf("retried %d times", i))
		k.settle(r, core.AckRetry(d, 0, errors.New("once more")))
	}
	k.consume(r, 1)
}

// A message that an ordered receiver gives back at its end, as in a long outage with many restarts, does not reach
// MaxDeliveries.
//
// The check stops as often as a service that is restarted again and again while a dependency is down.
func stopsInOrder(k *kit) {
	k.twoCounts()
	k.needs(k.sub.SingleActive, "SubscriberTraits.SingleActive")
	name := k.name()
	sub := subscription(name, name+".a")
	sub.InOrder, sub.MaxDeliveries = true, 3
	for n := range 2 * sub.MaxDeliveries {
		r := k.subscribeTo(sub)
		if n == 0 {
			k.publish(message(name+".a", 0))
		}
		d := k.receive(r, 1)[0]
		k.failIf(d.Redeliveries >= sub.MaxDeliveries,
			"Redeliveries is %d after %d stops, and MaxDeliveries %d: the consumer parks it", d.Redeliveries, n, sub.MaxDeliveries)
		k.settle(r, core.AckRelease(d))
		k.closeReceiver(r)
	}
	k.consume(k.subscribeTo(sub), 1)
}

// With AttemptsAreDeliveries, Attempt is the number of the delivery, and Redeliveries one less.
func oneCount(k *kit) {
	k.needs(k.sub.AttemptsAreDeliveries, "SubscriberTraits.AttemptsAreDeliveries")
	r, name := k.queue("a")
	k.publish(message(name+".a", 0))
	for n := 1; n <= 5; n++ {
		d := k.receive(r, 1)[0]
		k.failIf(d.Attempt != n || d.Redeliveries != n-1,
			"delivery %d: Attempt is %d and Redeliveries %d, want %d and %d", n, d.Attempt, d.Redeliveries, n, n-1)
		switch n {
		case 1, 4:
			k.settle(r, core.AckRelease(d))
		case 2:
			k.settle(r, core.AckRetry(d, tier1, nil))
		case 3:
			k.closeReceiver(r)
			r = k.subscribe(name, name+".a")
		default:
			k.settle(r, core.AckDone(d))
		}
	}
}

// A release and a redelivery after a close come with every property.
//
// CO-14.
func redeliveryKeepsProperties(k *kit) {
	r, name := k.queue("a")
	want := full(name + ".a")
	k.publish(want)
	get := func(after string) *waybill.Delivery {
		d := k.receive(r, 1)[0]
		k.same(want, d.Envelope, after)
		return d
	}
	k.settle(r, core.AckRelease(get("at first")))
	k.settle(r, core.AckRelease(get("released")))
	get("released twice")
	k.closeReceiver(r)
	r = k.subscribe(name, name+".a")
	k.settle(r, core.AckRetry(get("after its receiver was closed"), tier1, errors.New("once more")))
	k.settle(r, core.AckRelease(get("retried")))
	get("retried and released")
	k.closeReceiver(r)
	r = k.subscribe(name, name+".a")
	k.settle(r, core.AckDone(get("retried, after its receiver was closed")))
}

// A message that cannot be read is delivered with Err, can be rejected, and stops nothing.
func unreadable(k *kit) {
	k.needs(k.h.Unreadable != nil, "Harness.Unreadable")
	r, name := k.queue("a")
	k.must("put a message that cannot be read into the queue", k.h.Unreadable(k.ctx, name))
	d := k.receive(r, 1)[0]
	k.failIf(d.Err == nil, "a message that cannot be read was delivered without Delivery.Err")
	k.settle(r, core.AckReject(d, waybill.ReasonUndecodable, d.Err))
	m := message(name+".a", 0)
	k.publish(m)
	d = k.consume(r, 1)[0]
	k.failIf(d.Err != nil, "the message after one that cannot be read has Delivery.Err: %w", d.Err)
	k.same(m, d.Envelope, "after one that cannot be read")
	k.nothing(r, "both were settled")
}
