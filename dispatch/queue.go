package dispatch

import (
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// A queue is a route that handlers of many processes work on. Its records with a key go by the owner of their slot, as
// elsewhere. Records without one go to any member with a free handler, not only to the owner of the slot: a Hold asks
// for as many as there are free handlers. So nothing waits behind a busy process. Every record is held before it is
// handed out, and no more are held than can be handed out. So a dead member is blamed for little more than the records
// that it had out.

const (
	// busyAfter is how long all handlers must be busy until other members are told. They get the member's
	// partitions then.
	busyAfter = 250 * time.Millisecond
	// sharedPoll bounds the pause between two empty Holds while there are other members. They put records in line,
	// and release them, without notice.
	sharedPoll = 500 * time.Millisecond
	// dueAhead is how many retries Due may hold although no handler is free: timers must go on.
	dueAhead = 10
	// aloneAfter is how many crashes of a queue's record make it go alone.
	aloneAfter = 2
)

// queue is what a member knows about a queue's records without a key.
type queue struct {
	nextAt   time.Time // when to ask for records without a key
	empties  int       // empty Holds in a row
	changed  bool      // there was news since the latest Hold was sent
	progress progress
}

// askNow makes sure that records without a key are asked for at once, or as soon as a Hold that is under way, and may
// not see them, has ended.
func (q *queue) askNow(now time.Time) { q.nextAt, q.empties, q.changed = now, 0, true }

// handlers knows the free handlers of a member, and how many the others know of.
type handlers struct {
	*env
	free         int       // from SetFree; 1 for a relay
	shown        int       // as the latest renewal reported it
	busySince    time.Time // when the last one became busy; zero = one is free
	extraToKeyed bool      // of an odd number of free handlers, the last one went to records with a key
}

// note notes whether a handler is free.
func (h *handlers) note(busy bool) {
	if !busy {
		h.busySince = time.Time{}
	} else if h.busySince.IsZero() {
		h.busySince = h.now
	}
}

// reportedFree is how many free handlers the member reports. It reports none only after a while, since a handler is
// often free again soon.
func (h *handlers) reportedFree() int {
	switch {
	case h.opts.Handlers == 0:
		return h.free
	case h.busySince.IsZero():
		return max(h.free, 1)
	case h.now.Sub(h.busySince) < busyAfter:
		return h.shown
	}
	return 0
}

// hasFree reports whether others know that the member has a free handler.
func (h *handlers) hasFree() bool {
	if h.opts.Handlers == 0 {
		return h.free > 0
	}
	return h.shown > 0
}

// tellAt returns when to tell the others, if there are any, that the member is busy; zero = never.
func (h *handlers) tellAt(others bool) time.Time {
	if h.opts.Handlers == 0 || h.busySince.IsZero() || h.shown == 0 || !others {
		return time.Time{}
	}
	return h.busySince.Add(busyAfter)
}

// divide divides free handlers between records with a key and without, so that neither waits for ever. keyed is how
// many records with a key could have one.
func (h *handlers) divide(spare, keyed int) (forKeyed int) {
	if keyed < spare {
		return keyed
	}
	if h.extraToKeyed = !h.extraToKeyed; h.extraToKeyed {
		return (spare + 1) / 2
	}
	return spare / 2
}

// SetFree says how many more records the member could hand out now; for queues.
func (d *Dispatcher) SetFree(n int) { d.handlers.free = n }

// noteFree notes whether the member is busy, and tells the others when that has changed for a while. A busy member also
// releases its ready records without a key: another member may have a handler for them.
func (d *Dispatcher) noteFree() {
	if d.opts.Handlers == 0 {
		return
	}
	d.handlers.note(d.handlers.free <= 0 || d.goesAlone())
	if free := d.handlers.reportedFree(); (free > 0) != (d.handlers.shown > 0) && d.peers.others() {
		d.self.renewNow = true
		if free == 0 {
			d.releaseReady()
		}
	}
}

// releaseReady releases items that wait for a handler, because all handlers are busy now.
func (d *Dispatcher) releaseReady() {
	for _, rt := range d.routes {
		for _, item := range slices.Clone(rt.ready) {
			if item.retry || !rt.forAnyMember(item.Record.Envelope.Key) {
				continue
			}
			rt.ready = without(rt.ready, item)
			item.state, item.outcome = itemSettling, core.Release(&item.Record, 0, false)
			d.settles.add(item)
		}
	}
}

// spare is how many free handlers have no record held for them.
func (d *Dispatcher) spare() int {
	if d.goesAlone() {
		return 0
	}
	n := d.handlers.free
	for _, rt := range d.routes {
		if rt.Queue {
			n -= len(rt.ready)
		}
	}
	return n
}

// mayHold reports whether an item may be held now: one that goes alone waits until nothing is out.
func (d *Dispatcher) mayHold(item *Item) bool {
	switch {
	case !item.route.Queue:
		return !item.alone || d.work.out == 0
	case item.alone:
		return d.work.out == 0 && len(item.route.ready) == 0
	}
	return d.spare() > 0
}

// holdRoom is what a Hold may ask for: records of queues with a key, and the next n of a route without one.
type holdRoom struct{ keyed, n int }

// holdRoom divides the free handlers between records with a key and without, so that neither waits for ever. Without a
// key, the route that has waited for longest is next. If no route is due, or records with a key need all handlers, next
// is nil.
func (d *Dispatcher) holdRoom() (room holdRoom, next *route) {
	spare := d.spare()
	if spare <= 0 {
		return holdRoom{}, nil
	}
	keyed := 0
	for _, rt := range d.routes {
		if !rt.Queue {
			continue
		}
		for _, item := range rt.wants {
			if !item.at.After(d.now) && !item.held {
				keyed++
			}
		}
		if !rt.queue.nextAt.After(d.now) && (next == nil || rt.queue.nextAt.Before(next.queue.nextAt)) {
			next = rt
		}
	}
	if next == nil {
		return holdRoom{spare, 0}, nil
	}
	keyed = d.handlers.divide(spare, keyed)
	if keyed == spare {
		next = nil
	}
	return holdRoom{keyed, spare - keyed}, next
}

// fits reports whether there is room for an item, and takes it.
func (r *holdRoom) fits(item *Item) bool {
	if !item.route.Queue || item.alone || item.held {
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
			at = earliest(at, later(rt.queue.nextAt, d.self.renewalSent))
		}
	}
	return at
}

