package memory_test

import (
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

func owner(r core.Membership, u core.Partition) core.PartitionState {
	for _, o := range r.Partitions {
		if o.Partition == u {
			return o
		}
	}
	return core.PartitionState{Owner: -1}
}

func TestHeartbeatOneMoveWins(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1)
	k.join(2)
	move := func(s core.Session) core.Membership {
		return k.heartbeat(core.HeartbeatRequest{Self: member(s, 2, 1), Transfers: []core.Transfer{{Partition: partition, To: s}}})
	}
	first := move(1)
	k.fact("the first wins", owner(first, partition).Owner == 1)
	k.fact("the second loses", owner(move(2), partition).Owner == 1)
	again := move(1)
	first.Members, again.Members = nil, nil
	k.fact("a repeated call answers the same", reflect.DeepEqual(first, again))
	k.heartbeat(core.HeartbeatRequest{Self: member(1, 3, 1), Transfers: []core.Transfer{{Partition: partition, From: 1, To: 1, ReadAfter: 7, MaybeOutUpTo: 9}}})
	k.heartbeat(core.HeartbeatRequest{Self: member(2, 3, 1), Transfers: []core.Transfer{{Partition: partition, From: 2, To: 2, ReadAfter: 1}}})
	k.fact("only the owner stores ReadAfter and MaybeOutUpTo",
		owner(k.heartbeat(core.HeartbeatRequest{}), partition) == core.PartitionState{Partition: partition, Owner: 1, Term: 2, ReadAfter: 7, MaybeOutUpTo: 9})
	k.heartbeat(core.HeartbeatRequest{Self: member(1, 4, 1), Transfers: []core.Transfer{{Partition: partition, From: 1, To: 99}}})
	k.fact("nobody gives a partition to who is not there", owner(k.heartbeat(core.HeartbeatRequest{}), partition).Owner == 1)
}

func TestHeartbeatMakesPartitionsOnce(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			m := core.HeartbeatRequest{Self: member(core.Session(i+1), 1, i+1), Join: true}
			if _, err := k.Heartbeat(t.Context(), m); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r := k.heartbeat(core.HeartbeatRequest{})
	var covered core.Slots
	for _, u := range r.Partitions {
		k.fact("partitions overlap", covered&u.Partition.Slots() == 0)
		covered |= u.Partition.Slots()
	}
	k.fact("every slot has a partition", covered == core.AllSlots)
	k.fact("everybody is there", len(r.Members) == 16 && !r.IsMember)
}

func TestHeartbeatRemoval(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.join(2)
	k.put(row("a", "x"), row("b", "x"), row("c", "x"))
	k.hold(1, k.get(1, "a"))
	b := k.get(1, "b")
	remove := func(heartbeats int64) core.Membership {
		return k.heartbeat(core.HeartbeatRequest{Self: member(2, 1, 1), Evict: []core.Eviction{{Session: 1, Heartbeats: heartbeats}}})
	}
	k.fact("a member with other heartbeats is not dead", owner(remove(7), partition).Owner == 1)
	o := owner(remove(1), partition)
	k.fact("its partition is free, and uncertain_up_to up to the last number", o == core.PartitionState{Partition: partition, Term: 3, MaybeOutUpTo: 3})
	k.fact("its hold counts as a crash", k.state("a").Crashes == 1 && k.state("a").Holder == 0 && k.state("b").Crashes == 0)
	remove(1)
	k.fact("once", k.state("a").Crashes == 1)
	k.is("settle", k.settle(1, core.Published(b))[0], core.ErrFenced)
	_, err := k.Hold(t.Context(), 1, core.HoldRequest{Refs: []core.Ref{b.Ref}})
	k.is("hold", err, core.ErrFenced)
	_, err = k.Due(t.Context(), 1, []core.RouteSlots{all}, 1)
	k.is("due", err, core.ErrFenced)
	_, err = k.ReleasePartition(t.Context(), 1, core.PartitionState{Partition: partition, Term: 2, ReadAfter: 0}, nil)
	k.is("release partition", err, core.ErrFenced)
	k.fact("read", !k.look(1, core.ReadRequest{Slots: []core.RouteSlots{all}}).IsMember)
	k.fact("heartbeat", !k.heartbeat(core.HeartbeatRequest{Self: member(1, 9, 1), Transfers: []core.Transfer{{Partition: partition, To: 1}}}).IsMember)
	k.fact("it moves nothing", owner(k.heartbeat(core.HeartbeatRequest{}), partition).Owner == 0)
}

func TestHeartbeatLeave(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.put(row("a", ""))
	k.hold(1, k.get(1, "a"))
	k.heartbeat(core.HeartbeatRequest{Self: member(1, 2, 1), Transfers: []core.Transfer{{Partition: partition, From: 1, To: 1, ReadAfter: 1, MaybeOutUpTo: 5}}})
	leave := core.HeartbeatRequest{Self: member(1, 3, 1), Leave: true}
	r := k.heartbeat(leave)
	k.fact("it is gone", !r.IsMember && len(r.Members) == 0)
	k.fact("its partitions are, too", len(r.Partitions) == 0)
	k.fact("nothing is counted", k.state("a").Crashes == 0 && k.state("a").Holder == 0)
	k.fact("again: the same", reflect.DeepEqual(r, k.heartbeat(leave)))
	r = k.heartbeat(core.HeartbeatRequest{Self: member(2, 1, 1), Join: true})
	k.fact("the next partition is as uncertain_up_to as it was", owner(r, partition) == core.PartitionState{Partition: partition, Term: 4, ReadAfter: 1, MaybeOutUpTo: 5})
}

func TestHeartbeatFlag(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	self := member(1, 1, 1)
	self.Presence, self.Lease = 5, time.Second
	k.heartbeat(core.HeartbeatRequest{Self: self, Join: true})
	k.heartbeat(core.HeartbeatRequest{Self: member(2, 1, 1), Join: true, Suspect: []core.Suspicion{{Session: 1, Presence: 4}, {Session: 77, Presence: 5}}})
	k.fact("another token is not flagged", !k.look(1, core.ReadRequest{}).Suspected)
	k.heartbeat(core.HeartbeatRequest{Self: member(2, 2, 1), Suspect: []core.Suspicion{{Session: 1, Presence: 5}}})
	k.fact("a page carries the flag", k.look(1, core.ReadRequest{}).Suspected)
	self.Heartbeats = 2
	k.fact("a renewal with the old presence keeps it", k.heartbeat(core.HeartbeatRequest{Self: self}).Members[0].Suspected)
	self.Heartbeats, self.Presence = 3, 6
	k.fact("one with a new presence clears it", !k.heartbeat(core.HeartbeatRequest{Self: self}).Members[0].Suspected)
	self.Heartbeats = 2
	k.fact("a late one sets no heartbeats back", k.heartbeat(core.HeartbeatRequest{Self: self}).Members[0].Heartbeats == 3)
}
