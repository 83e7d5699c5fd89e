package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// maxUnserved bounds Roster.Unserved.
const maxUnserved = 100

// Meet joins, renews or looks, as core.OutboxStore says. A session that is not a member changes nothing. The flags come
// after the moves, and leaving comes last.
func (s *Store) Meet(ctx context.Context, m core.Meeting) (core.Roster, error) {
	if err := ctx.Err(); err != nil {
		return core.Roster{}, outage("meet", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.renew(&m) {
		for _, sv := range m.Self.Serves {
			s.makeUnits(sv)
		}
		for _, r := range m.Remove {
			if gone := s.members[r.Session]; gone != nil && gone.Beat == r.Beat {
				s.remove(gone)
			}
		}
		for i := range m.Moves {
			s.move(&m.Self, &m.Moves[i])
		}
		for _, f := range m.Flag {
			if other := s.members[f.Session]; other != nil && other.Presence != 0 && other.Presence == f.Presence {
				other.Flag = true
			}
		}
		if self := s.members[m.Self.Session]; m.Leave && self != nil {
			s.end(self)
		}
		s.tidy()
	}
	return s.roster(&m.Self, m.AfterControl), nil
}

// renew reports whether the caller is a member. A late renewal, behind a later one, changes nothing.
func (s *Store) renew(m *core.Meeting) bool {
	self := s.members[m.Self.Session]
	switch {
	case m.Self.Session == 0:
		return false
	case self == nil && (!m.Join || m.Leave):
		return false
	case self == nil:
		self = newMember(m.Self)
		self.Flag, self.Missing, self.renewed = false, false, s.now()
		s.members[m.Self.Session] = self
	case m.Self.Beat > self.Beat:
		flag := self.Flag && m.Self.Presence == self.Presence
		self.Member = m.Self
		self.Flag, self.Missing, self.renewed = flag, false, s.now()
		self.Serves = slices.Clone(m.Self.Serves)
	}
	return true
}

func (s *Store) makeUnits(sv core.Serving) {
	rt := s.route(sv.Route)
	if len(rt.units) > 0 {
		return
	}
	for _, u := range core.SplitRoute(sv.Route, sv.Units) {
		rt.addUnit(&unit{core.OwnedUnit{Unit: u, Low: rt.kept.Low, Careful: rt.kept.Careful, Term: rt.kept.Term + 1}})
	}
}

// tidy removes the units of unserved routes. The route keeps the facts that their next owners need.
func (s *Store) tidy() {
	for _, rt := range s.routes {
		if len(rt.units) == 0 || rt.served() || s.wanted(rt.name) {
			continue
		}
		rt.kept = rt.units[0].OwnedUnit
		for _, u := range rt.units {
			rt.kept.Low = min(rt.kept.Low, u.Low)
			rt.kept.Careful, rt.kept.Term = max(rt.kept.Careful, u.Careful), max(rt.kept.Term, u.Term)
		}
		rt.units, rt.bySlot = nil, [core.NumSlots]*unit{}
	}
}

func (rt *route) addUnit(u *unit) {
	rt.units = append(rt.units, u)
	for slot := u.Unit.From; slot < u.Unit.To; slot++ {
		rt.bySlot[slot] = u
	}
}

// wanted reports whether a member serves the route.
func (s *Store) wanted(route string) bool {
	for _, m := range s.members {
		if slices.ContainsFunc(m.Serves, func(sv core.Serving) bool { return sv.Route == route }) {
			return true
		}
	}
	return false
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

// remove ends the session of a dead member.
func (s *Store) remove(m *member) {
	for r := range m.held {
		r.crashes++
		r.version++
	}
	for _, rt := range s.routes {
		for _, u := range rt.units {
			if u.Owner == m.Session {
				u.Careful = max(u.Careful, s.seq)
			}
		}
	}
	s.end(m)
}

// end frees the units and the records of a member. The records that it held can have been delivered.
func (s *Store) end(m *member) {
	for r := range maps.Clone(m.held) {
		s.hold(r, 0)
		r.maybe = true
	}
	for _, rt := range s.routes {
		for _, u := range rt.units {
			if u.Owner == m.Session {
				u.give(0)
			}
		}
	}
	delete(s.members, m.Session)
}

// move leaves out moves that do not apply: From is not the owner, the new owner is not a member, or self stores late.
func (s *Store) move(self *core.Member, m *core.Move) {
	u := s.unit(m.Unit)
	if u == nil || u.Owner != m.From {
		return
	}
	to := s.members[m.To]
	switch {
	case m.To != 0 && to == nil:
	case m.From == m.To:
		if me := s.members[self.Session]; m.To != 0 && me != nil && self.Beat >= me.Beat {
			u.Low, u.Careful = m.Low, m.Careful
		}
	default:
		u.give(m.To)
	}
}

// give changes the owner, and so begins another term.
func (u *unit) give(to core.Session) {
	u.Owner = to
	u.Term++
}

func (s *Store) roster(self *core.Member, after int64) core.Roster {
	out := core.Roster{Known: s.members[self.Session] != nil, Epoch: s.epoch()}
	for _, m := range s.members {
		member := m.Member
		member.Serves = slices.Clone(m.Serves)
		out.Members = append(out.Members, member)
	}
	slices.SortFunc(out.Members, func(a, b core.Member) int { return cmp.Compare(a.Session, b.Session) })
	now, names, units := s.now(), s.names(), 0
	for _, name := range names {
		units += len(s.routes[name].units)
	}
	out.Units = make([]core.OwnedUnit, 0, units)
	for _, name := range names {
		rt := s.routes[name]
		for _, u := range rt.units {
			out.Units = append(out.Units, u.OwnedUnit)
		}
		if len(rt.units) > 0 || len(out.Unserved) == maxUnserved {
			continue
		}
		if !rt.ready.empty() || rt.timers.due(now) || rt.retries.due(now) {
			out.Unserved = append(out.Unserved, name)
		}
	}
	out.Told = slices.ContainsFunc(s.control, func(c *command) bool {
		return c.Number > after && slices.ContainsFunc(self.Serves, func(sv core.Serving) bool { return sv.Route == c.Route })
	})
	return out
}
