package dispatch

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core/outbox"
)

// hintEvery is how many beats there are to one that stores how far the member has come, for whoever takes over from a
// dead one.
const hintEvery = 10

// peer is another member, as it was seen: since when its beat stands still.
type peer struct {
	beat  int64
	since time.Time // the answer that first showed this beat
}

// meetDue returns when the next Meet is due.
func (d *Dispatcher) meetDue() time.Time {
	at := earliest(d.beatSent.Add(d.opts.Lease/3), d.meetAt)
	at = earliest(at, d.tellAt())
	if !d.joined || len(d.removals) > 0 || len(d.moves) > 0 || d.freshBeat || d.stopping && d.idleForLeave() {
		at = d.now
	}
	return later(at, d.meetHold)
}

func (d *Dispatcher) idleForLeave() bool {
	return (d.out == 0 || d.quitting) && len(d.pending) == 0 && len(d.heeded) == 0 && d.reading == nil && d.taking == nil && d.dueing == nil && d.settling == nil && d.giving == nil
}

// meet returns the next Meet, or nil.
func (d *Dispatcher) meet() *Call {
	if d.meeting != nil || d.meetDue().After(d.now) {
		return nil
	}
	m := outbox.Meeting{Self: outbox.Member{Name: d.opts.Name, Lease: d.opts.Lease, Handlers: max(d.opts.Handlers, 1), Free: d.worth()}}
	if !d.joined {
		if d.session == 0 {
			d.session = d.opts.NewSession()
		}
		m.Join = true
	}
	renews := !d.joined || d.freshBeat || !d.now.Before(d.beatSent.Add(d.opts.Lease/3)) || len(d.moves)+len(d.removals) > 0 || d.stopping
	if renews { // else it only looks
		d.gapped = d.joined && d.now.Sub(d.beatSent) > d.opts.Lease/2
		d.beat++
		d.shown = m.Self.Free
	}
	m.Self.Session, m.Self.Beat = d.session, d.beat
	for _, rt := range d.routes {
		m.Self.Serves = append(m.Self.Serves, outbox.Serving{Route: rt.Name, Units: rt.Units, Unable: d.unable[rt.Name] || d.stopping})
	}
	if d.stopping && (!d.joined || d.idleForLeave()) {
		m.Leave = true
	}
	if !d.gapped || !d.has(ruleGapped) {
		m.Remove = d.removals
	}
	if m.Leave && d.out > 0 {
		m.Leave, m.Remove = false, []outbox.Removal{{Session: d.session, Beat: d.beat}}
	}
	m.Moves = d.moves
	if renews && d.beat%hintEvery == 0 || m.Leave {
		m.Moves = append(m.Moves, d.hints(m.Leave)...)
	}
	if renews {
		m.Moves = append(m.Moves, d.calm()...)
	}
	d.removals, d.moves, d.freshBeat = nil, nil, false
	c := &Call{kind: callMeet}
	var roster outbox.Roster
	c.do = func(ctx context.Context, s outbox.Store) (err error) {
		roster, err = s.Meet(ctx, m)
		return err
	}
	c.done = func() { d.met(&m, &roster, c, renews) }
	d.meeting = c
	return c
}

// hints are moves that store how far the member has come.
func (d *Dispatcher) hints(all bool) (moves []outbox.Move) { //nolint:revive // whether small steps count
	for _, rt := range d.routes {
		for _, u := range rt.sortedUnits() {
			low := d.lowest(rt, u.Slots())
			if g := rt.groupOf(u.From); g == nil || !g.loaded || low <= u.low || !all && low < u.low+step {
				continue
			}
			u.low = low
			care := int64(0)
			for s := u.From; s < u.To; s++ {
				care = max(care, rt.careful[s])
			}
			moves = append(moves, outbox.Move{Unit: u.Unit, From: d.session, To: d.session, Low: low, Careful: care})
		}
	}
	return moves
}

