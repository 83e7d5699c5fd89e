package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
)

// A redrive puts rows back below the place up to which their owners have read. So the same transaction writes a notice
// for each key, or for each record, or for the route if there are many records: the owner reads again from there.

var _ admin.Redriver = (*Outbox)(nil)

// requeueSQL puts a row back: ready at its place. Its owner learns of it by a notice.
const requeueSQL = `
    state = {pending}, due_at = NULL, retry = false, blocks = false, settled_at = NULL, hold = 0, held_since = NULL,
    version = o.version + 1, maybe_sent = o.maybe_sent OR o.crashes > 0, attempts = 0, crashes = 0, deliveries = 0, reason = '',
    last_error = '', last_error_at = NULL,
    expires_at = CASE WHEN o.expires_at <= statement_timestamp() THEN NULL ELSE o.expires_at END`

// undecideSQL deletes the decisions about the rows u that no member has carried out.
const undecideSQL = `DELETE FROM {notices} c WHERE c.kind = {tell_decide} AND ((c.route, c.seq, c.id) IN (SELECT u.route, u.seq, u.id FROM u)) IS TRUE`

// notifySQL, with a condition behind it, wakes relays that sleep.
const notifySQL = `(SELECT count(pg_notify({channel}, x.route)) FROM (SELECT DISTINCT u.route FROM u) x WHERE `

// takesSQL are the rows that a redrive may select, $13: cancelled ones too.
const takesSQL = `(o.state = {failed} AND o.settled_at IS NULL AND NOT ` + liveHoldSQL + `
    OR o.state = {abandoned} AND ($13::boolean OR o.reason NOT IN {cancelled_or_replaced}))`

// tellFromSQL is from how many rows of a route without a key on a redrive tells the owners of the whole route to read
// again, instead of those of each row.
const tellFromSQL = "100"

// redriveSQL puts rows back that a walk finds. Unless it is a dry run it locks them in the order of sequences, and
// passes over those that another transaction has locked at this moment.
//
//	l  the rows, as they are once they are locked, with why they are refused
//	v  the same; of several rows with one dedupe key only the first can live
//	u  the change, and c, what their owners are told
//	d  what was decided about the rows before is void
func redriveSQL(w walk, dry bool) string {
	lock := `FOR NO KEY UPDATE SKIP LOCKED`
	u := `UPDATE {outbox} o SET` + requeueSQL + `, body = coalesce($18::bytea, o.body),
        attrs = CASE WHEN $19::text = '' THEN o.attrs ELSE jsonb_set(coalesce(o.attrs::jsonb, '{}'), ARRAY['headers'],
            coalesce(o.attrs::jsonb -> 'headers', '{}') || jsonb_build_object('` + rules.RepairHeader + `', $19::text))::json END
    FROM v WHERE o.route = v.route AND o.seq = v.seq AND v.cause = '' AND ` + takesSQL + `
    RETURNING o.route, o.seq, o.id, o.key, o.slot`
	if dry {
		lock, u = oneRow, `SELECT o.route, o.seq, o.id, o.key, o.slot FROM {outbox} o WHERE $18::bytea IS NULL AND $19::text = '' AND false`
	}
	return w.sql(takesSQL+` AND `+matchSQL, true) + `, l AS MATERIALIZED (
    SELECT o.* FROM (SELECT p.* FROM p ORDER BY p.seq) p CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.topic, o.dedupe_key, CASE
            WHEN o.dedupe_key <> '' AND o.state = {abandoned} AND EXISTS (
                SELECT FROM {outbox} d
                WHERE d.route = o.route AND d.topic = o.topic
                  AND d.dedupe_key = o.dedupe_key AND d.dedupe_key <> '' AND d.settled_at IS NULL
            ) THEN '` + admin.RefusedDuplicate + `'
            WHEN $14::boolean THEN ''
            WHEN o.expires_at <= statement_timestamp() THEN '` + admin.RefusedExpired + `'
            WHEN $15::bigint > 0 AND o.ready_since < statement_timestamp() - $15::bigint::float8 * interval '1 microsecond'
            THEN '` + admin.RefusedInboxRetention + `'
            WHEN o.state = {abandoned} AND o.key <> '' AND NOT ($16::boolean AND o.reason NOT IN {unblocking}) AND o.seq < {last}
            THEN '` + admin.RefusedOrder + `'
            ELSE '' END AS cause
        FROM {outbox} o WHERE o.route = p.route AND o.seq = p.seq AND ` + takesSQL + ` ` + lock + `
    ) o
), v AS MATERIALIZED (
    SELECT l.route, l.seq, CASE WHEN l.cause = '' AND l.dedupe_key <> '' AND row_number() OVER (
            PARTITION BY l.cause, l.dedupe_key, l.topic, l.route ORDER BY l.seq
        ) > 1 THEN '` + admin.RefusedDuplicate + `' ELSE l.cause END AS cause
    FROM l
), u AS (` + u + `), d AS (
    ` + undecideSQL + `
), many AS MATERIALIZED (
    SELECT u.route, min(u.seq) AS seq FROM u WHERE u.key = '' GROUP BY u.route HAVING count(*) > ` + tellFromSQL + `
), c AS (
    INSERT INTO {notices} (kind, route, slot, slots, key, id, seq)
    (SELECT DISTINCT ON (u.route, u.key) {tell_key}, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq
     FROM u WHERE u.key <> '' ORDER BY u.route, u.key, u.seq)
    UNION ALL
    SELECT {tell_record}, u.route, u.slot, 1::bigint << u.slot::int, '', u.id, u.seq
    FROM u WHERE u.key = '' AND u.route NOT IN (SELECT many.route FROM many)
    UNION ALL
    SELECT {tell_from}, many.route, 0, -1, '', '', many.seq FROM many
)
SELECT n.next, coalesce(v.cause, ''), count(v.seq), ` + notifySQL + `$17::boolean)
FROM (SELECT ` + onSQL + ` AS next) n LEFT JOIN v ON true GROUP BY 1, 2`
}

