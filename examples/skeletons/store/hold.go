package store

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// Hold writes holds. LOCK: a row that a caller's transaction has locked is core.HoldSkipped; this store has no such
// locks.
func (s *Store) Hold(ctx context.Context, self core.Session, want core.HoldRequest) ([]core.HoldResult, error) {
	end, err := s.begin(ctx, "hold")
	if err != nil {
		return nil, err
	}
	defer end()
	if s.member(self) == nil {
		return nil, core.NewFencedError("skeleton: hold", self)
	}
	var out []core.HoldResult
	for _, ref := range want.Refs {
		t := core.HoldResult{Ref: ref}
		r := s.find(ref)
		holdStatus, writes := rules.Hold(r.facts(), ref, self, r != nil && s.owner(r) == self, false)
		if writes {
			r.Row = rules.Held(&r.Row, self, want.CountDelivery)
		}
		if t.Status = holdStatus; holdStatus == core.HoldGranted {
			t.Deliveries = r.Deliveries
		}
		out = append(out, t)
	}
	return append(out, s.takeNext(self, &want)...), nil
}

// takeNext takes the next N without a key: first those that self holds and does not know, after a lost answer.
func (s *Store) takeNext(self core.Session, want *core.HoldRequest) (out []core.HoldResult) {
	now, bytes := time.Now(), int64(0)
	for _, holder := range []core.Session{self, 0} {
		for _, r := range s.rows { // INDEX: ready rows without a key by (route, seq)
			if r.Route != want.KeylessSlots.Route || !want.KeylessSlots.Slots.Has(r.Slot) || !r.Ready() || r.env.Key != "" || r.Holder != holder {
				continue
			}
			known := slices.ContainsFunc(want.ExcludeRefs, func(ref core.Ref) bool { return ref.Route == r.Route && ref.Seq == r.Seq && ref.ID == r.ID })
			if known {
				continue
			}
			bytes += int64(len(r.env.Body))
			if len(out) >= want.KeylessLimit || len(out) > 0 && want.Bytes > 0 && bytes > want.Bytes {
				return out
			}
			if r.Holder == 0 {
				r.Row = rules.Held(&r.Row, self, want.CountDelivery)
			}
			rec := r.record(now)
			out = append(out, core.HoldResult{Ref: r.Ref, Status: core.HoldGranted, Record: &rec, Deliveries: r.Deliveries})
		}
	}
	return out
}

// ReleasePartition frees a partition, and writes holds for exactly what is still out.
func (s *Store) ReleasePartition(ctx context.Context, self core.Session, what core.PartitionState, out []core.Ref) (bool, error) {
	end, err := s.begin(ctx, "release partition")
	if err != nil {
		return false, err
	}
	defer end()
	u := s.partition(what.Partition)
	if u == nil {
		u = &core.PartitionState{Term: s.kept[what.Partition.Route].Term}
	}
	before, err := rules.GivenUp(u.Owner, u.Term, self, what.Term)
	if s.member(self) == nil || err != nil {
		return false, core.NewFencedError("skeleton: release a partition", self)
	}
	if before {
		return true, nil // a repeated call
	}
	for _, r := range s.rows {
		in := r.Route == what.Partition.Route && what.Partition.Slots().Has(r.Slot)
		if slices.ContainsFunc(out, func(ref core.Ref) bool { return rules.Kept(&r.Row, ref, self, in) }) {
			r.Holder = self
		} else if in && r.Holder == self {
			r.Holder = 0
		}
	}
	if rules.SameLife(what.StoreEpoch, epoch) {
		u.ReadAfter = what.ReadAfter
	}
	u.Owner, u.Term = 0, u.Term+1
	return true, nil
}

// Due looks for retries and timers that have come due. Retries are held and returned; timers get a new number and are
// in line.
func (s *Store) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	end, err := s.begin(ctx, "due")
	if err != nil {
		return core.DueResult{}, err
	}
	defer end()
	if s.member(self) == nil {
		return core.DueResult{}, core.NewFencedError("skeleton: due", self)
	}
	now, limit := time.Now(), max(limit, 0)
	p := core.DueResult{NextIn: -1}
	var retries, timers []*row
	for _, r := range s.rows { // INDEX: timers, and retries, by (route, due)
		asked := slices.ContainsFunc(parts, func(p core.RouteSlots) bool {
			return p.Route == r.Route && p.Slots.Has(r.Slot) && (!p.DueExcludeHeld || r.Holder != self)
		})
		if !asked || s.owner(r) != self || !r.Live() || !r.Waits || r.Holder != 0 && (r.Holder != self || !r.Retry()) {
			continue
		}
		switch in := r.due.Sub(now); {
		case in > 0:
			if p.NextIn < 0 || in < p.NextIn {
				p.NextIn = in
			}
		case r.Retry():
			retries = append(retries, r)
		default:
			timers = append(timers, r)
		}
	}
	// those that self holds already come first, after a lost answer
	slices.SortStableFunc(retries, func(a, b *row) int {
		return cmp.Or(-cmp.Compare(a.Holder, b.Holder), a.due.Compare(b.due))
	})
	slices.SortStableFunc(timers, func(a, b *row) int { return a.due.Compare(b.due) })
	if len(retries) > limit || len(timers) > limit {
		p.NextIn = 0
	}
	for _, r := range retries[:min(limit, len(retries))] {
		r.Holder = self
		p.Retries = append(p.Retries, r.record(now))
	}
	for _, r := range timers[:min(limit, len(timers))] {
		s.renumber(r)
		p.TimersReady++
	}
	return p, nil
}

// renumber puts a timer in line, behind all that was staged so far.
func (s *Store) renumber(r *row) {
	s.rows = slices.DeleteFunc(s.rows, func(other *row) bool { return other == r })
	s.seq++
	r.Seq, r.Waits = s.seq, false
	r.Version++
	s.rows = append(s.rows, r)
}
