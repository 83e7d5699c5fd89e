package dispatch

import (
	"cmp"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// partition is a partition of a route that the member owns.
type partition struct {
	core.Partition
	route     *route
	term      int64     // from the membership that brought it; ReleasePartition names it
	releasing bool      // to be released; route.releasing has its slots
	asked     bool      // ReleasePartition is under way
	unsure    bool      // the answer to a release was lost; the release may still be carried out
	tryAt     time.Time // not before
	readAfter int64     // the greatest hint that may be stored
}

// uncertainUpTo is the sequence up to which a dead member may have had records out; 0 = none. The route keeps it by
// slot, since a record knows only its slot.
func (u *partition) uncertainUpTo() (care int64) {
	for s := u.From; s < u.To; s++ {
		care = max(care, u.route.uncertainUpTo[s])
	}
	return care
}

// affectedBy reports whether a notice of its route concerns the partition.
func (u *partition) affectedBy(c *core.Notice) bool {
	return c.Kind == core.NoticeReread || u.Slots().Has(c.Slot)
}

// hint returns a move that stores how far the member has come in the partition.
func (u *partition) hint(readAfter int64) core.Transfer {
	self := u.route.session
	return core.Transfer{Partition: u.Partition, From: self, To: self, ReadAfter: readAfter, MaybeOutUpTo: u.uncertainUpTo()}
}

// stay ends the try to release the partition, and allows another one later. Meanwhile another partition may be released
// instead, unless an earlier try may still be carried out.
func (u *partition) stay(tryAt time.Time) {
	u.tryAt = tryAt
	if !u.unsure {
		u.releasing = false
		u.route.releasing &^= u.Slots()
	}
}

// hasLoaded reports whether all waiting records of a partition are known.
func (rt *route) hasLoaded(u *partition) bool {
	g := rt.groupOf(u.From)
	return g != nil && g.loaded
}

// releaseDue returns when to release the next partition; zero = none.
func (rt *route) releaseDue() (at time.Time) {
	if rt.releasing == 0 {
		return at
	}
	for _, u := range rt.partitions {
		if u.releasing {
			at = earliest(at, u.tryAt)
		}
	}
	return at
}

// sortedPartitions returns the partitions of a route, in order.
func (rt *route) sortedPartitions() []*partition {
	partitions := make([]*partition, 0, len(rt.partitions))
	for _, u := range rt.partitions {
		partitions = append(partitions, u)
	}
	slices.SortFunc(partitions, byFrom)
	return partitions
}

func byFrom(a, b *partition) int { return cmp.Compare(a.From, b.From) }
