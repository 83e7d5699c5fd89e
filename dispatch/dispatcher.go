package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Dispatcher is one member of an outbox. Make one with New.
type Dispatcher struct {
	opts   Options
	traits core.StoreTraits
	now    time.Time
	off    rule // rules that a test has switched off
	// keyDepth is the constant; tests make it small.
	keyDepth int

	routes []*route
	byName map[string]*route

	// Membership.
	session  core.Session // 0: to join
	beat     int64
	beaten   int64 // the latest beat that is known to have arrived
	joined   bool
	beatSent time.Time // when the latest beat that succeeded was sent
	gapped   bool      // the latest beat came late: it removes nobody
	peers    map[core.Session]peer
	ghosts   map[core.Session]time.Time // owners without a row, since when
	vanished map[core.Session]bool      // those of which it was too long
	haunted  map[core.Unit]bool         // units that were theirs
	removals []core.Removal
	moves    []core.Move
	roster   core.Roster
	epoch    string
	distrust bool            // the database went back: hints say nothing
	unable   map[string]bool // routes that this member cannot serve now
	free     int
	// Of queues: how many free handlers others were told of, since when none is free, and whose turn an odd one is.
	shown     int
	busySince time.Time
	odd       bool
	quitting  bool

	presence presence

	// Reading.
	last     int64 // the greatest Page.Last
	horizons []horizon
	running  map[int64]time.Time // marks of running transactions, since when they are seen
	watched  map[int64]bool
	dueSeen  bool // nothing more was due when the store was last asked
	paging   bool // a page is being taken in
	touched  []*key
	ranges   int                     // ranges read, to give sweeps their share
	heeding  map[int64]*core.Control // by number: seen, and not deleted yet
	unheard  []core.Control          // to be heeded when a hint is lowered

	// Calls under way; one of each kind at a time, but for give-ups.
	meeting, reading, taking, dueing, settling *Call
	readFor                                    []*route // of reading
	giving                                     []*unit  // which are given up
	givingTill                                 time.Time
	gaveSome                                   bool
	lateCall                                   *Call                   // a Take that writes down what is out for long
	lost                                       map[core.Unit]time.Time // units that went, and when

	meetAt                          time.Time // when the roster is to be looked at
	meetHold                        time.Time // no Meet before
	dueAt, settleAt, takeAt, readAt time.Time
	dueSent                         time.Time
	fails                           [callKinds]int
	patience                        [callKinds]int // how often the limit was doubled
	freshBeat                       bool           // something must be told at once

	pending  []*Item        // concluded, to be stored
	heeded   []core.Control // to be deleted
	pendedAt time.Time      // when the oldest of pending was concluded
	urgent   bool           // somebody waits for one of pending
	out      int            // items handed out
	worked   time.Time      // when something was handed out
	stirred  time.Time      // when a hint came, or a member joined or went
	window   []*Item        // suspects under way
	suspects []*Item        // suspects that wait for a window
	windows  int            // that were begun since a unit came that a dead member may have had
	stopping bool
	left     bool
	err      error
}

// New returns a Dispatcher that has not joined yet.
func New(traits core.StoreTraits, opts Options) *Dispatcher {
	d := &Dispatcher{
		opts: opts.withDefaults(), traits: traits, keyDepth: keyDepth, byName: map[string]*route{}, peers: map[core.Session]peer{}, ghosts: map[core.Session]time.Time{},
		running: map[int64]time.Time{}, watched: map[int64]bool{}, heeding: map[int64]*core.Control{}, unable: map[string]bool{}, lost: map[core.Unit]time.Time{}, vanished: map[core.Session]bool{}, haunted: map[core.Unit]bool{}, free: 1,
	}
	for _, r := range d.opts.Routes {
		rt := newRoute(r)
		d.routes = append(d.routes, rt)
		d.byName[r.Name] = rt
	}
	return d
}

// Session returns the member's session, 0 before it joined.
func (d *Dispatcher) Session() core.Session { return d.session }

// Err returns the latest error of the store, nil if its latest answer was none.
func (d *Dispatcher) Err() error { return d.err }

// Deadline returns when the latest lease ends. Nothing may be started after it.
func (d *Dispatcher) Deadline() time.Time {
	if !d.joined {
		return time.Time{}
	}
	return d.beatSent.Add(d.opts.Lease)
}

type callKind uint8

const (
	callMeet callKind = iota
	callRead
	callTake
	callDue
	callSettle
	callGiveUp
	callKinds
)

// Call is one call of the store. Do runs it, on any goroutine, and Done takes its answer in.
type Call struct {
	kind callKind
	do   func(ctx context.Context, s core.OutboxStore) error
	done func()
	err  error
	sent time.Time
	// limit is how long its answer may take.
	limit time.Duration
	// gen tells a call of an earlier session.
	gen core.Session
}

// Limit returns how long to wait for the answer. A call that ran into it gets twice as long the next time: what a slow
// store undoes whenever it is interrupted would never get done.
func (c *Call) Limit() time.Duration { return c.limit }

