package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// Of more rows of a route than countExact, countWindows windows of countWindow sequences each are looked at.
const (
	countExact   = 10_000
	countWindows = 1000
	countWindow  = 10
)

// countSQL counts, route by route, the records that are ready, scheduled, waiting for a retry, and abandoned, each up
// to a bound. Beyond it rows are counted in windows that lie all over the sequences of the route, one in each of many
// strata: that needs no statistics of the planner, and moves with each row that is settled. The place of a window in
// its stratum follows the golden ratio, so that it keeps no step with the batches of producers. With two windows'
// deviations of more than 5 % there is no estimate, but a least number; see [rules.Sample]. Scheduled and failed rows
// are seen in the order of their times: if all that were seen are due, all are.
const countSQL = `
WITH RECURSIVE ` + allRoutesSQL + `, rows AS (
    SELECT r.route, x.* FROM routes r CROSS JOIN LATERAL (
        (SELECT 'ready' AS part, ` + stateSQL + ` AS state, '' AS reason, o.ready_since, o.seq, true AS due FROM {outbox} o
            WHERE o.route = r.route AND o.seq > 0 AND o.settled_at IS NULL AND o.due_at IS NULL ORDER BY o.seq LIMIT $1)
        UNION ALL
        (SELECT 'due', o.state, '', o.ready_since, 0, o.due_at <= statement_timestamp() FROM {outbox} o
            WHERE o.route = r.route AND o.due_at IS NOT NULL AND NOT o.retry AND o.settled_at IS NULL ORDER BY o.due_at LIMIT $1)
        UNION ALL
        (SELECT 'retry', ` + stateSQL + `, '', o.ready_since, 0, o.due_at <= statement_timestamp() FROM {outbox} o WHERE o.route = r.route AND o.retry ORDER BY o.due_at LIMIT $1)
        UNION ALL
        (SELECT 'abandoned', o.state, o.reason, o.ready_since, 0, false FROM {outbox} o WHERE o.route = r.route AND o.reason <> '' ORDER BY o.seq LIMIT $1)
    ) x
), parts AS (
    SELECT route, part, state, reason, count(*) AS n, count(*) FILTER (WHERE due AND state <> {processing}) AS due, min(ready_since) AS oldest, sum(count(*)) OVER (PARTITION BY route, part) AS seen,
           max(max(seq)) OVER (PARTITION BY route, part) AS last
    FROM rows GROUP BY 1, 2, 3, 4
), strata AS MATERIALIZED (
    SELECT b.*, greatest((b.high - b.low + $2 - 1) / $2, $3) AS width
    FROM (
        SELECT d.route, d.part, CASE WHEN d.part = 'ready' THEN d.seen ELSE 0 END AS seen, CASE WHEN d.part = 'ready' THEN d.last ELSE
                   (SELECT o.seq FROM {outbox} o WHERE o.route = d.route ORDER BY o.seq LIMIT 1) - 1 END AS low,
               (SELECT o.seq FROM {outbox} o WHERE o.route = d.route ORDER BY o.seq DESC LIMIT 1) AS high
        FROM (SELECT DISTINCT route, part, seen, last FROM parts WHERE seen >= $1) d
    ) b
), windows AS MATERIALIZED (
    SELECT s.route, s.part, s.low + k * s.width + floor((k * 0.6180339887 - floor(k * 0.6180339887)) * (s.width - $3 + 1))::bigint AS low
    FROM strata s CROSS JOIN generate_series(0, $2 - 1) k WHERE s.low + k * s.width < s.high
), big AS (
    SELECT s.route, s.part, s.seen + h.hits * s.width / $3 AS total,
           s.width > $3 AND 2 * sqrt(h.hits + 1) * s.width / $3 > (s.seen + h.hits * s.width / $3) * 0.05 AS vague,
           greatest($1, s.seen + floor((greatest(h.hits::float8 / $3 - 2, 0) + 8 - 4 * sqrt(greatest(h.hits::float8 / $3 - 2, 0) + 4)) * s.width))::bigint - 1 AS fewest
    FROM strata s CROSS JOIN LATERAL (
        SELECT count(*) AS hits FROM windows w CROSS JOIN LATERAL (
            SELECT FROM {outbox} o WHERE o.route = w.route AND o.seq > w.low AND o.seq <= w.low + $3 AND CASE w.part
                WHEN 'ready' THEN o.settled_at IS NULL AND o.due_at IS NULL
                WHEN 'due' THEN o.due_at IS NOT NULL AND NOT o.retry AND o.settled_at IS NULL
                WHEN 'retry' THEN o.retry ELSE o.reason <> '' END
            ORDER BY o.seq LIMIT $3
        ) o WHERE w.route = s.route AND w.part = s.part
    ) h
)
SELECT p.route, p.state, p.reason,
       sum(CASE WHEN b.route IS NULL THEN p.n WHEN b.vague THEN p.n * b.fewest / p.seen ELSE p.n * greatest(b.total, $1) / p.seen END)::bigint,
       sum(CASE WHEN b.route IS NULL OR p.due < p.n THEN p.due WHEN b.vague THEN p.due * b.fewest / p.seen
                ELSE p.due * greatest(b.total, $1) / p.seen END)::bigint,
       bool_or(b.route IS NOT NULL), bool_or(coalesce(b.vague, false)),
       coalesce((extract(epoch FROM clock_timestamp() - min(p.oldest)) * 1000000)::bigint, 0)
FROM parts p LEFT JOIN big b ON b.route = p.route AND b.part = p.part
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`

// Counts returns the numbers of records by route and state, and of abandoned ones by reason. It counts up to 10,000
// live rows of a route in each of three indexes. A larger number is estimated from 10,000 other rows, all over the
// route, or a least number if they tell too little. The estimate is within 5 % if the rows are mixed with others evenly
// or row by row. Where long runs of one route or state take turns at random, it can be 10 % off. Oldest is that of the
// rows it counted, the first by sequence. Published rows that Options.Retention keeps are not counted.
func (o *Outbox) Counts(ctx context.Context) ([]admin.Count, error) {
	var counts []admin.Count
	err := o.transact(ctx, "count", readSQL, func(b *batch) {
		counts = nil
		b.each(func(rows pgx.Rows) error {
			var c admin.Count
			var state int16
			var age int64
			err := rows.Scan(&c.Route, &state, &c.Reason, &c.N, &c.Due, &c.Estimated, &c.AtLeast, &age)
			c.State, c.Oldest = core.State(state), max(time.Duration(age)*time.Microsecond, 0)
			counts = append(counts, c)
			return err
		}, b.sql.admin.count, countExact+1, countWindows, countWindow)
	})
	return counts, err
}
