package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/waybill-go/waybill/core"
)

// Relays ask for the membership all the time, so it must not depend on the number of records.

const (
	membersText    = `SELECT session, name, heartbeats, lease, capacity, free_capacity, presence, suspected, routes FROM waybill_outbox_members ORDER BY session`
	partitionsText = `SELECT route, from_slot, to_slot, owner, term, read_after, uncertain_up_to FROM waybill_outbox_partitions ORDER BY route, from_slot`

	noticeOnText = `SELECT 1 FROM waybill_outbox_notices INDEXED BY waybill_outbox_notices_route WHERE route = ?1 LIMIT 1`
)

// membership returns the members, and the partitions with their owners.
func (w *work) membership(ctx context.Context, self core.Session) (out core.Membership, err error) {
	if out.StoreEpoch, err = w.epoch(ctx); err != nil {
		return out, err
	}
	if out.Members, err = w.members(ctx); err != nil {
		return out, err
	}
	for i := range out.Members {
		out.IsMember = out.IsMember || self != 0 && out.Members[i].Session == self
	}
	out.Partitions, err = w.partitions(ctx)
	return out, err
}

// hasNotices reports whether there are notices on one of the routes.
func (w *work) hasNotices(ctx context.Context, served []core.ServedRoute) (bool, error) {
	var one int
	some, err := w.one(ctx, []any{&one}, anyNoticeText)
	if err != nil || !some {
		return false, err
	}
	for _, sv := range served {
		if found, err := w.one(ctx, []any{&one}, noticeOnText, sv.Route); err != nil || found {
			return found, err
		}
	}
	return false, nil
}

func (w *work) members(ctx context.Context) (out []core.Member, err error) {
	err = w.each(ctx, func(rows *sql.Rows) (bool, error) {
		var m core.Member
		var lease int64
		var routes string
		if err := rows.Scan(
			(*int64)(&m.Session), &m.Name, &m.Heartbeats, &lease, &m.Capacity, &m.FreeCapacity, &m.Presence, &m.Suspected, &routes,
		); err != nil {
			return false, err
		}
		m.Lease = duration(lease)
		if m.Routes, err = decodeRoutes(routes); err != nil {
			return false, misconfigured("heartbeat", fmt.Errorf("column routes of %soutbox_members holds a foreign value: "+
				"delete the row (%w)", w.s.opts.Prefix, err))
		}
		out = append(out, m)
		return true, nil
	}, membersText)
	return out, err
}

func (w *work) partitions(ctx context.Context) (out []core.PartitionState, err error) {
	err = w.each(ctx, func(rows *sql.Rows) (bool, error) {
		var u core.PartitionState
		err := rows.Scan(&u.Partition.Route, &u.Partition.From, &u.Partition.To, (*int64)(&u.Owner), &u.Term, &u.ReadAfter, &u.MaybeOutUpTo)
		out = append(out, u)
		return true, err
	}, partitionsText)
	return out, err
}
