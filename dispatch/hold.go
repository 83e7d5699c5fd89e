package dispatch

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
)

const (
	// maxTake bounds the records of one Take, and dueLimit those of one Due.
	maxTake  = 500
	dueLimit = 500
	// lockedAfter is when a record that was locked is asked for again; it doubles up to a second.
	lockedAfter = 100 * time.Millisecond
	// firstWindow is how many suspects go at once; each crash halves it.
	firstWindow = 100
	// duePoll is how often what became due is looked for although nobody said so.
	duePoll = time.Second
	// dueAgain is the least pause when something is due and could not be held.
	dueAgain = 20 * time.Millisecond
)

// isSuspect reports whether a record may be what killed a member.
func (d *Dispatcher) isSuspect(it *Item) bool {
	r := &it.Record
	if it.route.Queue { // what was out is known: it was held
		return r.Crashes >= aloneAfter
	}
	return r.Crashes < core.MaxCrashes && (r.Crashes > 0 || r.Seq <= it.route.careful[r.Slot])
}

// windowOf is how many suspects may go beside it: it says how many crashes it had.
func windowOf(it *Item) int {
	if it.route.Queue {
		return 1
	}
	return max(firstWindow>>min(it.Record.Crashes, 30), 1)
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
	if d.taking != nil || d.giving != nil {
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
	if d.taking != nil || d.giving != nil {
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
	want := outbox.Want{}
	for _, it := range items {
		want.Refs = append(want.Refs, it.Record.Ref)
	}
	want.Deliver = slices.ContainsFunc(items, func(it *Item) bool { return it.route.Hold })
	if next != nil {
		d.addNext(&want, next, n)
	}
	c := &Call{kind: callTake}
	session := d.session
	var got []outbox.Taken
	c.do = func(ctx context.Context, s outbox.Store) (err error) {
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
func (d *Dispatcher) taken(items []*Item, got []outbox.Taken, c *Call) bool {
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
		if grip == outbox.Gripped {
			it.held = true
			it.Record.Deliveries = max(it.Record.Deliveries, got[i].Deliveries)
		}
		if it.state != itemWanting {
			continue // it was out already
		}
		rt := it.route
		switch grip {
		case outbox.Gripped:
			rt.wants = slices.DeleteFunc(rt.wants, func(o *Item) bool { return o == it })
			d.makeReady(it)
		case outbox.Locked:
			if !d.has(ruleTakeLocked) {
				d.gone(it)
				continue
			}
			it.at = d.now.Add(min(lockedAfter<<min(it.tries, 4), time.Second))
			it.tries++
		case outbox.Gone:
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
	size := windowOf(d.suspects[0])
	n := 0
	for n < min(size, len(d.suspects)) && !d.suspects[n].route.shut {
		n++
	}
	d.window = append(d.window, d.suspects[:n]...)
	d.suspects = slices.Clone(d.suspects[n:])
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

// calm ends the care for slots of which nothing is left that a dead member may have had out. It returns the moves
// that store it.
func (d *Dispatcher) calm() (moves []outbox.Move) {
	for _, rt := range d.routes {
		for _, u := range rt.sortedUnits() {
			care := int64(0)
			for s := u.From; s < u.To; s++ {
				care = max(care, rt.careful[s])
			}
			g := rt.groupOf(u.From)
			if care == 0 || g == nil || !g.loaded || d.lowest(rt, u.Slots()) < care {
				continue
			}
			for s := u.From; s < u.To; s++ {
				rt.careful[s] = 0
			}
			moves = append(moves, outbox.Move{Unit: u.Unit, From: d.session, To: d.session, Low: d.lowest(rt, u.Slots())})
		}
	}
	return moves
}

// due returns the next Due, or nil.
func (d *Dispatcher) due() *Call {
	if d.dueing != nil || d.giving != nil || d.dueAt.IsZero() || d.dueAt.After(d.now) || !d.room() {
		return nil
	}
	var parts []outbox.Part
	limit := dueLimit
	for _, rt := range d.routes {
		room := d.routeRoom(rt)
		if s := rt.slots(); s != 0 && room > 0 {
			parts = append(parts, outbox.Part{Route: rt.Name, Slots: s})
			limit = min(limit, room)
			if rt.Queue {
				limit = min(limit, max(d.free, dueAhead))
			}
		}
	}
	if len(parts) == 0 {
		d.dueAt = d.now.Add(duePoll)
		return nil
	}
	for _, rt := range d.routes { // what is held already is answered first, and brings nothing
		for _, it := range rt.known {
			if it.retry {
				limit++
			}
		}
	}
	c := &Call{kind: callDue}
	session := d.session
	var page outbox.DuePage
	c.do = func(ctx context.Context, s outbox.Store) (err error) {
		page, err = s.Due(ctx, session, parts, limit)
		return err
	}
	c.done = func() { d.dueDone(&page, c) }
	d.dueing = c
	for _, rt := range d.routes {
		clear(rt.recentDue)
	}
	d.dueAt = d.now.Add(duePoll)
	return c
}

func (d *Dispatcher) dueDone(page *outbox.DuePage, c *Call) {
	if c.err != nil {
		if fenced(c.err) {
			d.rejoin()
			return
		}
		d.dueAt = d.now.Add(d.backoff(callDue))
		return
	}
	fresh := page.Moved > 0
	for i := range page.Retries {
		fresh = d.retried(&page.Retries[i]) || fresh
	}
	d.dueSeen = page.NextIn != 0 && !fresh
	if page.NextIn >= 0 {
		next := c.sent.Add(page.NextIn)
		if page.NextIn == 0 && !fresh {
			next = d.now.Add(dueAgain)
		}
		d.dueAt = earliest(d.dueAt, next)
	}
	if page.Moved > 0 {
		for _, rt := range d.routes {
			rt.readAt, rt.idle = d.now, 0
			rt.lookNext(d.now)
		}
	}
}

// retried takes in a retry that came due and is held.
func (d *Dispatcher) retried(rec *outbox.Record) (fresh bool) {
	rt := d.byName[rec.Route]
	if rt == nil || rt.known[rec.Seq] != nil || rt.recentDue[rec.Seq] {
		return false
	}
	if g := rt.groupOf(rec.Slot); g == nil || !g.loaded {
		return false
	}
	it := d.item(rt, rec)
	it.held, it.retry = true, true
	if !rt.ordered() || rec.Envelope.Key == "" {
		d.hand(it)
		return true
	}
	k := rt.key(rec.Envelope.Key, rec.Slot)
	it.key = k
	delete(k.holds, rec.Seq)
	k.insert(it)
	d.advance(k)
	return true
}

// giveUp returns the call that gives up a unit, or nil. While it is under way nothing else of the member is, but Meet.
func (d *Dispatcher) giveUp() *Call {
	u := d.giving
	if u == nil {
		if u = d.nextToGive(); u == nil {
			return nil
		}
		d.giving, d.givingTill = u, d.now.Add(lockedAfter)
	}
	if !d.now.Before(d.givingTill) && u.tryAt.Before(d.givingTill) { // something takes its time: the others go on meanwhile
		d.giving, u.tryAt = nil, d.now.Add(lockedAfter)
		return nil
	}
	if d.reading != nil || d.taking != nil || d.dueing != nil || d.settling != nil || len(d.pendingOf(u)) > 0 || u.tryAt.After(d.now) {
		return nil
	}
	rt := u.route
	var out []outbox.Ref
	for _, seq := range sortedSeqs(rt.known) {
		if it := rt.known[seq]; u.Slots().Has(it.Record.Slot) && it.state == itemOut {
			out = append(out, it.Record.Ref)
		}
	}
	low := d.lowest(rt, u.Slots())
	session := d.session
	done := false
	c := &Call{kind: callGiveUp}
	c.do = func(ctx context.Context, s outbox.Store) (err error) {
		done, err = s.GiveUp(ctx, session, u.Unit, low, out)
		return err
	}
	c.done = func() {
		switch {
		case fenced(c.err):
			d.giving = nil
			d.meetAt = d.now
			d.drop(rt, u.Slots())
		case c.err != nil || !done:
			u.tryAt = d.now.Add(max(lockedAfter, d.backoff(callGiveUp)))
			d.giving = nil // others may go on meanwhile
		default:
			d.giving = nil
			d.meetAt = d.now
			for _, ref := range out {
				if it := rt.known[ref.Seq]; it != nil {
					it.held = true
				}
			}
			d.drop(rt, u.Slots())
		}
	}
	u.tryAt = d.now.Add(d.opts.Lease) // not twice
	return c
}

// nextToGive returns a unit that is to be given up now, or nil.
func (d *Dispatcher) nextToGive() *unit {
	for _, rt := range d.routes {
		if rt.leaving == 0 {
			continue
		}
		for _, u := range rt.sortedUnits() {
			if u.leaving && !u.tryAt.After(d.now) {
				return u
			}
		}
	}
	return nil
}

// pendingOf returns what is to be stored of a unit before it can be given up.
func (d *Dispatcher) pendingOf(u *unit) (items []*Item) {
	for _, it := range d.pending {
		if it.route == u.route && u.Slots().Has(it.Record.Slot) {
			items = append(items, it)
		}
	}
	return items
}

func (rt *route) sortedUnits() []*unit {
	units := make([]*unit, 0, len(rt.units))
	for _, u := range rt.units {
		units = append(units, u)
	}
	slices.SortFunc(units, func(a, b *unit) int { return cmp.Compare(a.From, b.From) })
	return units
}
