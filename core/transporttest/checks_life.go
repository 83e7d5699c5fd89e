package transporttest

import (
	"context"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var lifeChecks = []named{
	{
		"subscribe-nonsense", ofSubscriber,
		"A subscription that makes no sense is refused, and one with all defaults works.", subscribeNonsense,
	},
	{
		"receive-ends-with-context", ofSubscriber,
		"A Receive ends with its context, and the receiver goes on.", receiveEnds,
	},
	{
		"close-returns-unsettled", ofSubscriber,
		"A closed receiver gives back what it did not settle.", closeReturnsUnsettled,
	},
	{
		"close-counts-redeliveries", ofSubscriber,
		"Redeliveries counts the deliveries before this one that had no outcome.", closeCountsRedeliveries,
	},
	{
		"close-ends-receive", ofSubscriber,
		"Close ends a blocked Receive with ErrClosed.", closeEndsReceive,
	},
	{
		"close-twice", ofSubscriber,
		"A receiver can be closed twice, and from several goroutines.", closeTwice,
	},
	{
		"transport-close", ofEither,
		"After Close everything answers ErrClosed, which costs no attempt.", transportClose,
	},
	{
		"transport-close-ends-receive", ofSubscriber,
		"Close of the transport ends a blocked Receive with ErrClosed.", transportCloseEndsReceive,
	},
	{
		"restart", ofEither,
		"Over a restart of the broker no confirmed message is lost, and both directions recover by themselves.", restart,
	},
}

func subscribeNonsense(k *kit) {
	for what, sub := range map[string]core.Subscription{
		"without a queue": {Bindings: []string{k.name()}},
		"zero":            {},
	} {
		r, err := k.subscriber.Subscribe(k.ctx, sub)
		if err == nil {
			_ = r.Close(k.ctx)
			k.fail("a subscription %s was opened", what)
		}
	}
	name := k.name()
	r := k.subscribeTo(core.Subscription{Queue: name, Bindings: []string{name}}) // all defaults
	k.publish(message(name, 0))
	k.consume(r, 1)
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	if _, err := k.subscriber.Subscribe(ctx, subscription(k.name())); err == nil {
		k.fail("a subscription was opened under a cancelled context")
	}
}

// receiveEnds cancels a Receive that has nothing to return.
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

// closeReturnsUnsettled: what was received and what was not both go to another receiver. CO-17.
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
	if settle(k.ctx, a, core.AckDone(ds[1])) == nil {
		k.fail("a delivery was settled through a closed receiver")
	}
	k.exactly(want, append(k.consume(b, 9), ds[0]))
	k.nothing(b, "all messages were done")
}

func closeCountsRedeliveries(k *kit) {
	k.needs(k.sub.CountsRedeliveries, "SubscriberTraits.CountsRedeliveries")
	r, name := k.queue("a")
	k.publish(message(name+".a", 0))
	for want := range 3 {
		d := k.receive(r, 1)[0]
		if d.Redeliveries != want {
			k.fail("Redeliveries is %d after %d deliveries without an outcome", d.Redeliveries, want)
		}
		if want == 2 {
			k.settle(r, core.AckDone(d))
			return
		}
		k.closeReceiver(r)
		r = k.subscribe(name, name+".a")
	}
}

func closeEndsReceive(k *kit) {
	r, _ := k.queue("a")
	k.endsReceive(r, func(ctx context.Context) error { return r.Close(ctx) })
}

// endsReceive calls Close while Receive is blocked.
func (k *kit) endsReceive(r core.Receiver, closing func(context.Context) error) {
	k.each(2, func(i int) error {
		ctx, cancel := context.WithTimeout(k.ctx, patience)
		defer cancel()
		if i == 1 {
			if err := pause(ctx, quiet/3); err != nil {
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
	ctx, cancel := context.WithTimeout(k.ctx, patience)
	defer cancel()
	if ds, err := r.Receive(ctx, 1); !isClosed(err) || len(ds) > 0 {
		k.fail("receive of a closed receiver returned %d deliveries and error %v; want waybill.ErrClosed", len(ds), err)
	}
}

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
			if !isClosed(err) {
				k.fail("publish after close: slot %d is %v; want waybill.ErrClosed", i, err)
			}
			if c := waybill.ClassOf(err); c != waybill.ClassOutage {
				k.fail("publish after close is of class %s, want outage, which costs no attempt", c)
			}
		}
	}
	if k.h.Subscriber == nil {
		return
	}
	if _, err := k.subscriber.Subscribe(k.ctx, subscription(name)); !isClosed(err) {
		k.fail("subscribe after close: %v; want waybill.ErrClosed", err)
	}
	k.receiveIsClosed(r)
	if settle(k.ctx, r, core.AckDone(ds[0])) == nil {
		k.fail("a delivery was settled after the transport was closed")
	}
	k.closeReceiver(r)
}

func transportCloseEndsReceive(k *kit) {
	k.needs(k.h.Close != nil, "Harness.Close")
	r, _ := k.queue("a")
	k.endsReceive(r, k.closeTransport)
}

// restart restarts the broker under a receiver that holds deliveries. Confirmed messages must come, once or twice, and
// both ends must work again by themselves.
func restart(k *kit) {
	k.needs(k.h.Restart != nil, "Harness.Restart")
	k.needs(k.pub.Confirmed, "PublisherTraits.Confirmed")
	r, name := k.queue("a")
	want := messages(name+".a", 20)
	k.publish(want[:10]...)
	held := k.receive(r, 3)
	k.must("restart the broker", k.h.Restart(k.ctx))
	ctx, cancel := context.WithTimeout(k.ctx, 3*patience)
	defer cancel()
	for _, m := range want[10:] {
		for {
			err := k.publisher.Publish(ctx, []waybill.Envelope{m}).FirstErr()
			if err == nil {
				break
			}
			if waybill.ClassOf(err) != waybill.ClassOutage || ctx.Err() != nil {
				k.fail("publish while the broker restarts: class %s, want outage: %w", waybill.ClassOf(err), err)
			}
			k.must("wait for the broker", pause(ctx, quiet))
		}
	}
	r.Settle(ctx, acks(core.AckDone, held...)) // too late, if the connection was lost: then they come again
	left := map[string]bool{}
	for i := range want {
		left[want[i].ID] = true
	}
	for _, d := range held {
		delete(left, d.Envelope.ID)
	}
	for len(left) > 0 {
		_, err := collect(ctx, r, 1, func(ds []*waybill.Delivery) error {
			for _, d := range ds {
				delete(left, d.Envelope.ID)
			}
			r.Settle(ctx, acks(core.AckDone, ds...))
			return nil
		})
		if err != nil {
			k.fail("%d of %d confirmed messages did not come after the broker's restart: %w", len(left), len(want), err)
		}
	}
}
