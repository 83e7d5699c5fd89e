package core

import "time"

// Member is one run of one process.
type Member struct {
	Session Session
	// Name is for people.
	Name string
	// Beat rises with each renewal.
	Beat int64
	// Lease is what the others wait for before they take its beat for dead, each with its own. For people.
	Lease time.Duration
	// Serves are the routes it serves.
	Serves []Serving
	// Handlers is how many records it can have out at once, and Free how many more it could take now. A relay says 1
	// and 1.
	Handlers, Free int
	// Presence is the token of something that ends with its connection, see [Presence]; 0 = none.
	Presence int64
	// Missing: nobody has that token, as the roster was read. It says nothing about why: a connection that is lost is
	// not a dead process, and a server that was restarted has lost all of them. False without a token.
	Missing bool
	// Flag was set by another member, who misses its presence. A renewal with another Presence clears it, 0 included.
	Flag bool
}

// Serving is a route that a member serves.
type Serving struct {
	Route string
	// Units is the number of units it would make, if the route has none.
	Units int
	// Unable: it cannot hand out now, being paused or its broker out of order; it should own nothing of it if another
	// can.
	Unable bool
}

// Meeting is one call of Meet.
type Meeting struct {
	// Self joins if it is unknown and Join is set, and is renewed if it is known and its beat has risen. One that only
	// looks has its latest beat. A zero Session only looks, too.
	Self Member
	Join bool
	// Leave removes Self, after Moves: its holds end, uncounted, and its units are free; their Careful is as it was.
	Leave  bool
	Remove []Removal
	// Flag sets the flag of members whose Presence is still the one given.
	Flag  []Flagging
	Moves []Move
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

// Move gives a unit to To, if From owns it; 0 is nobody. A move from a session to itself stores Low and Careful, if it
// does not come late: a call whose Self.Beat is below the one that is stored stores none.
type Move struct {
	Unit     Unit
	From, To Session
	// Low: what a new owner must look at has a greater sequence. Careful: what is up to it may have been handed out by
	// a member that died. Both only count in a move from a session to itself.
	Low, Careful int64
}

// Roster is who is there and who owns what.
type Roster struct {
	// Known: the caller's session is a member. If not, it was removed, or never joined.
	Known   bool
	Epoch   string
	Members []Member
	Units   []OwnedUnit
	// Unserved are routes with due records and no unit; at most 100.
	Unserved []string
}

// OwnedUnit is a unit and its owner, 0 if it is free. Term grows with each change of the owner, and is above 0.
type OwnedUnit struct {
	Unit         Unit
	Owner        Session
	Term         int64
	Low, Careful int64
}
