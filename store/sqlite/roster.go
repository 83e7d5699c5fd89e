package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/waybill-go/waybill/core"
)

// Relays ask for the roster all the time, so it must not depend on the number of records. The routes of the outbox are
// found by a skip through an index: from each route to the next greater one.

// maxUnserved bounds Roster.Unserved.
const maxUnserved = 100

const (
	membersText = `SELECT session, name, beat, lease, handlers, free, presence, flag, serves FROM waybill_outbox_members ORDER BY session`
	unitsText   = `SELECT route, from_slot, to_slot, owner, term, low, careful FROM waybill_outbox_units ORDER BY route, from_slot`

	// unservedText goes from route to route.
	unservedText = `WITH RECURSIVE n(route) AS (
			SELECT min(r.route) FROM waybill_outbox r INDEXED BY waybill_outbox_id
			UNION ALL
				SELECT (SELECT min(r.route) FROM waybill_outbox r INDEXED BY waybill_outbox_id WHERE r.route > n.route)
				FROM n
				WHERE n.route IS NOT NULL)
		SELECT n.route FROM n WHERE n.route IS NOT NULL AND NOT EXISTS (SELECT 1 FROM waybill_outbox_units u WHERE u.route = n.route) AND (
			EXISTS (SELECT 1
				FROM waybill_outbox r INDEXED BY waybill_outbox_ready
				WHERE r.route = n.route AND r.due_at IS NULL AND r.settled_at IS NULL)
			OR EXISTS (SELECT 1
				FROM waybill_outbox r INDEXED BY waybill_outbox_timer
				WHERE r.route = n.route AND r.due_at IS NOT NULL AND r.state = {pending} AND r.due_at <= ?1)
			OR EXISTS (SELECT 1
				FROM waybill_outbox r INDEXED BY waybill_outbox_retry
				WHERE r.route = n.route AND r.state = {failed} AND r.due_at <= ?1))
		LIMIT ?2`

	toldText = `SELECT 1 FROM waybill_outbox_control INDEXED BY waybill_outbox_control_route WHERE route = ?1 LIMIT 1`
)

// roster returns the members, and the units with their owners.
func (w *work) roster(ctx context.Context, self core.Session) (out core.Roster, err error) {
	if out.Epoch, err = w.epoch(ctx); err != nil {
		return out, err
	}
	if out.Members, err = w.members(ctx); err != nil {
		return out, err
	}
	for i := range out.Members {
		out.Known = out.Known || self != 0 && out.Members[i].Session == self
	}
	out.Units, err = w.units(ctx)
	return out, err
}

// beside fills in the routes without units that have due records, and whether there is something to read on serves.
func (w *work) beside(ctx context.Context, out *core.Roster, serves []core.Serving) error {
	err := w.each(ctx, func(rows *sql.Rows) (bool, error) {
		var route string
		err := rows.Scan(&route)
		out.Unserved = append(out.Unserved, route)
		return true, err
	}, unservedText, w.now, maxUnserved)
	if err != nil {
		return err
	}
	out.Told, err = w.told(ctx, serves)
	return err
}

// told reports whether there are control records on one of the routes.
func (w *work) told(ctx context.Context, serves []core.Serving) (bool, error) {
	var one int
	some, err := w.one(ctx, []any{&one}, anyControlText)
	if err != nil || !some {
		return false, err
	}
	for _, sv := range serves {
		if found, err := w.one(ctx, []any{&one}, toldText, sv.Route); err != nil || found {
			return found, err
		}
	}
	return false, nil
}

func (w *work) members(ctx context.Context) (out []core.Member, err error) {
	err = w.each(ctx, func(rows *sql.Rows) (bool, error) {
		var m core.Member
		var lease int64
		var serves string
		if err := rows.Scan(
			(*int64)(&m.Session), &m.Name, &m.Beat, &lease, &m.Handlers, &m.Free, &m.Presence, &m.Flag, &serves,
		); err != nil {
			return false, err
		}
		m.Lease = duration(lease)
		if m.Serves, err = decodeServes(serves); err != nil {
			return false, misconfigured("meet", fmt.Errorf("column serves of %soutbox_members holds a foreign value: "+
				"delete the row (%w)", w.s.opts.Prefix, err))
		}
		out = append(out, m)
		return true, nil
	}, membersText)
	return out, err
}

func (w *work) units(ctx context.Context) (out []core.OwnedUnit, err error) {
	err = w.each(ctx, func(rows *sql.Rows) (bool, error) {
		var u core.OwnedUnit
		err := rows.Scan(&u.Unit.Route, &u.Unit.From, &u.Unit.To, (*int64)(&u.Owner), &u.Term, &u.Low, &u.Careful)
		out = append(out, u)
		return true, err
	}, unitsText)
	return out, err
}
