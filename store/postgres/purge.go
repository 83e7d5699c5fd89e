package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin"
)

var _ admin.Purger = (*Outbox)(nil)

// purgedSQL are the rows that a purge deletes: those that ended, and with $13 those that wait for a time.
const purgedSQL = `(o.settled_at IS NOT NULL OR $13::boolean AND o.due_at IS NOT NULL AND NOT ` + liveHoldSQL + `)`

// purgeRecordsSQL deletes rows that a walk finds. Unless it is a dry run it locks them in the order of sequences, and
// passes over those that another transaction has locked at this moment.
//
//	l  the rows that can be deleted, and where they are: a join by their key may go over the whole table
//	x  the deletion, and c, the notices for the owners of their keys
func purgeRecordsSQL(w walk, dry bool) string {
	lock := `FOR UPDATE SKIP LOCKED`
	x := `DELETE FROM {outbox} o USING l WHERE o.ctid = l.at
    RETURNING o.route, o.seq, o.id, o.key, o.slot, o.key <> '' AND (o.blocks OR o.retry) AS tell`
	if dry {
		lock, x = oneRow, `SELECT l.route, l.seq, '' AS id, '' AS key, 0 AS slot, false AS tell FROM l`
	}
	return w.sql(matchSQL, false) + `, l AS MATERIALIZED (
    SELECT o.* FROM (SELECT p.* FROM p ORDER BY p.seq) p CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.ctid AS at FROM {outbox} o WHERE o.route = p.route AND o.seq = p.seq AND ` + purgedSQL + ` ` + lock + `
    ) o
), x AS (` + x + `), u AS (
    SELECT x.* FROM x WHERE x.tell
), c AS (
    INSERT INTO {notices} (kind, route, slot, slots, key, id, seq)
    SELECT {tell_key}, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq FROM u
)
SELECT ` + onSQL + `, (SELECT count(*) FROM p), (SELECT count(*) FROM x), ` + notifySQL + `$14::boolean)`
}

// PurgeRecords deletes records for good, in one bounded step; see [admin.Purger]. It finds them as List does, and
// passes over rows that another transaction has locked at this moment. The owners of keys that may go on are told, and
// those that sleep are woken, unless Options.DisableNotify. The role needs the grants of an operator.
func (o *Outbox) PurgeRecords(ctx context.Context, req admin.PurgeRequest) (admin.Purged, error) {
	req, err := admin.CheckPurge(req)
	if err != nil {
		return admin.Purged{}, err
	}
	walk := walkOf(&req.Filter)
	sql := o.sql.admin.purge[walk]
	if req.DryRun {
		sql = o.sql.admin.dryPurge[walk]
	}
	args := append(filterArgs(&req.Filter, req.Page), req.Waiting, !o.opts.DisableNotify && !req.DryRun)
	var out admin.Purged
	err = o.transact(ctx, "purge records", writeSQL, func(b *batch) {
		out = admin.Purged{}
		b.each(func(rows pgx.Rows) error { return rows.Scan(&out.Next, &out.Matched, &out.Deleted, nil) }, sql, args...)
	})
	if err != nil {
		return admin.Purged{}, err
	}
	if out.Deleted > 0 && !req.DryRun {
		o.waiter.Wake()
	}
	return out, nil
}