// Do makes the call. The store's error is kept for Done.
func (c *Call) Do(ctx context.Context, s core.OutboxStore) { c.err = c.do(ctx, s) }

// Lose makes an answer that came the error err, as if it was lost; for tests of the owner.
func (c *Call) Lose(err error) { c.err = err }

// Name returns the method that the call calls, for logs and metrics.
func (c *Call) Name() string {
	return [...]string{"meet", "read", "take", "due", "settle", "give up"}[c.kind]
}

// Err returns the store's error.
func (c *Call) Err() error { return c.err }

// Calls returns the calls that are to be made now. Each is to be run once, and then given to Done.
func (d *Dispatcher) Calls(now time.Time) (calls []*Call) {
	d.tick(now)
	if d.left {
		return nil
	}
	d.noteFree()
	add := func(c *Call) {
		if c != nil {
			c.sent, c.gen, c.limit = now, d.session, d.limit(c.kind)
			calls = append(calls, c)
		}
	}
	add(d.meet())
	if !d.joined {
		return calls
	}
	for _, c := range d.giveUps() {
		add(c)
	}
	add(d.settle())
	add(d.lateCall)
	d.lateCall = nil
	if !d.stopping {
		add(d.read())
		add(d.due())
		add(d.take())
	}
	return calls
}

// Done takes in the answer of c.
func (d *Dispatcher) Done(now time.Time, c *Call) {
	d.tick(now)
	for _, under := range []**Call{&d.meeting, &d.reading, &d.taking, &d.dueing, &d.settling} {
		if *under == c {
			*under = nil
		}
	}
	d.learn(c)
	if c.gen != d.session {
		return // of a session that has ended
	}
	if c.err != nil {
		d.err = c.err
		d.fails[c.kind]++
	} else {
		d.err = nil
		d.fails[c.kind] = 0
		d.presence.answered = later(d.presence.answered, c.sent)
	}
	c.done()
}

func (d *Dispatcher) tick(now time.Time) {
	if now.After(d.now) {
		d.now = now
	}
}

// Next returns when Calls has something to do although nothing happened; zero if never.
func (d *Dispatcher) Next() time.Time {
	if d.left {
		return time.Time{}
	}
	var next time.Time
	soonest := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if d.meeting == nil {
		soonest(d.meetDue())
	}
	if !d.joined {
		return next
	}
	if d.settling == nil {
		soonest(d.settleDue())
	}
	if len(d.giving) > 0 && d.now.Before(d.givingTill) {
		soonest(d.givingTill)
	}
	if d.stopping || len(d.giving) > 0 {
		return next
	}
	for _, rt := range d.routes {
		if rt.leaving == 0 {
			continue
		}
		for _, u := range rt.units {
			if u.leaving {
				soonest(u.tryAt)
			}
		}
	}
	if d.reading == nil {
		soonest(d.readDue())
	}
	if d.dueing == nil && d.room() {
		soonest(d.dueAt)
	}
	if d.taking == nil {
		soonest(d.takeDue())
	}
	return next
}

