package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
)

// In the steady state of a drain, all rows at the front of one route are there to be taken: nobody has them, and their bodies are within
// the bounds. A look finds that out, and leaves in settings of the transaction what it saw; then a second statement takes them, with none of
// what claim_sql.go does to each row. The conditions that decide are the second's own, since it sees what was committed after the look.
//
// There are two pairs. The plain one finds out too that no row has a key that must be kept in order. The keyed one finds out that nothing holds
// back any key: behind the front no row of a key waits but what the session itself has leased, none was put back or is retried, nothing due is
// not in line yet, and no other relay claims, as the transaction has the locks of all key shards. It takes the rows that it saw, by their number and sum, or none: a row that
// somebody has locked, or that was committed meanwhile, might be behind or before another one of its key.
const (
	lookFrontSQL = `
SELECT x.rows, x.last, x.least, x.clean AND y.clean, x.keyed, y.least,
       set_config('waybill.front', CASE WHEN x.clean AND y.clean THEN x.last ELSE 0 END::text, true), set_config('waybill.rows', concat(x.rows, ' ', x.sum), true),
       (SELECT (extract(epoch FROM greatest(e.due_at, statement_timestamp()) - statement_timestamp()) * 1000000)::bigint FROM {outbox} e
        WHERE e.route = $1 AND e.settled_at IS NULL AND e.due_at < 'infinity' ORDER BY e.due_at LIMIT 1),
       (SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM {outbox_sequence} s),
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint, ` + nextXidSQL + `,
       (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint, statement_timestamp()
FROM (
    SELECT count(*) AS rows, sum(o.seq) AS sum, coalesce(max(o.seq), 0) AS last, coalesce(min(o.seq), 0) AS least, coalesce(bool_or(o.keyed), false) AS keyed,
           coalesce(NOT bool_or(o.lease_until IS NOT NULL OR o.crashes > 1 OR o.odd) AND (count(*) = 1 OR sum(octet_length(o.body)) <= $4), true) AS clean
    FROM (`

	frontSQL = lookFrontSQL + `
        SELECT o.seq, $5 AND o.key <> '' AS keyed, $5 AND o.key <> '' AS odd, o.body, o.lease_until, o.crashes FROM {outbox} o
        WHERE o.route = $1 AND o.seq + 0 > $2 AND o.settled_at IS NULL AND o.due_at IS NULL
        ORDER BY o.seq + 0 LIMIT $3
    ) o
) x, (SELECT true AS clean, 0::bigint AS least) y`

	frontKeyedSQL = lookFrontSQL + `
        SELECT o.seq, o.key <> '' AS keyed, o.holds AS odd, o.body, o.lease_until, o.crashes FROM {outbox} o
        WHERE o.route = $1 AND o.seq + 0 > $2 AND o.settled_at IS NULL AND o.due_at IS NULL
        ORDER BY o.seq + 0 LIMIT $3
    ) o
) x, (
    SELECT coalesce(bool_and(o.lease_token >> 32 = $6 AND o.lease_until > statement_timestamp()), true)
           AND nullif(current_setting('waybill.shards', true), '')::bigint IS NOT DISTINCT FROM -1
           AND NOT EXISTS (SELECT FROM {outbox} e WHERE e.route = $1 AND e.settled_at IS NULL AND e.holds AND e.key <> '')
           AND NOT EXISTS (SELECT FROM {outbox} e WHERE e.route = $1 AND e.settled_at IS NULL AND e.due_at <= statement_timestamp()) AS clean,
           coalesce(min(o.seq), 0) AS least
    FROM {outbox} o
    WHERE o.route = $1 AND o.seq + 0 >= $5 AND o.seq + 0 <= $2 AND o.settled_at IS NULL AND o.due_at IS NULL AND o.key <> ''
) y`

	takeFrontSQL = leaseFrontSQL + `ARRAY(
    SELECT e.ctid FROM {outbox} e
    WHERE e.route = $1 AND e.seq + 0 > $2 AND e.seq + 0 <= ` + frontEnd + ` AND e.settled_at IS NULL AND e.due_at IS NULL
      AND e.lease_until IS NULL AND e.crashes < 2 AND (NOT $7 OR e.key = '')
    ORDER BY e.seq + 0 LIMIT $3 FOR UPDATE SKIP LOCKED))
RETURNING ` + recordSQL

	takeFrontKeyedSQL = leaseFrontSQL + `(
    SELECT CASE WHEN concat(count(*), ' ', sum(e.seq)) = ` + frontRows + ` THEN array_agg(e.ctid) END FROM (
        SELECT e.ctid, e.seq FROM {outbox} e
        WHERE e.route = $1 AND e.seq + 0 > $2 AND e.seq + 0 <= ` + frontEnd + ` AND e.settled_at IS NULL AND e.due_at IS NULL
          AND e.lease_until IS NULL AND e.crashes < 2 AND NOT e.holds
        ORDER BY e.seq + 0 LIMIT $3 + 1 FOR UPDATE SKIP LOCKED
    ) e)::tid[])
RETURNING ` + recordSQL

	leaseFrontSQL = `
UPDATE {outbox} o
SET state = 2, lease_token = $5, lease_owner = $4, lease_until = (SELECT statement_timestamp() + $6 * interval '1 microsecond')
WHERE o.ctid = ANY (`

	// frontEnd and frontRows are what the look found out: the last sequence, and how many there are and their sum.
	frontEnd  = `nullif(current_setting('waybill.front', true), '')::bigint`
	frontRows = `current_setting('waybill.rows', true)`
)

