package dispatch

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// A hold is a field of the stored record: it names the session that has it. Each one costs a write, so a record gets
// one only where others must see that it is out. Before the hand-out: a suspect, whose crash must be counted if it
// kills this member too; a record that can be cancelled, so that the canceller sees it; a record of a queue, which any
// member may take. After it: a record that is out for longer than a third of the lease (holdLate), or whose partition
// is released (release.go). Due writes the holds of retries itself.

const (
	// maxHold bounds the records of one Hold.
	maxHold = 500
	// firstCrashWindow is how many suspects go at once. Each crash halves it. It doubles after every growAfter
	// crash windows, at most growMost times.
	firstCrashWindow = 100
	growAfter        = 10
	growMost         = 4
)

// suspects are the records of a route that may have killed a member. They go in crash windows, one at a time. Each
// route has crash windows of its own: a route that is slow keeps no other waiting. Of the suspects, a member that dies
// had one crash window of each route at most, or one record that went alone.
type suspects struct {
	*env
	crashWindow  []*Item // under way: from fillCrashWindow until their outcomes are stored or wait for locks
	waiting      []*Item // for a crash window
	crashWindows int     // begun since a partition came that a dead member may have had
}

// goesAlone reports whether an item goes alone, or waits to.
func (d *Dispatcher) goesAlone() bool {
	return slices.ContainsFunc(d.routes, func(rt *route) bool {
		return slices.ContainsFunc(rt.suspects.crashWindow, func(item *Item) bool { return item.alone })
	})
}

// first returns the suspect with which the next crash window begins: the one with the most crashes, so that the culprit
// is found soon.
func (s *suspects) first() (first *Item) {
	for _, item := range s.waiting {
		if first == nil || item.Record.Crashes > first.Record.Crashes {
			first = item
		}
	}
	return first
}

// crashWindowsToBegin returns the routes whose next crash window begins now. A suspect that goes alone is held alone:
// its crash window begins when no other is under way, and no other begins before it has ended. Else the death of the
// member would cost the records of the others a crash each time. No route waits for the crash window of a route that is
// not handed out.
func (d *Dispatcher) crashWindowsToBegin() (routes []*route) {
	var lone *route
	var busy, alone bool // crash windows are under way; one is of an item that goes alone
	for _, rt := range d.routes {
		s := &rt.suspects
		if len(s.crashWindow) > 0 {
			if !rt.shut || slices.ContainsFunc(s.crashWindow, (*Item).isBusy) {
				busy, alone = true, alone || s.crashWindow[0].alone
			}
			continue
		}
		if rt.shut || len(s.waiting) == 0 {
			continue
		}
		routes = append(routes, rt)
		if lone == nil && s.sizeFor(s.first()) == 1 {
			lone = rt
		}
	}
	switch {
	case alone, lone != nil && busy:
		return nil
	case lone != nil:
		return []*route{lone}
	}
	return routes
}

// sizeFor is the size of a crash window that begins with a suspect. It depends on the suspect's crashes. Records that a
// member had out when it died come early among the suspects: the more crash windows are over, the larger they get.
func (s *suspects) sizeFor(first *Item) int {
	if first.route.Queue {
		return 1
	}
	size := s.firstCrashWindow >> min(first.Record.Crashes, 30)
	if first.Record.Crashes == 0 {
		size <<= min(s.crashWindows/growAfter, growMost)
	}
	return max(size, 1)
}

// fillCrashWindow begins the next crash window. Those with the most crashes come first.
func (s *suspects) fillCrashWindow(now time.Time) {
	slices.SortStableFunc(s.waiting, func(a, b *Item) int { return cmp.Compare(b.Record.Crashes, a.Record.Crashes) })
	size := s.sizeFor(s.waiting[0])
	n := min(size, len(s.waiting))
	s.crashWindow = append(s.crashWindow, s.waiting[:n]...)
	s.waiting = slices.Clone(s.waiting[n:])
	s.crashWindows++
	for _, item := range s.crashWindow {
		item.Suspect, item.alone = true, size == 1
		item.state, item.at = itemWanting, now
		item.route.wants = append(item.route.wants, item)
	}
}

// holdDue returns when the next Hold is due; zero = none.
func (d *Dispatcher) holdDue() time.Time {
	at := d.nextDue()
	for _, rt := range d.routes {
		for _, item := range rt.wants {
			if d.mayHold(item) {
				at = earliest(at, item.at)
			}
		}
	}
	if len(d.crashWindowsToBegin()) > 0 {
		at = earliest(at, d.now)
	}
	if at.IsZero() {
		return at
	}
	return later(at, d.calls.notBefore[CallHold])
}

// hold returns the next Hold, or nil. It asks for records that must be held before they are handed out, and for holds
// of records that are out for long.
func (d *Dispatcher) hold() *Call {
	if d.calls.busy(CallHold) || d.releases.busy() {
		return nil
	}
	if at := d.holdDue(); at.IsZero() || at.After(d.now) {
		return nil
	}
	for _, rt := range d.crashWindowsToBegin() {
		rt.suspects.fillCrashWindow(d.now)
	}
	room, next := d.holdRoom()
	var items []*Item
	for _, rt := range d.routes {
		for _, item := range rt.wants {
			if !item.at.After(d.now) && len(items) < d.maxHold && d.mayHold(item) && room.fits(item) {
				items = append(items, item)
			}
		}
	}
	if len(items) == 0 && next == nil {
		d.calls.notBefore[CallHold] = d.now.Add(d.opts.Gather)
		return nil
	}
	return d.holdCall(items, next, room.n)
}