// Wake says that something may have been staged on routes, or on any route if none is named. Relays ask for what came
// due less often: most wake-ups are about something else.
func (d *Dispatcher) Wake(now time.Time, routes ...string) {
	d.tick(now)
	d.stirred = d.now
	pause := min(d.opts.PollMin, duePause)
	wake := func(rt *route) {
		rt.readAt, rt.idle = now, 0
		rt.lookNext(now)
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
	at := d.dueSent.Add(pause)
	if at.Before(now) {
		at = now
	}
	d.dueAt = earliest(d.dueAt, at)
}

// SetAble says whether the member can serve a route now. One that cannot gives its units to one that can.
func (d *Dispatcher) SetAble(route string, able bool) { //nolint:revive // a state, not a mode
	if d.unable[route] == able {
		d.unable[route] = !able
		d.freshBeat = true
	}
}

// Stop ends reading and handing out. What is out is to be concluded; then the member leaves.
func (d *Dispatcher) Stop() { d.stopping = true }

// Left reports that the member has left after Stop.
func (d *Dispatcher) Left() bool { return d.left }

// RouteStatus says how a route stands at this member.
type RouteStatus struct {
	// Owned and Units are the units that this member owns, and all there are; Units is 0 if nobody serves the route.
	Owned, Units int
	// Ready, Out and Waiting count records: to be handed out, handed out, and read but behind others of their key.
	Ready, Out, Waiting int
	// Keys is how many keys are remembered, and Elsewhere how many records others hold that this member will look at
	// again.
	Keys, Elsewhere int
	// Behind reports that there is more to read.
	Behind bool
}

// Status returns how a route stands.
func (d *Dispatcher) Status(route string) (st RouteStatus) {
	rt := d.byName[route]
	if rt == nil {
		return st
	}
	st.Owned, st.Ready, st.Waiting, st.Keys, st.Elsewhere = len(rt.units), len(rt.ready), rt.queued, len(rt.keys), len(rt.again)
	st.Behind = rt.more || len(rt.toRead) > 0
	for _, it := range rt.known {
		if it.state == itemOut {
			st.Out++
		}
	}
	for i := range d.roster.Units {
		if d.roster.Units[i].Unit.Route == route {
			st.Units++
		}
	}
	return st
}

// Roster returns who was there and who owned what when the store was last asked. It must not be changed.
func (d *Dispatcher) Roster() *core.Roster { return &d.roster }

const (
	// maxLimit bounds the limit of a call whose like has not run into it.
	maxLimit = 5 * time.Second
	// maxPatience is how often the limit of a call is doubled.
	maxPatience = 5
)

func (d *Dispatcher) baseLimit(k callKind) time.Duration {
	if k == callMeet { // so that there is time for another one
		return min(d.opts.Lease/3, maxLimit)
	}
	return min(d.opts.Lease/2, maxLimit)
}

func (d *Dispatcher) limit(k callKind) time.Duration {
	limit := d.baseLimit(k) << d.patience[k]
	if k == callMeet { // what comes later is no good
		return min(limit, d.opts.Lease)
	}
	return limit
}

// learn takes in how long a call took.
func (d *Dispatcher) learn(c *Call) {
	switch took := d.now.Sub(c.sent); {
	case took >= c.limit:
		if c.limit == d.limit(c.kind) && d.patience[c.kind] < maxPatience {
			d.patience[c.kind]++
		}
	case c.err == nil && took < d.baseLimit(c.kind):
		d.patience[c.kind] = 0
	}
}

// backoff is how long to wait after so many failures in a row.
func (d *Dispatcher) backoff(k callKind) time.Duration {
	n := min(d.fails[k], 8)
	return min(10*time.Millisecond<<n, d.opts.Lease/6)
}

func fenced(err error) bool { return errors.Is(err, core.ErrFenced) }

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// rejoin ends the session: what it held is somebody else's now. What is out is not taken back; its outcomes are
// ignored.
func (d *Dispatcher) rejoin() {
	d.session, d.joined, d.beat, d.beaten, d.beatSent, d.gapped = 0, false, 0, 0, time.Time{}, false
	d.roster, d.epoch, d.last = core.Roster{}, "", 0
	d.meeting, d.reading, d.taking, d.dueing, d.settling, d.giving, d.lateCall = nil, nil, nil, nil, nil, nil, nil
	d.horizons, d.pending, d.heeded, d.unheard, d.window, d.suspects, d.removals, d.moves = nil, nil, nil, nil, nil, nil, nil, nil
	clear(d.running)
	clear(d.watched)
	clear(d.heeding)
	clear(d.peers)
	clear(d.ghosts)
	clear(d.lost)
	clear(d.vanished)
	clear(d.haunted)
	d.presence.shown, d.presence.flagged, d.presence.answered, d.presence.flags = 0, false, time.Time{}, nil
	d.out, d.dueSeen, d.paging, d.touched = 0, false, false, nil
	d.meetAt, d.meetHold, d.dueAt, d.settleAt, d.takeAt, d.readAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}, time.Time{}, time.Time{}
	for i, rt := range d.routes {
		d.tellLost(rt)
		for _, it := range rt.known {
			it.lost = true
		}
		fresh := newRoute(rt.Route)
		fresh.topics, fresh.shut = rt.topics, rt.shut
		d.routes[i], d.byName[rt.Name] = fresh, fresh
	}
}

// rule is one of the rules that keep the promises; a test switches each off, to see that it is needed.
type rule uint64

const (
	ruleLoadHeld    rule = 1 << iota // a new unit's waiting records come first
	ruleHint                         // a unit's hint is below all that may still appear
	ruleUpper                        // what may be running goes up to a mark drawn after the snapshot
	ruleHazardKeys                   // a key's page behind a walk is thrown away
	rulePassHazard                   // keyed records behind a walk are read by key
	ruleRecent                       // what was settled after a read was sent is not taken from it
	ruleForeignHold                  // what another session holds is not handed out
	ruleRestore                      // a database that went back ends the session
	ruleTakeLocked                   // what is locked holds its key
	ruleControl                      // control records are heeded
	ruleTwoRetries                   // of several retries of a key the first goes first
	ruleUnitFence                    // a unit that is another's is dropped
	ruleLoadOut                      // what others have out comes with a unit
	ruleGapped                       // who comes late removes nobody
	ruleLimbo                        // a key goes on when the end of a record is stored
	ruleAgain                        // what another held is read again
	ruleDeadline                     // nothing is handed out after the deadline
	rulePresence                     // who is flagged starts nothing
	ruleLower                        // a hint is lowered before a control record goes
	ruleTheirs                       // control records of a unit that goes are its next owner's
	ruleSweep                        // sweeps find what was forgotten; nothing else should rely on them
)

func (d *Dispatcher) has(r rule) bool { return d.off&r == 0 }

// ordered reports whether records of the route wait for earlier ones of their key.
func (rt *route) ordered() bool { return rt.Order == waybill.OrderPerKey }
