package core

import "github.com/waybill-go/waybill/internal/enum"

// MaxCrashes is the number of crashes at which a record is abandoned with [waybill.ReasonCrashed].
const MaxCrashes = 10

// State is the state of a stored message. Adapters store the numbers. They never change.
type State uint8

// The states of a record.
const (
	StateNone       State = 0 // not stored yet
	StatePending    State = 1 // waits to be handed out, at once or when due
	StateProcessing State = 2 // handed out, as far as that is written down: a member holds it
	StatePublished  State = 3 // terminal: confirmed and routed by the broker
	StateFailed     State = 4 // an attempt failed; handed out again when due
	StateAbandoned  State = 5 // terminal: given up, with a Reason
)

var stateNames = [...]string{"none", "pending", "processing", "published", "failed", "abandoned"}

// String returns the state's name.
func (s State) String() string { return enum.Name("State", s, 0, stateNames[:]...) }

// Terminal reports whether no engine will touch the record again.
func (s State) Terminal() bool { return s == StatePublished || s == StateAbandoned }

// Event is what happens to a record.
type Event uint8

// The events of the state machine.
const (
	EventNone          Event = iota
	EventStaged              // written by the application
	EventHandedOut           // given to a handler or a broker
	EventConfirmed           // the broker confirmed and routed it
	EventAttemptFailed       // an attempt failed, attempts are left
	EventGivenUp             // refused for good, attempts spent, or expired before it was sent
	EventReleased            // handed back unsent: stop, outage, or cut behind a failed one of its key
	EventHolderRemoved       // the member that held it died, or was taken for dead
	EventCrashesSpent        // its turn with its crashes spent
	EventCancelled           // expired (swept), cancelled, replaced or skipped
	EventRequeued            // an operator put it back
)

var eventNames = [...]string{
	"none", "staged", "handed out", "confirmed", "attempt failed", "given up", "released",
	"holder removed", "crashes spent", "cancelled", "requeued",
}

// String returns the event's name.
func (e Event) String() string { return enum.Name("Event", e, 0, eventNames[:]...) }

// Transition is one row of the state machine.
type Transition struct {
	From  State
	Event Event
	To    State
	Note  string
}

var transitions = []Transition{
	{StateNone, EventStaged, StatePending, "due at once, or at DeliverAt"},
	{StatePending, EventHandedOut, StateProcessing, "stored where others must see it: as a hold of the member"},
	{StateFailed, EventHandedOut, StateProcessing, "when its retry is due; held before it is sent"},
	{StateProcessing, EventConfirmed, StatePublished, "deleted at once, or kept for a retention time"},
	{StateProcessing, EventAttemptFailed, StateFailed, "attempt counted; error and next due time stored"},
	{StateProcessing, EventGivenUp, StateAbandoned, "reason rejected, attempts, undecodable, too_large, forbidden, unroutable or expired"},
	{StateProcessing, EventReleased, StatePending, "costs nothing; failed again if it had failed before"},
	{StateProcessing, EventHolderRemoved, StatePending, "counted as a crash, not as an attempt; failed again if it had failed before"},
	{StateProcessing, EventCrashesSpent, StateAbandoned, "before it is sent, reason crashed"},
	{StatePending, EventCancelled, StateAbandoned, "reason expired, cancelled, replaced, skipped or set aside"},
	{StateFailed, EventCancelled, StateAbandoned, "reason expired, cancelled, replaced, skipped or set aside"},
	{StateFailed, EventRequeued, StatePending, "attempts and crashes reset"},
	{StateAbandoned, EventRequeued, StatePending, "attempts and crashes reset"},
}

// Transitions returns a copy of the state machine's table, in the order of the documentation.
func Transitions() []Transition { return append([]Transition(nil), transitions...) }

// Next returns the state that follows from on event, and whether the table has such a row. The table notes one
// exception: a record that comes back after an earlier failed attempt is failed again.
func Next(from State, event Event) (State, bool) {
	for _, t := range transitions {
		if t.From == from && t.Event == event {
			return t.To, true
		}
	}
	return StateNone, false
}
