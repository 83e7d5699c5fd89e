package dispatch

import (
	"maps"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// An item leaves memory in one of three ways. finish: its outcome is stored, and no read must bring it again. remove:
// it goes back behind a number from which it is read again, or a caller has taken note of it. drop: its partition has
// another owner. Each way undoes all counts of the item: in its route (load), in its key (busy), in its crash window,
// and among those that are out. A place that stays counted would be lost for as long as the process lives.

// finish takes an item out of memory for good. The answers of a Read and a Due that are under way may show the record
// as it was before; recent makes them skip it.
func (d *Dispatcher) finish(item *Item) {
	if d.calls.busy(CallRead) {
		item.route.recent.read[item.Record.Seq] = true
	}
	if d.calls.busy(CallDue) {
		item.route.recent.due[item.Record.Seq] = item.Record.Version
	}
	d.remove(item)
}

// remove takes an item in any state out of memory. Its key stays, since others may wait there. An item in the key queue
// takes no place in the window and was never busy. An item that settles is not busy any more: Conclude has ended that.
func (d *Dispatcher) remove(item *Item) {
	rt := item.route
	if rt.known[item.Record.Seq] != item {
		return
	}
	rt.discard(item)
	if item.state == itemQueued {
		rt.load.queued--
		if item.key != nil {
			item.key.queue = without(item.key.queue, item)
		}
		return
	}
	d.dequeue(item)
	if item.state == itemOut {
		d.work.out--
	}
	rt.letGo(item)
	if item.key != nil && item.state != itemSettling {
		item.key.busy--
	}
}

// dequeue takes an item out of the lists of items that wait to be handed out, and out of its crash window.
func (d *Dispatcher) dequeue(item *Item) {
	rt := item.route
	switch item.state {
	case itemSuspect:
		rt.suspects.waiting = without(rt.suspects.waiting, item)
	case itemWanting:
		rt.wants = without(rt.wants, item)
	case itemReady:
		rt.ready = without(rt.ready, item)
	case itemQueued, itemOut, itemSettling:
	}
	rt.suspects.crashWindow = without(rt.suspects.crashWindow, item)
}

// drop forgets slots that the member has lost. Items that are out stay out: with a hold they can still be settled. The
// other items, their keys, the groups and the notes about records go, since the next owner reads all of that from the
// store.
func (d *Dispatcher) drop(rt *route, slots core.Slots) {
	rt.releasing &^= slots
	for u := range rt.partitions {
		if u.Slots()&slots != 0 {
			delete(rt.partitions, u)
			d.releases.releasedAt[u] = d.now
		}
	}
	for _, g := range rt.groups {
		g.slots &^= slots
	}
	rt.groups = slices.DeleteFunc(rt.groups, func(g *group) bool { return g.slots == 0 })
	for _, seq := range sortedSeqs(rt.known) {
		if item := rt.known[seq]; slots.Has(item.Record.Slot) && !item.isBusy() {
			item.lost = true
			d.remove(item)
		}
	}
	rt.dropKeys(slots)
	maps.DeleteFunc(rt.unreported, func(_ int64, slot uint8) bool { return slots.Has(slot) })
	for _, seq := range sortedSeqs(rt.revisits.bySeq) {
		if v := rt.revisits.bySeq[seq]; slots.Has(v.slot) {
			if v.decision != nil { // it belongs to the next owner
				d.notices.forget(v.decision)
			}
			rt.revisits.remove(seq)
		}
	}
	for s := range uint8(core.NumSlots) {
		if slots.Has(s) {
			rt.uncertainUpTo[s] = 0
		}
	}
}
