package admin

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Counter counts records for status and gauges without scanning the table. Without it there are no such gauges.
type Counter interface {
	// Counts returns the numbers of records per route and state.
	Counts(ctx context.Context) ([]Count, error)
}

// Count is a number of records of one route in one state.
type Count struct {
	Route string
	State core.State
	N     int64
	// Estimated: N is a planner's estimate, not a count.
	Estimated bool
	// Oldest is the age of the oldest due record in it, by the store's clock; 0 if empty or unknown.
	Oldest time.Duration
}
