package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

const (
	// countExact bounds the rows of each part of a route that are counted one by one.
	countExact = 10_000
	// countWalk bounds the rows of a route that are passed in search of ready ones, those among them that
	// Options.Retention keeps.
	countWalk = 100_000
)

// The arithmetic of [rules.Sample].
const (
	// placesSQL … endPlacesSQL are the sequences of the samples of routes with low, span and size.
	placesSQL = `SELECT p.route, low + here + 1 + floor((turn - floor(turn)) * (next - here)::float8)::bigint AS seq
    FROM (
        SELECT s.route, s.low, k::float8 * 0.6180339887::float8 AS turn, k * (s.span / s.size) + k * (s.span % s.size) / s.size AS here,
               (k + 1) * (s.span / s.size) + (k + 1) * (s.span % s.size) / s.size AS next`
	endPlacesSQL = ` s CROSS JOIN LATERAL generate_series(0, s.size - 1) k
    ) p`
	// sumSQL … endSumSQL are the sums of kinds, of which n were seen, behind the sample or not, and hits in it.
	sumSQL = `SELECT x.*, CASE WHEN vague THEN greatest(apart + floor((greatest(h - '2', '0') + '8' - '4' * sqrt(greatest(h - '2', '0') + '4')) * width)::bigint, least, 1) - 1
                     ELSE greatest(apart + floor(h * width)::bigint, least) END AS sum
    FROM (
        SELECT x.*, width > '1' AND '2' * sqrt(h + '1') * width > (apart::float8 + floor(h * width)) * 0.05::float8 AS vague
        FROM (
            SELECT x.*, hits::float8 AS h, CASE WHEN behind THEN coalesce(n, 0) ELSE 0 END AS apart,
                   CASE WHEN behind THEN coalesce(n, 0) + hits ELSE greatest(n, hits) END AS least
            FROM`
	endSumSQL = ` x
        ) x
    ) x`
)

