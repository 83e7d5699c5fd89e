package dispatch

import "github.com/waybill-go/waybill/core"

// A record that was out without a result, and was put back, may have arrived. While it stays with this member, the
// member remembers that, and stores nothing. Before another member gets the record, the store must know: else it says
// of a record that is cancelled later that it was not delivered.

// unreported reports whether only this member knows that the record may have arrived.
func (item *Item) unreported() bool {
	_, unreported := item.route.unreported[item.Record.Seq]
	return unreported
}

// changesOwner reports whether another member will have the item's partition.
func (d *Dispatcher) changesOwner(item *Item) bool {
	return d.self.stopping || item.route.releasing.Has(item.Record.Slot)
}

// reportUncertain has stored that records in some slots may have arrived, as far as only this member knows. Each of
// them leaves the list in which it waits, as if it had been out, and is released by a settle. Its key waits for that.
func (d *Dispatcher) reportUncertain(rt *route, slots core.Slots) {
	for _, seq := range sortedSeqs(rt.known) {
		item := rt.known[seq]
		if !item.unreported() || item.isBusy() || !slots.Has(item.Record.Slot) {
			continue
		}
		k := item.key
		if rt.Pipelined > 1 {
			d.recall(item) // the partition may stay after all: what is ready behind the item waits for it
		}
		if item.state == itemQueued {
			rt.load.queued--
			rt.load.inWindow++
			if k != nil {
				k.queue = without(k.queue, item)
			}
		} else {
			d.dequeue(item)
			if k != nil {
				k.busy--
			}
		}
		item.Suspect, item.alone = false, false
		item.state, item.outcome = itemSettling, core.Release(&item.Record, 0, true)
		d.settles.add(item)
		if k != nil {
			k.unstored = append(k.unstored, item)
		}
	}
}
