package dispatch

import (
	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// control does what control records say.
func (d *Dispatcher) control(page *core.Page) {
	if !d.has(ruleControl) {
		return
	}
	for i := range page.Control {
		c := page.Control[i]
		rt := d.byName[c.Route]
		if rt == nil || d.heeding[c.Number] != nil || !d.minds(rt, &c) {
			continue
		}
		d.heeding[c.Number] = &c
		switch c.Kind {
		case core.ControlDecide:
			d.decide(rt, &c)
			continue
		case core.ControlKey:
			d.recheck(rt, &c)
			if g := rt.groupOf(c.Slot); g != nil && !rt.ordered() { // nothing is remembered of keys
				g.addWalk(max(c.Seq-1, 0), g.cursor)
				rt.readAt = d.now
			}
		case core.ControlRecord:
			if c.Key != "" && rt.ordered() {
				d.recheck(rt, &c)
			} else if it := rt.known[c.Seq]; it != nil {
				it.recheck = true
			} else if rt.anyones(c.Key) {
				rt.lookNext(d.now)
			} else {
				rt.visit(&revisit{ref: core.Ref{Route: c.Route, Seq: c.Seq, ID: c.ID}, slot: c.Slot, at: d.now})
			}
		case core.ControlFrom:
			rt.lookNext(d.now)
			for _, g := range rt.groups {
				g.addWalk(max(c.Seq-1, 0), g.cursor)
			}
		}
		d.dueAt = d.now
		if d.has(ruleLower) && rt.isHinted(&c) {
			d.unheard, d.freshBeat = append(d.unheard, c), true
		} else {
			d.heed(&c)
		}
	}
}

// minds reports whether a control record is the member's to act on. Those of a unit that is being given up are its next
// owner's. A give-up whose answer was lost may still be carried out, and then stores the hint that it was sent with.
func (d *Dispatcher) minds(rt *route, c *core.Control) bool {
	switch {
	case !d.has(ruleTheirs):
		return true
	case c.Kind == core.ControlFrom:
		return len(rt.groups) > 0 && rt.leaving == 0
	default:
		return rt.owned().Has(c.Slot) && !rt.isLeaving(c.Slot)
	}
}

// What a control record brings back may lie below the hint that is stored of its unit, where who takes over from a dead
// member does not look. So the hint is lowered before the control record goes.

// isHinted reports whether a hint that may be stored is not below what a control record brings back.
func (rt *route) isHinted(c *core.Control) bool {
	if rt.anyones(c.Key) {
		return false
	}
	for _, u := range rt.units {
		if u.minds(c) && u.low >= c.Seq {
			return true
		}
	}
	return false
}

// lowered are moves that store the hints that are to be lowered.
func (d *Dispatcher) lowered() (moves []core.Move) {
	for _, rt := range d.routes {
		for _, u := range rt.sortedUnits() {
			low := u.low
			for i := range d.unheard {
				if c := &d.unheard[i]; c.Route == rt.Name && u.minds(c) {
					low = min(low, c.Seq-1)
				}
			}
			if low = max(low, 0); low < u.low {
				moves = append(moves, d.hint(u, low))
			}
		}
	}
	return moves
}

// hasLowered takes in that moves were made for the sake of control records.
func (d *Dispatcher) hasLowered(moves []core.Move, unheard []core.Control) {
	for _, m := range moves {
		if u := d.byName[m.Unit.Route].units[m.Unit]; u != nil {
			u.low = m.Low
		}
	}
	for i := range unheard {
		c := &unheard[i]
		if d.minds(d.byName[c.Route], c) {
			d.heed(c)
		} else {
			delete(d.heeding, c.Number)
		}
	}
}

// recheck has a key read anew, once now and once more when what is being stored of it is.
func (d *Dispatcher) recheck(rt *route, c *core.Control) {
	for _, it := range rt.known {
		if it.Record.Envelope.Key == c.Key && it.state == itemSettling {
			it.recheck = true
		}
	}
	d.renew(rt, c.Key, c.Slot)
}

// An operator decides about a record that is due by a control record. The owner withdraws the record when it is not
// out, and lets the control record go when that is stored.

// decide does what an operator decided about a record. If there is another decision about it, this one is looked at
// when that is carried out.
func (d *Dispatcher) decide(rt *route, c *core.Control) {
	it, v := rt.known[c.Seq], rt.again[c.Seq]
	if it != nil && it.decision != nil || v != nil && v.decision != nil {
		delete(d.heeding, c.Number)
		return
	}
	if it == nil || it.Record.ID != c.ID {
		rt.again[c.Seq] = &revisit{ref: core.Ref{Route: c.Route, Seq: c.Seq, ID: c.ID}, slot: c.Slot, key: c.Key, at: d.now, decision: c}
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
	it.state, it.outcome = itemSettling, core.Withdraw(&it.Record, it.decision.Reason)
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
func (d *Dispatcher) decided(rt *route, v *revisit, rec *core.Record, w *core.Waiting) {
	c := v.decision
	switch {
	case rt.known[c.Seq] != nil && rt.known[c.Seq].Record.ID == c.ID:
		d.decide(rt, c)
		return
	case rec != nil:
	case w != nil && w.Why == core.ObstacleRetrying: // it failed meanwhile
		rec = &core.Record{Ref: w.Ref, Slot: w.Slot, Envelope: waybill.Envelope{ID: w.ID, Key: w.Key}}
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
func (it *Item) overrule(o core.Outcome) core.Outcome {
	if it.decision == nil || o.State().Terminal() {
		return o
	}
	w := core.Withdraw(&it.Record, it.decision.Reason)
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
func (d *Dispatcher) heed(c *core.Control) {
	d.heeded = append(d.heeded, *c)
	d.pendedAt = earliest(d.pendedAt, d.now)
}
