package memory

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

var (
	_ admin.Inspector  = (*Store)(nil)
	_ admin.Counter    = (*Store)(nil)
	_ core.ClockSeeder = (*Store)(nil)
)

// Inspect returns the record of a message on a route. A record that a member holds is processing: Owner is the member's
// name. A record that a relay has out without a hold is shown as due.
func (s *Store) Inspect(ctx context.Context, route, id string) (admin.Stored, error) {
	if err := ctx.Err(); err != nil {
		return admin.Stored{}, outage("inspect", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.stored(route, id)
	if r == nil {
		return admin.Stored{}, admin.NoRecord("waybill/memory: inspect", route, id)
	}
	st := s.show(r, s.now())
	st.Envelope.Body = slices.Clone(r.env.Body)
	return st, nil
}

// show returns r for operators, without its body.
func (s *Store) show(r *record, now time.Time) admin.Stored {
	env := r.env
	env.Body = nil
	st := admin.Stored{
		Envelope: env.Clone(), Route: r.route.name, Seq: r.seq, State: r.shown(), Reason: r.reason,
		Attempts: r.attempts, Crashes: r.crashes,
		Age: now.Sub(r.since), LastError: r.lastErr, LastErrorAt: r.errAt, SettledAt: r.settledAt, Err: r.unreadable,
	}
	st.SetDedupeKey(r.dedupe)
	if m := s.members[r.holder]; m != nil {
		st.Owner, st.LeaseIn = m.Name, max(m.renewed.Add(m.Lease).Sub(now), 0)
	} else if r.waits() {
		st.DueIn = max(r.due.Sub(now), 0)
	}
	return st
}

// walk calls fn with the records after page.After in staging order, up to page.Budget of them, until fn returns false,
// and returns where to go on. The store sorts its records for it.
func (s *Store) walk(page admin.PageRequest, fn func(r *record) bool) (next int64) {
	rows := slices.DeleteFunc(s.rows(), func(r *record) bool { return r.seq <= page.After })
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
func (s *Store) List(ctx context.Context, f admin.Filter, page admin.PageRequest) (admin.Listing, error) {
	page, err := admin.CheckList(&f, page)
	if err != nil {
		return admin.Listing{}, err
	}
	if err := ctx.Err(); err != nil {
		return admin.Listing{}, outage("list", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out admin.Listing
	now := s.now()
	out.Next = s.walk(page, func(r *record) bool {
		if st := s.show(r, now); f.Matches(&st) {
			out.Records = append(out.Records, st)
		}
		return len(out.Records) < page.Limit
	})
	return out, nil
}

// Counts returns the exact numbers of records per route and state. Published records that Options.Retention keeps are
// not counted.
func (s *Store) Counts(ctx context.Context) ([]admin.Count, error) {
	if err := ctx.Err(); err != nil {
		return nil, outage("counts", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var out []admin.Count
	for _, rt := range s.routes {
		for k, n := range rt.counts {
			if k.state == core.StateNone {
				continue
			}
			out = append(out, admin.Count{
				Route: rt.name, State: k.state, Reason: k.reason, N: n, Due: s.due(rt, k.state, n), Oldest: s.oldest(rt, k, now),
			})
		}
	}
	slices.SortFunc(out, func(a, b admin.Count) int {
		return cmp.Or(cmp.Compare(a.Route, b.Route), cmp.Compare(a.State, b.State), cmp.Compare(a.Reason, b.Reason))
	})
	return out, nil
}

// due returns how many of n records in a state are due: all but the timers or retries whose time has not come.
func (s *Store) due(rt *route, state core.State, n int64) int64 {
	now := s.at(s.now())
	later := func(x *index) (n int64) {
		for r := range x.after(now+1, math.MinInt64) {
			if r.holder == 0 {
				n++
			}
		}
		return n
	}
	switch state {
	case core.StatePending:
		return n - later(&rt.timers)
	case core.StateFailed:
		return n - later(&rt.retries)
	case core.StateNone, core.StateProcessing, core.StatePublished, core.StateAbandoned:
	}
	return 0
}

// oldest returns the age of the oldest record of a kind that was due. It looks at each that is held or abandoned.
func (s *Store) oldest(rt *route, k countKind, now time.Time) (age time.Duration) {
	look := func(x *index, all bool) {
		for r := range x.all() {
			if r.due.After(now) {
				break
			}
			if r.holder == 0 {
				age = max(age, now.Sub(r.since))
			}
			if !all {
				break
			}
		}
	}
	switch k.state {
	case core.StatePending:
		look(&rt.aged, false)
		look(&rt.timers, false)
	case core.StateFailed:
		look(&rt.retries, true)
	case core.StateProcessing:
		for _, m := range s.members {
			for r := range m.held {
				if r.route == rt && kindOf(r) == k {
					age = max(age, now.Sub(r.since))
				}
			}
		}
	case core.StateAbandoned:
		for _, r := range rt.bySeq {
			if kindOf(r) == k {
				age = max(age, now.Sub(r.since))
			}
		}
	case core.StateNone, core.StatePublished:
	}
	return age
}

// HighWater returns the highest stamp of a record that was committed. One that was then further ahead of the store's
// clock than hlc.DefaultMaxDrift does not count.
func (s *Store) HighWater(ctx context.Context) (hlc.Timestamp, error) {
	if err := ctx.Err(); err != nil {
		return 0, outage("high water", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stamp, nil
}
