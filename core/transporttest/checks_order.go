package transporttest

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sleep"
)

var orderChecks = []named{
	{"single-active-receiver", ofSubscriber, singleActive},
	{"release-before-the-next", ofSubscriber, releaseBeforeNext},
	{"release-keeps-order", ofSubscriber, releaseKeepsOrder},
}

// oneKey publishes n messages of one key, one at a time, so that the queue's order is known.
func (k *kit) oneKey(topic string, n int) []waybill.Envelope {
	batch := messages(topic, n)
	for i := range batch {
		batch[i].Key = "one"
		k.publish(batch[i])
	}
	return batch
}

// receiveAll asks all receivers at the same time until nothing came for a moment, each for at most limit.
func (k *kit) receiveAll(limit int, rs ...core.Receiver) [][]*waybill.Delivery {
	ctx, cancel := k.within()
	defer cancel()
	got := make([][]*waybill.Delivery, len(rs))
	var some atomic.Bool
	k.each(len(rs), func(i int) error {
		for len(got[i]) < limit && ctx.Err() == nil {
			ds, err := receiveBriefly(ctx, rs[i], limit-len(got[i]), quiet)
			if err != nil {
				return err
			}
			got[i] = append(got[i], ds...)
			if len(ds) > 0 {
				some.Store(true)
			} else if some.Load() {
				break
			}
		}
		return nil
	})
	return got
}

// active is share for receivers of which one gets the deliveries: it returns that one, and want[:n], in order.
func (k *kit) active(what string, limit int, want []waybill.Envelope, rs ...core.Receiver) (core.Receiver, []*waybill.Delivery) {
	var r core.Receiver
	var ds []*waybill.Delivery
	all := k.receiveAll(limit, rs...)
	for i, other := range rs {
		k.failIf(len(all[i]) > 0 && len(ds) > 0, "%s: two receivers have deliveries of one key at the same time: %s, and %s", what, ids(ds), ids(all[i]))
		if len(all[i]) > 0 {
			r, ds = other, all[i]
		}
	}
	k.failIf(len(ds) == 0, "%s: no receiver got a delivery within %s", what, stands)
	for i, d := range ds {
		k.failIf(d.Envelope.ID != want[i].ID, "%s: %s came at place %d, want %s (all: %s)", what, d.Envelope.ID, i+1, want[i].ID, ids(ds))
	}
	return r, ds
}

// With InOrder one receiver at a time gets the deliveries of a key, in queue order, and goes on with the oldest after
// a release or an end.
//
// The check opens three receivers of a queue that keeps the order up to the handler. Each may hold fewer deliveries
// than there are, one at least. OR-09.
func singleActive(k *kit) {
	k.needs(k.sub.SingleActive, "SubscriberTraits.SingleActive")
	const limit = 4
	name := k.name()
	sub := subscription(name, name+".a")
	sub.InOrder, sub.Concurrency, sub.Prefetch = true, limit, limit
	rs := []core.Receiver{k.subscribeTo(sub), k.subscribeTo(sub), k.subscribeTo(sub)}
	batch := k.oneKey(name+".a", 3*limit)
	r, ds := k.active("at first", limit, batch, rs...)
	k.settle(r, acks(core.AckRelease, ds...)...)
	r, ds = k.active("after a release of all", limit, batch, rs...)
	k.settle(r, core.AckDone(ds[0]))
	k.settle(r, acks(core.AckRelease, ds[1:]...)...)
	r, _ = k.active("after one was done and the others were released", limit, batch[1:], rs...)
	k.closeReceiver(r)
	rs = slices.DeleteFunc(rs, func(other core.Receiver) bool { return other == r })
	for left := batch[1:]; len(left) > 0; left = left[len(ds):] {
		r, ds = k.active("the receiver that took over", limit, left, rs...)
		k.settle(r, acks(core.AckDone, ds...)...)
	}
	for _, r := range rs {
		k.nothing(r, "all messages were done")
	}
}

// With InOrder a released delivery comes before the next of its key.
//
// The check releases while the next of the key waits beside it.
func releaseBeforeNext(k *kit) {
	k.needs(k.sub.SingleActive, "SubscriberTraits.SingleActive")
	name := k.name()
	sub := subscription(name, name+".a")
	sub.InOrder = true
	r := k.subscribeTo(sub)
	batch := k.oneKey(name+".a", 3)
	for i, want := range batch {
		for n := range 3 {
			d := k.receive(r, 1)[0]
			k.failIf(d.Envelope.ID != want.ID, "message %d was released %d times, and then %s came", i, n, d.Envelope.ID)
			if n == 2 {
				k.settle(r, core.AckDone(d))
				break
			}
			_ = sleep.For(k.ctx, 20*time.Millisecond) // the next one may be on its way
			k.settle(r, core.AckRelease(d))
		}
	}
}

// Deliveries of one key that are released in one call keep their order.
func releaseKeepsOrder(k *kit) {
	k.needs(k.sub.KeyOrder, "SubscriberTraits.KeyOrder")
	r, name := k.queue("a")
	batch := k.oneKey(name+".a", 5)
	ds := k.receiveAll(len(batch), r)[0]
	k.failIf(len(ds) == 0, "no message came within %s", stands)
	k.settle(r, acks(core.AckRelease, ds...)...)
	for i := range ds {
		d := k.receive(r, 1)[0]
		k.failIf(d.Envelope.ID != ds[i].Envelope.ID,
			"%d deliveries were released in one call: %s came at place %d, want %s", len(ds), d.Envelope.ID, i+1, ds[i].Envelope.ID)
		k.settle(r, core.AckDone(d))
	}
}
