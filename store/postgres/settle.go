package postgres

import (
	"context"
	"errors"
	mathbits "math/bits"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// The usual Settle has published records alone, none of them locked: one DELETE with a lock timeout of 5 ms
// (deleteAll). If a row is missing or locked, and for all other outcomes, settleSQL takes the rows one by one, skips
// locked ones, and says of each what happened. If the statement itself fails, since a trigger of the application
// refuses or delays one row, the batch is halved until that row is alone.

const (
	// quickLimitsSQL bounds the statement after it, deleteNearSQL or deleteAllSQL. These are for records without a
	// lock, as is usual: they take less than half as long as settleSQL. On a lock they fail. deleteNearSQL is for
	// records of one route that are near each other: it goes over their range once, which takes half as long as to
	// look each up. IS TRUE makes the list a table of hashes. In all statements $1 is the session that settles.
	quickLimitsSQL = `SELECT set_config('lock_timeout', '5ms', true), set_config('statement_timeout', $1, true)`
	deleteNearSQL  = `
DELETE FROM {outbox} r
WHERE r.route = $2 AND r.seq BETWEEN $3 AND $4 AND r.settled_at IS NULL AND ` + aliveSQL + `
  AND ((r.seq, r.id) IN (SELECT u.seq, u.id FROM unnest($5::bigint[], $6::text[]) AS u(seq, id))) IS TRUE`
	deleteAllSQL = `
DELETE FROM {outbox} r USING unnest($2::text[], $3::bigint[], $4::text[]) AS u(route, seq, id)
WHERE r.route = u.route AND r.seq = u.seq AND r.id = u.id AND r.settled_at IS NULL AND ` + aliveSQL

	// slowLimitsSQL bounds settleSQL, which a trigger may let wait.
	slowLimitsSQL = `
SELECT set_config('lock_timeout', least($1::int, 2000)::text, true), set_config('statement_timeout', $1::int::text, true)`

	// settleSQL persists any outcomes. u has the outcomes, and l the rows that they may change: locked now, alive,
	// and for all but published ones of the same version, and held by $1 or in a partition that $1 owns. d and w
	// change them. A published row is deleted unless $15. A retry that $1 held is due anew when it is released. The
	// answer for each outcome:
	//
	//	0 done    | d or w changed its row; or it is a release, and another session holds the row (others)
	//	          | published: there is no such row any more, or it was published already
	//	1 changed | the row is gone, settled, or has another id, or another version
	//	2 busy    | the row could be changed, but a transaction has locked it
	//	3 fenced  | $1 neither holds the row nor owns its partition
	//
	// Each row is looked up alone: a join that was planned for a small table goes over all of it. failed is an
	// attempt that failed, with attempts left.
	settleSQL = `
WITH u AS MATERIALIZED (
    SELECT * FROM unnest($2::int[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::smallint[], $8::int[], $9::text[],
                         $10::text[], $11::bigint[], $12::boolean[], $13::boolean[], $14::boolean[])
        AS u(n, route, seq, id, version, state, attempt, reason, error, wait, failed, blocks, unknown)
), l AS MATERIALIZED (
    SELECT u.*, r.at, u.state NOT IN {terminal} AND NOT u.failed AND r.holder NOT IN (0, $1) AS others
    FROM u CROSS JOIN LATERAL (
        SELECT r.ctid AS at, ` + holderSQL + ` AS holder FROM {outbox} r
        WHERE r.route = u.route AND r.seq = u.seq AND r.id = u.id AND r.settled_at IS NULL AND ` + aliveSQL + `
          AND (u.state = {published} OR r.version = u.version AND (r.hold = $1 OR ` + ownsSQL + `))
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) r
), d AS (
    DELETE FROM {outbox} r USING l WHERE r.ctid = l.at AND l.state = {published} AND NOT $15::boolean RETURNING l.n
), w AS (
    UPDATE {outbox} r
    SET state = l.state, version = r.version + 1, hold = 0, held_since = NULL,
        attempts = r.attempts + l.attempt, crashes = CASE WHEN l.failed THEN 0 ELSE r.crashes END,
        reason = l.reason, blocks = l.blocks AND r.key <> '', maybe_sent = r.maybe_sent OR l.unknown OR r.crashes > 0,
        settled_at = CASE WHEN l.state IN {terminal} THEN clock_timestamp() END,
        retry = l.state NOT IN {terminal} AND (l.failed OR r.retry),
        due_at = CASE WHEN l.state IN {terminal} THEN NULL
                      WHEN l.failed OR r.retry AND r.hold = $1 THEN clock_timestamp() + l.wait::float8 * interval '1 microsecond'
                      ELSE r.due_at END,
        last_error = CASE WHEN l.error <> '' THEN l.error ELSE r.last_error END,
        last_error_at = CASE WHEN l.error <> '' THEN clock_timestamp() ELSE r.last_error_at END
    FROM l WHERE r.ctid = l.at AND (l.state <> {published} OR $15) AND NOT l.others
    RETURNING l.n
)
SELECT u.n, CASE WHEN u.n IN (SELECT d.n FROM d UNION ALL SELECT w.n FROM w UNION ALL SELECT l.n FROM l WHERE l.others) THEN 0 ELSE coalesce((
    SELECT CASE WHEN u.state = {published} AND r.state = {published} AND r.id = u.id THEN 0
                WHEN r.id <> u.id OR r.settled_at IS NOT NULL OR u.state <> {published} AND r.version <> u.version THEN 1
                WHEN u.state = {published} OR r.hold = $1 OR ` + ownsSQL + ` THEN 2
                ELSE 3 END
    FROM {outbox} r WHERE r.route = u.route AND r.seq = u.seq), (u.state <> {published})::int) END
FROM u`

	// noticeDoneSQL deletes notices. A core.NoticeReread concerns all slots of a route: it goes when all their
	// owners have carried it out. The place of each is looked up once. The planner takes the table for empty, as it
	// mostly is, and would go over all of it for each number.
	noticeDoneSQL = `
WITH l AS MATERIALIZED (
    SELECT c.ctid AS at, c.kind,
        c.slots & ~coalesce((SELECT bit_or(un.slots) FROM {partitions} un WHERE un.route = c.route AND un.owner = $1), 0) AS rest
    FROM {notices} c WHERE c.number = ANY ($2::bigint[]) AND ` + aliveSQL + ` FOR UPDATE OF c SKIP LOCKED
), d AS (
    DELETE FROM {notices} c USING l WHERE c.ctid = l.at AND (l.kind <> {tell_from} OR l.rest = 0)
)
UPDATE {notices} c SET slots = l.rest FROM l WHERE c.ctid = l.at AND l.kind = {tell_from} AND l.rest <> 0`
)

type settleStatements struct{ quickLimits, deleteNear, deleteAll, slowLimits, settle, noticeDone string }

func newSettleStatements(n schema.Names) settleStatements {
	return settleStatements{
		quickLimits: n.SQL(quickLimitsSQL), deleteNear: n.SQL(deleteNearSQL), deleteAll: n.SQL(deleteAllSQL),
		slowLimits: n.SQL(slowLimitsSQL), settle: n.SQL(settleSQL), noticeDone: n.SQL(noticeDoneSQL),
	}
}

// Settle persists outcomes in one transaction. If the database refuses that, or takes too long, each half is tried
// alone, so that a refused or slow record fails alone.
func (o *Outbox) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	results := make(core.Results, len(outcomes))
	at := make([]int, 0, len(outcomes))
	for i := range outcomes {
		if outcomes[i].Event() == core.EventNone && outcomes[i].NoticeNumber() == 0 {
			results[i] = waybill.Invalid("waybill/postgres: settle",
				"outcome: is zero; build it with core.Published, Retry, Abandon, Cancel, Release or DeleteNotice")
		} else {
			at = append(at, i)
		}
	}
	o.settle(ctx, self, outcomes, at, wholeSettle, results)
	for i := range outcomes {
		if c := &outcomes[i]; results[i] == nil {
			o.waiter.DueIn(c.Ref().Route, c.In())
		}
	}
	return results
}

