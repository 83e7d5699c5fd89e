package memory

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

var _ admin.Decider = (*Store)(nil)

// DecideRecords ends records, or tells their owners to; see [admin.Decider].
func (s *Store) DecideRecords(ctx context.Context, req admin.DecideRequest) ([]admin.Decision, error) {
	out, err := admin.CheckDecideRecords(req)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, outage("decide records", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for i := range out {
		s.decideRecord(&out[i], req.Reason, now)
	}
	return out, nil
}

func (s *Store) decideRecord(d *admin.Decision, reason waybill.Reason, now time.Time) {
	r := s.stored(d.Route, d.ID)
	_, told := slices.BinarySearchFunc(s.control, d.Number, byNumber)
	switch {
	case r == nil || r.seq != d.Seq || r.live() && d.Number != 0 && !told:
		d.Fate = admin.FateOtherwise
	case !r.live() && r.reason == reason:
		d.Fate = admin.FateEnded
	case !r.live():
		d.Fate = admin.FateOtherwise
	case r.holder != 0 || !r.waits() && !r.withdrawable && !r.untended():
		d.Fate = admin.FatePending
		if d.Number == 0 {
			c := s.about(r)
			c.Kind, c.Reason = core.ControlDecide, reason
			s.tell(c)
			d.Number = c.Number
		}
	case r.lock != nil:
		d.Fate = admin.FateLocked
	default:
		d.Fate = admin.FateEnded
		s.endDue(r, reason, now)
	}
}

// endDue ends r, which nobody can have out, and whatever was decided about it before.
func (s *Store) endDue(r *record, reason waybill.Reason, now time.Time) {
	s.undecide(r)
	tell := r.env.Key != "" && !r.timer() && !r.untended()
	r.maybe = r.maybe || r.careful()
	s.giveUp(r, reason, now)
	if tell {
		s.tellOwner(r)
	}
}

// undecide deletes what was decided about r, and nobody has carried out.
func (s *Store) undecide(r *record) {
	s.control = slices.DeleteFunc(s.control, func(c *command) bool {
		return c.Kind == core.ControlDecide && c.Route == r.route.name && c.Seq == r.seq && c.ID == r.env.ID
	})
}
