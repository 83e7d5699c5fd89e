package dispatch

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Heartbeat is the one call about members and owners. Each renews the member or only reads, and returns the membership.
// With it go all that this member has decided about others since: members to be evicted, suspicions, transfers of
// partitions, hints. So a member without work makes one call in a third of its lease, and each decision rests on the
// membership before it. A decision that the store does not accept, because another member was first, is left out there.
// The next membership shows that, and the decision is made anew.

const (
	// hintEvery is the number of renewals after which one also stores how far the member has come. A member that
	// takes over from a dead one begins there.
	hintEvery = 10
	// restEvery is how often a member without work reads the membership, as long as there was activity within
	// activeFor, or while it shares a queue: one of the others may die with records out. Later its renewals show it
	// all that it must know. Renewals of a queue can be far apart, so that its only member also looks every
	// aloneEvery whether another one came.
	restEvery  = time.Second
	activeFor  = 10 * time.Second
	aloneEvery = 5 * time.Second
)

// heartbeatDue returns when the next Heartbeat is due. A token asks for one, too: without an answer within the grace
// nothing is handed out.
func (d *Dispatcher) heartbeatDue() time.Time {
	at := earliest(d.self.renewAt(), d.peers.heartbeatAt)
	at = earliest(earliest(at, d.handlers.tellAt(d.peers.others())), earliest(d.staleAt(), d.presence.showDue()))
	if !d.self.joined || len(d.peers.evictions) > 0 || len(d.peers.transfers) > 0 || d.self.renewNow || d.self.stopping && d.idleForLeave() {
		at = d.now
	}
	return later(at, d.calls.notBefore[CallHeartbeat])
}

// idleForLeave reports whether a stopping member has nothing left to store or to wait for.
func (d *Dispatcher) idleForLeave() bool {
	return (d.work.out == 0 || d.self.quitting) && d.settles.empty() && d.calls.quiet() && !d.releases.busy()
}

// heartbeat returns the next Heartbeat, or nil. The evictions, suspicions and transfers go with it, and leave memory
// here: if it is not carried out, the next membership leads to them again. Only the notices of lowered hints come back
// (heartbeatOp.done). The steps:
//
//  1. The member's own row: a renewal, or a repetition of the latest one.
//  2. Lowered hints, for which notices wait. rest are the notices whose hints must wait for the next Heartbeat.
//  3. A leave, when nothing is left to store. A member that quits with records out evicts itself instead.
//  4. Evictions and suspicions, unless the member's own last renewal came late: the others may have seen as little of
//     it.
//  5. Transfers: partitions to take, hints, ends of uncertainty, and the lowered hints.
func (d *Dispatcher) heartbeat() *Call {
	if d.calls.busy(CallHeartbeat) || d.heartbeatDue().After(d.now) {
		return nil
	}
	renews := d.renews()
	m := core.HeartbeatRequest{Self: d.ownMember(renews), Join: !d.self.joined, StoreEpoch: d.db.epoch, AfterNotice: d.notices.bound()}
	if !slices.ContainsFunc(d.routes, func(rt *route) bool { return len(rt.groups) > 0 }) {
		m.AfterNotice = math.MaxInt64 // no notice concerns this member, and a new partition is read anyway
	}
	lowered, done := d.loweredHints()
	rest := d.notices.lowering[len(done):]
	m.Leave = d.self.stopping && (!d.self.joined || len(rest) == 0 && d.idleForLeave())
	if !d.self.renewedLate {
		m.Evict, m.Suspect = d.peers.evictions, d.presence.suspicions
	}
	// The member quits. An eviction counts a crash for each record that is out; a leave would not.
	if m.Leave && d.work.out > 0 {
		m.Leave, m.Evict = false, []core.Eviction{{Session: d.session, Heartbeats: d.self.heartbeats}}
	}
	m.Transfers = d.peers.transfers
	if renews && d.self.heartbeats%hintEvery == 0 || m.Leave {
		m.Transfers = append(m.Transfers, d.hints(m.Leave)...)
	}
	if renews {
		m.Transfers = append(m.Transfers, d.endUncertainty()...)
	}
	m.Transfers = append(m.Transfers, lowered...)
	d.peers.evictions, d.peers.transfers, d.presence.suspicions = nil, nil, nil
	d.notices.lowering, d.self.renewNow = rest, len(rest) > 0
	c := &Call{kind: CallHeartbeat}
	c.op = &heartbeatOp{d: d, m: m, renews: renews, lowered: lowered, notices: done}
	d.calls.begin(c)
	return c
}

