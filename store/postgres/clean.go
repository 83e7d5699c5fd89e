package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// One process cleans, the holder of the lease in the database. A call of Clean is one bounded step of a round: it takes
// or renews the lease, ends records that have expired, and deletes those whose retention is over. The engine makes the
// calls, and rests between them.

// cleanBatch bounds the rows of each kind that one call of Clean touches: expired, published, abandoned, cancelled.
const cleanBatch = 1000

// electSQL takes or renews the cleaner's lease: a row, so that it ends by itself and needs no session.
const electSQL = `
UPDATE {meta} SET owner = $1, value = (extract(epoch FROM clock_timestamp()) * '1000000')::bigint + $2
WHERE name = {cleaner} AND (owner = $1 OR value NOT BETWEEN (extract(epoch FROM clock_timestamp()) * '1000000')::bigint
                                                        AND (extract(epoch FROM clock_timestamp()) * '1000000')::bigint + $3)
RETURNING true`

// sweepSQL abandons expired records: those that waited for a time, and due ones in partitions without an owner. Due
// records in other partitions are left to their owners, who find out. It never waits for a lock. Owners are told of the
// keys that a retry held; no member remembers a timer, nor a due record without an owner.
//
// It looks at those that expired after $1, or at all; see resume. Known routes are not looked for.
//
//	k  the known routes, and where the gap behind each ends
//	f  these, and the routes in the gaps with live records that expire some day
//	n  the slots of these without an owner
//	w  the records that expired while they waited for a time
//	x  the due ones without an owner
const sweepSQL = `
WITH RECURSIVE k AS (
    SELECT k.route, coalesce(lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM {routes} ro) k
), f AS (
    SELECT k.route, k.next FROM k
    UNION ALL
    SELECT (SELECT o.route FROM {outbox} o WHERE ` + expiresSQL + ` AND o.route > f.route AND o.route < f.next ORDER BY o.route LIMIT 1), f.next
    FROM f WHERE f.route IS NOT NULL
), n AS MATERIALIZED (
    SELECT f.route, ~coalesce((SELECT bit_or(un.slots) FROM {partitions} un WHERE un.route = f.route AND un.owner <> 0), 0) AS slots
    FROM f WHERE f.route IS NOT NULL
), w AS MATERIALIZED (
    SELECT x.at, x.retry FROM n CROSS JOIN LATERAL (
        SELECT o.ctid AS at, o.retry FROM {outbox} o
        WHERE o.route = n.route AND ` + expiresSQL + ` AND ` + inLineSQL + ` = 0 AND o.expires_at <= statement_timestamp()
          AND o.expires_at >= coalesce($1::timestamptz, '-infinity')
          AND NOT ` + liveHoldSQL + `
        ORDER BY o.expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED
    ) x
    LIMIT 1000
), x AS MATERIALIZED (
    SELECT x.at FROM n CROSS JOIN LATERAL (
        SELECT o.ctid AS at FROM {outbox} o
        WHERE o.route = n.route AND ` + expiresSQL + ` AND ` + inLineSQL + ` = 1 AND o.expires_at <= statement_timestamp()
          AND o.expires_at >= coalesce($1::timestamptz, '-infinity')
          AND (n.slots >> o.slot::int) & '1' = 1 AND NOT ` + liveHoldSQL + `
        ORDER BY o.expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED
    ) x
    WHERE n.slots <> 0 LIMIT 1000 - (SELECT count(*) FROM w)
), u AS (
    UPDATE {outbox} o
    SET state = {abandoned}, reason = {expired}, blocks = o.key <> '', due_at = NULL, retry = false, hold = 0, held_since = NULL,
        settled_at = clock_timestamp(), version = o.version + 1, maybe_sent = o.maybe_sent OR o.hold <> 0 OR ` + carefulSQL + `
    FROM (SELECT w.at, w.retry AS tell FROM w UNION ALL SELECT x.at, false FROM x) d
    WHERE o.ctid = d.at
    RETURNING o.route, o.seq, o.id, o.key, o.slot, d.tell
), c AS (
    INSERT INTO {notices} (kind, route, slot, slots, key, id, seq)
    SELECT {tell_key}, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq FROM u WHERE u.key <> '' AND u.tell
)
SELECT count(*), statement_timestamp() FROM u`

// The index of live records that expire: its predicate, and its second column. It is one index for waiting and for due
// records, since each index makes all staging slower.
const (
	expiresSQL = `o.expires_at IS NOT NULL AND o.settled_at IS NULL`
	inLineSQL  = `CASE WHEN o.due_at IS NULL THEN 1 ELSE 0 END`
)