// messyClaims is how many claims do not try the front alone after one that met something else there, or somebody.
const messyClaims = 20

// maxUnknown bounds how many sequences behind the front an ordered claim looks at once more.
const maxUnknown = 50_000

// claimFront claims all that is at the front of the view's only range, if that is all there is. If not, the answer says that it is not clean,
// and nothing was claimed.
func (o *Outbox) claimFront(ctx context.Context, req *core.ClaimRequest, v *view) (*answer, error) {
	session, token := o.claims.token(req.Session)
	look, lookArgs := o.claims.front, []any{v.routes[0], v.lo[0], v.records, v.bytes, v.keyed[0]}
	take, takeArgs := o.claims.takeFront, []any{v.routes[0], v.lo[0], v.records, req.Owner, token, micros(req.Lease), v.keyed[0]}
	if v.ordered() {
		look, lookArgs = o.claims.frontKeyed, []any{v.routes[0], v.lo[0], v.records, v.bytes, v.floor[0], session}
		take, takeArgs = o.claims.takeFrontKeyed, takeArgs[:6]
	}
	var a *answer
	err := o.transactWith(ctx, "claim", setClaimSQL, func(b *pgx.Batch) {
		a = &answer{rows: make([]int64, 1), last: make([]int64, 1), least: make([]int64, 1), remaining: make([]int64, 1), open: make([]int64, 1)}
		o.claims.promoteDue(b, v)
		o.claims.lockShards(b, v, a)
		b.Queue(look, lookArgs...).QueryRow(func(row pgx.Row) error {
			return row.Scan(&a.rows[0], &a.last[0], &a.least[0], &a.clean, &a.keyed, &a.behind, nil, nil, &a.timerIn, &a.sequence, &a.xmin, &a.xmax, &a.took, &a.now)
		})
		b.Queue(take, takeArgs...).Query(func(rows pgx.Rows) error {
			a.records = make([]core.Record, 0, a.rows[0])
			return a.readRecords(rows, nil, o.opts.Source)
		})
	})
	if err != nil {
		return nil, err
	}
	a.open[0] = a.last[0]
	if a.clean && int64(len(a.records)) < a.rows[0] { // somebody was faster: which rows are left is not known
		a.remaining[0] = a.least[0]
	}
	if !a.clean || a.remaining[0] > 0 {
		o.claims.messy(v, a.keyed)
	}
	a.lease(token, req.Lease)
	return a, nil
}

// ordered reports whether the rows at the front may have keys.
func (v *view) ordered() bool { return len(v.shards) > 0 }

// mayBeSimple reports whether claimFront may do.
func (c *claimer) mayBeSimple(v *view) bool {
	if len(v.routes) != 1 || len(v.skip) != 0 || c.general > 0 {
		return false
	}
	return !v.ordered() || len(v.shards) == shards && !v.block[0] && v.lo[0]-v.floor[0] < maxUnknown
}

// messy makes this claim, and some after it, look at each row.
func (c *claimer) messy(v *view, keyed bool) { //nolint:revive // what was there, not a mode
	c.mu.Lock()
	defer c.mu.Unlock()
	c.general, v.simple = messyClaims, false
	if keyed {
		c.minding(v)
	}
}

// raiseFloor notes what an ordered look at the front alone learned of what is behind it.
func (p *position) raiseFloor(v *view, a *answer) {
	if !a.clean || !v.ordered() {
		return
	}
	floor := v.lo[0] + 1
	if a.behind > 0 {
		floor = a.behind
	}
	p.floor = max(p.floor, min(floor, v.settled+1))
}
