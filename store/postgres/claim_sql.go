package postgres

// A claim is one transaction in one round trip: begin, setClaimSQL, promoteSQL, lockSQL if a route keeps keys in order, one
// of the claiming statements, commit. The lock and the claim are two statements, since a statement does not see what was committed after
// it began, so that a claim that waited for nothing but took the lock in its own statement could miss the claim before.

// setSQL holds for the transaction only. The plans must use the indexes also while the table is small: a cached plan
// outlives the moment it was made for. Planning a claim anew takes a millisecond, and compiling it more than that.
const setSQL = `
SELECT set_config('enable_seqscan', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true), set_config('jit', 'off', true)`

// setClaimSQL is setSQL for a claim, which need not be on disk when it is answered. If the database crashes and forgets
// it, the records are claimed again and their tokens are void, as if the lease had ended: a relay that had begun to
// publish them makes duplicates, each key still in order. A settle waits for the disk, and with it for its claim.
const setClaimSQL = setSQL + `, set_config('synchronous_commit', 'off', true)`

// promoteSQL puts what became due in line with the rest, up to $2 rows of each route. What it leaves holds its key: see claimKeyedSQL.
const promoteSQL = `
UPDATE {outbox} o SET due_at = NULL, holds = true
FROM (
    SELECT t.seq FROM unnest($1::text[]) AS r(route) CROSS JOIN LATERAL (
        SELECT e.seq FROM {outbox} e
        WHERE e.route = r.route AND e.settled_at IS NULL AND e.due_at IS NOT NULL AND e.due_at <= statement_timestamp()
        ORDER BY e.due_at LIMIT $2 FOR UPDATE SKIP LOCKED
    ) t
) d
WHERE o.seq = d.seq
RETURNING o.route, o.seq`

// lockSQL tries to lock the key shards in $1 and leaves those it got, as bits, in a setting of the transaction.
const lockSQL = `
SELECT set_config('waybill.shards', (
    SELECT coalesce(bit_or(1::bigint << s), 0)::text FROM unnest($1::int[]) AS s WHERE pg_try_advisory_xact_lock($2::int, s)
), true)`

// recordSQL are the columns of a record; see recordReader.
const recordSQL = `o.seq, o.route, o.id, o.topic, o.key, o.type, o.source, o.content_type, o.correlation_id, o.trace_parent, ` + occurredSQL + ` AS occurred_at,
              o.hlc, ` + expiresSQL + ` AS expires_at, o.attrs, o.body, o.attempts, o.crashes, ` + sinceSQL + ` AS ready_since`

// Rows that were put in by hand may hold the times that no clock shows, and time.Time cannot either. What expires at infinity never
// does, and at -infinity has; what happened or was due then counts as now.
const (
	expiresSQL  = `CASE WHEN o.expires_at < 'infinity' THEN greatest(o.expires_at, 'epoch') END`
	occurredSQL = `CASE WHEN isfinite(o.occurred_at) THEN o.occurred_at ELSE statement_timestamp() END`
	sinceSQL    = `CASE WHEN isfinite(o.ready_since) THEN o.ready_since ELSE statement_timestamp() END`
)

// A claim looks at a bounded number of rows and leases those it may. There are two statements, which share their
// beginning and their end: claimUnkeyedSQL for windows without rows whose key must be kept in order (it takes nothing if there
// is one, and says so), and claimKeyedSQL for the others. The index they walk is on seq + 0, so that the planner cannot take
// the primary key, past rows of other routes and states. Rows are then found by ctid, which holds for a statement.
//
//	r  the ranges of sequences to look at: several routes, and of each the front and maybe a part of a lap behind it
//	w  the rows in them, with what keeps a row itself from being claimed; own ones are leased by the session itself
//	c  the rows with what their key says
//	p  what this claim picks, within its bounds
//	l  what of it no other transaction holds; a row may be picked by several claims at once
//	t  what is taken
//	g  the rows with what became of them
//	b  for each range what was seen
//	u  the claim
const (
	claimUnkeyedSQL = windowSQL + pickUnkeyedSQL + takeSQL
	claimKeyedSQL   = windowSQL + pickKeyedSQL + takeSQL
)

