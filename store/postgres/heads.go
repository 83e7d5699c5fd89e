package postgres

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

var _ admin.BlockedKeys = (*Outbox)(nil)

const (
	// keySteps is how many keys one statement of BlockedKeys looks at.
	keySteps = 1000
	// maxTrials is how many retries are looked at for topics that no queue is bound for. Those that try whether
	// one is are due soonest.
	maxTrials = 1000
)

// A row e holds back its key while it waits for a retry that no member holds yet, or is abandoned and the route blocks
// then.
const (
	// The CASE keeps the planner from looking for the holds of a key in the index of all holds.
	heldWaits      = `CASE WHEN e.hold <> 0 THEN EXISTS (SELECT FROM {members} me WHERE me.session = e.hold) ELSE false END`
	retryWaits     = `e.retry AND e.key <> '' AND NOT ` + heldWaits
	abandonedWaits = `e.blocks`
	readyOfKey     = `e.key <> '' AND e.due_at IS NULL AND e.settled_at IS NULL`
)

// unboundSQL are the topics that no queue is bound for, and the rows that try: those of the first maxTrials retries
// whose error says text.
func unboundSQL(text string) string {
	return `unbound AS MATERIALIZED (
    SELECT DISTINCT ON (x.topic) x.topic, x.seq FROM (
        SELECT e.topic, e.seq, e.last_error FROM {outbox} e WHERE e.route = $1 AND e.retry ORDER BY e.due_at LIMIT ` + strconv.Itoa(maxTrials) + `
    ) x WHERE strpos(x.last_error, ` + text + `) > 0 ORDER BY x.topic, x.seq
)`
}

// nextKeySQL is the first key behind after that has a row of the kind.
func nextKeySQL(after, kind string) string {
	return `(SELECT e.key FROM {outbox} e WHERE ` + kind + ` AND e.route = $1 AND e.key > ` + after + ` ORDER BY e.key LIMIT 1)`
}

// laterKeySQL is the next key of a kind behind k.key. The one that the step before found holds while it is behind
// k.key: the entries of the index before it are read once, however many of them are dead.
func laterKeySQL(found, kind string) string {
	return `CASE WHEN ` + found + ` > k.key THEN ` + found + ` WHEN ` + found + ` = k.key THEN ` + nextKeySQL("k.key", kind) + ` END`
}

// The kinds of rows that may hold back their key.
const (
	ofRetry = `e.retry AND e.key <> ''`
	ofBlock = `$3 AND e.blocks`
	ofReady = `(SELECT count(*) FROM unbound) > 0 AND ` + readyOfKey
)

// blockedSQL goes from key to key of route $1 after $2, in two indexes, at most $4 steps, and finds the head of each.
// If there are topics that no queue is bound for, it goes over all other keys too, in a third index.
var blockedSQL = `
WITH RECURSIVE ` + unboundSQL("$5") + `, k AS (
    SELECT least(n.retry, n.block, n.ready) AS key, n.retry, n.block, n.ready, 1 AS i
    FROM (SELECT ` + nextKeySQL("$2", ofRetry) + ` AS retry, ` + nextKeySQL("$2", ofBlock) + ` AS block, ` + nextKeySQL("$2", ofReady) + ` AS ready) n
    UNION ALL
    SELECT least(n.retry, n.block, n.ready), n.retry, n.block, n.ready, k.i + 1
    FROM k CROSS JOIN LATERAL (
        SELECT ` + laterKeySQL("k.retry", ofRetry) + ` AS retry, ` + laterKeySQL("k.block", ofBlock) + ` AS block, ` + laterKeySQL("k.ready", ofReady) + ` AS ready
    ) n WHERE k.key IS NOT NULL AND k.i < $4::int
)
SELECT k.key, h.* FROM k LEFT JOIN LATERAL (
    SELECT w.cause, n.behind,
        CASE WHEN o.settled_at IS NULL THEN 0
             ELSE (extract(epoch FROM statement_timestamp() - o.settled_at) * '1000000')::bigint END AS settled,
        ` + storedSQL + `
    FROM (
        (SELECT 1 AS turn, e.seq, 'retry' AS cause FROM {outbox} e
         WHERE e.route = $1 AND e.key = k.key AND ` + retryWaits + ` ORDER BY e.seq LIMIT 1)
        UNION ALL
        (SELECT 1, e.seq, 'abandoned' FROM {outbox} e
         WHERE $3 AND e.route = $1 AND e.key = k.key AND ` + abandonedWaits + ` ORDER BY e.seq LIMIT 1)
        UNION ALL
        (SELECT 2, f.seq, 'topic' FROM (
            SELECT e.seq, e.topic, ` + heldWaits + ` AS held FROM {outbox} e
            WHERE e.route = $1 AND e.key = k.key AND ` + readyOfKey + ` ORDER BY e.seq LIMIT 1
         ) f JOIN unbound u ON u.topic = f.topic WHERE NOT f.held
            AND NOT EXISTS (SELECT FROM {outbox} e
                WHERE e.route = $1 AND e.key = k.key AND e.key <> '' AND (e.retry OR e.hold <> 0) AND ` + heldWaits + `))
        ORDER BY turn, seq LIMIT 1
    ) w JOIN {outbox} o ON o.route = $1 AND o.seq = w.seq CROSS JOIN LATERAL (
        SELECT count(*)::int AS behind FROM (
            SELECT FROM {outbox} e WHERE e.route = $1 AND e.key = k.key AND ` + readyOfKey + ` AND e.seq <> w.seq LIMIT ` + strconv.Itoa(admin.MaxPageLimit) + `
        ) b
    ) n WHERE w.cause <> 'topic' OR n.behind > 0
) h ON true
WHERE k.key IS NOT NULL ORDER BY k.i`

// BlockedKeys lists keys whose head waits; see [admin.BlockedKeys]. Keys are in the order of their bytes. It goes from
// key to key by index, over those that hold back or have abandoned messages; over all keys, a thousand in each
// statement, if no queue is bound for some topic. Since counts from the end of an abandoned head; of one that waits for
// a retry, from when it was first due.
func (o *Outbox) BlockedKeys(ctx context.Context, req admin.BlockedKeysRequest) (keys []admin.BlockedKey, more bool, err error) {
	req, err = admin.CheckBlockedKeys(req)
	if err != nil {
		return nil, false, err
	}
	for {
		var found []admin.BlockedKey
		var steps int
		last := req.After
		err := o.transact(ctx, "blocked keys", readSQL, func(b *batch) {
			found, steps, last = nil, 0, req.After
			b.each(func(rows pgx.Rows) error {
				steps++
				if rows.RawValues()[1] == nil { // it goes on
					return rows.Scan(append([]any{&last}, make([]any, len(rows.FieldDescriptions())-1)...)...)
				}
				b := admin.BlockedKey{Route: req.Route}
				var settled int64
				var err error
				if b.Head, err = scanStored(rows, []any{&b.Key, &b.Cause, &b.Behind, &settled}, nil); err != nil {
					return err
				}
				last = b.Key
				if b.Since = max(b.Head.Age, 0); b.Head.State == core.StateAbandoned {
					b.Since = time.Duration(max(settled, 0)) * time.Microsecond
				}
				found = append(found, b)
				return nil
			}, b.sql.admin.blocked, req.Route, req.After, req.BlockAfterAbandon, keySteps, waybill.ErrUnroutable.Error())
		})
		if err != nil {
			return nil, false, err
		}
		if keys = append(keys, found...); len(keys) > req.Limit {
			return keys[:req.Limit], true, nil
		}
		if steps < keySteps {
			return keys, false, nil
		}
		req.After = last
	}
}
