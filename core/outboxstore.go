package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/enum"
)

// What became of an outcome that was not applied; matched with errors.Is. They are answers, not failures.
var (
	// ErrBusy reports a record that a caller's transaction has locked, alone: send the outcome again.
	ErrBusy = errors.New("busy: a transaction has locked the record")
	// ErrChanged reports a record that is no longer what the outcome names: it is gone, settled, or has another
	// version.
	ErrChanged = errors.New("changed: the record is no longer what was handed out")
	// ErrFenced reports a session that was removed, or that neither owns the record's unit nor holds the record.
	ErrFenced = errors.New("fenced: the session was removed, or the record's unit is another's")
)

// Refused says that nothing was done about ref because of why: [ErrBusy], [ErrChanged] or [ErrFenced]. The class is
// rejected. op says where: "waybill/postgres: settle".
func Refused(op string, ref Ref, why error) error {
	return &waybill.Error{
		Op: fmt.Sprintf("%s %q on route %q", op, ref.ID, ref.Route), Class: waybill.ClassRejected, Err: why,
	}
}

// Fenced says that a session that is no member any more, or does not own what it asks for, changed nothing. It matches
// [ErrFenced]; the class is rejected.
func Fenced(op string, self Session) error {
	return &waybill.Error{Op: fmt.Sprintf("%s by session %d", op, self), Class: waybill.ClassRejected, Err: ErrFenced}
}

// OutboxStore is what the engine needs of a database.
type OutboxStore interface {
	// Meet joins, renews or looks, in one transaction and in this order: it renews m.Self, makes the units of routes
	// that have none, removes m.Remove, makes m.Moves, and returns the roster as it is then. A removal that meets a
	// lock, or a member whose beat is no longer the given one, is left out; so is a move whose unit has another owner
	// than From. Removing a member counts a crash for each record it holds, ends its holds, frees its units, and sets
	// their Careful to the last sequence drawn. Self may be among Remove: it ends as others do.
	Meet(ctx context.Context, m Meeting) (Roster, error)
	// Read answers all parts of look from one snapshot and locks nothing.
	Read(ctx context.Context, self Session, look Look) (Page, error)
	// Take writes holds. A record that is locked by somebody's transaction is answered as such, without waiting for it.
	// A session that was removed is answered with ErrFenced.
	Take(ctx context.Context, self Session, want Want) ([]Taken, error)
	// GiveUp writes holds of self for exactly the records of out in the unit, ends self's other holds in it, stores
	// unit.Low, and frees the unit: all of it or nothing. It reports false, and changes nothing, if one of out is
	// locked. A record of out that is no longer the Ref is left out. If the unit's term is greater than unit.Term, it
	// was given up before: that is true, and nothing changes, though self may own it again. A removed session, and a
	// unit that is another's in this term, is ErrFenced. Several give-ups of a member may run at once, each of another
	// unit.
	GiveUp(ctx context.Context, self Session, unit OwnedUnit, out []Ref) (bool, error)
	// Due looks for what has come due in parts; slots that self does not own are left out. It holds and answers up to
	// limit retries, first those that self holds already. It gives up to limit timers a new number, greater than any
	// drawn before; they are ready from then on, and the engine reads them like anything staged. Locked ones are left
	// for later.
	Due(ctx context.Context, self Session, parts []Part, limit int) (DuePage, error)
	// Settle persists outcomes and returns one result each: nil, ErrBusy, ErrChanged, ErrFenced, or why it could not be
	// stored. One that fails leaves the others alone, unless the error is an outage. EventConfirmed needs a live
	// session and (sequence, id), and is nil for a record that is gone. All others also need the version, and that self
	// owns the record's unit or holds the record.
	Settle(ctx context.Context, self Session, outcomes []Outcome) Results
	// Traits declares what the store promises.
	Traits() StoreTraits
}

// StoreTraits are a store's promises. The zero value promises nothing.
type StoreTraits struct {
	// Bound is zero if Page's transaction ids are exact. Else a transaction may show records later than they say, but
	// none that began longer ago than this.
	Bound time.Duration
	// SessionFence: a session that was removed, and one that lost the unit, settles nothing. Without it only the
	// version protects a record.
	SessionFence bool
	// Durable: what was committed survives a crash of the process and of the database.
	Durable bool
	// SharedAcrossProcesses: members of several processes may meet in it.
	SharedAcrossProcesses bool
}

// Session names one run of one member: a random number above 0 that is never used again. 0 is nobody.
type Session int64

// Part is some slots of a route.
type Part struct {
	Route string
	Slots Slots
}

// Unit is what is owned: the slots [From, To) of a route.
type Unit struct {
	Route    string
	From, To uint8
}

// Slots returns the unit's slots.
func (u Unit) Slots() Slots { return SlotRange(u.From, u.To) }

// Presence is a store on which a member can show that its process is there. Without it, a member that was killed is
// dead only when its lease is over.
type Presence interface {
	// Attend takes something that the database lets go of when the process ends or its connection is lost, and returns
	// its token, above 0 and never used before, for Member.Presence. It returns 0 where there is no such thing, as
	// behind a pooler. lost is closed when it is gone; it is also given back when ctx ends. Attend waits for no other
	// member.
	Attend(ctx context.Context) (token int64, lost <-chan struct{}, err error)
}

// Ref names one version of a record. The version grows with every change but a hold: with every outcome, Release too.
type Ref struct {
	Route   string
	Seq     int64
	ID      string
	Version int64
}

// Record is a stored message that was read.
type Record struct {
	Ref
	// Envelope is what to publish. If Err is set, it is what could be read.
	Envelope waybill.Envelope
	Slot     uint8
	// Attempts counts how often the broker or the handler said no, Deliveries how often a Want with Deliver held it,
	// Crashes how often a member was removed while it held it.
	Attempts, Deliveries, Crashes int
	// Failed reports that it has an error from an earlier attempt.
	Failed bool
	// Withdrawable: a caller may cancel or replace it although it is due, so it must be held before it is handed out.
	Withdrawable bool
	// Holder is the live session that holds it; 0 = none. The hold of a session that is gone is no hold.
	Holder Session
	// Age is the time since it first became due, retries notwithstanding, by the store's clock.
	Age time.Duration
	// Life is what remains until it expires, by the store's clock: not above 0 = expired. Meaningful if Expires.
	Expires bool
	Life    time.Duration
	// Err is not nil when the store could not read the row. It must be abandoned with [waybill.ReasonUndecodable].
	Err error
}

// Obstacle says what keeps a record, and with it its key, from being handed out.
type Obstacle uint8

// The obstacles.
const (
	ObstacleRetrying Obstacle = iota + 1 // it waits for its next attempt
	ObstacleBlocking                     // it was abandoned on a route that blocks; an operator must decide
	ObstacleHeld                         // another live session holds it
)

// String returns the name of the obstacle.
func (o Obstacle) String() string {
	return enum.Name("Obstacle", o, 1, "retrying", "blocking", "held")
}

// Waiting is a record that holds its key.
type Waiting struct {
	Ref
	Slot   uint8
	Key    string
	Why    Obstacle
	Holder Session
}