const windowSQL = `
WITH r AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::boolean[], $6::boolean[])
        WITH ORDINALITY AS r(route, lo, hi, floor, keyed, block, n)
), w AS MATERIALIZED (
    SELECT r.n, r.route, r.floor, r.block, r.keyed AND o.key <> '' AS keyed, o.seq, o.at, o.key, o.size, o.lease_until, o.back,
           o.ready AND o.suspect AS suspect, o.ready AND o.suspect = $11 AS free, o.session AND o.lease_until IS NOT NULL AS own,
           NOT r.keyed OR o.key = '' OR (SELECT nullif(current_setting('waybill.shards', true), '')::bigint) & (1::bigint << (hashtext(o.key) & 63)) <> 0 AS locked
    FROM r CROSS JOIN LATERAL (
        SELECT o.seq, o.ctid AS at, o.key, octet_length(o.body) AS size, CASE WHEN o.lease_until > statement_timestamp() THEN o.lease_until END AS lease_until,
               o.holds OR o.lease_until IS NOT NULL AS back, o.crashes + (o.lease_until IS NOT NULL)::int >= 2 AS suspect, o.lease_token >> 32 = $15 AS session,
               (o.lease_until > statement_timestamp()) IS NOT TRUE
                   AND (cardinality($8::text[]) = 0 OR o.route || chr(31) || o.topic <> ALL ($8::text[])) AS ready
        FROM {outbox} o
        WHERE o.route = r.route AND o.seq + 0 > r.lo AND o.seq + 0 <= r.hi AND o.settled_at IS NULL AND o.due_at IS NULL
        ORDER BY o.seq + 0 LIMIT $7
    ) o
)`

const pickUnkeyedSQL = `, p AS MATERIALIZED (
    SELECT q.seq, q.at FROM (
        SELECT w.seq, w.at, row_number() OVER (ORDER BY w.seq) AS i, sum(w.size) OVER (ORDER BY w.seq) AS total
        FROM w WHERE w.free AND NOT (SELECT coalesce(bool_or(w.keyed), false) FROM w)
    ) q
    WHERE q.i = 1 OR q.i <= $9 AND q.total <= $10
), t AS MATERIALIZED (
    SELECT o.seq, o.ctid AS at FROM {outbox} o
    WHERE o.ctid = ANY (ARRAY(SELECT p.at FROM p)) AND (o.settled_at IS NULL AND o.due_at IS NULL) IS TRUE
      AND (o.lease_until IS NULL OR o.lease_until <= statement_timestamp())
    ORDER BY o.seq FOR UPDATE SKIP LOCKED
), g AS (
    SELECT 0::bigint AS n, 0::bigint AS seq, '' AS key, false AS busy WHERE false
), b AS MATERIALIZED (
    SELECT r.n, coalesce(x.rows, 0) AS rows, coalesce(x.last, 0) AS last, coalesce(x.least, 0) AS least, coalesce(x.last, 0) AS open,
           coalesce(x.remaining, 0) AS remaining, x.lease_until, x.suspects, false AS held, x.keyed
    FROM r LEFT JOIN (
        SELECT w.n, count(*) AS rows, max(w.seq) AS last, min(w.seq) AS least, min(w.lease_until) AS lease_until,
               min(w.seq) FILTER (WHERE w.free AND (w.seq > (SELECT coalesce(max(p.seq), 0) FROM p)
                   OR w.seq >= (SELECT min(p.seq) FROM p WHERE p.seq NOT IN (SELECT t.seq FROM t)) AND w.seq NOT IN (SELECT t.seq FROM t))) AS remaining,
               bool_or(w.suspect AND NOT $11) AS suspects, bool_or(w.keyed) AS keyed
        FROM w GROUP BY w.n
    ) x ON x.n = r.n
)`

