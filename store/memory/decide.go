package memory

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

var _ admin.Terminator = (*Store)(nil)

// DecideRecords ends records, or tells their owners to; see [admin.Terminator].
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
	_, told := slices.BinarySearchFunc(s.notice, d.Number, byNumber)
	if r == nil || r.seq != d.Seq {
		d.Result = admin.DecisionSuperseded
		return
	}
	f := r.facts()
	var tells bool
	d.Result, tells = rules.Decided(&f, r.partition(), d, told, reason)
	switch {
	case d.Result == admin.DecisionPending && d.Number == 0:
		c := s.about(r)
		c.Kind, c.Reason = core.NoticeDecide, reason
		s.tell(c)
		d.Number = c.Number
	case d.Result != admin.DecisionCarriedOut || !r.live():
	case r.lock != nil:
		d.Result = admin.DecisionLocked
	default:
		s.undecide(r)
		s.abandon(r, reason, now)
		if tells {
			s.tellOwner(r)
		}
	}
}

// undecide deletes the decisions about r that its owner has not carried out.
func (s *Store) undecide(r *record) {
	s.notice = slices.DeleteFunc(s.notice, func(c *command) bool {
		return c.Kind == core.NoticeDecide && c.Route == r.route.name && c.Seq == r.seq && c.ID == r.env.ID
	})
}
