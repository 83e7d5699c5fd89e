package dispatch

import "slices"

// finish takes an item out of memory for good: what a call under way says of it is old.
func (d *Dispatcher) finish(item *Item) {
	if d.calls.busy(callRead) {
		item.route.recent.read[item.Record.Seq] = true
	}
	if d.calls.busy(callDue) {
		item.route.recent.due[item.Record.Seq] = true
	}
	d.remove(item)
}

// remove takes an item out of memory, whatever its state is. Its key stays.
func (d *Dispatcher) remove(item *Item) {
	rt := item.route
	if rt.known[item.Record.Seq] != item {
		return
	}
	rt.unkeep(item)
	if item.state == itemQueued {
		rt.load.queued--
		if item.key != nil {
			item.key.queue = without(item.key.queue, item)
		}
		return
	}
	d.unline(item)
	if item.state == itemOut {
		d.work.out--
	}
	rt.load.held--
	if item.key != nil && item.state != itemSettling {
		item.key.busy--
	}
}

// unline takes an item out of the line in which it waits to be handed out, and out of the window.
func (d *Dispatcher) unline(item *Item) {
	rt := item.route
	switch item.state {
	case itemSuspect:
		d.holds.suspects = without(d.holds.suspects, item)
	case itemWanting:
		rt.wants = without(rt.wants, item)
	case itemReady:
		rt.ready = without(rt.ready, item)
	case itemQueued, itemOut, itemSettling:
	}
	d.holds.window = without(d.holds.window, item)
}

// without returns items without one of them, in place.
func without(items []*Item, item *Item) []*Item {
	return slices.DeleteFunc(items, func(o *Item) bool { return o == item })
}
