package memory

import (
	"bytes"
	"context"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/content"
)

var _ admin.Redriver = (*Store)(nil)

// Redrive puts failed and abandoned records back, in one bounded step. It takes records that wait for a retry, due or
// not, and abandoned ones, and tells the owner of the slot, which hands them out. It leaves out records that a member
// holds, which are neither failed nor abandoned, and records that a transaction has locked.
func (s *Store) Redrive(ctx context.Context, req admin.RedriveRequest) (admin.Redriven, error) {
	req, err := admin.CheckRedrive(req, s.bounds)
	if err != nil {
		return admin.Redriven{}, err
	}
	if err := ctx.Err(); err != nil {
		return admin.Redriven{}, outage("redrive", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out admin.Redriven
	now, live := s.now(), map[liveKey]bool{} // dedupe keys that this step gives a live message
	told := map[[2]string]bool{}             // routes and keys whose owner has been told
	var keyless []*record
	out.Next = s.walk(req.Page, func(r *record) bool {
		st := s.show(r, now)
		if r.lock != nil || !req.Takes(st.State, r.reason) || !req.Filter.Matches(&st) {
			return true
		}
		cause := s.refusal(r, &req, r.dedupe != "" && live[r.liveKey()], now)
		if cause == "" && r.dedupe != "" {
			live[r.liveKey()] = true
		}
		out.Count(cause)
		if cause == "" && !req.DryRun {
			if req.Body != nil {
				content.Repair(&r.env, bytes.Clone(req.Body))
			}
			s.requeue(r, now)
			if key := [2]string{r.route.name, r.env.Key}; r.env.Key == "" {
				keyless = append(keyless, r)
			} else if !told[key] {
				told[key] = true
				s.tellOwner(r)
			}
		}
		return out.Matched < req.Page.Limit
	})
	s.tellOwners(keyless)
	return out, nil
}

// refusal returns why r cannot be put back, or "".
func (s *Store) refusal(r *record, req *admin.RedriveRequest, taken bool, now time.Time) string {
	return req.Refusal(&admin.Candidate{
		State: r.state, Reason: r.reason, Age: now.Sub(r.since), Expired: r.env.Expired(now),
		Keyed: r.env.Key != "", Last: r.seq >= s.seq, Taken: taken || s.outlived(r),
	})
}

// outlived reports whether another message has, or is about to have, the dedupe key of the abandoned record r.
func (s *Store) outlived(r *record) bool {
	if r.dedupe == "" || r.state != core.StateAbandoned {
		return false
	}
	return s.holders[r.liveKey()] != nil || s.locks[r.liveKey()] != nil
}
