package store

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Settle persists outcomes. One that is refused leaves the others alone.
func (s *Store) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	end, err := s.begin(ctx, "settle")
	if err != nil {
		return core.AllFailed(len(outcomes), err)
	}
	defer end()
	if s.members[self] == nil {
		return core.AllFailed(len(outcomes), core.Fenced("skeleton: settle", self))
	}
	res := make(core.Results, len(outcomes))
	for i := range outcomes {
		res[i] = s.settle(self, &outcomes[i])
	}
	return res
}

// settle persists one outcome, after the fence: a confirmed one needs (sequence, id), all others also the version, and
// that self owns the unit or holds the row. The check and the write are one transaction.
func (s *Store) settle(self core.Session, o *core.Outcome) error {
	ref, confirmed := o.Ref(), o.Event() == core.EventConfirmed
	r := s.find(ref)
	switch {
	case o.Control() != 0:
		return nil // nothing here writes control records
	case o.State() == core.StateNone || o.State() == core.StateProcessing:
		return waybill.Invalid("skeleton: settle", "outcome: was not built by core's functions")
	case confirmed && r == nil && !s.drawn(ref):
		return nil // a repeated call
	case r == nil, !r.live(), !confirmed && r.Version != ref.Version:
		return core.Refused("skeleton: settle", ref, core.ErrChanged)
	case !confirmed && r.holder != self && s.owner(r) != self:
		return core.Refused("skeleton: settle", ref, core.ErrFenced)
	}
	s.change(self, r, o, time.Now())
	return nil
}

// drawn reports whether another row has the number of ref: the database went back, and the number was drawn again.
func (s *Store) drawn(ref core.Ref) bool {
	return slices.ContainsFunc(s.rows, func(r *row) bool { return r.Route == ref.Route && r.Seq == ref.Seq })
}

// change writes what o says. The outcome has decided everything: the store adds no rule.
func (s *Store) change(self core.Session, r *row, o *core.Outcome, now time.Time) {
	r.maybe = r.maybe || o.Unknown()
	if o.Event() == core.EventReleased {
		if r.holder != 0 && r.holder != self {
			return // another session's hold stays
		}
		r.Version++
		if r.holder == self && r.retry() {
			r.due = now.Add(o.In())
		}
		r.holder = 0
		return
	}
	r.Version++
	r.holder = 0
	if o.CountsAttempt() {
		r.attempts++
	}
	if o.Error() != "" {
		r.lastErr = o.Error()
	}
	r.state, r.reason, r.waits = o.State(), o.Reason(), false
	switch r.state {
	case core.StatePublished:
		s.rows = slices.DeleteFunc(s.rows, func(other *row) bool { return other == r })
	case core.StateFailed:
		r.crashes = 0 // the attempt has ended, and nobody died of it
		r.waits, r.due = true, now.Add(o.In())
	case core.StateNone, core.StatePending, core.StateProcessing, core.StateAbandoned:
	}
}
