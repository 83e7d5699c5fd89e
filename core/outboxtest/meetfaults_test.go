package outboxtest_test

import (
	"context"
	"errors"
	"slices"

	"github.com/waybill-go/waybill/core"
)

func meets(fn func(m *core.Meeting)) fault {
	return fault{meet: func(ctx context.Context, b *broken, m core.Meeting) (core.Roster, error) {
		m.Moves, m.Remove, m.Self.Serves = slices.Clone(m.Moves), slices.Clone(m.Remove), slices.Clone(m.Self.Serves)
		fn(&m)
		return b.store.Meet(ctx, m)
	}}
}

func rosters(fn func(r *core.Roster)) fault {
	return fault{roster: func(_ *broken, _ *core.Meeting, r *core.Roster) { fn(r) }}
}

// wishes answers units as each member wishes them.
var wishes = fault{roster: func(_ *broken, m *core.Meeting, r *core.Roster) {
	if len(m.Self.Serves) == 0 {
		return
	}
	var units []core.OwnedUnit
	for _, u := range core.SplitRoute(m.Self.Serves[0].Route, m.Self.Serves[0].Units) {
		at := slices.IndexFunc(r.Units, func(o core.OwnedUnit) bool { return o.Unit.Route == u.Route && o.Unit.Slots().Has(u.From) })
		units = append(units, core.OwnedUnit{Unit: u, Owner: r.Units[at].Owner})
	}
	r.Units = units
}}

// unfenced says that all went well for a removed session.
var unfenced = fault{
	take: func(ctx context.Context, b *broken, self core.Session, w core.Want) ([]core.Taken, error) {
		ts, err := b.store.Take(ctx, self, w)
		if errors.Is(err, core.ErrFenced) {
			err = nil
		}
		return ts, err
	},
	giveUp: func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
		ok, err := b.store.GiveUp(ctx, self, u, out)
		if errors.Is(err, core.ErrFenced) {
			return true, nil
		}
		return ok, err
	},
	due: func(ctx context.Context, b *broken, self core.Session, parts []core.Part, limit int) (core.DuePage, error) {
		p, err := b.store.Due(ctx, self, parts, limit)
		if errors.Is(err, core.ErrFenced) {
			err = nil
		}
		return p, err
	},
	settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
		res := b.store.Settle(ctx, self, os)
		for i, err := range res {
			if errors.Is(err, core.ErrFenced) {
				res[i] = nil
			}
		}
		return res
	},
	page: func(_ *broken, _ *core.Look, p *core.Page) { p.Known = true },
}

// byOwner does for a session what the owner of the slots may, or any member.
func (b *broken) owner(route string, slot uint8) core.Session {
	r, _ := b.store.Meet(context.Background(), core.Meeting{})
	for _, u := range r.Units {
		if u.Unit.Route == route && u.Unit.Slots().Has(slot) && u.Owner != 0 {
			return u.Owner
		}
	}
	return 0
}

