package admin

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// RedriveRequest asks to put failed or abandoned records back to pending, with attempts and crashes reset.
type RedriveRequest struct {
	// Filter selects among failed and abandoned records. It must not be empty unless All.
	Filter Filter
	// All says that an empty filter is meant.
	All bool
	// Page bounds one call. Call again with Next for the rest, at the rate you like.
	Page PageRequest
	// DryRun counts and changes nothing.
	DryRun bool
	// Force also takes what is refused by default: a record whose expiry has passed (it is given none), one older than
	// InboxRetention, and one of whose key later messages may have been published. Stores delete what was published, so
	// that they cannot know the last: an abandoned record with a key counts as out of order unless no message at all
	// was staged after it, or BlockAfterAbandon held them back. A failed one is in order.
	Force bool
	// InboxRetention is the retention of the consumers' inboxes: an older record might have its effect twice. 0 = not
	// checked. Age counts from when it was first due.
	InboxRetention time.Duration
	// BlockAfterAbandon says that the routes are served with it, so that nothing followed an abandoned record of a key,
	// unless it was skipped or parked.
	BlockAfterAbandon bool
}

// Redriven is what one call of Redrive did, or would do.
type Redriven struct {
	// Matched is how many records matched; Changed how many were put back; Refused how many need Force, by cause.
	Matched, Changed int
	Refused          map[string]int
	// Next is where to go on; 0 = the end was reached.
	Next int64
}

// The causes in Redriven.Refused.
const (
	RefusedExpired        = "expired"         // its time is over
	RefusedInboxRetention = "inbox retention" // older than the inbox remembers
	RefusedOrder          = "out of order"    // later messages of its key were sent
)

// Candidate is what decides whether a record can be put back.
type Candidate struct {
	State  core.State
	Reason waybill.Reason
	// Age counts from when it was first due. Expired says that its expiry has passed.
	Age     time.Duration
	Expired bool
	// Keyed says that it has a key, and Last that no message at all was staged after it.
	Keyed, Last bool
	// Taken says that a live message has its dedupe key.
	Taken bool
}

// Refusal returns why c needs Force, or cannot be put back at all ([RefusedDuplicate]); "" = it can.
func (r *RedriveRequest) Refusal(c *Candidate) string {
	switch {
	case c.Taken:
		return RefusedDuplicate
	case r.Force:
		return ""
	case c.Expired:
		return RefusedExpired
	case r.InboxRetention > 0 && c.Age > r.InboxRetention:
		return RefusedInboxRetention
	case c.State == core.StateAbandoned && c.Keyed && !c.Last && (!r.BlockAfterAbandon || !c.Reason.Blocks()):
		return RefusedOrder
	}
	return ""
}

// Redriver puts failed and abandoned records back.
type Redriver interface {
	// Redrive does one bounded step. An empty filter without All is an [*waybill.InvalidError].
	Redrive(ctx context.Context, req RedriveRequest) (Redriven, error)
}

// RefusedDuplicate counts, in Redriven.Refused, records for which a live one with their dedupe key stands. Force does
// not help: cancel that one first.
const RefusedDuplicate = "duplicate"

// Takes reports whether a redrive may select a record with state s and reason r at all: failed and abandoned ones, but
// what the application took back (cancelled, replaced) only if the filter names its reason or its id.
func (r *RedriveRequest) Takes(s core.State, reason waybill.Reason) bool {
	return s == core.StateFailed || s == core.StateAbandoned && (!reason.Withdrawn() || len(r.Filter.Reasons) > 0 || len(r.Filter.IDs) > 0)
}

// Count counts one record that matched: put back if cause is empty, else refused for it.
func (r *Redriven) Count(cause string) {
	r.Matched++
	if cause == "" {
		r.Changed++
		return
	}
	if r.Refused == nil {
		r.Refused = map[string]int{}
	}
	r.Refused[cause]++
}
