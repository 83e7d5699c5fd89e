package dispatch

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// hintEvery is how many beats there are to one that stores how far the member has come, for whoever takes over from a
// dead one.
const hintEvery = 10

// peer is another member, as it was seen: since when its beat stands still.
type peer struct {
	beat     int64
	since    time.Time // the answer that first showed this beat
	token    int64     // of its presence
	attended bool      // that was there once
	flagged  time.Time // since when it is flagged and says nothing
}

// meetDue returns when the next Meet is due.
func (d *Dispatcher) meetDue() time.Time {
	at := earliest(d.beatSent.Add(d.opts.Lease/3), d.meetAt)
	at = earliest(earliest(at, d.tellAt()), d.staleAt())
	if !d.joined || len(d.removals) > 0 || len(d.moves) > 0 || d.freshBeat || d.stopping && d.idleForLeave() {
		at = d.now
	}
	return later(at, d.meetHold)
}

func (d *Dispatcher) idleForLeave() bool {
	return (d.out == 0 || d.quitting) && len(d.pending) == 0 && len(d.heeded) == 0 && d.reading == nil && d.taking == nil && d.dueing == nil && d.settling == nil && len(d.giving) == 0
}

// meet returns the next Meet, or nil.
func (d *Dispatcher) meet() *Call {
	if d.meeting != nil || d.meetDue().After(d.now) {
		return nil
	}
	m := core.Meeting{Self: core.Member{Name: d.opts.Name, Lease: d.opts.Lease, Handlers: max(d.opts.Handlers, 1), Free: d.worth()}}
	if !d.joined {
		if d.session == 0 {
			d.session = d.opts.NewSession()
		}
		m.Join = true
	}
	renews := !d.joined || d.freshBeat || len(d.presence.flags) > 0 || !d.now.Before(d.beatSent.Add(d.opts.Lease/3)) || len(d.moves)+len(d.removals) > 0 || d.stopping
	if renews { // else it only looks
		d.gapped = d.joined && d.now.Sub(d.beatSent) > d.opts.Lease/2
		d.beat++
		d.shown = m.Self.Free
	}
	m.Self.Session, m.Self.Beat = d.session, d.beat
	if !renews {
		m.Self.Beat = d.beaten // the latest one may not have arrived
	}
	for _, rt := range d.routes {
		m.Self.Serves = append(m.Self.Serves, core.Serving{Route: rt.Name, Units: rt.Units, Unable: d.unable[rt.Name] || d.stopping})
	}
	if d.stopping && (!d.joined || d.idleForLeave()) {
		m.Leave = true
	}
	m.Self.Presence = d.presence.token
	if renews && m.Self.Presence != 0 {
		d.presence.shown = m.Self.Presence
	}
	if !d.gapped || !d.has(ruleGapped) {
		m.Remove, m.Flag = d.removals, d.presence.flags
	}
	d.presence.flags = nil
	if m.Leave && d.out > 0 {
		m.Leave, m.Remove = false, []core.Removal{{Session: d.session, Beat: d.beat}}
	}
	m.Moves = d.moves
	if renews && d.beat%hintEvery == 0 || m.Leave {
		m.Moves = append(m.Moves, d.hints(m.Leave)...)
	}
	if renews {
		m.Moves = append(m.Moves, d.calm()...)
	}
	lowered, unheard := d.lowered(), d.unheard
	m.Moves = append(m.Moves, lowered...)
	d.unheard = nil
	d.removals, d.moves, d.freshBeat = nil, nil, false
	c := &Call{kind: callMeet}
	var roster core.Roster
	c.do = func(ctx context.Context, s core.OutboxStore) (err error) {
		roster, err = s.Meet(ctx, m)
		return err
	}
	c.done = func() {
		if d.met(&m, &roster, c, renews); c.err != nil {
			d.unheard = append(unheard, d.unheard...)
			return
		}
		d.hasLowered(lowered, unheard)
	}
	d.meeting = c
	return c
}

// hints are moves that store how far the member has come.
func (d *Dispatcher) hints(all bool) (moves []core.Move) { //nolint:revive // whether small steps count
	for _, rt := range d.routes {
		for _, u := range rt.sortedUnits() {
			low := d.lowest(rt, u.Slots())
			if g := rt.groupOf(u.From); g == nil || !g.loaded || low <= u.low || !all && low < u.low+step {
				continue
			}
			u.low = low
			moves = append(moves, d.hint(u, low))
		}
	}
	return moves
}

// hint is a move that stores how far the member has come in a unit.
func (d *Dispatcher) hint(u *unit, low int64) core.Move {
	return core.Move{Unit: u.Unit, From: d.session, To: d.session, Low: low, Careful: u.careful()}
}

// met takes in a roster.
func (d *Dispatcher) met(m *core.Meeting, roster *core.Roster, c *Call, renewed bool) { //nolint:revive // a fact
	if c.err != nil {
		d.meetHold, d.freshBeat = d.now.Add(d.backoff(callMeet)), true
		return
	}
	if m.Leave || d.quitting && !roster.Known {
		d.left = true
		return
	}
	if !roster.Known || d.has(ruleRestore) && d.epoch != "" && roster.Epoch != "" && roster.Epoch != d.epoch {
		d.distrust = d.distrust || roster.Known
		d.rejoin()
		return
	}
	if !d.joined {
		d.stirred = d.now
	}
	d.joined, d.epoch, d.roster = true, roster.Epoch, *roster
	if renewed {
		d.beatSent, d.beaten = c.sent, m.Self.Beat
	}
	d.noteOwn(m.Self.Presence, renewed, c)
	d.meetAt = time.Time{}
	d.observe(c)
	d.own(c)
	d.share()
	if pause := d.lookPause(); pause > 0 {
		d.meetAt = earliest(d.meetAt, c.sent.Add(pause))
	}
	if c := d.late(); c != nil {
		d.lateCall = c
	}
}

