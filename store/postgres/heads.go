package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
)

var _ core.KeyKeeper = (*Outbox)(nil)

// keySteps is how many keys one statement of BlockedKeys looks at.
const keySteps = 1000

// A row e holds back its key while it waits for a retry, or is abandoned and the route blocks then. The first line of
// each has the predicate of an index, which goes by route and key; coalesce is a column of the first, so that nobody takes the one by time.
const (
	retryWaits = `e.settled_at IS NULL AND e.holds AND e.key <> ''
        AND coalesce(e.due_at, '-infinity') > statement_timestamp() AND e.lease_until IS NULL`
	abandonedWaits = `e.reason <> ''
        AND e.settled_at IS NOT NULL AND e.reason NOT IN ` + notBlocking
)

// nextKeySQL is the first key after a key of which a row may wait.
func nextKeySQL(after string) string {
	return `SELECT min(x.key) FROM (
        (SELECT e.key FROM {outbox} e WHERE e.route = $1 AND e.key > ` + after + ` AND e.settled_at IS NULL AND e.holds AND e.key <> '' ORDER BY e.key LIMIT 1)
        UNION ALL
        (SELECT e.key FROM {outbox} e WHERE $3 AND e.route = $1 AND e.key > ` + after + ` AND e.reason <> '' ORDER BY e.key LIMIT 1)
    ) x`
}

// blockedSQL goes from key to key of route $1 after $2, in two indexes, at most $4 steps, and finds the head of each.
var blockedSQL = `
WITH RECURSIVE k AS (
    SELECT (` + nextKeySQL("$2") + `) AS key, 1 AS i
    UNION ALL
    SELECT (` + nextKeySQL("k.key") + `), k.i + 1 FROM k WHERE k.key IS NOT NULL AND k.i < $4::int
)
SELECT k.key, h.* FROM k LEFT JOIN LATERAL (
    SELECT w.cause, CASE WHEN o.settled_at IS NULL THEN 0 ELSE (extract(epoch FROM statement_timestamp() - o.settled_at) * 1000000)::bigint END AS settled,` + storedSQL + `
    FROM (
        (SELECT e.seq, 'retry' AS cause FROM {outbox} e WHERE e.route = $1 AND e.key = k.key AND ` + retryWaits + ` ORDER BY e.seq + 0 LIMIT 1)
        UNION ALL
        (SELECT e.seq, 'abandoned' FROM {outbox} e WHERE $3 AND e.route = $1 AND e.key = k.key AND ` + abandonedWaits + ` ORDER BY e.seq LIMIT 1)
        ORDER BY seq LIMIT 1
    ) w JOIN {outbox} o ON o.seq = w.seq
) h ON true
WHERE k.key IS NOT NULL ORDER BY k.i`

// BlockedKeys lists keys whose head waits; see [core.KeyKeeper]. Keys are in the order of their bytes. It
// goes from key to key by index, over those that hold back or have abandoned messages. Since counts from the end of an
// abandoned head; of one that waits for a retry, from when it was first due.
func (o *Outbox) BlockedKeys(ctx context.Context, route string, blockAfterAbandon bool, after string, limit int) (keys []core.BlockedKey, more bool, err error) {
	limit, err = core.CheckBlockedKeys(route, limit)
	if err != nil {
		return nil, false, err
	}
	if err := o.ready(ctx); err != nil {
		return nil, false, err
	}
	for {
		var found []core.BlockedKey
		var steps int
		last := after
		err := o.transact(ctx, "blocked keys", func(b *pgx.Batch) {
			found, steps, last = nil, 0, after
			b.Queue(o.names.sql(blockedSQL), route, after, blockAfterAbandon, keySteps).Query(func(rows pgx.Rows) error {
				for rows.Next() {
					steps++
					b := core.BlockedKey{Route: route}
					if rows.RawValues()[1] == nil { // it goes on
						if err := rows.Scan(append([]any{&last}, make([]any, len(rows.FieldDescriptions())-1)...)...); err != nil {
							return err
						}
						continue
					}
					var settled int64
					var err error
					if b.Head, err = scanStored(rows, o.opts.Source, []any{&b.Key, &b.Cause, &settled}, nil); err != nil {
						return err
					}
					last = b.Key
					if b.Since = max(b.Head.Age, 0); b.Head.State == core.StateAbandoned {
						b.Since = time.Duration(max(settled, 0)) * time.Microsecond
					}
					found = append(found, b)
				}
				return rows.Err()
			})
		})
		if err != nil {
			return nil, false, err
		}
		if keys = append(keys, found...); len(keys) > limit {
			return keys[:limit], true, nil
		}
		if steps < keySteps {
			return keys, false, nil
		}
		after = last
	}
}

