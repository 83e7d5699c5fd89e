package admin

import (
	"context"

	"github.com/waybill-go/waybill"
)

// PurgeResult is the sum of a PurgeAll. In a dry run it has Purged only: the count of the records that would be deleted
// if none were due.
type PurgeResult struct {
	Ended  TerminateResult
	Purged Purged
}

// purgeTerminator ends records, and deletes them.
type purgeTerminator interface {
	Terminator
	Purger
}

// PurgeAll deletes all records that req selects, those that are due and those that wait for a time, too. First it ends
// the records that have not ended, as [DecideAll] does with opts and waybill.ReasonSkipped. Then it deletes step by
// step. A message that was published meanwhile is at the broker. After an error call it again from the beginning.
// req.Filter must name neither states nor reasons; req.Waiting is not heeded.
func PurgeAll(ctx context.Context, store purgeTerminator, req PurgeRequest, opts TerminateOptions) (sum PurgeResult, err error) {
	var p []string
	if len(req.Filter.States)+len(req.Filter.Reasons) > 0 {
		p = append(p, "Filter: names states or reasons, and they change while records are ended: leave them out, or use PurgeRecords")
	}
	if err := waybill.Invalid("waybill: purge all", p...); err != nil {
		return sum, err
	}
	req.Waiting = true
	if req, err = CheckPurge(req); err != nil {
		return sum, err
	}
	if !req.DryRun {
		end := TerminateRequest{Filter: req.Filter, All: req.All, Reason: waybill.ReasonSkipped}
		if sum.Ended, err = DecideAll(ctx, store, end, opts); err != nil {
			return sum, err
		}
	}
	req.Page = PageRequest{After: req.Page.After, Limit: MaxPageLimit}
	for {
		step, err := store.PurgeRecords(ctx, req)
		if err != nil {
			return sum, err
		}
		sum.Purged.Matched += step.Matched
		sum.Purged.Deleted += step.Deleted
		if sum.Purged.Next, req.Page.After = step.Next, step.Next; step.Next == 0 {
			return sum, nil
		}
	}
}
