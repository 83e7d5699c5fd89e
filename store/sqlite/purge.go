package sqlite

import (
	"context"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

var _ admin.Purger = (*Store)(nil)

// PurgeRecords deletes records for good, in one bounded step; see [admin.Purger]. It finds them as List does, before it
// takes SQLite's write lock, and then checks each again.
func (s *Store) PurgeRecords(ctx context.Context, req admin.PurgeRequest) (admin.Purged, error) {
	req, err := admin.CheckPurge(req)
	if err != nil {
		return admin.Purged{}, err
	}
	found, err := s.list(ctx, "purge records", &req.Filter, req.Page, func(core.State, waybill.Reason) bool { return true })
	if err != nil || len(found.Records) == 0 {
		return admin.Purged{Next: found.Next}, err
	}
	var out admin.Purged
	step := func(w *work) (err error) {
		out, err = w.purgeRecords(ctx, &req, found.Records)
		out.Next = found.Next
		return err
	}
	if req.DryRun {
		err = s.read(ctx, "purge records", step)
	} else {
		err = s.write(ctx, "purge records", func(w *work) (bool, error) { return true, step(w) })
		s.Wake() // a key may go on
	}
	if err != nil {
		return admin.Purged{}, err
	}
	return out, nil
}

// purgeRecords deletes those of found that req still takes, and tells the owners of their keys.
func (w *work) purgeRecords(ctx context.Context, req *admin.PurgeRequest, found []admin.Stored) (out admin.Purged, err error) {
	for i := range found {
		r, err := w.lookup(ctx, nil, storedText, found[i].Seq)
		if err != nil {
			return out, err
		}
		if r == nil || !w.s.matches(&req.Filter, r) {
			continue // somebody was faster
		}
		out.Matched++
		if !req.Takes(r.State, r.row.Holder == 0 && r.row.Waits) {
			continue
		}
		out.Deleted++
		if req.DryRun {
			continue
		}
		if _, err := w.exec(ctx, deleteText, r.Seq); err != nil {
			return out, err
		}
		if !rules.Tells(&r.row.Row) {
			continue
		}
		if err := w.tell(ctx, core.NoticeKey, &r.row); err != nil {
			return out, err
		}
	}
	return out, nil
}