var meetFaults = []faulty{
	{"forgets how many handlers are free", "join-makes-member-known", rosters(func(r *core.Roster) {
		for i := range r.Members {
			r.Members[i].Free = 1
		}
	})},
	{"forgets who is not able", "join-makes-member-known", rosters(func(r *core.Roster) {
		for i := range r.Members {
			r.Members[i].Serves = slices.Clone(r.Members[i].Serves)
			for j := range r.Members[i].Serves {
				r.Members[i].Serves[j].Unable = false
			}
		}
	})},
	{"joins who only renews", "renewal-needs-a-member", meets(func(m *core.Meeting) { m.Join = true })},
	{
		"moves for who only looks", "zero-session-only-looks",
		fault{meet: func(ctx context.Context, b *broken, m core.Meeting) (core.Roster, error) {
			looks := m.Self.Session == 0
			if looks && len(m.Moves) > 0 {
				m.Self.Session, m.Remove, m.Self.Serves = m.Moves[0].From, nil, nil
			}
			r, err := b.store.Meet(ctx, m)
			r.Known = r.Known && !looks
			return r, err
		}},
	},
	{
		"lets join who only looks", "zero-session-only-looks",
		fault{roster: func(_ *broken, m *core.Meeting, r *core.Roster) { r.Known = r.Known || m.Join }},
	},
	{"ignores beats", "beat-is-renewed", meets(func(m *core.Meeting) { m.Self.Beat = 1 })},
	{"takes late beats", "late-renewal-changes-nothing", fault{roster: func(b *broken, m *core.Meeting, r *core.Roster) {
		b.beats[m.Self.Session] = m.Self.Beat
		for i := range r.Members {
			r.Members[i].Beat = b.beats[r.Members[i].Session]
		}
	}}},
	{"moves whoever owns", "one-of-two-moves-wins", fault{meet: func(ctx context.Context, b *broken, m core.Meeting) (core.Roster, error) {
		for i := range m.Moves {
			m.Moves[i].From = b.owner(m.Moves[i].Unit.Route, m.Moves[i].Unit.From)
		}
		return b.store.Meet(ctx, m)
	}}},
	{"tells both that they won", "one-of-two-moves-wins", fault{roster: func(_ *broken, m *core.Meeting, r *core.Roster) {
		for i := range r.Units {
			if len(m.Moves) > 0 && m.Moves[0].To != 0 {
				r.Units[i].Owner = m.Moves[0].To
			}
		}
	}}},
	{"counts beats itself", "meet-repeats", fault{meet: func(ctx context.Context, b *broken, m core.Meeting) (core.Roster, error) {
		b.count++
		m.Self.Beat += int64(b.count)
		return b.store.Meet(ctx, m)
	}}},
	{"makes units for each member", "units-are-made-once", wishes},
	{"makes overlapping units", "units-are-made-once", rosters(func(r *core.Roster) {
		for _, u := range r.Units[:min(1, len(r.Units))] {
			u.Unit.To = 1
			r.Units = append(r.Units, u)
		}
	})},
	{"follows the last wish", "number-of-units-is-kept", wishes},
	{
		"stores Low with each move", "moves-store-low-for-owner-only",
		fault{meet: func(ctx context.Context, b *broken, m core.Meeting) (core.Roster, error) {
			r, err := b.store.Meet(ctx, m)
			for _, mv := range m.Moves {
				if owner := b.owner(mv.Unit.Route, mv.Unit.From); owner != 0 {
					mv.From, mv.To = owner, owner
					m.Moves = []core.Move{mv}
					return b.store.Meet(ctx, m)
				}
			}
			return r, err
		}},
	},
	{"stores Low never", "moves-store-low-for-owner-only", meets(func(m *core.Meeting) {
		for i := range m.Moves {
			m.Moves[i].Low = 0
		}
	})},
	{
		"stores what comes late", "late-move-stores-nothing",
		fault{meet: func(ctx context.Context, b *broken, m core.Meeting) (core.Roster, error) {
			b.count++
			m.Self.Beat += int64(10 * b.count)
			return b.store.Meet(ctx, m)
		}},
	},
	{"counts a clean stop as a crash", "leave-frees-units", meets(func(m *core.Meeting) {
		if m.Leave {
			m.Leave, m.Remove = false, []core.Removal{{Session: m.Self.Session, Beat: m.Self.Beat}}
		}
	})},
	{"forgets what who leaves has said of its units", "leave-frees-units", meets(func(m *core.Meeting) {
		if m.Leave {
			m.Moves = nil
		}
	})},
	{"keeps who leaves", "leave-frees-units", meets(func(m *core.Meeting) { m.Leave = false })},
	{"forgets a route that nobody serves", "served-again-keeps-low", fault{roster: func(b *broken, m *core.Meeting, r *core.Roster) {
		if m.Leave {
			b.count++
		}
		for i := range r.Units {
			r.Units[i].Low += int64(1000 * b.count)
		}
	}}},
	{"sets no flags", "flag-is-set-and-cleared", meets(func(m *core.Meeting) { m.Flag = nil })},
	{
		"clears flags with each renewal", "flag-is-set-and-cleared",
		fault{meet: func(ctx context.Context, b *broken, m core.Meeting) (core.Roster, error) {
			b.count++
			m.Self.Presence = int64(b.count)
			m.Self.Beat += int64(b.count)
			return b.store.Meet(ctx, m)
		}},
	},
	{
		"keeps the flag of who has no token any more", "flag-is-set-and-cleared",
		fault{roster: func(b *broken, _ *core.Meeting, r *core.Roster) {
			for i := range r.Members {
				m := &r.Members[i]
				if m.Flag {
					b.beats[m.Session] = 1
				}
				m.Flag = m.Flag || m.Presence == 0 && b.beats[m.Session] == 1
			}
		}},
	},
	{"keeps flags for ever", "flag-is-set-and-cleared", meets(func(m *core.Meeting) { m.Self.Presence = 1 })},
	{"tells of no control records", "roster-tells-of-control-records", rosters(func(r *core.Roster) { r.Told = false })},
	{"tells of control records that are not there", "roster-tells-of-control-records", rosters(func(r *core.Roster) { r.Told = true })},
	{"names no unserved routes", "unserved-routes-are-named", rosters(func(r *core.Roster) { r.Unserved = nil })},
	{"names no unserved routes", "left-routes-are-unserved", rosters(func(r *core.Roster) { r.Unserved = nil })},
	{"keeps units that nobody serves", "dropped-routes-are-unserved", fault{meet: func(ctx context.Context, b *broken, m core.Meeting) (core.Roster, error) {
		for _, sv := range m.Self.Serves { // as if each member served for ever what it once served
			if !slices.Contains(b.served, sv) {
				b.served = append(b.served, sv)
			}
		}
		if m.Self.Session != 0 {
			m.Self.Serves = b.served
		}
		return b.store.Meet(ctx, m)
	}}},
	{"leaves first", "leave-comes-last", fault{meet: func(ctx context.Context, b *broken, m core.Meeting) (core.Roster, error) {
		if m.Leave {
			m.Remove = nil
		}
		return b.store.Meet(ctx, m)
	}}},
	{"stores what nobody says", "moves-of-nobody-store-nothing", fault{roster: func(b *broken, m *core.Meeting, r *core.Roster) {
		for _, mv := range m.Moves {
			for i := range r.Units {
				if r.Units[i].Unit == mv.Unit && mv.From == mv.To {
					r.Units[i].Low, r.Units[i].Careful = mv.Low, mv.Careful
				}
			}
		}
	}}},
	{
		"removes whatever the beat", "removal-compares-the-beat",
		fault{meet: func(ctx context.Context, b *broken, m core.Meeting) (core.Roster, error) {
			r, _ := b.store.Meet(ctx, core.Meeting{})
			for i := range m.Remove {
				for _, x := range r.Members {
					if x.Session == m.Remove[i].Session {
						m.Remove[i].Beat = x.Beat
					}
				}
			}
			return b.store.Meet(ctx, m)
		}},
	},
	{
		"counts no crashes", "removal-counts-crashes-of-holds",
		fault{meet: func(ctx context.Context, b *broken, m core.Meeting) (core.Roster, error) {
			for _, r := range m.Remove {
				_, _ = b.store.Meet(ctx, core.Meeting{Self: core.Member{Session: r.Session}, Leave: true})
			}
			return b.store.Meet(ctx, m)
		}},
	},
	{
		"counts crashes for all of the unit", "removal-counts-crashes-of-holds",
		fault{meet: func(ctx context.Context, b *broken, m core.Meeting) (core.Roster, error) {
			for _, r := range m.Remove {
				for _, st := range b.store.States() {
					ref := core.Ref{Route: st.Route, Seq: st.Seq, ID: st.ID, Version: st.Version}
					_, _ = b.store.Take(ctx, r.Session, core.Want{Refs: []core.Ref{ref}})
				}
			}
			return b.store.Meet(ctx, m)
		}},
	},
	{"keeps crashes for ever", "failed-attempt-ends-crashes", dues(func(_ *broken, _ core.Session, p *core.DuePage) {
		for i := range p.Retries {
			p.Retries[i].Crashes += p.Retries[i].Attempts
		}
	})},
	{"forgets Careful", "removal-makes-units-careful", rosters(func(r *core.Roster) {
		for i := range r.Units {
			r.Units[i].Careful = 0
		}
	})},
	{"does not let members remove themselves", "member-removes-itself", meets(func(m *core.Meeting) {
		m.Remove = slices.DeleteFunc(m.Remove, func(r core.Removal) bool { return r.Session == m.Self.Session })
	})},
	{"lets members leave that remove themselves", "member-removes-itself", meets(func(m *core.Meeting) {
		n := len(m.Remove)
		m.Remove = slices.DeleteFunc(m.Remove, func(r core.Removal) bool { return r.Session == m.Self.Session && r.Beat == m.Self.Beat })
		m.Leave = m.Leave || len(m.Remove) < n
	})},
	{"removes behind locks", "removal-waits-for-no-lock", fault{waits: "meet"}},
	{"says that removed sessions have settled", "removal-and-settle-exclude-each-other", unfenced},
	{"knows removed sessions", "removed-session-is-not-known", unfenced},
	{"lets removed sessions take", "removed-session-takes-nothing", unfenced},
	{"lets removed sessions ask for what is due", "removed-session-brings-nothing-due", unfenced},
	{"lets removed sessions give up", "removed-session-gives-nothing-up", unfenced},
	{"lets removed sessions settle", "removed-session-settles-nothing", unfenced},
	{
		"settles for removed sessions", "removed-session-settles-nothing",
		fault{settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
			res := b.store.Settle(ctx, self, os)
			for i, err := range res {
				if errors.Is(err, core.ErrFenced) {
					ref := os[i].Ref()
					if r := b.at(ref); r != nil && r.Holder != 0 {
						b.store.Settle(ctx, r.Holder, os[i:i+1])
					}
				}
			}
			return res
		}},
	},
}
