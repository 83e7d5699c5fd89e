package core

import (
	"context"
	"time"
)

// The capabilities in this file are for operators: look, put back, withdraw, clean up. All of them are optional, safe
// for concurrent use, and bounded: none holds a lock while it waits for its caller, none reads a whole table.

// Stored is a stored record as an operator sees it. Times are by the store's clock.
type Stored struct {
	// Envelope is the message. List leaves out its Body.
	Envelope Envelope
	Route    string
	Seq      int64
	State    State
	// Reason says why it was abandoned; empty otherwise.
	Reason Reason
	// Attempts counts how often the broker or the handler said no, Crashes how often a member was removed while it held
	// it.
	Attempts, Crashes int
	// DedupeKey is the one it was staged with.
	DedupeKey string
	// Age is the time since it was first due; negative if it is scheduled for later.
	Age time.Duration
	// DueIn is the time until its schedule or retry is due; 0 = at once, or not waiting.
	DueIn time.Duration
	// Owner is the member that holds it, and LeaseIn for how long that one still counts as alive if nothing more is
	// heard of it; empty if nobody holds it.
	Owner   string
	LeaseIn time.Duration
	// LastError is the latest error, and LastErrorAt when that was; empty and zero if there was none.
	LastError   string
	LastErrorAt time.Time
	// SettledAt is when it reached a terminal state; zero if it has not.
	SettledAt time.Time
	// Err is not nil if the row could not be read whole.
	Err error
}

// Filter selects stored records. Empty fields select everything; several values of one field are alternatives.
type Filter struct {
	IDs     []string
	Routes  []string
	States  []State
	Reasons []Reason
	Topics  []string
	Tenants []string
	Keys    []string
	// Since and Until bound Envelope.Time, Until excluded.
	Since, Until time.Time
}

// IsZero reports whether f selects everything.
func (f *Filter) IsZero() bool {
	return len(f.IDs)+len(f.Routes)+len(f.States)+len(f.Reasons)+len(f.Topics)+len(f.Tenants)+len(f.Keys) == 0 && f.Since.IsZero() && f.Until.IsZero()
}

// Page bounds one call over many records. The zero value starts at the beginning with the defaults.
type Page struct {
	// After is the sequence to go on after: the Next of the page before.
	After int64
	// Limit bounds the records of the answer; default 100, at most 1,000.
	Limit int
	// Budget bounds the rows to look at, so that a filter that fits few answers early with what it found; default
	// 10,000, at most 1,000,000.
	Budget int
}

// Listing is one page of records in staging order.
type Listing struct {
	Records []Stored
	// Next is where to go on, by Page.After; 0 = the end was reached. It may be set on an empty page: the budget was
	// spent.
	Next int64
}

// Inspector looks at stored records.
type Inspector interface {
	// Inspect returns the record of a message on a route, body included; ErrNotFound if there is none.
	Inspect(ctx context.Context, route, id string) (Stored, error)
	// List returns a page of the records that match f.
	List(ctx context.Context, f Filter, p Page) (Listing, error)
}

// RedriveRequest asks to put failed or abandoned records back to pending, with attempts and crashes reset.
type RedriveRequest struct {
	// Filter selects among failed and abandoned records. It must not be empty unless All.
	Filter Filter
	// All says that an empty filter is meant.
	All bool
	// Page bounds one call. Call again with Next for the rest, at the rate you like.
	Page Page
	// DryRun counts and changes nothing.
	DryRun bool
	// Force also takes what is refused by default: a record whose expiry has passed (it is given none), one older than
	// Horizon, and one of whose key later messages may have been published. Stores delete what was published, so that
	// they cannot know the last: an abandoned record with a key counts as out of order unless no message at all was
	// staged after it, or BlockAfterAbandon held them back. A failed one is in order.
	Force bool
	// Horizon is the retention of the consumers' inboxes: an older record might have its effect twice. 0 = not checked.
	// Age counts from when it was first due.
	Horizon time.Duration
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
	RefusedExpired = "expired"      // its time is over
	RefusedHorizon = "horizon"      // older than the inbox remembers
	RefusedOrder   = "out of order" // later messages of its key were sent
)

