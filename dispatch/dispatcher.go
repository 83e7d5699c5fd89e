package dispatch

import (
	"time"

	"github.com/waybill-go/waybill/core"
)

// Dispatcher is one member of an outbox. Make one with New.
//
// Each part owns its data and knows nothing of the others. Work that concerns several parts is a method of the
// Dispatcher itself. Only the goroutine of the owner uses a Dispatcher. A Call runs in another goroutine: it uses
// the values that New gave it, and no others.
type Dispatcher struct {
	*env
	routes []*route
	byName map[string]*route

	self     self     // what the member tells about itself
	peers    peers    // what it has seen of the others
	presence presence // the token that shows that its process is there
	handlers handlers // of queues
	calls    calls    // the calls under way, and how long each may take
	db       database // what read results say of transactions
	reads    reads    // the result that is being taken in
	timers   timers   // when to ask the store for due records
	settles  settles  // outcomes to be stored
	notices  notices  // notices under way
	releases releases // partitions that are being released
	work     work     // what is handed out
	err      error    // the store's latest error; nil if its latest answer was none
}

// work counts the items that are handed out, and knows when there was activity.
type work struct {
	out      int       // items handed out
	handedAt time.Time // when something was handed out
	activeAt time.Time // when Wake was called, or a member joined or left
}

// New returns a Dispatcher that has not joined yet.
func New(opts Options) *Dispatcher {
	e := &env{opts: opts.withDefaults(), bounds: usual}
	d := &Dispatcher{
		env: e, byName: map[string]*route{}, self: newSelf(e), peers: newPeers(), presence: presence{env: e}, handlers: handlers{env: e, free: 1},
		calls: calls{env: e}, db: newDatabase(e), notices: newNotices(), releases: newReleases(e), settles: settles{env: e},
	}
	for _, r := range e.opts.Routes {
		rt := newRoute(e, r)
		d.routes = append(d.routes, rt)
		d.byName[r.Name] = rt
	}
	return d
}

// Session returns the member's session, 0 before it joined.
func (d *Dispatcher) Session() core.Session { return d.session }

// Err returns the latest error of the store, nil if its latest answer was none.
func (d *Dispatcher) Err() error { return d.err }

// Calls returns the calls that are to be made now. Each is to be run once, and then given to Done. A member that has
// not joined only sends a Heartbeat. One that stops reads and takes nothing more: it settles what comes back, releases
// its partitions by leaving, and renews until then. Each kind of call decides by itself whether it is due; see call.go.
func (d *Dispatcher) Calls(now time.Time) (calls []*Call) {
	d.tick(now)
	if d.self.left {
		return nil
	}
	d.noteFree()
	add := func(c *Call) {
		if c != nil {
			// The first Heartbeat draws the session while it is made, so the session is read only here.
			c.sent, c.gen, c.limit = now, d.session, d.calls.limit(c.kind)
			calls = append(calls, c)
		}
	}
	add(d.heartbeat())
	if !d.self.joined {
		return calls
	}
	// The releases come before the others: while partitions are being released, read, due and hold return nil, and
	// a settle does not wait for more outcomes.
	for _, c := range d.releaseCalls() {
		add(c)
	}
	add(d.settle())
	add(d.calls.late)
	d.calls.late = nil
	if !d.self.stopping {
		add(d.read())
		add(d.due())
		add(d.hold())
	}
	return calls
}

// Done takes in the answer of c. The answer to a call of an earlier session is dropped: it is about partitions and
// records that are another member's by now. A failed call is taken in, too: each kind puts its work back in line.
func (d *Dispatcher) Done(now time.Time, c *Call) {
	d.tick(now)
	d.calls.end(c)
	if c.gen != d.session {
		return // of a session that has ended
	}
	if c.err != nil {
		d.err = c.err
		d.calls.fails[c.kind]++
	} else {
		d.err = nil
		d.calls.fails[c.kind] = 0
	}
	d.presence.note(c)
	c.op.done(c)
	if c.kind != CallHeartbeat {
		return
	}
	d.presence.paceShow()
	// A slow store leaves too little of the grace to start anything with a token: the member withdraws the token.
	if d.presence.slow && d.presence.shown != 0 {
		d.self.renewNow = true
	}
}

