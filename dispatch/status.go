package dispatch

import (
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// RouteStatus is the state of a route at this member.
type RouteStatus struct {
	// Owned and Partitions are the partitions that this member owns, and all there are; Partitions is 0 if no
	// member serves the route.
	Owned, Partitions int
	// Ready, Out and Waiting count records: those to be handed out, those handed out, and those read that wait
	// behind others of their key.
	Ready, Out, Waiting int
	// Keys is how many keys are remembered. Elsewhere is how many records others hold that this member will read
	// again.
	Keys, Elsewhere int
	// Locked is how many records other transactions have locked, of those that this member wants or has sent.
	Locked int
	// Behind reports that there is more to read.
	Behind bool
}

// Status returns the state of a route.
func (d *Dispatcher) Status(route string) (st RouteStatus) {
	rt := d.byName[route]
	if rt == nil {
		return st
	}
	st.Owned, st.Ready, st.Waiting, st.Keys, st.Elsewhere = len(rt.partitions), len(rt.ready), rt.load.queued, len(rt.keys), len(rt.revisits.bySeq)
	st.Locked = rt.revisits.locked + rt.load.locked
	st.Behind = rt.pace.more || len(rt.toRead) > 0
	st.Out, _ = rt.handedOut(d.now)
	for i := range d.peers.membership.Partitions {
		if d.peers.membership.Partitions[i].Partition.Route == route {
			st.Partitions++
		}
	}
	return st
}

// handedOut returns how many records of the route are at the caller, and for how long the oldest of them has been.
func (rt *route) handedOut(now time.Time) (n int, oldest time.Duration) {
	for _, item := range rt.known {
		if item.state == itemOut {
			n, oldest = n+1, max(oldest, now.Sub(item.at))
		}
	}
	return n, oldest
}

// PausedKeys returns how many remembered keys of a route wait since the topic of their head is paused. It goes over all
// of them.
func (d *Dispatcher) PausedKeys(route string) (n int) {
	if rt := d.byName[route]; rt != nil {
		for _, k := range rt.keys {
			if k.topic != "" {
				n++
			}
		}
	}
	return n
}

// AtBound names the bound of a route's memory that is reached, and its cost; empty = none. Nothing stops at a bound.
func (d *Dispatcher) AtBound(route string) string {
	rt := d.byName[route]
	switch {
	case rt == nil:
	case rt.holdsFirst():
		return "half of the window waits for locks of other transactions: each record is held before it is sent"
	case slices.ContainsFunc(rt.groups, func(g *group) bool { return g.loaded && g.forgot && !g.complete }):
		return "more keys wait than are remembered: the database is asked for each message of another key"
	}
	return ""
}

// Owned returns the partitions of a route that the member owns, in order.
func (d *Dispatcher) Owned(route string) []core.Partition {
	rt := d.byName[route]
	if rt == nil {
		return nil
	}
	partitions := make([]core.Partition, 0, len(rt.partitions))
	for _, u := range rt.sortedPartitions() {
		partitions = append(partitions, u.Partition)
	}
	return partitions
}

// Membership returns the members and owners at the time of the latest answer. It must not be changed.
func (d *Dispatcher) Membership() *core.Membership { return &d.peers.membership }

// Ready returns how many records of a route wait to be handed out.
func (d *Dispatcher) Ready(route string) int {
	if rt := d.byName[route]; rt != nil {
		return len(rt.ready)
	}
	return 0
}

// Out returns how many records are handed out and not concluded.
func (d *Dispatcher) Out() int { return d.work.out }

// Idle reports that all readable records of a route were read, and that no read is due or under way. Records that are
// staged later are found at the next poll, or after a Wake. No route is idle while one of them has records every
// ReadEvery: the next read comes by itself, and no transaction has to wake the member.
func (d *Dispatcher) Idle(now time.Time, route string) bool {
	rt := d.byName[route]
	if rt == nil || !d.self.joined || d.gathering || d.calls.busy(CallRead) && slices.Contains(d.reads.routes, rt) {
		return false
	}
	return len(rt.groups) > 0 && rt.room() > 0 && rt.readDue().After(now)
}

// Unsettled returns how many outcomes wait to be stored, without those of a call under way.
func (d *Dispatcher) Unsettled() int {
	if d.calls.busy(CallSettle) {
		return len(d.settles.items) + 1
	}
	return len(d.settles.items)
}

// More reports that there is more of a route to read.
func (d *Dispatcher) More(route string) bool {
	rt := d.byName[route]
	return rt != nil && (rt.pace.more || len(rt.toRead) > 0)
}

// Resting reports that the member owns all partitions that it can get, has read all records, holds none, and that none
// is due. Records on blocked routes do not count: they are not to be handed out now.
func (d *Dispatcher) Resting(blocked []string) bool {
	if !d.self.joined || d.calls.busy(CallHeartbeat) || !d.calls.quiet() || d.releases.busy() || !d.timers.none ||
		len(d.peers.transfers)+len(d.peers.evictions) > 0 || !d.settles.empty() {
		return false
	}
	for i := range d.peers.membership.Partitions {
		if o := &d.peers.membership.Partitions[i]; o.Owner == 0 && d.byName[o.Partition.Route] != nil {
			return false
		}
	}
	return !slices.ContainsFunc(d.routes, func(rt *route) bool { return !rt.rests(slices.Contains(blocked, rt.Name), d.db.last) })
}

// rests reports whether a route has no work left. last is the greatest sequence there is.
func (rt *route) rests(blocked bool, last int64) bool {
	if blocked {
		for _, item := range rt.known {
			if item.isBusy() {
				return false
			}
		}
		return true
	}
	return !rt.pace.more && len(rt.toRead)+len(rt.known)+rt.revisits.locked == 0 && !rt.unresolved() &&
		!slices.ContainsFunc(rt.groups, func(g *group) bool { return !g.loaded || g.cursor < last })
}

// Elsewhere returns the partitions of the member's routes that others own, by owner.
func (d *Dispatcher) Elsewhere() map[core.Session]int {
	owners := map[core.Session]int{}
	for i := range d.peers.membership.Partitions {
		if o := &d.peers.membership.Partitions[i]; o.Owner != 0 && o.Owner != d.session && d.byName[o.Partition.Route] != nil {
			owners[o.Owner]++
		}
	}
	return owners
}
