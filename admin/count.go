package admin

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Counter counts records for status pages and gauges without scanning the table. Without it there are no such gauges.
type Counter interface {
	// Counts returns the numbers of records per route and state, and of abandoned ones per reason. It does not
	// count published records that Retention keeps.
	Counts(ctx context.Context) ([]Count, error)
}

// Count is the number of records of one route in one state; of abandoned ones for one reason.
type Count struct {
	Route  string
	State  core.State
	Reason waybill.Reason // of abandoned records, else empty
	N      int64
	// Due is how many of N are due and not out: the others are scheduled, wait for their next attempt, are out, or
	// have ended. It is as exact as N.
	Due int64
	// Estimated reports that N is an estimate, not a count. AtLeast reports besides that there are more than N, by
	// an unknown number; with N = 0, that there can be more.
	Estimated, AtLeast bool
	// Oldest is the age of the oldest among them that was due, since then and by the store's clock; 0 if none
	// was, or if N is an estimate and the age is unknown.
	Oldest time.Duration
}