// Next returns when Calls will have something to do even if nothing happens; zero if never. Next has the same
// conditions as Calls. A time that only Calls knows would be slept through; one that only Next knows would let the
// owner call Calls in a loop. A kind of call that is under way counts as never: its answer wakes the owner.
func (d *Dispatcher) Next() (next time.Time) {
	if d.self.left {
		return next
	}
	if !d.calls.busy(CallHeartbeat) {
		next = earliest(next, d.heartbeatDue())
	}
	if !d.self.joined {
		return next
	}
	if !d.calls.busy(CallSettle) {
		next = earliest(next, d.settleDue())
	}
	next = earliest(next, d.releases.patience())
	if d.self.stopping || d.releases.busy() {
		return next
	}
	for _, rt := range d.routes {
		next = earliest(next, rt.releaseDue())
	}
	if !d.calls.busy(CallRead) {
		next = earliest(next, d.readDue())
	}
	if !d.calls.busy(CallDue) && d.room() {
		next = earliest(next, d.timers.at)
	}
	if !d.calls.busy(CallHold) {
		next = earliest(next, d.holdDue())
	}
	return next
}

// Wake says that something may have been staged on routes, or on any route if none is named. A wake-up rarely concerns
// due timers, so relays ask for those less often.
func (d *Dispatcher) Wake(now time.Time, routes ...string) {
	d.tick(now)
	d.work.activeAt = d.now
	pause := min(d.opts.PollMin, duePause)
	wake := func(rt *route) {
		rt.pace.wake(now)
		rt.queue.askNow(now)
		if rt.Queue {
			pause = 0
		}
	}
	for _, name := range routes {
		if rt := d.byName[name]; rt != nil {
			wake(rt)
		}
	}
	if len(routes) == 0 {
		for _, rt := range d.routes {
			wake(rt)
		}
	}
	d.timers.wake(now, pause)
}

// Unwatched says that no wait was under way for a moment: a message that was staged may be due soon. The next read
// comes within unwatchedPoll, however long the pause was.
func (d *Dispatcher) Unwatched(now time.Time) {
	d.tick(now)
	d.timers.wake(now, duePoll)
	for _, rt := range d.routes {
		rt.pace.readAt = earliest(rt.pace.readAt, now.Add(unwatchedPoll))
	}
}

// unwatchedPoll bounds the pause between reads while no wait is under way.
const unwatchedPoll = 5 * time.Second

// SetAble says whether the member can serve a route now. A member that cannot gives its partitions to one that can.
func (d *Dispatcher) SetAble(route string, able bool) {
	if d.self.unavailable[route] == able {
		d.self.unavailable[route] = !able
		d.self.renewNow = true
	}
}

// SetHandingOut says whether records of a route are handed out now. While they are not, no suspect of the route keeps
// others waiting.
func (d *Dispatcher) SetHandingOut(route string, handing bool) {
	if rt := d.byName[route]; rt != nil {
		rt.shut = !handing
	}
}

// Stop ends reading and handing out. The owner concludes what is out; then the member leaves.
func (d *Dispatcher) Stop() {
	d.self.stopping = true
	for _, rt := range d.routes {
		d.reportUncertain(rt, core.AllSlots)
	}
}

// Quit is Stop for a member that cannot wait for its records that are out. Known outcomes are stored. Then the member
// ends as if it had died, but at once: each record that is still out counts a crash and is free.
func (d *Dispatcher) Quit() { d.self.stopping, d.self.quitting = true, true }

// Left reports that the member has left after Stop.
func (d *Dispatcher) Left() bool { return d.self.left }
