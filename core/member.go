package core

import "time"

// Member is one run of one process.
type Member struct {
	Session Session
	// Name is shown to operators.
	Name string
	// Heartbeats rises with each renewal.
	Heartbeats int64
	// Lease is how long Heartbeats may stand still before others take the member for dead; 0 = their own lease.
	Lease time.Duration
	// Routes are the routes it serves.
	Routes []ServedRoute
	// Capacity is the number of records that the member can have out at once, and FreeCapacity the number that it
	// can take now. A relay says 1 and 1.
	Capacity, FreeCapacity int
	// Presence is the token of a resource that ends with the member's connection, see [Presence]; 0 = none.
	Presence int64
	// PresenceLost reports that no connection had that token when the membership was read. It is false without a
	// token, and if the server was restarted since the member's latest renewal: a restart loses all tokens. It does
	// not name the cause: a lost connection does not mean a dead process.
	PresenceLost bool
	// Suspected was set by another member that found no presence. A renewal with another Presence clears it, also
	// with 0.
	Suspected bool
}

// ServedRoute is a route that a member serves.
type ServedRoute struct {
	Route string
	// InitialPartitions is the number of partitions that the member makes if the route has none.
	InitialPartitions int
	// Unavailable reports that the member cannot hand out now, because it is paused or its broker is away. It
	// should own no partition of the route if another member can.
	Unavailable bool
	// HandedOut is how many records the member had handed out and not concluded when it sent its heartbeat, and
	// OldestHandedOut for how long the oldest of them had been out. Both are for operators.
	HandedOut       int
	OldestHandedOut time.Duration
}

// HeartbeatRequest is one call of Heartbeat.
type HeartbeatRequest struct {
	// Self joins if it is unknown and Join is set. It is renewed if it is known and its Heartbeats has risen. A
	// member that only reads the membership passes its latest Heartbeats. A zero Session only reads, too. After a
	// Join without an answer the next one is for another Session: the first may be executed when others have
	// removed its Session, and would bring it back.
	Self Member
	Join bool
	// Leave removes Self, after Transfers: its holds end without counting crashes, its partitions become free, and
	// their MaybeOutUpTo stays.
	Leave bool
	// StoreEpoch is that of the latest membership of the caller; empty = there was none. If the database has gone
	// back since, the transfers to Self from itself store nothing: records that the caller has read may be there
	// again.
	StoreEpoch string
	Evict      []Eviction
	// Suspect marks members that still have the given Presence as Suspected.
	Suspect   []Suspicion
	Transfers []Transfer
	// AfterNotice: Membership.HasNotices need not report notices with a number up to this one. A store can ignore
	// it.
	AfterNotice int64
}

// Eviction removes a member if it has sent no heartbeat since Heartbeats.
type Eviction struct {
	Session    Session
	Heartbeats int64
}

// Suspicion marks a member as Suspected if its token is still Presence.
type Suspicion struct {
	Session  Session
	Presence int64
}

// Transfer gives a partition to To, if From owns it; session 0 stands for a free partition. A transfer from a session
// to itself stores ReadAfter and MaybeOutUpTo. A late call stores nothing: its Self.Heartbeats is below the stored
// one.
type Transfer struct {
	Partition Partition
	From, To  Session
	// ReadAfter: a new owner must read the records with a greater sequence. MaybeOutUpTo: a member that died can
	// have handed out records up to this sequence. Both count only in a transfer from a session to itself.
	ReadAfter, MaybeOutUpTo int64
}

// Membership lists the members and the partitions with their owners.
type Membership struct {
	// IsMember reports that the caller's session is a member. If not, it was removed, or it never joined.
	IsMember bool
	// StoreEpoch names the history of the database, as in [ReadResult].
	StoreEpoch string
	Members    []Member
	Partitions []PartitionState
	// HasNotices reports that there are notices on routes that HeartbeatRequest.Self serves. The caller is to read
	// them, although nothing has woken it.
	HasNotices bool
}

// PartitionState is a partition and its owner, 0 if it is free. Term grows with each change of the owner, and is above
// 0. ReadAfter and MaybeOutUpTo are as in [Transfer].
type PartitionState struct {
	Partition               Partition
	Owner                   Session
	Term                    int64
	ReadAfter, MaybeOutUpTo int64
	// StoreEpoch counts only in a call of ReleasePartition, where it is as in [HeartbeatRequest]: if the database
	// has gone back since, ReadAfter is not stored.
	StoreEpoch string
}
