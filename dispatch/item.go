package dispatch

import (
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// An item is a record in memory. It goes through these states, from the top to the bottom. One that comes back
// unpublished begins anew, and each state can be left out if the record does not need it:
//
//   state        | the record                             | its list              | left by
//   -------------|----------------------------------------|-----------------------|--------------------------------
//   itemQueued   | is behind others of its key            | key.queue             | advance        (key.go)
//   itemSuspect  | may have killed a member: waits for    | suspects.waiting      | fillCrashWindow
//                | a crash window                         |                       |                (hold.go)
//   itemWanting  | waits for its hold                     | route.wants           | holdAnswered   (hold.go)
//   itemReady    | waits for HandOut                      | route.ready           | HandOut        (handout.go)
//   itemOut      | is at the caller                       | none                  | Conclude       (handout.go)
//   itemSettling | is concluded: its outcome is not       | settles.items, or a   | stored, changed or fencedOff
//                | stored yet                             | Settle under way      |                (settle.go)
//
// In every state the item is in route.known. load.queued counts the first state, load.inWindow all others. A suspect is
// in suspects.crashWindow, too, from itemWanting on, until its outcome is stored or waits for a lock. Each way out of
// memory undoes all of that; see forget.go.

// Item is a record on its way.
type Item struct {
	// Record is the record that is handed out. It never changes.
	Record core.Record
	// Suspect: it may have killed a member.
	Suspect bool

	session core.Session // of the member when it read the record; Conclude ignores the item in a later one
	route   *route
	key     *key // nil if it is handed out without waiting for others
	state   itemState
	held    bool // a hold of this session is written
	retry   bool // Due answered it
	again   bool // Due answered a later state of it, which this member holds
	lost    bool // its session has ended, or its partition has another owner
	stored  bool // its outcome is stored, and nothing need look for it
	alone   bool // nothing else may be out
	// unknown: it was out before, and may have been delivered.
	unknown bool
	recheck bool      // it was changed while it was in memory: its record is read again when its outcome is stored
	locked  bool      // its outcome waits for the lock of another transaction
	ends    time.Time // when it expires; zero = never
	tries   int       // in a row: how often a lock refused its hold, or then its outcome
	// at: itemWanting: when to hold it. itemOut: when it was handed out. itemSettling: when to send its outcome.
	at time.Time

	outcome  core.Outcome
	decision *core.Notice // an operator's decision, to be carried out when the item is not out
}

type itemState uint8

const (
	itemQueued   itemState = iota // behind others of its key
	itemSuspect                   // waits for a crash window
	itemWanting                   // waits for its hold
	itemReady                     // to be handed out
	itemOut                       // handed out
	itemSettling                  // concluded
)

// Route returns the name of its route.
func (item *Item) Route() string { return item.route.Name }

// Lost reports that its session has ended, or that its partition has another owner: leave it alone.
func (item *Item) Lost() bool { return item.lost }

// isBusy reports whether the item is handed out, or its outcome is not stored yet.
func (item *Item) isBusy() bool { return item.state == itemOut || item.state == itemSettling }

// isSuspect reports whether a record may have killed a member. A record whose crashes are spent is none: its caller
// abandons it without trying it.
func (item *Item) isSuspect() bool {
	r := &item.Record
	if item.route.Queue { // records that were out are known: they were held
		return r.Crashes >= aloneAfter
	}
	return r.Crashes < core.MaxCrashes && (r.Crashes > 0 || r.Seq <= item.route.uncertainUpTo[r.Slot])
}

// isPlain reports whether an item is handed out as soon as nothing of its key is before it. Then nothing is stored
// first.
func (item *Item) isPlain() bool {
	return !item.isSuspect() && (item.held || !item.Record.Cancellable && !item.route.Hold && !item.route.holdsFirst())
}

// exclusive reports whether nothing may be handed out beside the item. Ready items go before a suspect of a queue. No
// item waits for a suspect whose route is not handed out.
func (item *Item) exclusive() bool {
	return item.alone && (!item.route.Queue || item.state != itemWanting) && (!item.route.shut || item.isBusy())
}

// topicPaused reports whether the item waits for its topic. An item that is held already does not wait, nor one that
// has expired: it goes to its end.
func (item *Item) topicPaused() bool {
	return item.route.topics.paused[item.Record.Envelope.Topic] && !item.held && !item.route.isPast(item.ends)
}

// isLost reports whether this member has lost the partition of a concluded item.
func (item *Item) isLost() bool { return item.lost || !item.route.owned().Has(item.Record.Slot) }

// overrule replaces an outcome that is not terminal, if an operator has ended the record.
func (item *Item) overrule(o core.Outcome) core.Outcome {
	if item.decision == nil || o.State().Terminal() {
		return o
	}
	w := core.Cancel(&item.Record, item.decision.Reason)
	if o.Unknown() {
		w = w.WithUnknown()
	}
	return w
}

// freeKey ends the key's wait for the outcome of the item.
func (item *Item) freeKey() {
	if item.key != nil {
		item.key.unstored = without(item.key.unstored, item)
	}
}

// without returns items without one of them, in place.
func without(items []*Item, item *Item) []*Item {
	return slices.DeleteFunc(items, func(o *Item) bool { return o == item })
}