// settle persists the outcomes whose indexes are in at. After a failure that is no outage it tries each half alone, so
// that in the end only the record that is at fault has the error.
func (o *Outbox) settle(ctx context.Context, self core.Session, outcomes []core.Outcome, at []int, part settlePart, results core.Results) {
	if len(at) == 0 {
		return
	}
	err := o.settleOnce(ctx, self, outcomes, at, part.limit(ctx, len(at)), results)
	switch {
	case err == nil:
	case len(at) == 1 || ctx.Err() != nil || isOutage(err):
		// A statement that took too long for one record alone is no outage of the database.
		if e, ok := errors.AsType[*waybill.Error](err); ok && dberr.SQLState(err) == tookTooLong && ctx.Err() == nil {
			e.Class = waybill.ClassRejected
		}
		for _, i := range at {
			results[i] = err
		}
	default:
		o.settle(ctx, self, outcomes, at[:len(at)/2], someOfSettle, results)
		o.settle(ctx, self, outcomes, at[len(at)/2:], max(part, restOfSettle), results)
	}
}

// settlePart is the part of a call that a statement settles. The order counts: the second half of a part is the rest if
// the part was the whole or the rest, and some if it was some (max).
type settlePart int

const (
	wholeSettle  settlePart = iota // all of it
	restOfSettle                   // the part after which nothing is left to try
	someOfSettle                   // any other part
)

