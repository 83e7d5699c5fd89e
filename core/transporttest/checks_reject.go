package transporttest

import (
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sleep"
)

var rejectChecks = []named{
	{"reject-parks", ofSubscriber, rejectParks},
	{"reject-after-retry", ofSubscriber, rejectAfterRetry},
	{"reject-unparked", ofSubscriber, rejectUnparked},
	{"broker-parks", ofSubscriber, brokerParks},
}

// A rejected message is parked with its reason and error, and does not come again.
func rejectParks(k *kit) {
	r, name := k.queue("a")
	want := full(name + ".a")
	k.publish(want, message(name+".a", 1))
	for _, d := range k.receive(r, 2) {
		if d.Envelope.ID == want.ID {
			k.settle(r, core.AckReject(d, waybill.ReasonUndecodable, errors.New("cannot read größe")))
			continue
		}
		k.settle(r, core.AckDone(d))
	}
	k.nothing(r, "a rejected message does not come again")
	k.parked(name, want, waybill.ReasonUndecodable, "cannot read größe")
}

// A retried message is parked as it was published, with the last reason and error.
func rejectAfterRetry(k *kit) {
	r, name := k.queue("a")
	want := full(name + ".a")
	k.publish(want)
	k.settle(r, core.AckRetry(k.receive(r, 1)[0], tier1, errors.New("first")))
	k.settle(r, core.AckReject(k.receive(r, 1)[0], waybill.ReasonAttempts, errors.New("second")))
	k.nothing(r, "a rejected message does not come again")
	k.parked(name, want, waybill.ReasonAttempts, "second")
}

// parked checks that want, and nothing else, is parked, if that can be seen.
func (k *kit) parked(queue string, want waybill.Envelope, reason waybill.Reason, text string) {
	k.needs(k.sub.Parks, "SubscriberTraits.Parks")
	k.needs(k.h.Parked != nil, "Harness.Parked")
	got := k.awaitParked(queue)
	k.failIf(len(got) != 1, "%d messages are parked, want 1", len(got))
	k.same(want, got[0].Envelope, "parked")
	k.failIf(got[0].Reason != reason || got[0].Err != text, "parked with reason %q and error %q, want %q and %q", got[0].Reason, got[0].Err, reason, text)
}

// awaitParked lists until there is something: a broker may move a message some time after the settle.
func (k *kit) awaitParked(queue string) []Parked {
	ctx, cancel := k.within()
	defer cancel()
	for {
		got, err := k.h.Parked(ctx, queue)
		if err != nil && ctx.Err() == nil {
			k.must("list the parked messages", err)
		}
		if len(got) > 0 || sleep.For(ctx, 50*time.Millisecond) != nil {
			return got
		}
	}
}

// comesOrIsParked waits for a delivery of r, or for parked messages of its queue.
func (k *kit) comesOrIsParked(r core.Receiver, queue string) ([]*waybill.Delivery, []Parked) {
	ctx, cancel := k.within()
	defer cancel()
	for {
		ds, err := receiveBriefly(ctx, r, 1, quiet)
		k.must("receive", err)
		if len(ds) > 0 {
			return ds, nil
		}
		got, err := k.h.Parked(ctx, queue)
		if err != nil && ctx.Err() == nil {
			k.must("list the parked messages", err)
		}
		if len(got) > 0 || ctx.Err() != nil {
			return nil, got
		}
	}
}

// With DropFailed, a rejected message is dropped and not parked.
func rejectUnparked(k *kit) {
	name := k.name()
	sub := subscription(name, name+".a")
	sub.DropFailed = true
	r := k.subscribeTo(sub)
	k.publish(messages(name+".a", 2)...)
	ds := k.receive(r, 2)
	k.settle(r, core.AckReject(ds[0], waybill.ReasonRejected, errors.New("no")), core.AckDone(ds[1]))
	k.nothing(r, "a rejected message does not come again")
	if k.h.Parked != nil {
		got, err := k.h.Parked(k.ctx, name)
		k.must("list the parked messages", err)
		k.failIf(len(got) > 0, "%d messages are parked for a subscription that does not park", len(got))
	}
}

// The broker parks what it delivered more often than MaxDeliveries by its own count, and loses nothing.
//
// The check receives a message again and again without settling it, as a handler that ends its process.
func brokerParks(k *kit) {
	const maxRounds = 200
	k.needs(k.sub.BrokerParks && k.sub.Parks, "SubscriberTraits.BrokerParks")
	k.needs(k.h.Parked != nil, "Harness.Parked")
	q, operators := core.As[admin.ParkedQueue](k.h.Subscriber)
	name := k.name()
	sub := subscription(name, name+".a")
	sub.MaxDeliveries = 3
	r := k.subscribeTo(sub)
	want := full(name + ".a")
	k.publish(want)
	for n := range maxRounds {
		ds, got := k.comesOrIsParked(r, name)
		if len(ds) == 0 {
			switch {
			case len(got) != 1 || got[0].Envelope.ID != want.ID:
				k.fail("after %d deliveries the message neither comes nor is parked", n)
			case n <= sub.MaxDeliveries:
				k.fail("the broker parked after %d deliveries, MaxDeliveries is %d: the consumer has to be first", n, sub.MaxDeliveries)
			case got[0].Reason != waybill.ReasonDeliveries && got[0].Reason != waybill.ReasonNone:
				k.fail("the broker parked with the reason %q, want %q", got[0].Reason, waybill.ReasonDeliveries)
			}
			if operators { // it knows what the broker has changed
				k.depth(name, 1)
				p, err := guardedParked{q, k}.InspectParked(k.ctx, name, admin.ParkedFilter{})
				k.must("inspect what the broker parked", err)
				k.same(want, p.Envelope, "parked by the broker")
			}
			return
		}
		k.same(want, ds[0].Envelope, fmt.Sprintf("delivery %d", n+1))
		k.closeReceiver(r)
		r = k.subscribeTo(sub)
	}
	k.fail("the broker delivered a message %d times, MaxDeliveries is %d", maxRounds, sub.MaxDeliveries)
}