// holdLate returns a Hold that stores holds of records that have been out for longer than a third of the lease. If this
// member dies, its successor then knows that they were out, and counts a crash for each. heartbeatDone makes it, so
// that there is one at most in each reading of the membership.
func (d *Dispatcher) holdLate() *Call {
	if d.calls.busy(CallHold) || d.releases.busy() {
		return nil
	}
	var items []*Item
	before := d.now.Add(-d.opts.Lease / 3)
	for _, rt := range d.routes {
		for _, seq := range sortedSeqs(rt.known) {
			item := rt.known[seq]
			if item.state == itemOut && !item.held && item.at.Before(before) && len(items) < d.maxHold {
				items = append(items, item)
			}
		}
	}
	if len(items) == 0 {
		return nil
	}
	return d.holdCall(items, nil, 0)
}

// holdCall asks for items, and for the next n records of a route without a key, in one call: both are holds, and a busy
// queue would pay for two round trips.
func (d *Dispatcher) holdCall(items []*Item, next *route, n int) *Call {
	want := core.HoldRequest{}
	for _, item := range items {
		want.Refs = append(want.Refs, item.Record.Ref)
	}
	want.CountDelivery = slices.ContainsFunc(items, func(item *Item) bool { return item.route.Hold })
	if next != nil {
		next.addNext(&want, n)
	}
	c := &Call{kind: CallHold, op: &holdOp{d: d, session: d.session, want: want, items: items, next: next}}
	d.calls.begin(c)
	return c
}

// holdDone takes in the answers about items, and reports whether there is one. An item can have left memory since. One
// that is out already (holdLate) stays out with any answer: its settle finds out.
func (d *Dispatcher) holdDone(items []*Item, got []core.HoldResult, c *Call) bool {
	if c.err != nil || len(got) < len(items) {
		if fenced(c.err) {
			d.rejoin()
			return false
		}
		d.calls.pause(CallHold)
		return false
	}
	d.calls.notBefore[CallHold] = time.Time{}
	for i, item := range items {
		if item.route.known[item.Record.Seq] != item {
			continue
		}
		if got[i].Status == core.HoldGranted {
			item.held = true
			item.Record.Deliveries = max(item.Record.Deliveries, got[i].Deliveries)
		}
		if item.state == itemWanting { // else it is out already
			d.holdAnswered(item, got[i].Status)
		}
	}
	return true
}

// holdAnswered takes in the answer about an item that waited for its hold: it is ready, or locked, or not what it was.
// A single item whose hold is stored lets the next ones of its key follow where several may go.
func (d *Dispatcher) holdAnswered(item *Item, holdStatus core.HoldStatus) {
	rt, k := item.route, item.key
	switch holdStatus {
	case core.HoldGranted:
		if item.tries > 0 {
			rt.unlocked()
		}
		item.tries = 0
		rt.wants = without(rt.wants, item)
		rt.makeReady(item)
		if k != nil && rt.Hold && k.single {
			k.single = item.isSuspect()
			d.advance(k)
		}
	case core.HoldSkipped:
		d.putOff(item)
	case core.HoldGone:
		d.outdated(item)
	}
}

// putOff takes a record that is locked out of memory, and out of its crash window: it can be long until it is free, and
// others need the place. It is read again later. Records behind it wait.
func (d *Dispatcher) putOff(item *Item) {
	rt, k := item.route, item.key
	if k != nil && rt.Pipelined > 1 {
		d.recall(item)
	}
	d.remove(item)
	rt.visitLocked(item)
	if k != nil {
		k.block(item.Record.Seq, blockReasonLocked)
		d.passQueue(k)
		d.advance(k)
	}
}

// outdated forgets a record that has changed since it was read, and schedules another read of its key.
func (d *Dispatcher) outdated(item *Item) {
	k := item.key
	d.revise(item)
	d.advance(k)
}

type holdOp struct {
	d       *Dispatcher
	session core.Session
	want    core.HoldRequest // first the refs of items, then the next records of a route without a key
	items   []*Item          // got has their results first, in this order
	next    *route           // the queue whose next records without a key are asked for; nil = none
	got     []core.HoldResult
}

func (o *holdOp) do(ctx context.Context, s core.OutboxStore) (err error) {
	o.got, err = s.Hold(ctx, o.session, o.want)
	return err
}

func (o *holdOp) done(c *Call) {
	d := o.d
	answered := d.holdDone(o.items, o.got, c)
	switch {
	case o.next == nil || d.byName[o.next.Name] != o.next:
	case answered:
		d.heldNext(o.next, &o.want, o.got[len(o.items):])
	default:
		o.next.queue.progress.missed()
	}
}
