package core

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/enum"
)

// Cleaned is the result of one call of Clean.
type Cleaned struct {
	// Leader reports whether the caller holds the cleaner's lease. If not, another process cleans.
	Leader bool
	// Expired counts records that were abandoned because they had expired. Deleted counts deleted records by state
	// and reason.
	Expired int
	Deleted map[CleanedKind]int
	// More reports that there is more to do at once.
	More bool
}

// CleanedKind labels deleted records.
type CleanedKind struct {
	State  State
	Reason waybill.Reason
}

// Cleaner keeps a store small: it deletes records whose retention has expired, and abandons records that expired while
// they waited. The relay calls it at an interval. Without it records are deleted only by their settle.
type Cleaner interface {
	// Clean takes or renews the cleaner's lease for owner. The lease is a row that expires, never a session's lock.
	// If owner has the lease, Clean does one bounded batch in a transaction of its own. It never deletes an
	// unsettled record, and leaves out rows that a transaction has locked. Of the expired records it abandons those
	// that wait for a time, and due ones in partitions without an owner. It begins with [CheckClean].
	Clean(ctx context.Context, owner string, lease time.Duration) (Cleaned, error)
}

// RetentionClass groups terminal records that are kept equally long: the records of one field of [waybill.Retention].
// The numbers are stored in indexes and never change.
type RetentionClass uint8

// The classes.
const (
	RetentionPublished RetentionClass = 0
	RetentionAbandoned RetentionClass = 1
	RetentionCancelled RetentionClass = 2 // abandoned, since its application took it back
)

// RetentionClasses returns every class, by number.
func RetentionClasses() []RetentionClass {
	return []RetentionClass{RetentionPublished, RetentionAbandoned, RetentionCancelled}
}

// RetentionClassOf returns the class of records in the terminal state s. reason is the reason of abandoned ones.
func RetentionClassOf(s State, reason waybill.Reason) RetentionClass {
	switch {
	case s == StatePublished:
		return RetentionPublished
	case reason.Cancelled():
		return RetentionCancelled
	}
	return RetentionAbandoned
}

// String returns the name of the class.
func (c RetentionClass) String() string {
	return enum.Name("RetentionClass", c, 0, "published", "abandoned", "cancelled")
}

// State returns the terminal state of the records.
func (c RetentionClass) State() State {
	if c == RetentionPublished {
		return StatePublished
	}
	return StateAbandoned
}

// KeptFor returns how long r keeps the records: 0 = they are not kept, [waybill.Forever] = always.
func (c RetentionClass) KeptFor(r waybill.Retention) time.Duration {
	d, atOnce := r.Abandoned, false
	switch c {
	case RetentionPublished:
		d, atOnce = r.Published, true
	case RetentionCancelled:
		d, atOnce = r.Cancelled, true
	case RetentionAbandoned:
	}
	switch {
	case d < 0 || d == 0 && !atOnce:
		return waybill.Forever
	case d <= waybill.AtOnce:
		return 0
	}
	return d
}

// DroppedAtOnce reports whether the statement that ends a record of this class also deletes it. It does so if r does
// not keep the record, and no operator has to see it. An abandoned record stays until the next cleaning.
func (c RetentionClass) DroppedAtOnce(r waybill.Retention) bool {
	return c != RetentionAbandoned && c.KeptFor(r) == 0
}
