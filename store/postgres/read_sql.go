package postgres

import "github.com/waybill-go/waybill/store/postgres/internal/schema"

type readStatements struct {
	page, upper               string
	ranges, rangesBut, keys   bounded
	keysWaiting, fresh, again string
}

// bounded is a statement for records whose bodies share the bytes, and the same one that adds the bytes up.
type bounded struct{ shared, added string }

func (b *bounded) of(shared bool) string {
	if shared {
		return b.shared
	}
	return b.added
}

// newBounded puts a statement together.
func newBounded(n schema.Names, head, records string) bounded {
	return bounded{
		shared: n.SQL(head + shareSQL + records + sharedSQL),
		added:  n.SQL(head + boundSQL + records + boundedSQL),
	}
}

func newReadStatements(n schema.Names) readStatements {
	return readStatements{
		page: n.SQL(pageSQL), upper: n.SQL(upperSQL),
		ranges: newBounded(n, rangesSQL, ofRangesSQL+bySeqSQL), rangesBut: newBounded(n, rangesSQL, ofRangesSQL+skipSQL+bySeqSQL),
		keys:        newBounded(n, keysSQL, ofKeysSQL+byKeySQL),
		keysWaiting: n.SQL(keysWaitingSQL), fresh: n.SQL(freshSQL), again: n.SQL(againSQL),
	}
}

// epochSQL changes when a standby is promoted, and when an operator raises it after a restore.
const epochSQL = `(SELECT left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) || '/' || value::text FROM {meta} WHERE name = {epoch})`

// sameLifeSQL says of the epoch that a call names, like rules.SameLife, whether it may store how far its caller has
// read.
const sameLifeSQL = ` IN ('', ` + epochSQL + `)`

// pageSQL is what a page says besides records. The numbers are looked up after the snapshot was taken. A
// transaction has its id before it numbers a notice: it locks a row first.
const pageSQL = `
SELECT m.session IS NOT NULL, coalesce(m.suspected, false), ` + epochSQL + `, {last}, clock_timestamp(),
       pg_snapshot_xmax(s.now)::text::bigint, ARRAY(SELECT x::text::bigint FROM pg_snapshot_xip(s.now) x),
       ARRAY(SELECT coalesce((SELECT bit_or(un.slots) FROM {partitions} un WHERE un.route = p.route AND un.owner = $1), 0) & p.slots
             FROM unnest($2::text[], $3::bigint[]) WITH ORDINALITY AS p(route, slots, n) ORDER BY p.n),
       {last_notice},
       (SELECT json_agg(q) FROM (
            SELECT c.number AS "Number", c.kind AS "Kind", c.route AS "Route", c.slot AS "Slot", c.key AS "Key", c.id AS "ID",
                   c.seq AS "Seq", c.reason AS "Reason"
            FROM {notices} c
            WHERE EXISTS (SELECT FROM unnest($2::text[], $3::bigint[]) AS p(route, slots)
                          WHERE p.route = c.route AND c.slots & p.slots <> 0) AND c.number > $4
            ORDER BY c.number LIMIT 1000
        ) q)
FROM (SELECT pg_current_snapshot() AS now) s LEFT JOIN {members} m ON m.session = $1`

// upperSQL draws an id if numbers were drawn since $1, or those of notices since $2.
const upperSQL = `SELECT CASE WHEN {last} > $1::bigint OR {last_notice} > $2::bigint THEN pg_current_xact_id()::text::bigint ELSE 0 END`

