package sqlite

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

const (
	// renewText joins or renews.
	renewText = `INSERT INTO waybill_outbox_members (session, beat, lease, presence, handlers, free, flag, name, serves,
		joined_at, renewed_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10)
		ON CONFLICT (session) DO UPDATE
			SET beat = ?2, lease = ?3, presence = ?4, handlers = ?5, free = ?6, flag = ?7, name = ?8, serves = ?9,
				renewed_at = ?10`
	flagText = `UPDATE waybill_outbox_members SET flag = 1 WHERE session = ?1`

	keptText  = `DELETE FROM waybill_outbox_routes WHERE route = ?1 RETURNING low, careful, term`
	hintText  = `SELECT low, careful, term FROM waybill_outbox_routes WHERE route = ?1`
	ownerText = `SELECT owner, term FROM waybill_outbox_units WHERE route = ?1 AND from_slot = ?2 AND to_slot = ?3`

	endHoldsText = `UPDATE waybill_outbox
		SET hold = 0, held_since = NULL, maybe_sent = 1, crashes = crashes + ?2, version = version + ?2
		WHERE hold = ?1 AND hold <> 0`
	endText = `DELETE FROM waybill_outbox_members WHERE session = ?1`

	saveUnitText = `INSERT INTO waybill_outbox_units (route, from_slot, to_slot, owner, term, low, careful) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
		ON CONFLICT (route, from_slot) DO UPDATE
			SET owner = excluded.owner, term = excluded.term, low = excluded.low, careful = excluded.careful`
	keepHintText  = `INSERT OR REPLACE INTO waybill_outbox_routes (route, low, careful, term) VALUES (?1, ?2, ?3, ?4)`
	dropUnitsText = `DELETE FROM waybill_outbox_units WHERE route = ?1`
)

// Meet joins, renews or looks, as [rules.Meet] says. A call that only looks takes no lock.
func (s *Store) Meet(ctx context.Context, m core.Meeting) (roster core.Roster, err error) {
	meet := func(w *work) (known bool, err error) {
		if roster, err = w.roster(ctx, m.Self.Session); err != nil {
			return false, err
		}
		known = roster.Known
		if err = rules.Meet(ctx, w, &roster, &m); err != nil {
			return false, err
		}
		return known || roster.Known, w.beside(ctx, &roster, m.Self.Serves)
	}
	if m.Self.Session == 0 {
		err = s.read(ctx, "meet", func(w *work) error {
			_, err := meet(w)
			return err
		})
	} else {
		err = s.write(ctx, "meet", meet)
	}
	if err != nil {
		return core.Roster{}, err
	}
	return roster, nil
}

// Renew is of [rules.Membership].
func (w *work) Renew(ctx context.Context, m *core.Member, _ bool) error {
	serves, err := encodeServes(m.Serves)
	if err != nil {
		return err
	}
	_, err = w.exec(ctx, renewText, int64(m.Session), m.Beat, m.Lease.Microseconds(), m.Presence, m.Handlers, m.Free, m.Flag, m.Name, serves, w.now)
	return err
}

// Flag is of [rules.Membership].
func (w *work) Flag(ctx context.Context, session core.Session) error {
	_, err := w.exec(ctx, flagText, int64(session))
	return err
}

// Kept is of [rules.Membership].
func (w *work) Kept(ctx context.Context, route string) (u core.OwnedUnit, err error) {
	_, err = w.one(ctx, []any{&u.Low, &u.Careful, &u.Term}, keptText, route)
	return u, err
}

// End is of [rules.Membership].
func (w *work) End(ctx context.Context, session core.Session, died bool) (last int64, ok bool, err error) {
	crashes := 0
	if died {
		crashes = 1
		if last, err = w.last(ctx); err != nil {
			return 0, false, err
		}
	}
	if _, err := w.exec(ctx, endHoldsText, int64(session), crashes); err != nil {
		return 0, false, err
	}
	_, err = w.exec(ctx, endText, int64(session))
	return last, true, err
}

// Move is of [rules.Membership]: nobody else writes.
func (*work) Move(context.Context, core.Session, core.Session) (bool, error) { return true, nil }

// Save is of [rules.Membership].
func (w *work) Save(ctx context.Context, units []core.OwnedUnit) error {
	for _, u := range units {
		if _, err := w.exec(ctx, saveUnitText, u.Unit.Route, u.Unit.From, u.Unit.To, int64(u.Owner), u.Term, u.Low, u.Careful); err != nil {
			return err
		}
	}
	return nil
}

// Retire is of [rules.Membership].
func (w *work) Retire(ctx context.Context, kept core.OwnedUnit) error {
	if _, err := w.exec(ctx, keepHintText, kept.Unit.Route, kept.Low, kept.Careful, kept.Term); err != nil {
		return err
	}
	_, err := w.exec(ctx, dropUnitsText, kept.Unit.Route)
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
