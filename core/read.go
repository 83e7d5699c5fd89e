package core

import (
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/enum"
)

// Look is one call of Read.
type Look struct {
	// Last is the greatest Page.Last that the caller has seen of this Epoch. The page has Upper if more numbers were
	// drawn since.
	Last int64
	// Parts are slots whose owners are asked for.
	Parts []Part
	// Fresh asks for all that waits in these slots: retries and blocking records that have a key, and what other live
	// sessions hold, keyed or not. It comes by sequence, above AfterFresh, up to Limit.
	Fresh      []Part
	AfterFresh int64
	// Blocks are the routes on which an abandoned record holds its key, as [waybill.Reason.Blocks] says.
	Blocks []string
	// Ranges, Keys and Again are what to read.
	Ranges []Range
	Keys   []KeyRange
	Again  []Ref
	// Limit bounds Page.Waiting, and Bytes the bodies of one range; at least one record is returned whatever its size.
	Limit int
	Bytes int64
}

// Range asks for the ready records of a part with From < sequence ≤ To, in order. Ready is what is due, and neither
// settled nor waiting for a time. Records that somebody holds are ready too.
type Range struct {
	Part
	From, To int64
	// Leave are keys to leave out, and Skip sequences; a store may ignore both.
	Leave []string
	Skip  []int64
	// Keyed leaves out what has no key.
	Keyed bool
	Limit int
}

// KeyRange asks for the ready records of one key with From < sequence ≤ To, in order, and for all that holds the key,
// whatever its sequence.
type KeyRange struct {
	Route, Key string
	From, To   int64
	Limit      int
}

// Page is the answer to a Look, from one snapshot.
type Page struct {
	// Known: the session is a member. Flag is its flag. If it is not known, nothing else is answered.
	Known, Flag bool
	// Epoch is another one after a database went back: after a fail-over, or a restore that was declared.
	Epoch string
	// Owned are the slots of Look.Parts that the session owns, one for each.
	Owned []Slots
	// Waiting is what waits of Look.Fresh, and MoreWaiting that there is more of it.
	Waiting     []Waiting
	MoreWaiting bool
	// Ranges and Keys answer those of the Look, one for each.
	Ranges []Records
	Keys   []KeyRecords
	// Again are those of Look.Again that are still live: ready or held as records, waiting ones as such. Who is not
	// among them is gone.
	Again        []Record
	AgainWaiting []Waiting
	// Control are the control records of Look.Parts, the first 1,000 of them.
	Control []Control

	// Last is the last sequence that was drawn when the snapshot was taken, or later: no record of the snapshot has a
	// greater one.
	Last int64
	// The transaction ids tell what the snapshot does not show yet. A transaction has its id before it draws its first
	// number. One that can still show a number up to Last has an id below Upper. One with an id below Next that is not
	// in Running has ended, and the snapshot shows what it committed. Upper is 0 if no number was drawn since
	// Look.Last.
	Next, Upper int64
	Running     []int64
}

// Records are the answer to a Range. More says that a limit cut them: there may be more behind the last.
type Records struct {
	Records []Record
	More    bool
}

// KeyRecords are the answer to a KeyRange.
type KeyRecords struct {
	Records []Record
	More    bool
	Waiting []Waiting
}

// ControlKind says what a control record is about.
type ControlKind uint8

// The kinds of control records.
const (
	ControlKey    ControlKind = iota + 1 // the key may be free, and its records from a sequence on ready again
	ControlRecord                        // the record is ready again: read it
	ControlFrom                          // records of the route from a sequence on are ready again: read all from there
	ControlDecide                        // an operator ends the record with Reason: withdraw it as soon as it is not out
)

// String returns the name of the kind.
func (k ControlKind) String() string {
	return enum.Name("ControlKind", k, 1, "key", "record", "from", "decide")
}

// Control tells the owner of a slot that somebody changed what it remembers. It is written in the transaction of that
// change, and the owner deletes it, by an outcome of [Heeded]. A ControlFrom concerns all owners of its route, and is
// there until each of them has heeded it.
type Control struct {
	Number int64
	Kind   ControlKind
	Route  string
	Slot   uint8 // 0 for ControlFrom, which concerns all
	Key    string
	ID     string
	Seq    int64
	Reason waybill.Reason // of ControlDecide
}

// Want is one call of Take.
type Want struct {
	// Refs are records of self's units to hold, each if it is still the Ref, is live, and is held by nobody else. They
	// may be out already.
	Refs []Ref
	// N asks for the next N ready records of Part that have no key and that nobody holds, whoever owns the slots, in
	// order: first those that self holds and that are not in Out.
	Part  Part
	N     int
	Out   []Ref
	Bytes int64
	// Deliver counts a delivery for each record that self did not hold before.
	Deliver bool
}

// Grip says what a Take found.
type Grip uint8

// What a Take found.
const (
	GripHeld   Grip = iota + 1 // it is held by self
	GripLocked                 // a transaction has locked it, or another session holds it: ask again
	GripGone                   // it is no longer the Ref
)

// String returns the name of what was found.
func (g Grip) String() string { return enum.Name("Grip", g, 1, "gripped", "locked", "gone") }

// Taken is one record of a Take: one for each of Want.Refs, in their order, or what N found, with its record.
type Taken struct {
	Ref    Ref
	Grip   Grip
	Record *Record // of N only
	// Deliveries is the record's count, this one included.
	Deliveries int
}

// DuePage is the answer to Due.
type DuePage struct {
	// Retries are held by the caller. Of what a transaction had locked nothing is said; it is due at once again.
	Retries []Record
	// Moved counts timers that were put in line.
	Moved int
	// NextIn is how long until something more is due, 0 if there is more already; negative if nothing waits for a time.
	NextIn time.Duration
}
