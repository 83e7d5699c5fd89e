package dispatch

import (
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// HandOut gives ready records to the caller, and Conclude takes their outcomes. Between them a record is out: a promise
// in memory, of which the store learns only where others must see it; see hold.go. A record that comes back unpublished
// goes before the later ones of its key. So these are taken back first, if they are ready: with several records of a
// key on their way (Pipelined) a later one could pass.

// HandOut hands out up to limit records of a route, in the order in which they were found. The order of each key was
// decided before: advance (key.go) alone makes items ready. HandOut hands out nothing after StartBy: by then the others
// may have taken this member for dead. An item that may not go now stops those behind it, since it was there first.
// Three kinds of items are exceptions:
//
//   - An item that must be alone, or that meets one that is, waits. So does a queue's item whose partition may be
//     released right now: the release would end its hold.
//   - An item of a partition that is being released is skipped, with all others of its key, queues apart: it goes
//     with the partition, or is handed out if that stays.
//   - An item whose topic was paused since it became ready is taken back.
func (d *Dispatcher) HandOut(now time.Time, route string, limit int) (items []*Item) {
	d.tick(now)
	rt := d.byName[route]
	if rt == nil || len(rt.ready) == 0 || !d.self.joined || d.self.stopping || !d.starts() {
		return nil
	}
	blocked := d.handOutBlocked()
	for at := 0; len(items) < limit && at < len(rt.ready); {
		item := rt.ready[at]
		if !d.mayGo(item, blocked) || rt.Queue && d.releases.covers(rt, item.Record.Slot) {
			break
		}
		if rt.isReleasing(item.Record.Slot) && !rt.Queue {
			at++
			continue
		}
		if at == 0 {
			rt.ready[0] = nil
			rt.ready = rt.ready[1:]
		} else {
			rt.ready = slices.Delete(rt.ready, at, at+1)
		}
		if item.topicPaused() {
			d.takeBack(item)
			continue
		}
		item.state, item.at = itemOut, now
		d.work.handedAt = now
		d.work.out++
		items = append(items, item)
	}
	return items
}

// mayGo reports whether an item may be handed out now. An item that goes alone waits until nothing is out. The others
// wait for it.
func (d *Dispatcher) mayGo(item *Item, blocked bool) bool {
	if item.alone {
		return d.work.out == 0
	}
	return !blocked
}

// handOutBlocked reports whether an item goes alone, or waits to.
func (d *Dispatcher) handOutBlocked() bool {
	for _, rt := range d.routes {
		if slices.ContainsFunc(rt.suspects.crashWindow, (*Item).exclusive) {
			return true
		}
	}
	return false
}

// takeBack takes a ready item out of line whose topic was paused meanwhile, and passes its record: it is read again
// when the topic opens.
func (d *Dispatcher) takeBack(item *Item) {
	rt, topic := item.route, item.Record.Envelope.Topic
	if rt.Pipelined > 1 {
		d.recall(item)
	}
	item.state = itemSettling // it is not in rt.ready any more
	rt.discard(item)
	rt.load.inWindow--
	if item.key == nil {
		rt.topics.pass(topic, item.Record.Seq, item.ends)
		return
	}
	k := item.key
	k.busy--
	k.pause(topic, item.ends)
	k.passFrom(item.Record.Seq)
	d.passQueue(k)
	d.advance(k)
}

// sortedNames returns the keys of m, in order.
func sortedNames[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Conclude gives the outcome o of an item that was handed out: o is an outcome of its Record. A caller that has several
// records of a key concludes the last of them first. The steps:
//
//  1. An item of an earlier session is ignored: tellLost has reported it.
//  2. If it was not published, ready items of its key go back behind it.
//  3. An unknown result stays with the record until it is stored, also through a later release.
//  4. A decision of an operator replaces an outcome that is not terminal.
//  5. A released item that the store knows nothing about is ready again, without a write, if it stays with this member.
//  6. Any other outcome goes to the settles. Unless the record was published or has expired, it blocks the key until it
//     is stored: the record may come back, and a later one of the key would overtake it.
func (d *Dispatcher) Conclude(now time.Time, item *Item, o core.Outcome) {
	d.tick(now)
	if item.state != itemOut || item.session != d.session {
		return // its session has ended
	}
	if item.route.Pipelined > 1 && o.Event() != core.EventConfirmed {
		d.recall(item)
	}
	d.work.out--
	if item.key != nil {
		item.key.busy--
	}
	if o.Unknown() {
		item.route.unreported[item.Record.Seq] = item.Record.Slot
	}
	if item.unknown = item.unknown || o.Unknown(); item.unknown {
		o = o.WithUnknown()
	}
	o = item.overrule(o)
	if o.Event() == core.EventReleased && !item.held && (!item.unreported() || !d.changesOwner(item)) {
		d.putBack(item)
		return
	}
	item.state, item.outcome = itemSettling, o
	d.settles.add(item)
	k := item.key
	if k == nil {
		return
	}
	switch {
	// the record is gone for good: the key goes on before the store knows
	case o.Event() == core.EventConfirmed:
	// the record stays the head: those behind it leave memory
	case o.State() != core.StateAbandoned || item.route.Blocks && o.Reason().Blocks():
		k.unstored = append(k.unstored, item)
		d.passQueue(k)
	// Other records behind it go as soon as the end is stored. An expired one need not wait: if its end gets lost,
	// the record is read again, and found to be expired again.
	case o.Reason() != waybill.ReasonExpired:
		k.unstored = append(k.unstored, item)
	}
	d.advance(k)
}

// putBack makes an item ready again, before all others. It was out, and the store knows nothing about it, so it keeps
// its place in the order: the front does not bring it again. If its topic is paused, or its partition has another
// owner, it leaves memory.
func (d *Dispatcher) putBack(item *Item) {
	rt := item.route
	item.tries = 0
	rt.suspects.crashWindow = without(rt.suspects.crashWindow, item)
	item.Suspect, item.alone = false, false
	rt.letGo(item)
	if k := item.key; k != nil {
		item.state = itemQueued
		k.insert(item)
		d.advance(k)
		return
	}
	topic := item.Record.Envelope.Topic
	if item.isLost() || rt.topics.paused[topic] && !rt.isPast(item.ends) {
		item.state = itemSettling
		rt.load.inWindow++
		d.finish(item)
		if !item.isLost() { // else the owner of its partition reads it
			rt.topics.pass(topic, item.Record.Seq, item.ends)
		}
		return
	}
	d.enqueue(item)
	// from the end to the front
	if last := len(rt.ready) - 1; item.state == itemReady && rt.Order != waybill.OrderBestEffortHLC {
		copy(rt.ready[1:], rt.ready[:last])
		rt.ready[0] = item
	}
}

// recall takes back ready items that stand behind the item in its key, so that they are handed out after it.
func (d *Dispatcher) recall(item *Item) {
	k, rt := item.key, item.route
	if k == nil {
		return
	}
	for seq, o := range rt.known {
		if o.key != k || o == item || seq < item.Record.Seq || o.state == itemQueued || o.isBusy() {
			continue
		}
		d.dequeue(o)
		o.state, o.Suspect, o.alone = itemQueued, false, false
		rt.load.inWindow--
		k.busy--
		k.insert(o)
	}
}
