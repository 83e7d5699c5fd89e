package postgres

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// A timer becomes an ordinary record when it is due: it gets a new number, and the reads bring it. A retry keeps its
// number, which lies before the front of all reads. So Due itself returns it, held, and it goes to its place in its
// key. Both are found by the index of due times, from a lower bound on (MaxOverdue), since rows that were sent stay in
// that index as long as an old snapshot keeps them.
//
// The parameters of the statements: $1 self, $2 routes, $3 slots, $4 MaxOverdue in microseconds, $5 whether retries
// that self holds are answered again (not DueExcludeHeld), $6 the limit, which bounds those and new ones together.

const (
	// ownPartsSQL are the parts with those of their slots that are self's, since when what came due is looked for,
	// and whether what self holds already is answered again.
	ownPartsSQL = `
WITH p AS MATERIALIZED (
    SELECT p.n, p.route, p.slots & o.slots AS slots,
        CASE WHEN p.ago = 0 THEN '-infinity' ELSE statement_timestamp() - p.ago::float8 * interval '1 microsecond' END AS since, p.repeats
    FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::boolean[]) WITH ORDINALITY AS p(route, slots, ago, repeats, n)
    CROSS JOIN LATERAL (SELECT bit_or(un.slots) AS slots FROM {partitions} un WHERE un.route = p.route AND un.owner = $1) o
    WHERE ` + aliveSQL + ` AND p.slots & o.slots <> 0
)`

	// dueRetriesSQL are the due retries of part p, in order. A session's other holds, of which there may be many,
	// are in no index that it may use. The order of a count leads the planner to the index that has no other holds.
	dueRetriesSQL = `
        FROM {outbox} r
        WHERE r.route = p.route AND r.retry AND r.due_at > p.since AND r.due_at <= statement_timestamp() AND (p.slots >> r.slot::int) & '1' = 1`
	heldDueSQL = dueRetriesSQL + ` AND p.repeats AND r.hold + 0 = $1 AND r.hold <> 0`
	ownDueSQL  = heldDueSQL + `
        ORDER BY r.due_at, r.seq LIMIT $6`

	// freeSQL is whether record r has no hold. Most records that are held are self's: they cost no look-up.
	freeSQL = `r.hold <> $1 AND ` + holderSQL + ` = 0`

	// ownRetriesSQL are the due retries that self holds already. A lock on them would meet the results and holds
	// that the member sends meanwhile.
	ownRetriesSQL = ownPartsSQL + `
SELECT p.n, ` + recordSQL + `, r.body, r.due_at FROM p CROSS JOIN LATERAL (
        SELECT r.*` + ownDueSQL + `
    ) r
ORDER BY r.due_at, r.seq LIMIT $6`

	// retriesSQL holds due retries without a hold.
	retriesSQL = ownPartsSQL + `, l AS MATERIALIZED (
    SELECT p.n, x.at FROM p CROSS JOIN LATERAL (
        SELECT r.ctid AS at, r.due_at, r.seq` + dueRetriesSQL + ` AND ` + freeSQL + `
        ORDER BY r.due_at, r.seq LIMIT $6 FOR NO KEY UPDATE SKIP LOCKED
    ) x
    ORDER BY x.due_at, x.seq LIMIT greatest($6 - (
        SELECT count(*) FROM p CROSS JOIN LATERAL (SELECT r.seq` + ownDueSQL + `) x), 0)
)
UPDATE {outbox} r SET ` + holdSQL + ` FROM l WHERE r.ctid = l.at
RETURNING l.n, ` + recordSQL + `, r.body, r.due_at`

	// timersSQL puts due timers in line, in the order in which they were due. The transaction has its id before it
	// draws numbers.
	timersSQL = ownPartsSQL + `, l AS MATERIALIZED (
    SELECT x.* FROM p CROSS JOIN LATERAL (
        SELECT r.ctid AS at, r.due_at, r.seq FROM {outbox} r
        WHERE r.route = p.route AND r.due_at > p.since AND r.due_at <= statement_timestamp() AND r.due_at IS NOT NULL AND NOT r.retry
          AND r.settled_at IS NULL AND (p.slots >> r.slot::int) & '1' = 1
        ORDER BY r.due_at, r.seq LIMIT $6 FOR UPDATE SKIP LOCKED
    ) x
    ORDER BY x.due_at, x.seq LIMIT $6
), n AS MATERIALIZED (
    SELECT l.at, (pg_current_xact_id() IS NULL)::int + nextval({sequence_text}) AS seq
    FROM (SELECT l.at FROM l ORDER BY l.due_at, l.seq) l
)
UPDATE {outbox} r SET seq = n.seq, due_at = NULL, version = r.version + 1 FROM n WHERE r.ctid = n.at`

	// nextDueSQL is how long until something else is due, in microseconds, and how many due retries self holds.
	nextDueSQL = ownPartsSQL + `
SELECT CASE WHEN min(d.due_at) IS NULL THEN -1
            ELSE greatest(ceil(extract(epoch FROM min(d.due_at) - clock_timestamp()) * '1000000')::bigint, 0) END,
    (SELECT count(*) FROM p CROSS JOIN LATERAL (SELECT r.seq` + heldDueSQL + ` ORDER BY r.due_at) x)
FROM p CROSS JOIN LATERAL (
    (SELECT r.due_at FROM {outbox} r
     WHERE r.route = p.route AND r.due_at > p.since AND r.due_at IS NOT NULL AND NOT r.retry AND r.settled_at IS NULL
       AND (p.slots >> r.slot::int) & '1' = 1
     ORDER BY r.due_at LIMIT 1)
    UNION ALL
    (SELECT r.due_at FROM {outbox} r
     WHERE r.route = p.route AND r.due_at > p.since AND r.retry AND (p.slots >> r.slot::int) & '1' = 1 AND ` + freeSQL + `
     ORDER BY r.due_at LIMIT 1)
) d`
)

