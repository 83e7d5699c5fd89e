package sqlite

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/waybill-go/waybill/core"
)

const (
	// renewText joins or renews.
	renewText = `INSERT INTO waybill_outbox_members (session, beat, lease, presence, handlers, free, flag, name, serves,
		joined_at, renewed_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10)
		ON CONFLICT (session) DO UPDATE
			SET beat = ?2, lease = ?3, presence = ?4, handlers = ?5, free = ?6, flag = ?7, name = ?8, serves = ?9,
				renewed_at = ?10`
	beatText = `SELECT beat, presence, flag FROM waybill_outbox_members WHERE session = ?1`
	flagText = `UPDATE waybill_outbox_members SET flag = 1 WHERE session = ?1 AND presence = ?2 AND presence <> 0`

	anyUnitText   = `SELECT 1 FROM waybill_outbox_units WHERE route = ?1 LIMIT 1`
	hintText      = `SELECT low, careful, term FROM waybill_outbox_routes WHERE route = ?1`
	makeUnitText  = `INSERT INTO waybill_outbox_units (route, from_slot, to_slot, low, careful, term) VALUES (?1, ?2, ?3, ?4, ?5, ?6)`
	forgetText    = `DELETE FROM waybill_outbox_routes WHERE route = ?1`
	ownerText     = `SELECT owner, term FROM waybill_outbox_units WHERE route = ?1 AND from_slot = ?2 AND to_slot = ?3`
	moveText      = `UPDATE waybill_outbox_units SET owner = ?3, term = term + 1 WHERE route = ?1 AND from_slot = ?2`
	storeHintText = `UPDATE waybill_outbox_units SET low = ?3, careful = ?4 WHERE route = ?1 AND from_slot = ?2
		AND EXISTS (SELECT 1 FROM waybill_outbox_members WHERE session = ?5 AND beat <= ?6)`
)

// Meet joins, renews or looks, as core.OutboxStore says. A session that is not a member changes nothing. The flags come
// after the moves, and leaving comes last. A call that only looks takes no lock.
func (s *Store) Meet(ctx context.Context, m core.Meeting) (core.Roster, error) {
	var roster core.Roster
	var err error
	if m.Self.Session == 0 {
		err = s.read(ctx, "meet", func(w *work) (err error) {
			roster, err = w.roster(ctx, 0, m.Self.Serves)
			return err
		})
	} else {
		err = s.write(ctx, "meet", func(w *work) (changed bool, err error) {
			if changed, err = w.meet(ctx, &m); err != nil {
				return false, err
			}
			if roster, err = w.roster(ctx, m.Self.Session, m.Self.Serves); err != nil || !changed {
				return changed, err
			}
			if tidied, err := w.tidy(ctx, &roster); err != nil || !tidied {
				return changed, err
			}
			roster, err = w.roster(ctx, m.Self.Session, m.Self.Serves)
			return changed, err
		})
	}
	if err != nil {
		return core.Roster{}, err
	}
	return roster, nil
}

// meet carries out m and reports whether the caller is a member, or was one at the beginning.
func (w *work) meet(ctx context.Context, m *core.Meeting) (known bool, err error) {
	if known, err = w.renew(ctx, m); err != nil || !known {
		return false, err
	}
	for _, sv := range m.Self.Serves {
		if err := w.makeUnits(ctx, sv); err != nil {
			return false, err
		}
	}
	for _, r := range m.Remove {
		if err := w.remove(ctx, r); err != nil {
			return false, err
		}
	}
	for i := range m.Moves {
		if err := w.move(ctx, &m.Self, &m.Moves[i]); err != nil {
			return false, err
		}
	}
	for _, f := range m.Flag {
		if _, err := w.exec(ctx, flagText, int64(f.Session), f.Presence); err != nil {
			return false, err
		}
	}
	if m.Leave {
		err = w.end(ctx, m.Self.Session, false)
	}
	return true, err
}

