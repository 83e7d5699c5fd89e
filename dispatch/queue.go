package dispatch

import (
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// A queue is a route that handlers of many processes work on. Its records with a key go by the owner of their slot, as
// elsewhere. Those without go to whoever has a free handler, whoever owns the slot: a Take asks for as many as there
// are free handlers. So nothing waits behind a busy process. Every record is held before it is handed out, and no
// more are held than can be handed out: a member that dies is blamed for what it had out, and for hardly anything
// else.

const (
	// busyAfter is how long all handlers must be busy until others are told, who then get the member's units.
	busyAfter = 250 * time.Millisecond
	// sharedPoll bounds the pause between two Takes that find nothing while there are other members: they put records
	// in line, and give them back, without a word.
	sharedPoll = 500 * time.Millisecond
	// dueAhead is how many retries Due may hold although no handler is free: timers must go on.
	dueAhead = 10
	// aloneAfter is how many crashes of a queue's record make it go alone.
	aloneAfter = 2
)

// queue is what a member knows of the records of a queue that have no key.
type queue struct {
	nextAt  time.Time // when they are to be asked for
	empties int       // Takes in a row that brought nothing
}

// anyones reports whether a record with this key may go to any member.
func (rt *route) anyones(key string) bool { return rt.Queue && key == "" }

// SetFree says how many more records the member could hand out now; for queues.
func (d *Dispatcher) SetFree(n int) { d.free = n }

// noteFree notes whether the member is busy, and has others told when that has changed for a while.
func (d *Dispatcher) noteFree() {
	if d.opts.Handlers == 0 {
		return
	}
	if busy := d.free <= 0 || d.goesAlone(); !busy {
		d.busySince = time.Time{}
	} else if d.busySince.IsZero() {
		d.busySince = d.now
	}
	if worth := d.worth(); (worth > 0) != (d.shown > 0) && len(d.roster.Members) > 1 {
		d.freshBeat = true
		if worth == 0 {
			d.releaseReady()
		}
	}
}

// worth is how many free handlers the member tells of: none only after a while, since a handler is often free again
// soon.
func (d *Dispatcher) worth() int {
	switch {
	case d.opts.Handlers == 0:
		return d.free
	case d.busySince.IsZero():
		return max(d.free, 1)
	case d.now.Sub(d.busySince) < busyAfter:
		return d.shown
	}
	return 0
}

// hasFree reports whether others know that the member has a free handler.
func (d *Dispatcher) hasFree() bool {
	if d.opts.Handlers == 0 {
		return d.free > 0
	}
	return d.shown > 0
}

// tellAt returns when others are to be told that the member is busy; zero = never.
func (d *Dispatcher) tellAt() time.Time {
	if d.opts.Handlers == 0 || d.busySince.IsZero() || d.shown == 0 || len(d.roster.Members) < 2 {
		return time.Time{}
	}
	return d.busySince.Add(busyAfter)
}

// releaseReady gives back what was taken and nobody asks for.
func (d *Dispatcher) releaseReady() {
	for _, rt := range d.routes {
		for _, it := range slices.Clone(rt.ready) {
			if it.retry || !rt.anyones(it.Record.Envelope.Key) {
				continue
			}
			rt.ready = slices.DeleteFunc(rt.ready, func(o *Item) bool { return o == it })
			it.state, it.outcome = itemSettling, core.Release(&it.Record, 0, false)
			d.pend(it)
		}
	}
}

// goesAlone reports whether something waits to go alone, or does.
func (d *Dispatcher) goesAlone() bool {
	return slices.ContainsFunc(d.window, func(it *Item) bool { return it.alone })
}

// bars reports whether nothing goes beside it: what is ready goes before a suspect of a queue, and nobody waits for
// one whose route is not handed out.
func (it *Item) bars() bool {
	return it.alone && (!it.route.Queue || it.state != itemWanting) && (!it.route.shut || it.state == itemOut || it.state == itemSettling)
}

// spare is how many handlers are free for which nothing is held.
func (d *Dispatcher) spare() int {
	if d.goesAlone() {
		return 0
	}
	n := d.free
	for _, rt := range d.routes {
		if rt.Queue {
			n -= len(rt.ready)
		}
	}
	return n
}

// mayTake reports whether it may be held now: one that goes alone waits until nothing is out.
func (d *Dispatcher) mayTake(it *Item) bool {
	switch {
	case !it.route.Queue:
		return !it.alone || d.out == 0
	case it.alone:
		return d.out == 0 && len(it.route.ready) == 0
	}
	return d.spare() > 0
}

// takeRoom is what a Take may ask for of queues: records with a key, and the next n of a route that have none.
type takeRoom struct{ keyed, n int }

// takeRoom divides the free handlers between records with a key and without, so that neither waits for ever.
func (d *Dispatcher) takeRoom() (room takeRoom, next *route) {
	spare := d.spare()
	if spare <= 0 {
		return takeRoom{}, nil
	}
	keyed := 0
	for _, rt := range d.routes {
		if !rt.Queue {
			continue
		}
		for _, it := range rt.wants {
			if !it.at.After(d.now) && !it.held {
				keyed++
			}
		}
		if !rt.queue.nextAt.After(d.now) && (next == nil || rt.queue.nextAt.Before(next.queue.nextAt)) {
			next = rt
		}
	}
	if next == nil {
		return takeRoom{spare, 0}, nil
	}
	if keyed >= spare {
		keyed = spare / 2
		if d.odd = !d.odd; d.odd {
			keyed = (spare + 1) / 2
		}
	}
	if keyed == spare {
		next = nil
	}
	return takeRoom{keyed, spare - keyed}, next
}

// fits reports whether there is room for it, and takes it.
func (r *takeRoom) fits(it *Item) bool {
	if !it.route.Queue || it.alone || it.held {
		return true
	}
	r.keyed--
	return r.keyed >= 0
}

// nextDue returns when records without a key are to be asked for; zero = not now.
func (d *Dispatcher) nextDue() (at time.Time) {
	if d.opts.Handlers == 0 || d.spare() <= 0 {
		return at
	}
	for _, rt := range d.routes {
		if rt.Queue {
			at = earliest(at, later(rt.queue.nextAt, d.beatSent))
		}
	}
	return at
}

// addNext has want ask for the next n records of a route that have no key.
func (d *Dispatcher) addNext(want *core.Want, rt *route, n int) {
	want.Part, want.N = core.Part{Route: rt.Name, Slots: core.AllSlots}, n
	want.Bytes, want.Deliver = d.opts.Bytes/4, true
	for _, seq := range sortedSeqs(rt.known) {
		if it := rt.known[seq]; rt.anyones(it.Record.Envelope.Key) {
			want.Out = append(want.Out, it.Record.Ref)
		}
	}
}

// took takes in the next records without a key.
func (d *Dispatcher) took(rt *route, want *core.Want, got []core.Taken) {
	q := &rt.queue
	size := int64(0)
	for i := range got {
		rec := got[i].Record
		if rec == nil {
			continue
		}
		size += int64(len(rec.Envelope.Body))
		if rt.known[rec.Seq] != nil {
			continue // it comes again when what was concluded of it is stored
		}
		it := d.item(rt, rec)
		it.held, it.Record.Holder, it.Record.Deliveries = true, d.session, got[i].Deliveries
		d.hand(it)
	}
	switch {
	case len(got) > 0 && (len(got) >= want.N || size >= want.Bytes):
		q.empties, q.nextAt = 0, d.now
		return
	case len(got) > 0:
		q.empties = 0
	}
	q.empties = min(q.empties+1, 30)
	q.nextAt = d.now.Add(d.takePause(q.empties))
}

// takePause is how long to wait after so many Takes that brought nothing. Members wait for different times, so as not
// to ask in step.
func (d *Dispatcher) takePause(empties int) time.Duration {
	pause := min(d.opts.PollMin<<min(empties-1, 20), d.opts.PollMax)
	if len(d.roster.Members) > 1 {
		pause = min(pause, sharedPoll)
	}
	return pause - pause/4*time.Duration(uint64(d.session)*0x9E3779B97F4A7C15>>56)/256
}

// lookNext has records without a key asked for at once.
func (rt *route) lookNext(now time.Time) { rt.queue.nextAt, rt.queue.empties = now, 0 }

// freed is called when a record of a queue that has no key may be anybody's again.
func (d *Dispatcher) freed(it *Item) {
	if it.route.anyones(it.Record.Envelope.Key) {
		it.route.lookNext(d.now)
	}
}

// givesUp reports whether a give-up of the slot's unit may be under way, which would end the hold of what is handed
// out now.
func (d *Dispatcher) givesUp(rt *route, slot uint8) bool {
	if rt.leaving.Has(slot) {
		for _, u := range rt.units {
			if u.Slots().Has(slot) {
				return u.unsure || slices.Contains(d.giving, u)
			}
		}
	}
	return false
}

// tell says what became of an item that was handed out.
func (d *Dispatcher) tell(it *Item, err error) {
	if d.opts.Settled != nil {
		d.opts.Settled(it, err)
	}
}

// tellLost says that all that is out, or on its way to the store, is lost with the session.
func (d *Dispatcher) tellLost(rt *route) {
	for _, seq := range sortedSeqs(rt.known) {
		if it := rt.known[seq]; it.state == itemOut || it.state == itemSettling {
			d.tell(it, core.ErrFenced)
		}
	}
}

// Quit is Stop for a member that cannot wait for what is out. Outcomes that are known are stored. Then it ends as if
// it had died, but at once: what is still out counts a crash and is free.
func (d *Dispatcher) Quit() { d.stopping, d.quitting = true, true }
