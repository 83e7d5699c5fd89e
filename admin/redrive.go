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
	// All confirms that an empty filter is intended.
	All bool
	// Page bounds one call. Call again with Next for the rest; [RedriveAll] does, at a rate.
	Page PageRequest
	// DryRun counts and changes nothing.
	DryRun bool
	// Force also takes records that are refused by default: an expired one (its expiry is removed), one older than
	// InboxRetention, and one after which messages of its key can have been published. Stores delete published
	// records, so they cannot know about the last case. An abandoned record with a key therefore counts as out of
	// order, unless no message at all was staged after it, or BlockAfterAbandon held later ones back. A store that
	// cannot know that nothing was staged after it always refuses. A failed record is in order.
	Force bool
	// InboxRetention is the retention of the consumers' inboxes: an older record could have its effect twice. 0 =
	// not checked. Age counts from the time when the record was first due.
	InboxRetention time.Duration
	// Body is a repaired body for the record; nil = its own. A header then has the hash of the message before, so
	// that an inbox does not take the message for another one with the same id. The filter must name one route and
	// one id. The bound is the store's Limits.MaxBodyBytes.
	Body []byte
	// BlockAfterAbandon says that the routes are served with this option. Then no message followed an abandoned
	// record of a key, unless the record was skipped or set aside.
	BlockAfterAbandon bool
}

// Redriven is the result of one call of Redrive, or with DryRun the result that it would have.
type Redriven struct {
	// Matched is how many records matched, Changed how many were put back, and Refused how many need Force, by
	// cause.
	Matched, Changed int
	Refused          map[string]int
	// Next is the value of PageRequest.After for the next call; 0 = the end was reached.
	Next int64
}

// The causes in Redriven.Refused.
const (
	RefusedExpired        = "expired"         // its time is over
	RefusedInboxRetention = "inbox retention" // older than the inbox remembers
	RefusedOrder          = "out of order"    // later messages of its key were sent
)

// Candidate holds the facts that decide whether a record can be put back.
type Candidate struct {
	State  core.State
	Reason waybill.Reason
	// Age counts from the time when it was first due. Expired reports that its expiry has passed.
	Age     time.Duration
	Expired bool
	// Keyed reports that it has a key. Last reports that no message at all was staged after it.
	Keyed, Last bool
	// Taken reports that a live message has its dedupe key.
	Taken bool
}

// Refusal returns why c needs Force, or cannot be put back at all ([RefusedDuplicate]); "" = it can be put back.
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
	// Redrive does one bounded step. A record that is put back has no attempts, crashes, reason or error. The store
	// still knows that it can have been delivered, for a later Cancel. Of records with one dedupe key the first is
	// put back; a dry run counts the same. A decision about a record ([Decider], [BlockedKeys]) that is not carried
	// out yet is void when the record is put back: the later command counts. An empty filter without All is an
	// [*waybill.InvalidError].
	Redrive(ctx context.Context, req RedriveRequest) (Redriven, error)
}

// RefusedDuplicate counts, in Redriven.Refused, records whose dedupe key a live record has. Force does not help: cancel
// the live one first.
const RefusedDuplicate = "duplicate"

// Takes reports whether a redrive can select a record with state s and reason r at all. It can select failed and
// abandoned records. It selects a record that the application took back (cancelled, replaced) only if the filter names
// the reason or the id.
func (r *RedriveRequest) Takes(s core.State, reason waybill.Reason) bool {
	return s == core.StateFailed || s == core.StateAbandoned && (!reason.Cancelled() || len(r.Filter.Reasons) > 0 || len(r.Filter.IDs) > 0)
}

// Count counts one matching record: as put back if cause is empty, else as refused for the cause.
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
