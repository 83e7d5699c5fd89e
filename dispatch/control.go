package dispatch

import (
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// An operator's command changes records that their owner remembers. So it writes a control record in the same
// transaction, each read brings those of the reader's units, and the owner acts on it and deletes it with a settle. It
// can be seen several times before it is gone: by reads that were sent before the settle, and by the next owner. So
// each is remembered by its number until it is deleted, and to carry it out twice must be harmless.

// controls knows the control records under way. Operators write them to tell owners about changes. A control record is
// carried out once. It is then deleted together with outcomes.
type controls struct {
	open     map[int64]*core.Control // by number: carried out, and not deleted yet
	lowering []core.Control          // to be deleted when a hint is lowered
	gone     map[int64]bool          // deleted since the read under way was sent
	more     bool                    // the last page was full of them
	// A read begins behind those that are gone. after: those of this member's units up to it are gone, except for
	// records of watched transactions. visible: up to it all others can be seen. watch: by watched transaction, its
	// control records have greater numbers. news: a walk over all was asked for during the read under way, which
	// may not see its cause.
	after, visible int64
	watch          map[int64]int64
	news           bool
}

func newControls() controls {
	return controls{open: map[int64]*core.Control{}, gone: map[int64]bool{}, watch: map[int64]int64{}}
}

// reset forgets what the session has done.
func (cs *controls) reset() { *cs = newControls() }

// forget forgets a control record: if it is seen once more, it is carried out again.
func (cs *controls) forget(c *core.Control) { delete(cs.open, c.Number) }

// from returns the sequence from which a route is to be read again, but at most low.
func (cs *controls) from(route string, low int64) int64 {
	for _, c := range cs.open {
		if c.Kind == core.ControlFrom && c.Route == route {
			low = min(low, max(c.Seq-1, 0))
		}
	}
	return low
}

// all has the next read look for all control records: there are units whose control records this member has not seen.
func (cs *controls) all() { cs.after, cs.news = 0, true }

// ask returns the number behind which the read that is about to be sent looks for control records.
func (cs *controls) ask() int64 {
	cs.news = false
	return cs.after
}

// transactions takes in which transactions are watched from now on, which watched ones have ended, and up to which
// number the control records of all others are visible.
func (cs *controls) transactions(watch, ended []int64, visible int64) {
	for _, id := range watch {
		cs.watch[id] = cs.visible
	}
	for _, id := range ended {
		if from, ok := cs.watch[id]; ok {
			delete(cs.watch, id)
			cs.after, cs.news = min(cs.after, from), true
		}
	}
	cs.visible = max(cs.visible, visible)
}

// seen takes in the control records of a page.
func (cs *controls) seen(page *core.Page) {
	if cs.news {
		return
	}
	to := cs.visible
	if len(page.Control) > 0 {
		to = min(to, page.Control[0].Number-1)
	}
	cs.after = max(cs.after, to)
}

// bound returns the number behind which a roster is to tell of control records. The records of a watched transaction
// are behind it: the next read may be the first to see that the transaction has ended.
func (cs *controls) bound() int64 {
	after := cs.after
	for _, from := range cs.watch {
		after = min(after, from)
	}
	return after
}

// control carries out control records.
func (d *Dispatcher) control(page *core.Page) {
	d.controls.seen(page)
	d.controls.more = len(page.Control) >= controlPage
	for i := range page.Control {
		c := page.Control[i]
		rt := d.byName[c.Route]
		if d.controls.gone[c.Number] {
			d.readOn()
			continue
		}
		if rt == nil || d.controls.open[c.Number] != nil || !rt.minds(&c) {
			continue
		}
		d.controls.open[c.Number] = &c
		if c.Kind == core.ControlDecide {
			d.decide(rt, &c)
			continue
		}
		d.lookAgain(rt, &c)
		d.timers.at = d.now
		if rt.isHinted(&c) {
			d.controls.lowering, d.self.beatNow = append(d.controls.lowering, c), true
		} else {
			d.settles.heed(&c)
		}
	}
}

// readOn has the next control records read, when some of a full page are deleted.
func (d *Dispatcher) readOn() {
	if !d.controls.more {
		return
	}
	d.controls.more = false
	for _, rt := range d.routes {
		rt.pace.readAt, rt.pace.lookedAt = d.now, time.Time{}
	}
}

// readControls has the routes read now: control records are there, and nothing else may wake this member for them.
func (d *Dispatcher) readControls() {
	for _, rt := range d.routes {
		if rt.pace.readAt.After(d.now) {
			rt.pace.readAt = d.now
		}
	}
}

// lookAgain schedules another read of the records that a control record is about.
func (d *Dispatcher) lookAgain(rt *route, c *core.Control) {
	rt.overdue.all()
	switch c.Kind {
	case core.ControlDecide:
	case core.ControlKey:
		d.recheck(rt, c)
		if g := rt.groupOf(c.Slot); g != nil && !rt.ordered() { // nothing is remembered of keys
			g.addWalk(max(c.Seq-1, 0), g.cursor)
			rt.pace.readAt = d.now
		}
	case core.ControlRecord:
		if c.Key != "" && rt.ordered() {
			d.recheck(rt, c)
		} else if item := rt.known[c.Seq]; item != nil {
			item.recheck = true
		} else if rt.anyones(c.Key) {
			rt.queue.met.pass(c.Seq)
			rt.queue.lookNext(d.now)
		} else {
			rt.visit(&revisit{ref: core.Ref{Route: c.Route, Seq: c.Seq, ID: c.ID}, slot: c.Slot, at: d.now})
		}
	case core.ControlFrom:
		rt.queue.met.back(max(c.Seq-1, 0))
		rt.queue.lookNext(d.now)
		for _, g := range rt.groups {
			g.addWalk(max(c.Seq-1, 0), g.cursor)
		}
	}
}

// minds reports whether this member carries out a control record. Control records of a unit that is being given up
// belong to its next owner. A give-up whose answer was lost may still be carried out. It then stores the hint that it
// was sent with.
func (rt *route) minds(c *core.Control) bool {
	if c.Kind == core.ControlFrom {
		return len(rt.groups) > 0 && rt.leaving == 0
	}
	return rt.owned().Has(c.Slot) && !rt.isLeaving(c.Slot)
}

// A control record can bring back records below the stored hint of their unit. A member that takes over from a dead one
// does not look there. So the hint is lowered before the control record is deleted.

// isHinted reports whether the hint in the store can be above the records that a control record brings back.
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

// lowered returns moves that store lower hints.
func (d *Dispatcher) lowered() (moves []core.Move) {
	for _, rt := range d.routes {
		for _, u := range rt.sortedUnits() {
			low := u.low
			for i := range d.controls.lowering {
				if c := &d.controls.lowering[i]; c.Route == rt.Name && u.minds(c) {
					low = min(low, c.Seq-1)
				}
			}
			if low = max(low, 0); low < u.low {
				moves = append(moves, u.hint(low))
			}
		}
	}
	return moves
}

// hasLowered notes that the moves for control records were made.
func (d *Dispatcher) hasLowered(moves []core.Move, controls []core.Control) {
	for _, m := range moves {
		if u := d.byName[m.Unit.Route].units[m.Unit]; u != nil {
			u.low = m.Low
		}
	}
	for i := range controls {
		c := &controls[i]
		if d.byName[c.Route].minds(c) {
			d.settles.heed(c)
		} else {
			d.controls.forget(c)
		}
	}
}

// recheck schedules two reads of a key: one now, and one after the outcomes under way are stored.
func (d *Dispatcher) recheck(rt *route, c *core.Control) {
	for _, item := range rt.known {
		if item.Record.Envelope.Key == c.Key && item.state == itemSettling {
			item.recheck = true
		}
	}
	d.reread(rt, c.Key, c.Slot)
}

// An operator decides about a due record by writing a control record. The owner withdraws the record when it is not
// out. It deletes the control record when the withdrawal is stored.

// decide carries out an operator's decision about a record. If there is another decision about it, this one waits until
// that one is carried out.
func (d *Dispatcher) decide(rt *route, c *core.Control) {
	item, v := rt.known[c.Seq], rt.again.bySeq[c.Seq]
	if item != nil && item.decision != nil || v != nil && v.decision != nil {
		d.controls.forget(c)
		return
	}
	if item == nil || item.Record.ID != c.ID {
		rt.again.add(&revisit{ref: core.Ref{Route: c.Route, Seq: c.Seq, ID: c.ID}, slot: c.Slot, key: c.Key, at: d.now, decision: c})
		return
	}
	item.decision = c
	if !item.isBusy() { // else it is withdrawn when it comes back
		d.withdraw(item)
	}
}

// withdraw ends an item that is not out, by an operator's decision.
func (d *Dispatcher) withdraw(item *Item) {
	rt, k := item.route, item.key
	d.remove(item)
	rt.keep(item)
	rt.load.held++
	item.state, item.outcome = itemSettling, core.Withdraw(&item.Record, item.decision.Reason)
	if item.unknown {
		item.outcome = item.outcome.WithUnknown()
	}
	if k != nil {
		k.unstored = append(k.unstored, item)
		k.topic = "" // if it was its head, another one is now
	}
	d.settles.add(item)
	d.advance(k)
}

// isVoid reports whether an operator has taken a decision back before it was carried out: a redrive deletes it. A page
// brings the control records of lower numbers first.
func isVoid(c *core.Control, page *core.Page) bool {
	for i := range page.Control {
		if page.Control[i].Number == c.Number {
			return false
		}
	}
	n := len(page.Control)
	return n < controlPage || c.Number < page.Control[n-1].Number
}

// decideRead takes in a record that was not in memory when an operator decided about it.
func (d *Dispatcher) decideRead(rt *route, v *revisit, rec *core.Record, w *core.Waiting) {
	c := v.decision
	switch {
	case rt.known[c.Seq] != nil && rt.known[c.Seq].Record.ID == c.ID:
		d.decide(rt, c)
		return
	case rec != nil:
	case w != nil && w.Why == core.ObstacleRetrying: // it failed meanwhile
		rec = &core.Record{Ref: w.Ref, Slot: w.Slot, Envelope: waybill.Envelope{ID: w.ID, Key: w.Key}}
	default:
		d.settles.heed(c)
		d.reread(rt, c.Key, c.Slot)
		return
	}
	item := rt.newItem(rec)
	item.state = itemSettling // it is in no list; remove counts it as beyond its queue
	rt.load.held++
	if rt.ordered() && rec.Envelope.Key != "" {
		item.key = rt.key(rec.Envelope.Key, rec.Slot)
		delete(item.key.holds, rec.Seq)
	}
	item.decision = c
	d.withdraw(item)
}

// endDecision ends a decision. It was carried out, or is no longer needed, or belongs to the next owner.
func (d *Dispatcher) endDecision(item *Item) {
	if c := item.decision; c != nil {
		item.decision = nil
		d.settles.heed(c)
	}
}