// addNext adds the next n records of a route without a key to want. It names those that this member has in memory
// (ExcludeRefs). Other records that this session holds come first: an answer to an earlier Hold was lost.
func (rt *route) addNext(want *core.HoldRequest, n int) {
	want.KeylessSlots, want.KeylessLimit = core.RouteSlots{Route: rt.Name, Slots: core.AllSlots}, n
	want.Bytes, want.CountDelivery = rt.opts.Bytes/4, true
	rt.holdScope(want)
	rt.queue.changed = false
	for _, seq := range sortedSeqs(rt.known) {
		if item := rt.known[seq]; rt.forAnyMember(item.Record.Envelope.Key) {
			want.ExcludeRefs = append(want.ExcludeRefs, item.Record.Ref)
		}
	}
}

// heldNext takes in the next records without a key. A full answer, numbers that are left, or news since the Hold was
// sent are a reason to ask at once.
func (d *Dispatcher) heldNext(rt *route, want *core.HoldRequest, got []core.HoldResult) {
	q := &rt.queue
	size, n := int64(0), 0
	for i := range got {
		rec := got[i].Record
		if rec == nil {
			continue
		}
		n++
		size += int64(len(rec.Envelope.Body))
		if rt.known[rec.Seq] != nil {
			continue // it comes again when its outcome is stored
		}
		item := rt.newItem(rec)
		item.held, item.Record.HeldBy, item.Record.Deliveries = true, d.session, got[i].Deliveries
		d.enqueue(item)
	}
	// a store that cut them at Bytes has returned more than half of that, unless a body is larger than the other
	// half
	full := n > 0 && (n >= want.KeylessLimit || size > want.Bytes/2)
	more := rt.noteProgress(want, got, full)
	switch {
	case q.changed, full, more:
		q.empties, q.nextAt = 0, d.now
		return
	case n > 0:
		q.empties = 0
	}
	q.empties = min(q.empties+1, 30)
	q.nextAt = d.now.Add(d.holdPause(q.empties))
}

// holdPause is how long to wait after so many empty Holds. Members wait for different times, so that they do not ask in
// step.
func (d *Dispatcher) holdPause(empties int) time.Duration {
	pause := doubled(d.opts.PollMin, d.opts.PollMax, min(empties-1, 20))
	if d.peers.others() {
		pause = min(pause, sharedPoll)
	}
	return pause - pause/4*time.Duration(uint64(d.session)*0x9E3779B97F4A7C15>>56)/256
}

// doubled returns pause doubled n times, and no more than most.
func doubled(pause, most time.Duration, n int) time.Duration {
	if pause > most>>n { // without a shift that overflows
		return most
	}
	return pause << n
}