// met takes in a roster.
func (d *Dispatcher) met(m *outbox.Meeting, roster *outbox.Roster, c *Call, renewed bool) { //nolint:revive // a fact
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
	d.joined, d.epoch, d.roster = true, roster.Epoch, *roster
	if renewed {
		d.beatSent = c.sent
	}
	d.observe(c)
	d.own(c)
	d.share()
	d.meetAt = time.Time{}
	if len(roster.Members) > 1 {
		d.meetAt = c.sent.Add(d.lookPause())
	} else if d.opts.Handlers > 0 {
		d.meetAt = c.sent.Add(queueLook)
	}
	if c := d.late(); c != nil {
		d.lateCall = c
	}
}

// lookPause is how long until the roster is looked at again, while there are others.
func (d *Dispatcher) lookPause() time.Duration {
	if slices.ContainsFunc(d.routes, func(rt *route) bool { return len(rt.known)+len(rt.keys)+len(rt.again) > 0 }) {
		return lookEvery
	}
	return restEvery
}

// observe notes whose beat stands still, and who is dead.
func (d *Dispatcher) observe(c *Call) {
	seen := map[outbox.Session]bool{d.session: true}
	for i := range d.roster.Members {
		m := &d.roster.Members[i]
		if seen[m.Session] {
			continue
		}
		seen[m.Session] = true
		p, ok := d.peers[m.Session]
		if !ok || p.beat != m.Beat || d.gapped && d.has(ruleGapped) {
			d.peers[m.Session] = peer{m.Beat, d.now}
			continue
		}
		if c.sent.Sub(p.since) >= later0(m.Lease, d.opts.Lease) {
			d.removals = append(d.removals, outbox.Removal{Session: m.Session, Beat: m.Beat})
		}
	}
	for s := range d.peers {
		if !seen[s] {
			delete(d.peers, s)
		}
	}
	ghosts := map[outbox.Session]bool{}
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
		}
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
		slots outbox.Slots
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
		switch {
		case o.Owner == d.session && u == nil:
			if at, ok := d.lost[o.Unit]; ok && !c.sent.After(at) {
				continue // the roster is older than that
			}
			delete(d.lost, o.Unit)
			defer delete(d.haunted, o.Unit)
			rt.units[o.Unit] = &unit{Unit: o.Unit, route: rt, low: o.Low}
			care := o.Careful
			if d.haunted[o.Unit] { // its owner vanished without a removal, which would have said how far to take care
				care = math.MaxInt64
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

// tally is what the shares are worked out from.
type tally struct {
	members []*outbox.Member
	load    map[outbox.Session]int
	counts  map[outbox.Session]map[string]int
	serves  map[outbox.Session]map[string]bool // and whether it is able
}

// share works out which free units the member takes and which of its own it gives up, so that all members come to the
// same answer: each free unit goes to the able member with the fewest units for its handlers, and a unit goes from
// one to another who has at least two fewer.
func (d *Dispatcher) share() {
	t := d.tally()
	free := d.freeUnits()
	for _, o := range free {
		to := t.least(o.Unit.Route)
		if to == nil {
			continue
		}
		t.add(to.Session, o.Unit.Route, 1)
		if to.Session == d.session && !d.stopping {
			d.moves = append(d.moves, outbox.Move{Unit: o.Unit, From: o.Owner, To: d.session})
			if o.Owner != 0 {
				d.haunted[o.Unit] = true
			}
		}
	}
	for range 10_000 {
		from, to, route := t.next()
		if from == 0 {
			break
		}
		t.add(from, route, -1)
		t.add(to, route, 1)
		if from == d.session {
			d.leave(d.byName[route])
		}
	}
}

// freeUnits returns the units that nobody owns, of routes that the member serves.
func (d *Dispatcher) freeUnits() (free []outbox.Owned) {
	for i := range d.roster.Units {
		if o := d.roster.Units[i]; o.Owner == 0 || d.vanished[o.Owner] {
			free = append(free, o)
		}
	}
	slices.SortFunc(free, func(a, b outbox.Owned) int {
		return cmp.Or(cmp.Compare(a.Unit.Route, b.Unit.Route), cmp.Compare(a.Unit.From, b.Unit.From))
	})
	return free
}

// leave marks one unit of a route to be given up, if possible one of which nothing is in memory.
func (d *Dispatcher) leave(rt *route) {
	if rt == nil {
		return
	}
	units, busy := rt.sortedUnits(), rt.knownSlots()
	slices.Reverse(units)
	at := slices.IndexFunc(units, func(u *unit) bool { return !u.leaving && busy&u.Slots() == 0 })
	if at < 0 {
		at = slices.IndexFunc(units, func(u *unit) bool { return !u.leaving })
	}
	if at >= 0 {
		units[at].leaving = true
		rt.leaving |= units[at].Slots()
	}
}

// knownSlots are the slots of which something is in memory.
func (rt *route) knownSlots() (s outbox.Slots) {
	for _, it := range rt.known {
		s |= 1 << it.Record.Slot
	}
	return s
}

// tally counts who owns what, as far as it is not on its way to somebody else.
func (d *Dispatcher) tally() *tally {
	t := &tally{load: map[outbox.Session]int{}, counts: map[outbox.Session]map[string]int{}, serves: map[outbox.Session]map[string]bool{}}
	dead := map[outbox.Session]bool{}
	for _, r := range d.removals {
		dead[r.Session] = true
	}
	for i := range d.roster.Members {
		m := &d.roster.Members[i]
		if dead[m.Session] || t.serves[m.Session] != nil {
			continue
		}
		t.members = append(t.members, m)
		t.counts[m.Session], t.serves[m.Session] = map[string]int{}, map[string]bool{}
		for _, s := range m.Serves {
			able := !s.Unable && (m.Free > 0 || m.Handlers == 0)
			if m.Session == d.session {
				able = !d.unable[s.Route] && !d.stopping && d.hasFree()
			}
			t.serves[m.Session][s.Route] = able
		}
	}
	slices.SortFunc(t.members, func(a, b *outbox.Member) int { return cmp.Compare(a.Session, b.Session) })
	for i := range d.roster.Units {
		o := &d.roster.Units[i]
		if t.counts[o.Owner] == nil {
			continue
		}
		if o.Owner == d.session {
			if rt := d.byName[o.Unit.Route]; rt != nil && rt.units[o.Unit] != nil && rt.units[o.Unit].leaving {
				continue
			}
		}
		t.add(o.Owner, o.Unit.Route, 1)
	}
	return t
}

func (t *tally) add(s outbox.Session, route string, n int) {
	t.load[s] += n
	t.counts[s][route] += n
}

// fewer reports whether a with more units than it has is still better off than b: fewer units for each handler.
func (t *tally) fewer(a *outbox.Member, more int, b *outbox.Member, than int) bool {
	return (t.load[a.Session]+more)*max(b.Handlers, 1) < (t.load[b.Session]+than)*max(a.Handlers, 1)
}

// least returns the member that should have one more unit of a route: an able one if there is one.
func (t *tally) least(route string) (best *outbox.Member) {
	bestAble := false
	for _, m := range t.members {
		able, serves := t.serves[m.Session][route]
		if !serves || bestAble && !able {
			continue
		}
		if best == nil || able && !bestAble || t.fewer(m, 1, best, 1) {
			best, bestAble = m, able
		}
	}
	return best
}

// next returns a unit's move from one member to another that makes the shares fairer; from is 0 if they are fair.
func (t *tally) next() (from, to outbox.Session, route string) {
	for _, a := range t.members {
		for _, route := range sortedNames(t.counts[a.Session]) {
			if t.counts[a.Session][route] == 0 || t.serves[a.Session][route] {
				continue
			}
			if b := t.least(route); b != nil && b != a && t.serves[b.Session][route] {
				return a.Session, b.Session, route
			}
		}
	}
	byLoad := slices.Clone(t.members)
	slices.SortStableFunc(byLoad, func(a, b *outbox.Member) int {
		return cmp.Compare(t.load[a.Session]*max(b.Handlers, 1), t.load[b.Session]*max(a.Handlers, 1))
	})
	for _, b := range byLoad {
		for _, a := range slices.Backward(byLoad) {
			if a == b || t.load[a.Session] == 0 || t.fewer(a, -1, b, 1) { // a - 1 must not be below b + 1
				continue
			}
			for _, route := range sortedNames(t.counts[a.Session]) {
				if t.counts[a.Session][route] > 0 && t.serves[b.Session][route] {
					return a.Session, b.Session, route
				}
			}
		}
	}
	return 0, 0, ""
}