// lockHeadSQL waits for whoever is about to change the row, for the length of a round trip, so that decideSQL sees what
// became of it: a statement does not see what was committed after it began.
const lockHeadSQL = `SELECT FROM {outbox} o WHERE o.route = $1 AND o.id = $2 AND o.key = $3 FOR UPDATE`

// decideSQL changes the row if it is the head of its key, and says what it found.
//
//	h  the row; it is the head if nothing before it waits. An abandoned one before it does not count if it waits for a
//	   retry: the route may go on after those
func decideSQL(requeue bool) string { //nolint:revive // a variant of one statement
	set, can := `
    state = 5, reason = $4::text, due_at = NULL, settled_at = statement_timestamp(), lease_until = NULL, lease_token = 0`, ``
	if requeue {
		set, can = requeueSQL, ` AND h.expired IS NULL AND NOT h.duplicate AND $4::text = ''`
	}
	return `
WITH h AS MATERIALIZED (
    SELECT e.seq, e.state = 2 AS leased, CASE WHEN e.expires_at <= statement_timestamp() THEN greatest(e.expires_at, 'epoch') END AS expired,
        e.dedupe_key <> '' AND e.settled_at IS NOT NULL AND EXISTS (SELECT FROM {outbox} d WHERE d.route = e.route AND d.topic = e.topic
            AND d.dedupe_key = e.dedupe_key AND d.dedupe_key <> '' AND d.settled_at IS NULL) AS duplicate,
        (` + retryWaits + ` OR ` + abandonedWaits + `) IS TRUE
        AND NOT EXISTS (SELECT FROM {outbox} e WHERE e.route = $1 AND e.key = $3 AND e.seq < h.seq AND ` + retryWaits + `)
        AND (h.settled_at IS NULL OR NOT EXISTS (SELECT FROM {outbox} e WHERE e.route = $1 AND e.key = $3 AND e.seq < h.seq AND ` + abandonedWaits + `)) AS head
    FROM {outbox} h CROSS JOIN LATERAL (SELECT h.*) e WHERE h.route = $1 AND h.id = $2 AND h.key = $3
), u AS (
    UPDATE {outbox} o SET` + set + ` FROM h WHERE o.seq = h.seq AND h.head AND NOT h.leased` + can + ` AND o.state <> 2 RETURNING o.seq, o.route
)
SELECT h.leased, h.head, h.expired, h.duplicate, EXISTS (SELECT FROM u), ` + notifySQL + `$5::boolean) FROM h`
}

// DecideHead skips, parks or requeues the head of a blocked key; see [core.KeyKeeper]. It compares and sets: whatever
// relays do at the same time, either they have the head or the decision holds. It waits for a transaction that cancels
// the head.
func (o *Outbox) DecideHead(ctx context.Context, route, key, id string, action core.HeadAction) error {
	if err := core.CheckDecide(route, key, id, action); err != nil {
		return err
	}
	if err := o.ready(ctx); err != nil {
		return err
	}
	const op = "waybill/postgres: decide head"
	reason := map[core.HeadAction]core.Reason{core.HeadSkip: core.ReasonSkipped, core.HeadPark: core.ReasonParked}[action]
	sql := o.names.sql(decideSQL(action == core.HeadRequeue))
	var leased, head, duplicate, done bool
	var expired *time.Time
	err := o.again(func() error {
		return o.transact(ctx, "decide head", func(b *pgx.Batch) {
			leased, head, duplicate, done, expired = false, false, false, false, nil
			b.Queue(o.names.sql(lockHeadSQL), route, id, key)
			b.Queue(sql, route, id, key, string(reason), !o.opts.NotifyOff).Query(func(rows pgx.Rows) error {
				for rows.Next() {
					if err := rows.Scan(&leased, &head, &expired, &duplicate, &done, nil); err != nil {
						return err
					}
				}
				return rows.Err()
			})
		})
	})
	switch {
	case err != nil:
		return err
	case done:
		o.stir()
		return nil
	case leased:
		return core.HeadInFlight(op, route, key, id)
	case head && expired != nil:
		return core.HeadExpired(id, *expired)
	case head && duplicate:
		return core.HeadDuplicate(id)
	}
	return core.NotHead(op, route, key, id)
}