// renews reports whether the next Heartbeat is a renewal. Otherwise it only reads the membership.
func (d *Dispatcher) renews() bool {
	at := earliest(d.self.renewAt(), d.presence.showDue())
	return !d.self.joined || d.self.renewNow || len(d.presence.suspicions) > 0 || !d.now.Before(at) ||
		len(d.peers.transfers)+len(d.peers.evictions) > 0 || d.self.stopping
}

// ownMember returns the member's own row for a Heartbeat. A call that only reads repeats the latest renewal that was
// answered: it must not make the row look newer or older.
func (d *Dispatcher) ownMember(renews bool) core.Member {
	if n := len(d.self.givenUp); d.session == 0 && d.self.stopping && n > 0 {
		d.session = d.self.givenUp[n-1] // it leaves, if it has joined
	} else if d.session == 0 {
		d.session = d.opts.NewSession()
	}
	m := core.Member{Name: d.opts.Name, Lease: d.opts.Lease, Capacity: max(d.opts.Handlers, 1), FreeCapacity: d.handlers.reportedFree(), Session: d.session, Presence: d.presence.toShow()}
	m.Heartbeats = d.self.arrived // the latest one may not have arrived
	if renews {
		d.self.nextRenewal()
		m.Heartbeats, d.handlers.shown = d.self.heartbeats, m.FreeCapacity
		if m.Presence != 0 {
			d.presence.shown = m.Presence
		}
	}
	for _, rt := range d.routes {
		served := core.ServedRoute{Route: rt.Name, InitialPartitions: rt.Partitions, Unavailable: d.self.unavailable[rt.Name] || d.self.stopping}
		if renews {
			served.HandedOut, served.OldestHandedOut = rt.handedOut(d.now)
		}
		m.Routes = append(m.Routes, served)
	}
	return m
}

// hints returns transfers that store how far the member has come in its partitions. A successor of a dead member begins
// there. A hint is stored only when it has grown by a step, since each costs a write; at a leave each is stored (all).
// The first maxTransfers are stored; a later Heartbeat stores the others.
func (d *Dispatcher) hints(all bool) (moves []core.Transfer) {
	for _, rt := range d.routes {
		hints := rt.slotHints()
		for _, u := range rt.sortedPartitions() {
			if len(moves) == maxTransfers {
				return moves
			}
			readAfter := hints.of(u.Slots())
			if !rt.hasLoaded(u) || readAfter <= u.readAfter || !all && readAfter < u.readAfter+step {
				continue
			}
			u.readAfter = readAfter
			moves = append(moves, u.hint(readAfter))
		}
	}
	return moves
}

// endUncertainty ends the care for slots in which no record is left that a dead member may have had out: the hint has
// passed all of them. It returns the transfers that store this.
func (d *Dispatcher) endUncertainty() (moves []core.Transfer) {
	for _, rt := range d.routes {
		if slices.Max(rt.uncertainUpTo[:]) == 0 {
			continue
		}
		hints := rt.slotHints()
		for _, u := range rt.sortedPartitions() {
			care := u.uncertainUpTo()
			if len(moves) == maxTransfers {
				return moves
			}
			if care == 0 || !rt.hasLoaded(u) {
				continue
			}
			readAfter := hints.of(u.Slots())
			if readAfter < care {
				continue
			}
			for s := u.From; s < u.To; s++ {
				rt.uncertainUpTo[s] = 0
			}
			u.readAfter = max(u.readAfter, readAfter)
			moves = append(moves, u.hint(readAfter))
		}
	}
	return moves
}

