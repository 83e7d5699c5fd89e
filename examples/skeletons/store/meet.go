package store

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// Meet joins, renews or looks, as rules.Meet says.
func (s *Store) Meet(ctx context.Context, m core.Meeting) (core.Roster, error) {
	end, err := s.begin(ctx, "meet")
	if err != nil {
		return core.Roster{}, err
	}
	defer end()
	s.roster.Epoch = "1"
	if err := rules.Meet(ctx, membership{s}, &s.roster, &m); err != nil {
		return core.Roster{}, err
	}
	out := s.roster
	out.Members, out.Units = slices.Clone(out.Members), slices.Clone(out.Units)
	for i := range out.Members {
		out.Members[i].Serves = slices.Clone(out.Members[i].Serves)
	}
	now := time.Now()
	for _, r := range s.rows { // INDEX: the first due row of each route, and a list of routes
		due := r.Live() && !r.due.After(now)
		served := slices.ContainsFunc(s.roster.Units, func(u core.OwnedUnit) bool { return u.Unit.Route == r.Route })
		if due && !served && !slices.Contains(out.Unserved, r.Route) && len(out.Unserved) < 100 {
			out.Unserved = append(out.Unserved, r.Route)
		}
	}
	return out, nil
}

// membership is what rules.Meet asks a store for. The roster of this one is in memory: rules.Meet has changed it.
type membership struct{ *Store }

func (membership) Renew(context.Context, *core.Member, bool) error { return nil }
func (membership) Flag(context.Context, core.Session) error        { return nil }
func (membership) Save(context.Context, []core.OwnedUnit) error    { return nil }

// Move reports that a unit can pass to another member. LOCK: not while a call of its owner runs.
func (membership) Move(context.Context, core.Session, core.Session) (bool, error) { return true, nil }

func (s membership) Kept(_ context.Context, route string) (core.OwnedUnit, error) {
	return s.kept[route], nil
}

func (s membership) Retire(_ context.Context, kept core.OwnedUnit) error {
	s.kept[kept.Unit.Route] = kept
	return nil
}

// End ends the holds of a member. LOCK: the answer is false if a transaction has locked the member or a row that it
// holds.
func (s membership) End(_ context.Context, session core.Session, died bool) (last int64, ok bool, err error) {
	for _, r := range s.rows { // INDEX: rows by holder
		if r.Holder != session {
			continue
		}
		if r.Holder, r.MaybeSent = 0, true; died {
			r.Crashes++
			r.Version++
		}
	}
	return s.seq, true, nil
}

// unit returns a unit, or nil if there is none with exactly these slots.
func (s *Store) unit(name core.Unit) *core.OwnedUnit {
	for i := range s.roster.Units {
		if s.roster.Units[i].Unit == name {
			return &s.roster.Units[i]
		}
	}
	return nil
}
