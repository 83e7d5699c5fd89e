package dispatch

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Meet is the one call about members and owners. Each renews the member or only looks, and returns the roster. With it
// go all that this member has decided about others since: members to be removed, flags, moves of units, hints. So a
// member without work makes one call in a third of its lease, and each decision rests on the roster before it. A
// decision that the store does not accept, because another member was first, is left out there. The next roster shows
// that, and the decision is made anew.

const (
	// hintEvery: every so many beats, one also stores how far the member has come. A member that takes over from a
	// dead one begins there.
	hintEvery = 10
	// restEvery is how often a member without work looks at the roster, as long as there was activity within
	// activeFor. Later its renewals show it all that it must know.
	restEvery = time.Second
	activeFor = 10 * time.Second
)

// meetDue returns when the next Meet is due.
func (d *Dispatcher) meetDue() time.Time {
	at := earliest(d.self.renewAt(), d.peers.lookAt)
	at = earliest(earliest(at, d.handlers.tellAt(d.peers.others())), d.staleAt())
	if !d.self.joined || len(d.peers.removals) > 0 || len(d.peers.moves) > 0 || d.self.beatNow || d.self.stopping && d.idleForLeave() {
		at = d.now
	}
	return later(at, d.calls.notBefore[callMeet])
}

// idleForLeave reports whether a stopping member has nothing left to store or to wait for.
func (d *Dispatcher) idleForLeave() bool {
	return (d.work.out == 0 || d.self.quitting) && d.settles.empty() && d.calls.quiet() && !d.giving.busy()
}

// meet returns the next Meet, or nil. A member whose own last beat came late removes no other: they may have seen
// as little of it.
func (d *Dispatcher) meet() *Call {
	if d.calls.busy(callMeet) || d.meetDue().After(d.now) {
		return nil
	}
	renews := d.renews()
	m := core.Meeting{Self: d.introduce(renews), Join: !d.self.joined, AfterControl: d.controls.bound()}
	if !slices.ContainsFunc(d.routes, func(rt *route) bool { return len(rt.groups) > 0 }) {
		m.AfterControl = math.MaxInt64 // they concern none of its units, and a new one is read anyway
	}
	m.Leave = d.self.stopping && (!d.self.joined || d.idleForLeave())
	if !d.self.gapped {
		m.Remove, m.Flag = d.peers.removals, d.presence.flags
	}
	if m.Leave && d.work.out > 0 { // as if it had died
		m.Leave, m.Remove = false, []core.Removal{{Session: d.session, Beat: d.self.beat}}
	}
	m.Moves = d.peers.moves
	if renews && d.self.beat%hintEvery == 0 || m.Leave {
		m.Moves = append(m.Moves, d.hints(m.Leave)...)
	}
	if renews {
		m.Moves = append(m.Moves, d.endCare()...)
	}
	lowered, waiting := d.lowered(), d.controls.lowering
	m.Moves = append(m.Moves, lowered...)
	d.peers.removals, d.peers.moves, d.presence.flags = nil, nil, nil
	d.controls.lowering, d.self.beatNow = nil, false
	c := &Call{kind: callMeet}
	c.op = &meetOp{d: d, m: m, renews: renews, lowered: lowered, waiting: waiting}
	d.calls.begin(c)
	return c
}

// renews reports whether the next Meet is a beat. Otherwise it only reads the roster.
func (d *Dispatcher) renews() bool {
	return !d.self.joined || d.self.beatNow || len(d.presence.flags) > 0 || !d.now.Before(d.self.renewAt()) ||
		len(d.peers.moves)+len(d.peers.removals) > 0 || d.self.stopping
}

// introduce returns the member's own row for a Meet. A look repeats the latest beat that was answered: it must not make
// the row look newer or older.
func (d *Dispatcher) introduce(renews bool) core.Member {
	if d.session == 0 {
		d.session = d.opts.NewSession()
	}
	m := core.Member{Name: d.opts.Name, Lease: d.opts.Lease, Handlers: max(d.opts.Handlers, 1), Free: d.handlers.worth(), Session: d.session, Presence: d.presence.toShow()}
	m.Beat = d.self.arrived // the latest one may not have arrived
	if renews {
		d.self.nextBeat()
		m.Beat, d.handlers.shown = d.self.beat, m.Free
		if m.Presence != 0 {
			d.presence.shown = m.Presence
		}
	}
	for _, rt := range d.routes {
		m.Serves = append(m.Serves, core.Serving{Route: rt.Name, Units: rt.Units, Unable: d.self.unable[rt.Name] || d.self.stopping})
	}
	return m
}

