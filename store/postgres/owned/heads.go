package owned

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
// each has the predicate of an index, which goes by route and key; coalesce is a column of none, so that nobody takes
// the one by time.
const (
	retryWaits = `e.retry AND e.key <> ''
        AND coalesce(e.due_at, '-infinity') > statement_timestamp() AND NOT (e.hold <> 0 AND EXISTS (SELECT FROM {members} me WHERE me.session = e.hold))`
	abandonedWaits = `e.blocks`
)

// nextKeySQL is the first key after a key of which a row may wait.
func nextKeySQL(after string) string {
	return `SELECT min(x.key) FROM (
        (SELECT e.key FROM {outbox} e WHERE e.route = $1 AND e.key > ` + after + ` AND e.retry AND e.key <> '' ORDER BY e.key LIMIT 1)
        UNION ALL
        (SELECT e.key FROM {outbox} e WHERE $3 AND e.route = $1 AND e.key > ` + after + ` AND e.blocks ORDER BY e.key LIMIT 1)
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
        (SELECT e.seq, 'retry' AS cause FROM {outbox} e WHERE e.route = $1 AND e.key = k.key AND ` + retryWaits + ` ORDER BY e.seq LIMIT 1)
        UNION ALL
        (SELECT e.seq, 'abandoned' FROM {outbox} e WHERE $3 AND e.route = $1 AND e.key = k.key AND ` + abandonedWaits + ` ORDER BY e.seq LIMIT 1)
        ORDER BY seq LIMIT 1
    ) w JOIN {outbox} o ON o.route = $1 AND o.seq = w.seq
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
	for {
		var found []core.BlockedKey
		var steps int
		last := after
		err := o.transact(ctx, "blocked keys", readSQL, func(b *batch) {
			found, steps, last = nil, 0, after
			b.each(func(rows pgx.Rows) error {
				steps++
				if rows.RawValues()[1] == nil { // it goes on
					return rows.Scan(append([]any{&last}, make([]any, len(rows.FieldDescriptions())-1)...)...)
				}
				b := core.BlockedKey{Route: route}
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
				return nil
			}, blockedSQL, route, after, blockAfterAbandon, keySteps)
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
const lockHeadSQL = `SELECT FROM {outbox} o JOIN ` + headSQL + ` h ON h.seq = o.seq WHERE o.route = $1 FOR NO KEY UPDATE OF o`

// decideSQL changes the row if it is the head of its key, and says what it found.
//
//	h  the row; it is the head if nothing before it waits. An abandoned one before it does not count if it waits for a
//	   retry: the route may go on after those
//	u  the change, and c, what the key's owner is told
func decideSQL(requeue bool) string { //nolint:revive // a variant of one statement
	set, can := `
    state = 5, reason = $4::text, due_at = NULL, retry = false, blocks = false, settled_at = statement_timestamp(), hold = 0, held_since = NULL, version = o.version + 1`, ``
	if requeue {
		set, can = requeueSQL, ` AND h.expired IS NULL AND NOT h.duplicate AND $4::text = ''`
	}
	return `
WITH h AS MATERIALIZED (
    SELECT e.seq, e.hold <> 0 AND EXISTS (SELECT FROM {members} me WHERE me.session = e.hold) AS held,
        CASE WHEN e.expires_at <= statement_timestamp() THEN greatest(e.expires_at, 'epoch') END AS expired,
        e.dedupe_key <> '' AND e.settled_at IS NOT NULL AND EXISTS (SELECT FROM {outbox} d WHERE d.route = e.route AND d.topic = e.topic
            AND d.dedupe_key = e.dedupe_key AND d.dedupe_key <> '' AND d.settled_at IS NULL) AS duplicate,
        (` + retryWaits + ` OR ` + abandonedWaits + `) IS TRUE
        AND NOT EXISTS (SELECT FROM {outbox} e WHERE e.route = $1 AND e.key = $3 AND e.seq < h.seq AND ` + retryWaits + `)
        AND (h.settled_at IS NULL OR NOT EXISTS (SELECT FROM {outbox} e WHERE e.route = $1 AND e.key = $3 AND e.seq < h.seq AND ` + abandonedWaits + `)) AS head
    FROM ` + headSQL + ` h CROSS JOIN LATERAL (SELECT h.*) e
), u AS (
    UPDATE {outbox} o SET` + set + ` FROM h WHERE o.route = $1 AND o.seq = h.seq AND h.head AND NOT h.held` + can + ` RETURNING o.route, o.seq, o.slot
), c AS (
    INSERT INTO {control} (kind, route, slot, slots, key, id, seq) SELECT 1, $1, u.slot, 1::bigint << u.slot, $3, $2, u.seq FROM u
)
SELECT h.held, h.head, h.expired, h.duplicate, EXISTS (SELECT FROM u), ` + notifySQL + `$5::boolean) FROM h`
}

// headSQL is the message $2 of key $3, which waits or is abandoned, or is held.
const headSQL = `(
        SELECT o.* FROM {outbox} o WHERE o.route = $1 AND o.id = $2 AND o.key = $3 AND o.own_id
        UNION ALL
        SELECT o.* FROM {outbox} o WHERE o.route = $1 AND o.id = $2 AND o.key = $3 AND ` + inFoundSQL + `
    )`

// DecideHead skips, parks or requeues the head of a blocked key; see [core.KeyKeeper]. It compares and sets: whatever
// relays do at the same time, either they have the head or the decision holds. It waits for a transaction that cancels
// the head, for at most two seconds.
func (o *Outbox) DecideHead(ctx context.Context, route, key, id string, action core.HeadAction) error {
	if err := core.CheckDecide(route, key, id, action); err != nil {
		return err
	}
	const op = "waybill/postgres: decide head"
	reason := map[core.HeadAction]core.Reason{core.HeadSkip: core.ReasonSkipped, core.HeadPark: core.ReasonParked}[action]
	var held, head, duplicate, done bool
	var expired *time.Time
	err := o.again(func() error {
		return o.transact(ctx, "decide head", writeSQL, func(b *batch) {
			held, head, duplicate, done, expired = false, false, false, false, nil
			b.query(lockHeadSQL, route, id, key)
			b.each(func(rows pgx.Rows) error { return rows.Scan(&held, &head, &expired, &duplicate, &done, nil) },
				decideSQL(action == core.HeadRequeue), route, id, key, string(reason), !o.opts.NotifyOff)
		})
	})
	switch {
	case err != nil:
		return err
	case done:
		o.waiter.wake()
		return nil
	case held:
		return core.HeadInFlight(op, route, key, id)
	case head && expired != nil:
		return core.HeadExpired(id, *expired)
	case head && duplicate:
		return core.HeadDuplicate(id)
	}
	return core.NotHead(op, route, key, id)
}
