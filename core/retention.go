package core

import "time"

// Forever is what [Retention.Of] returns for records that are never deleted.
const Forever time.Duration = -1

// Of returns how long a record in the terminal state s with reason is kept: 0 = not at all, Forever = always. It is for
// adapters.
func (r Retention) Of(s State, reason Reason) time.Duration {
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

// Withdrawn reports whether r is of a record that its application took back, for which [Retention] has a field of its
// own.
func (r Reason) Withdrawn() bool { return r == ReasonCancelled || r == ReasonReplaced }
