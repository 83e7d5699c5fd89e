package dispatch

import (
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Ready returns how many records of a route wait to be handed out.
func (d *Dispatcher) Ready(route string) int {
	if rt := d.byName[route]; rt != nil {
		return len(rt.ready)
	}
	return 0
}

// Out returns how many records are handed out and not concluded.
func (d *Dispatcher) Out() int { return d.out }

// Hand hands out up to limit records of a route, in the order in which they were found. It hands out nothing after
// StartBy.
func (d *Dispatcher) Hand(now time.Time, route string, limit int) (items []*Item) {
	d.tick(now)
	rt := d.byName[route]
	if rt == nil || !d.joined || d.stopping || !d.starts() {
		return nil
	}
	for at := 0; len(items) < limit && at < len(rt.ready); {
		it := rt.ready[at]
		if !d.mayGo(it) || rt.Queue && d.givesUp(rt, it.Record.Slot) {
			break
		}
		if rt.isLeaving(it.Record.Slot) && !rt.Queue { // goes with its unit, or when that stays
			at++
			continue
		}
		if at == 0 {
			rt.ready[0] = nil
			rt.ready = rt.ready[1:]
		} else {
			rt.ready = slices.Delete(rt.ready, at, at+1)
		}
		if rt.topics[it.Record.Envelope.Topic] && !it.held {
			d.takeBack(it)
			continue
		}
		it.state, it.at = itemOut, now
		d.worked = now
		d.out++
		items = append(items, it)
	}
	return items
}

// mayGo reports whether it may be handed out beside what is out: a record that is alone goes alone.
func (d *Dispatcher) mayGo(it *Item) bool {
	if it.alone {
		return d.out == 0
	}
	return !slices.ContainsFunc(d.window, (*Item).bars)
}

// takeBack puts an item that was ready, and is not to go now, where it can be found again.
func (d *Dispatcher) takeBack(it *Item) {
	rt, topic := it.route, it.Record.Envelope.Topic
	if rt.Pipelined > 1 {
		d.recall(it)
	}
	it.state = itemSettling // not in rt.ready any more
	delete(rt.known, it.Record.Seq)
	rt.bytes -= int64(len(it.Record.Envelope.Body))
	rt.held--
	if it.key == nil {
		rt.passTopic(topic, it.Record.Seq)
		return
	}
	k := it.key
	k.busy--
	k.topic = topic
	k.passFrom(it.Record.Seq)
	d.passQueue(k)
	d.advance(k)
}

// BlockTopic keeps records of a topic from being handed out, or lets them go again.
func (d *Dispatcher) BlockTopic(route, topic string, blocked bool) { //nolint:revive // a state, not a mode
	rt := d.byName[route]
	if rt == nil || rt.topics[topic] == blocked {
		return
	}
	if blocked {
		rt.topics[topic] = true
		return
	}
	delete(rt.topics, topic)
	if seq, ok := rt.passed[topic]; ok {
		delete(rt.passed, topic)
		for _, g := range rt.groups {
			g.addWalk(seq-1, g.cursor)
		}
	}
	for _, name := range sortedNames(rt.keys) {
		if k := rt.keys[name]; k != nil && k.topic == topic {
			k.topic = ""
			d.advance(k)
		}
	}
	rt.readAt = d.now
}

func sortedNames[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Conclude says what became of an item that was handed out: o is an outcome of its Record. A released one is handed
// out again. What is ready of its key behind one that was not published waits for it; who has several records of a key
// concludes the last of them first.
func (d *Dispatcher) Conclude(now time.Time, it *Item, o core.Outcome) {
	d.tick(now)
	if it.state != itemOut || it.session != d.session {
		return // of a session that has ended
	}
	if it.route.Pipelined > 1 && o.Event() != core.EventConfirmed {
		d.recall(it)
	}
	d.out--
	if it.key != nil {
		it.key.busy--
	}
	if it.unknown = it.unknown || o.Unknown(); it.unknown {
		o = o.WithUnknown()
	}
	o = it.overrule(o)
	if o.Event() == core.EventReleased && !it.held {
		d.putBack(it)
		return
	}
	it.state, it.outcome = itemSettling, o
	d.pend(it)
	k := it.key
	if k == nil {
		return
	}
	switch {
	case o.Event() == core.EventConfirmed:
	case o.State() != core.StateAbandoned || it.route.Blocks && o.Reason().Blocks():
		k.limbo = append(k.limbo, it)
		d.passQueue(k)
	case d.has(ruleLimbo) && o.Reason() != waybill.ReasonExpired: // whoever reads an expired one again gives it up again
		k.limbo = append(k.limbo, it)
	}
	d.advance(k)
}

// putBack makes an item ready again, before all others. It was out, and nothing was written about it.
func (d *Dispatcher) putBack(it *Item) {
	rt := it.route
	it.tries = 0
	d.window = slices.DeleteFunc(d.window, func(o *Item) bool { return o == it })
	it.Suspect, it.alone = false, false
	rt.held--
	if k := it.key; k != nil {
		it.state = itemQueued
		k.insert(it)
		d.advance(k)
		return
	}
	if it.lost || !rt.owned().Has(it.Record.Slot) { // its unit was given up: whoever has it reads it
		it.state = itemSettling
		rt.held++
		d.finish(it)
		return
	}
	if topic := it.Record.Envelope.Topic; rt.topics[topic] {
		it.state = itemSettling
		rt.held++
		d.finish(it)
		rt.passTopic(topic, it.Record.Seq)
		return
	}
	d.hand(it)
	if last := len(rt.ready) - 1; it.state == itemReady && rt.Order != waybill.OrderHLC { // from the end to the front
		copy(rt.ready[1:], rt.ready[:last])
		rt.ready[0] = it
	}
}

// pend has an outcome stored.
func (d *Dispatcher) pend(it *Item) {
	it.tries, it.at = 0, d.now
	d.pendedAt = earliest(d.pendedAt, d.now)
	if it.outcome.Event() != core.EventConfirmed && it.outcome.Reason() != waybill.ReasonExpired || it.key != nil && it.Record.Withdrawable {
		d.urgent = true
	}
	d.pending = append(d.pending, it)
}