const (
	// settleLimit is how long a statement may take at most, as setSQL says.
	settleLimit = 10 * time.Second
	// someLimit is how long one may take that looks for a slow record.
	someLimit = time.Second
)

// limit is how long a statement that settles n outcomes may take. One record that a trigger makes slow leaves the time
// to find it, and to settle the others, before ctx ends. If everything is slow, the last part uses up the time, and the
// dispatcher gives more to the next call.
func (p settlePart) limit(ctx context.Context, n int) time.Duration {
	left := 2 * settleLimit
	if end, ok := ctx.Deadline(); ok {
		left = time.Until(end)
	}
	switch {
	case p == someOfSettle:
		left = min(left/time.Duration(mathbits.Len(uint(n))+2), someLimit)
	case p == wholeSettle && n > 1:
		left /= 2
	}
	return max(min(left, settleLimit), time.Millisecond)
}

// settleOnce persists outcomes in one transaction, and fills their results. The steps:
//
//  1. If all are published and nothing is kept, deleteAll tries the fast way. Rows that it did not find or could not
//     lock are left to the next step, for which a published record without a row is done.
//  2. The fence locks the member's row. Without that row all outcomes are fenced.
//  3. settleSQL stores the others, and answers for each.
//  4. Notices that were carried out are deleted, and the clock's mark is raised. It is the last statement, so that its
//     row is locked for the shortest time.
func (o *Outbox) settleOnce(ctx context.Context, self core.Session, outcomes []core.Outcome, at []int, limit time.Duration, results core.Results) error {
	var records []int
	var noticesDone []int64
	published := 0
	for _, i := range at {
		switch out := &outcomes[i]; {
		case out.NoticeNumber() != 0:
			noticesDone = append(noticesDone, out.NoticeNumber())
		case out.Event() == core.EventConfirmed:
			published++
			fallthrough
		default:
			records = append(records, i)
		}
		results[i] = nil
	}
	if published == len(at) && !o.keep {
		done, err := o.deleteAll(ctx, self, outcomes, at, limit)
		if done || isOutage(err) || dberr.SQLState(err) == tookTooLong {
			return err
		}
	}
	var now time.Time
	err := o.transact(ctx, "settle", writeSQL, func(b *batch) {
		b.fence(self, &now) // now stays zero if self is no member
		b.Queue(b.sql.settle.slowLimits, limit.Milliseconds())
		o.queueRecords(b, self, outcomes, records, results)
		if len(noticesDone) > 0 {
			b.Queue(b.sql.settle.noticeDone, int64(self), noticesDone)
		}
		o.queueMark(b, outcomes, at)
	})
	if err == nil && now.IsZero() {
		fenced := core.NewFencedError("waybill/postgres: settle", self)
		for _, i := range at {
			results[i] = fenced
		}
	}
	return err
}

// resultOf returns the result of out, by what settleSQL says about it.
func resultOf(out *core.Outcome, said int) error {
	if said == 0 {
		return nil
	}
	why := [...]error{1: core.ErrChanged, 2: core.ErrLocked, 3: core.ErrFenced}[said]
	return core.NewOutcomeError("waybill/postgres: settle", out.Ref(), why)
}

// near is how many numbers a range may hold for each record in it to be gone over.
const near = 4

// deleteAll deletes published records. It expects that all of them are there and that none is locked. If that is not
// so, it reports false: it may have deleted some then.
func (o *Outbox) deleteAll(ctx context.Context, self core.Session, outcomes []core.Outcome, at []int, limit time.Duration) (done bool, err error) {
	var now time.Time
	n := len(at)
	sql, args := o.deletion(self, outcomes, at)
	err = o.transact(ctx, "settle", writeSQL, func(b *batch) {
		done = false
		b.fence(self, &now)
		b.Queue(b.sql.settle.quickLimits, strconv.FormatInt(limit.Milliseconds(), 10))
		b.Queue(sql, args...).Exec(func(tag pgconn.CommandTag) error {
			done = tag.RowsAffected() == int64(n)
			return nil
		})
		o.queueMark(b, outcomes, at)
	})
	return done && err == nil, err
}

