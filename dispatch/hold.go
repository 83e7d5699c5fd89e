package dispatch

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

const (
	// maxTake bounds the records of one Take, and dueLimit those of one Due.
	maxTake  = 500
	dueLimit = 500
	// lockedAfter is when a record that was locked is asked for again; it doubles up to a second.
	lockedAfter = 100 * time.Millisecond
	// firstWindow is how many suspects go at once; each crash halves it. After every growAfter windows that have passed
	// it doubles, growMost times at most.
	firstWindow = 100
	growAfter   = 10
	growMost    = 4
	// duePoll is how often what became due is looked for although nobody said so.
	duePoll = time.Second
	// dueAgain is the least pause when something is due and could not be held.
	dueAgain = 20 * time.Millisecond
	// duePause is how long after a Due a wake-up has the next one made.
	duePause = 50 * time.Millisecond
)

// isSuspect reports whether a record may be what killed a member.
func (d *Dispatcher) isSuspect(it *Item) bool {
	r := &it.Record
	if it.route.Queue { // what was out is known: it was held
		return r.Crashes >= aloneAfter
	}
	return r.Crashes < core.MaxCrashes && (r.Crashes > 0 || r.Seq <= it.route.careful[r.Slot])
}

// windowOf is how many suspects may go beside it: it says how many crashes it had. What a member had out when it died
// comes early among them: the more windows have passed, the larger they get.
func (d *Dispatcher) windowOf(it *Item) int {
	if it.route.Queue {
		return 1
	}
	size := firstWindow >> min(it.Record.Crashes, 30)
	if it.Record.Crashes == 0 {
		size <<= min(d.windows/growAfter, growMost)
	}
	return max(size, 1)
}

// takeDue returns when the next Take is due; zero = none.
func (d *Dispatcher) takeDue() time.Time {
	at := d.nextDue()
	for _, rt := range d.routes {
		for _, it := range rt.wants {
			if d.mayTake(it) {
				at = earliest(at, it.at)
			}
		}
	}
	if len(d.window) == 0 && slices.ContainsFunc(d.suspects, func(it *Item) bool { return !it.route.shut }) {
		at = earliest(at, d.now)
	}
	if at.IsZero() {
		return at
	}
	return later(at, d.takeAt)
}

// take returns the next Take, or nil: of what must be held before it is handed out, and of what is out for long.
func (d *Dispatcher) take() *Call {
	if d.taking != nil || len(d.giving) > 0 {
		return nil
	}
	if at := d.takeDue(); at.IsZero() || at.After(d.now) {
		return nil
	}
	d.fillWindow()
	room, next := d.takeRoom()
	var items []*Item
	for _, rt := range d.routes {
		for _, it := range rt.wants {
			if !it.at.After(d.now) && len(items) < maxTake && d.mayTake(it) && room.fits(it) {
				items = append(items, it)
			}
		}
	}
	if len(items) == 0 && next == nil {
		d.takeAt = d.now.Add(d.opts.Gather)
		return nil
	}
	return d.takeCall(items, next, room.n)
}

// late returns a Take that writes down what has been out for longer than a beat.
func (d *Dispatcher) late() *Call {
	if d.taking != nil || len(d.giving) > 0 {
		return nil
	}
	var items []*Item
	before := d.now.Add(-d.opts.Lease / 3)
	for _, rt := range d.routes {
		for _, seq := range sortedSeqs(rt.known) {
			it := rt.known[seq]
			if it.state == itemOut && !it.held && it.at.Before(before) && len(items) < maxTake {
				items = append(items, it)
			}
		}
	}
	if len(items) == 0 {
		return nil
	}
	return d.takeCall(items, nil, 0)
}

// takeCall asks for items, and for the next n of a route that have no key.
func (d *Dispatcher) takeCall(items []*Item, next *route, n int) *Call {
	want := core.Want{}
	for _, it := range items {
		want.Refs = append(want.Refs, it.Record.Ref)
	}
	want.Deliver = slices.ContainsFunc(items, func(it *Item) bool { return it.route.Hold })
	if next != nil {
		d.addNext(&want, next, n)
	}
	c := &Call{kind: callTake}
	session := d.session
	var got []core.Taken
	c.do = func(ctx context.Context, s core.OutboxStore) (err error) {
		got, err = s.Take(ctx, session, want)
		return err
	}
	c.done = func() {
		if d.taken(items, got, c) && next != nil && d.byName[next.Name] == next {
			d.took(next, &want, got[len(items):])
		}
	}
	d.taking = c
	return c
}

