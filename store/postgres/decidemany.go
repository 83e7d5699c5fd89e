package postgres

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

var _ admin.Terminator = (*Outbox)(nil)

const (
	// These keep partitions without an owner as they are until the transaction ends; see keepUnservedSQL.
	keepRoutesUnservedSQL = `
INSERT INTO {routes} (route) SELECT r FROM unnest($1::text[]) r
WHERE NOT EXISTS (SELECT FROM {routes} ro WHERE ro.route = r) AND EXISTS (SELECT FROM {outbox} o WHERE o.route = r)
ORDER BY 1 ON CONFLICT DO NOTHING`
	keepRoutesSQL     = `SELECT FROM {routes} ro WHERE ro.route = ANY ($1::text[]) ORDER BY ro.route FOR SHARE`
	keepPartitionsSQL = `
SELECT FROM {partitions} un WHERE un.route = ANY ($1::text[]) AND un.owner = 0 ORDER BY un.route, un.from_slot FOR SHARE`

	// decideRecordsSQL ends rows, or tells their owners to, and answers with their numbers and fates.
	//
	//	f  the rows; free: no member can have it out. A decision with a number that is not told is over
	//	l  those that can be ended here, locked in the order of sequences
	//	u  their end; d, earlier decisions about them, go; and c, notices for owners
	decideRecordsSQL = `
WITH t AS MATERIALIZED (
    SELECT t.*, (t.number IN (SELECT c.number FROM {notices} c WHERE c.number = ANY ($4))) IS TRUE AS told
    FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[]) WITH ORDINALITY AS t(route, seq, id, number, n)
), f AS MATERIALIZED (
    SELECT t.n, t.number, o.* FROM t CROSS JOIN LATERAL (
        SELECT ` + foundSQL + `, e.owned, o.reason, o.settled_at IS NULL AS live,
            NOT ` + liveHoldSQL + ` AND (o.due_at IS NOT NULL OR o.cancellable OR NOT e.owned) AS free
        FROM {outbox} o CROSS JOIN LATERAL (
            SELECT EXISTS (SELECT FROM {partitions} un WHERE un.route = o.route AND (un.slots >> o.slot::int) & '1' = 1 AND un.owner <> 0) AS owned
        ) e
        WHERE o.route = t.route AND o.seq = t.seq AND o.id = t.id LIMIT 1
    ) o WHERE t.number = 0 OR t.told OR NOT o.live
), l AS MATERIALIZED (
    SELECT f.* FROM (SELECT f.* FROM f WHERE f.live AND f.free ORDER BY f.seq) f CROSS JOIN LATERAL (
        SELECT FROM {outbox} o
        WHERE o.route = f.route AND o.seq = f.seq AND o.version = f.version AND o.hold = f.hold AND o.settled_at IS NULL
        FOR UPDATE SKIP LOCKED
    ) o
), u AS (
    UPDATE {outbox} o
    SET state = {abandoned}, reason = $5::text, due_at = NULL, retry = false, blocks = false, settled_at = statement_timestamp(),
        hold = 0, held_since = NULL, version = o.version + 1, maybe_sent = o.maybe_sent OR o.hold <> 0 OR ` + carefulSQL + `
    FROM l WHERE o.route = l.route AND o.seq = l.seq RETURNING o.route, o.seq, o.id
), d AS (
    ` + undecideSQL + `
), k AS (
    INSERT INTO {notices} (kind, route, slot, slots, key, id, seq)
    SELECT DISTINCT ON (l.route, l.key) {tell_key}, l.route, l.slot, 1::bigint << l.slot::int, l.key, l.id, l.seq
    FROM l WHERE l.tell AND l.owned ORDER BY l.route, l.key, l.seq
    RETURNING route
), c AS (
    INSERT INTO {notices} (kind, route, slot, slots, key, id, seq, reason)
    SELECT {tell_decide}, f.route, f.slot, 1::bigint << f.slot::int, f.key, f.id, f.seq, $5
    FROM f WHERE f.live AND NOT f.free AND f.number = 0 ORDER BY f.seq
    RETURNING number, route, seq
), x AS (
    SELECT count(pg_notify({channel}, x.route)) FROM (SELECT k.route FROM k UNION SELECT c.route FROM c) x WHERE $6::boolean
)
SELECT coalesce(c.number, t.number), CASE
    WHEN l.n IS NOT NULL OR NOT f.live AND f.reason = $5 THEN $7::int
    WHEN f.live AND f.free THEN $8::int
    WHEN f.live THEN $9::int
    ELSE $10::int END, x.count
FROM t CROSS JOIN x LEFT JOIN f ON f.n = t.n LEFT JOIN l ON l.n = t.n LEFT JOIN c ON c.route = f.route AND c.seq = f.seq
ORDER BY t.n`
)

type decideRecordsStatements struct{ keepUnserved, keepRoutes, keepPartitions, decide string }

func newDecideRecordsStatements(n schema.Names) decideRecordsStatements {
	return decideRecordsStatements{
		keepUnserved: n.SQL(keepRoutesUnservedSQL), keepRoutes: n.SQL(keepRoutesSQL), keepPartitions: n.SQL(keepPartitionsSQL),
		decide: n.SQL(decideRecordsSQL),
	}
}

// DecideRecords ends records, or tells their owners to, in one transaction of four statements; see [admin.Terminator].
// It passes over rows that another transaction has locked at this moment. Owners that sleep are woken, unless
// Options.DisableNotify. The role needs the grants of an operator.
func (o *Outbox) DecideRecords(ctx context.Context, req admin.DecideRequest) ([]admin.Decision, error) {
	asked, err := admin.CheckDecideRecords(req)
	if err != nil || len(asked) == 0 {
		return nil, err
	}
	n := len(asked)
	routes, seqs, ids, numbers := make([]string, n), make([]int64, n), make([]string, n), make([]int64, n)
	for i, d := range asked {
		routes[i], seqs[i], ids[i], numbers[i] = d.Route, d.Seq, d.ID, d.Number
	}
	distinct := slices.Compact(slices.Sorted(slices.Values(routes)))
	var out []admin.Decision
	err = o.transact(ctx, "decide records", writeSQL, func(b *batch) {
		out = make([]admin.Decision, 0, n)
		b.Queue(b.sql.decideRecords.keepUnserved, distinct)
		b.Queue(b.sql.decideRecords.keepRoutes, distinct)
		b.Queue(b.sql.decideRecords.keepPartitions, distinct)
		b.each(func(rows pgx.Rows) error {
			d := asked[len(out)]
			err := rows.Scan(&d.Number, &d.Result, nil)
			out = append(out, d)
			return err
		}, b.sql.decideRecords.decide, routes, seqs, ids, numbers, string(req.Reason), !o.opts.DisableNotify,
			int(admin.DecisionCarriedOut), int(admin.DecisionLocked), int(admin.DecisionPending), int(admin.DecisionSuperseded))
	})
	if err != nil {
		return nil, err
	}
	o.waiter.Wake()
	return out, nil
}
