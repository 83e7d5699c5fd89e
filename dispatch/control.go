package dispatch

import (
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
)

// control does what control records say.
func (d *Dispatcher) control(page *outbox.Page) {
	if !d.has(ruleControl) {
		return
	}
	for i := range page.Control {
		c := page.Control[i]
		rt := d.byName[c.Route]
		if rt == nil || d.heeding[c.Number] {
			continue
		}
		d.heeding[c.Number] = true
		switch c.Kind {
		case outbox.ControlDecide:
			d.decide(rt, &c)
			continue
		case outbox.ControlKey:
			d.recheck(rt, &c)
			if g := rt.groupOf(c.Slot); g != nil && !rt.ordered() { // nothing is remembered of keys
				g.addWalk(max(c.Seq-1, 0), g.cursor)
				rt.readAt = d.now
			}
		case outbox.ControlRecord:
			if c.Key != "" && rt.ordered() {
				d.recheck(rt, &c)
			} else if it := rt.known[c.Seq]; it != nil {
				it.recheck = true
			} else if rt.anyones(c.Key) {
				rt.lookNext(d.now)
			} else {
				rt.again[c.Seq] = &revisit{ref: outbox.Ref{Route: c.Route, Seq: c.Seq, ID: c.ID}, slot: c.Slot, at: d.now}
			}
		case outbox.ControlFrom:
			rt.lookNext(d.now)
			for _, g := range rt.groups {
				g.addWalk(max(c.Seq-1, 0), g.cursor)
			}
		}
		d.dueAt = d.now
		d.heed(&c)
	}
}

// recheck has a key read anew, once now and once more when what is being stored of it is.
func (d *Dispatcher) recheck(rt *route, c *outbox.Control) {
	for _, it := range rt.known {
		if it.Record.Envelope.Key == c.Key && it.state == itemSettling {
			it.recheck = true
		}
	}
	d.renew(rt, c.Key, c.Slot)
}

// An operator decides about a record that is due by a control record. The owner withdraws the record when it is not
// out, and lets the control record go when that is stored.

// decide does what an operator decided about a record.
func (d *Dispatcher) decide(rt *route, c *outbox.Control) {
	it := rt.known[c.Seq]
	if it == nil || it.Record.ID != c.ID {
		rt.again[c.Seq] = &revisit{ref: outbox.Ref{Route: c.Route, Seq: c.Seq, ID: c.ID}, slot: c.Slot, key: c.Key, at: d.now, decision: c}
		return
	}
	it.decision = c
	if it.state != itemOut && it.state != itemSettling { // else it is withdrawn when it comes back, if it does
		d.withdraw(it)
	}
}

// withdraw ends an item that is not out, as an operator decided.
func (d *Dispatcher) withdraw(it *Item) {
	rt, k := it.route, it.key
	d.remove(it)
	rt.known[it.Record.Seq] = it
	rt.bytes += int64(len(it.Record.Envelope.Body))
	rt.held++
	it.state, it.outcome = itemSettling, outbox.Withdraw(&it.Record, it.decision.Reason)
	if it.unknown {
		it.outcome = it.outcome.WithUnknown()
	}
	if k != nil {
		k.limbo = append(k.limbo, it)
	}
	d.pend(it)
	d.advance(k)
}

// decided takes in what became of a record that an operator decided about and that was not in memory.
func (d *Dispatcher) decided(rt *route, v *revisit, rec *outbox.Record, w *outbox.Waiting) {
	c := v.decision
	switch {
	case rt.known[c.Seq] != nil && rt.known[c.Seq].Record.ID == c.ID:
		d.decide(rt, c)
		return
	case rec != nil:
	case w != nil && w.Why == outbox.Retrying: // it failed meanwhile
		rec = &outbox.Record{Ref: w.Ref, Slot: w.Slot, Envelope: core.Envelope{ID: w.ID, Key: w.Key}}
	default:
		d.heed(c)
		d.renew(rt, c.Key, c.Slot)
		return
	}
	it := d.item(rt, rec)
	it.state = itemSettling // in no list; remove counts it as one beyond its queue
	rt.held++
	if rt.ordered() && rec.Envelope.Key != "" {
		it.key = rt.key(rec.Envelope.Key, rec.Slot)
		delete(it.key.holds, rec.Seq)
	}
	it.decision = c
	d.withdraw(it)
}

// overrule replaces an outcome after which the record would go on.
func (it *Item) overrule(o outbox.Outcome) outbox.Outcome {
	if it.decision == nil || o.State().Terminal() {
		return o
	}
	w := outbox.Withdraw(&it.Record, it.decision.Reason)
	if o.Unknown() {
		w = w.WithUnknown()
	}
	return w
}

// undecided ends a decision: it is carried out, or needless, or the next owner's.
func (d *Dispatcher) undecided(it *Item) {
	if c := it.decision; c != nil {
		it.decision = nil
		d.heed(c)
	}
}

// heed has a control record deleted.
func (d *Dispatcher) heed(c *outbox.Control) {
	d.heeded = append(d.heeded, *c)
	d.pendedAt = earliest(d.pendedAt, d.now)
}
