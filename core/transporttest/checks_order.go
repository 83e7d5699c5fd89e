package transporttest

import (
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var orderChecks = []named{{
	"single-active-receiver", ofSubscriber,
	"With InOrder one receiver at a time gets the deliveries, in queue order, and the next one goes on where it ended.", singleActive,
}}

// singleActive opens two receivers of a queue that keeps the order up to the handler: one gets everything, in order,
// what it gives back first again, and the other one takes over when it closes. OR-09.
func singleActive(k *kit) {
	k.needs(k.sub.SingleActive, "single active receivers")
	name := k.name()
	sub := subscription(name, name+".a")
	sub.InOrder = true
	first := k.subscribeTo(sub)
	second := k.subscribeTo(sub)
	batch := messages(name+".a", 6)
	for i := range batch {
		batch[i].Key = "one"
	}
	for i := range batch { // one at a time, so that the queue's order is known
		k.publish(batch[i])
	}
	inOrder := func(what string, ds []*waybill.Delivery, from int) {
		for i, d := range ds {
			if d.Envelope.ID != batch[from+i].ID {
				k.fail("%s: %s came at place %d, want %s", what, d.Envelope.ID, i+1, batch[from+i].ID)
			}
		}
	}
	ds := k.receive(first, 6)
	inOrder("the first receiver", ds, 0)
	k.nothing(second, "another receiver is active")
	k.settle(first, core.AckDone(ds[0]), core.AckDone(ds[1]))
	k.settle(first, core.AckRelease(ds[2]), core.AckRelease(ds[3]), core.AckRelease(ds[4]), core.AckRelease(ds[5]))
	ds = k.receive(first, 4)
	inOrder("after giving back", ds, 2)
	k.nothing(second, "a released delivery belongs to the active receiver")
	k.settle(first, core.AckDone(ds[0]))
	k.closeReceiver(first)
	ds = k.receive(second, 3)
	inOrder(fmt.Sprintf("the receiver that took over from %s on", batch[3].ID), ds, 3)
	for _, d := range ds {
		k.settle(second, core.AckDone(d))
	}
	k.nothing(second, "all messages were done")
}