// Redriver puts failed and abandoned records back.
type Redriver interface {
	// Redrive does one bounded step. An empty filter without All is an [*InvalidError].
	Redrive(ctx context.Context, req RedriveRequest) (Redriven, error)
}

// Retention says how long terminal records are kept. Per field: 0 = the default, negative = for ever; the least
// positive duration means at once.
type Retention struct {
	// Published: default at once: deleted by the settle itself, at no extra cost.
	Published time.Duration
	// Abandoned: default for ever. It holds for every reason but those of Withdrawn. At once means at the next
	// cleaning. When one that blocks its key is deleted, the key goes on.
	Abandoned time.Duration
	// Withdrawn is for cancelled and replaced records; default at once.
	Withdrawn time.Duration
}

// Cleaned is what one call of Clean did.
type Cleaned struct {
	// Elected reports whether the caller holds the cleaner's lease. If not, somebody else cleans.
	Elected bool
	// Expired counts records that were abandoned since their expiry had passed; Deleted what was deleted, by state and
	// reason.
	Expired int
	Deleted map[CleanedKind]int
	// More reports that there is more to do at once.
	More bool
}

// CleanedKind labels what was deleted.
type CleanedKind struct {
	State  State
	Reason Reason
}

// Cleaner keeps a store small: it deletes what its retention is over for, and abandons what expired while it waited.
// The relay calls it at an interval. Without it nothing is ever deleted but what settles delete.
type Cleaner interface {
	// Clean takes or renews the cleaner's lease for owner, an expiring row, never a session's lock; if owner has it, it
	// does one bounded batch in a transaction of its own. It never deletes an unsettled record.
	Clean(ctx context.Context, owner string, lease time.Duration) (Cleaned, error)
}

// BlockedKey is a key of a route with per-key order whose head waits, so that later messages wait behind it.
type BlockedKey struct {
	Route, Key string
	// Head is the record that blocks, without its body.
	Head Stored
	// Cause is "retry" or "abandoned".
	Cause string
	// Since is for how long it has been the head that blocks, by the store's clock.
	Since time.Duration
}

// HeadAction is what an operator decides about the head of a key.
type HeadAction uint8

// The decisions.
const (
	HeadSkip    HeadAction = 1 // give it up with reason skipped; the key goes on
	HeadPark    HeadAction = 2 // give it up with reason parked, to be redriven some day; the key goes on
	HeadRequeue HeadAction = 3 // pending at once, at its place, attempts and crashes reset
)

// String returns the name of the decision.
func (a HeadAction) String() string {
	return nameOf("HeadAction", uint8(a), "none", "skip", "park", "requeue")
}

// BlockedKeysRequest asks for the blocked keys of a route.
type BlockedKeysRequest struct {
	Route string
	// BlockAfterAbandon is that of the relay's route: with it an abandoned head blocks its key, too.
	BlockAfterAbandon bool
	// After is the last key of the page before.
	After string
	// Limit bounds the keys; default [DefaultPageLimit], at most [MaxPageLimit].
	Limit int
}

// KeyKeeper lists and frees blocked keys.
type KeyKeeper interface {
	// BlockedKeys returns keys of a route, in the order of keys, and whether there are more.
	BlockedKeys(ctx context.Context, req BlockedKeysRequest) (keys []BlockedKey, more bool, err error)
	// DecideHead does action with the head of key, if that is still the message with id. It answers ErrNotFound if id
	// is not the head, ErrInFlight if a relay holds it. HeadSkip and HeadPark also take the first message of key that
	// is due, which its relay may have out: that relay carries it out as soon as the message is not out, and DecideHead
	// waits for it, for up to ten seconds; then ErrInFlight says that the decision stands. ErrNotFound says that the
	// message was published meanwhile. Without a relay DecideHead does it alone.
	DecideHead(ctx context.Context, route, key, id string, action HeadAction) error
}

// Difference is one thing in a live schema that is not as it must be.
type Difference struct {
	// Object is the table, column, index or constraint, such as "waybill_outbox.key".
	Object string
	// Want and Have describe it; Have is "missing" if it is not there.
	Want, Have string
}

// DriftChecker compares the live schema with what the adapter needs. An owner's own columns and indexes are fine.
type DriftChecker interface {
	// Drift returns every difference, or nil.
	Drift(ctx context.Context) ([]Difference, error)
}