// countSQL counts, route by route, the records that are ready, scheduled, waiting for a retry, and abandoned, each up
// to a bound. Beyond it the rows of each state and reason are counted among single sequences that lie all over the
// route: that needs no statistics of the planner, and moves with each row that is settled. All parts of a route share
// one sample. Ready and abandoned rows are seen by their sequences, and the sample adds the rows behind; the others are
// seen in the order of their times: if all that were seen are due, all are. Held rows lie at the beginning of a route,
// and are few as a rule: their own index counts them.
//
// The search for ready rows begins at a floor, behind which a new owner would read: no row before it is ready, but for
// some that are held. So neither kept rows nor dead ones are passed. If a record that waits holds the floor back, the
// search ends after $3 rows, and a sample stands for the rows behind them.
//
//	floors  the floor of each route
//	holds   the held rows, up to the bound
//	rows    the first rows of each part, up to the bound
//	ends    the routes whose search for ready rows ended before the bound, and where
//	kinds   their numbers by state and reason
//	big     the parts that have reached a bound; last is the last sequence seen, null if they are seen by time
//	strata  for each route with such a part: its sequences, in size strata of a width
//	places  a sequence in each stratum
//	hits    the rows at these places, behind last, by state and reason
//	sums    the estimates of the big parts
const countSQL = `
WITH RECURSIVE ` + allRoutesSQL + `, floors AS MATERIALIZED (
    SELECT r.route, greatest(least(
        coalesce((SELECT min(un.read_after) FROM {partitions} un WHERE un.route = r.route), (SELECT ro.read_after FROM {routes} ro WHERE ro.route = r.route), 0),
        (SELECT min(c.seq) - 1 FROM {notices} c WHERE c.route = r.route AND c.seq > 0)), 0) AS floor
    FROM routes r
), holds AS MATERIALIZED (
    SELECT o.route, CASE WHEN o.retry THEN 'retry' ELSE 'ready' END AS part, o.hold, ` + stateSQL + ` AS state, o.ready_since, o.seq,
           o.seq > 0 AND o.settled_at IS NULL AND o.due_at IS NULL AS ready
    FROM {outbox} o WHERE o.hold <> 0 ORDER BY o.hold LIMIT $1
), rows AS (
    SELECT r.route, x.* FROM floors r CROSS JOIN LATERAL (
        (SELECT 'ready' AS part, ` + stateSQL + ` AS state, '' AS reason, o.ready_since, o.seq, true AS due FROM (
                SELECT * FROM {outbox} o WHERE o.route = r.route AND o.seq > r.floor ORDER BY o.seq LIMIT $3
            ) o WHERE o.settled_at IS NULL AND o.due_at IS NULL LIMIT $1)
        UNION ALL
        (SELECT 'ready', h.state, '', h.ready_since, h.seq, true FROM holds h WHERE h.route = r.route AND h.ready AND h.seq <= r.floor)
        UNION ALL
        (SELECT 'due', o.state, '', o.ready_since, NULL, o.due_at <= statement_timestamp() FROM {outbox} o
            WHERE o.route = r.route AND o.due_at IS NOT NULL AND NOT o.retry AND o.settled_at IS NULL ORDER BY o.due_at LIMIT $1)
        UNION ALL
        (SELECT 'retry', ` + stateSQL + `, '', o.ready_since, NULL, o.due_at <= statement_timestamp() FROM {outbox} o WHERE o.route = r.route AND o.retry ORDER BY o.due_at LIMIT $1)
        UNION ALL
        (SELECT 'abandoned', o.state, o.reason, o.ready_since, o.seq, false FROM {outbox} o WHERE o.route = r.route AND o.reason <> '' ORDER BY o.seq LIMIT $1)
    ) x
), kinds AS (
    SELECT route, part, state, reason, count(*) AS n, count(*) FILTER (WHERE due AND state <> {processing}) AS due, min(ready_since) AS oldest
    FROM rows GROUP BY 1, 2, 3, 4
), full_parts AS MATERIALIZED (
    SELECT route, part, max(seq) AS last FROM rows GROUP BY 1, 2 HAVING count(*) >= $1
), ends AS MATERIALIZED (
    SELECT f.route, e.seq FROM floors f CROSS JOIN LATERAL (
        SELECT o.seq FROM {outbox} o WHERE o.route = f.route AND o.seq > f.floor ORDER BY o.seq OFFSET $3 - 1 LIMIT 1
    ) e WHERE NOT EXISTS (SELECT FROM full_parts b WHERE b.route = f.route AND b.part = 'ready')
), big AS MATERIALIZED (
    SELECT * FROM full_parts UNION ALL SELECT route, 'ready', seq FROM ends
), strata AS MATERIALIZED (
    SELECT b.*, b.high - b.low AS span, least(b.high - b.low, $2) AS size, (b.high - b.low)::float8 / greatest(least(b.high - b.low, $2), 1)::float8 AS width
    FROM (
        SELECT d.route, (SELECT o.seq FROM {outbox} o WHERE o.route = d.route ORDER BY o.seq LIMIT 1) - 1 AS low,
               (SELECT o.seq FROM {outbox} o WHERE o.route = d.route ORDER BY o.seq DESC LIMIT 1) AS high
        FROM (SELECT DISTINCT route FROM big) d
    ) b
), places AS MATERIALIZED (
    ` + placesSQL + ` FROM strata` + endPlacesSQL + `
), hits AS (
    SELECT p.route, o.part, o.state, o.reason, count(*) AS hits
    FROM places p CROSS JOIN LATERAL (
        SELECT CASE WHEN o.retry THEN 'retry' WHEN o.settled_at IS NOT NULL THEN 'abandoned' WHEN o.due_at IS NULL THEN 'ready' ELSE 'due' END AS part,
               CASE WHEN o.retry OR o.due_at IS NULL AND o.settled_at IS NULL THEN ` + stateSQL + ` ELSE o.state END AS state, o.reason FROM {outbox} o
        WHERE o.route = p.route AND o.seq = p.seq AND (o.settled_at IS NULL OR o.reason <> '') ORDER BY o.seq LIMIT 1
    ) o JOIN big b ON b.route = p.route AND b.part = o.part
    WHERE b.last IS NULL OR p.seq > b.last GROUP BY 1, 2, 3, 4
), sums AS (
    ` + sumSQL + ` (
        SELECT route, part, state, reason, k.n, k.due, k.oldest, s.width, coalesce(h.hits, 0) AS hits, b.last IS NOT NULL AS behind
        FROM (
            SELECT * FROM kinds
            UNION ALL
            SELECT e.route, 'ready', {pending}, '', 0, 0, NULL FROM ends e
            WHERE NOT EXISTS (SELECT FROM kinds k WHERE k.route = e.route AND k.part = 'ready' AND k.state = {pending})
        ) k FULL JOIN hits h USING (route, part, state, reason) JOIN big b USING (route, part) JOIN strata s USING (route)
        WHERE state <> {processing} OR (SELECT count(*) FROM holds) >= $1
    )` + endSumSQL + `
)
SELECT route, state, reason, sum(n)::bigint, sum(due)::bigint, bool_or(estimated), bool_or(vague),
       coalesce((extract(epoch FROM clock_timestamp() - min(oldest)) * '1000000')::bigint, 0)
FROM (
    SELECT k.route, k.state, k.reason, k.n, k.due, false AS estimated, false AS vague, k.oldest FROM kinds k
    WHERE NOT EXISTS (SELECT FROM big b WHERE b.route = k.route AND b.part = k.part)
    UNION ALL
    SELECT h.route, {processing}, '', count(*), 0, false, false, min(h.ready_since) FROM holds h JOIN big b USING (route, part)
    WHERE (SELECT count(*) FROM holds) < $1 AND EXISTS (SELECT FROM {members} me WHERE me.session = h.hold) GROUP BY 1
    UNION ALL
    SELECT s.route, s.state, s.reason, s.sum, CASE WHEN s.part = 'abandoned' OR s.state = {processing} THEN 0 WHEN s.due < s.n THEN s.due ELSE s.sum END,
           true, s.vague, s.oldest
    FROM sums s
) c
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`

// Counts returns the numbers of records by route and state, and of abandoned ones by reason. It counts up to 10,000
// live rows of a route in each of three indexes. A larger number is estimated from 10,000 sequences, all over the
// route, or a least number if they tell too little. A reason that is neither among these sequences nor among the first
// 10,000 abandoned rows is missing. Held records are processing; they are exact up to 10,000 of all routes. Oldest is
// that of the rows it counted, the first by sequence. Published rows that Options.Retention keeps are not counted. If a
// ready record waits before more than 100,000 of them, the other ready records are a least number, 0 perhaps.
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
		}, b.sql.admin.count, countExact+1, rules.SampleSize, countWalk)
	})
	return counts, err
}
