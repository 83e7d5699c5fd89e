package memory

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// Settle persists outcomes, as core.OutboxStore says. A stale outcome is core.ErrChanged even if its partition has
// another owner or the record is locked. An outcome of a partition with another owner is core.ErrFenced even if the
// record is locked.
func (s *Store) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	if err := ctx.Err(); err != nil {
		return core.AllFailed(len(outcomes), outage("settle", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members[self] == nil {
		return core.AllFailed(len(outcomes), core.NewFencedError("waybill/memory: settle", self))
	}
	now := s.now()
	res := make(core.Results, len(outcomes))
	for i := range outcomes {
		res[i] = s.settle(self, &outcomes[i], now)
	}
	return res
}

func (s *Store) settle(self core.Session, o *core.Outcome, now time.Time) error {
	if n := o.NoticeNumber(); n != 0 {
		s.noticeDone(self, n, o.Ref())
		return nil
	}
	if o.Event() == core.EventNone {
		return waybill.Invalid("waybill/memory: settle", "outcome: not built by Published, Retry, Abandon, Cancel, Release or DeleteNotice")
	}
	ref := o.Ref()
	r := s.find(ref)
	if o.Event() == core.EventConfirmed {
		return s.publish(r, ref, now)
	}
	var f *rules.Row
	if r != nil {
		facts := r.facts()
		f = &facts
	}
	to, err := rules.Settle(f, o, self, r != nil && r.owned(self))
	if err == nil && r.lock != nil {
		err = core.ErrLocked
	}
	if err != nil {
		return core.NewOutcomeError("waybill/memory: settle", ref, err)
	}
	if to.Row != *f {
		s.become(r, &to, now)
	}
	return nil
}

// publish ends a record that was published. r is nil if no record has the number and the id of ref.
func (s *Store) publish(r *record, ref core.Ref, now time.Time) (err error) {
	var f *rules.Row
	if r == nil && s.renumbered(ref) {
		f = &rules.Row{}
	} else if r != nil {
		facts := r.facts()
		f = &facts
	}
	switch {
	case f == nil || !f.Live():
		err = rules.Confirmed(f, ref)
	case r == nil:
		err = core.ErrChanged
	case r.lock != nil:
		err = core.ErrLocked
	default:
		s.become(r, &rules.Change{Row: rules.Publish(f)}, now)
	}
	if err != nil {
		err = core.NewOutcomeError("waybill/memory: settle", ref, err)
	}
	return err
}