// lookPause is how long until the roster is looked at again, other than by a renewal; 0 = it is not. While there are
// others it is not long as long as there is something to do here, since there will be at who died, too.
func (d *Dispatcher) lookPause() time.Duration {
	busy := d.now.Sub(d.worked) < time.Second || slices.ContainsFunc(d.routes, func(rt *route) bool { return len(rt.known)+len(rt.keys)+len(rt.again) > 0 })
	switch {
	case busy && len(d.roster.Members) > 1:
		return lookEvery
	case busy, d.now.Sub(later(d.worked, d.stirred)) < stirredFor, slices.ContainsFunc(d.routes, func(rt *route) bool { return rt.Queue }):
		return restEvery
	}
	return 0
}

// observe notes whose beat stands still, and who is dead.
func (d *Dispatcher) observe(c *Call) {
	seen, present := map[core.Session]bool{d.session: true}, d.present()
	for i := range d.roster.Members {
		m := &d.roster.Members[i]
		if seen[m.Session] {
			continue
		}
		seen[m.Session] = true
		p, ok := d.peers[m.Session]
		dead := d.missed(m, &p, present, c)
		if !ok {
			d.stirred = d.now
		}
		if !ok || p.beat != m.Beat || d.gapped && d.has(ruleGapped) {
			p.beat, p.since = m.Beat, d.now
			d.peers[m.Session] = p
			continue
		}
		d.peers[m.Session] = p
		if lease := later0(m.Lease, d.opts.Lease); dead || c.sent.Sub(p.since) >= lease {
			d.removals = append(d.removals, core.Removal{Session: m.Session, Beat: m.Beat})
		} else {
			d.meetAt = earliest(d.meetAt, p.since.Add(lease))
		}
	}
	for s := range d.peers {
		if !seen[s] {
			delete(d.peers, s)
			d.stirred = d.now
		}
	}
	ghosts := map[core.Session]bool{}
	for i := range d.roster.Units {
		u := &d.roster.Units[i]
		if u.Owner == 0 || seen[u.Owner] || d.byName[u.Unit.Route] == nil {
			continue
		}
		ghosts[u.Owner] = true
		since, ok := d.ghosts[u.Owner]
		if !ok || d.gapped {
			d.ghosts[u.Owner] = d.now
		} else if c.sent.Sub(since) >= d.opts.Lease {
			d.vanished[u.Owner] = true // and its units are free to take
			continue
		}
		d.meetAt = earliest(d.meetAt, d.ghosts[u.Owner].Add(d.opts.Lease))
	}
	for s := range d.ghosts {
		if !ghosts[s] {
			delete(d.ghosts, s)
		}
	}
}

// later0 returns lease, or def if it is not known.
func later0(lease, def time.Duration) time.Duration {
	if lease <= 0 {
		return def
	}
	return lease
}

// own takes in which units are the member's.
func (d *Dispatcher) own(c *Call) {
	type part struct {
		slots core.Slots
		low   int64
	}
	fresh := map[*route]*part{}
	for i := range d.roster.Units {
		o := &d.roster.Units[i]
		rt := d.byName[o.Unit.Route]
		if rt == nil {
			continue
		}
		u := rt.units[o.Unit]
		if u != nil && o.Owner == d.session && o.Term > u.term && !d.lostAfter(o.Unit, c) { // it went, and came back
			d.drop(rt, o.Unit.Slots())
			continue
		}
		switch {
		case o.Owner == d.session && u == nil:
			if d.lostAfter(o.Unit, c) {
				continue // the roster is older than that
			}
			delete(d.lost, o.Unit)
			defer delete(d.haunted, o.Unit)
			rt.units[o.Unit] = &unit{Unit: o.Unit, route: rt, term: o.Term, low: o.Low}
			care := o.Careful
			if d.haunted[o.Unit] { // its owner vanished without a removal, which would have said how far to take care
				care = math.MaxInt64
			}
			if care > 0 {
				d.windows = 0
			}
			for s := o.Unit.From; s < o.Unit.To; s++ {
				rt.careful[s] = care
			}
			p := fresh[rt]
			if p == nil {
				p = &part{low: o.Low}
				fresh[rt] = p
			}
			p.slots |= o.Unit.Slots()
			p.low = min(p.low, o.Low)
		case o.Owner != d.session && u != nil && d.has(ruleUnitFence):
			d.drop(rt, o.Unit.Slots())
		}
	}
	for _, rt := range d.routes {
		if p := fresh[rt]; p != nil {
			d.addSlots(rt, p.slots, p.low)
		}
	}
}

// lostAfter reports whether a unit went after c was sent.
func (d *Dispatcher) lostAfter(u core.Unit, c *Call) bool {
	at, ok := d.lost[u]
	return ok && !c.sent.After(at)
}
