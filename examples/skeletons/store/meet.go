package store

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Meet joins, renews or looks. The order of its steps is part of the contract.
func (s *Store) Meet(ctx context.Context, m core.Meeting) (core.Roster, error) {
	end, err := s.begin(ctx, "meet")
	if err != nil {
		return core.Roster{}, err
	}
	defer end()
	if s.renew(&m) {
		for _, sv := range m.Self.Serves {
			s.makeUnits(sv)
		}
		for _, r := range m.Remove {
			if gone := s.members[r.Session]; gone != nil && gone.Beat == r.Beat {
				s.remove(gone.Session)
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
		if m.Leave {
			s.end(m.Self.Session)
		}
		s.tidy()
	}
	return s.roster(m.Self.Session), nil
}

// renew reports whether the caller is a member. A renewal that comes late, behind a later one, changes nothing.
func (s *Store) renew(m *core.Meeting) bool {
	self := s.members[m.Self.Session]
	switch {
	case m.Self.Session == 0, self == nil && (!m.Join || m.Leave):
		return false
	case self == nil:
		member := m.Self
		member.Flag, member.Missing, member.Serves = false, false, slices.Clone(m.Self.Serves)
		s.members[member.Session] = &member
	case m.Self.Beat > self.Beat:
		flag := self.Flag && m.Self.Presence == self.Presence
		*self = m.Self
		self.Flag, self.Missing, self.Serves = flag, false, slices.Clone(m.Self.Serves)
	}
	return true
}

func (s *Store) makeUnits(sv core.Serving) {
	if slices.ContainsFunc(s.units, func(u core.OwnedUnit) bool { return u.Unit.Route == sv.Route }) {
		return
	}
	kept := s.kept[sv.Route]
	for _, u := range core.SplitRoute(sv.Route, sv.Units) {
		s.units = append(s.units, core.OwnedUnit{Unit: u, Low: kept.Low, Careful: kept.Careful, Term: kept.Term + 1})
	}
	delete(s.kept, sv.Route)
}

// tidy removes the units of routes that no member serves. The route keeps what their next owners must know of them.
func (s *Store) tidy() {
	for _, u := range slices.Clone(s.units) {
		route := u.Unit.Route
		owned := slices.ContainsFunc(s.units, func(o core.OwnedUnit) bool { return o.Unit.Route == route && o.Owner != 0 })
		if owned || s.serves(route) {
			continue
		}
		if kept, found := s.kept[route]; found {
			u.Low, u.Careful, u.Term = min(u.Low, kept.Low), max(u.Careful, kept.Careful), max(u.Term, kept.Term)
		}
		s.kept[route] = u
	}
	s.units = slices.DeleteFunc(s.units, func(u core.OwnedUnit) bool {
		_, gone := s.kept[u.Unit.Route]
		return gone
	})
}

// serves reports whether a member serves the route.
func (s *Store) serves(route string) bool {
	for _, m := range s.members {
		if slices.ContainsFunc(m.Serves, func(sv core.Serving) bool { return sv.Route == route }) {
			return true
		}
	}
	return false
}

// remove ends the session of a dead member: a record that it held counts a crash, and records that it may have read are
// marked.
func (s *Store) remove(dead core.Session) {
	for _, r := range s.rows { // INDEX: rows by holder, where there is one
		if r.Holder == dead {
			r.Crashes++
			r.Version++
		}
	}
	for i := range s.units {
		if u := &s.units[i]; u.Owner == dead {
			u.Careful = max(u.Careful, s.seq)
		}
	}
	s.end(dead)
}

// end ends a session, and frees its rows and its units.
func (s *Store) end(session core.Session) {
	if s.members[session] == nil {
		return
	}
	for _, r := range s.rows {
		if r.Holder == session {
			r.Holder, r.MaybeSent = 0, true
		}
	}
	for i := range s.units {
		if u := &s.units[i]; u.Owner == session {
			give(u, 0)
		}
	}
	delete(s.members, session)
}

// move gives a unit to another member, or stores the caller's own Low and Careful. A move that does not apply is left
// out.
func (s *Store) move(self *core.Member, m *core.Move) {
	u := s.unit(m.Unit)
	if u == nil || u.Owner != m.From || m.To != 0 && s.members[m.To] == nil {
		return
	}
	if m.From != m.To {
		give(u, m.To)
	} else if me := s.members[self.Session]; m.To != 0 && me != nil && self.Beat >= me.Beat {
		u.Low, u.Careful = m.Low, m.Careful
	}
}

// give changes the owner, and so begins another term.
func give(u *core.OwnedUnit, to core.Session) {
	u.Owner = to
	u.Term++
}

func (s *Store) unit(name core.Unit) *core.OwnedUnit {
	for i := range s.units {
		if s.units[i].Unit == name {
			return &s.units[i]
		}
	}
	return nil
}

func (s *Store) roster(self core.Session) core.Roster {
	out := core.Roster{Known: s.members[self] != nil, Epoch: "1", Units: slices.Clone(s.units)}
	for _, m := range s.members {
		member := *m
		member.Serves = slices.Clone(m.Serves)
		out.Members = append(out.Members, member)
	}
	now := time.Now()
	for _, r := range s.rows { // INDEX: the first due row of each route, and a list of routes
		due := r.Live() && !r.due.After(now)
		served := slices.ContainsFunc(s.units, func(u core.OwnedUnit) bool { return u.Unit.Route == r.Route })
		if due && !served && !slices.Contains(out.Unserved, r.Route) && len(out.Unserved) < 100 {
			out.Unserved = append(out.Unserved, r.Route)
		}
	}
	return out
}