// heartbeatDone takes in a membership. If there is none, the renewal is repeated after a short pause: the lease runs. A
// Join is repeated as another session. A membership without this member, or of another life of the database, ends the
// session. Otherwise the next Heartbeat carries the conclusions:
//
//  1. noteOthers compares the members with the former membership, so it comes before that is replaced.
//  2. The lease now counts from when this renewal was sent.
//  3. noteOwn learns of a suspicion; observe finds members that are dead or suspect.
//  4. applyOwnership takes and drops partitions.
//  5. rebalance, from the same membership, finds which partitions to take and to release.
//  6. The next reading of the membership is due after observePause, and holdLate finds records that are out for long.
func (d *Dispatcher) heartbeatDone(m *core.HeartbeatRequest, membership *core.Membership, c *Call, renewed bool) {
	if c.err != nil {
		d.calls.pause(CallHeartbeat)
		d.self.renewNow = true
		if m.Join && !m.Leave {
			d.giveUpJoin()
		}
		return
	}
	if m.Leave || d.self.quitting && !membership.IsMember {
		d.self.left = true
		return
	}
	if !membership.IsMember || d.db.epoch != "" && membership.StoreEpoch != "" && membership.StoreEpoch != d.db.epoch {
		d.db.wentBack = d.db.wentBack || membership.IsMember
		d.rejoin()
		return
	}
	if !d.self.joined {
		d.work.activeAt = d.now
	}
	d.noteOthers(membership)
	d.self.joined, d.db.epoch, d.peers.membership = true, membership.StoreEpoch, *membership
	if renewed {
		d.self.renewalSent, d.self.arrived = c.sent, m.Self.Heartbeats
	}
	d.noteOwn(m.Self.Presence, renewed, c)
	if membership.HasNotices {
		d.readNotices()
	}
	d.peers.heartbeatAt = time.Time{}
	d.observe(c)
	d.applyOwnership(c)
	d.rebalance()
	if pause := d.observePause(); pause > 0 {
		d.peers.heartbeatBy(c.sent.Add(pause))
	}
	if c := d.holdLate(); c != nil {
		d.calls.late = c
	}
}

// observePause is the pause until the membership is read again, renewals apart; 0 = it is not read. It is short while
// there are other members and there is work here: one of them may die.
func (d *Dispatcher) observePause() time.Duration {
	busy := d.now.Sub(d.work.handedAt) < time.Second || slices.ContainsFunc(d.routes, func(rt *route) bool { return len(rt.known)+len(rt.keys)+len(rt.revisits.bySeq) > 0 })
	switch {
	case busy && d.peers.others():
		return lookEvery
	case busy, d.active(), d.sharesQueue():
		return restEvery
	case slices.ContainsFunc(d.routes, func(rt *route) bool { return rt.Queue }):
		return aloneEvery
	}
	return 0
}

// active reports whether a record was handed out, a hint came, or a member came or went, within activeFor.
func (d *Dispatcher) active() bool {
	return d.now.Sub(later(d.work.handedAt, d.work.activeAt)) < activeFor
}

// sharesQueue reports whether another member serves a queue of this one. They hold and put off records of its slots.
func (d *Dispatcher) sharesQueue() bool {
	for i := range d.peers.membership.Members {
		m := &d.peers.membership.Members[i]
		if m.Session != d.session && slices.ContainsFunc(m.Routes, func(served core.ServedRoute) bool {
			rt := d.byName[served.Route]
			return rt != nil && rt.Queue
		}) {
			return true
		}
	}
	return false
}

type heartbeatOp struct {
	d          *Dispatcher
	m          core.HeartbeatRequest
	renews     bool            // the call renews the lease; otherwise it only reads
	lowered    []core.Transfer // hints that are lowered for notices
	notices    []core.Notice   // to be deleted when lowered is stored
	membership core.Membership
}

func (o *heartbeatOp) do(ctx context.Context, s core.OutboxStore) (err error) {
	o.membership, err = s.Heartbeat(ctx, o.m)
	return err
}

func (o *heartbeatOp) done(c *Call) {
	d := o.d
	if d.heartbeatDone(&o.m, &o.membership, c, o.renews); c.err != nil {
		d.notices.lowering = append(o.notices, d.notices.lowering...)
		return
	}
	d.storedLowered(o.lowered, o.notices)
}
