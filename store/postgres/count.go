package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
)

// countExact is how many rows of a route are counted; beyond that the planner's estimate is used.
const countExact = 10_000

// countSQL walks from route to route by the index on (route, id), and counts in each of the partial indexes up to a
// bound. Their sizes in pg_class, as of the last vacuum or analyze, less what was counted, are the estimate; routes that
// share one share it by how often the statistics say that they occur.
const countSQL = `
WITH RECURSIVE routes AS (
    (SELECT o.route FROM {outbox} o ORDER BY o.route LIMIT 1)
    UNION ALL
    SELECT (SELECT o.route FROM {outbox} o WHERE o.route > r.route ORDER BY o.route LIMIT 1) FROM routes r WHERE r.route IS NOT NULL
), rows AS (
    SELECT r.route, x.* FROM routes r CROSS JOIN LATERAL (
        (SELECT 'ready' AS part, o.state, o.ready_since FROM {outbox} o
            WHERE o.route = r.route AND o.settled_at IS NULL AND o.due_at IS NULL ORDER BY o.seq + 0 LIMIT $1)
        UNION ALL
        (SELECT 'timer', o.state, o.ready_since FROM {outbox} o
            WHERE o.route = r.route AND o.settled_at IS NULL AND o.due_at IS NOT NULL ORDER BY o.due_at LIMIT $1)
        UNION ALL
        (SELECT 'reason', o.state, o.ready_since FROM {outbox} o WHERE o.route = r.route AND o.reason <> '' LIMIT $1)
    ) x WHERE r.route IS NOT NULL
), parts AS (
    SELECT route, part, state, count(*) AS n, min(ready_since) FILTER (WHERE isfinite(ready_since)) AS oldest, sum(count(*)) OVER (PARTITION BY route, part) AS seen FROM rows GROUP BY 1, 2, 3
), often AS (
    SELECT f.route, f.freq FROM pg_stats s CROSS JOIN LATERAL unnest(s.most_common_vals::text::text[], s.most_common_freqs) AS f(route, freq)
    WHERE s.schemaname = $6 AND s.tablename = $7 AND s.attname = 'route'
), big AS (
    SELECT b.route, b.part, b.seen, greatest(i.reltuples - coalesce((SELECT sum(x.n) FROM parts x WHERE x.part = b.part AND x.seen < $1), 0), 0)
        * coalesce(f.freq, 0.001) / sum(coalesce(f.freq, 0.001)) OVER (PARTITION BY b.part) AS total
    FROM (SELECT DISTINCT route, part, seen FROM parts WHERE seen >= $1) b LEFT JOIN often f ON f.route = b.route
    LEFT JOIN pg_class i ON i.oid = to_regclass($2 || CASE b.part WHEN 'ready' THEN $3 WHEN 'timer' THEN $4 ELSE $5 END)
)
SELECT p.route, p.state, sum(CASE WHEN b.route IS NULL THEN p.n ELSE p.n * greatest(b.seen, b.total) / b.seen END)::bigint,
       bool_or(b.route IS NOT NULL), coalesce((extract(epoch FROM clock_timestamp() - min(p.oldest)) * 1000000)::bigint, 0)
FROM parts p LEFT JOIN big b ON b.route = p.route AND b.part = p.part
GROUP BY p.route, p.state ORDER BY p.route, p.state`

// Counts returns the numbers of records by route and state. It looks at no more than 10,000 live rows of a route in
// each of three indexes; a larger number is an estimate, from the time of the latest vacuum or analyze, and says so.
// Oldest is that of the rows it looked at, the first by sequence. Published rows that Options.Retention keeps are not
// counted.
func (o *Outbox) Counts(ctx context.Context) ([]core.Count, error) {
	if err := o.ready(ctx); err != nil {
		return nil, err
	}
	var counts []core.Count
	err := o.transact(ctx, "count", func(b *pgx.Batch) {
		counts = nil
		bare := func(suffix string) string { return pgx.Identifier{o.names.outbox + suffix}.Sanitize() }
		b.Queue(o.names.sql(countSQL), countExact+1, pgx.Identifier{o.names.schema}.Sanitize()+".", bare("_ready"), bare("_timer"), bare("_reason"), o.names.schema, o.names.outbox).
			Query(func(rows pgx.Rows) error {
				for rows.Next() {
					var c core.Count
					var state int16
					var age int64
					if err := rows.Scan(&c.Route, &state, &c.N, &c.Estimated, &age); err != nil {
						return err
					}
					c.State, c.Oldest = core.State(state), max(time.Duration(age)*time.Microsecond, 0)
					counts = append(counts, c)
				}
				return rows.Err()
			})
	})
	return counts, err
}