// The records of ranges and of keys. boundSQL goes before these, and shareSQL or boundedSQL after them.
const (
	rangesSQL = `
SELECT u.n, c.*
FROM unnest($2::int[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::boolean[], $8::int[])
     AS u(n, route, slots, lo, hi, keyed, max)
CROSS JOIN LATERAL (`
	ofRangesSQL = `
    SELECT r.* FROM {outbox} r
    WHERE r.route = u.route AND r.seq > u.lo AND r.seq <= u.hi AND r.due_at IS NULL AND r.settled_at IS NULL
      AND (u.slots >> r.slot::int) & '1' = 1 AND (r.key <> '' OR NOT u.keyed)`
	skipSQL  = ` AND r.seq NOT IN (SELECT unnest($9::bigint[]))`
	bySeqSQL = `
    ORDER BY r.seq LIMIT u.max`

	keysSQL = `
SELECT u.n, c.*
FROM unnest($2::int[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::int[]) AS u(n, route, key, lo, hi, max)
CROSS JOIN LATERAL (`
	// The pairs can be looked up in the index of keys alone. For r.seq > u.lo the planner would take the primary
	// key when few live records are left among many dead ones, and walk all of them for each key.
	ofKeysSQL = `
    SELECT r.* FROM {outbox} r
    WHERE r.route = u.route AND (r.key, r.seq) > (u.key, u.lo) AND (r.key, r.seq) <= (u.key, u.hi) AND r.key <> ''
      AND r.due_at IS NULL AND r.settled_at IS NULL`
	byKeySQL = `
    ORDER BY r.key, r.seq LIMIT u.max`

	// A record that goes beyond the bytes comes without its body, as a sign that there are more; the records behind
	// it do not come, or do not count. Adding the bytes up takes longer than reading the records. Mostly it does:
	// no body has more than its share.
	shareSQL  = `SELECT ` + recordSQL + `, CASE WHEN octet_length(r.body) <= $1::bigint / u.max THEN r.body END FROM (`
	sharedSQL = `) r) c`
	boundSQL  = `
    SELECT ` + recordSQL + `, CASE WHEN r.sum <= $1::bigint OR r.nr = 1 THEN r.body END FROM (
    SELECT r.*, sum(octet_length(r.body)) OVER w AS sum, row_number() OVER w AS nr FROM (`
	boundedSQL = `
    ) r WINDOW w AS (ORDER BY r.seq ROWS UNBOUNDED PRECEDING)) r WHERE r.sum - octet_length(r.body) <= $1::bigint OR r.nr <= 2) c`
)

const (
	keysWaitingSQL = `
SELECT u.n, ` + waitingSQL + ` FROM unnest($2::int[], $3::text[], $4::text[]) AS u(n, route, key)
CROSS JOIN LATERAL (
    SELECT r.*, ` + whySQL + ` AS why, ` + holderSQL + ` AS holder FROM {outbox} r
    WHERE r.route = u.route AND r.key = u.key AND r.key <> '' AND (r.retry OR r.hold <> 0)
    UNION ALL
    SELECT r.*, {blocking}, 0 FROM {outbox} r WHERE r.route = u.route AND r.key = u.key AND r.blocks AND r.route = ANY ($5::text[])
) r
WHERE r.why IS NOT NULL ORDER BY u.n, r.seq`

	freshSQL = `
SELECT 0, ` + waitingSQL + ` FROM unnest($2::text[], $3::bigint[]) AS p(route, slots)
CROSS JOIN LATERAL (
    (SELECT r.route, r.seq, r.id, r.version, r.slot, r.key, ` + whySQL + ` AS why, ` + holderSQL + ` AS holder
     FROM {outbox} r
     WHERE r.route = p.route AND r.seq > $4 AND (p.slots >> r.slot::int) & '1' = 1 AND (r.retry OR r.hold <> 0) AND r.seq > 0
       AND ` + whySQL + ` IS NOT NULL
     ORDER BY r.seq LIMIT $5)
    UNION ALL
    (SELECT r.route, r.seq, r.id, r.version, r.slot, r.key, {blocking}, 0
     FROM {outbox} r
     WHERE r.route = p.route AND r.seq > $4 AND (p.slots >> r.slot::int) & '1' = 1 AND r.blocks AND r.key <> ''
       AND r.route = ANY ($6::text[])
     ORDER BY r.seq LIMIT $5)
) r
ORDER BY r.seq LIMIT $5`

	// Those that wait come without a body.
	againSQL = `
SELECT u.n, ` + recordSQL + `, CASE WHEN a.why = 0 THEN r.body END, a.why
FROM unnest($2::int[], $3::text[], $4::bigint[], $5::text[]) AS u(n, route, seq, id)
JOIN {outbox} r ON r.route = u.route AND r.seq = u.seq AND r.id = u.id
CROSS JOIN LATERAL (
    SELECT CASE WHEN r.settled_at IS NOT NULL THEN CASE WHEN r.blocks AND r.route = ANY ($6::text[]) THEN {blocking} END
                WHEN r.due_at IS NULL OR ` + holderSQL + ` <> 0 THEN 0
                WHEN r.retry THEN {retrying} END AS why
) a
WHERE a.why IS NOT NULL AND $1::bigint <> 0`
)
