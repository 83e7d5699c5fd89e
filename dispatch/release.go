package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// A member releases a partition so that another can have it: the loads differ, or this member stops or cannot serve the
// route. The next owner must know which records are out here. So ReleasePartition holds these and frees the partition
// in one transaction. Until it is answered, nothing of the partition is handed out, and no call is under way that could
// change what is out. All outcomes of the partition are stored first. Partitions go eight at a time, since nothing is
// read meanwhile.

// maxReleases bounds the partitions that are released at the same time: each needs its own transaction.
const maxReleases = 8

// releases knows the partitions that are being released, and those that were.
type releases struct {
	*env
	partitions  []*partition                 // under way
	until       time.Time                    // the releases that were not sent by then are put off
	unannounced bool                         // some were released, and others were not told yet
	releasedAt  map[core.Partition]time.Time // partitions that were released, and when
}

func newReleases(e *env) releases {
	return releases{env: e, releasedAt: map[core.Partition]time.Time{}}
}

// reset forgets the releases of a session that has ended.
func (g *releases) reset() {
	g.partitions = nil
	clear(g.releasedAt)
}

// busy reports whether partitions are being released. Meanwhile only Heartbeat begins, and the settles that must be
// stored first.
func (g *releases) busy() bool { return len(g.partitions) > 0 }

// patience returns until when the releases wait for other calls; zero = they do not.
func (g *releases) patience() time.Time {
	if g.busy() && g.now.Before(g.until) {
		return g.until
	}
	return time.Time{}
}

// ended ends a try to release a partition.
func (g *releases) ended(u *partition) {
	u.asked = false
	g.partitions = slices.DeleteFunc(g.partitions, func(v *partition) bool { return v == u })
}

// releasedAfter reports whether a partition was released after c was sent.
func (g *releases) releasedAfter(u core.Partition, c *Call) bool {
	at, ok := g.releasedAt[u]
	return ok && !c.sent.After(at)
}

// covers reports whether a release of the slot's partition may be under way. It would end the hold of a record that is
// handed out now.
func (g *releases) covers(rt *route, slot uint8) bool {
	if rt.releasing.Has(slot) {
		for _, u := range rt.partitions {
			if u.Slots().Has(slot) {
				return u.unsure || slices.Contains(g.partitions, u)
			}
		}
	}
	return false
}

// releaseCalls returns the calls that release partitions. The steps, over several rounds of Calls:
//
//  1. Up to eight partitions are chosen. From now on read, due and hold begin no call, and HandOut passes the
//     partitions.
//  2. The calls under way end, and the outcomes of the partitions are stored.
//  3. ReleasePartition is sent for each. Its answer drops the partition, or lets it stay for a while.
//  4. If 2 takes longer than lockedAfter, the partitions that were not sent stay, so that the others go on.
func (d *Dispatcher) releaseCalls() (calls []*Call) {
	g := &d.releases
	if !g.busy() {
		g.partitions, g.until = d.toRelease(maxReleases), d.now.Add(lockedAfter)
	}
	if g.busy() && !d.now.Before(g.until) { // something is slow: the others go on meanwhile
		for _, u := range slices.Clone(g.partitions) {
			if !u.asked {
				g.ended(u)
				u.stay(d.nextTry())
			}
		}
		return nil
	}
	if !d.calls.quiet() {
		return nil
	}
	for _, u := range g.partitions {
		if !u.asked && len(d.settles.of(u)) == 0 {
			calls = append(calls, d.releasePartition(u))
		}
	}
	return calls
}

// releasePartition returns the call that releases a partition.
func (d *Dispatcher) releasePartition(u *partition) *Call {
	rt := u.route
	var out []core.Ref
	for _, seq := range sortedSeqs(rt.known) {
		if item := rt.known[seq]; u.Slots().Has(item.Record.Slot) && item.state == itemOut {
			out = append(out, item.Record.Ref)
			// if the item is released meanwhile, that must be stored, for every answer
			item.held = true
		}
	}
	owned := core.PartitionState{
		Partition: u.Partition, Owner: d.session, Term: u.term, ReadAfter: rt.slotHints().of(u.Slots()), StoreEpoch: d.db.epoch,
	}
	c := &Call{kind: CallRelease, op: &releaseOp{d: d, session: d.session, u: u, owned: owned, out: out}}
	u.asked = true
	return c
}

// partitionReleased takes in whether a partition was released. If not, something of it is locked. Its records are
// handed out again then.
func (d *Dispatcher) partitionReleased(u *partition, done bool, c *Call) {
	d.releases.ended(u)
	u.unsure = u.unsure || c.err != nil // an answer says nothing about an earlier one that was lost
	switch {
	case fenced(c.err):
		d.peers.heartbeatAt = d.now
		d.drop(u.route, u.Slots())
	case c.err != nil || !done:
		u.stay(d.nextTry())
	default:
		d.drop(u.route, u.Slots())
		d.releases.unannounced = true
	}
	// others are told about all of them at once
	if d.releases.unannounced && !d.releases.busy() && len(d.toRelease(1)) == 0 {
		d.releases.unannounced, d.peers.heartbeatAt = false, d.now
	}
}

// nextTry returns when to try again to release a partition.
func (d *Dispatcher) nextTry() time.Time {
	return d.now.Add(max(lockedAfter, d.calls.backoff(CallRelease)))
}

// toRelease returns up to limit partitions to release now.
func (d *Dispatcher) toRelease(limit int) (partitions []*partition) {
	for _, rt := range d.routes {
		if rt.releasing == 0 {
			continue
		}
		from := len(partitions)
		for _, u := range rt.partitions {
			if u.releasing && !u.tryAt.After(d.now) {
				partitions = append(partitions, u)
			}
		}
		slices.SortFunc(partitions[from:], byFrom)
		if len(partitions) >= limit {
			return partitions[:limit]
		}
	}
	return partitions
}

type releaseOp struct {
	d       *Dispatcher
	session core.Session
	u       *partition
	owned   core.PartitionState
	out     []core.Ref
	gone    bool // the partition is free; otherwise a record of it was locked, and nothing was changed
}

func (o *releaseOp) do(ctx context.Context, s core.OutboxStore) (err error) {
	o.gone, err = s.ReleasePartition(ctx, o.session, o.owned, o.out)
	return err
}
func (o *releaseOp) done(c *Call) { o.d.partitionReleased(o.u, o.gone, c) }
