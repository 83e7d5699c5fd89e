package core

import "time"

// Member is one run of one process.
type Member struct {
	Session Session
	// Name is shown to operators.
	Name string
	// Beat rises with each renewal.
	Beat int64
	// Lease is shown to operators. Other members wait for their own lease, not for this one, before they take the
	// member for dead.
	Lease time.Duration
	// Serves are the routes it serves.
	Serves []Serving
	// Handlers is the number of records that the member can have out at once, and Free the number that it can take
	// now. A relay says 1 and 1.
	Handlers, Free int
	// Presence is the token of a resource that ends with the member's connection, see [Presence]; 0 = none.
	Presence int64
	// Missing reports that no connection had that token when the roster was read. It is false without a token, and
	// if the server was restarted since the member's latest renewal: a restart loses all tokens. It does not name
	// the cause: a lost connection does not mean a dead process.
	Missing bool
	// Flag was set by another member that misses the presence. A renewal with another Presence clears it, also with
	// 0.
	Flag bool
}

// Serving is a route that a member serves.
type Serving struct {
	Route string
	// Units is the number of units that the member makes if the route has none.
	Units int
	// Unable reports that the member cannot hand out now, because it is paused or its broker is away. It should own
	// no unit of the route if another member can.
	Unable bool
}

// Meeting is one call of Meet.
type Meeting struct {
	// Self joins if it is unknown and Join is set. It is renewed if it is known and its beat has risen. A member
	// that only looks passes its latest beat. A zero Session only looks, too.
	Self Member
	Join bool
	// Leave removes Self, after Moves: its holds end without counting crashes, its units become free, and their
	// Careful stays.
	Leave  bool
	Remove []Removal
	// Flag sets the flag of members that still have the given Presence.
	Flag  []Flagging
	Moves []Move
	// AfterControl: Roster.Told need not report control records with a number up to this one. A store can ignore
	// it.
	AfterControl int64
}

// Removal removes a member if its beat is still Beat.
type Removal struct {
	Session Session
	Beat    int64
}

// Flagging flags a member if its token is still Presence.
type Flagging struct {
	Session  Session
	Presence int64
}

// Move gives a unit to To, if From owns it; session 0 stands for a free unit. A move from a session to itself stores
// Low and Careful. A late call stores nothing: one whose Self.Beat is below the stored beat.
type Move struct {
	Unit     Unit
	From, To Session
	// Low: a new owner must look at records with a greater sequence. Careful: a member that died can have handed
	// out records up to this sequence. Both count only in a move from a session to itself.
	Low, Careful int64
}

// Roster lists the members and the units with their owners.
type Roster struct {
	// Known reports that the caller's session is a member. If not, it was removed, or it never joined.
	Known   bool
	Epoch   string
	Members []Member
	Units   []OwnedUnit
	// Unserved are routes with due records and no unit; at most 100.
	Unserved []string
	// Told reports that there are control records on routes that Meeting.Self serves. The caller is to read them,
	// although nothing has woken it.
	Told bool
}

// OwnedUnit is a unit and its owner, 0 if it is free. Term grows with each change of the owner, and is above 0.
type OwnedUnit struct {
	Unit         Unit
	Owner        Session
	Term         int64
	Low, Careful int64
}
