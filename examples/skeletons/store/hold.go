package store

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// Take writes holds. LOCK: a row that a caller's transaction has locked is core.GripLocked; this store has no such
// locks.
func (s *Store) Take(ctx context.Context, self core.Session, want core.Want) ([]core.Taken, error) {
	end, err := s.begin(ctx, "take")
	if err != nil {
		return nil, err
	}
	defer end()
	if s.members[self] == nil {
		return nil, core.Fenced("skeleton: take", self)
	}
	var out []core.Taken
	for _, ref := range want.Refs {
		r := s.find(ref)
		grip, writes := rules.Hold(r.facts(), ref, self, r != nil && s.owner(r) == self, false)
		if writes {
			r.Row = rules.Held(&r.Row, self, want.Deliver)
		}
		t := core.Taken{Ref: ref, Grip: grip}
		if grip == core.GripHeld {
			t.Deliveries = r.Deliveries
		}
		out = append(out, t)
	}
	return append(out, s.takeNext(self, &want)...), nil
}

// takeNext takes the next N without a key: first those that self holds and does not know, after a lost answer.
func (s *Store) takeNext(self core.Session, want *core.Want) (out []core.Taken) {
	now, bytes := time.Now(), int64(0)
	for _, holder := range []core.Session{self, 0} {
		for _, r := range s.rows { // INDEX: ready rows without a key by (route, seq)
			if r.Route != want.Part.Route || !want.Part.Slots.Has(r.Slot) || !r.Ready() || r.env.Key != "" || r.Holder != holder {
				continue
			}
			known := slices.ContainsFunc(want.Out, func(ref core.Ref) bool { return ref.Route == r.Route && ref.Seq == r.Seq && ref.ID == r.ID })
			if known {
				continue
			}
			bytes += int64(len(r.env.Body))
			if len(out) >= want.N || len(out) > 0 && want.Bytes > 0 && bytes > want.Bytes {
				return out
			}
			if holder == 0 {
				r.Row = rules.Held(&r.Row, self, want.Deliver)
			}
			rec := r.record(now)
			out = append(out, core.Taken{Ref: r.Ref, Grip: core.GripHeld, Record: &rec, Deliveries: r.Deliveries})
		}
	}
	return out
}

// GiveUp frees a unit, and writes holds for exactly what is still out.
func (s *Store) GiveUp(ctx context.Context, self core.Session, what core.OwnedUnit, out []core.Ref) (bool, error) {
	end, err := s.begin(ctx, "give up")
	if err != nil {
		return false, err
	}
	defer end()
	if s.members[self] == nil {
		return false, core.Fenced("skeleton: give up", self)
	}
	u := s.unit(what.Unit)
	now := core.OwnedUnit{Term: s.kept[what.Unit.Route].Term}
	if u != nil {
		now = *u
	}
	switch before, err := rules.GivenUp(now.Owner, now.Term, self, what.Term); {
	case err != nil:
		return false, core.Fenced("skeleton: give up", self)
	case before:
		return true, nil
	}
	for _, r := range s.rows {
		if r.Route != what.Unit.Route || !what.Unit.Slots().Has(r.Slot) {
			continue
		}
		switch kept := slices.ContainsFunc(out, func(ref core.Ref) bool { return rules.Kept(&r.Row, ref, self, true) }); {
		case kept:
			r.Holder = self
		case r.Holder == self:
			r.Holder = 0
		}
	}
	u.Low = what.Low
	give(u, 0)
	return true, nil
}

// Due looks for retries and timers that have come due. Retries are held and returned; timers get a new number and are
// in line.
func (s *Store) Due(ctx context.Context, self core.Session, parts []core.Part, limit int) (core.DuePage, error) {
	end, err := s.begin(ctx, "due")
	if err != nil {
		return core.DuePage{}, err
	}
	defer end()
	if s.members[self] == nil {
		return core.DuePage{}, core.Fenced("skeleton: due", self)
	}
	now, limit := time.Now(), max(limit, 0)
	p := core.DuePage{NextIn: -1}
	var retries, timers []*row
	for _, r := range s.rows { // INDEX: timers, and retries, by (route, due)
		asked := slices.ContainsFunc(parts, func(p core.Part) bool {
			return p.Route == r.Route && p.Slots.Has(r.Slot) && (!p.DueNew || r.Holder != self)
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
		p.Moved++
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