// taken takes in what became of items, and reports whether there is an answer.
func (d *Dispatcher) taken(items []*Item, got []core.Taken, c *Call) bool {
	if c.err != nil || len(got) < len(items) {
		if fenced(c.err) {
			d.rejoin()
			return false
		}
		d.takeAt = d.now.Add(d.backoff(callTake))
		return false
	}
	d.takeAt = time.Time{}
	for i, it := range items {
		if it.route.known[it.Record.Seq] != it {
			continue
		}
		grip := got[i].Grip
		if grip == core.GripHeld {
			it.held = true
			it.Record.Deliveries = max(it.Record.Deliveries, got[i].Deliveries)
		}
		if it.state != itemWanting {
			continue // it was out already
		}
		rt := it.route
		switch grip {
		case core.GripHeld:
			rt.wants = slices.DeleteFunc(rt.wants, func(o *Item) bool { return o == it })
			d.makeReady(it)
			if it.key != nil && rt.Hold && it.key.single {
				it.key.single = d.isSuspect(it)
				d.advance(it.key)
			}
		case core.GripLocked:
			if !d.has(ruleTakeLocked) {
				d.gone(it)
				continue
			}
			it.at = d.now.Add(min(lockedAfter<<min(it.tries, 4), time.Second))
			it.tries++
			if it.key != nil && rt.Pipelined > 1 { // what follows it waits
				d.recall(it)
				it.key.single = true
			}
		case core.GripGone:
			d.gone(it)
		}
	}
	return true
}

// gone forgets a record that is no longer what was read, and has its key read anew.
func (d *Dispatcher) gone(it *Item) {
	k := it.key
	if d.has(ruleTakeLocked) {
		d.revise(it)
	} else {
		d.finish(it)
	}
	d.advance(k)
}

// fillWindow begins the next window of suspects, if there is none: those with the most crashes first, so that what
// kills is found soon.
func (d *Dispatcher) fillWindow() {
	if len(d.window) > 0 || len(d.suspects) == 0 {
		return
	}
	slices.SortStableFunc(d.suspects, func(a, b *Item) int {
		return cmp.Or(cmp.Compare(shut(a), shut(b)), cmp.Compare(b.Record.Crashes, a.Record.Crashes))
	})
	if d.suspects[0].route.shut {
		return
	}
	size := d.windowOf(d.suspects[0])
	n := 0
	for n < min(size, len(d.suspects)) && !d.suspects[n].route.shut {
		n++
	}
	d.window = append(d.window, d.suspects[:n]...)
	d.suspects = slices.Clone(d.suspects[n:])
	d.windows++
	for _, it := range d.window {
		it.Suspect, it.alone = true, size == 1
		it.state, it.at = itemWanting, d.now
		it.route.wants = append(it.route.wants, it)
	}
}

// shut is 1 if nothing of the item's route is handed out now.
func shut(it *Item) int {
	if it.route.shut {
		return 1
	}
	return 0
}

// calm ends the care for slots when nothing is left in them that a dead member may have had out. It returns the moves
// that store it.
func (d *Dispatcher) calm() (moves []core.Move) {
	for _, rt := range d.routes {
		if slices.Max(rt.careful[:]) == 0 {
			continue
		}
		for _, u := range rt.sortedUnits() {
			care := u.careful()
			if g := rt.groupOf(u.From); care == 0 || g == nil || !g.loaded {
				continue
			}
			low := d.lowest(rt, u.Slots())
			if low < care {
				continue
			}
			for s := u.From; s < u.To; s++ {
				rt.careful[s] = 0
			}
			u.low = max(u.low, low)
			moves = append(moves, d.hint(u, low))
		}
	}
	return moves
}
