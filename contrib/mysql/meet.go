package waybillmysql

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/waybill-go/waybill/core"
)

// maxUnserved bounds Roster.Unserved, maxLooked the routes without units that are looked at, and maxKnown the routes
// with units that one statement leaves out: beyond 1,000 the server reads the whole index instead.
const (
	maxUnserved = 100
	maxLooked   = 1000
	maxKnown    = 500
	dueOnSQL    = `SELECT route FROM waybill_outbox FORCE INDEX (waybill_outbox_key) WHERE route = ? AND ` + liveSQL + `AND due_at <= ? LIMIT 1`
)

// Meet joins, renews or looks, as core.OutboxStore says. A session that is not a member changes nothing. A call that
// changes something waits for others that do. It leaves out what meets a lock, leaving included.
func (s *Store) Meet(ctx context.Context, m core.Meeting) (out core.Roster, err error) {
	self := m.Self.Session
	if err = s.read(ctx, "meet", func(w *work) error { return w.roster(ctx, &m.Self, &out) }); err != nil {
		return core.Roster{}, err
	}
	if self == 0 || !out.Known && (!m.Join || m.Leave) || idle(&m, &out) {
		return out, nil
	}
	err = s.write(ctx, "meet", func(w *work) (err error) {
		w.self, out = self, core.Roster{}
		if _, err = w.one(ctx, []any{&w.now}, `SELECT `+nowSQL+` FROM waybill_meta WHERE name = 'meet' FOR UPDATE`); err != nil {
			return err
		}
		if err := w.who(ctx, self, &out); err != nil {
			return err
		}
		if out.Known || m.Join {
			if err := w.meet(ctx, &m, &out); err != nil {
				return err
			}
		}
		return w.roster(ctx, &m.Self, &out)
	})
	return out, err
}

// idle reports whether m changes nothing.
func idle(m *core.Meeting, now *core.Roster) bool {
	served := map[string]bool{}
	for _, u := range now.Units {
		served[u.Unit.Route] = true
	}
	return !m.Leave && len(m.Remove)+len(m.Flag)+len(m.Moves) == 0 && find(now, m.Self.Session).Beat >= m.Self.Beat &&
		!slices.ContainsFunc(m.Self.Serves, func(sv core.Serving) bool { return !served[sv.Route] })
}

// find returns a member; a zero one if the session is none.
func find(r *core.Roster, session core.Session) core.Member {
	for _, m := range r.Members {
		if m.Session == session && session != 0 {
			return m
		}
	}
	return core.Member{}
}

// meet carries out m. now is how things are.
func (w *work) meet(ctx context.Context, m *core.Meeting, now *core.Roster) error {
	if err := w.renew(ctx, &m.Self, find(now, w.self)); err != nil {
		return err
	}
	for _, sv := range m.Self.Serves {
		if err := w.makeUnits(ctx, sv, now); err != nil {
			return err
		}
	}
	for _, r := range m.Remove {
		if gone := find(now, r.Session); gone.Session != 0 && gone.Beat == r.Beat {
			if err := w.end(ctx, r.Session, true); err != nil {
				return err
			}
		}
	}
	if err := w.move(ctx, m, now); err != nil {
		return err
	}
	for _, f := range m.Flag {
		if _, err := w.exec(ctx, `UPDATE waybill_outbox_members SET flag = 1 WHERE session = ? AND presence = ? AND presence <> 0`,
			f.Session, f.Presence); err != nil {
			return err
		}
	}
	if m.Leave {
		if err := w.end(ctx, w.self, false); err != nil {
			return err
		}
	}
	if !m.Leave && len(m.Remove) == 0 && find(now, w.self).Beat >= m.Self.Beat {
		return nil
	}
	return w.tidy(ctx)
}

