package core

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
)

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
	Reason waybill.Reason
}

// Cleaner keeps a store small: it deletes what its retention is over for, and abandons what expired while it waited.
// The relay calls it at an interval. Without it nothing is ever deleted but what settles delete.
type Cleaner interface {
	// Clean takes or renews the cleaner's lease for owner, an expiring row, never a session's lock; if owner has it, it
	// does one bounded batch in a transaction of its own. It never deletes an unsettled record.
	Clean(ctx context.Context, owner string, lease time.Duration) (Cleaned, error)
}

// Forever is what [KeepFor] returns for records that are never deleted.
const Forever time.Duration = -1

// KeepFor returns how long a record in the terminal state s with reason is kept: 0 = not at all, Forever = always.
func KeepFor(r waybill.Retention, s State, reason waybill.Reason) time.Duration {
	d, atOnce := r.Abandoned, false
	switch {
	case s == StatePublished:
		d, atOnce = r.Published, true
	case reason.Withdrawn():
		d, atOnce = r.Withdrawn, true
	}
	switch {
	case d < 0 || d == 0 && !atOnce:
		return Forever
	case d <= 1:
		return 0
	}
	return d
}
