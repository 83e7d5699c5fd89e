package memory

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/core"
)

var (
	_ core.Inspector = (*Store)(nil)
	_ core.Redriver  = (*Store)(nil)
	_ core.KeyKeeper = (*Store)(nil)
)

// Inspect returns the record of a message on a route.
func (s *Store) Inspect(ctx context.Context, route, id string) (core.Stored, error) {
	if err := ctx.Err(); err != nil {
		return core.Stored{}, outage("inspect", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rows[rowKey{route, id}]
	if r == nil {
		return core.Stored{}, core.NoRecord("waybill/memory: inspect", route, id)
	}
	st := r.stored(s.now())
	st.Envelope.Body = slices.Clone(r.env.Body)
	return st, nil
}

// stored returns r for people, without its body.
func (r *record) stored(now time.Time) core.Stored {
	env := r.env
	env.Body = nil
	st := core.Stored{
		Envelope: env.Clone(), Route: r.route, Seq: r.seq, State: r.state, Reason: r.reason, Attempts: r.attempts, Crashes: r.crashes,
		DedupeKey: r.dedupe, Age: now.Sub(r.since), LastError: r.lastErr, LastErrorAt: r.errAt, SettledAt: r.settledAt, Err: r.unreadable,
	}
	switch left := max(r.due.Sub(now), 0); {
	case r.state == core.StateProcessing && left > 0:
		st.Owner, st.LeaseIn = r.owner, left
	case r.state == core.StatePending, r.state == core.StateFailed:
		st.DueIn = left
	}
	return st
}

// walkRows calls fn with the records after page.After in staging order, up to page.Budget of them, until fn returns
// false, and returns where to go on. The store sorts its records for it.
func (s *Store) walkRows(page core.Page, fn func(r *record) bool) (next int64) {
	rows := make([]*record, 0, len(s.rows))
	for _, r := range s.rows {
		if r.seq > page.After {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, bySeq)
	for i, r := range rows {
		if i == page.Budget {
			return rows[i-1].seq
		}
		if !fn(r) {
			return r.seq
		}
	}
	return 0
}

// List returns a page of the records that match f. Every record after page.After counts as looked at.
func (s *Store) List(ctx context.Context, f core.Filter, page core.Page) (core.Listing, error) {
	page, err := core.CheckList(&f, page)
	if err != nil {
		return core.Listing{}, err
	}
	if err := ctx.Err(); err != nil {
		return core.Listing{}, outage("list", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out core.Listing
	now := s.now()
	out.Next = s.walkRows(page, func(r *record) bool {
		if st := r.stored(now); f.Matches(&st) {
			out.Records = append(out.Records, st)
		}
		return len(out.Records) < page.Limit
	})
	return out, nil
}

// Redrive puts failed and abandoned records back, one bounded step.
func (s *Store) Redrive(ctx context.Context, req core.RedriveRequest) (core.Redriven, error) {
	req, err := core.CheckRedrive(req)
	if err != nil {
		return core.Redriven{}, err
	}
	if err := ctx.Err(); err != nil {
		return core.Redriven{}, outage("redrive", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out core.Redriven
	now, live := s.now(), map[liveKey]bool{} // dedupe keys that this step gives a live message
	out.Next = s.walkRows(req.Page, func(r *record) bool {
		st := r.stored(now)
		if r.reserved != nil || !req.Takes(r.state, r.reason) || !req.Filter.Matches(&st) {
			return true
		}
		cause := s.refusal(r, &req, now)
		if cause == "" && r.dedupe != "" {
			if live[r.liveKey()] {
				cause = core.RefusedDuplicate
			}
			live[r.liveKey()] = true
		}
		out.Count(cause)
		if cause == "" && !req.DryRun {
			if r.env.Expired(now) {
				r.env.Expires = time.Time{}
			}
			s.requeue(r, now)
		}
		return out.Matched < req.Page.Limit
	})
	return out, nil
}

// refusal returns why r is not to be put back, or "".
func (s *Store) refusal(r *record, req *core.RedriveRequest, now time.Time) string {
	switch {
	case s.outlived(r):
		return core.RefusedDuplicate
	case req.Force:
		return ""
	case r.env.Expired(now):
		return core.RefusedExpired
	case req.Horizon > 0 && now.Sub(r.since) > req.Horizon:
		return core.RefusedHorizon
	case r.state == core.StateAbandoned && r.env.Key != "" && r.seq < s.seq && (!req.BlockAfterAbandon || !r.reason.Blocks()):
		return core.RefusedOrder
	}
	return ""
}

// outlived reports whether another message has, or is about to have, the dedupe key of the abandoned record r.
func (s *Store) outlived(r *record) bool {
	if r.dedupe == "" || r.state != core.StateAbandoned {
		return false
	}
	return s.holders[r.liveKey()] != nil || s.locks[r.liveKey()] != nil
}

// requeue makes r pending and due now, with its counters reset.
func (s *Store) requeue(r *record, now time.Time) {
	l := s.lane(r.route)
	if r.state == core.StateAbandoned {
		l.unblock(r)
		l.live[r.seq] = r
		s.cleaning.watch(r)
		if r.dedupe != "" {
			s.holders[r.liveKey()] = r
		}
	} else {
		l.unplace(r)
	}
	if to, ok := core.Next(r.state, core.EventRequeued); ok {
		l.setState(r, to)
	} else {
		l.setState(r, core.StatePending) // put off without a failure: it is pending already
	}
	r.maybe = r.maybe || r.crashes > 0
	r.attempts, r.crashes, r.failed, r.reason = 0, 0, false, core.ReasonNone
	r.lastErr, r.errAt, r.settledAt = "", time.Time{}, time.Time{}
	r.due, r.joined = now, true
	l.place(r, now)
	s.notify(l)
}

// giveUp abandons r, or gives another reason for it, so that its key goes on. Its retention counts from now.
func (s *Store) giveUp(r *record, reason core.Reason, now time.Time) {
	l := s.lane(r.route)
	if r.state == core.StateAbandoned {
		l.unblock(r)
	} else {
		l.unplace(r)
		delete(l.live, r.seq)
		l.setState(r, core.StateAbandoned)
		s.release(r)
	}
	r.reason = reason
	s.retire(r, now)
	s.notify(l)
}

// unblock forgets that the abandoned record r blocks its key, if it does.
func (l *lane) unblock(r *record) {
	if k := l.keys[r.env.Key]; k != nil && r.env.Key != "" && (r.reason == core.ReasonNone || r.reason.Blocks()) {
		k.abandoned--
		l.refresh(k)
	}
}

// waits returns why r keeps later messages of its key waiting: "retry", "abandoned" (if block), or "".
func (r *record) waits(now time.Time, block bool) string {
	switch {
	case r.env.Key == "", r.state == core.StateProcessing, r.reserved != nil:
	case r.state == core.StateAbandoned && block && r.reason.Blocks():
		return "abandoned"
	case !r.state.Terminal() && r.joined && r.due.After(now):
		return "retry"
	}
	return ""
}

// heads returns the first record of each key of route that waits.
func (s *Store) heads(route string, block bool, now time.Time) map[string]*record { //nolint:revive // block is the route's
	heads := map[string]*record{}
	for _, r := range s.rows {
		if r.route == route && r.waits(now, block) != "" {
			if h := heads[r.env.Key]; h == nil || r.seq < h.seq {
				heads[r.env.Key] = r
			}
		}
	}
	return heads
}

// BlockedKeys lists keys whose head waits. Since counts from the end of an abandoned head; of one that waits for a
// retry, from when it was first due.
func (s *Store) BlockedKeys(ctx context.Context, route string, blockAfterAbandon bool, after string, limit int) (keys []core.BlockedKey, more bool, err error) {
	limit, err = core.CheckBlockedKeys(route, limit)
	if err != nil {
		return nil, false, err
	}
	if err := ctx.Err(); err != nil {
		return nil, false, outage("blocked keys", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for key, r := range s.heads(route, blockAfterAbandon, now) {
		if key <= after {
			continue
		}
		b := core.BlockedKey{Route: route, Key: key, Head: r.stored(now), Cause: r.waits(now, blockAfterAbandon)}
		if b.Since = max(b.Head.Age, 0); r.state == core.StateAbandoned {
			b.Since = max(now.Sub(r.settledAt), 0)
		}
		keys = append(keys, b)
	}
	slices.SortFunc(keys, func(a, b core.BlockedKey) int { return strings.Compare(a.Key, b.Key) })
	if len(keys) > limit {
		keys, more = keys[:limit], true
	}
	return keys, more, nil
}

// DecideHead skips, parks or requeues the head of a blocked key.
func (s *Store) DecideHead(ctx context.Context, route, key, id string, action core.HeadAction) error {
	if err := core.CheckDecide(route, key, id, action); err != nil {
		return err
	}
	const op = "waybill/memory: decide head"
	if err := ctx.Err(); err != nil {
		return outage("decide head", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	r := s.rows[rowKey{route, id}]
	switch {
	case r == nil || r.env.Key != key:
		return core.NotHead(op, route, key, id)
	case r.state == core.StateProcessing || r.reserved != nil:
		return core.HeadInFlight(op, route, key, id)
	case s.heads(route, true, now)[key] != r && s.heads(route, false, now)[key] != r:
		return core.NotHead(op, route, key, id)
	}
	switch {
	case action == core.HeadSkip:
		s.giveUp(r, core.ReasonSkipped, now)
	case action == core.HeadPark:
		s.giveUp(r, core.ReasonParked, now)
	case r.env.Expired(now):
		return core.HeadExpired(id, r.env.Expires)
	case s.outlived(r):
		return core.HeadDuplicate(id)
	default:
		s.requeue(r, now)
	}
	return nil
}
