package dispatch

import "github.com/waybill-go/waybill/core"

// A record that was out without a result, and was put back, may have arrived. While it stays with this member, the
// member remembers that, and stores nothing. Before another member gets the record, the store must know: else it says
// of a record that is cancelled later that it was not delivered.

// unsaid reports whether only this member knows that the record may have arrived.
func (item *Item) unsaid() bool {
	_, unsaid := item.route.unsaid[item.Record.Seq]
	return unsaid
}

// leaves reports whether another member will have the item's unit.
func (d *Dispatcher) leaves(item *Item) bool {
	return d.self.stopping || item.route.leaving.Has(item.Record.Slot)
}

// say has stored what only this member knows about records in some slots.
func (d *Dispatcher) say(rt *route, slots core.Slots) {
	for _, seq := range sortedSeqs(rt.known) {
		item := rt.known[seq]
		if !item.unsaid() || item.isBusy() || !slots.Has(item.Record.Slot) {
			continue
		}
		k := item.key
		if rt.Pipelined > 1 {
			d.recall(item) // the unit may stay after all: what is ready behind the item waits for it
		}
		if item.state == itemQueued {
			rt.load.queued--
			rt.load.held++
			if k != nil {
				k.queue = without(k.queue, item)
			}
		} else {
			d.unline(item)
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
