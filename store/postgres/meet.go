package postgres

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
)

// Meet joins, renews or looks. It is one transaction, but for removals: each is one of its own after the renewal, so
// that no renewal waits for the locks of a removal. Of a member whose records a transaction has locked, the holds on
// these stay, as holds of no member, uncounted.
func (o *Outbox) Meet(ctx context.Context, m core.Meeting) (core.Roster, error) {
	var roster core.Roster
	if m.Self.Session == 0 {
		m = core.Meeting{Self: core.Member{Serves: m.Self.Serves}, AfterControl: m.AfterControl}
	}
	if len(m.Remove) > 0 {
		err := o.transact(ctx, "meet", writeSQL, func(b *batch) {
			queueSelf(b, &m)
			queueRoster(b, &m, &roster)
		})
		if err != nil {
			return core.Roster{}, err
		}
		if !roster.Known {
			return roster, nil
		}
		for _, r := range m.Remove {
			remove := func() error {
				return o.transact(ctx, "remove a member", writeSQL, func(b *batch) { queueEnd(b, r.Session, r.Beat, true) })
			}
			err := remove()
			if locked(err) {
				if err = o.transact(ctx, "end what a member left open", writeSQL, func(b *batch) { b.Queue(b.sql.meet.reap) }); err == nil {
					err = remove()
				}
			}
			if err != nil && !locked(err) { // who is still locked is left out
				return core.Roster{}, err
			}
		}
	}
	err := o.transact(ctx, "meet", writeSQL, func(b *batch) {
		if len(m.Remove) == 0 && !m.Leave {
			queueSelf(b, &m)
		}
		queueMoves(b, &m)
		queueFlags(b, &m)
		if m.Leave && m.Self.Session != 0 {
			queueEnd(b, m.Self.Session, 0, false)
		}
		queueRoster(b, &m, &roster)
	})
	if err == nil && roster.Known && idle(&roster) {
		err = o.transact(ctx, "meet", writeSQL, func(b *batch) {
			b.Queue(b.sql.meet.tidy)
			queueRoster(b, &m, &roster)
		})
	}
	if err != nil {
		return core.Roster{}, err
	}
	return roster, nil
}

// idle reports whether a route has units, and no member serves it or owns one of them.
func idle(r *core.Roster) bool {
	used := map[string]bool{}
	for i := range r.Members {
		for _, sv := range r.Members[i].Serves {
			used[sv.Route] = true
		}
	}
	for i := range r.Units {
		used[r.Units[i].Unit.Route] = used[r.Units[i].Unit.Route] || r.Units[i].Owner != 0
	}
	return slices.ContainsFunc(r.Units, func(u core.OwnedUnit) bool { return !used[u.Unit.Route] })
}

// locked reports a row that another transaction has locked.
func locked(err error) bool { return dberr.SQLState(err) == "55P03" }

// queueSelf joins or renews self, and makes units. A member that leaves joins no more.
func queueSelf(b *batch, m *core.Meeting) {
	self := &m.Self
	if self.Session == 0 {
		return
	}
	n := len(self.Serves)
	routes, units, unable := make([]string, n), make([]int16, n), make([]bool, n)
	for i, sv := range self.Serves {
		routes[i], units[i], unable[i] = sv.Route, int16(min(max(sv.Units, 1), core.NumSlots)), sv.Unable
	}
	sql := b.sql.meet.renew
	if m.Join && !m.Leave {
		sql = b.sql.meet.join
	}
	b.Queue(sql, int64(self.Session), self.Beat, self.Lease.Microseconds(), self.Presence, self.Handlers, self.Free, self.Name,
		routes, units, unable)
	if !m.Leave {
		b.Queue(b.sql.meet.routes, int64(self.Session), routes)
		b.Queue(b.sql.meet.units, int64(self.Session), routes, units)
	}
}

func queueFlags(b *batch, m *core.Meeting) {
	if len(m.Flag) == 0 {
		return
	}
	sessions, tokens := make([]int64, len(m.Flag)), make([]int64, len(m.Flag))
	for i, f := range m.Flag {
		sessions[i], tokens[i] = int64(f.Session), f.Presence
	}
	b.Queue(b.sql.meet.flag, int64(m.Self.Session), sessions, tokens)
}

// queueEnd ends a session: that of a member that leaves, or of one that is removed if its beat is still the given
// one, or if it has no row. Each statement sees what was committed before the lock.
func queueEnd(b *batch, session core.Session, beat int64, removed bool) {
	lock, crashes := b.sql.meet.lockMember, 0
	if removed {
		lock, crashes = b.sql.meet.lockMemberNow, 1
	}
	b.Queue(lock, int64(session))
	b.Queue(b.sql.meet.endHolds, int64(session), beat, crashes)
	b.Queue(b.sql.meet.endUnits, int64(session), beat, crashes)
	b.Queue(b.sql.meet.end, int64(session), beat, crashes)
	b.Queue(b.sql.meet.tidy)
}

// queueMoves makes the moves: those of one unit in their order, and units in the order in which all lock them.
func queueMoves(b *batch, m *core.Meeting) {
	moves := slices.SortedStableFunc(slices.Values(m.Moves), func(x, y core.Move) int {
		return cmp.Or(strings.Compare(x.Unit.Route, y.Unit.Route), cmp.Compare(x.Unit.From, y.Unit.From))
	})
	for _, v := range moves {
		b.Queue(b.sql.meet.move, int64(m.Self.Session), v.Unit.Route, int16(v.Unit.From), int16(v.Unit.To),
			int64(v.From), int64(v.To), v.Low, v.Careful, m.Self.Beat)
	}
}

// queueRoster reads the members and the owners of the units.
func queueRoster(b *batch, m *core.Meeting, roster *core.Roster) {
	*roster = core.Roster{}
	b.each(func(rows pgx.Rows) error {
		var u core.OwnedUnit
		err := rows.Scan(&u.Unit.Route, &u.Unit.From, &u.Unit.To, (*int64)(&u.Owner), &u.Term, &u.Low, &u.Careful)
		roster.Units = append(roster.Units, u)
		return err
	}, b.sql.meet.rosterUnits)
	b.each(func(rows pgx.Rows) error {
		var v core.Member
		var lease int64
		var routes []string
		var units []int16
		var unable []bool
		err := rows.Scan((*int64)(&v.Session), &v.Name, &v.Beat, &lease, &v.Handlers, &v.Free, &v.Presence, &v.Missing, &v.Flag,
			&routes, &units, &unable)
		if err != nil {
			return err
		}
		v.Lease = time.Duration(lease) * time.Microsecond
		for i := range min(len(routes), len(units), len(unable)) {
			v.Serves = append(v.Serves, core.Serving{Route: routes[i], Units: int(units[i]), Unable: unable[i]})
		}
		roster.Members = append(roster.Members, v)
		roster.Known = roster.Known || v.Session == m.Self.Session
		return nil
	}, b.sql.meet.rosterMembers)
	serves := make([]string, len(m.Self.Serves))
	for i := range serves {
		serves[i] = m.Self.Serves[i].Route
	}
	b.Queue(b.sql.meet.roster, serves, m.AfterControl).QueryRow(func(row pgx.Row) error { return row.Scan(&roster.Epoch, &roster.Told, &roster.Unserved) })
}