// purgeSQL deletes settled rows of one class, the oldest first. Of a row that blocks its key the owner is told.
func purgeSQL(class core.RetentionClass) string {
	return fmt.Sprintf(`
WITH d AS MATERIALIZED (
    SELECT e.route, e.seq FROM {outbox} e
    WHERE CASE WHEN e.reason = '' THEN {class_published} WHEN e.reason IN {cancelled_or_replaced} THEN {class_cancelled} ELSE {class_abandoned} END = %d
      AND e.settled_at IS NOT NULL AND e.settled_at <= statement_timestamp() - $1::bigint::float8 * interval '1 microsecond' AND e.state = %d
      AND e.settled_at >= coalesce($2::timestamptz, '-infinity')
    ORDER BY e.settled_at LIMIT %d FOR UPDATE SKIP LOCKED
), x AS (
    DELETE FROM {outbox} o USING d
    WHERE o.route = d.route AND o.seq = d.seq AND o.settled_at IS NOT NULL
    RETURNING o.*
), c AS (
    INSERT INTO {notices} (kind, route, slot, slots, key, id, seq)
    SELECT {tell_key}, x.route, x.slot, 1::bigint << x.slot::int, x.key, x.id, x.seq FROM x WHERE x.blocks
)
SELECT x.state, x.reason, count(*), max(x.settled_at) FROM x GROUP BY 1, 2`, class, class.State(), cleanBatch)
}

type cleanStatements struct {
	elect, sweep string
	purge        [core.RetentionCancelled + 1]string
}

func newCleanStatements(n schema.Names) cleanStatements {
	s := cleanStatements{elect: n.SQL(electSQL), sweep: n.SQL(sweepSQL)}
	for _, class := range core.RetentionClasses() {
		s.purge[class] = n.SQL(purgeSQL(class))
	}
	return s
}

var _ core.Cleaner = (*Outbox)(nil)

// Clean keeps the outbox small; see [core.Cleaner]. One call abandons up to 1,000 messages that expired while they
// waited for a time, or are due in partitions without an owner, and deletes up to 1,000 records each of those
// published, abandoned and cancelled whose time in Options.Retention is over, by the database's clock. The lease is a
// row of waybill_meta, from a millisecond to an hour long. Clean waits for no lock of rows: locked rows are left for
// the next call.
func (o *Outbox) Clean(ctx context.Context, owner string, lease time.Duration) (core.Cleaned, error) {
	if err := core.CheckClean(owner, lease); err != nil {
		return core.Cleaned{}, err
	}
	var done core.Cleaned
	err := o.transact(ctx, "clean: take the lease", writeSQL, func(b *batch) {
		done = core.Cleaned{}
		b.each(func(pgx.Rows) error { done.Leader = true; return nil }, b.sql.clean.elect,
			core.ErrorText(errors.New(owner)), micros(lease), micros(core.MaxCleanLease))
	})
	if err != nil || !done.Leader {
		return done, err
	}
	// Each purge goes on where the latest one ended; see resume.
	began := time.Now()
	var from, newest, ends [core.RetentionCancelled + 1]*time.Time
	for _, class := range core.RetentionClasses() {
		from[class] = o.cleaned[class].start(began)
	}
	sweepFrom := o.swept.start(began)
	var swept *time.Time
	err = o.transact(ctx, "clean", writeSQL, func(b *batch) {
		done = core.Cleaned{Leader: true, Deleted: map[core.CleanedKind]int{}}
		clear(newest[:])
		clear(ends[:])
		swept = nil
		var now time.Time
		b.Queue(b.sql.clean.sweep, sweepFrom).QueryRow(func(row pgx.Row) error {
			err := row.Scan(&done.Expired, &now)
			if done.Expired < cleanBatch {
				at := now
				swept = &at // nothing before is left but locked rows, and those that become free
			} else {
				done.More = true
			}
			return err
		})
		for _, class := range core.RetentionClasses() {
			keep := class.KeptFor(o.opts.Retention)
			if keep == waybill.Forever {
				continue
			}
			b.Queue(b.sql.clean.purge[class], keep.Microseconds(), from[class]).Query(func(rows pgx.Rows) (err error) {
				var full bool
				if newest[class], full, err = readPurged(rows, &done); !full {
					end := now.Add(-keep)
					ends[class] = &end
				}
				return err
			})
		}
	})
	if err != nil {
		clear(newest[:]) // but not at once from the beginning again
		clear(ends[:])
		swept = nil
	}
	o.swept.done(sweepFrom, began, time.Now(), swept, nil)
	for _, class := range core.RetentionClasses() {
		o.cleaned[class].done(from[class], began, time.Now(), newest[class], ends[class])
	}
	if err != nil {
		return core.Cleaned{Leader: true}, err
	}
	return done, nil
}

// readPurged adds what purgeSQL answers, and returns when the newest was settled that it deleted, and whether there may
// be more.
func readPurged(rows pgx.Rows, done *core.Cleaned) (newest *time.Time, full bool, err error) {
	total := 0
	for rows.Next() {
		var state int16
		var kind core.CleanedKind
		var n int
		var at time.Time
		if err := rows.Scan(&state, &kind.Reason, &n, &at); err != nil {
			return nil, true, err
		}
		if newest == nil || at.After(*newest) {
			newest = &at
		}
		kind.State = core.State(state)
		done.Deleted[kind] += n
		total += n
	}
	full = total >= cleanBatch
	done.More = done.More || full
	return newest, full, rows.Err()
}
