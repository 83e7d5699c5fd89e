package memory

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Settle persists outcomes, as core.OutboxStore says. A stale outcome is core.ErrChanged even if its unit has another
// owner or the record is locked. An outcome of a unit with another owner is core.ErrFenced even if the record is
// locked.
func (s *Store) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	if err := ctx.Err(); err != nil {
		return core.AllFailed(len(outcomes), outage("settle", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members[self] == nil {
		return core.AllFailed(len(outcomes), core.Fenced("waybill/memory: settle", self))
	}
	now := s.now()
	res := make(core.Results, len(outcomes))
	for i := range outcomes {
		res[i] = s.settle(self, &outcomes[i], now)
	}
	return res
}

func (s *Store) settle(self core.Session, o *core.Outcome, now time.Time) error {
	if n := o.Control(); n != 0 {
		s.heeded(self, n, o.Ref())
		return nil
	}
	switch o.State() {
	case core.StatePending, core.StateFailed, core.StatePublished, core.StateAbandoned:
	case core.StateNone, core.StateProcessing:
		return waybill.Invalid("waybill/memory: settle", "outcome: not built by Published, Retry, Abandon, Withdraw, Release or Heeded")
	}
	ref := o.Ref()
	published := o.Event() == core.EventConfirmed
	r := s.find(ref)
	switch {
	case published && (r == nil && !s.renumbered(ref) || r != nil && r.state == core.StatePublished):
		return nil
	case r == nil, !r.live(), !published && r.version != ref.Version:
		return core.Refused("waybill/memory: settle", ref, core.ErrChanged)
	case !published && r.holder != self && !r.owned(self):
		return core.Refused("waybill/memory: settle", ref, core.ErrFenced)
	case r.lock != nil:
		return core.Refused("waybill/memory: settle", ref, core.ErrBusy)
	}
	s.unplace(r)
	s.change(r, self, o, now)
	return nil
}

// change applies o to r, which is in no index.
func (s *Store) change(r *record, self core.Session, o *core.Outcome, now time.Time) {
	if o.Event() == core.EventReleased {
		s.letGo(r, self, o, now)
		return
	}
	r.maybe = r.maybe || o.Unknown()
	s.setHolder(r, 0)
	if o.CountsAttempt() {
		r.attempts++
	}
	if o.Error() != "" {
		r.lastErr, r.errAt = o.Error(), now
	}
	if o.State().Terminal() {
		s.retire(r, o.State(), o.Reason(), now)
		return
	}
	r.state, r.reason, r.waiting, r.due = o.State(), o.Reason(), false, now
	r.version++
	if r.state == core.StateFailed {
		r.crashes = 0 // the attempt has ended, and nobody died of it
		r.waiting, r.due = true, now.Add(o.In())
	}
	s.place(r)
	s.changed(r)
}

// letGo ends self's hold. A hold of another session stays.
func (s *Store) letGo(r *record, self core.Session, o *core.Outcome, now time.Time) {
	if r.holder == self || r.holder == 0 {
		r.version++
		r.maybe = r.maybe || o.Unknown()
	}
	if r.holder == self {
		s.setHolder(r, 0)
		if r.retry() {
			r.due = now.Add(o.In())
		}
		defer s.changed(r)
	}
	s.place(r)
}