// The key's part:
//
//	h  for each key its head here, and where its free prefix ends; what the session itself holds is passed over
//	k  what holds the head: 2 another session, or something earlier that will be claimed; 1 a retry, an abandoned one, or a
//	   schedule that came due and is not in line yet, since promoteSQL is bounded and skips what others have locked.
//	   If the head was put back or taken over, whatever is leased behind it holds it too, the session's own as well: it
//	   is about to be put back
//	m  keys of which a picked row could not be locked: the rest of the key must not overtake it
//
// The rows of keys of which some were picked and others not are busy from now on.
const pickKeyedSQL = `, h AS (
    SELECT w.*, min(w.seq) FILTER (WHERE NOT w.own) OVER k AS head, min(w.seq) FILTER (WHERE NOT w.free AND NOT w.own) OVER k AS stop,
           bool_or(w.lease_until IS NOT NULL AND NOT w.own) OVER k AS leased,
           bool_or(w.back AND NOT w.own) OVER k AS put_back
    FROM (SELECT w.*, CASE WHEN w.keyed AND w.locked THEN w.key ELSE '' END COLLATE "C" AS lane FROM w) w WINDOW k AS (PARTITION BY w.n, w.lane)
), k AS (
    SELECT k.*,
           CASE
           WHEN NOT (k.keyed AND k.locked AND k.seq = k.head) IS TRUE THEN 0
           WHEN k.leased OR cardinality($8::text[]) > 0 AND k.route || chr(30) || k.key = ANY ($8::text[]) THEN 2
           ELSE coalesce(
               (SELECT 1 FROM {outbox} e WHERE e.route = k.route AND e.key = k.key
                   AND e.holds AND coalesce(e.due_at, '-infinity') > '-infinity' AND e.settled_at IS NULL AND e.key <> '' LIMIT 1),
               (SELECT 2 FROM {outbox} e WHERE e.route = k.route AND e.key = k.key
                   AND e.holds AND coalesce(e.due_at, '-infinity') = '-infinity' AND e.seq < k.head AND e.settled_at IS NULL AND e.key <> ''
                   AND (e.lease_token >> 32 = $15 AND e.lease_until > statement_timestamp()) IS NOT TRUE LIMIT 1),
               (SELECT 1 FROM {outbox} e WHERE e.route = k.route AND e.key = k.key
                   AND NOT e.holds AND coalesce(e.due_at, '-infinity') <= statement_timestamp() AND (e.holds OR e.due_at IS NOT NULL)
                   AND e.settled_at IS NULL AND e.key <> '' LIMIT 1),
               CASE WHEN k.block THEN (SELECT 1 FROM {outbox} e WHERE e.route = k.route AND e.key = k.key
                   AND e.reason <> '' AND e.reason NOT IN ('cancelled', 'replaced', 'skipped', 'parked') LIMIT 1) END,
               (SELECT 2 FROM {outbox} e WHERE e.route = k.route AND e.key = k.key AND e.seq >= k.floor AND e.seq < k.head
                   AND coalesce(e.settled_at, e.due_at) IS NULL AND e.key <> ''
                   AND (e.lease_token >> 32 = $15 AND e.lease_until > statement_timestamp()) IS NOT TRUE LIMIT 1),
               CASE WHEN k.put_back THEN (SELECT 2 FROM {outbox} e WHERE e.route = k.route AND e.key = k.key AND e.seq > k.head
                   AND coalesce(e.settled_at, e.due_at) IS NULL AND e.key <> '' AND e.lease_until > statement_timestamp() LIMIT 1) END,
               0)
           END AS why
    FROM h k
), c AS MATERIALIZED (
    SELECT k.n, k.seq, k.at, k.key, k.keyed, k.size, k.locked, k.free, k.own, k.suspect, k.lease_until,
           k.keyed AND k.locked AND (k.held > 0 OR k.seq >= k.stop) IS TRUE AS held,
           k.keyed AND k.locked AND (k.held > 0 OR k.seq > k.head) IS TRUE AS behind,
           k.keyed AND k.locked AND k.free AND k.held = 2 AS busy
    FROM (
        SELECT k.*, max(k.why) OVER (PARTITION BY k.n, k.lane) AS held FROM k
    ) k
), p AS MATERIALIZED (
    SELECT q.n, q.seq, q.at, q.key, q.keyed FROM (
        SELECT c.*, row_number() OVER (ORDER BY c.seq) AS i, sum(c.size) OVER (ORDER BY c.seq) AS total
        FROM c WHERE c.free AND c.locked AND NOT c.held
    ) q
    WHERE q.i = 1 OR q.i <= $9 AND q.total <= $10
), l AS MATERIALIZED (
    SELECT o.seq, o.ctid AS at FROM {outbox} o
    WHERE o.ctid = ANY (ARRAY(SELECT p.at FROM p)) AND (o.settled_at IS NULL AND o.due_at IS NULL) IS TRUE
      AND (o.lease_until IS NULL OR o.lease_until <= statement_timestamp())
    ORDER BY o.seq FOR UPDATE SKIP LOCKED
), m AS MATERIALIZED (
    SELECT p.n, p.key, min(p.seq) AS seq FROM p WHERE p.keyed AND p.seq NOT IN (SELECT l.seq FROM l) GROUP BY p.n, p.key
), t AS MATERIALIZED (
    SELECT p.seq, p.at FROM p
    WHERE (p.seq IN (SELECT l.seq FROM l)) IS TRUE AND NOT EXISTS (SELECT FROM m WHERE m.n = p.n AND m.key = p.key AND m.seq < p.seq)
), g AS MATERIALIZED (
    SELECT c.n, c.seq, c.key, c.keyed, c.free, c.held, c.got, c.lease_until, c.suspect, c.behind, c.busy OR c.rest AND NOT c.got AS busy
    FROM (
        SELECT c.*, c.seq IN (SELECT t.seq FROM t) AS got,
               c.keyed AND c.locked AND c.free AND NOT c.held AND (c.n, c.key) IN (SELECT p.n, p.key FROM p WHERE p.keyed) AS rest
        FROM c
    ) c
), b AS MATERIALIZED (
    SELECT r.n, count(g.seq) AS rows, coalesce(max(g.seq), 0) AS last, coalesce(min(g.seq), 0) AS least, min(g.lease_until) AS lease_until,
           coalesce(min(g.seq) FILTER (WHERE g.free AND NOT g.held AND NOT g.got AND NOT g.busy), 0) AS remaining,
           coalesce(max(g.seq) FILTER (WHERE NOT (g.free AND g.held OR g.busy)), 0) AS open,
           bool_or(g.suspect AND NOT $11 AND NOT g.behind) AS suspects, bool_or(g.free AND g.held OR g.busy) AS held, bool_or(g.keyed) AS keyed
    FROM r LEFT JOIN g ON g.n = r.n GROUP BY r.n
)`

