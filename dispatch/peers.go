package dispatch

import (
	"cmp"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// No clock of a server decides who is dead. A member is dead if this one has seen no renewal of it for the length of
// its lease, by this member's own clock, while its own renewals were answered. So an outage of the database kills no
// member. An owner of partitions that has no row gets the same time.

// peers is this member's view of the others, and the evictions and suspicions that it sends with the next Heartbeat.
type peers struct {
	seen        map[core.Session]peer      // the other members of the latest membership
	rowless     map[core.Session]time.Time // owners without a row, since when
	vanished    map[core.Session]bool      // owners that had no row for too long
	orphaned    map[core.Partition]bool    // the partitions of those
	membership  core.Membership            // the latest answer
	heartbeatAt time.Time                  // when to read the membership
	evictions   []core.Eviction            // to be sent with the next Heartbeat
	transfers   []core.Transfer            // to be sent with it: free partitions that this member takes
}

// peer is another member, and since when it has not renewed.
type peer struct {
	heartbeats     int64     // the renewal that was seen last; a greater one shows life
	risen          bool      // it has renewed since it was first seen
	since          time.Time // the answer that first showed these heartbeats
	token          int64     // of its presence; 0 = none
	doubtful       bool      // its token was not seen since the member took its own anew
	suspectedSince time.Time // since when it is suspected without a renewal
}

func newPeers() peers {
	return peers{seen: map[core.Session]peer{}, rowless: map[core.Session]time.Time{}, vanished: map[core.Session]bool{}, orphaned: map[core.Partition]bool{}}
}

// reset forgets what the session saw.
func (p *peers) reset() { *p = newPeers() }

// heartbeatBy makes sure that the membership is read by then.
func (p *peers) heartbeatBy(at time.Time) { p.heartbeatAt = earliest(p.heartbeatAt, at) }

// others reports whether there are other members.
func (p *peers) others() bool { return len(p.membership.Members) > 1 }

// doubtTokens marks the tokens of all: the event that ended this member's connection may have ended those of others.
func (p *peers) doubtTokens() {
	for s, o := range p.seen {
		o.doubtful, o.suspectedSince = true, time.Time{}
		p.seen[s] = o
	}
}

// member returns a member of the membership, or nil.
func (p *peers) member(s core.Session) *core.Member {
	for i := range p.membership.Members {
		if m := &p.membership.Members[i]; m.Session == s {
			return m
		}
	}
	return nil
}

// observe notes which members have not renewed, and which of them are dead.
func (d *Dispatcher) observe(c *Call) {
	present := map[core.Session]bool{d.session: true}
	shown := d.showsPresence()
	for i := range d.peers.membership.Members {
		if m := &d.peers.membership.Members[i]; !present[m.Session] {
			present[m.Session] = true
			d.observePeer(m, shown, c)
		}
	}
	for s := range d.peers.seen {
		if !present[s] {
			delete(d.peers.seen, s)
			d.work.activeAt = d.now
		}
	}
	d.observeRowless(present, c)
}

// observePeer notes how another member is. A dead one is removed at the next Heartbeat. The eviction names the
// heartbeats that were seen: a member that has renewed since stays. After a gap in its own renewals this member begins
// anew, with all of them. The time without a renewal ends when this Heartbeat was sent, not when its answer came: its
// snapshot can be as old as that.
func (d *Dispatcher) observePeer(m *core.Member, shown bool, c *Call) {
	if slices.Contains(d.self.givenUp, m.Session) {
		d.evict(m)
		return
	}
	p, known := d.peers.seen[m.Session]
	dead := d.observeToken(m, &p, shown, c)
	if !known {
		d.work.activeAt = d.now
		if d.sharesQueue() {
			d.timers.wake(d.now, duePoll)
		}
	}
	if !known || p.heartbeats != m.Heartbeats || d.self.renewedLate {
		p.risen = p.risen || known && p.heartbeats != m.Heartbeats
		p.heartbeats, p.since = m.Heartbeats, d.now
		d.peers.seen[m.Session] = p
		return
	}
	d.peers.seen[m.Session] = p
	lease := m.Lease
	if lease <= 0 {
		lease = d.opts.Lease
	}
	switch {
	case !dead && c.sent.Sub(p.since) < lease:
		d.peers.heartbeatBy(p.since.Add(lease))
	default:
		d.evict(m)
	}
}

// evict removes a member with the next Heartbeat, or, if that removes many already, with a later one.
func (d *Dispatcher) evict(m *core.Member) {
	if len(d.peers.evictions) < maxEvictions {
		d.peers.evictions = append(d.peers.evictions, core.Eviction{Session: m.Session, Heartbeats: m.Heartbeats})
	}
}

// observeRowless notes the owners of partitions that have no row. After a lease their partitions are free.
func (d *Dispatcher) observeRowless(present map[core.Session]bool, c *Call) {
	rowless := map[core.Session]bool{}
	for i := range d.peers.membership.Partitions {
		u := &d.peers.membership.Partitions[i]
		if u.Owner == 0 || present[u.Owner] || d.byName[u.Partition.Route] == nil {
			continue
		}
		rowless[u.Owner] = true
		since, ok := d.peers.rowless[u.Owner]
		if !ok || d.self.renewedLate {
			d.peers.rowless[u.Owner] = d.now
		} else if c.sent.Sub(since) >= d.opts.Lease {
			d.peers.vanished[u.Owner] = true // its partitions are free now
			continue
		}
		d.peers.heartbeatBy(d.peers.rowless[u.Owner].Add(d.opts.Lease))
	}
	for s := range d.peers.rowless {
		if !rowless[s] {
			delete(d.peers.rowless, s)
		}
	}
}

// freePartitions returns the partitions without an owner, in order.
func (p *peers) freePartitions() (free []core.PartitionState) {
	for i := range p.membership.Partitions {
		if o := p.membership.Partitions[i]; o.Owner == 0 || p.vanished[o.Owner] {
			free = append(free, o)
		}
	}
	slices.SortFunc(free, func(a, b core.PartitionState) int {
		return cmp.Or(cmp.Compare(a.Partition.Route, b.Partition.Route), cmp.Compare(a.Partition.From, b.Partition.From))
	})
	return free
}

// MaybeDead reports that another member has not renewed since this one first saw it. Each member either renews or is
// removed. So that lasts for the member's lease and a little, at most.
func (d *Dispatcher) MaybeDead(s core.Session) bool {
	p, seen := d.peers.seen[s]
	return s != d.session && (!seen || !p.risen)
}

// AnyMaybeDead reports that some other member is [Dispatcher.MaybeDead], or that the members are not known yet.
func (d *Dispatcher) AnyMaybeDead() bool {
	if !d.self.joined {
		return true
	}
	return slices.ContainsFunc(d.peers.membership.Members, func(m core.Member) bool { return d.MaybeDead(m.Session) })
}
