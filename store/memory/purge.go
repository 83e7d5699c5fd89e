package memory

import (
	"context"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core/rules"
)

var _ admin.Purger = (*Store)(nil)

// PurgeRecords deletes records for good, in one bounded step; see [admin.Purger]. It leaves records that a transaction
// has locked.
func (s *Store) PurgeRecords(ctx context.Context, req admin.PurgeRequest) (admin.Purged, error) {
	req, err := admin.CheckPurge(req)
	if err != nil {
		return admin.Purged{}, err
	}
	if err := ctx.Err(); err != nil {
		return admin.Purged{}, outage("purge records", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out admin.Purged
	now := s.now()
	out.Next = s.walk(req.Page, func(r *record) bool {
		st := s.show(r, now)
		if !req.Filter.Matches(&st) {
			return true
		}
		out.Matched++
		if r.lock == nil && req.Takes(st.State, r.holder == 0 && r.waits()) {
			out.Deleted++
			if !req.DryRun {
				f := r.facts()
				s.unplace(r)
				s.release(r)
				s.forget(r)
				if rules.Tells(&f) {
					s.tellOwner(r)
				}
			}
		}
		return out.Matched < req.Page.Limit
	})
	return out, nil
}