// hints returns moves that store how far the member has come in its units. A successor of a dead member begins there. A
// hint is stored only when it has grown by a step, since each costs a write.
func (d *Dispatcher) hints(all bool) (moves []core.Move) {
	for _, rt := range d.routes {
		lows := rt.lows()
		for _, u := range rt.sortedUnits() {
			low := lows.of(u.Slots())
			if !rt.hasLoaded(u) || low <= u.low || !all && low < u.low+step {
				continue
			}
			u.low = low
			moves = append(moves, u.hint(low))
		}
	}
	return moves
}

// endCare ends the care for slots in which no record is left that a dead member may have had out. It returns the moves
// that store this.
func (d *Dispatcher) endCare() (moves []core.Move) {
	for _, rt := range d.routes {
		if slices.Max(rt.careful[:]) == 0 {
			continue
		}
		lows := rt.lows()
		for _, u := range rt.sortedUnits() {
			care := u.careful()
			if care == 0 || !rt.hasLoaded(u) {
				continue
			}
			low := lows.of(u.Slots())
			if low < care {
				continue
			}
			for s := u.From; s < u.To; s++ {
				rt.careful[s] = 0
			}
			u.low = max(u.low, low)
			moves = append(moves, u.hint(low))
		}
	}
	return moves
}

// met takes in a roster. If there is none, the beat is repeated after a short pause: the lease runs. A roster without
// this member, or of another life of the database, ends the session. Otherwise the roster shows which members are dead,
// which units are this member's, and how to divide them; the next Meet carries the conclusions.
func (d *Dispatcher) met(m *core.Meeting, roster *core.Roster, c *Call, renewed bool) {
	if c.err != nil {
		d.calls.pause(callMeet)
		d.self.beatNow = true
		return
	}
	if m.Leave || d.self.quitting && !roster.Known {
		d.self.left = true
		return
	}
	if !roster.Known || d.db.epoch != "" && roster.Epoch != "" && roster.Epoch != d.db.epoch {
		d.db.wentBack = d.db.wentBack || roster.Known
		d.rejoin()
		return
	}
	if !d.self.joined {
		d.work.activeAt = d.now
	}
	d.noteOthers(roster)
	d.self.joined, d.db.epoch, d.peers.roster = true, roster.Epoch, *roster
	if renewed {
		d.self.beatSent, d.self.arrived = c.sent, m.Self.Beat
	}
	d.noteOwn(m.Self.Presence, renewed, c)
	if roster.Told {
		d.readControls()
	}
	d.peers.lookAt = time.Time{}
	d.observe(c)
	d.own(c)
	d.share()
	if pause := d.lookPause(); pause > 0 {
		d.peers.lookBy(c.sent.Add(pause))
	}
	if c := d.holdLate(); c != nil {
		d.calls.late = c
	}
}

// lookPause is the pause until the roster is read again, renewals apart; 0 = it is not read. It is short while there
// are other members and there is work here: one of them may die.
func (d *Dispatcher) lookPause() time.Duration {
	busy := d.now.Sub(d.work.handedAt) < time.Second || slices.ContainsFunc(d.routes, func(rt *route) bool { return len(rt.known)+len(rt.keys)+len(rt.again.bySeq) > 0 })
	switch {
	case busy && d.peers.others():
		return lookEvery
	case busy, d.now.Sub(later(d.work.handedAt, d.work.activeAt)) < activeFor, slices.ContainsFunc(d.routes, func(rt *route) bool { return rt.Queue }):
		return restEvery
	}
	return 0
}

type meetOp struct {
	d       *Dispatcher
	m       core.Meeting
	renews  bool
	lowered []core.Move
	waiting []core.Control
	roster  core.Roster
}

func (o *meetOp) do(ctx context.Context, s core.OutboxStore) (err error) {
	o.roster, err = s.Meet(ctx, o.m)
	return err
}

func (o *meetOp) done(c *Call) {
	d := o.d
	if d.met(&o.m, &o.roster, c, o.renews); c.err != nil {
		d.controls.lowering = append(o.waiting, d.controls.lowering...)
		return
	}
	d.hasLowered(o.lowered, o.waiting)
}