// nextXidSQL is the next transaction id. A snapshot's xmax is not: it is the one after the latest that has ended, so that running ones
// may have it or later ones, and are not seen as running. age counts from the next one, and assigns none; it is a small difference of
// 32 bits, also where they begin anew. If the transaction has an id itself, age counts from that, which may be before xmax: then whatever
// began since the claim did may be running unseen.
const nextXidSQL = `pg_snapshot_xmax(pg_current_snapshot())::text::bigint + greatest(age(pg_snapshot_xmax(pg_current_snapshot())::xid), 0)`

// takeSQL leases what was taken, and answers: first a row about what the claim saw, then the records.
const takeSQL = `, u AS (
    UPDATE {outbox} o
    SET state = 2, lease_token = $13, lease_owner = $12, lease_until = (SELECT statement_timestamp() + $14 * interval '1 microsecond'),
        crashes = o.crashes + (o.lease_until IS NOT NULL)::int
    WHERE o.ctid = ANY (ARRAY(SELECT t.at FROM t))
    RETURNING ` + recordSQL + `
)
SELECT array_agg(b.rows ORDER BY b.n), array_agg(b.last ORDER BY b.n), array_agg(b.least ORDER BY b.n),
       array_agg(b.remaining ORDER BY b.n), array_agg(b.open ORDER BY b.n),
       (SELECT array_agg(g.n ORDER BY g.seq, g.n) FROM g WHERE g.busy), (SELECT array_agg(g.seq ORDER BY g.seq, g.n) FROM g WHERE g.busy),
       (SELECT array_agg(g.key ORDER BY g.seq, g.n) FROM g WHERE g.busy), coalesce(bool_or(b.suspects), false), coalesce(bool_or(b.held), false),
       coalesce(bool_or(b.keyed), false),
       (extract(epoch FROM min(b.lease_until) - statement_timestamp()) * 1000000)::bigint,
       (SELECT (extract(epoch FROM min(greatest(t.due_at, statement_timestamp())) - statement_timestamp()) * 1000000)::bigint
        FROM unnest($1::text[]) AS x(route) CROSS JOIN LATERAL (
            SELECT e.due_at FROM {outbox} e WHERE e.route = x.route AND e.settled_at IS NULL AND e.due_at < 'infinity' ORDER BY e.due_at LIMIT 1
        ) t),
       (SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM {outbox_sequence} s),
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint, ` + nextXidSQL + `,
       (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint, statement_timestamp(),
       NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::timestamptz,
       NULL::bigint, NULL::timestamptz, NULL::json, NULL::bytea, NULL::int, NULL::int, NULL::timestamptz
FROM b
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       u.seq, u.route, u.id, u.topic, u.key, u.type, u.source, u.content_type, u.correlation_id, u.trace_parent, u.occurred_at,
       u.hlc, u.expires_at, u.attrs, u.body, u.attempts, u.crashes, u.ready_since
FROM u`