// SettleGroup implements table.GroupSettler: one transaction deletes the records of all sessions, if all of them are
// there and none is locked. A session that was removed deletes nothing, so that the number of deleted rows tells of
// that, too.
func (o *Outbox) SettleGroup(ctx context.Context, selves []core.Session, outcomes [][]core.Outcome) bool {
	all := slices.Concat(outcomes...)
	if o.keep || slices.ContainsFunc(all, func(x core.Outcome) bool { return x.Event() != core.EventConfirmed }) {
		return false
	}
	at := make([]int, len(all))
	for i := range at {
		at[i] = i
	}
	now := make([]time.Time, len(selves))
	var deleted int64
	err := o.transact(ctx, "settle", writeSQL, func(b *batch) {
		deleted = 0
		for i, self := range selves {
			b.fence(self, &now[i])
		}
		b.Queue(b.sql.settle.quickLimits, strconv.FormatInt(wholeSettle.limit(ctx, len(all)).Milliseconds(), 10))
		for i, self := range selves {
			sql, args := o.deletion(self, outcomes[i], at[:len(outcomes[i])])
			b.Queue(sql, args...).Exec(func(tag pgconn.CommandTag) error {
				deleted += tag.RowsAffected()
				return nil
			})
		}
		o.queueMark(b, all, at)
	})
	return err == nil && deleted == int64(len(all))
}

// deletion returns the statement that deletes the records of the outcomes whose indexes are in at.
func (o *Outbox) deletion(self core.Session, outcomes []core.Outcome, at []int) (sql string, args []any) {
	n := len(at)
	routes, seqs, ids := make([]string, n), make([]int64, n), make([]string, n)
	for j, i := range at {
		r := outcomes[i].Ref()
		routes[j], seqs[j], ids[j] = r.Route, r.Seq, r.ID
	}
	sql, args = o.sql.settle.deleteAll, []any{int64(self), routes, seqs, ids}
	from, to := slices.Min(seqs), slices.Max(seqs)
	if to-from < int64(near*n) && !slices.ContainsFunc(routes, func(r string) bool { return r != routes[0] }) {
		sql, args = o.sql.settle.deleteNear, []any{int64(self), routes[0], from, to, seqs, ids}
	}
	return sql, args
}

func isOutage(err error) bool {
	e, ok := errors.AsType[*waybill.Error](err)
	return ok && e.Class == waybill.ClassOutage && dberr.SQLState(err) != tookTooLong
}

// tookTooLong is the state of a statement that the server ended, such as for an application's trigger that waits.
const tookTooLong = "57014"

// refsOf are the refs of the outcomes whose indexes are in at, as columns.
func refsOf(outcomes []core.Outcome, at []int) refColumns {
	of := make([]core.Ref, len(at))
	for j, i := range at {
		of[j] = outcomes[i].Ref()
	}
	return refs(of)
}

func (o *Outbox) queueRecords(b *batch, self core.Session, outcomes []core.Outcome, at []int, results core.Results) {
	n := len(at)
	if n == 0 {
		return
	}
	states, attempts, waits := make([]int16, n), make([]int32, n), make([]int64, n)
	reasons, errs := make([]string, n), make([]string, n)
	failed, blocks, unknown := make([]bool, n), make([]bool, n), make([]bool, n)
	for j, i := range at {
		out := &outcomes[i]
		states[j], reasons[j], errs[j], waits[j] = int16(out.State()), string(out.Reason()), out.Error(), micros(out.In())
		failed[j], blocks[j], unknown[j] = out.Event() == core.EventAttemptFailed, out.Reason().Blocks(), out.Unknown()
		if out.CountsAttempt() {
			attempts[j] = 1
		}
	}
	c := refsOf(outcomes, at)
	b.each(func(rows pgx.Rows) error {
		var n, said int
		err := rows.Scan(&n, &said)
		if err == nil {
			results[at[n]] = resultOf(&outcomes[at[n]], said)
		}
		return err
	}, b.sql.settle.settle, int64(self), c.n, c.routes, c.seqs, c.ids, c.versions,
		states, attempts, reasons, errs, waits, failed, blocks, unknown, o.keep)
}

// micros returns d in microseconds, at least one if it is above 0.
func micros(d time.Duration) int64 {
	if d > 0 {
		return max(d.Microseconds(), 1)
	}
	return 0
}
