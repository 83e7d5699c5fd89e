package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// maxUnserved bounds Roster.Unserved.
const maxUnserved = 100

// Meet joins, renews or looks, as [rules.Meet] says.
func (s *Store) Meet(ctx context.Context, m core.Meeting) (core.Roster, error) {
	if err := ctx.Err(); err != nil {
		return core.Roster{}, outage("meet", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := core.Roster{Epoch: s.epoch(), Members: make([]core.Member, 0, len(s.members)), Units: []core.OwnedUnit{}}
	for _, m := range s.members {
		member := m.Member
		member.Serves = slices.Clone(m.Serves)
		out.Members = append(out.Members, member)
	}
	slices.SortFunc(out.Members, func(a, b core.Member) int { return cmp.Compare(a.Session, b.Session) })
	names := s.names()
	for _, name := range names {
		for _, u := range s.routes[name].units {
			out.Units = append(out.Units, u.OwnedUnit)
		}
	}
	if err := rules.Meet(ctx, (*membership)(s), &out, &m); err != nil {
		return core.Roster{}, err
	}
	now := s.now()
	for _, name := range names {
		if rt := s.routes[name]; len(rt.units) == 0 && len(out.Unserved) < maxUnserved &&
			(!rt.ready.empty() || rt.timers.due(now) || rt.retries.due(now)) {
			out.Unserved = append(out.Unserved, name)
		}
	}
	out.Told = slices.ContainsFunc(s.control, func(c *command) bool {
		return c.Number > m.AfterControl && slices.ContainsFunc(m.Self.Serves, func(sv core.Serving) bool { return sv.Route == c.Route })
	})
	return out, nil
}

// membership is a Store for [rules.Meet], while it is locked.
type membership Store

func (s *membership) Renew(_ context.Context, m *core.Member, joins bool) error {
	if joins {
		s.members[m.Session] = newMember(*m)
	}
	self := s.members[m.Session]
	self.Member, self.renewed = *m, s.now()
	self.Serves = slices.Clone(m.Serves)
	return nil
}

func (s *membership) Flag(_ context.Context, session core.Session) error {
	s.members[session].Flag = true
	return nil
}

func (s *membership) Kept(_ context.Context, route string) (core.OwnedUnit, error) {
	return (*Store)(s).route(route).kept, nil
}

func (s *membership) End(_ context.Context, session core.Session, died bool) (last int64, ok bool, err error) {
	for r := range maps.Clone(s.members[session].held) {
		(*Store)(s).hold(r, 0)
		r.maybe = true
		if died {
			r.crashes++
			r.version++
		}
	}
	delete(s.members, session)
	return s.seq, true, nil
}

func (*membership) Move(context.Context, core.Session, core.Session) (bool, error) { return true, nil }

func (s *membership) Save(_ context.Context, units []core.OwnedUnit) error {
	for _, u := range units {
		rt := s.routes[u.Unit.Route]
		if old := rt.bySlot[u.Unit.From]; old != nil {
			old.OwnedUnit = u
		} else {
			rt.addUnit(&unit{u})
		}
	}
	return nil
}

func (s *membership) Retire(_ context.Context, kept core.OwnedUnit) error {
	rt := (*Store)(s).route(kept.Unit.Route)
	rt.kept, rt.units, rt.bySlot = kept, nil, [core.NumSlots]*unit{}
	return nil
}

func (rt *route) addUnit(u *unit) {
	rt.units = append(rt.units, u)
	for slot := u.Unit.From; slot < u.Unit.To; slot++ {
		rt.bySlot[slot] = u
	}
}

// unit returns the unit, or nil if there is none with exactly these slots.
func (s *Store) unit(u core.Unit) *unit {
	rt := s.routes[u.Route]
	if rt == nil || u.From >= core.NumSlots {
		return nil
	}
	if found := rt.bySlot[u.From]; found != nil && found.Unit == u {
		return found
	}
	return nil
}