type dueStatements struct{ ownRetries, retries, timers, nextDue string }

func newDueStatements(n schema.Names) dueStatements {
	return dueStatements{
		ownRetries: n.SQL(ownRetriesSQL), retries: n.SQL(retriesSQL), timers: n.SQL(timersSQL), nextDue: n.SQL(nextDueSQL),
	}
}

// Due holds retries and puts timers in line that are due in parts, in one transaction:
//
//  1. The retries that self holds already come first, in parts that ask for them: an answer was lost.
//  2. Retries without a hold are held, up to the limit with those of 1.
//  3. Timers get new numbers.
//  4. The store looks how long it is until more is due. If self holds more due retries than were answered, that is no
//     time at all.
func (o *Outbox) Due(ctx context.Context, self core.Session, of []core.RouteSlots, limit int) (core.DueResult, error) {
	type retry struct {
		core.Record
		due  time.Time
		part int
	}
	var result core.DueResult
	var now time.Time
	var own, next []retry
	var held int
	routes, slots := parts(of)
	ago, repeats := make([]int64, len(of)), make([]bool, len(of))
	for i := range of {
		ago[i], repeats[i] = of[i].MaxOverdue.Microseconds(), !of[i].DueExcludeHeld
	}
	if limit = max(limit, 0); limit > 0 {
		limit = orDefault(limit)
	}
	err := o.transact(ctx, "due", writeSQL, func(b *batch) {
		result, own, next = core.DueResult{}, nil, nil
		b.fence(self, &now)
		var due time.Time
		d := o.reader(&due)
		read := func(into *[]retry) func(rows pgx.Rows) error {
			return func(rows pgx.Rows) error {
				r, err := d.read(rows, now)
				if err == nil {
					r.Route, r.Failed = routes[d.n-1], true // also if no attempt was counted
					*into = append(*into, retry{*r, due, d.n - 1})
				}
				return err
			}
		}
		if slices.Contains(repeats, true) {
			b.each(read(&own), b.sql.due.ownRetries, int64(self), routes, slots, ago, repeats, limit)
		}
		b.each(read(&next), b.sql.due.retries, int64(self), routes, slots, ago, repeats, limit)
		b.Queue(b.sql.due.timers, int64(self), routes, slots, ago, repeats, limit).Exec(func(tag pgconn.CommandTag) error {
			result.TimersReady = int(tag.RowsAffected())
			return nil
		})
		b.Queue(b.sql.due.nextDue, int64(self), routes, slots, ago, repeats).QueryRow(func(row pgx.Row) error {
			var in int64
			err := row.Scan(&in, &held)
			result.NextIn = time.Duration(min(in, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
			return err
		})
	})
	if err != nil {
		return core.DueResult{}, err
	}
	if now.IsZero() {
		return core.DueResult{}, core.NewFencedError("waybill/postgres: due", self)
	}
	slices.SortStableFunc(next, func(x, y retry) int { return x.due.Compare(y.due) })
	for _, r := range append(own, next...) {
		if repeats[r.part] {
			held--
		}
		result.Retries = append(result.Retries, r.Record)
	}
	if held > 0 {
		result.NextIn = 0
	}
	for _, r := range routes {
		o.waiter.DueIn(r, result.NextIn)
	}
	return result, nil
}
