package memory

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Due looks for records that have come due, as core.OutboxStore says. Locked records count as more that are due.
func (s *Store) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	if err := ctx.Err(); err != nil {
		return core.DueResult{}, outage("due", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[self]
	if m == nil {
		return core.DueResult{}, core.NewFencedError("waybill/memory: due", self)
	}
	d := dueScan{now: s.now(), limit: max(limit, 0), next: -1}
	for _, part := range merge(parts) {
		rt := s.routes[part.Route]
		if rt == nil {
			continue
		}
		if part.Slots &= rt.owned(self); part.Slots == 0 {
			continue
		}
		d.mine = append(d.mine, m.holds(func(r *record) bool {
			return !part.DueExcludeHeld && r.route.name == part.Route && part.Slots.Has(r.slot) && r.retry() && !r.due.After(d.now) && !d.isOld(r, part)
		})...)
		d.retries = d.scan(d.retries, &rt.retries, part)
		d.timers = d.scan(d.timers, &rt.timers, part)
	}
	slices.SortFunc(d.mine, byDue)
	retries, moreRetries := d.cut(append(d.mine, sorted(d.retries)...))
	timers, moreTimers := d.cut(sorted(d.timers))
	p := core.DueResult{TimersReady: len(timers), NextIn: d.next}
	for _, r := range retries {
		s.hold(r, self)
		p.Retries = append(p.Retries, r.record(d.now))
	}
	for _, r := range timers {
		s.putInLine(r)
	}
	if moreRetries || moreTimers {
		p.NextIn = 0
	}
	return p, nil
}

// dueScan collects due records.
type dueScan struct {
	now                   time.Time
	limit                 int
	mine, retries, timers []*record
	next                  time.Duration
}

// scan adds to list the due records that no session holds, up to one more than the limit, and finds out how long the
// next one waits.
func (d *dueScan) scan(list []*record, by *index, part core.RouteSlots) []*record {
	n := 0
	for r := range by.all() {
		if !part.Slots.Has(r.slot) || r.holder != 0 || d.isOld(r, part) {
			continue
		}
		in := max(r.due.Sub(d.now), 0)
		if in == 0 && r.lock == nil {
			list = append(list, r)
			if n++; n > d.limit {
				break
			}
			continue
		}
		if d.next < 0 || in < d.next {
			d.next = in
		}
		if in > 0 {
			break
		}
	}
	return list
}

// isOld reports whether a record came due so long ago that it is not looked for.
func (d *dueScan) isOld(r *record, part core.RouteSlots) bool {
	return part.MaxOverdue > 0 && d.now.Sub(r.due) >= part.MaxOverdue
}

func (d *dueScan) cut(records []*record) (out []*record, more bool) {
	if len(records) <= d.limit {
		return records, false
	}
	return records[:d.limit], true
}

// putInLine makes a timer ready, with a new number: behind all that was staged so far, in the index of ready records.
// So a member finds it as it finds a new record.
func (s *Store) putInLine(r *record) {
	s.unplace(r)
	delete(r.route.bySeq, r.seq)
	s.seq++
	r.seq = s.seq
	r.waiting = false
	r.version++
	r.route.bySeq[r.seq] = r
	s.place(r)
	s.changed(r)
}

func sorted(records []*record) []*record {
	slices.SortFunc(records, byDue)
	return records
}

func byDue(a, b *record) int {
	return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.seq, b.seq), cmp.Compare(a.route.name, b.route.name))
}
