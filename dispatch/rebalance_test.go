package dispatch

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
)

// me is the session of the member under test.
const me core.Session = 1

// joined returns a dispatcher that has just seen a membership, with four partitions of owner.
func joined(owner core.Session, members ...core.Member) *Dispatcher {
	d := New(Options{Routes: []Route{{Name: "r", Partitions: 4}}, Lease: time.Second})
	d.tick(epochStart)
	d.session, d.self.joined = me, true
	for i := range members {
		members[i].Routes = []core.ServedRoute{{Route: "r", Partitions: 4}}
		members[i].FreeCapacity = members[i].Capacity
	}
	d.peers.membership = core.Membership{Known: true, Members: members}
	for _, u := range core.SplitPartitions("r", 4) {
		d.peers.membership.Partitions = append(d.peers.membership.Partitions, core.PartitionState{Partition: u, Owner: owner, Term: 1})
	}
	return d
}

// TestSharesFollowHandlers: a member with three times the handlers takes three times the partitions.
func TestSharesFollowHandlers(t *testing.T) { // DB-24
	t.Parallel()
	d := joined(0, core.Member{Session: me, Capacity: 3}, core.Member{Session: 2, Capacity: 1})
	if d.rebalance(); len(d.peers.transfers) != 3 {
		t.Errorf("it takes %d of 4 partitions", len(d.peers.transfers))
	}
}

// TestStoppingMemberTakesNothing: not even if no other member is there.
func TestStoppingMemberTakesNothing(t *testing.T) { // DB-24
	t.Parallel()
	d := joined(0, core.Member{Session: me, Capacity: 1})
	d.self.stopping = true
	if d.rebalance(); len(d.peers.transfers) != 0 {
		t.Errorf("it takes %d partitions", len(d.peers.transfers))
	}
}

// TestPartitionsOfWhoHasNoRow: the partitions of an owner without a row are free after a lease, not before, and taken
// with care.
func TestPartitionsOfWhoHasNoRow(t *testing.T) { // DB-24
	t.Parallel()
	const gone core.Session = 9
	d := joined(gone, core.Member{Session: me, Capacity: 1})
	d.observe(&Call{sent: epochStart})
	if d.rebalance(); len(d.peers.transfers) != 0 || !d.peers.heartbeatAt.Equal(epochStart.Add(time.Second)) {
		t.Fatalf("it takes %d partitions at once; it looks again at %s", len(d.peers.transfers), d.peers.heartbeatAt)
	}
	d.tick(epochStart.Add(time.Second))
	d.observe(&Call{sent: d.now})
	d.rebalance()
	if len(d.peers.transfers) != 4 || len(d.peers.orphaned) != 4 {
		t.Errorf("it takes %d partitions, %d with care", len(d.peers.transfers), len(d.peers.orphaned))
	}
	for _, m := range d.peers.transfers {
		if m.From != gone || m.To != me {
			t.Errorf("%+v", m)
		}
	}
}

// TestDeadAfterItsLease: a member whose beat stands still is dead after its lease: not before, not later, and another
// member looks then.
func TestDeadAfterItsLease(t *testing.T) { // DB-24
	t.Parallel()
	const lease = 3 * time.Second
	d := joined(2, core.Member{Session: me, Capacity: 1}, core.Member{Session: 2, Heartbeats: 5, Lease: lease, Capacity: 1})
	for _, after := range []time.Duration{0, time.Second, lease - time.Millisecond} {
		d.tick(epochStart.Add(after))
		d.peers.heartbeatAt = time.Time{}
		d.observe(&Call{sent: d.now})
		if len(d.peers.evictions) != 0 || after > 0 && !d.peers.heartbeatAt.Equal(epochStart.Add(lease)) {
			t.Fatalf("after %s: removes %v, looks again at %s", after, d.peers.evictions, d.peers.heartbeatAt)
		}
	}
	d.tick(epochStart.Add(lease))
	if d.observe(&Call{sent: d.now}); len(d.peers.evictions) != 1 || d.peers.evictions[0] != (core.Eviction{Session: 2, Heartbeats: 5}) {
		t.Errorf("removes %v", d.peers.evictions)
	}
}

// TestLoneSuspectWaits: a suspect that goes alone is not handed out while anything else is out.
func TestLoneSuspectWaits(t *testing.T) { // DB-04
	t.Parallel()
	d := joined(me, core.Member{Session: me, Capacity: 1})
	for out, want := range map[int]bool{0: true, 1: false} {
		d.work.out = out
		if got := d.mayGo(&Item{alone: true}, false); got != want {
			t.Errorf("beside %d others: %t", out, got)
		}
	}
}
