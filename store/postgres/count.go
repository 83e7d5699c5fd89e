package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// countExact is how many rows of a route are counted; beyond that the planner's estimate is used.
const countExact = 10_000

// countSQL counts, route by route, what is due, what waits, and what was abandoned, each up to a bound. Beyond it the
// sizes of the table and of the partial indexes in pg_class, as of the last vacuum or analyze, less what was counted,
// are the estimate; routes that share one share it by how often the statistics say that they occur.
const countSQL = `
WITH RECURSIVE ` + allRoutesSQL + `, rows AS (
    SELECT r.route, x.* FROM routes r CROSS JOIN LATERAL (
        (SELECT 'ready' AS part, ` + stateSQL + ` AS state, '' AS reason, o.ready_since FROM {outbox} o
            WHERE o.route = r.route AND o.seq > 0 AND o.settled_at IS NULL AND o.due_at IS NULL ORDER BY o.seq LIMIT $1)
        UNION ALL
        (SELECT 'due', o.state, '', o.ready_since FROM {outbox} o
            WHERE o.route = r.route AND o.due_at IS NOT NULL AND NOT o.retry AND o.settled_at IS NULL ORDER BY o.due_at LIMIT $1)
        UNION ALL
        (SELECT 'retry', ` + stateSQL + `, '', o.ready_since FROM {outbox} o WHERE o.route = r.route AND o.retry ORDER BY o.due_at LIMIT $1)
        UNION ALL
        (SELECT 'abandoned', o.state, o.reason, o.ready_since FROM {outbox} o WHERE o.route = r.route AND o.reason <> '' ORDER BY o.seq LIMIT $1)
    ) x
), parts AS (
    SELECT route, part, state, reason, count(*) AS n, min(ready_since) AS oldest, sum(count(*)) OVER (PARTITION BY route, part) AS seen
    FROM rows GROUP BY 1, 2, 3, 4
), often AS (
    SELECT f.route, f.freq
    FROM pg_stats s CROSS JOIN LATERAL unnest(s.most_common_vals::text::text[], s.most_common_freqs) AS f(route, freq)
    WHERE s.schemaname = $2 AND s.tablename = $3 AND s.attname = 'route'
), sizes AS (
    SELECT v.part, CASE WHEN v.part = 'ready' THEN c.reltuples - coalesce((
            SELECT sum(greatest(i.reltuples, 0)) FROM pg_class i WHERE i.oid IN (to_regclass($4), to_regclass($5), to_regclass($6))
        ), 0) ELSE c.reltuples END AS n
    FROM (VALUES ('ready', to_regclass($7)), ('due', to_regclass($4)), ('retry', to_regclass($5)), ('abandoned', to_regclass($8)))
         AS v(part, oid)
    LEFT JOIN pg_class c ON c.oid = v.oid
), big AS (
    SELECT b.route, b.part, b.seen, greatest(z.n - coalesce((SELECT sum(x.n) FROM parts x WHERE x.part = b.part AND x.seen < $1), 0), 0)
        * coalesce(f.freq, 0.001) / sum(coalesce(f.freq, 0.001)) OVER (PARTITION BY b.part) AS total
    FROM (SELECT DISTINCT route, part, seen FROM parts WHERE seen >= $1) b
    LEFT JOIN often f ON f.route = b.route
    LEFT JOIN sizes z ON z.part = b.part
)
SELECT p.route, p.state, p.reason, sum(CASE WHEN b.route IS NULL THEN p.n ELSE p.n * greatest(b.seen, b.total) / b.seen END)::bigint,
       bool_or(b.route IS NOT NULL), coalesce((extract(epoch FROM clock_timestamp() - min(p.oldest)) * 1000000)::bigint, 0)
FROM parts p LEFT JOIN big b ON b.route = p.route AND b.part = p.part
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`

// Counts returns the numbers of records by route and state, and of abandoned ones by reason. It looks at no more than
// 10,000 live rows of a route in each of three indexes; a larger number is an estimate, from the time of the latest
// vacuum or analyze, and says so. Oldest is that of the rows it looked at, the first by sequence. Published rows that
// Options.Retention keeps are not counted.
func (o *Outbox) Counts(ctx context.Context) ([]admin.Count, error) {
	var counts []admin.Count
	in := func(suffix string) string { return pgx.Identifier{o.names.Schema, o.names.Outbox + suffix}.Sanitize() }
	err := o.transact(ctx, "count", readSQL, func(b *batch) {
		counts = nil
		b.each(func(rows pgx.Rows) error {
			var c admin.Count
			var state int16
			var age int64
			err := rows.Scan(&c.Route, &state, &c.Reason, &c.N, &c.Estimated, &age)
			c.State, c.Oldest = core.State(state), max(time.Duration(age)*time.Microsecond, 0)
			counts = append(counts, c)
			return err
		}, b.sql.admin.count, countExact+1, o.names.Schema, o.names.Outbox,
			in("_due"), in("_retry"), in("_settled"), in(""), in("_abandoned"))
	})
	return counts, err
}