// Redrive puts failed and abandoned records back, in one bounded step; see [admin.Redriver]. It finds them as List
// does. It never touches what a relay holds, and passes over rows that another transaction has locked at this moment:
// run it again. The relays that own the records are told, and those that sleep are woken, unless Options.DisableNotify.
func (o *Outbox) Redrive(ctx context.Context, req admin.RedriveRequest) (admin.Redriven, error) {
	req, err := admin.CheckRedrive(req, o.opts.Limits)
	if err != nil {
		return admin.Redriven{}, err
	}
	mark, err := rules.RepairMark(ctx, o, &req)
	if err != nil {
		return admin.Redriven{}, err
	}
	walk := walkOf(&req.Filter)
	sql := o.sql.admin.redrive[walk]
	if req.DryRun {
		sql = o.sql.admin.dryRun[walk]
	}
	args := append(filterArgs(&req.Filter, req.Page), req.Takes(core.StateAbandoned, waybill.ReasonCancelled), req.Force,
		req.InboxRetention.Microseconds(), req.BlockAfterAbandon, !o.opts.DisableNotify && !req.DryRun, req.Body, mark)
	var out admin.Redriven
	err = o.again(func() error {
		return o.transact(ctx, "redrive", writeSQL, func(b *batch) {
			out = admin.Redriven{}
			b.each(func(rows pgx.Rows) error {
				var cause string
				var n int
				err := rows.Scan(&out.Next, &cause, &n, nil)
				for range n {
					out.Count(cause)
				}
				return err
			}, sql, args...)
		})
	})
	if err == nil && out.Changed > 0 && !req.DryRun {
		o.waiter.Wake()
	}
	return out, err
}

// again runs fn anew if a message was staged at the same moment with the dedupe key of one that is put back.
func (o *Outbox) again(fn func() error) error {
	for attempt := 1; ; attempt++ {
		err := fn()
		if dberr.SQLState(err) != uniqueViolation || attempt == maxRestarts {
			return err
		}
	}
}
