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
	if s.members[self] == nil {
		return core.AllFailed(len(outcomes), core.Fenced("skeleton: settle", self))
	}
	res := make(core.Results, len(outcomes))
	for i := range outcomes {
		res[i] = s.settle(self, &outcomes[i])
	}
	return res
}

// settle persists one outcome. Package rules decides; the check and the write are one transaction.
func (s *Store) settle(self core.Session, o *core.Outcome) error {
	ref := o.Ref()
	r := s.find(ref)
	switch {
	case o.Control() != 0:
		return nil // nothing here writes control records
	case o.Event() == core.EventNone:
		return waybill.Invalid("skeleton: settle", "outcome: was not built by core's functions")
	case o.Event() == core.EventConfirmed:
		return s.publish(r, ref)
	}
	change, err := rules.Settle(r.facts(), o, self, r != nil && s.owner(r) == self)
	if err != nil {
		return core.Refused("skeleton: settle", ref, err)
	}
	r.Row = change.Row
	if change.Due {
		r.due = time.Now().Add(change.In)
	}
	if change.Error != "" {
		r.lastErr = change.Error
	}
	return nil
}

// publish deletes a record that was published: one with the number and the id of ref, of any version. A repeated call
// finds none.
func (s *Store) publish(r *row, ref core.Ref) error {
	if r != nil && r.Live() {
		s.rows = slices.DeleteFunc(s.rows, func(other *row) bool { return other == r })
		return nil
	}
	// Another row can have the number: the database went back, and the number was drawn again.
	at := slices.IndexFunc(s.rows, func(r *row) bool { return r.Route == ref.Route && r.Seq == ref.Seq })
	if at >= 0 {
		r = s.rows[at]
	}
	if err := rules.Confirmed(r.facts(), ref); err != nil {
		return core.Refused("skeleton: settle", ref, err)
	}
	return nil
}
