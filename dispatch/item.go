package dispatch

import (
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Item is a record on its way.
type Item struct {
	// Record is what is handed out. It is not changed.
	Record core.Record
	// Suspect: it may be what killed a member.
	Suspect bool

	session core.Session
	route   *route
	key     *key // nil if it is handed out without regard to others
	state   itemState
	held    bool // a hold of this session is written
	retry   bool // Due answered it
	lost    bool // of an ended session, or of a unit that is another's
	alone   bool // the only one that may be out
	// unknown: it was out before, and may have arrived.
	unknown bool
	recheck bool // somebody changed it while its outcome was on the way
	tries   int
	at      time.Time // when it was handed out, or is to be tried again

	outcome  core.Outcome
	decision *core.Control // an operator's, to be carried out when it is not out
}

type itemState uint8

const (
	itemQueued   itemState = iota // behind others of its key
	itemSuspect                   // waits for a window
	itemWanting                   // waits for its hold
	itemReady                     // to be handed out
	itemOut                       // handed out
	itemSettling                  // concluded
)

// Route returns the name of its route.
func (item *Item) Route() string { return item.route.Name }

// Lost reports that its session has ended, or that its unit is another's: nothing more should be done with it.
func (item *Item) Lost() bool { return item.lost }

// isBusy reports whether the item is handed out, or its outcome is not stored yet.
func (item *Item) isBusy() bool { return item.state == itemOut || item.state == itemSettling }

// isSuspect reports whether a record may be what killed a member.
func (item *Item) isSuspect() bool {
	r := &item.Record
	if item.route.Queue { // what was out is known: it was held
		return r.Crashes >= aloneAfter
	}
	return r.Crashes < core.MaxCrashes && (r.Crashes > 0 || r.Seq <= item.route.careful[r.Slot])
}

// isPlain reports whether an item is handed out as soon as nothing of its key is before it: nothing is written before.
func (item *Item) isPlain() bool {
	return !item.isSuspect() && (item.held || !item.Record.Withdrawable && !item.route.Hold)
}

// bars reports whether nothing may be handed out together with the item: what is ready goes before a suspect of a
// queue, and nobody waits for one whose route is not handed out.
func (item *Item) bars() bool {
	return item.alone && (!item.route.Queue || item.state != itemWanting) && (!item.route.shut || item.isBusy())
}

// topicBlocked reports whether the item waits for its topic. What is held already goes on.
func (item *Item) topicBlocked() bool {
	return item.route.topics.blocked[item.Record.Envelope.Topic] && !item.held
}

// isLost reports whether this member has lost the unit of a concluded item.
func (item *Item) isLost() bool { return item.lost || !item.route.owned().Has(item.Record.Slot) }

// overrule replaces an outcome after which the record would go on, if an operator has ended it.
func (item *Item) overrule(o core.Outcome) core.Outcome {
	if item.decision == nil || o.State().Terminal() {
		return o
	}
	w := core.Withdraw(&item.Record, item.decision.Reason)
	if o.Unknown() {
		w = w.WithUnknown()
	}
	return w
}

// freeKey ends the wait of the key for what became of the item.
func (item *Item) freeKey() {
	if item.key != nil {
		item.key.unstored = without(item.key.unstored, item)
	}
}

// without returns items without one of them, in place.
func without(items []*Item, item *Item) []*Item {
	return slices.DeleteFunc(items, func(o *Item) bool { return o == item })
}
