package transporttest

import (
	"context"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sleep"
)

var lifeChecks = []named{
	{"subscribe-nonsense", ofSubscriber, subscribeNonsense},
	{"subscription-ends-with-context", ofSubscriber, subscriptionEnds},
	{"receive-ends-with-context", ofSubscriber, receiveEnds},
	{"close-returns-unsettled", ofSubscriber, closeReturnsUnsettled},
	{"close-counts-redeliveries", ofSubscriber, closeCountsRedeliveries},
	{"close-ends-receive", ofSubscriber, closeEndsReceive},
	{"close-twice", ofSubscriber, closeTwice},
	{"transport-close", ofEither, transportClose},
	{"transport-close-ends-receive", ofSubscriber, transportCloseEndsReceive},
}

// A subscription that makes no sense is refused, and one with all defaults works.
func subscribeNonsense(k *kit) {
	for _, sub := range []core.Subscription{{Bindings: []string{k.name()}}, {}} {
		_, err := k.subscriber.Subscribe(k.ctx, sub)
		k.failIf(!errors.Is(err, waybill.ErrInvalid), "subscribe without a queue: %w; want waybill.ErrInvalid", err)
	}
	name := k.name()
	r := k.subscribeTo(core.Subscription{Queue: name, Bindings: []string{name}}) // all defaults
	k.publish(message(name, 0))
	k.consume(r, 1)
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	_, err := k.subscriber.Subscribe(ctx, subscription(k.name()))
	k.failIf(err == nil, "a subscription was opened under a cancelled context")
}

// The end of a subscription's context ends its receiver, which gives back what it held.
//
// The check ends the context in which a receiver lives, instead of closing it.
func subscriptionEnds(k *kit) {
	name := k.name()
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	r, err := k.subscriber.Subscribe(ctx, subscription(name, name+".a"))
	k.must("subscribe", err)
	m := message(name+".a", 0)
	k.publish(m)
	k.receive(r, 1)
	k.endsReceive(r, func(context.Context) error { cancel(); return nil })
	k.exactly([]waybill.Envelope{m}, k.consume(k.subscribe(name, name+".a"), 1))
}

// A Receive ends with its context, and the receiver goes on.
//
// The check cancels a Receive that has nothing to return.
func receiveEnds(k *kit) {
	r, name := k.queue("a")
	k.nothing(r, "nothing was published")
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	if ds, err := r.Receive(ctx, 1); err == nil || len(ds) > 0 {
		k.fail("receive under a cancelled context returned %d deliveries and error %v", len(ds), err)
	} else if isClosed(err) {
		k.fail("receive under a cancelled context says that the receiver is closed: %w", err)
	}
	m := message(name+".a", 0)
	k.publish(m)
	k.exactly([]waybill.Envelope{m}, k.consume(r, 1))
}

// A closed receiver gives back what it did not settle.
//
// The deliveries that were received, and the messages that were not, go to another receiver. CO-17.
func closeReturnsUnsettled(k *kit) {
	name := k.name()
	sub := subscription(name, name+".a")
	sub.Concurrency, sub.Prefetch = 10, 10
	a := k.subscribeTo(sub)
	want := messages(name+".a", 10)
	k.publish(want...)
	ds := k.receive(a, 4)
	k.settle(a, core.AckDone(ds[0]))
	b := k.subscribeTo(sub)
	k.closeReceiver(a)
	k.failIf(settle(k.ctx, a, core.AckDone(ds[1])) == nil, "a delivery was settled through a closed receiver")
	k.exactly(want, append(k.consume(b, 9), ds[0]))
	k.nothing(b, "all messages were done")
}

// Redeliveries counts the deliveries before this one that had no outcome.
func closeCountsRedeliveries(k *kit) {
	k.needs(k.sub.CountsRedeliveries, "SubscriberTraits.CountsRedeliveries")
	r, name := k.queue("a")
	k.publish(message(name+".a", 0))
	for want := range 3 {
		d := k.receive(r, 1)[0]
		k.failIf(d.Redeliveries != want, "Redeliveries is %d after %d deliveries without an outcome", d.Redeliveries, want)
		if want == 2 {
			k.settle(r, core.AckDone(d))
			return
		}
		k.closeReceiver(r)
		r = k.subscribe(name, name+".a")
	}
}

// Close ends a blocked Receive with ErrClosed.
func closeEndsReceive(k *kit) {
	r, _ := k.queue("a")
	k.endsReceive(r, func(ctx context.Context) error { return r.Close(ctx) })
}

// endsReceive calls Close while Receive is blocked.
func (k *kit) endsReceive(r core.Receiver, closing func(context.Context) error) {
	k.each(2, func(i int) error {
		ctx, cancel := k.within()
		defer cancel()
		if i == 1 {
			if err := sleep.For(ctx, quiet/3); err != nil {
				return err
			}
			return closing(ctx)
		}
		if ds, err := r.Receive(ctx, 1); !isClosed(err) || len(ds) > 0 {
			return fmt.Errorf("receive, blocked when the receiver was closed, returned %d deliveries and %q; want waybill.ErrClosed", len(ds), fmt.Sprint(err))
		}
		return nil
	})
	k.receiveIsClosed(r)
}

func (k *kit) receiveIsClosed(r core.Receiver) {
	ctx, cancel := k.within()
	defer cancel()
	ds, err := r.Receive(ctx, 1)
	k.failIf(!isClosed(err) || len(ds) > 0, "receive of a closed receiver returned %d deliveries and error %v; want waybill.ErrClosed", len(ds), err)
}

// A receiver can be closed twice, and from several goroutines.
func closeTwice(k *kit) {
	r, _ := k.queue("a")
	k.closeReceiver(r)
	k.closeReceiver(r)
	k.receiveIsClosed(r)
	r, _ = k.queue("a")
	k.each(4, func(int) error { return r.Close(k.ctx) })
}

// closeTransport closes the transport under test, or skips the check.
func (k *kit) closeTransport(ctx context.Context) error {
	k.needs(k.h.Close != nil, "Harness.Close")
	return call(ctx, k, "close transport", func() error { return k.h.Close(ctx) })
}

// After Close everything answers ErrClosed, which costs no attempt.
func transportClose(k *kit) {
	k.needs(k.h.Close != nil, "Harness.Close")
	r, name := k.queue("a")
	k.publish(message(name+".a", 0))
	ds := k.receive(r, 1)
	for range 2 {
		k.must("close transport", k.closeTransport(k.ctx))
	}
	if k.h.Publisher != nil {
		for i, err := range k.send(messages(name+".a", k.batch(3))) {
			k.failIf(!isClosed(err), "publish after close: slot %d is %v; want waybill.ErrClosed", i, err)
			c := waybill.ClassOf(err)
			k.failIf(c != waybill.ClassOutage, "publish after close is of class %s, want outage, which costs no attempt", c)
		}
	}
	if k.h.Subscriber == nil {
		return
	}
	_, err := k.subscriber.Subscribe(k.ctx, subscription(name))
	k.failIf(!isClosed(err), "subscribe after close: %v; want waybill.ErrClosed", err)
	k.receiveIsClosed(r)
	k.failIf(settle(k.ctx, r, core.AckDone(ds[0])) == nil, "a delivery was settled after the transport was closed")
	k.closeReceiver(r)
}

// Close of the transport ends a blocked Receive with ErrClosed.
func transportCloseEndsReceive(k *kit) {
	k.needs(k.h.Close != nil, "Harness.Close")
	r, _ := k.queue("a")
	k.endsReceive(r, k.closeTransport)
}