// renew reports whether the caller is a member. A late renewal, behind a later one, changes nothing: statements of one
// member can be executed in another order than they were sent.
func (w *work) renew(ctx context.Context, m *core.Meeting) (known bool, err error) {
	self := &m.Self
	var beat, presence int64
	var flag bool
	known, err = w.one(ctx, []any{&beat, &presence, &flag}, beatText, int64(self.Session))
	switch {
	case err != nil, known && self.Beat <= beat:
		return known, err
	case !known && (!m.Join || m.Leave):
		return false, nil
	}
	serves, err := encodeServes(self.Serves)
	if err != nil {
		return false, err
	}
	flag = flag && self.Presence == presence
	_, err = w.exec(ctx, renewText,
		int64(self.Session), self.Beat, self.Lease.Microseconds(), self.Presence, self.Handlers, self.Free, flag, self.Name, serves, w.now)
	return err == nil, err
}

// makeUnits makes the units of a route that has none. They begin with the facts that the route kept from its former
// units: without these a take-over would pass records, or trust those that a dead member had out.
func (w *work) makeUnits(ctx context.Context, sv core.Serving) error {
	var one int
	if some, err := w.one(ctx, []any{&one}, anyUnitText, sv.Route); err != nil || some {
		return err
	}
	var low, careful, term int64
	if _, err := w.one(ctx, []any{&low, &careful, &term}, hintText, sv.Route); err != nil {
		return err
	}
	for _, u := range core.SplitRoute(sv.Route, sv.Units) {
		if _, err := w.exec(ctx, makeUnitText, u.Route, u.From, u.To, low, careful, term+1); err != nil {
			return err
		}
	}
	_, err := w.exec(ctx, forgetText, sv.Route)
	return err
}

// remove removes a dead member, if its beat is still the given one.
func (w *work) remove(ctx context.Context, r core.Removal) error {
	var beat, presence int64
	var flag bool
	found, err := w.one(ctx, []any{&beat, &presence, &flag}, beatText, int64(r.Session))
	if err != nil || !found || beat != r.Beat {
		return err
	}
	return w.end(ctx, r.Session, true)
}

// move leaves out moves that do not apply: From is not the owner, the new owner is not a member, or self stores late.
// The members decide from rosters that may be old, so that is no error.
func (w *work) move(ctx context.Context, self *core.Member, m *core.Move) error {
	var owner, term int64
	found, err := w.one(ctx, []any{&owner, &term}, ownerText, m.Unit.Route, m.Unit.From, m.Unit.To)
	if err != nil || !found || core.Session(owner) != m.From {
		return err
	}
	if m.To != 0 {
		if known, _, err := w.member(ctx, m.To); err != nil || !known {
			return err
		}
	}
	switch {
	case m.From != m.To:
		_, err = w.exec(ctx, moveText, m.Unit.Route, m.Unit.From, int64(m.To))
	case m.To != 0:
		_, err = w.exec(ctx, storeHintText, m.Unit.Route, m.Unit.From, m.Low, m.Careful, int64(self.Session), self.Beat)
	}
	return err
}

// serving is a route in column serves.
type serving struct {
	Route  string `json:"route"`
	Units  int    `json:"units"`
	Unable bool   `json:"unable,omitempty"`
}

func encodeServes(list []core.Serving) (string, error) {
	out := make([]serving, len(list))
	for i, sv := range list {
		out[i] = serving(sv)
	}
	text, err := json.Marshal(out)
	return string(text), err
}

func decodeServes(text string) (out []core.Serving, err error) {
	var list []serving
	err = json.Unmarshal([]byte(text), &list)
	for _, sv := range list {
		out = append(out, core.Serving(sv))
	}
	return out, err
}

// duration returns us microseconds; at most 292 years, which is the longest duration there is.
func duration(us int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(min(max(us, -most), most)) * time.Microsecond
}
