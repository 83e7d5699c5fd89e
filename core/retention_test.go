package core

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill"
)

// DB-09
func TestRetentionClasses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		r      waybill.Retention
		state  State
		reason waybill.Reason
		want   time.Duration
	}{
		{waybill.Retention{}, StatePublished, waybill.ReasonNone, 0},
		{waybill.Retention{}, StateAbandoned, waybill.ReasonAttempts, waybill.Forever},
		{waybill.Retention{}, StateAbandoned, waybill.ReasonExpired, waybill.Forever},
		{waybill.Retention{}, StateAbandoned, waybill.ReasonNone, waybill.Forever},
		{waybill.Retention{}, StateAbandoned, waybill.ReasonCancelled, 0},
		{waybill.Retention{}, StateAbandoned, waybill.ReasonReplaced, 0},
		{waybill.Retention{Published: -1, Abandoned: -5, Cancelled: -1}, StatePublished, waybill.ReasonNone, waybill.Forever},
		{waybill.Retention{Published: -1, Abandoned: -5, Cancelled: -1}, StateAbandoned, waybill.ReasonSkipped, waybill.Forever},
		{waybill.Retention{Published: -1, Abandoned: -5, Cancelled: -1}, StateAbandoned, waybill.ReasonReplaced, waybill.Forever},
		{waybill.Retention{Published: 1, Abandoned: 1, Cancelled: 1}, StateAbandoned, waybill.ReasonSkipped, 0},
		{waybill.Retention{Published: time.Hour, Abandoned: 2, Cancelled: time.Minute}, StatePublished, waybill.ReasonNone, time.Hour},
		{waybill.Retention{Published: time.Hour, Abandoned: 2, Cancelled: time.Minute}, StateAbandoned, waybill.ReasonRejected, 2},
		{
			waybill.Retention{Published: time.Hour, Abandoned: 2, Cancelled: time.Minute},
			StateAbandoned, waybill.ReasonCancelled,
			time.Minute,
		},
	} {
		if got := RetentionClassOf(tc.state, tc.reason).KeptFor(tc.r); got != tc.want {
			t.Errorf("%+v of %s %q: %s, want %s", tc.r, tc.state, tc.reason, got, tc.want)
		}
	}
}