// renew joins or renews. A late renewal, behind a later one, changes nothing.
func (w *work) renew(ctx context.Context, self *core.Member, was core.Member) error {
	if was.Session != 0 && self.Beat <= was.Beat {
		return nil
	}
	serves, err := json.Marshal(self.Serves)
	if err != nil {
		return err
	}
	if _, err := w.exec(ctx, `INSERT IGNORE INTO waybill_outbox_fence (session) VALUES (?)`, w.self); err != nil {
		return err
	}
	_, err = w.exec(ctx, `REPLACE INTO waybill_outbox_members (session, beat, lease, presence, handlers, free, flag, renewed_at, name, serves)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, w.self, self.Beat, self.Lease.Microseconds(), self.Presence, self.Handlers, self.Free,
		was.Flag && was.Presence == self.Presence, w.now, self.Name, serves)
	return err
}

// makeUnits makes the units of a route that has none.
func (w *work) makeUnits(ctx context.Context, sv core.Serving, now *core.Roster) error {
	if slices.ContainsFunc(now.Units, func(u core.OwnedUnit) bool { return u.Unit.Route == sv.Route }) {
		return nil
	}
	var low, careful, term int64
	if _, err := w.one(ctx, []any{&low, &careful, &term}, `SELECT low, careful, term FROM waybill_outbox_routes WHERE route = ?`, sv.Route); err != nil {
		return err
	}
	var args []any
	for _, u := range core.SplitRoute(sv.Route, sv.Units) {
		args = append(args, u.Route, u.From, u.To, low, careful, term+1)
	}
	if _, err := w.exec(ctx, `INSERT INTO waybill_outbox_units (route, from_slot, to_slot, low, careful, term) VALUES `+
		strings.Repeat(`, (?, ?, ?, ?, ?, ?)`, len(args)/6)[2:], args...); err != nil {
		return err
	}
	_, err := w.exec(ctx, `DELETE FROM waybill_outbox_routes WHERE route = ?`, sv.Route)
	return err
}

// move leaves out moves that do not apply: From is not the owner, the new owner is not a member, or self stores late.
// One statement stores all facts about a member's own units. Give-ups can run meanwhile.
func (w *work) move(ctx context.Context, m *core.Meeting, now *core.Roster) error {
	var hints []any
	units := map[core.Unit]int64{}
	for _, u := range now.Units {
		units[u.Unit] = u.Term
	}
	for _, mv := range m.Moves {
		u := mv.Unit
		if term, ok := units[u]; mv.From == mv.To {
			if ok && mv.To == w.self && m.Self.Beat >= find(now, w.self).Beat {
				hints = append(hints, u.Route, u.From, u.To, term, mv.Low, mv.Careful)
			}
			continue
		}
		if mv.From != 0 && mv.From != w.self {
			if free, err := w.fence(ctx, mv.From); err != nil {
				return err
			} else if !free {
				continue
			}
		}
		if _, err := w.exec(ctx, `UPDATE waybill_outbox_units SET owner = ?, term = term + 1 WHERE route = ? AND from_slot = ? AND to_slot = ?
			AND owner = ? AND (? = 0 OR EXISTS (SELECT 1 FROM waybill_outbox_members WHERE session = ?))`, mv.To, u.Route, u.From, u.To,
			mv.From, mv.To, mv.To); err != nil {
			return err
		}
	}
	if len(hints) == 0 {
		return nil
	}
	own := strconv.FormatInt(int64(w.self), 10)
	_, err := w.exec(ctx, `INSERT INTO waybill_outbox_units (route, from_slot, to_slot, term, low, careful) VALUES `+
		strings.Repeat(`, (?, ?, ?, ?, ?, ?)`, len(hints)/6)[2:]+` ON DUPLICATE KEY UPDATE low = IF(owner = `+own+`, VALUES(low), low),
		careful = IF(owner = `+own+`, VALUES(careful), careful)`, hints...)
	return err
}

// fence keeps a session from changing anything until this transaction ends, and reports whether it could.
func (w *work) fence(ctx context.Context, session core.Session) (bool, error) {
	return w.one(ctx, []any{&session}, `SELECT session FROM waybill_outbox_fence WHERE session = ? FOR UPDATE SKIP LOCKED`, session)
}

// end frees the units and the records of a member. The records that it held can have been delivered. If it died, each
// of them counts a crash, and its units keep the number up to which it can have read. Locked rows are left out.
func (w *work) end(ctx context.Context, session core.Session, died bool) error {
	if free, err := w.fence(ctx, session); err != nil || !free {
		return err
	}
	seqs, err := collect(ctx, w.q, value[int64], `SELECT seq FROM waybill_outbox_aside FORCE INDEX (waybill_outbox_hold) WHERE hold = ?`, session)
	if err != nil {
		return err
	}
	if got, _, err := w.lock(ctx, seqs); err != nil || len(got) < len(seqs) {
		return err
	}
	crashes, careful := 0, int64(0)
	if died {
		if careful, err = w.last(ctx); err != nil {
			return err
		}
		crashes = 1
	}
	if err := w.set(ctx, seqs, `hold = 0, flags = flags | 4, crashes = crashes + ?, version = version + ?`, crashes, crashes); err != nil {
		return err
	}
	for _, text := range [...]string{
		`DELETE FROM waybill_outbox_members WHERE session = ?`, `DELETE FROM waybill_outbox_fence WHERE session = ?`,
	} {
		if _, err := w.exec(ctx, text, session); err != nil {
			return err
		}
	}
	_, err = w.exec(ctx, `UPDATE waybill_outbox_units SET owner = 0, term = term + 1, careful = GREATEST(careful, ?) WHERE owner = ?`, careful, session)
	return err
}

// tidy removes the units of unserved routes. The route keeps the facts that their next owners need.
func (w *work) tidy(ctx context.Context) error {
	var now core.Roster
	if err := w.who(ctx, w.self, &now); err != nil {
		return err
	}
	used := map[string]bool{}
	for _, m := range now.Members {
		for _, sv := range m.Serves {
			used[sv.Route] = true
		}
	}
	for _, u := range now.Units {
		used[u.Unit.Route] = used[u.Unit.Route] || u.Owner != 0
	}
	for _, u := range now.Units {
		if used[u.Unit.Route] {
			continue
		}
		used[u.Unit.Route] = true
		for _, text := range [...]string{
			`REPLACE INTO waybill_outbox_routes (route, low, careful, term)
				SELECT route, MIN(low), MAX(careful), MAX(term) FROM waybill_outbox_units WHERE route = ? GROUP BY route`,
			`DELETE FROM waybill_outbox_units WHERE route = ?`,
		} {
			if _, err := w.exec(ctx, text, u.Unit.Route); err != nil {
				return err
			}
		}
	}
	return nil
}

// who fills in the members, and the units with their owners.
func (w *work) who(ctx context.Context, self core.Session, out *core.Roster) (err error) {
	if err = w.members(ctx, out); err != nil {
		return err
	}
	out.Known = find(out, self).Session != 0
	out.Units, err = w.units(ctx, `ORDER BY route, from_slot`)
	return err
}

// roster fills in everything.
func (w *work) roster(ctx context.Context, self *core.Member, out *core.Roster) error {
	var serves []any
	for _, sv := range self.Serves {
		serves = append(serves, sv.Route)
	}
	told := `EXISTS (SELECT 1 FROM waybill_outbox_control WHERE route IN ` + places(len(serves)) + `)`
	if _, err := w.one(ctx, []any{&w.now, &out.Epoch, &out.Told}, `SELECT `+nowSQL+`, `+epochSQL+`, `+told, serves...); err != nil {
		return err
	}
	if err := w.who(ctx, self.Session, out); err != nil {
		return err
	}
	return w.unserved(ctx, out)
}

// unserved fills in the routes that have due records and no units. Each statement returns the first route that is not
// known. The server looks once between each two known routes for it. With SELECT DISTINCT route it can read the whole
// index instead, at each beat.
func (w *work) unserved(ctx context.Context, out *core.Roster) error {
	var known []any
	for _, u := range out.Units { // in the order of their routes
		if n := len(known); n == 0 || known[n-1] != u.Unit.Route {
			known = append(known, u.Unit.Route)
		}
	}
	after := ""
	for range maxLooked + len(known)/maxKnown {
		skip := known[:min(len(known), maxKnown)]
		text, args := `SELECT route FROM waybill_outbox FORCE INDEX (waybill_outbox_key) WHERE route > ? AND route NOT IN (''`+
			strings.Repeat(",?", len(skip))+`)`, append([]any{after}, skip...)
		if len(skip) < len(known) {
			text, args = text+` AND route < ?`, append(args, skip[len(skip)-1])
		}
		found, err := w.one(ctx, []any{&after}, text+` ORDER BY route LIMIT 1`, args...)
		switch {
		case err != nil:
			return err
		case !found && len(skip) == len(known):
			return nil
		case !found:
			after, known = skip[len(skip)-1].(string), known[len(skip):]
			continue
		}
		due, err := w.one(ctx, []any{&after}, dueOnSQL, after, w.now)
		if err != nil {
			return err
		}
		if due {
			out.Unserved = append(out.Unserved, after)
		}
		if len(out.Unserved) == maxUnserved {
			return nil
		}
	}
	return nil
}

// members fills in the members. Missing is a presence without its lock, if the member has renewed since the start of
// the server, which loses all locks. That time is known to the second: a member that is missed wrongly renews.
func (w *work) members(ctx context.Context, out *core.Roster) (err error) {
	var renewed []int64
	out.Members, err = collect(ctx, w.q, func(rows *sql.Rows) (m core.Member, err error) {
		var lease, at int64
		var serves []byte
		if err = rows.Scan(&m.Session, &m.Name, &m.Beat, &lease, &m.Handlers, &m.Free, &m.Presence, &m.Flag, &serves, &at, &m.Missing); err == nil {
			err = json.Unmarshal(serves, &m.Serves)
		}
		m.Lease, renewed = duration(lease), append(renewed, at)
		return m, err
	}, `SELECT session, name, beat, lease, handlers, free, presence, flag, serves, renewed_at,
		presence <> 0 AND IS_USED_LOCK(CONCAT('waybill:', presence)) IS NULL FROM waybill_outbox_members ORDER BY session`)
	if err != nil || !slices.ContainsFunc(out.Members, func(m core.Member) bool { return m.Missing }) {
		return err
	}
	var name string
	var uptime int64
	_, err = w.one(ctx, []any{&name, &uptime}, `SHOW GLOBAL STATUS LIKE 'Uptime'`)
	for i := range out.Members {
		out.Members[i].Missing = out.Members[i].Missing && renewed[i] >= (w.now/1e6-uptime)*1e6
	}
	return err
}
