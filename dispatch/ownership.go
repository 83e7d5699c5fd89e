package dispatch

import (
	"math"

	"github.com/waybill-go/waybill/core"
)

// The membership tells the owner of each partition, and a member owns a partition only from the moment when it has seen
// that: a Heartbeat that takes a partition can lose its answer. A membership can be older than a release of this
// member, since both calls are under way at once. Then it still shows the partition here, and must not bring it back:
// releasedAfter compares the time of the release with the time at which the Heartbeat was sent.

// applyOwnership takes in which partitions the member owns. The partitions of a route that come together become one
// group, which begins at the least of their hints. A partition that was released and came back between two memberships
// has a greater term: its memory is of the former time, and goes. The next membership brings the partition.
func (d *Dispatcher) applyOwnership(c *Call) {
	type part struct {
		slots     core.Slots
		readAfter int64
	}
	fresh := map[*route]*part{}
	for i := range d.peers.membership.Partitions {
		o := &d.peers.membership.Partitions[i]
		rt := d.byName[o.Partition.Route]
		if rt == nil {
			continue
		}
		u, mine := rt.partitions[o.Partition], o.Owner == d.session
		switch {
		// the partition was released and came back between two memberships: its memory is of the former time
		case u != nil && mine && o.Term > u.term && !d.releases.releasedAfter(o.Partition, c):
			d.drop(rt, o.Partition.Slots())
		// a new partition, unless the membership is older than its release
		case u == nil && mine && !d.releases.releasedAfter(o.Partition, c):
			d.acquire(rt, o)
			p := fresh[rt]
			if p == nil {
				p = &part{readAfter: o.ReadAfter}
				fresh[rt] = p
			}
			p.slots |= o.Partition.Slots()
			p.readAfter = min(p.readAfter, o.ReadAfter)
		// a transfer or an eviction has given it to another member
		case u != nil && !mine:
			d.drop(rt, o.Partition.Slots())
		}
	}
	for _, rt := range d.routes {
		if p := fresh[rt]; p != nil {
			d.addSlots(rt, p.slots, p.readAfter)
		}
	}
}

// acquire notes that the member owns a partition now, and up to which number a dead owner may have had records out. The
// crash windows of the route begin small again, since these records come early among the suspects.
func (d *Dispatcher) acquire(rt *route, o *core.PartitionState) {
	rt.partitions[o.Partition] = &partition{Partition: o.Partition, route: rt, term: o.Term, readAfter: o.ReadAfter}
	care := o.MaybeOutUpTo
	// Its owner vanished without a removal, which would have noted how far to take care: all of it is uncertain.
	if d.peers.orphaned[o.Partition] {
		care = math.MaxInt64
	}
	delete(d.releases.releasedAt, o.Partition)
	delete(d.peers.orphaned, o.Partition)
	if care > 0 {
		rt.suspects.crashWindows = 0
	}
	for s := o.Partition.From; s < o.Partition.To; s++ {
		rt.uncertainUpTo[s] = care
	}
}
