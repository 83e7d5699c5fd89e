package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

const (
	// maxSettle bounds the outcomes of one call.
	maxSettle = 5000
	// lockedFor is when an outcome of a record that was locked is sent again, and maxTries how often it doubles.
	lockedFor = 20 * time.Millisecond
	maxTries  = 6
)

// settleDue returns when the next settle is due; zero = none.
func (d *Dispatcher) settleDue() time.Time {
	if len(d.pending) == 0 && len(d.heeded) == 0 {
		return time.Time{}
	}
	at := d.pendedAt
	if !d.urgent && d.going() && len(d.pending) < d.opts.Batch && len(d.giving) == 0 && !d.stopping {
		at = at.Add(d.opts.Gather)
	}
	return later(at, d.settleAt)
}

// going reports whether more outcomes are about to come.
func (d *Dispatcher) going() bool {
	return d.out > 0 || slices.ContainsFunc(d.routes, func(rt *route) bool { return len(rt.ready) > 0 })
}

// settle returns the next settle, or nil.
func (d *Dispatcher) settle() *Call {
	if at := d.settleDue(); d.settling != nil || at.IsZero() || at.After(d.now) {
		return nil
	}
	items, rest := d.pick()
	heeded := d.heeded
	if len(items) == 0 && len(heeded) == 0 {
		return nil
	}
	d.pending, d.heeded, d.urgent, d.pendedAt = rest, nil, false, time.Time{}
	d.pendAgain()
	outcomes := make([]core.Outcome, 0, len(items)+len(heeded))
	for _, it := range items {
		outcomes = append(outcomes, it.outcome)
	}
	for i := range heeded {
		outcomes = append(outcomes, core.Heeded(&heeded[i]))
	}
	c := &Call{kind: callSettle}
	session := d.session
	var res core.Results
	c.do = func(ctx context.Context, s core.OutboxStore) error {
		res = s.Settle(ctx, session, outcomes)
		if len(res) != len(outcomes) {
			return fmt.Errorf("waybill/dispatch: settle: the store returned %d results for %d outcomes", len(res), len(outcomes))
		}
		return nil
	}
	c.done = func() { d.settled(items, heeded, res, c) }
	d.settling = c
	return c
}

// pick chooses what is settled now: what waits for a lock is tried again in time.
func (d *Dispatcher) pick() (items, rest []*Item) {
	for i, it := range d.pending {
		if len(items) >= maxSettle {
			return items, append(rest, d.pending[i:]...)
		}
		if it.at.After(d.now) {
			rest = append(rest, it)
		} else {
			items = append(items, it)
		}
	}
	return items, rest
}

// pendAgain says when what is left of pending is due.
func (d *Dispatcher) pendAgain() {
	for _, it := range d.pending {
		d.pendedAt = earliest(d.pendedAt, it.at)
	}
}

// settled takes in the results of a settle.
func (d *Dispatcher) settled(items []*Item, heeded []core.Control, res core.Results, c *Call) {
	if c.err != nil {
		res = core.AllFailed(len(items)+len(heeded), c.err)
	}
	var again []*Item
	outages := 0
	for i, it := range items {
		switch err := res[i]; {
		case err == nil:
			d.stored(it)
		case errors.Is(err, core.ErrChanged):
			d.changed(it)
		case fenced(err):
			d.fencedOff(it)
		default:
			if !errors.Is(err, core.ErrBusy) {
				d.err = err
				outages++
			}
			it.at = d.now.Add(lockedFor << min(it.tries, maxTries))
			it.tries++
			again = append(again, it)
		}
	}
	for i := range heeded {
		if err := res[len(items)+i]; err != nil && !fenced(err) && !errors.Is(err, core.ErrChanged) {
			d.heeded = append(d.heeded, heeded[i])
		} else {
			delete(d.heeding, heeded[i].Number)
		}
	}
	d.pending = append(again, d.pending...)
	if len(d.heeded) > 0 {
		d.pendedAt = earliest(d.pendedAt, d.now.Add(lockedFor))
	}
	d.pendAgain()
	d.settleAt = time.Time{}
	if outages > 0 && outages == len(items) {
		d.fails[callSettle] = max(d.fails[callSettle], 1)
		d.settleAt = d.now.Add(d.backoff(callSettle))
	}
}

// stored is called when the store knows what became of it.
func (d *Dispatcher) stored(it *Item) {
	k, rt := it.key, it.route
	o := &it.outcome
	d.leaveLimbo(it)
	d.tell(it, nil)
	d.freed(it)
	d.undecided(it)
	if it.lost || !rt.owned().Has(it.Record.Slot) {
		d.finish(it)
		d.advance(k)
		return
	}
	switch {
	case it.recheck:
		d.revise(it)
	case o.Event() == core.EventReleased && !it.retry && !rt.anyones(it.Record.Envelope.Key): // its hold is gone
		it.held = false
		it.Record.Holder = 0
		it.Record.Version++
		d.putBack(it)
		return
	case o.Event() == core.EventRejected, o.Event() == core.EventReleased:
		d.finish(it)
		d.dueAt = earliest(d.dueAt, d.now.Add(o.In()))
		if k != nil {
			k.hold(it.Record.Seq, core.ObstacleRetrying)
		}
	case o.State() == core.StateAbandoned && rt.Blocks && o.Reason().Blocks():
		d.finish(it)
		if k != nil {
			k.hold(it.Record.Seq, core.ObstacleBlocking)
		}
	default:
		d.finish(it)
	}
	d.advance(k)
}

// revise forgets a record that may be something else by now, and has it read again.
func (d *Dispatcher) revise(it *Item) {
	d.finish(it)
	if it.key != nil {
		d.renew(it.route, it.key.name, it.key.slot)
		return
	}
	if it.route.anyones(it.Record.Envelope.Key) {
		it.route.lookNext(d.now)
		return
	}
	it.route.visit(&revisit{ref: it.Record.Ref, slot: it.Record.Slot, at: d.now})
}

// leaveLimbo ends the wait of its key for what became of it.
func (d *Dispatcher) leaveLimbo(it *Item) {
	if it.key != nil {
		it.key.limbo = slices.DeleteFunc(it.key.limbo, func(o *Item) bool { return o == it })
	}
}

// changed is called when the record is no longer what was handed out: what is known of its key is read anew.
func (d *Dispatcher) changed(it *Item) {
	rt, k := it.route, it.key
	d.leaveLimbo(it)
	if it.tries > 0 { // it was sent before, and may have been stored then
		d.tell(it, nil)
	} else {
		d.tell(it, core.ErrChanged)
	}
	d.finish(it)
	if c := it.decision; c != nil { // look what it is now
		it.decision = nil
		d.decide(rt, c)
	}
	if it.lost || !rt.owned().Has(it.Record.Slot) {
		return
	}
	if it.outcome.Event() != core.EventConfirmed || it.recheck {
		d.revise(it)
	}
	d.dueAt = earliest(d.dueAt, d.now)
	d.advance(k)
}

// fencedOff is called when the record is another's.
func (d *Dispatcher) fencedOff(it *Item) {
	k := it.key
	d.leaveLimbo(it)
	d.tell(it, core.ErrFenced)
	if it.lost = true; it.decision != nil { // the owner's
		delete(d.heeding, it.decision.Number)
	}
	d.finish(it)
	d.meetAt = d.now // who owns what?
	if k != nil && !k.gone {
		d.renew(it.route, k.name, k.slot)
	}
	d.advance(k)
}
