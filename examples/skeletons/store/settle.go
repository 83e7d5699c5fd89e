package store

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// Settle persists outcomes. One that is refused leaves the others alone.
func (s *Store) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	end, err := s.begin(ctx, "settle")
	if err != nil {
		return core.AllFailed(len(outcomes), err)
	}
	defer end()
	if s.member(self) == nil {
		return core.AllFailed(len(outcomes), core.NewFencedError("skeleton: settle", self))
	}
	res := make(core.Results, len(outcomes))
	for i := range outcomes {
		res[i] = s.settle(self, &outcomes[i])
	}
	return res
}

// settle persists one outcome, after the fence. The check and the write are one transaction.
func (s *Store) settle(self core.Session, o *core.Outcome) error {
	ref, r, now := o.Ref(), s.find(o.Ref()), time.Now()
	switch {
	case o.NoticeNumber() != 0:
		return nil // nothing here writes notices
	case o.State() == core.StateNone || o.State() == core.StateProcessing:
		return waybill.Invalid("skeleton: settle", "outcome: was not built by core's functions")
	case o.Event() == core.EventConfirmed && r != nil && r.Live():
		s.rows = slices.DeleteFunc(s.rows, func(other *row) bool { return other == r })
		return nil
	case o.Event() == core.EventConfirmed:
		i := slices.IndexFunc(s.rows, func(r *row) bool { return r.Route == ref.Route && r.Seq == ref.Seq })
		if i < 0 {
			return nil // a repeated call
		}
		if err := rules.Confirmed(&s.rows[i].Row, ref); err != nil {
			return core.NewOutcomeError("skeleton: settle", ref, err)
		}
		return nil
	}
	c, err := rules.Settle(r.facts(), o, self, r != nil && s.owner(r) == self)
	if err != nil {
		return core.NewOutcomeError("skeleton: settle", ref, err)
	}
	if r.Row = c.Row; c.Due {
		r.due = now.Add(c.In)
	}
	if c.Error != "" {
		r.lastErr = c.Error
	}
	return nil
}
