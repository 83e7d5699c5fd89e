package postgres

import "github.com/waybill-go/waybill"

// Messages with a dedupe key are staged by a statement of their own; those without never pay for it.

const (
	keyedFromSQL = `unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
        $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[],
        $17::timestamptz[], $18::bigint[], $19::text[], $20::boolean[]) WITH ORDINALITY
        AS r(` + insertedSQL + `, at, delay, dedupe_key, replace, n)`

	// knownSQL is the source of the message with the id of r on its route; null = there is none.
	knownSQL = `(SELECT o.source FROM {outbox} o WHERE o.route = r.route AND o.id = r.id AND o.own_id LIMIT 1)`

	// holderOfSQL is the live message with the dedupe key of r. A producer may read its id and its source, no more.
	holderOfSQL  = `CROSS JOIN LATERAL (SELECT ` + lookedUpSQL + `, o.source` + liveOfKeySQL
	holderIDSQL  = `CROSS JOIN LATERAL (SELECT o.id, o.source` + liveOfKeySQL
	liveOfKeySQL = ` FROM {outbox} o
        WHERE o.route = r.route AND o.topic = r.topic AND o.dedupe_key = r.dedupe_key AND o.dedupe_key <> '' AND o.settled_at IS NULL
        LIMIT 1
    ) o`
)

// insertKeyedSQL inserts the rows of r; $21 says that their ids may exist twice.
func insertKeyedSQL(notify bool, where string) string {
	columns, values := "", ""
	if notify {
		columns, values = ", maybe_sent", ", "+wakeSQL("r.route", "d.at")
	}
	return `i AS (
    INSERT INTO {outbox} (` + insertedSQL + `, due_at, ready_since, dedupe_key, own_id` + columns + `)
    SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
           r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable,
           ` + dueSQL("d.at") + `, r.dedupe_key, $21::boolean` + values + `
    FROM r
    CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0)::float8 * interval '1 microsecond') AS at) d` + where + `
    ON CONFLICT DO NOTHING
    RETURNING route, id
)
SELECT 0, 0::bigint, i.route, i.id, 0 FROM i`
}

// keyedSQL inserts first and looks up then, and only the rows in the way: so it reads nothing that another transaction
// may write, which would fail one of the two under SERIALIZABLE.
func keyedSQL(notify bool) string {
	return `
WITH r AS MATERIALIZED (SELECT * FROM ` + keyedFromSQL + `), ` + insertKeyedSQL(notify, "") + `
UNION ALL (
    WITH left_out AS MATERIALIZED (SELECT r.* FROM r WHERE (r.route, r.id) NOT IN (SELECT i.route, i.id FROM i))
    SELECT 1, r.n, '', '', (k.source <> r.source)::int FROM left_out r CROSS JOIN LATERAL (SELECT ` + knownSQL + ` AS source) k WHERE k.source IS NOT NULL
    UNION ALL
    SELECT 2 + (o.source <> r.source)::int, r.n, '', o.id, 0 FROM left_out r ` + holderIDSQL + ` WHERE r.dedupe_key <> ''
)`
}

// replacingSQL is for calls in which a message replaces another one. It does in this order:
//
//	r  what is to be staged, and whether its (route, id) is there already
//	f  the live messages with these dedupe keys; other is whether another source has one
//	l  those of them that are to be replaced, locked in the order of sequences
//	t  those of l that can be cancelled
//	x  their cancellation, and c, what their owners are told
//	g  those in flight give their key up instead: they will be, or were, sent
//	i  the new rows. That they come after x and g is forced by asking for the number of those
func replacingSQL(notify, keep bool) string {
	return `
WITH r AS MATERIALIZED (
    SELECT r.*, k.source AS known FROM ` + keyedFromSQL + ` CROSS JOIN LATERAL (SELECT ` + knownSQL + ` AS source) k
), f AS MATERIALIZED (
    SELECT r.n, o.source <> r.source AS other, r.replace AND r.known IS NULL AND o.source = r.source AS replace, ` + foundSQL + `, ` + statusSQL + ` AS status
    FROM r ` + holderOfSQL + ` WHERE r.dedupe_key <> ''
), l AS MATERIALIZED (
    SELECT f.* FROM (SELECT f.* FROM f WHERE f.replace ORDER BY f.route, f.seq) f ` + lockFoundSQL + `
), t AS MATERIALIZED (
    SELECT l.* FROM l WHERE l.status <> {in_flight}
), ` + cancelRecordsSQL(waybill.ReasonReplaced, keep) + `, g AS (
    UPDATE {outbox} o SET dedupe_key = '', version = o.version + (o.hold = 0)::int FROM l
    WHERE o.route = l.route AND o.seq = l.seq AND l.status = {in_flight}
    RETURNING 1
), ` + insertKeyedSQL(notify, `
    WHERE r.known IS NULL AND (SELECT count(*) FROM x) + (SELECT count(*) FROM g) >= 0`) + `
UNION ALL SELECT 1, r.n, '', '', (r.known <> r.source)::int FROM r WHERE r.known IS NOT NULL
UNION ALL SELECT 2 + f.other::int, f.n, '', f.id, coalesce(l.status, 0) FROM f LEFT JOIN l ON l.n = f.n`
}

// holdersSQL finds the live messages with dedupe keys.
const holdersSQL = `
SELECT r.n, o.id, o.source <> r.source
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS r(route, topic, dedupe_key, source, n) ` + holderIDSQL

// unstageSQL takes back what this transaction has just staged.
const unstageSQL = `
DELETE FROM {outbox} o USING unnest($1::text[], $2::text[]) AS r(route, id)
WHERE o.route = r.route AND o.id = r.id AND o.own_id
RETURNING 1`
