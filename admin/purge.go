package admin

import (
	"context"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// PurgeRequest asks to delete records for good, such as all those of a tenant or of a key.
type PurgeRequest struct {
	// Filter selects the records. It must not be empty unless All.
	Filter Filter
	// All confirms that an empty filter is intended.
	All bool
	// Waiting also deletes records that are scheduled or wait for a retry. They are never sent then. Without it
	// only records that ended are deleted: published, abandoned and cancelled ones that the store keeps.
	Waiting bool
	// Page bounds one call. Call again with Next for the rest, at the rate you like.
	Page PageRequest
	// DryRun counts and changes nothing.
	DryRun bool
}

// Purged is the result of one call of PurgeRecords, or with DryRun the result that it would have.
type Purged struct {
	// Matched is how many records matched, and Deleted how many of them were deleted. The rest stays: it is due or
	// being processed, waits for a time and Waiting is not set, or another transaction has locked it. Call again
	// later, until a whole pass matches nothing.
	Matched, Deleted int
	// Next is the value of PageRequest.After for the next call; 0 = the end was reached.
	Next int64
}

// Purger deletes records for good.
type Purger interface {
	// PurgeRecords does one bounded step. It keeps no trace of a deleted record, and tells the owner of a key that
	// may go on. A dedupe key of a deleted record is free; an id of one can be staged again. Published messages are
	// at the broker and its consumers, which it does not reach. An empty filter without All is an
	// [*waybill.InvalidError].
	PurgeRecords(ctx context.Context, req PurgeRequest) (Purged, error)
}

// CheckPurge returns req with the defaults of its page filled in, or an [*waybill.InvalidError] that lists every
// problem. Every store's PurgeRecords begins with it.
func CheckPurge(req PurgeRequest) (PurgeRequest, error) {
	var p []string
	if req.Filter.IsZero() && !req.All {
		p = append(p, "Filter: is empty, which selects every record: set All if that is meant, or name tenants, keys, ids or times")
	}
	p = req.Page.check(req.Filter.check(p))
	for _, s := range req.Filter.States {
		switch {
		case s == core.StateProcessing:
			p = append(p, "Filter.States: processing records cannot be purged; wait until they are published or given up")
		case !s.Terminal() && !req.Waiting:
			p = append(p, fmt.Sprintf("Filter.States: %s records have not ended: set Waiting to delete those that wait for a time", s))
		}
	}
	return req, waybill.Invalid("waybill: purge records", p...)
}

// Takes reports whether a purge deletes a record with state s that it selects. Timed says that the record waits for a
// time, and that no member holds it.
func (r *PurgeRequest) Takes(s core.State, timed bool) bool {
	return s.Terminal() || r.Waiting && timed
}
