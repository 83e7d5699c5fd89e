package core

import (
	"testing"
	"time"
)

// DB-09
func TestRetentionOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		r      Retention
		state  State
		reason Reason
		want   time.Duration
	}{
		{Retention{}, StatePublished, ReasonNone, 0},
		{Retention{}, StateAbandoned, ReasonAttempts, Forever},
		{Retention{}, StateAbandoned, ReasonExpired, Forever},
		{Retention{}, StateAbandoned, ReasonNone, Forever},
		{Retention{}, StateAbandoned, ReasonCancelled, 0},
		{Retention{}, StateAbandoned, ReasonReplaced, 0},
		{Retention{Published: -1, Abandoned: -5, Withdrawn: -1}, StatePublished, ReasonNone, Forever},
		{Retention{Published: -1, Abandoned: -5, Withdrawn: -1}, StateAbandoned, ReasonSkipped, Forever},
		{Retention{Published: -1, Abandoned: -5, Withdrawn: -1}, StateAbandoned, ReasonReplaced, Forever},
		{Retention{Published: 1, Abandoned: 1, Withdrawn: 1}, StateAbandoned, ReasonSkipped, 0},
		{Retention{Published: time.Hour, Abandoned: 2, Withdrawn: time.Minute}, StatePublished, ReasonNone, time.Hour},
		{Retention{Published: time.Hour, Abandoned: 2, Withdrawn: time.Minute}, StateAbandoned, ReasonRejected, 2},
		{Retention{Published: time.Hour, Abandoned: 2, Withdrawn: time.Minute}, StateAbandoned, ReasonCancelled, time.Minute},
	} {
		if got := tc.r.Of(tc.state, tc.reason); got != tc.want {
			t.Errorf("%+v of %s %q: %s, want %s", tc.r, tc.state, tc.reason, got, tc.want)
		}
	}
}
