-- statement inbox.mark
INSERT INTO "waybill"."waybill_inbox" AS m (consumer, source, id, content_hash) SELECT $1, $2, $3, $5::bytea
WHERE CASE WHEN pg_catalog.set_config('waybill.lock_timeout', pg_catalog.current_setting('lock_timeout'), true) IS NOT NULL
           THEN pg_catalog.set_config('lock_timeout', $4, true) IS NOT NULL END
ON CONFLICT (id, source, consumer) DO UPDATE SET content_hash = m.content_hash WHERE m.content_hash <> excluded.content_hash
RETURNING pg_catalog.set_config('lock_timeout', pg_catalog.current_setting('waybill.lock_timeout'), true), m.content_hash IS NOT DISTINCT FROM $5::bytea

-- statement inbox.markAll
WITH s AS MATERIALIZED (SELECT pg_catalog.current_setting('lock_timeout') AS before, pg_catalog.set_config('lock_timeout', $4, true) AS now
), k AS MATERIALIZED (SELECT coalesce(k.consumer, ($1::text[])[1]) AS consumer, coalesce(k.source, ($2::text[])[1]) AS source, k.id, k.content_hash, k.n
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[]) WITH ORDINALITY AS k (consumer, source, id, content_hash, n)
), i AS (
    INSERT INTO "waybill"."waybill_inbox" AS m (consumer, source, id, content_hash) SELECT k.consumer, k.source, k.id, k.content_hash FROM s, k ORDER BY k.n
    ON CONFLICT (id, source, consumer) DO UPDATE SET content_hash = m.content_hash WHERE m.content_hash <> excluded.content_hash
    RETURNING consumer, source, id, content_hash
), n AS MATERIALIZED (SELECT pg_catalog.count(*) AS marked FROM i)
SELECT n.marked, pg_catalog.set_config('lock_timeout', CASE WHEN n.marked >= 0 THEN s.before END, true),
       (SELECT pg_catalog.json_agg(CASE WHEN i.content_hash IS NOT DISTINCT FROM k.content_hash THEN k.n ELSE -k.n END ORDER BY k.n)::text
        FROM k JOIN i USING (consumer, source, id))
FROM n, s

-- statement inbox.purge
WITH s AS MATERIALIZED (
    SELECT i.ctid AS at, i.handled_at FROM "waybill"."waybill_inbox" i
    WHERE i.consumer = $1 AND i.handled_at < statement_timestamp() - $2::bigint::float8 * interval '1 microsecond'
      AND i.handled_at >= coalesce($4::timestamptz, '-infinity')
    ORDER BY i.handled_at LIMIT $3
), d AS (
    DELETE FROM "waybill"."waybill_inbox" WHERE ctid = ANY (ARRAY(SELECT s.at FROM s)) RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM d), pg_catalog.max(s.handled_at),
    CASE WHEN pg_catalog.count(*) < $3 THEN statement_timestamp() - $2::bigint::float8 * interval '1 microsecond' END FROM s

-- statement inbox.purgeAll
WITH RECURSIVE c (consumer) AS (
    (SELECT consumer FROM "waybill"."waybill_inbox" ORDER BY consumer LIMIT 1)
    UNION ALL
    SELECT (SELECT i.consumer FROM "waybill"."waybill_inbox" i WHERE i.consumer > c.consumer ORDER BY i.consumer LIMIT 1)
    FROM c WHERE c.consumer IS NOT NULL
), x AS (
DELETE FROM "waybill"."waybill_inbox" WHERE ctid = ANY (ARRAY(
    SELECT d.ctid FROM c CROSS JOIN LATERAL (
        SELECT i.ctid FROM "waybill"."waybill_inbox" i
        WHERE i.consumer = c.consumer AND i.handled_at < statement_timestamp() - $1::bigint::float8 * interval '1 microsecond'
        ORDER BY i.handled_at LIMIT $2
    ) d LIMIT $2)) RETURNING 1
)
SELECT pg_catalog.count(*), NULL::timestamptz, NULL::timestamptz FROM x

-- statement limit.first
INSERT INTO "waybill"."waybill_inbox_limits" (name, state, version) VALUES ($1, $2, (extract(epoch FROM clock_timestamp()) * '1000000')::bigint)
ON CONFLICT DO NOTHING

-- statement limit.read
SELECT coalesce(l.state, ''), coalesce(l.version, 0), clock_timestamp()
FROM (SELECT 1) one LEFT JOIN "waybill"."waybill_inbox_limits" l ON l.name = $1

-- statement limit.write
UPDATE "waybill"."waybill_inbox_limits" SET state = $2, version = version + 1, changed_at = clock_timestamp() WHERE name = $1 AND version = $3

-- statement outbox.admin.ahead
SELECT
    o.seq, o.route, o.id, o.topic, o.key, o.type, o.source, o.content_type, o.correlation_id, o.trace_parent,
    o.occurred_at, o.hlc, o.expires_at, o.attrs,
    CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END, o.reason, o.attempts, o.crashes, o.dedupe_key, o.last_error, o.last_error_at, o.settled_at,
    (extract(epoch FROM statement_timestamp() - o.ready_since) * '1000000')::bigint,
    CASE WHEN o.settled_at IS NULL AND o.due_at > statement_timestamp() AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
         THEN (extract(epoch FROM o.due_at - statement_timestamp()) * '1000000')::bigint ELSE 0 END,
    coalesce((SELECT me.name FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold AND o.hold <> 0), ''),
    coalesce((SELECT greatest(me.lease - (extract(epoch FROM statement_timestamp() - me.renewed_at) * '1000000')::bigint, 0)
              FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold AND o.hold <> 0), 0) FROM (
    (SELECT 1 AS turn, e.seq FROM "waybill"."waybill_outbox" e
     WHERE e.route = $1 AND e.key = $3 AND e.key <> '' AND (e.retry OR e.hold <> 0) AND e.seq <> $2 AND (e.retry OR CASE WHEN e.hold <> 0 THEN EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = e.hold) ELSE false END)
     ORDER BY e.seq LIMIT 1)
    UNION ALL
    (SELECT 1, e.seq FROM "waybill"."waybill_outbox" e WHERE $4 AND e.route = $1 AND e.key = $3 AND e.key <> '' AND e.seq <> $2 AND e.blocks
     ORDER BY e.seq LIMIT 1)
    UNION ALL
    (SELECT 2, e.seq FROM "waybill"."waybill_outbox" e WHERE e.route = $1 AND e.key = $3 AND e.key <> '' AND e.due_at IS NULL AND e.settled_at IS NULL AND e.seq < $2 ORDER BY e.seq LIMIT 1)
    ORDER BY turn, seq LIMIT 1
) w JOIN "waybill"."waybill_outbox" o ON o.route = $1 AND o.seq = w.seq

-- statement outbox.admin.audit
INSERT INTO "waybill"."waybill_outbox_audit" (act, phase, who, via, origin, action, target, filter, ids, before, after, result)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)

-- statement outbox.admin.auditLog
SELECT number, at, role, act, phase, who, via, origin, action, target, filter, ids, before, after, result
FROM "waybill"."waybill_outbox_audit" WHERE number < $1 ORDER BY number DESC LIMIT $2

-- statement outbox.admin.blocked
WITH RECURSIVE unbound AS MATERIALIZED (
    SELECT DISTINCT ON (x.topic) x.topic, x.seq FROM (
        SELECT e.topic, e.seq, e.last_error FROM "waybill"."waybill_outbox" e WHERE e.route = $1 AND e.retry ORDER BY e.due_at LIMIT 1000
    ) x WHERE pg_catalog.strpos(x.last_error, $5) > 0 ORDER BY x.topic, x.seq
), k AS (
    SELECT least(n.retry, n.block, n.ready) AS key, n.retry, n.block, n.ready, 1 AS i
    FROM (SELECT (SELECT e.key FROM "waybill"."waybill_outbox" e WHERE e.retry AND e.key <> '' AND e.route = $1 AND e.key > $2 ORDER BY e.key LIMIT 1) AS retry, (SELECT e.key FROM "waybill"."waybill_outbox" e WHERE $3 AND e.blocks AND e.route = $1 AND e.key > $2 ORDER BY e.key LIMIT 1) AS block, (SELECT e.key FROM "waybill"."waybill_outbox" e WHERE (SELECT pg_catalog.count(*) FROM unbound) > 0 AND e.key <> '' AND e.due_at IS NULL AND e.settled_at IS NULL AND e.route = $1 AND e.key > $2 ORDER BY e.key LIMIT 1) AS ready) n
    UNION ALL
    SELECT least(n.retry, n.block, n.ready), n.retry, n.block, n.ready, k.i + 1
    FROM k CROSS JOIN LATERAL (
        SELECT CASE WHEN k.retry > k.key THEN k.retry WHEN k.retry = k.key THEN (SELECT e.key FROM "waybill"."waybill_outbox" e WHERE e.retry AND e.key <> '' AND e.route = $1 AND e.key > k.key ORDER BY e.key LIMIT 1) END AS retry, CASE WHEN k.block > k.key THEN k.block WHEN k.block = k.key THEN (SELECT e.key FROM "waybill"."waybill_outbox" e WHERE $3 AND e.blocks AND e.route = $1 AND e.key > k.key ORDER BY e.key LIMIT 1) END AS block, CASE WHEN k.ready > k.key THEN k.ready WHEN k.ready = k.key THEN (SELECT e.key FROM "waybill"."waybill_outbox" e WHERE (SELECT pg_catalog.count(*) FROM unbound) > 0 AND e.key <> '' AND e.due_at IS NULL AND e.settled_at IS NULL AND e.route = $1 AND e.key > k.key ORDER BY e.key LIMIT 1) END AS ready
    ) n WHERE k.key IS NOT NULL AND k.i < $4::int
)
SELECT k.key, h.* FROM k LEFT JOIN LATERAL (
    SELECT w.cause, n.behind,
        CASE WHEN o.settled_at IS NULL THEN 0
             ELSE (extract(epoch FROM statement_timestamp() - o.settled_at) * '1000000')::bigint END AS settled,
        
    o.seq, o.route, o.id, o.topic, o.key, o.type, o.source, o.content_type, o.correlation_id, o.trace_parent,
    o.occurred_at, o.hlc, o.expires_at, o.attrs,
    CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END, o.reason, o.attempts, o.crashes, o.dedupe_key, o.last_error, o.last_error_at, o.settled_at,
    (extract(epoch FROM statement_timestamp() - o.ready_since) * '1000000')::bigint,
    CASE WHEN o.settled_at IS NULL AND o.due_at > statement_timestamp() AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
         THEN (extract(epoch FROM o.due_at - statement_timestamp()) * '1000000')::bigint ELSE 0 END,
    coalesce((SELECT me.name FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold AND o.hold <> 0), ''),
    coalesce((SELECT greatest(me.lease - (extract(epoch FROM statement_timestamp() - me.renewed_at) * '1000000')::bigint, 0)
              FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold AND o.hold <> 0), 0)
    FROM (
        (SELECT 1 AS turn, e.seq, 'retry' AS cause FROM "waybill"."waybill_outbox" e
         WHERE e.route = $1 AND e.key = k.key AND e.retry AND e.key <> '' AND NOT CASE WHEN e.hold <> 0 THEN EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = e.hold) ELSE false END ORDER BY e.seq LIMIT 1)
        UNION ALL
        (SELECT 1, e.seq, 'abandoned' FROM "waybill"."waybill_outbox" e
         WHERE $3 AND e.route = $1 AND e.key = k.key AND e.blocks ORDER BY e.seq LIMIT 1)
        UNION ALL
        (SELECT 2, f.seq, 'topic' FROM (
            SELECT e.seq, e.topic, CASE WHEN e.hold <> 0 THEN EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = e.hold) ELSE false END AS held FROM "waybill"."waybill_outbox" e
            WHERE e.route = $1 AND e.key = k.key AND e.key <> '' AND e.due_at IS NULL AND e.settled_at IS NULL ORDER BY e.seq LIMIT 1
         ) f JOIN unbound u ON u.topic = f.topic WHERE NOT f.held
            AND NOT EXISTS (SELECT FROM "waybill"."waybill_outbox" e
                WHERE e.route = $1 AND e.key = k.key AND e.key <> '' AND (e.retry OR e.hold <> 0) AND CASE WHEN e.hold <> 0 THEN EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = e.hold) ELSE false END))
        ORDER BY turn, seq LIMIT 1
    ) w JOIN "waybill"."waybill_outbox" o ON o.route = $1 AND o.seq = w.seq CROSS JOIN LATERAL (
        SELECT pg_catalog.count(*)::int AS behind FROM (
            SELECT FROM "waybill"."waybill_outbox" e WHERE e.route = $1 AND e.key = k.key AND e.key <> '' AND e.due_at IS NULL AND e.settled_at IS NULL AND e.seq <> w.seq LIMIT 1000
        ) b
    ) n WHERE w.cause <> 'topic' OR n.behind > 0
) h ON true
WHERE k.key IS NOT NULL ORDER BY k.i

-- statement outbox.admin.count
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), floors AS MATERIALIZED (
    SELECT r.route, greatest(least(
        coalesce((SELECT pg_catalog.min(un.read_after) FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = r.route), (SELECT ro.read_after FROM "waybill"."waybill_outbox_routes" ro WHERE ro.route = r.route), 0),
        (SELECT pg_catalog.min(c.seq) - 1 FROM "waybill"."waybill_outbox_notices" c WHERE c.route = r.route AND c.seq > 0)), 0) AS floor
    FROM routes r
), holds AS MATERIALIZED (
    SELECT o.route, CASE WHEN o.retry THEN 'retry' ELSE 'ready' END AS part, o.hold, CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END AS state, o.ready_since, o.seq,
           o.seq > 0 AND o.settled_at IS NULL AND o.due_at IS NULL AS ready
    FROM "waybill"."waybill_outbox" o WHERE o.hold <> 0 ORDER BY o.hold LIMIT $1
), rows AS (
    SELECT r.route, x.* FROM floors r CROSS JOIN LATERAL (
        (SELECT 'ready' AS part, CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END AS state, '' AS reason, o.ready_since, o.seq, true AS due FROM (
                SELECT * FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.seq > r.floor ORDER BY o.seq LIMIT $3
            ) o WHERE o.settled_at IS NULL AND o.due_at IS NULL LIMIT $1)
        UNION ALL
        (SELECT 'ready', h.state, '', h.ready_since, h.seq, true FROM holds h WHERE h.route = r.route AND h.ready AND h.seq <= r.floor)
        UNION ALL
        (SELECT 'due', o.state, '', o.ready_since, NULL, o.due_at <= statement_timestamp() FROM "waybill"."waybill_outbox" o
            WHERE o.route = r.route AND o.due_at IS NOT NULL AND NOT o.retry AND o.settled_at IS NULL ORDER BY o.due_at LIMIT $1)
        UNION ALL
        (SELECT 'retry', CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END, '', o.ready_since, NULL, o.due_at <= statement_timestamp() FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.retry ORDER BY o.due_at LIMIT $1)
        UNION ALL
        (SELECT 'abandoned', o.state, o.reason, o.ready_since, o.seq, false FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.reason <> '' ORDER BY o.seq LIMIT $1)
    ) x
), kinds AS (
    SELECT route, part, state, reason, pg_catalog.count(*) AS n, pg_catalog.count(*) FILTER (WHERE due AND state <> 2) AS due, pg_catalog.min(ready_since) AS oldest
    FROM rows GROUP BY 1, 2, 3, 4
), full_parts AS MATERIALIZED (
    SELECT route, part, pg_catalog.max(seq) AS last FROM rows GROUP BY 1, 2 HAVING pg_catalog.count(*) >= $1
), ends AS MATERIALIZED (
    SELECT f.route, e.seq FROM floors f CROSS JOIN LATERAL (
        SELECT o.seq FROM "waybill"."waybill_outbox" o WHERE o.route = f.route AND o.seq > f.floor ORDER BY o.seq OFFSET $3 - 1 LIMIT 1
    ) e WHERE NOT EXISTS (SELECT FROM full_parts b WHERE b.route = f.route AND b.part = 'ready')
), big AS MATERIALIZED (
    SELECT * FROM full_parts UNION ALL SELECT route, 'ready', seq FROM ends
), strata AS MATERIALIZED (
    SELECT b.*, b.high - b.low AS span, least(b.high - b.low, $2) AS size, (b.high - b.low)::float8 / greatest(least(b.high - b.low, $2), 1)::float8 AS width
    FROM (
        SELECT d.route, (SELECT o.seq FROM "waybill"."waybill_outbox" o WHERE o.route = d.route ORDER BY o.seq LIMIT 1) - 1 AS low,
               (SELECT o.seq FROM "waybill"."waybill_outbox" o WHERE o.route = d.route ORDER BY o.seq DESC LIMIT 1) AS high
        FROM (SELECT DISTINCT route FROM big) d
    ) b
), places AS MATERIALIZED (
    SELECT p.route, low + here + 1 + pg_catalog.floor((turn - pg_catalog.floor(turn)) * (next - here)::float8)::bigint AS seq
    FROM (
        SELECT s.route, s.low, k::float8 * 0.6180339887::float8 AS turn, k * (s.span / s.size) + k * (s.span % s.size) / s.size AS here,
               (k + 1) * (s.span / s.size) + (k + 1) * (s.span % s.size) / s.size AS next FROM strata s CROSS JOIN LATERAL pg_catalog.generate_series(0, s.size - 1) k
    ) p
), hits AS (
    SELECT p.route, o.part, o.state, o.reason, pg_catalog.count(*) AS hits
    FROM places p CROSS JOIN LATERAL (
        SELECT CASE WHEN o.retry THEN 'retry' WHEN o.settled_at IS NOT NULL THEN 'abandoned' WHEN o.due_at IS NULL THEN 'ready' ELSE 'due' END AS part,
               CASE WHEN o.retry OR o.due_at IS NULL AND o.settled_at IS NULL THEN CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END ELSE o.state END AS state, o.reason FROM "waybill"."waybill_outbox" o
        WHERE o.route = p.route AND o.seq = p.seq AND (o.settled_at IS NULL OR o.reason <> '') ORDER BY o.seq LIMIT 1
    ) o JOIN big b ON b.route = p.route AND b.part = o.part
    WHERE b.last IS NULL OR p.seq > b.last GROUP BY 1, 2, 3, 4
), sums AS (
    SELECT x.*, CASE WHEN vague THEN greatest(apart + pg_catalog.floor((greatest(h - '2', '0') + '8' - '4' * pg_catalog.sqrt(greatest(h - '2', '0') + '4')) * width)::bigint, least, 1) - 1
                     ELSE greatest(apart + pg_catalog.floor(h * width)::bigint, least) END AS sum
    FROM (
        SELECT x.*, width > '1' AND '2' * pg_catalog.sqrt(h + '1') * width > (apart::float8 + pg_catalog.floor(h * width)) * 0.05::float8 AS vague
        FROM (
            SELECT x.*, hits::float8 AS h, CASE WHEN behind THEN coalesce(n, 0) ELSE 0 END AS apart,
                   CASE WHEN behind THEN coalesce(n, 0) + hits ELSE greatest(n, hits) END AS least
            FROM (
        SELECT route, part, state, reason, k.n, k.due, k.oldest, s.width, coalesce(h.hits, 0) AS hits, b.last IS NOT NULL AS behind
        FROM (
            SELECT * FROM kinds
            UNION ALL
            SELECT e.route, 'ready', 1, '', 0, 0, NULL FROM ends e
            WHERE NOT EXISTS (SELECT FROM kinds k WHERE k.route = e.route AND k.part = 'ready' AND k.state = 1)
        ) k FULL JOIN hits h USING (route, part, state, reason) JOIN big b USING (route, part) JOIN strata s USING (route)
        WHERE state <> 2 OR (SELECT pg_catalog.count(*) FROM holds) >= $1
    ) x
        ) x
    ) x
)
SELECT route, state, reason, pg_catalog.sum(n)::bigint, pg_catalog.sum(due)::bigint, pg_catalog.bool_or(estimated), pg_catalog.bool_or(vague),
       coalesce((extract(epoch FROM clock_timestamp() - pg_catalog.min(oldest)) * '1000000')::bigint, 0)
FROM (
    SELECT k.route, k.state, k.reason, k.n, k.due, false AS estimated, false AS vague, k.oldest FROM kinds k
    WHERE NOT EXISTS (SELECT FROM big b WHERE b.route = k.route AND b.part = k.part)
    UNION ALL
    SELECT h.route, 2, '', pg_catalog.count(*), 0, false, false, pg_catalog.min(h.ready_since) FROM holds h JOIN big b USING (route, part)
    WHERE (SELECT pg_catalog.count(*) FROM holds) < $1 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = h.hold) GROUP BY 1
    UNION ALL
    SELECT s.route, s.state, s.reason, s.sum, CASE WHEN s.part = 'abandoned' OR s.state = 2 THEN 0 WHEN s.due < s.n THEN s.due ELSE s.sum END,
           true, s.vague, s.oldest
    FROM sums s
) c
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3

-- statement outbox.admin.dryPurge.0
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE pg_catalog.cardinality($5::text[]) = 0 UNION SELECT pg_catalog.unnest($5::text[])
), share AS MATERIALIZED (
    SELECT greatest($2::int / greatest(pg_catalog.count(*), 1), 1) AS n FROM asked
), a AS MATERIALIZED (
    SELECT r.route, o.seq, o.ok FROM asked r CROSS JOIN LATERAL (
        SELECT o.seq, 
    (pg_catalog.cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (pg_catalog.cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (pg_catalog.cardinality($6::smallint[]) = 0 OR CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END = ANY ($6))
    AND (pg_catalog.cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (pg_catalog.cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (pg_catalog.cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (pg_catalog.cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12) AS ok FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.seq > $1
        ORDER BY o.seq LIMIT (SELECT n FROM share)
    ) o
), e AS MATERIALIZED (
    SELECT pg_catalog.min(x.seq) AS seq
    FROM (SELECT pg_catalog.max(a.seq) AS seq FROM a GROUP BY a.route HAVING pg_catalog.count(*) >= (SELECT n FROM share)) x
), w AS MATERIALIZED (
    SELECT a.* FROM a CROSS JOIN e WHERE e.seq IS NULL OR a.seq <= e.seq
), p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
), l AS MATERIALIZED (
    SELECT o.* FROM (SELECT p.* FROM p ORDER BY p.seq) p CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.ctid AS at FROM "waybill"."waybill_outbox" o WHERE o.route = p.route AND o.seq = p.seq AND (o.settled_at IS NOT NULL OR $13::boolean AND o.due_at IS NOT NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))) LIMIT 1
    ) o
), x AS (SELECT l.route, l.seq, '' AS id, '' AS key, 0 AS slot, false AS tell FROM l), u AS (
    SELECT x.* FROM x WHERE x.tell
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    SELECT 1, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq FROM u
)
SELECT coalesce(
    CASE WHEN (SELECT pg_catalog.count(*) FROM p) >= $3 THEN (SELECT pg_catalog.max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0), (SELECT pg_catalog.count(*) FROM p), (SELECT pg_catalog.count(*) FROM x), (SELECT pg_catalog.count(pg_catalog.pg_notify('waybill_25c50bbafea3b626', x.route)) FROM (SELECT DISTINCT u.route FROM u) x WHERE $14::boolean)

-- statement outbox.admin.dryPurge.1
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE pg_catalog.cardinality($5::text[]) = 0 UNION SELECT pg_catalog.unnest($5::text[])
), share AS MATERIALIZED (
    SELECT greatest($2::int / greatest(pg_catalog.count(*), 1), 1) AS n FROM asked
), a AS MATERIALIZED (
    SELECT r.route, o.seq, o.ok FROM asked r CROSS JOIN LATERAL (
        SELECT o.seq, 
    (pg_catalog.cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (pg_catalog.cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (pg_catalog.cardinality($6::smallint[]) = 0 OR CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END = ANY ($6))
    AND (pg_catalog.cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (pg_catalog.cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (pg_catalog.cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (pg_catalog.cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12) AS ok FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.seq > $1 AND o.reason <> ''
        ORDER BY o.seq LIMIT (SELECT n FROM share)
    ) o
), e AS MATERIALIZED (
    SELECT pg_catalog.min(x.seq) AS seq
    FROM (SELECT pg_catalog.max(a.seq) AS seq FROM a GROUP BY a.route HAVING pg_catalog.count(*) >= (SELECT n FROM share)) x
), w AS MATERIALIZED (
    SELECT a.* FROM a CROSS JOIN e WHERE e.seq IS NULL OR a.seq <= e.seq
), p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
), l AS MATERIALIZED (
    SELECT o.* FROM (SELECT p.* FROM p ORDER BY p.seq) p CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.ctid AS at FROM "waybill"."waybill_outbox" o WHERE o.route = p.route AND o.seq = p.seq AND (o.settled_at IS NOT NULL OR $13::boolean AND o.due_at IS NOT NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))) LIMIT 1
    ) o
), x AS (SELECT l.route, l.seq, '' AS id, '' AS key, 0 AS slot, false AS tell FROM l), u AS (
    SELECT x.* FROM x WHERE x.tell
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    SELECT 1, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq FROM u
)
SELECT coalesce(
    CASE WHEN (SELECT pg_catalog.count(*) FROM p) >= $3 THEN (SELECT pg_catalog.max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0), (SELECT pg_catalog.count(*) FROM p), (SELECT pg_catalog.count(*) FROM x), (SELECT pg_catalog.count(pg_catalog.pg_notify('waybill_25c50bbafea3b626', x.route)) FROM (SELECT DISTINCT u.route FROM u) x WHERE $14::boolean)

-- statement outbox.admin.dryPurge.2
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE pg_catalog.cardinality($5::text[]) = 0 UNION SELECT pg_catalog.unnest($5::text[])
), ids AS MATERIALIZED (
    SELECT DISTINCT u.id, u.id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' AS made FROM pg_catalog.unnest($4::text[]) u (id)
), byid AS MATERIALIZED (
    SELECT r.route, i.id, i.made, o.seq FROM asked r CROSS JOIN ids i CROSS JOIN LATERAL (
        (SELECT o.seq FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.id = i.id AND o.own_id LIMIT 1)
        UNION ALL
        (SELECT o.seq FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.id = i.id AND NOT o.own_id AND (o.cancellable OR o.hold <> 0 OR coalesce(o.due_at, o.settled_at) IS NOT NULL) LIMIT 1)
    ) o
), lacking AS MATERIALIZED (
    SELECT r.route FROM asked r LEFT JOIN (SELECT x.route, pg_catalog.count(DISTINCT x.id) AS n FROM byid x WHERE x.made GROUP BY x.route) f USING (route)
    WHERE coalesce(f.n, 0) < (SELECT pg_catalog.count(*) FROM ids i WHERE i.made)
      AND pg_catalog.cardinality($7::text[]) = 0 AND (pg_catalog.cardinality($6::smallint[]) = 0 OR 1 = ANY ($6))
), share AS MATERIALIZED (
    SELECT greatest($2::int / greatest(pg_catalog.count(*), 1), 1) AS n FROM lacking
), a AS MATERIALIZED (
    SELECT r.route, o.seq, o.ok FROM lacking r CROSS JOIN LATERAL (
        SELECT o.seq, (o.id = ANY ($4) AND o.due_at IS NULL AND o.settled_at IS NULL
            AND NOT o.own_id AND NOT o.cancellable AND o.hold = 0) AS ok FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.seq > $1
        ORDER BY o.seq LIMIT (SELECT n FROM share)
    ) o
), e AS MATERIALIZED (
    SELECT pg_catalog.min(x.seq) AS seq
    FROM (SELECT pg_catalog.max(a.seq) AS seq FROM a GROUP BY a.route HAVING pg_catalog.count(*) >= (SELECT n FROM share)) x
), w AS MATERIALIZED (
    SELECT o.route, o.seq, 
    (pg_catalog.cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (pg_catalog.cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (pg_catalog.cardinality($6::smallint[]) = 0 OR CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END = ANY ($6))
    AND (pg_catalog.cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (pg_catalog.cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (pg_catalog.cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (pg_catalog.cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12) AS ok
    FROM (SELECT x.route, x.seq FROM byid x UNION ALL SELECT a.route, a.seq FROM a WHERE a.ok) y CROSS JOIN e CROSS JOIN LATERAL (
        SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = y.route AND o.seq = y.seq LIMIT 1
    ) o WHERE y.seq > $1 AND (e.seq IS NULL OR y.seq <= e.seq)
), p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
), l AS MATERIALIZED (
    SELECT o.* FROM (SELECT p.* FROM p ORDER BY p.seq) p CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.ctid AS at FROM "waybill"."waybill_outbox" o WHERE o.route = p.route AND o.seq = p.seq AND (o.settled_at IS NOT NULL OR $13::boolean AND o.due_at IS NOT NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))) LIMIT 1
    ) o
), x AS (SELECT l.route, l.seq, '' AS id, '' AS key, 0 AS slot, false AS tell FROM l), u AS (
    SELECT x.* FROM x WHERE x.tell
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    SELECT 1, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq FROM u
)
SELECT coalesce(
    CASE WHEN (SELECT pg_catalog.count(*) FROM p) >= $3 THEN (SELECT pg_catalog.max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0), (SELECT pg_catalog.count(*) FROM p), (SELECT pg_catalog.count(*) FROM x), (SELECT pg_catalog.count(pg_catalog.pg_notify('waybill_25c50bbafea3b626', x.route)) FROM (SELECT DISTINCT u.route FROM u) x WHERE $14::boolean)

-- statement outbox.admin.dryRun.0
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE pg_catalog.cardinality($5::text[]) = 0 UNION SELECT pg_catalog.unnest($5::text[])
), share AS MATERIALIZED (
    SELECT greatest($2::int / greatest(pg_catalog.count(*), 1), 1) AS n FROM asked
), a AS MATERIALIZED (
    SELECT r.route, o.seq, o.ok FROM asked r CROSS JOIN LATERAL (
        SELECT o.seq, (o.state = 4 AND o.settled_at IS NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
    OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced'))) AND 
    (pg_catalog.cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (pg_catalog.cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (pg_catalog.cardinality($6::smallint[]) = 0 OR CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END = ANY ($6))
    AND (pg_catalog.cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (pg_catalog.cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (pg_catalog.cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (pg_catalog.cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12) AS ok FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.seq > $1
        ORDER BY o.seq LIMIT (SELECT n FROM share)
    ) o
), e AS MATERIALIZED (
    SELECT pg_catalog.min(x.seq) AS seq
    FROM (SELECT pg_catalog.max(a.seq) AS seq FROM a GROUP BY a.route HAVING pg_catalog.count(*) >= (SELECT n FROM share)) x
), w AS MATERIALIZED (
    SELECT a.* FROM a CROSS JOIN e WHERE e.seq IS NULL OR a.seq <= e.seq
), p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
), l AS MATERIALIZED (
    SELECT o.* FROM (SELECT p.* FROM p ORDER BY p.seq) p CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.topic, o.dedupe_key, CASE
            WHEN o.dedupe_key <> '' AND o.state = 5 AND EXISTS (
                SELECT FROM "waybill"."waybill_outbox" d
                WHERE d.route = o.route AND d.topic = o.topic
                  AND d.dedupe_key = o.dedupe_key AND d.dedupe_key <> '' AND d.settled_at IS NULL
            ) THEN 'duplicate'
            WHEN $14::boolean THEN ''
            WHEN o.expires_at <= statement_timestamp() THEN 'expired'
            WHEN $15::bigint > 0 AND o.ready_since < statement_timestamp() - $15::bigint::float8 * interval '1 microsecond'
            THEN 'inbox retention'
            WHEN o.state = 5 AND o.key <> '' AND NOT ($16::boolean AND o.reason NOT IN ('', 'cancelled', 'replaced', 'skipped', 'set_aside')) AND o.seq < (SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "waybill"."waybill_outbox_seq" se)
            THEN 'out of order'
            ELSE '' END AS cause
        FROM "waybill"."waybill_outbox" o WHERE o.route = p.route AND o.seq = p.seq AND (o.state = 4 AND o.settled_at IS NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
    OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced'))) LIMIT 1
    ) o
), v AS MATERIALIZED (
    SELECT l.route, l.seq, CASE WHEN l.cause = '' AND l.dedupe_key <> '' AND row_number() OVER (
            PARTITION BY l.cause, l.dedupe_key, l.topic, l.route ORDER BY l.seq
        ) > 1 THEN 'duplicate' ELSE l.cause END AS cause
    FROM l
), u AS (SELECT o.route, o.seq, o.id, o.key, o.slot FROM "waybill"."waybill_outbox" o WHERE $18::bytea IS NULL AND $19::text = '' AND false), d AS (
    DELETE FROM "waybill"."waybill_outbox_notices" c WHERE c.kind = 4 AND ((c.route, c.seq, c.id) IN (SELECT u.route, u.seq, u.id FROM u)) IS TRUE
), many AS MATERIALIZED (
    SELECT u.route, pg_catalog.min(u.seq) AS seq FROM u WHERE u.key = '' GROUP BY u.route HAVING pg_catalog.count(*) > 100
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    (SELECT DISTINCT ON (u.route, u.key) 1, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq
     FROM u WHERE u.key <> '' ORDER BY u.route, u.key, u.seq)
    UNION ALL
    SELECT 2, u.route, u.slot, 1::bigint << u.slot::int, '', u.id, u.seq
    FROM u WHERE u.key = '' AND u.route NOT IN (SELECT many.route FROM many)
    UNION ALL
    SELECT 3, many.route, 0, -1, '', '', many.seq FROM many
)
SELECT n.next, coalesce(v.cause, ''), pg_catalog.count(v.seq), (SELECT pg_catalog.count(pg_catalog.pg_notify('waybill_25c50bbafea3b626', x.route)) FROM (SELECT DISTINCT u.route FROM u) x WHERE $17::boolean)
FROM (SELECT coalesce(
    CASE WHEN (SELECT pg_catalog.count(*) FROM p) >= $3 THEN (SELECT pg_catalog.max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0) AS next) n LEFT JOIN v ON true GROUP BY 1, 2

-- statement outbox.admin.dryRun.1
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE pg_catalog.cardinality($5::text[]) = 0 UNION SELECT pg_catalog.unnest($5::text[])
), share AS MATERIALIZED (
    SELECT greatest($2::int / greatest(pg_catalog.count(*), 1), 1) AS n FROM asked
), a AS MATERIALIZED (
    SELECT r.route, o.seq, o.ok FROM asked r CROSS JOIN LATERAL (
        SELECT o.seq, (o.state = 4 AND o.settled_at IS NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
    OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced'))) AND 
    (pg_catalog.cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (pg_catalog.cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (pg_catalog.cardinality($6::smallint[]) = 0 OR CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END = ANY ($6))
    AND (pg_catalog.cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (pg_catalog.cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (pg_catalog.cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (pg_catalog.cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12) AS ok FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.seq > $1 AND o.reason <> ''
        ORDER BY o.seq LIMIT (SELECT n FROM share)
    ) o
), e AS MATERIALIZED (
    SELECT pg_catalog.min(x.seq) AS seq
    FROM (SELECT pg_catalog.max(a.seq) AS seq FROM a GROUP BY a.route HAVING pg_catalog.count(*) >= (SELECT n FROM share)) x
), w AS MATERIALIZED (
    SELECT a.* FROM a CROSS JOIN e WHERE e.seq IS NULL OR a.seq <= e.seq
), p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
), l AS MATERIALIZED (
    SELECT o.* FROM (SELECT p.* FROM p ORDER BY p.seq) p CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.topic, o.dedupe_key, CASE
            WHEN o.dedupe_key <> '' AND o.state = 5 AND EXISTS (
                SELECT FROM "waybill"."waybill_outbox" d
                WHERE d.route = o.route AND d.topic = o.topic
                  AND d.dedupe_key = o.dedupe_key AND d.dedupe_key <> '' AND d.settled_at IS NULL
            ) THEN 'duplicate'
            WHEN $14::boolean THEN ''
            WHEN o.expires_at <= statement_timestamp() THEN 'expired'
            WHEN $15::bigint > 0 AND o.ready_since < statement_timestamp() - $15::bigint::float8 * interval '1 microsecond'
            THEN 'inbox retention'
            WHEN o.state = 5 AND o.key <> '' AND NOT ($16::boolean AND o.reason NOT IN ('', 'cancelled', 'replaced', 'skipped', 'set_aside')) AND o.seq < (SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "waybill"."waybill_outbox_seq" se)
            THEN 'out of order'
            ELSE '' END AS cause
        FROM "waybill"."waybill_outbox" o WHERE o.route = p.route AND o.seq = p.seq AND (o.state = 4 AND o.settled_at IS NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
    OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced'))) LIMIT 1
    ) o
), v AS MATERIALIZED (
    SELECT l.route, l.seq, CASE WHEN l.cause = '' AND l.dedupe_key <> '' AND row_number() OVER (
            PARTITION BY l.cause, l.dedupe_key, l.topic, l.route ORDER BY l.seq
        ) > 1 THEN 'duplicate' ELSE l.cause END AS cause
    FROM l
), u AS (SELECT o.route, o.seq, o.id, o.key, o.slot FROM "waybill"."waybill_outbox" o WHERE $18::bytea IS NULL AND $19::text = '' AND false), d AS (
    DELETE FROM "waybill"."waybill_outbox_notices" c WHERE c.kind = 4 AND ((c.route, c.seq, c.id) IN (SELECT u.route, u.seq, u.id FROM u)) IS TRUE
), many AS MATERIALIZED (
    SELECT u.route, pg_catalog.min(u.seq) AS seq FROM u WHERE u.key = '' GROUP BY u.route HAVING pg_catalog.count(*) > 100
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    (SELECT DISTINCT ON (u.route, u.key) 1, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq
     FROM u WHERE u.key <> '' ORDER BY u.route, u.key, u.seq)
    UNION ALL
    SELECT 2, u.route, u.slot, 1::bigint << u.slot::int, '', u.id, u.seq
    FROM u WHERE u.key = '' AND u.route NOT IN (SELECT many.route FROM many)
    UNION ALL
    SELECT 3, many.route, 0, -1, '', '', many.seq FROM many
)
SELECT n.next, coalesce(v.cause, ''), pg_catalog.count(v.seq), (SELECT pg_catalog.count(pg_catalog.pg_notify('waybill_25c50bbafea3b626', x.route)) FROM (SELECT DISTINCT u.route FROM u) x WHERE $17::boolean)
FROM (SELECT coalesce(
    CASE WHEN (SELECT pg_catalog.count(*) FROM p) >= $3 THEN (SELECT pg_catalog.max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0) AS next) n LEFT JOIN v ON true GROUP BY 1, 2

-- statement outbox.admin.dryRun.2
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE pg_catalog.cardinality($5::text[]) = 0 UNION SELECT pg_catalog.unnest($5::text[])
), ids AS MATERIALIZED (
    SELECT DISTINCT u.id, u.id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' AS made FROM pg_catalog.unnest($4::text[]) u (id)
), byid AS MATERIALIZED (
    SELECT r.route, i.id, i.made, o.seq FROM asked r CROSS JOIN ids i CROSS JOIN LATERAL (
        (SELECT o.seq FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.id = i.id AND o.own_id LIMIT 1)
        UNION ALL
        (SELECT o.seq FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.id = i.id AND NOT o.own_id AND (o.cancellable OR o.hold <> 0 OR coalesce(o.due_at, o.settled_at) IS NOT NULL) LIMIT 1)
    ) o
), e AS MATERIALIZED (
    SELECT (SELECT x.seq FROM byid x WHERE x.seq > $1 ORDER BY x.seq OFFSET $2::int - 1 LIMIT 1) AS seq
), w AS MATERIALIZED (
    SELECT o.route, o.seq, (o.state = 4 AND o.settled_at IS NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
    OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced'))) AND 
    (pg_catalog.cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (pg_catalog.cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (pg_catalog.cardinality($6::smallint[]) = 0 OR CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END = ANY ($6))
    AND (pg_catalog.cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (pg_catalog.cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (pg_catalog.cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (pg_catalog.cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12) AS ok
    FROM (SELECT x.route, x.seq FROM byid x) y CROSS JOIN e CROSS JOIN LATERAL (
        SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = y.route AND o.seq = y.seq LIMIT 1
    ) o WHERE y.seq > $1 AND (e.seq IS NULL OR y.seq <= e.seq)
), p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
), l AS MATERIALIZED (
    SELECT o.* FROM (SELECT p.* FROM p ORDER BY p.seq) p CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.topic, o.dedupe_key, CASE
            WHEN o.dedupe_key <> '' AND o.state = 5 AND EXISTS (
                SELECT FROM "waybill"."waybill_outbox" d
                WHERE d.route = o.route AND d.topic = o.topic
                  AND d.dedupe_key = o.dedupe_key AND d.dedupe_key <> '' AND d.settled_at IS NULL
            ) THEN 'duplicate'
            WHEN $14::boolean THEN ''
            WHEN o.expires_at <= statement_timestamp() THEN 'expired'
            WHEN $15::bigint > 0 AND o.ready_since < statement_timestamp() - $15::bigint::float8 * interval '1 microsecond'
            THEN 'inbox retention'
            WHEN o.state = 5 AND o.key <> '' AND NOT ($16::boolean AND o.reason NOT IN ('', 'cancelled', 'replaced', 'skipped', 'set_aside')) AND o.seq < (SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "waybill"."waybill_outbox_seq" se)
            THEN 'out of order'
            ELSE '' END AS cause
        FROM "waybill"."waybill_outbox" o WHERE o.route = p.route AND o.seq = p.seq AND (o.state = 4 AND o.settled_at IS NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
    OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced'))) LIMIT 1
    ) o
), v AS MATERIALIZED (
    SELECT l.route, l.seq, CASE WHEN l.cause = '' AND l.dedupe_key <> '' AND row_number() OVER (
            PARTITION BY l.cause, l.dedupe_key, l.topic, l.route ORDER BY l.seq
        ) > 1 THEN 'duplicate' ELSE l.cause END AS cause
    FROM l
), u AS (SELECT o.route, o.seq, o.id, o.key, o.slot FROM "waybill"."waybill_outbox" o WHERE $18::bytea IS NULL AND $19::text = '' AND false), d AS (
    DELETE FROM "waybill"."waybill_outbox_notices" c WHERE c.kind = 4 AND ((c.route, c.seq, c.id) IN (SELECT u.route, u.seq, u.id FROM u)) IS TRUE
), many AS MATERIALIZED (
    SELECT u.route, pg_catalog.min(u.seq) AS seq FROM u WHERE u.key = '' GROUP BY u.route HAVING pg_catalog.count(*) > 100
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    (SELECT DISTINCT ON (u.route, u.key) 1, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq
     FROM u WHERE u.key <> '' ORDER BY u.route, u.key, u.seq)
    UNION ALL
    SELECT 2, u.route, u.slot, 1::bigint << u.slot::int, '', u.id, u.seq
    FROM u WHERE u.key = '' AND u.route NOT IN (SELECT many.route FROM many)
    UNION ALL
    SELECT 3, many.route, 0, -1, '', '', many.seq FROM many
)
SELECT n.next, coalesce(v.cause, ''), pg_catalog.count(v.seq), (SELECT pg_catalog.count(pg_catalog.pg_notify('waybill_25c50bbafea3b626', x.route)) FROM (SELECT DISTINCT u.route FROM u) x WHERE $17::boolean)
FROM (SELECT coalesce(
    CASE WHEN (SELECT pg_catalog.count(*) FROM p) >= $3 THEN (SELECT pg_catalog.max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0) AS next) n LEFT JOIN v ON true GROUP BY 1, 2

-- statement outbox.admin.inspect
SELECT
    o.seq, o.route, o.id, o.topic, o.key, o.type, o.source, o.content_type, o.correlation_id, o.trace_parent,
    o.occurred_at, o.hlc, o.expires_at, o.attrs,
    CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END, o.reason, o.attempts, o.crashes, o.dedupe_key, o.last_error, o.last_error_at, o.settled_at,
    (extract(epoch FROM statement_timestamp() - o.ready_since) * '1000000')::bigint,
    CASE WHEN o.settled_at IS NULL AND o.due_at > statement_timestamp() AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
         THEN (extract(epoch FROM o.due_at - statement_timestamp()) * '1000000')::bigint ELSE 0 END,
    coalesce((SELECT me.name FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold AND o.hold <> 0), ''),
    coalesce((SELECT greatest(me.lease - (extract(epoch FROM statement_timestamp() - me.renewed_at) * '1000000')::bigint, 0)
              FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold AND o.hold <> 0), 0), o.body FROM (
    SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = $1 AND o.id = $2 AND o.own_id
    UNION ALL
    SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = $1 AND o.id = $2 AND NOT o.own_id AND (o.cancellable OR o.hold <> 0 OR coalesce(o.due_at, o.settled_at) IS NOT NULL)
    UNION ALL
    SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = $1 AND o.id = $2 AND o.seq = $3
    LIMIT 1
) o

-- statement outbox.admin.list.0
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE pg_catalog.cardinality($5::text[]) = 0 UNION SELECT pg_catalog.unnest($5::text[])
), share AS MATERIALIZED (
    SELECT greatest($2::int / greatest(pg_catalog.count(*), 1), 1) AS n FROM asked
), a AS MATERIALIZED (
    SELECT r.route, o.seq, o.ok FROM asked r CROSS JOIN LATERAL (
        SELECT o.seq, 
    (pg_catalog.cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (pg_catalog.cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (pg_catalog.cardinality($6::smallint[]) = 0 OR CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END = ANY ($6))
    AND (pg_catalog.cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (pg_catalog.cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (pg_catalog.cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (pg_catalog.cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12) AS ok FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.seq > $1
        ORDER BY o.seq LIMIT (SELECT n FROM share)
    ) o
), e AS MATERIALIZED (
    SELECT pg_catalog.min(x.seq) AS seq
    FROM (SELECT pg_catalog.max(a.seq) AS seq FROM a GROUP BY a.route HAVING pg_catalog.count(*) >= (SELECT n FROM share)) x
), w AS MATERIALIZED (
    SELECT a.* FROM a CROSS JOIN e WHERE e.seq IS NULL OR a.seq <= e.seq
), p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
)
SELECT n.next, s.* FROM (SELECT coalesce(
    CASE WHEN (SELECT pg_catalog.count(*) FROM p) >= $3 THEN (SELECT pg_catalog.max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0) AS next) n
LEFT JOIN (
    SELECT
    o.seq, o.route, o.id, o.topic, o.key, o.type, o.source, o.content_type, o.correlation_id, o.trace_parent,
    o.occurred_at, o.hlc, o.expires_at, o.attrs,
    CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END, o.reason, o.attempts, o.crashes, o.dedupe_key, o.last_error, o.last_error_at, o.settled_at,
    (extract(epoch FROM statement_timestamp() - o.ready_since) * '1000000')::bigint,
    CASE WHEN o.settled_at IS NULL AND o.due_at > statement_timestamp() AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
         THEN (extract(epoch FROM o.due_at - statement_timestamp()) * '1000000')::bigint ELSE 0 END,
    coalesce((SELECT me.name FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold AND o.hold <> 0), ''),
    coalesce((SELECT greatest(me.lease - (extract(epoch FROM statement_timestamp() - me.renewed_at) * '1000000')::bigint, 0)
              FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold AND o.hold <> 0), 0)
    FROM p CROSS JOIN LATERAL (SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = p.route AND o.seq = p.seq LIMIT 1) o
) s ON true ORDER BY s.seq

-- statement outbox.admin.list.1
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE pg_catalog.cardinality($5::text[]) = 0 UNION SELECT pg_catalog.unnest($5::text[])
), share AS MATERIALIZED (
    SELECT greatest($2::int / greatest(pg_catalog.count(*), 1), 1) AS n FROM asked
), a AS MATERIALIZED (
    SELECT r.route, o.seq, o.ok FROM asked r CROSS JOIN LATERAL (
        SELECT o.seq, 
    (pg_catalog.cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (pg_catalog.cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (pg_catalog.cardinality($6::smallint[]) = 0 OR CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END = ANY ($6))
    AND (pg_catalog.cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (pg_catalog.cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (pg_catalog.cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (pg_catalog.cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12) AS ok FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.seq > $1 AND o.reason <> ''
        ORDER BY o.seq LIMIT (SELECT n FROM share)
    ) o
), e AS MATERIALIZED (
    SELECT pg_catalog.min(x.seq) AS seq
    FROM (SELECT pg_catalog.max(a.seq) AS seq FROM a GROUP BY a.route HAVING pg_catalog.count(*) >= (SELECT n FROM share)) x
), w AS MATERIALIZED (
    SELECT a.* FROM a CROSS JOIN e WHERE e.seq IS NULL OR a.seq <= e.seq
), p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
)
SELECT n.next, s.* FROM (SELECT coalesce(
    CASE WHEN (SELECT pg_catalog.count(*) FROM p) >= $3 THEN (SELECT pg_catalog.max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0) AS next) n
LEFT JOIN (
    SELECT
    o.seq, o.route, o.id, o.topic, o.key, o.type, o.source, o.content_type, o.correlation_id, o.trace_parent,
    o.occurred_at, o.hlc, o.expires_at, o.attrs,
    CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END, o.reason, o.attempts, o.crashes, o.dedupe_key, o.last_error, o.last_error_at, o.settled_at,
    (extract(epoch FROM statement_timestamp() - o.ready_since) * '1000000')::bigint,
    CASE WHEN o.settled_at IS NULL AND o.due_at > statement_timestamp() AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
         THEN (extract(epoch FROM o.due_at - statement_timestamp()) * '1000000')::bigint ELSE 0 END,
    coalesce((SELECT me.name FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold AND o.hold <> 0), ''),
    coalesce((SELECT greatest(me.lease - (extract(epoch FROM statement_timestamp() - me.renewed_at) * '1000000')::bigint, 0)
              FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold AND o.hold <> 0), 0)
    FROM p CROSS JOIN LATERAL (SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = p.route AND o.seq = p.seq LIMIT 1) o
) s ON true ORDER BY s.seq

-- statement outbox.admin.list.2
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE pg_catalog.cardinality($5::text[]) = 0 UNION SELECT pg_catalog.unnest($5::text[])
), ids AS MATERIALIZED (
    SELECT DISTINCT u.id, u.id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' AS made FROM pg_catalog.unnest($4::text[]) u (id)
), byid AS MATERIALIZED (
    SELECT r.route, i.id, i.made, o.seq FROM asked r CROSS JOIN ids i CROSS JOIN LATERAL (
        (SELECT o.seq FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.id = i.id AND o.own_id LIMIT 1)
        UNION ALL
        (SELECT o.seq FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.id = i.id AND NOT o.own_id AND (o.cancellable OR o.hold <> 0 OR coalesce(o.due_at, o.settled_at) IS NOT NULL) LIMIT 1)
    ) o
), lacking AS MATERIALIZED (
    SELECT r.route FROM asked r LEFT JOIN (SELECT x.route, pg_catalog.count(DISTINCT x.id) AS n FROM byid x WHERE x.made GROUP BY x.route) f USING (route)
    WHERE coalesce(f.n, 0) < (SELECT pg_catalog.count(*) FROM ids i WHERE i.made)
      AND pg_catalog.cardinality($7::text[]) = 0 AND (pg_catalog.cardinality($6::smallint[]) = 0 OR 1 = ANY ($6))
), share AS MATERIALIZED (
    SELECT greatest($2::int / greatest(pg_catalog.count(*), 1), 1) AS n FROM lacking
), a AS MATERIALIZED (
    SELECT r.route, o.seq, o.ok FROM lacking r CROSS JOIN LATERAL (
        SELECT o.seq, (o.id = ANY ($4) AND o.due_at IS NULL AND o.settled_at IS NULL
            AND NOT o.own_id AND NOT o.cancellable AND o.hold = 0) AS ok FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.seq > $1
        ORDER BY o.seq LIMIT (SELECT n FROM share)
    ) o
), e AS MATERIALIZED (
    SELECT pg_catalog.min(x.seq) AS seq
    FROM (SELECT pg_catalog.max(a.seq) AS seq FROM a GROUP BY a.route HAVING pg_catalog.count(*) >= (SELECT n FROM share)) x
), w AS MATERIALIZED (
    SELECT o.route, o.seq, 
    (pg_catalog.cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (pg_catalog.cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (pg_catalog.cardinality($6::smallint[]) = 0 OR CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END = ANY ($6))
    AND (pg_catalog.cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (pg_catalog.cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (pg_catalog.cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (pg_catalog.cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12) AS ok
    FROM (SELECT x.route, x.seq FROM byid x UNION ALL SELECT a.route, a.seq FROM a WHERE a.ok) y CROSS JOIN e CROSS JOIN LATERAL (
        SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = y.route AND o.seq = y.seq LIMIT 1
    ) o WHERE y.seq > $1 AND (e.seq IS NULL OR y.seq <= e.seq)
), p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
)
SELECT n.next, s.* FROM (SELECT coalesce(
    CASE WHEN (SELECT pg_catalog.count(*) FROM p) >= $3 THEN (SELECT pg_catalog.max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0) AS next) n
LEFT JOIN (
    SELECT
    o.seq, o.route, o.id, o.topic, o.key, o.type, o.source, o.content_type, o.correlation_id, o.trace_parent,
    o.occurred_at, o.hlc, o.expires_at, o.attrs,
    CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END, o.reason, o.attempts, o.crashes, o.dedupe_key, o.last_error, o.last_error_at, o.settled_at,
    (extract(epoch FROM statement_timestamp() - o.ready_since) * '1000000')::bigint,
    CASE WHEN o.settled_at IS NULL AND o.due_at > statement_timestamp() AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
         THEN (extract(epoch FROM o.due_at - statement_timestamp()) * '1000000')::bigint ELSE 0 END,
    coalesce((SELECT me.name FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold AND o.hold <> 0), ''),
    coalesce((SELECT greatest(me.lease - (extract(epoch FROM statement_timestamp() - me.renewed_at) * '1000000')::bigint, 0)
              FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold AND o.hold <> 0), 0)
    FROM p CROSS JOIN LATERAL (SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = p.route AND o.seq = p.seq LIMIT 1) o
) s ON true ORDER BY s.seq

-- statement outbox.admin.lock
SELECT pg_catalog.concat_ws(', ', 'process ' || l.pid::text, nullif(a.application_name, ''), 'of role ' || a.usename::text,
    'open for ' || pg_catalog.date_trunc('second', statement_timestamp() - a.xact_start)::text)
FROM "waybill"."waybill_outbox" o JOIN pg_catalog.pg_locks l ON l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.transactionid = o.xmax
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE o.route = $1 AND o.seq = $2

-- statement outbox.admin.purge.0
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE pg_catalog.cardinality($5::text[]) = 0 UNION SELECT pg_catalog.unnest($5::text[])
), share AS MATERIALIZED (
    SELECT greatest($2::int / greatest(pg_catalog.count(*), 1), 1) AS n FROM asked
), a AS MATERIALIZED (
    SELECT r.route, o.seq, o.ok FROM asked r CROSS JOIN LATERAL (
        SELECT o.seq, 
    (pg_catalog.cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (pg_catalog.cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (pg_catalog.cardinality($6::smallint[]) = 0 OR CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END = ANY ($6))
    AND (pg_catalog.cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (pg_catalog.cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (pg_catalog.cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (pg_catalog.cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12) AS ok FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.seq > $1
        ORDER BY o.seq LIMIT (SELECT n FROM share)
    ) o
), e AS MATERIALIZED (
    SELECT pg_catalog.min(x.seq) AS seq
    FROM (SELECT pg_catalog.max(a.seq) AS seq FROM a GROUP BY a.route HAVING pg_catalog.count(*) >= (SELECT n FROM share)) x
), w AS MATERIALIZED (
    SELECT a.* FROM a CROSS JOIN e WHERE e.seq IS NULL OR a.seq <= e.seq
), p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
), l AS MATERIALIZED (
    SELECT o.* FROM (SELECT p.* FROM p ORDER BY p.seq) p CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.ctid AS at FROM "waybill"."waybill_outbox" o WHERE o.route = p.route AND o.seq = p.seq AND (o.settled_at IS NOT NULL OR $13::boolean AND o.due_at IS NOT NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))) FOR UPDATE SKIP LOCKED
    ) o
), x AS (DELETE FROM "waybill"."waybill_outbox" o USING l WHERE o.ctid = l.at
    RETURNING o.route, o.seq, o.id, o.key, o.slot, o.key <> '' AND (o.blocks OR o.retry) AS tell), u AS (
    SELECT x.* FROM x WHERE x.tell
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    SELECT 1, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq FROM u
)
SELECT coalesce(
    CASE WHEN (SELECT pg_catalog.count(*) FROM p) >= $3 THEN (SELECT pg_catalog.max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0), (SELECT pg_catalog.count(*) FROM p), (SELECT pg_catalog.count(*) FROM x), (SELECT pg_catalog.count(pg_catalog.pg_notify('waybill_25c50bbafea3b626', x.route)) FROM (SELECT DISTINCT u.route FROM u) x WHERE $14::boolean)

-- statement outbox.admin.purge.1
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE pg_catalog.cardinality($5::text[]) = 0 UNION SELECT pg_catalog.unnest($5::text[])
), share AS MATERIALIZED (
    SELECT greatest($2::int / greatest(pg_catalog.count(*), 1), 1) AS n FROM asked
), a AS MATERIALIZED (
    SELECT r.route, o.seq, o.ok FROM asked r CROSS JOIN LATERAL (
        SELECT o.seq, 
    (pg_catalog.cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (pg_catalog.cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (pg_catalog.cardinality($6::smallint[]) = 0 OR CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END = ANY ($6))
    AND (pg_catalog.cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (pg_catalog.cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (pg_catalog.cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (pg_catalog.cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12) AS ok FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.seq > $1 AND o.reason <> ''
        ORDER BY o.seq LIMIT (SELECT n FROM share)
    ) o
), e AS MATERIALIZED (
    SELECT pg_catalog.min(x.seq) AS seq
    FROM (SELECT pg_catalog.max(a.seq) AS seq FROM a GROUP BY a.route HAVING pg_catalog.count(*) >= (SELECT n FROM share)) x
), w AS MATERIALIZED (
    SELECT a.* FROM a CROSS JOIN e WHERE e.seq IS NULL OR a.seq <= e.seq
), p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
), l AS MATERIALIZED (
    SELECT o.* FROM (SELECT p.* FROM p ORDER BY p.seq) p CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.ctid AS at FROM "waybill"."waybill_outbox" o WHERE o.route = p.route AND o.seq = p.seq AND (o.settled_at IS NOT NULL OR $13::boolean AND o.due_at IS NOT NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))) FOR UPDATE SKIP LOCKED
    ) o
), x AS (DELETE FROM "waybill"."waybill_outbox" o USING l WHERE o.ctid = l.at
    RETURNING o.route, o.seq, o.id, o.key, o.slot, o.key <> '' AND (o.blocks OR o.retry) AS tell), u AS (
    SELECT x.* FROM x WHERE x.tell
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    SELECT 1, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq FROM u
)
SELECT coalesce(
    CASE WHEN (SELECT pg_catalog.count(*) FROM p) >= $3 THEN (SELECT pg_catalog.max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0), (SELECT pg_catalog.count(*) FROM p), (SELECT pg_catalog.count(*) FROM x), (SELECT pg_catalog.count(pg_catalog.pg_notify('waybill_25c50bbafea3b626', x.route)) FROM (SELECT DISTINCT u.route FROM u) x WHERE $14::boolean)

-- statement outbox.admin.purge.2
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE pg_catalog.cardinality($5::text[]) = 0 UNION SELECT pg_catalog.unnest($5::text[])
), ids AS MATERIALIZED (
    SELECT DISTINCT u.id, u.id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' AS made FROM pg_catalog.unnest($4::text[]) u (id)
), byid AS MATERIALIZED (
    SELECT r.route, i.id, i.made, o.seq FROM asked r CROSS JOIN ids i CROSS JOIN LATERAL (
        (SELECT o.seq FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.id = i.id AND o.own_id LIMIT 1)
        UNION ALL
        (SELECT o.seq FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.id = i.id AND NOT o.own_id AND (o.cancellable OR o.hold <> 0 OR coalesce(o.due_at, o.settled_at) IS NOT NULL) LIMIT 1)
    ) o
), lacking AS MATERIALIZED (
    SELECT r.route FROM asked r LEFT JOIN (SELECT x.route, pg_catalog.count(DISTINCT x.id) AS n FROM byid x WHERE x.made GROUP BY x.route) f USING (route)
    WHERE coalesce(f.n, 0) < (SELECT pg_catalog.count(*) FROM ids i WHERE i.made)
      AND pg_catalog.cardinality($7::text[]) = 0 AND (pg_catalog.cardinality($6::smallint[]) = 0 OR 1 = ANY ($6))
), share AS MATERIALIZED (
    SELECT greatest($2::int / greatest(pg_catalog.count(*), 1), 1) AS n FROM lacking
), a AS MATERIALIZED (
    SELECT r.route, o.seq, o.ok FROM lacking r CROSS JOIN LATERAL (
        SELECT o.seq, (o.id = ANY ($4) AND o.due_at IS NULL AND o.settled_at IS NULL
            AND NOT o.own_id AND NOT o.cancellable AND o.hold = 0) AS ok FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.seq > $1
        ORDER BY o.seq LIMIT (SELECT n FROM share)
    ) o
), e AS MATERIALIZED (
    SELECT pg_catalog.min(x.seq) AS seq
    FROM (SELECT pg_catalog.max(a.seq) AS seq FROM a GROUP BY a.route HAVING pg_catalog.count(*) >= (SELECT n FROM share)) x
), w AS MATERIALIZED (
    SELECT o.route, o.seq, 
    (pg_catalog.cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (pg_catalog.cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (pg_catalog.cardinality($6::smallint[]) = 0 OR CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END = ANY ($6))
    AND (pg_catalog.cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (pg_catalog.cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (pg_catalog.cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (pg_catalog.cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12) AS ok
    FROM (SELECT x.route, x.seq FROM byid x UNION ALL SELECT a.route, a.seq FROM a WHERE a.ok) y CROSS JOIN e CROSS JOIN LATERAL (
        SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = y.route AND o.seq = y.seq LIMIT 1
    ) o WHERE y.seq > $1 AND (e.seq IS NULL OR y.seq <= e.seq)
), p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
), l AS MATERIALIZED (
    SELECT o.* FROM (SELECT p.* FROM p ORDER BY p.seq) p CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.ctid AS at FROM "waybill"."waybill_outbox" o WHERE o.route = p.route AND o.seq = p.seq AND (o.settled_at IS NOT NULL OR $13::boolean AND o.due_at IS NOT NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))) FOR UPDATE SKIP LOCKED
    ) o
), x AS (DELETE FROM "waybill"."waybill_outbox" o USING l WHERE o.ctid = l.at
    RETURNING o.route, o.seq, o.id, o.key, o.slot, o.key <> '' AND (o.blocks OR o.retry) AS tell), u AS (
    SELECT x.* FROM x WHERE x.tell
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    SELECT 1, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq FROM u
)
SELECT coalesce(
    CASE WHEN (SELECT pg_catalog.count(*) FROM p) >= $3 THEN (SELECT pg_catalog.max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0), (SELECT pg_catalog.count(*) FROM p), (SELECT pg_catalog.count(*) FROM x), (SELECT pg_catalog.count(pg_catalog.pg_notify('waybill_25c50bbafea3b626', x.route)) FROM (SELECT DISTINCT u.route FROM u) x WHERE $14::boolean)

-- statement outbox.admin.redrive.0
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE pg_catalog.cardinality($5::text[]) = 0 UNION SELECT pg_catalog.unnest($5::text[])
), share AS MATERIALIZED (
    SELECT greatest($2::int / greatest(pg_catalog.count(*), 1), 1) AS n FROM asked
), a AS MATERIALIZED (
    SELECT r.route, o.seq, o.ok FROM asked r CROSS JOIN LATERAL (
        SELECT o.seq, (o.state = 4 AND o.settled_at IS NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
    OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced'))) AND 
    (pg_catalog.cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (pg_catalog.cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (pg_catalog.cardinality($6::smallint[]) = 0 OR CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END = ANY ($6))
    AND (pg_catalog.cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (pg_catalog.cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (pg_catalog.cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (pg_catalog.cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12) AS ok FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.seq > $1
        ORDER BY o.seq LIMIT (SELECT n FROM share)
    ) o
), e AS MATERIALIZED (
    SELECT pg_catalog.min(x.seq) AS seq
    FROM (SELECT pg_catalog.max(a.seq) AS seq FROM a GROUP BY a.route HAVING pg_catalog.count(*) >= (SELECT n FROM share)) x
), w AS MATERIALIZED (
    SELECT a.* FROM a CROSS JOIN e WHERE e.seq IS NULL OR a.seq <= e.seq
), p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
), l AS MATERIALIZED (
    SELECT o.* FROM (SELECT p.* FROM p ORDER BY p.seq) p CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.topic, o.dedupe_key, CASE
            WHEN o.dedupe_key <> '' AND o.state = 5 AND EXISTS (
                SELECT FROM "waybill"."waybill_outbox" d
                WHERE d.route = o.route AND d.topic = o.topic
                  AND d.dedupe_key = o.dedupe_key AND d.dedupe_key <> '' AND d.settled_at IS NULL
            ) THEN 'duplicate'
            WHEN $14::boolean THEN ''
            WHEN o.expires_at <= statement_timestamp() THEN 'expired'
            WHEN $15::bigint > 0 AND o.ready_since < statement_timestamp() - $15::bigint::float8 * interval '1 microsecond'
            THEN 'inbox retention'
            WHEN o.state = 5 AND o.key <> '' AND NOT ($16::boolean AND o.reason NOT IN ('', 'cancelled', 'replaced', 'skipped', 'set_aside')) AND o.seq < (SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "waybill"."waybill_outbox_seq" se)
            THEN 'out of order'
            ELSE '' END AS cause
        FROM "waybill"."waybill_outbox" o WHERE o.route = p.route AND o.seq = p.seq AND (o.state = 4 AND o.settled_at IS NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
    OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced'))) FOR NO KEY UPDATE SKIP LOCKED
    ) o
), v AS MATERIALIZED (
    SELECT l.route, l.seq, CASE WHEN l.cause = '' AND l.dedupe_key <> '' AND row_number() OVER (
            PARTITION BY l.cause, l.dedupe_key, l.topic, l.route ORDER BY l.seq
        ) > 1 THEN 'duplicate' ELSE l.cause END AS cause
    FROM l
), u AS (UPDATE "waybill"."waybill_outbox" o SET
    state = 1, due_at = NULL, retry = false, blocks = false, settled_at = NULL, hold = 0, held_since = NULL,
    version = o.version + 1, maybe_sent = o.maybe_sent OR o.crashes > 0, attempts = 0, crashes = 0, deliveries = 0, reason = '',
    last_error = '', last_error_at = NULL,
    expires_at = CASE WHEN o.expires_at <= statement_timestamp() THEN NULL ELSE o.expires_at END, body = coalesce($18::bytea, o.body),
        attrs = CASE WHEN $19::text = '' THEN o.attrs ELSE pg_catalog.jsonb_set(coalesce(o.attrs::jsonb, '{}'), ARRAY['headers'],
            coalesce(o.attrs::jsonb -> 'headers', '{}') || pg_catalog.jsonb_build_object('repaired-from', $19::text))::json END
    FROM v WHERE o.route = v.route AND o.seq = v.seq AND v.cause = '' AND (o.state = 4 AND o.settled_at IS NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
    OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced')))
    RETURNING o.route, o.seq, o.id, o.key, o.slot), d AS (
    DELETE FROM "waybill"."waybill_outbox_notices" c WHERE c.kind = 4 AND ((c.route, c.seq, c.id) IN (SELECT u.route, u.seq, u.id FROM u)) IS TRUE
), many AS MATERIALIZED (
    SELECT u.route, pg_catalog.min(u.seq) AS seq FROM u WHERE u.key = '' GROUP BY u.route HAVING pg_catalog.count(*) > 100
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    (SELECT DISTINCT ON (u.route, u.key) 1, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq
     FROM u WHERE u.key <> '' ORDER BY u.route, u.key, u.seq)
    UNION ALL
    SELECT 2, u.route, u.slot, 1::bigint << u.slot::int, '', u.id, u.seq
    FROM u WHERE u.key = '' AND u.route NOT IN (SELECT many.route FROM many)
    UNION ALL
    SELECT 3, many.route, 0, -1, '', '', many.seq FROM many
)
SELECT n.next, coalesce(v.cause, ''), pg_catalog.count(v.seq), (SELECT pg_catalog.count(pg_catalog.pg_notify('waybill_25c50bbafea3b626', x.route)) FROM (SELECT DISTINCT u.route FROM u) x WHERE $17::boolean)
FROM (SELECT coalesce(
    CASE WHEN (SELECT pg_catalog.count(*) FROM p) >= $3 THEN (SELECT pg_catalog.max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0) AS next) n LEFT JOIN v ON true GROUP BY 1, 2

-- statement outbox.admin.redrive.1
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE pg_catalog.cardinality($5::text[]) = 0 UNION SELECT pg_catalog.unnest($5::text[])
), share AS MATERIALIZED (
    SELECT greatest($2::int / greatest(pg_catalog.count(*), 1), 1) AS n FROM asked
), a AS MATERIALIZED (
    SELECT r.route, o.seq, o.ok FROM asked r CROSS JOIN LATERAL (
        SELECT o.seq, (o.state = 4 AND o.settled_at IS NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
    OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced'))) AND 
    (pg_catalog.cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (pg_catalog.cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (pg_catalog.cardinality($6::smallint[]) = 0 OR CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END = ANY ($6))
    AND (pg_catalog.cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (pg_catalog.cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (pg_catalog.cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (pg_catalog.cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12) AS ok FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.seq > $1 AND o.reason <> ''
        ORDER BY o.seq LIMIT (SELECT n FROM share)
    ) o
), e AS MATERIALIZED (
    SELECT pg_catalog.min(x.seq) AS seq
    FROM (SELECT pg_catalog.max(a.seq) AS seq FROM a GROUP BY a.route HAVING pg_catalog.count(*) >= (SELECT n FROM share)) x
), w AS MATERIALIZED (
    SELECT a.* FROM a CROSS JOIN e WHERE e.seq IS NULL OR a.seq <= e.seq
), p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
), l AS MATERIALIZED (
    SELECT o.* FROM (SELECT p.* FROM p ORDER BY p.seq) p CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.topic, o.dedupe_key, CASE
            WHEN o.dedupe_key <> '' AND o.state = 5 AND EXISTS (
                SELECT FROM "waybill"."waybill_outbox" d
                WHERE d.route = o.route AND d.topic = o.topic
                  AND d.dedupe_key = o.dedupe_key AND d.dedupe_key <> '' AND d.settled_at IS NULL
            ) THEN 'duplicate'
            WHEN $14::boolean THEN ''
            WHEN o.expires_at <= statement_timestamp() THEN 'expired'
            WHEN $15::bigint > 0 AND o.ready_since < statement_timestamp() - $15::bigint::float8 * interval '1 microsecond'
            THEN 'inbox retention'
            WHEN o.state = 5 AND o.key <> '' AND NOT ($16::boolean AND o.reason NOT IN ('', 'cancelled', 'replaced', 'skipped', 'set_aside')) AND o.seq < (SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "waybill"."waybill_outbox_seq" se)
            THEN 'out of order'
            ELSE '' END AS cause
        FROM "waybill"."waybill_outbox" o WHERE o.route = p.route AND o.seq = p.seq AND (o.state = 4 AND o.settled_at IS NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
    OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced'))) FOR NO KEY UPDATE SKIP LOCKED
    ) o
), v AS MATERIALIZED (
    SELECT l.route, l.seq, CASE WHEN l.cause = '' AND l.dedupe_key <> '' AND row_number() OVER (
            PARTITION BY l.cause, l.dedupe_key, l.topic, l.route ORDER BY l.seq
        ) > 1 THEN 'duplicate' ELSE l.cause END AS cause
    FROM l
), u AS (UPDATE "waybill"."waybill_outbox" o SET
    state = 1, due_at = NULL, retry = false, blocks = false, settled_at = NULL, hold = 0, held_since = NULL,
    version = o.version + 1, maybe_sent = o.maybe_sent OR o.crashes > 0, attempts = 0, crashes = 0, deliveries = 0, reason = '',
    last_error = '', last_error_at = NULL,
    expires_at = CASE WHEN o.expires_at <= statement_timestamp() THEN NULL ELSE o.expires_at END, body = coalesce($18::bytea, o.body),
        attrs = CASE WHEN $19::text = '' THEN o.attrs ELSE pg_catalog.jsonb_set(coalesce(o.attrs::jsonb, '{}'), ARRAY['headers'],
            coalesce(o.attrs::jsonb -> 'headers', '{}') || pg_catalog.jsonb_build_object('repaired-from', $19::text))::json END
    FROM v WHERE o.route = v.route AND o.seq = v.seq AND v.cause = '' AND (o.state = 4 AND o.settled_at IS NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
    OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced')))
    RETURNING o.route, o.seq, o.id, o.key, o.slot), d AS (
    DELETE FROM "waybill"."waybill_outbox_notices" c WHERE c.kind = 4 AND ((c.route, c.seq, c.id) IN (SELECT u.route, u.seq, u.id FROM u)) IS TRUE
), many AS MATERIALIZED (
    SELECT u.route, pg_catalog.min(u.seq) AS seq FROM u WHERE u.key = '' GROUP BY u.route HAVING pg_catalog.count(*) > 100
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    (SELECT DISTINCT ON (u.route, u.key) 1, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq
     FROM u WHERE u.key <> '' ORDER BY u.route, u.key, u.seq)
    UNION ALL
    SELECT 2, u.route, u.slot, 1::bigint << u.slot::int, '', u.id, u.seq
    FROM u WHERE u.key = '' AND u.route NOT IN (SELECT many.route FROM many)
    UNION ALL
    SELECT 3, many.route, 0, -1, '', '', many.seq FROM many
)
SELECT n.next, coalesce(v.cause, ''), pg_catalog.count(v.seq), (SELECT pg_catalog.count(pg_catalog.pg_notify('waybill_25c50bbafea3b626', x.route)) FROM (SELECT DISTINCT u.route FROM u) x WHERE $17::boolean)
FROM (SELECT coalesce(
    CASE WHEN (SELECT pg_catalog.count(*) FROM p) >= $3 THEN (SELECT pg_catalog.max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0) AS next) n LEFT JOIN v ON true GROUP BY 1, 2

-- statement outbox.admin.redrive.2
WITH RECURSIVE known AS MATERIALIZED (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), others AS (
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
), asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE pg_catalog.cardinality($5::text[]) = 0 UNION SELECT pg_catalog.unnest($5::text[])
), ids AS MATERIALIZED (
    SELECT DISTINCT u.id, u.id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' AS made FROM pg_catalog.unnest($4::text[]) u (id)
), byid AS MATERIALIZED (
    SELECT r.route, i.id, i.made, o.seq FROM asked r CROSS JOIN ids i CROSS JOIN LATERAL (
        (SELECT o.seq FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.id = i.id AND o.own_id LIMIT 1)
        UNION ALL
        (SELECT o.seq FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.id = i.id AND NOT o.own_id AND (o.cancellable OR o.hold <> 0 OR coalesce(o.due_at, o.settled_at) IS NOT NULL) LIMIT 1)
    ) o
), e AS MATERIALIZED (
    SELECT (SELECT x.seq FROM byid x WHERE x.seq > $1 ORDER BY x.seq OFFSET $2::int - 1 LIMIT 1) AS seq
), w AS MATERIALIZED (
    SELECT o.route, o.seq, (o.state = 4 AND o.settled_at IS NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
    OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced'))) AND 
    (pg_catalog.cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (pg_catalog.cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (pg_catalog.cardinality($6::smallint[]) = 0 OR CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END = ANY ($6))
    AND (pg_catalog.cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (pg_catalog.cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (pg_catalog.cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (pg_catalog.cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12) AS ok
    FROM (SELECT x.route, x.seq FROM byid x) y CROSS JOIN e CROSS JOIN LATERAL (
        SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = y.route AND o.seq = y.seq LIMIT 1
    ) o WHERE y.seq > $1 AND (e.seq IS NULL OR y.seq <= e.seq)
), p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
), l AS MATERIALIZED (
    SELECT o.* FROM (SELECT p.* FROM p ORDER BY p.seq) p CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.topic, o.dedupe_key, CASE
            WHEN o.dedupe_key <> '' AND o.state = 5 AND EXISTS (
                SELECT FROM "waybill"."waybill_outbox" d
                WHERE d.route = o.route AND d.topic = o.topic
                  AND d.dedupe_key = o.dedupe_key AND d.dedupe_key <> '' AND d.settled_at IS NULL
            ) THEN 'duplicate'
            WHEN $14::boolean THEN ''
            WHEN o.expires_at <= statement_timestamp() THEN 'expired'
            WHEN $15::bigint > 0 AND o.ready_since < statement_timestamp() - $15::bigint::float8 * interval '1 microsecond'
            THEN 'inbox retention'
            WHEN o.state = 5 AND o.key <> '' AND NOT ($16::boolean AND o.reason NOT IN ('', 'cancelled', 'replaced', 'skipped', 'set_aside')) AND o.seq < (SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "waybill"."waybill_outbox_seq" se)
            THEN 'out of order'
            ELSE '' END AS cause
        FROM "waybill"."waybill_outbox" o WHERE o.route = p.route AND o.seq = p.seq AND (o.state = 4 AND o.settled_at IS NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
    OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced'))) FOR NO KEY UPDATE SKIP LOCKED
    ) o
), v AS MATERIALIZED (
    SELECT l.route, l.seq, CASE WHEN l.cause = '' AND l.dedupe_key <> '' AND row_number() OVER (
            PARTITION BY l.cause, l.dedupe_key, l.topic, l.route ORDER BY l.seq
        ) > 1 THEN 'duplicate' ELSE l.cause END AS cause
    FROM l
), u AS (UPDATE "waybill"."waybill_outbox" o SET
    state = 1, due_at = NULL, retry = false, blocks = false, settled_at = NULL, hold = 0, held_since = NULL,
    version = o.version + 1, maybe_sent = o.maybe_sent OR o.crashes > 0, attempts = 0, crashes = 0, deliveries = 0, reason = '',
    last_error = '', last_error_at = NULL,
    expires_at = CASE WHEN o.expires_at <= statement_timestamp() THEN NULL ELSE o.expires_at END, body = coalesce($18::bytea, o.body),
        attrs = CASE WHEN $19::text = '' THEN o.attrs ELSE pg_catalog.jsonb_set(coalesce(o.attrs::jsonb, '{}'), ARRAY['headers'],
            coalesce(o.attrs::jsonb -> 'headers', '{}') || pg_catalog.jsonb_build_object('repaired-from', $19::text))::json END
    FROM v WHERE o.route = v.route AND o.seq = v.seq AND v.cause = '' AND (o.state = 4 AND o.settled_at IS NULL AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
    OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced')))
    RETURNING o.route, o.seq, o.id, o.key, o.slot), d AS (
    DELETE FROM "waybill"."waybill_outbox_notices" c WHERE c.kind = 4 AND ((c.route, c.seq, c.id) IN (SELECT u.route, u.seq, u.id FROM u)) IS TRUE
), many AS MATERIALIZED (
    SELECT u.route, pg_catalog.min(u.seq) AS seq FROM u WHERE u.key = '' GROUP BY u.route HAVING pg_catalog.count(*) > 100
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    (SELECT DISTINCT ON (u.route, u.key) 1, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq
     FROM u WHERE u.key <> '' ORDER BY u.route, u.key, u.seq)
    UNION ALL
    SELECT 2, u.route, u.slot, 1::bigint << u.slot::int, '', u.id, u.seq
    FROM u WHERE u.key = '' AND u.route NOT IN (SELECT many.route FROM many)
    UNION ALL
    SELECT 3, many.route, 0, -1, '', '', many.seq FROM many
)
SELECT n.next, coalesce(v.cause, ''), pg_catalog.count(v.seq), (SELECT pg_catalog.count(pg_catalog.pg_notify('waybill_25c50bbafea3b626', x.route)) FROM (SELECT DISTINCT u.route FROM u) x WHERE $17::boolean)
FROM (SELECT coalesce(
    CASE WHEN (SELECT pg_catalog.count(*) FROM p) >= $3 THEN (SELECT pg_catalog.max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0) AS next) n LEFT JOIN v ON true GROUP BY 1, 2

-- statement outbox.admin.trial
WITH unbound AS MATERIALIZED (
    SELECT DISTINCT ON (x.topic) x.topic, x.seq FROM (
        SELECT e.topic, e.seq, e.last_error FROM "waybill"."waybill_outbox" e WHERE e.route = $1 AND e.retry ORDER BY e.due_at LIMIT 1000
    ) x WHERE pg_catalog.strpos(x.last_error, $4) > 0 ORDER BY x.topic, x.seq
)
SELECT
    o.seq, o.route, o.id, o.topic, o.key, o.type, o.source, o.content_type, o.correlation_id, o.trace_parent,
    o.occurred_at, o.hlc, o.expires_at, o.attrs,
    CASE WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 2 ELSE o.state END, o.reason, o.attempts, o.crashes, o.dedupe_key, o.last_error, o.last_error_at, o.settled_at,
    (extract(epoch FROM statement_timestamp() - o.ready_since) * '1000000')::bigint,
    CASE WHEN o.settled_at IS NULL AND o.due_at > statement_timestamp() AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
         THEN (extract(epoch FROM o.due_at - statement_timestamp()) * '1000000')::bigint ELSE 0 END,
    coalesce((SELECT me.name FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold AND o.hold <> 0), ''),
    coalesce((SELECT greatest(me.lease - (extract(epoch FROM statement_timestamp() - me.renewed_at) * '1000000')::bigint, 0)
              FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold AND o.hold <> 0), 0) FROM unbound u JOIN "waybill"."waybill_outbox" o ON o.route = $1 AND o.seq = u.seq
WHERE u.topic = $3 AND u.seq <> $2 LIMIT 1

-- statement outbox.clean.elect
UPDATE "waybill"."waybill_meta" SET owner = $1, value = (extract(epoch FROM clock_timestamp()) * '1000000')::bigint + $2
WHERE name = 'waybill_outbox.cleaner' AND (owner = $1 OR value NOT BETWEEN (extract(epoch FROM clock_timestamp()) * '1000000')::bigint
                                                        AND (extract(epoch FROM clock_timestamp()) * '1000000')::bigint + $3)
RETURNING true

-- statement outbox.clean.purge.0
WITH d AS MATERIALIZED (
    SELECT e.route, e.seq FROM "waybill"."waybill_outbox" e
    WHERE CASE WHEN e.reason = '' THEN 0 WHEN e.reason IN ('cancelled', 'replaced') THEN 2 ELSE 1 END = 0
      AND e.settled_at IS NOT NULL AND e.settled_at <= statement_timestamp() - $1::bigint::float8 * interval '1 microsecond' AND e.state = 3
      AND e.settled_at >= coalesce($2::timestamptz, '-infinity')
    ORDER BY e.settled_at LIMIT 1000 FOR UPDATE SKIP LOCKED
), x AS (
    DELETE FROM "waybill"."waybill_outbox" o USING d
    WHERE o.route = d.route AND o.seq = d.seq AND o.settled_at IS NOT NULL
    RETURNING o.*
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    SELECT 1, x.route, x.slot, 1::bigint << x.slot::int, x.key, x.id, x.seq FROM x WHERE x.blocks
)
SELECT x.state, x.reason, pg_catalog.count(*), pg_catalog.max(x.settled_at) FROM x GROUP BY 1, 2

-- statement outbox.clean.purge.1
WITH d AS MATERIALIZED (
    SELECT e.route, e.seq FROM "waybill"."waybill_outbox" e
    WHERE CASE WHEN e.reason = '' THEN 0 WHEN e.reason IN ('cancelled', 'replaced') THEN 2 ELSE 1 END = 1
      AND e.settled_at IS NOT NULL AND e.settled_at <= statement_timestamp() - $1::bigint::float8 * interval '1 microsecond' AND e.state = 5
      AND e.settled_at >= coalesce($2::timestamptz, '-infinity')
    ORDER BY e.settled_at LIMIT 1000 FOR UPDATE SKIP LOCKED
), x AS (
    DELETE FROM "waybill"."waybill_outbox" o USING d
    WHERE o.route = d.route AND o.seq = d.seq AND o.settled_at IS NOT NULL
    RETURNING o.*
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    SELECT 1, x.route, x.slot, 1::bigint << x.slot::int, x.key, x.id, x.seq FROM x WHERE x.blocks
)
SELECT x.state, x.reason, pg_catalog.count(*), pg_catalog.max(x.settled_at) FROM x GROUP BY 1, 2

-- statement outbox.clean.purge.2
WITH d AS MATERIALIZED (
    SELECT e.route, e.seq FROM "waybill"."waybill_outbox" e
    WHERE CASE WHEN e.reason = '' THEN 0 WHEN e.reason IN ('cancelled', 'replaced') THEN 2 ELSE 1 END = 2
      AND e.settled_at IS NOT NULL AND e.settled_at <= statement_timestamp() - $1::bigint::float8 * interval '1 microsecond' AND e.state = 5
      AND e.settled_at >= coalesce($2::timestamptz, '-infinity')
    ORDER BY e.settled_at LIMIT 1000 FOR UPDATE SKIP LOCKED
), x AS (
    DELETE FROM "waybill"."waybill_outbox" o USING d
    WHERE o.route = d.route AND o.seq = d.seq AND o.settled_at IS NOT NULL
    RETURNING o.*
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    SELECT 1, x.route, x.slot, 1::bigint << x.slot::int, x.key, x.id, x.seq FROM x WHERE x.blocks
)
SELECT x.state, x.reason, pg_catalog.count(*), pg_catalog.max(x.settled_at) FROM x GROUP BY 1, 2

-- statement outbox.clean.sweep
WITH RECURSIVE k AS (
    SELECT k.route, coalesce(pg_catalog.lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro) k
), f AS (
    SELECT k.route, k.next FROM k
    UNION ALL
    SELECT (SELECT o.route FROM "waybill"."waybill_outbox" o WHERE o.expires_at IS NOT NULL AND o.settled_at IS NULL AND o.route > f.route AND o.route < f.next ORDER BY o.route LIMIT 1), f.next
    FROM f WHERE f.route IS NOT NULL
), n AS MATERIALIZED (
    SELECT f.route, ~coalesce((SELECT pg_catalog.bit_or(un.slots) FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = f.route AND un.owner <> 0), 0) AS slots
    FROM f WHERE f.route IS NOT NULL
), w AS MATERIALIZED (
    SELECT x.at, x.retry FROM n CROSS JOIN LATERAL (
        SELECT o.ctid AS at, o.retry FROM "waybill"."waybill_outbox" o
        WHERE o.route = n.route AND o.expires_at IS NOT NULL AND o.settled_at IS NULL AND CASE WHEN o.due_at IS NULL THEN 1 ELSE 0 END = 0 AND o.expires_at <= statement_timestamp()
          AND o.expires_at >= coalesce($1::timestamptz, '-infinity')
          AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
        ORDER BY o.expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED
    ) x
    LIMIT 1000
), x AS MATERIALIZED (
    SELECT x.at FROM n CROSS JOIN LATERAL (
        SELECT o.ctid AS at FROM "waybill"."waybill_outbox" o
        WHERE o.route = n.route AND o.expires_at IS NOT NULL AND o.settled_at IS NULL AND CASE WHEN o.due_at IS NULL THEN 1 ELSE 0 END = 1 AND o.expires_at <= statement_timestamp()
          AND o.expires_at >= coalesce($1::timestamptz, '-infinity')
          AND (n.slots >> o.slot::int) & '1' = 1 AND NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold))
        ORDER BY o.expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED
    ) x
    WHERE n.slots <> 0 LIMIT 1000 - (SELECT pg_catalog.count(*) FROM w)
), u AS (
    UPDATE "waybill"."waybill_outbox" o
    SET state = 5, reason = 'expired', blocks = o.key <> '', due_at = NULL, retry = false, hold = 0, held_since = NULL,
        settled_at = clock_timestamp(), version = o.version + 1, maybe_sent = o.maybe_sent OR o.hold <> 0 OR ((o.due_at IS NULL OR o.retry) AND o.seq <= coalesce(
        (SELECT un.uncertain_up_to FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = o.route AND un.from_slot <= o.slot AND un.to_slot > o.slot LIMIT 1),
        (SELECT ro.uncertain_up_to FROM "waybill"."waybill_outbox_routes" ro WHERE ro.route = o.route), 0))
    FROM (SELECT w.at, w.retry AS tell FROM w UNION ALL SELECT x.at, false FROM x) d
    WHERE o.ctid = d.at
    RETURNING o.route, o.seq, o.id, o.key, o.slot, d.tell
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    SELECT 1, u.route, u.slot, 1::bigint << u.slot::int, u.key, u.id, u.seq FROM u WHERE u.key <> '' AND u.tell
)
SELECT pg_catalog.count(*), statement_timestamp() FROM u

-- statement outbox.clock.mark
WITH b AS MATERIALIZED (SELECT ((pg_catalog.date_part('epoch', clock_timestamp() + interval '1 minute') * '1000')::bigint << 16 | '65535') AS at),
x AS MATERIALIZED (SELECT pg_catalog.max(u) AS stamp FROM pg_catalog.unnest($1::bigint[]) u, b WHERE u BETWEEN 1 AND b.at),
w AS (
    UPDATE "waybill"."waybill_meta" SET value = x.stamp FROM x
    WHERE name = (SELECT m.name FROM "waybill"."waybill_meta" m, x, b WHERE m.name = 'waybill_outbox.hlc' AND (m.value < x.stamp OR m.value > b.at AND x.stamp > 0)
                  FOR NO KEY UPDATE OF m SKIP LOCKED)
    RETURNING value)
SELECT coalesce((SELECT value FROM w), (SELECT value FROM "waybill"."waybill_meta" WHERE name = 'waybill_outbox.hlc'), 0)

-- statement outbox.clock.restored
UPDATE "waybill"."waybill_meta" SET value = value + 1 WHERE name = 'waybill_outbox.epoch'

-- statement outbox.decide.end
WITH h AS MATERIALIZED (
    SELECT e.seq, e.slot, CASE WHEN e.hold <> 0 THEN EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = e.hold) ELSE false END AS held,
        CASE WHEN e.expires_at <= statement_timestamp() THEN greatest(e.expires_at, 'epoch') END AS expired,
        e.dedupe_key <> '' AND e.settled_at IS NOT NULL AND EXISTS (SELECT FROM "waybill"."waybill_outbox" d WHERE d.route = e.route AND d.topic = e.topic
            AND d.dedupe_key = e.dedupe_key AND d.dedupe_key <> '' AND d.settled_at IS NULL) AS duplicate,
        (e.retry AND e.key <> '' AND NOT CASE WHEN e.hold <> 0 THEN EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = e.hold) ELSE false END OR e.blocks) IS TRUE
        AND NOT EXISTS (SELECT FROM "waybill"."waybill_outbox" e WHERE e.route = $1 AND e.key = $3 AND e.seq < h.seq AND e.retry AND e.key <> '' AND NOT CASE WHEN e.hold <> 0 THEN EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = e.hold) ELSE false END)
        AND (h.settled_at IS NULL
            OR NOT EXISTS (SELECT FROM "waybill"."waybill_outbox" e WHERE e.route = $1 AND e.key = $3 AND e.seq < h.seq AND e.blocks)) AS head,
        h.due_at IS NULL AND h.settled_at IS NULL
        AND NOT EXISTS (SELECT FROM "waybill"."waybill_outbox" e
            WHERE e.route = $1 AND e.key = $3 AND e.key <> '' AND e.due_at IS NULL AND e.settled_at IS NULL AND e.seq < h.seq)
        AND NOT EXISTS (SELECT FROM "waybill"."waybill_outbox" e
            WHERE e.route = $1 AND e.key = $3 AND e.key <> '' AND (e.retry OR e.hold <> 0) AND (e.retry OR CASE WHEN e.hold <> 0 THEN EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = e.hold) ELSE false END)) AS due,
        EXISTS (SELECT FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = $1 AND (un.slots >> e.slot::int) & '1' = 1 AND un.owner <> 0) AS owned
    FROM (
        SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = $1 AND o.id = $2 AND o.key = $3 AND o.own_id
        UNION ALL
        SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = $1 AND o.id = $2 AND o.key = $3 AND NOT o.own_id AND (o.cancellable OR o.hold <> 0 OR coalesce(o.due_at, o.settled_at) IS NOT NULL)
        UNION ALL
        SELECT o.* FROM (
            SELECT o.* FROM "waybill"."waybill_outbox" o
            WHERE o.route = $1 AND o.key = $3 AND o.key <> '' AND o.due_at IS NULL AND o.settled_at IS NULL
            ORDER BY o.seq LIMIT 1
        ) o WHERE o.id = $2 AND NOT o.own_id AND NOT (o.cancellable OR o.hold <> 0)
    ) h CROSS JOIN LATERAL (SELECT h.*) e
), u AS (
    UPDATE "waybill"."waybill_outbox" o SET
    state = 5, reason = $4::text, due_at = NULL, retry = false, blocks = false, settled_at = statement_timestamp(),
    hold = 0, held_since = NULL, version = o.version + 1, maybe_sent = o.maybe_sent OR o.hold <> 0 OR ((o.due_at IS NULL OR o.retry) AND o.seq <= coalesce(
        (SELECT un.uncertain_up_to FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = o.route AND un.from_slot <= o.slot AND un.to_slot > o.slot LIMIT 1),
        (SELECT ro.uncertain_up_to FROM "waybill"."waybill_outbox_routes" ro WHERE ro.route = o.route), 0)) FROM h WHERE o.route = $1 AND o.seq = h.seq AND NOT h.held AND (h.head OR h.due AND NOT h.owned) RETURNING o.route, o.seq, o.id
), d AS (
    DELETE FROM "waybill"."waybill_outbox_notices" c WHERE c.kind = 4 AND ((c.route, c.seq, c.id) IN (SELECT u.route, u.seq, u.id FROM u)) IS TRUE
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq, reason)
    SELECT CASE WHEN u.seq IS NULL THEN 4 ELSE 1 END, $1, h.slot, 1::bigint << h.slot::int, $3, $2, h.seq,
        CASE WHEN u.seq IS NULL THEN $4::text ELSE '' END
    FROM h LEFT JOIN u ON true WHERE u.seq IS NOT NULL OR h.due AND h.owned AND NOT h.held AND $4::text <> ''
    RETURNING number, kind, route
)
SELECT h.held, h.head, h.expired, h.duplicate, EXISTS (SELECT FROM u),
    coalesce((SELECT c.number FROM c WHERE c.kind = 4), 0), h.seq,
    (SELECT pg_catalog.count(pg_catalog.pg_notify('waybill_25c50bbafea3b626', c.route)) FROM c WHERE $5::boolean) FROM h

-- statement outbox.decide.keepPartition
SELECT FROM "waybill"."waybill_outbox_partitions" un, (
        SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = $1 AND o.id = $2 AND o.key = $3 AND o.own_id
        UNION ALL
        SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = $1 AND o.id = $2 AND o.key = $3 AND NOT o.own_id AND (o.cancellable OR o.hold <> 0 OR coalesce(o.due_at, o.settled_at) IS NOT NULL)
        UNION ALL
        SELECT o.* FROM (
            SELECT o.* FROM "waybill"."waybill_outbox" o
            WHERE o.route = $1 AND o.key = $3 AND o.key <> '' AND o.due_at IS NULL AND o.settled_at IS NULL
            ORDER BY o.seq LIMIT 1
        ) o WHERE o.id = $2 AND NOT o.own_id AND NOT (o.cancellable OR o.hold <> 0)
    ) h WHERE un.route = $1 AND (un.slots >> h.slot::int) & '1' = 1 FOR SHARE OF un

-- statement outbox.decide.keepRoute
SELECT FROM "waybill"."waybill_outbox_routes" ro WHERE ro.route = $1 FOR SHARE

-- statement outbox.decide.keepUnserved
INSERT INTO "waybill"."waybill_outbox_routes" (route) SELECT $1::text FROM (
        SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = $1 AND o.id = $2 AND o.key = $3 AND o.own_id
        UNION ALL
        SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = $1 AND o.id = $2 AND o.key = $3 AND NOT o.own_id AND (o.cancellable OR o.hold <> 0 OR coalesce(o.due_at, o.settled_at) IS NOT NULL)
        UNION ALL
        SELECT o.* FROM (
            SELECT o.* FROM "waybill"."waybill_outbox" o
            WHERE o.route = $1 AND o.key = $3 AND o.key <> '' AND o.due_at IS NULL AND o.settled_at IS NULL
            ORDER BY o.seq LIMIT 1
        ) o WHERE o.id = $2 AND NOT o.own_id AND NOT (o.cancellable OR o.hold <> 0)
    ) h WHERE NOT EXISTS (SELECT FROM "waybill"."waybill_outbox_routes" ro WHERE ro.route = $1)
ON CONFLICT DO NOTHING

-- statement outbox.decide.lockHead
SELECT FROM "waybill"."waybill_outbox" o JOIN (
        SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = $1 AND o.id = $2 AND o.key = $3 AND o.own_id
        UNION ALL
        SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = $1 AND o.id = $2 AND o.key = $3 AND NOT o.own_id AND (o.cancellable OR o.hold <> 0 OR coalesce(o.due_at, o.settled_at) IS NOT NULL)
        UNION ALL
        SELECT o.* FROM (
            SELECT o.* FROM "waybill"."waybill_outbox" o
            WHERE o.route = $1 AND o.key = $3 AND o.key <> '' AND o.due_at IS NULL AND o.settled_at IS NULL
            ORDER BY o.seq LIMIT 1
        ) o WHERE o.id = $2 AND NOT o.own_id AND NOT (o.cancellable OR o.hold <> 0)
    ) h ON h.seq = o.seq WHERE o.route = $1 FOR NO KEY UPDATE OF o

-- statement outbox.decide.requeue
WITH h AS MATERIALIZED (
    SELECT e.seq, e.slot, CASE WHEN e.hold <> 0 THEN EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = e.hold) ELSE false END AS held,
        CASE WHEN e.expires_at <= statement_timestamp() THEN greatest(e.expires_at, 'epoch') END AS expired,
        e.dedupe_key <> '' AND e.settled_at IS NOT NULL AND EXISTS (SELECT FROM "waybill"."waybill_outbox" d WHERE d.route = e.route AND d.topic = e.topic
            AND d.dedupe_key = e.dedupe_key AND d.dedupe_key <> '' AND d.settled_at IS NULL) AS duplicate,
        (e.retry AND e.key <> '' AND NOT CASE WHEN e.hold <> 0 THEN EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = e.hold) ELSE false END OR e.blocks) IS TRUE
        AND NOT EXISTS (SELECT FROM "waybill"."waybill_outbox" e WHERE e.route = $1 AND e.key = $3 AND e.seq < h.seq AND e.retry AND e.key <> '' AND NOT CASE WHEN e.hold <> 0 THEN EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = e.hold) ELSE false END)
        AND (h.settled_at IS NULL
            OR NOT EXISTS (SELECT FROM "waybill"."waybill_outbox" e WHERE e.route = $1 AND e.key = $3 AND e.seq < h.seq AND e.blocks)) AS head,
        h.due_at IS NULL AND h.settled_at IS NULL
        AND NOT EXISTS (SELECT FROM "waybill"."waybill_outbox" e
            WHERE e.route = $1 AND e.key = $3 AND e.key <> '' AND e.due_at IS NULL AND e.settled_at IS NULL AND e.seq < h.seq)
        AND NOT EXISTS (SELECT FROM "waybill"."waybill_outbox" e
            WHERE e.route = $1 AND e.key = $3 AND e.key <> '' AND (e.retry OR e.hold <> 0) AND (e.retry OR CASE WHEN e.hold <> 0 THEN EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = e.hold) ELSE false END)) AS due,
        EXISTS (SELECT FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = $1 AND (un.slots >> e.slot::int) & '1' = 1 AND un.owner <> 0) AS owned
    FROM (
        SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = $1 AND o.id = $2 AND o.key = $3 AND o.own_id
        UNION ALL
        SELECT o.* FROM "waybill"."waybill_outbox" o WHERE o.route = $1 AND o.id = $2 AND o.key = $3 AND NOT o.own_id AND (o.cancellable OR o.hold <> 0 OR coalesce(o.due_at, o.settled_at) IS NOT NULL)
        UNION ALL
        SELECT o.* FROM (
            SELECT o.* FROM "waybill"."waybill_outbox" o
            WHERE o.route = $1 AND o.key = $3 AND o.key <> '' AND o.due_at IS NULL AND o.settled_at IS NULL
            ORDER BY o.seq LIMIT 1
        ) o WHERE o.id = $2 AND NOT o.own_id AND NOT (o.cancellable OR o.hold <> 0)
    ) h CROSS JOIN LATERAL (SELECT h.*) e
), u AS (
    UPDATE "waybill"."waybill_outbox" o SET
    state = 1, due_at = NULL, retry = false, blocks = false, settled_at = NULL, hold = 0, held_since = NULL,
    version = o.version + 1, maybe_sent = o.maybe_sent OR o.crashes > 0, attempts = 0, crashes = 0, deliveries = 0, reason = '',
    last_error = '', last_error_at = NULL,
    expires_at = CASE WHEN o.expires_at <= statement_timestamp() THEN NULL ELSE o.expires_at END FROM h WHERE o.route = $1 AND o.seq = h.seq AND NOT h.held AND h.head AND h.expired IS NULL AND NOT h.duplicate AND $4::text = '' RETURNING o.route, o.seq, o.id
), d AS (
    DELETE FROM "waybill"."waybill_outbox_notices" c WHERE c.kind = 4 AND ((c.route, c.seq, c.id) IN (SELECT u.route, u.seq, u.id FROM u)) IS TRUE
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq, reason)
    SELECT CASE WHEN u.seq IS NULL THEN 4 ELSE 1 END, $1, h.slot, 1::bigint << h.slot::int, $3, $2, h.seq,
        CASE WHEN u.seq IS NULL THEN $4::text ELSE '' END
    FROM h LEFT JOIN u ON true WHERE u.seq IS NOT NULL OR h.due AND h.owned AND NOT h.held AND $4::text <> ''
    RETURNING number, kind, route
)
SELECT h.held, h.head, h.expired, h.duplicate, EXISTS (SELECT FROM u),
    coalesce((SELECT c.number FROM c WHERE c.kind = 4), 0), h.seq,
    (SELECT pg_catalog.count(pg_catalog.pg_notify('waybill_25c50bbafea3b626', c.route)) FROM c WHERE $5::boolean) FROM h

-- statement outbox.decideRecords.decide
WITH t AS MATERIALIZED (
    SELECT t.*, (t.number IN (SELECT c.number FROM "waybill"."waybill_outbox_notices" c WHERE c.number = ANY ($4))) IS TRUE AS told
    FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[]) WITH ORDINALITY AS t(route, seq, id, number, n)
), f AS MATERIALIZED (
    SELECT t.n, t.number, o.* FROM t CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.id, o.version, o.hold, o.slot, o.key, o.key <> '' AND (o.due_at IS NULL OR o.retry) AS tell, e.owned, o.reason, o.settled_at IS NULL AS live,
            NOT (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) AND (o.due_at IS NOT NULL OR o.cancellable OR NOT e.owned) AS free
        FROM "waybill"."waybill_outbox" o CROSS JOIN LATERAL (
            SELECT EXISTS (SELECT FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = o.route AND (un.slots >> o.slot::int) & '1' = 1 AND un.owner <> 0) AS owned
        ) e
        WHERE o.route = t.route AND o.seq = t.seq AND o.id = t.id LIMIT 1
    ) o WHERE t.number = 0 OR t.told OR NOT o.live
), l AS MATERIALIZED (
    SELECT f.* FROM (SELECT f.* FROM f WHERE f.live AND f.free ORDER BY f.seq) f CROSS JOIN LATERAL (
        SELECT FROM "waybill"."waybill_outbox" o
        WHERE o.route = f.route AND o.seq = f.seq AND o.version = f.version AND o.hold = f.hold AND o.settled_at IS NULL
        FOR UPDATE SKIP LOCKED
    ) o
), u AS (
    UPDATE "waybill"."waybill_outbox" o
    SET state = 5, reason = $5::text, due_at = NULL, retry = false, blocks = false, settled_at = statement_timestamp(),
        hold = 0, held_since = NULL, version = o.version + 1, maybe_sent = o.maybe_sent OR o.hold <> 0 OR ((o.due_at IS NULL OR o.retry) AND o.seq <= coalesce(
        (SELECT un.uncertain_up_to FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = o.route AND un.from_slot <= o.slot AND un.to_slot > o.slot LIMIT 1),
        (SELECT ro.uncertain_up_to FROM "waybill"."waybill_outbox_routes" ro WHERE ro.route = o.route), 0))
    FROM l WHERE o.route = l.route AND o.seq = l.seq RETURNING o.route, o.seq, o.id
), d AS (
    DELETE FROM "waybill"."waybill_outbox_notices" c WHERE c.kind = 4 AND ((c.route, c.seq, c.id) IN (SELECT u.route, u.seq, u.id FROM u)) IS TRUE
), k AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    SELECT DISTINCT ON (l.route, l.key) 1, l.route, l.slot, 1::bigint << l.slot::int, l.key, l.id, l.seq
    FROM l WHERE l.tell AND l.owned ORDER BY l.route, l.key, l.seq
    RETURNING route
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq, reason)
    SELECT 4, f.route, f.slot, 1::bigint << f.slot::int, f.key, f.id, f.seq, $5
    FROM f WHERE f.live AND NOT f.free AND f.number = 0 ORDER BY f.seq
    RETURNING number, route, seq
), x AS (
    SELECT pg_catalog.count(pg_catalog.pg_notify('waybill_25c50bbafea3b626', x.route)) FROM (SELECT k.route FROM k UNION SELECT c.route FROM c) x WHERE $6::boolean
)
SELECT coalesce(c.number, t.number), CASE
    WHEN l.n IS NOT NULL OR NOT f.live AND f.reason = $5 THEN $7::int
    WHEN f.live AND f.free THEN $8::int
    WHEN f.live THEN $9::int
    ELSE $10::int END, x.count
FROM t CROSS JOIN x LEFT JOIN f ON f.n = t.n LEFT JOIN l ON l.n = t.n LEFT JOIN c ON c.route = f.route AND c.seq = f.seq
ORDER BY t.n

-- statement outbox.decideRecords.keepPartitions
SELECT FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = ANY ($1::text[]) AND un.owner = 0 ORDER BY un.route, un.from_slot FOR SHARE

-- statement outbox.decideRecords.keepRoutes
SELECT FROM "waybill"."waybill_outbox_routes" ro WHERE ro.route = ANY ($1::text[]) ORDER BY ro.route FOR SHARE

-- statement outbox.decideRecords.keepUnserved
INSERT INTO "waybill"."waybill_outbox_routes" (route) SELECT r FROM pg_catalog.unnest($1::text[]) r
WHERE NOT EXISTS (SELECT FROM "waybill"."waybill_outbox_routes" ro WHERE ro.route = r) AND EXISTS (SELECT FROM "waybill"."waybill_outbox" o WHERE o.route = r)
ORDER BY 1 ON CONFLICT DO NOTHING

-- statement outbox.due.nextDue
WITH p AS MATERIALIZED (
    SELECT p.n, p.route, p.slots & o.slots AS slots,
        CASE WHEN p.ago = 0 THEN '-infinity' ELSE statement_timestamp() - p.ago::float8 * interval '1 microsecond' END AS since, p.repeats
    FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::boolean[]) WITH ORDINALITY AS p(route, slots, ago, repeats, n)
    CROSS JOIN LATERAL (SELECT pg_catalog.bit_or(un.slots) AS slots FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = p.route AND un.owner = $1) o
    WHERE EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1) AND p.slots & o.slots <> 0
)
SELECT CASE WHEN pg_catalog.min(d.due_at) IS NULL THEN -1
            ELSE greatest(pg_catalog.ceil(extract(epoch FROM pg_catalog.min(d.due_at) - clock_timestamp()) * '1000000')::bigint, 0) END,
    (SELECT pg_catalog.count(*) FROM p CROSS JOIN LATERAL (SELECT r.seq
        FROM "waybill"."waybill_outbox" r
        WHERE r.route = p.route AND r.retry AND r.due_at > p.since AND r.due_at <= statement_timestamp() AND (p.slots >> r.slot::int) & '1' = 1 AND p.repeats AND r.hold + 0 = $1 AND r.hold <> 0 ORDER BY r.due_at) x)
FROM p CROSS JOIN LATERAL (
    (SELECT r.due_at FROM "waybill"."waybill_outbox" r
     WHERE r.route = p.route AND r.due_at > p.since AND r.due_at IS NOT NULL AND NOT r.retry AND r.settled_at IS NULL
       AND (p.slots >> r.slot::int) & '1' = 1
     ORDER BY r.due_at LIMIT 1)
    UNION ALL
    (SELECT r.due_at FROM "waybill"."waybill_outbox" r
     WHERE r.route = p.route AND r.due_at > p.since AND r.retry AND (p.slots >> r.slot::int) & '1' = 1 AND r.hold <> $1 AND CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END = 0
     ORDER BY r.due_at LIMIT 1)
) d

-- statement outbox.due.ownRetries
WITH p AS MATERIALIZED (
    SELECT p.n, p.route, p.slots & o.slots AS slots,
        CASE WHEN p.ago = 0 THEN '-infinity' ELSE statement_timestamp() - p.ago::float8 * interval '1 microsecond' END AS since, p.repeats
    FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::boolean[]) WITH ORDINALITY AS p(route, slots, ago, repeats, n)
    CROSS JOIN LATERAL (SELECT pg_catalog.bit_or(un.slots) AS slots FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = p.route AND un.owner = $1) o
    WHERE EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1) AND p.slots & o.slots <> 0
)
SELECT p.n, r.seq, r.id, r.version, r.slot, r.attempts, r.deliveries, r.crashes, r.cancellable, CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END AS holder,
    r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent, r.occurred_at, r.hlc, r.expires_at,
    r.ready_since, r.attrs, r.body, r.due_at FROM p CROSS JOIN LATERAL (
        SELECT r.*
        FROM "waybill"."waybill_outbox" r
        WHERE r.route = p.route AND r.retry AND r.due_at > p.since AND r.due_at <= statement_timestamp() AND (p.slots >> r.slot::int) & '1' = 1 AND p.repeats AND r.hold + 0 = $1 AND r.hold <> 0
        ORDER BY r.due_at, r.seq LIMIT $6
    ) r
ORDER BY r.due_at, r.seq LIMIT $6

-- statement outbox.due.retries
WITH p AS MATERIALIZED (
    SELECT p.n, p.route, p.slots & o.slots AS slots,
        CASE WHEN p.ago = 0 THEN '-infinity' ELSE statement_timestamp() - p.ago::float8 * interval '1 microsecond' END AS since, p.repeats
    FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::boolean[]) WITH ORDINALITY AS p(route, slots, ago, repeats, n)
    CROSS JOIN LATERAL (SELECT pg_catalog.bit_or(un.slots) AS slots FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = p.route AND un.owner = $1) o
    WHERE EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1) AND p.slots & o.slots <> 0
), l AS MATERIALIZED (
    SELECT p.n, x.at FROM p CROSS JOIN LATERAL (
        SELECT r.ctid AS at, r.due_at, r.seq
        FROM "waybill"."waybill_outbox" r
        WHERE r.route = p.route AND r.retry AND r.due_at > p.since AND r.due_at <= statement_timestamp() AND (p.slots >> r.slot::int) & '1' = 1 AND r.hold <> $1 AND CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END = 0
        ORDER BY r.due_at, r.seq LIMIT $6 FOR NO KEY UPDATE SKIP LOCKED
    ) x
    ORDER BY x.due_at, x.seq LIMIT greatest($6 - (
        SELECT pg_catalog.count(*) FROM p CROSS JOIN LATERAL (SELECT r.seq
        FROM "waybill"."waybill_outbox" r
        WHERE r.route = p.route AND r.retry AND r.due_at > p.since AND r.due_at <= statement_timestamp() AND (p.slots >> r.slot::int) & '1' = 1 AND p.repeats AND r.hold + 0 = $1 AND r.hold <> 0
        ORDER BY r.due_at, r.seq LIMIT $6) x), 0)
)
UPDATE "waybill"."waybill_outbox" r SET hold = $1, held_since = CASE WHEN r.hold = $1 THEN r.held_since ELSE clock_timestamp() END FROM l WHERE r.ctid = l.at
RETURNING l.n, r.seq, r.id, r.version, r.slot, r.attempts, r.deliveries, r.crashes, r.cancellable, CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END AS holder,
    r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent, r.occurred_at, r.hlc, r.expires_at,
    r.ready_since, r.attrs, r.body, r.due_at

-- statement outbox.due.timers
WITH p AS MATERIALIZED (
    SELECT p.n, p.route, p.slots & o.slots AS slots,
        CASE WHEN p.ago = 0 THEN '-infinity' ELSE statement_timestamp() - p.ago::float8 * interval '1 microsecond' END AS since, p.repeats
    FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::boolean[]) WITH ORDINALITY AS p(route, slots, ago, repeats, n)
    CROSS JOIN LATERAL (SELECT pg_catalog.bit_or(un.slots) AS slots FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = p.route AND un.owner = $1) o
    WHERE EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1) AND p.slots & o.slots <> 0
), l AS MATERIALIZED (
    SELECT x.* FROM p CROSS JOIN LATERAL (
        SELECT r.ctid AS at, r.due_at, r.seq FROM "waybill"."waybill_outbox" r
        WHERE r.route = p.route AND r.due_at > p.since AND r.due_at <= statement_timestamp() AND r.due_at IS NOT NULL AND NOT r.retry
          AND r.settled_at IS NULL AND (p.slots >> r.slot::int) & '1' = 1
        ORDER BY r.due_at, r.seq LIMIT $6 FOR UPDATE SKIP LOCKED
    ) x
    ORDER BY x.due_at, x.seq LIMIT $6
), n AS MATERIALIZED (
    SELECT l.at, (pg_current_xact_id() IS NULL)::int + pg_catalog.nextval('"waybill"."waybill_outbox_seq"') AS seq
    FROM (SELECT l.at FROM l ORDER BY l.due_at, l.seq) l
)
UPDATE "waybill"."waybill_outbox" r SET seq = n.seq, due_at = NULL, version = r.version + 1 FROM n WHERE r.ctid = n.at

-- statement outbox.fence
SELECT clock_timestamp() FROM "waybill"."waybill_outbox_members" WHERE session = $1 FOR KEY SHARE

-- statement outbox.heartbeat.end
DELETE FROM "waybill"."waybill_outbox_members" m WHERE m.session = $1 AND ($3::int = 0 OR m.heartbeats = $2)

-- statement outbox.heartbeat.endHolds
UPDATE "waybill"."waybill_outbox" r
SET hold = 0, held_since = NULL, maybe_sent = true, crashes = r.crashes + $3::int, version = r.version + $3::int
FROM (
    SELECT h.route, h.seq FROM "waybill"."waybill_outbox" h WHERE h.hold = $1 AND h.hold <> 0 AND ($3::int = 0 OR NOT EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1 AND me.heartbeats <> $2))
    FOR NO KEY UPDATE SKIP LOCKED
) h
WHERE r.route = h.route AND r.seq = h.seq

-- statement outbox.heartbeat.endPartitions
UPDATE "waybill"."waybill_outbox_partitions" u
SET owner = 0, term = u.term + 1, uncertain_up_to = CASE WHEN $3::int = 0 THEN u.uncertain_up_to ELSE greatest(u.uncertain_up_to, (SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "waybill"."waybill_outbox_seq" se)) END
FROM (
    SELECT o.route, o.from_slot FROM "waybill"."waybill_outbox_partitions" o WHERE o.owner = $1 AND o.owner <> 0 AND ($3::int = 0 OR NOT EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1 AND me.heartbeats <> $2))
    ORDER BY o.route, o.from_slot FOR NO KEY UPDATE
) o
WHERE u.route = o.route AND u.from_slot = o.from_slot

-- statement outbox.heartbeat.join
INSERT INTO "waybill"."waybill_outbox_members" AS m (session, heartbeats, lease, presence, capacity, free_capacity, name, routes, partitions, unavailable,
    handed_out, oldest_handed_out)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (session) DO UPDATE SET heartbeats = excluded.heartbeats, lease = excluded.lease, presence = excluded.presence,
    capacity = excluded.capacity, free_capacity = excluded.free_capacity, name = excluded.name,
    routes = excluded.routes, partitions = excluded.partitions, unavailable = excluded.unavailable, renewed_at = clock_timestamp(),
    handed_out = excluded.handed_out, oldest_handed_out = excluded.oldest_handed_out,
    suspected = m.suspected AND excluded.presence = m.presence
WHERE m.heartbeats < excluded.heartbeats

-- statement outbox.heartbeat.lockMember
SELECT 1 FROM "waybill"."waybill_outbox_members" WHERE session = $1 FOR UPDATE

-- statement outbox.heartbeat.lockMemberNow
SELECT 1 FROM "waybill"."waybill_outbox_members" WHERE session = $1 FOR UPDATE NOWAIT

-- statement outbox.heartbeat.membership
SELECT (SELECT pg_catalog.left(pg_catalog.pg_walfile_name(pg_current_wal_insert_lsn()), 8) || '/' || value::text FROM "waybill"."waybill_meta" WHERE name = 'waybill_outbox.epoch'), coalesce((SELECT true FROM "waybill"."waybill_outbox_notices" c WHERE c.route = ANY ($1::text[]) AND c.number > $2 ORDER BY c.number LIMIT 1), false),
    coalesce((SELECT c.number FROM "waybill"."waybill_outbox_notices" c WHERE c.number > $3 ORDER BY c.number LIMIT 1), 0),
    coalesce(pg_current_xact_id_if_assigned()::text::bigint, 0), (SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "waybill"."waybill_outbox_seq" se), (SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "waybill"."waybill_outbox_notices_seq" se), pg_catalog.pg_snapshot_xmin(pg_current_snapshot())::text::bigint

-- statement outbox.heartbeat.membershipMembers
SELECT session, name, heartbeats, lease, capacity, free_capacity, presence,
    CASE WHEN presence <> 0 AND renewed_at >= pg_postmaster_start_time()
        THEN pg_catalog.pg_try_advisory_xact_lock_shared(presence) ELSE false END, suspected, routes, partitions, handed_out, oldest_handed_out, unavailable FROM "waybill"."waybill_outbox_members" ORDER BY session

-- statement outbox.heartbeat.membershipPartitions
SELECT route, from_slot, to_slot, owner, term, read_after, uncertain_up_to FROM "waybill"."waybill_outbox_partitions" ORDER BY route, from_slot

-- statement outbox.heartbeat.partitions
WITH n AS MATERIALIZED (
    SELECT r.* FROM "waybill"."waybill_outbox_routes" r WHERE r.route = ANY ($2::text[]) AND r.partitions = 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1) ORDER BY r.route FOR UPDATE
), x AS MATERIALIZED (
    SELECT n.route, n.read_after, n.uncertain_up_to, n.term + 1 AS term, s.partitions, i * 64 / s.partitions AS from_slot, (i + 1) * 64 / s.partitions AS to_slot
    FROM n CROSS JOIN LATERAL (
        SELECT pg_catalog.max(s.partitions) AS partitions FROM unnest($2::text[], $3::smallint[]) AS s(route, partitions) WHERE s.route = n.route
    ) s, pg_catalog.generate_series(0, s.partitions - 1) i
), i AS (
    INSERT INTO "waybill"."waybill_outbox_partitions" (route, from_slot, to_slot, slots, read_after, uncertain_up_to, term)
    SELECT x.route, x.from_slot, x.to_slot,
        (-1::bigint << x.from_slot::int) & ~CASE x.to_slot WHEN 64 THEN 0 ELSE -1::bigint << x.to_slot::int END,
        x.read_after, x.uncertain_up_to, x.term
    FROM x
)
UPDATE "waybill"."waybill_outbox_routes" r SET partitions = x.partitions, read_after = 0 FROM x WHERE r.route = x.route

-- statement outbox.heartbeat.reap
SELECT pg_catalog.pg_terminate_backend(a.pid)
FROM (
    SELECT DISTINCT l.pid FROM pg_locks l
    WHERE l.relation = '"waybill"."waybill_outbox_members"'::regclass AND l.mode = 'RowShareLock' AND l.granted
) l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid() AND a.wait_event_type = 'Client'
    AND a.state_change < clock_timestamp() - interval '1 second'

-- statement outbox.heartbeat.renew
UPDATE "waybill"."waybill_outbox_members" m SET heartbeats = $2, lease = $3, presence = $4::bigint, capacity = $5, free_capacity = $6, name = $7,
    routes = $8, partitions = $9, unavailable = $10, handed_out = $11, oldest_handed_out = $12,
    renewed_at = clock_timestamp(), suspected = m.suspected AND $4::bigint = m.presence
WHERE m.session = $1 AND m.heartbeats < $2

-- statement outbox.heartbeat.routes
INSERT INTO "waybill"."waybill_outbox_routes" (route) SELECT DISTINCT x.route FROM pg_catalog.unnest($2::text[]) AS x(route)
WHERE EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1) AND NOT EXISTS (SELECT FROM "waybill"."waybill_outbox_routes" r WHERE r.route = x.route) ORDER BY x.route
ON CONFLICT DO NOTHING

-- statement outbox.heartbeat.suspect
UPDATE "waybill"."waybill_outbox_members" m SET suspected = true
FROM (
    SELECT f.session FROM unnest($2::bigint[], $3::bigint[]) AS x(session, presence) JOIN "waybill"."waybill_outbox_members" f ON f.session = x.session
    WHERE f.presence = x.presence AND f.presence <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1) ORDER BY f.session FOR NO KEY UPDATE OF f SKIP LOCKED
) f
WHERE m.session = f.session

-- statement outbox.heartbeat.tidy
WITH n AS MATERIALIZED (
    SELECT r.route FROM "waybill"."waybill_outbox_routes" r
    WHERE r.partitions > 0 AND NOT EXISTS (SELECT FROM "waybill"."waybill_outbox_members" m WHERE r.route = ANY (m.routes))
      AND NOT EXISTS (SELECT FROM "waybill"."waybill_outbox_partitions" u WHERE u.route = r.route AND u.owner <> 0)
    ORDER BY r.route FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM "waybill"."waybill_outbox_partitions" u USING n WHERE u.route = n.route RETURNING u.route, u.read_after, u.uncertain_up_to, u.term
)
UPDATE "waybill"."waybill_outbox_routes" r SET partitions = 0, read_after = d.read_after, uncertain_up_to = d.uncertain_up_to, term = d.term
FROM (SELECT d.route, pg_catalog.min(d.read_after) AS read_after, pg_catalog.max(d.uncertain_up_to) AS uncertain_up_to, pg_catalog.max(d.term) AS term FROM d GROUP BY d.route) d
WHERE r.route = d.route

-- statement outbox.heartbeat.transfer
WITH o AS MATERIALIZED (
    SELECT FROM "waybill"."waybill_outbox_members" m WHERE m.session = $5 AND $5::bigint NOT IN (0, $1::bigint) FOR UPDATE SKIP LOCKED
), l AS MATERIALIZED (
    SELECT FROM "waybill"."waybill_outbox_partitions" u
    WHERE u.route = $2 AND u.from_slot = $3 AND u.to_slot = $4 AND u.owner = $5 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1)
      AND ($6::bigint = 0 OR EXISTS (SELECT FROM "waybill"."waybill_outbox_members" m WHERE m.session = $6))
      AND ($6 <> $5 OR $6 = $1::bigint AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" m WHERE m.session = $1 AND m.heartbeats <= $9) AND $10::text IN ('', (SELECT pg_catalog.left(pg_catalog.pg_walfile_name(pg_current_wal_insert_lsn()), 8) || '/' || value::text FROM "waybill"."waybill_meta" WHERE name = 'waybill_outbox.epoch')))
      AND ($5 IN (0, $1::bigint) OR EXISTS (SELECT FROM o) OR NOT EXISTS (SELECT FROM "waybill"."waybill_outbox_members" m WHERE m.session = $5))
    FOR NO KEY UPDATE
)
UPDATE "waybill"."waybill_outbox_partitions" u
SET owner = $6, term = u.term + ($6 <> $5)::int,
    read_after = CASE WHEN $6 = $5 THEN $7::bigint ELSE u.read_after END, uncertain_up_to = CASE WHEN $6 = $5 THEN $8::bigint ELSE u.uncertain_up_to END
FROM l WHERE u.route = $2 AND u.from_slot = $3 AND u.owner = $5

-- statement outbox.hold.named
WITH u AS MATERIALIZED (
    SELECT * FROM unnest($2::int[], $3::text[], $4::bigint[], $5::text[], $6::bigint[]) AS u(n, route, seq, id, version)
), l AS MATERIALIZED (
    SELECT r.ctid AS at FROM u JOIN "waybill"."waybill_outbox" r ON r.route = u.route AND r.seq = u.seq
    WHERE r.id = u.id AND r.version = u.version AND r.settled_at IS NULL AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1)
      AND (r.hold = $1 OR CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END = 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = r.route AND un.owner = $1 AND (un.slots >> r.slot::int) & '1' = 1))
    FOR NO KEY UPDATE OF r SKIP LOCKED
), w AS (
    UPDATE "waybill"."waybill_outbox" r SET hold = $1, held_since = CASE WHEN r.hold = $1 THEN r.held_since ELSE clock_timestamp() END, deliveries = r.deliveries + ($7::boolean AND r.hold <> $1)::int
    FROM l WHERE r.ctid = l.at
    RETURNING r.route, r.seq, r.deliveries
)
SELECT u.n, CASE WHEN w.seq IS NOT NULL THEN 1 WHEN EXISTS (
        SELECT FROM "waybill"."waybill_outbox" r
        WHERE r.route = u.route AND r.seq = u.seq AND r.id = u.id AND r.version = u.version AND r.settled_at IS NULL
          AND (r.hold = $1 OR EXISTS (SELECT FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = r.route AND un.owner = $1 AND (un.slots >> r.slot::int) & '1' = 1))
    ) THEN 2 ELSE 3 END,
    coalesce(w.deliveries, 0)
FROM u LEFT JOIN w ON w.route = u.route AND w.seq = u.seq

-- statement outbox.hold.next
WITH own AS MATERIALIZED (
    SELECT r.ctid AS at, r.seq, pg_catalog.octet_length(r.body) AS size FROM "waybill"."waybill_outbox" r
    WHERE r.route = $2 AND r.seq > $8 AND r.seq <= $9 AND (r.retry OR r.hold <> 0) AND r.seq > 0
      AND r.hold + 0 = $1 AND r.key = '' AND r.due_at IS NULL AND r.settled_at IS NULL AND ($3::bigint >> r.slot::int) & '1' = 1 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1)
      AND r.seq <> ALL ($5::bigint[]) AND r.seq <> ALL ($10::bigint[])
    ORDER BY r.seq LIMIT $4 FOR NO KEY UPDATE SKIP LOCKED
), p AS MATERIALIZED (
    SELECT x.* FROM pg_catalog.unnest($10::bigint[]) AS p(seq) CROSS JOIN LATERAL (
        SELECT r.ctid AS at, r.seq FROM "waybill"."waybill_outbox" r WHERE r.route = $2 AND r.seq = p.seq AND r.key = '' AND r.due_at IS NULL AND r.settled_at IS NULL AND ($3::bigint >> r.slot::int) & '1' = 1 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1)
      AND r.seq <> ALL ($5::bigint[]) LIMIT 1
    ) x
), asked AS MATERIALIZED (
    SELECT r.ctid AS at, r.seq, pg_catalog.octet_length(r.body) AS size FROM p JOIN "waybill"."waybill_outbox" r ON r.ctid = p.at
    WHERE r.key = '' AND r.due_at IS NULL AND r.settled_at IS NULL AND ($3::bigint >> r.slot::int) & '1' = 1 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1)
      AND r.seq <> ALL ($5::bigint[]) AND (r.hold = $1 OR CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END = 0)
    ORDER BY r.seq LIMIT greatest($4 - (SELECT pg_catalog.count(*) FROM own), 0) FOR NO KEY UPDATE OF r SKIP LOCKED
), next AS MATERIALIZED (
    SELECT r.ctid AS at, r.seq, pg_catalog.octet_length(r.body) AS size FROM "waybill"."waybill_outbox" r
    WHERE r.route = $2 AND r.seq > $8 AND r.seq <= $9 AND r.key = '' AND r.due_at IS NULL AND r.settled_at IS NULL AND ($3::bigint >> r.slot::int) & '1' = 1 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1)
      AND r.seq <> ALL ($5::bigint[]) AND r.hold <> $1 AND r.seq <> ALL ($10::bigint[])
      AND CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END = 0
    ORDER BY r.seq LIMIT greatest($4 - (SELECT pg_catalog.count(*) FROM own) - (SELECT pg_catalog.count(*) FROM asked), 0) FOR NO KEY UPDATE SKIP LOCKED
), c AS MATERIALIZED (
    SELECT a.at, row_number() OVER w AS nr, pg_catalog.sum(a.size) OVER w AS sum
    FROM (SELECT own.*, 0 AS turn FROM own UNION ALL SELECT asked.*, 1 FROM asked UNION ALL SELECT next.*, 2 FROM next) a
    WINDOW w AS (ORDER BY a.turn, a.seq ROWS UNBOUNDED PRECEDING)
), w AS (
    UPDATE "waybill"."waybill_outbox" r SET hold = $1, held_since = CASE WHEN r.hold = $1 THEN r.held_since ELSE clock_timestamp() END, deliveries = r.deliveries + ($7::boolean AND r.hold <> $1)::int
    FROM c WHERE r.ctid = c.at AND (c.sum <= $6 OR c.nr = 1)
    RETURNING c.nr, r.seq, r.id, r.version, r.slot, r.attempts, r.deliveries, r.crashes, r.cancellable, CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END AS holder,
    r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent, r.occurred_at, r.hlc, r.expires_at,
    r.ready_since, r.attrs, r.body
)
SELECT w.* FROM w
UNION ALL
SELECT NULL, m.seq, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM (
    SELECT p.seq FROM p WHERE p.seq NOT IN (SELECT w.seq FROM w)
    UNION ALL
    (SELECT r.seq FROM "waybill"."waybill_outbox" r
     WHERE r.route = $2 AND r.seq > $8 AND r.seq <= (SELECT CASE WHEN pg_catalog.count(*) = $4 THEN least($9, pg_catalog.max(w.seq)) ELSE $9 END FROM w)
       AND r.key = '' AND r.due_at IS NULL AND r.settled_at IS NULL AND ($3::bigint >> r.slot::int) & '1' = 1 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1)
      AND r.seq <> ALL ($5::bigint[]) AND r.seq <> ALL ($10::bigint[]) AND r.seq NOT IN (SELECT w.seq FROM w)
     ORDER BY r.seq LIMIT $11)
) m

-- statement outbox.read.again
SELECT u.n, r.seq, r.id, r.version, r.slot, r.attempts, r.deliveries, r.crashes, r.cancellable, CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END AS holder,
    r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent, r.occurred_at, r.hlc, r.expires_at,
    r.ready_since, r.attrs, CASE WHEN a.why = 0 THEN r.body END, a.why
FROM unnest($2::int[], $3::text[], $4::bigint[], $5::text[]) AS u(n, route, seq, id)
JOIN "waybill"."waybill_outbox" r ON r.route = u.route AND r.seq = u.seq AND r.id = u.id
CROSS JOIN LATERAL (
    SELECT CASE WHEN r.settled_at IS NOT NULL THEN CASE WHEN r.blocks AND r.route = ANY ($6::text[]) THEN 2 END
                WHEN r.due_at IS NULL OR CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END <> 0 THEN 0
                WHEN r.retry THEN 1 END AS why
) a
WHERE a.why IS NOT NULL AND $1::bigint <> 0

-- statement outbox.read.fresh
SELECT 0, r.route, r.seq, r.id, r.version, r.slot, r.key, r.why, r.holder FROM unnest($2::text[], $3::bigint[]) AS p(route, slots)
CROSS JOIN LATERAL (
    (SELECT r.route, r.seq, r.id, r.version, r.slot, r.key, CASE WHEN CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END NOT IN (0, $1::bigint) THEN 3 WHEN r.retry AND r.key <> '' THEN 1 END AS why, CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END AS holder
     FROM "waybill"."waybill_outbox" r
     WHERE r.route = p.route AND r.seq > $4 AND (p.slots >> r.slot::int) & '1' = 1 AND (r.retry OR r.hold <> 0) AND r.seq > 0
       AND CASE WHEN CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END NOT IN (0, $1::bigint) THEN 3 WHEN r.retry AND r.key <> '' THEN 1 END IS NOT NULL
     ORDER BY r.seq LIMIT $5)
    UNION ALL
    (SELECT r.route, r.seq, r.id, r.version, r.slot, r.key, 2, 0
     FROM "waybill"."waybill_outbox" r
     WHERE r.route = p.route AND r.seq > $4 AND (p.slots >> r.slot::int) & '1' = 1 AND r.blocks AND r.key <> ''
       AND r.route = ANY ($6::text[])
     ORDER BY r.seq LIMIT $5)
) r
ORDER BY r.seq LIMIT $5

-- statement outbox.read.keys.added
SELECT u.n, c.*
FROM unnest($2::int[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::int[]) AS u(n, route, key, lo, hi, max)
CROSS JOIN LATERAL (
    SELECT r.seq, r.id, r.version, r.slot, r.attempts, r.deliveries, r.crashes, r.cancellable, CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END AS holder,
    r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent, r.occurred_at, r.hlc, r.expires_at,
    r.ready_since, r.attrs, CASE WHEN r.sum <= $1::bigint OR r.nr = 1 THEN r.body END FROM (
    SELECT r.*, pg_catalog.sum(pg_catalog.octet_length(r.body)) OVER w AS sum, row_number() OVER w AS nr FROM (
    SELECT r.* FROM "waybill"."waybill_outbox" r
    WHERE r.route = u.route AND (r.key, r.seq) > (u.key, u.lo) AND (r.key, r.seq) <= (u.key, u.hi) AND r.key <> ''
      AND r.due_at IS NULL AND r.settled_at IS NULL
    ORDER BY r.key, r.seq LIMIT u.max
    ) r WINDOW w AS (ORDER BY r.seq ROWS UNBOUNDED PRECEDING)) r WHERE r.sum - pg_catalog.octet_length(r.body) <= $1::bigint OR r.nr <= 2) c

-- statement outbox.read.keys.shared
SELECT u.n, c.*
FROM unnest($2::int[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::int[]) AS u(n, route, key, lo, hi, max)
CROSS JOIN LATERAL (SELECT r.seq, r.id, r.version, r.slot, r.attempts, r.deliveries, r.crashes, r.cancellable, CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END AS holder,
    r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent, r.occurred_at, r.hlc, r.expires_at,
    r.ready_since, r.attrs, CASE WHEN pg_catalog.octet_length(r.body) <= $1::bigint / u.max THEN r.body END FROM (
    SELECT r.* FROM "waybill"."waybill_outbox" r
    WHERE r.route = u.route AND (r.key, r.seq) > (u.key, u.lo) AND (r.key, r.seq) <= (u.key, u.hi) AND r.key <> ''
      AND r.due_at IS NULL AND r.settled_at IS NULL
    ORDER BY r.key, r.seq LIMIT u.max) r) c

-- statement outbox.read.keysWaiting
SELECT u.n, r.route, r.seq, r.id, r.version, r.slot, r.key, r.why, r.holder FROM unnest($2::int[], $3::text[], $4::text[]) AS u(n, route, key)
CROSS JOIN LATERAL (
    SELECT r.*, CASE WHEN CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END NOT IN (0, $1::bigint) THEN 3 WHEN r.retry AND r.key <> '' THEN 1 END AS why, CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END AS holder FROM "waybill"."waybill_outbox" r
    WHERE r.route = u.route AND r.key = u.key AND r.key <> '' AND (r.retry OR r.hold <> 0)
    UNION ALL
    SELECT r.*, 2, 0 FROM "waybill"."waybill_outbox" r WHERE r.route = u.route AND r.key = u.key AND r.blocks AND r.route = ANY ($5::text[])
) r
WHERE r.why IS NOT NULL ORDER BY u.n, r.seq

-- statement outbox.read.page
SELECT m.session IS NOT NULL, coalesce(m.suspected, false), (SELECT pg_catalog.left(pg_catalog.pg_walfile_name(pg_current_wal_insert_lsn()), 8) || '/' || value::text FROM "waybill"."waybill_meta" WHERE name = 'waybill_outbox.epoch'), (SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "waybill"."waybill_outbox_seq" se), clock_timestamp(),
       pg_catalog.pg_snapshot_xmax(s.now)::text::bigint, ARRAY(SELECT x::text::bigint FROM pg_catalog.pg_snapshot_xip(s.now) x),
       ARRAY(SELECT coalesce((SELECT pg_catalog.bit_or(un.slots) FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = p.route AND un.owner = $1), 0) & p.slots
             FROM unnest($2::text[], $3::bigint[]) WITH ORDINALITY AS p(route, slots, n) ORDER BY p.n),
       (SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "waybill"."waybill_outbox_notices_seq" se),
       (SELECT pg_catalog.json_agg(q) FROM (
            SELECT c.number AS "Number", c.kind AS "Kind", c.route AS "Route", c.slot AS "Slot", c.key AS "Key", c.id AS "ID",
                   c.seq AS "Seq", c.reason AS "Reason"
            FROM "waybill"."waybill_outbox_notices" c
            WHERE EXISTS (SELECT FROM unnest($2::text[], $3::bigint[]) AS p(route, slots)
                          WHERE p.route = c.route AND c.slots & p.slots <> 0) AND c.number > $4
            ORDER BY c.number LIMIT 1000
        ) q)
FROM (SELECT pg_current_snapshot() AS now) s LEFT JOIN "waybill"."waybill_outbox_members" m ON m.session = $1

-- statement outbox.read.ranges.added
SELECT u.n, c.*
FROM unnest($2::int[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::boolean[], $8::int[])
     AS u(n, route, slots, lo, hi, keyed, max)
CROSS JOIN LATERAL (
    SELECT r.seq, r.id, r.version, r.slot, r.attempts, r.deliveries, r.crashes, r.cancellable, CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END AS holder,
    r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent, r.occurred_at, r.hlc, r.expires_at,
    r.ready_since, r.attrs, CASE WHEN r.sum <= $1::bigint OR r.nr = 1 THEN r.body END FROM (
    SELECT r.*, pg_catalog.sum(pg_catalog.octet_length(r.body)) OVER w AS sum, row_number() OVER w AS nr FROM (
    SELECT r.* FROM "waybill"."waybill_outbox" r
    WHERE r.route = u.route AND r.seq > u.lo AND r.seq <= u.hi AND r.due_at IS NULL AND r.settled_at IS NULL
      AND (u.slots >> r.slot::int) & '1' = 1 AND (r.key <> '' OR NOT u.keyed)
    ORDER BY r.seq LIMIT u.max
    ) r WINDOW w AS (ORDER BY r.seq ROWS UNBOUNDED PRECEDING)) r WHERE r.sum - pg_catalog.octet_length(r.body) <= $1::bigint OR r.nr <= 2) c

-- statement outbox.read.ranges.shared
SELECT u.n, c.*
FROM unnest($2::int[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::boolean[], $8::int[])
     AS u(n, route, slots, lo, hi, keyed, max)
CROSS JOIN LATERAL (SELECT r.seq, r.id, r.version, r.slot, r.attempts, r.deliveries, r.crashes, r.cancellable, CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END AS holder,
    r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent, r.occurred_at, r.hlc, r.expires_at,
    r.ready_since, r.attrs, CASE WHEN pg_catalog.octet_length(r.body) <= $1::bigint / u.max THEN r.body END FROM (
    SELECT r.* FROM "waybill"."waybill_outbox" r
    WHERE r.route = u.route AND r.seq > u.lo AND r.seq <= u.hi AND r.due_at IS NULL AND r.settled_at IS NULL
      AND (u.slots >> r.slot::int) & '1' = 1 AND (r.key <> '' OR NOT u.keyed)
    ORDER BY r.seq LIMIT u.max) r) c

-- statement outbox.read.rangesBut.added
SELECT u.n, c.*
FROM unnest($2::int[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::boolean[], $8::int[])
     AS u(n, route, slots, lo, hi, keyed, max)
CROSS JOIN LATERAL (
    SELECT r.seq, r.id, r.version, r.slot, r.attempts, r.deliveries, r.crashes, r.cancellable, CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END AS holder,
    r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent, r.occurred_at, r.hlc, r.expires_at,
    r.ready_since, r.attrs, CASE WHEN r.sum <= $1::bigint OR r.nr = 1 THEN r.body END FROM (
    SELECT r.*, pg_catalog.sum(pg_catalog.octet_length(r.body)) OVER w AS sum, row_number() OVER w AS nr FROM (
    SELECT r.* FROM "waybill"."waybill_outbox" r
    WHERE r.route = u.route AND r.seq > u.lo AND r.seq <= u.hi AND r.due_at IS NULL AND r.settled_at IS NULL
      AND (u.slots >> r.slot::int) & '1' = 1 AND (r.key <> '' OR NOT u.keyed) AND r.seq NOT IN (SELECT pg_catalog.unnest($9::bigint[]))
    ORDER BY r.seq LIMIT u.max
    ) r WINDOW w AS (ORDER BY r.seq ROWS UNBOUNDED PRECEDING)) r WHERE r.sum - pg_catalog.octet_length(r.body) <= $1::bigint OR r.nr <= 2) c

-- statement outbox.read.rangesBut.shared
SELECT u.n, c.*
FROM unnest($2::int[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::boolean[], $8::int[])
     AS u(n, route, slots, lo, hi, keyed, max)
CROSS JOIN LATERAL (SELECT r.seq, r.id, r.version, r.slot, r.attempts, r.deliveries, r.crashes, r.cancellable, CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END AS holder,
    r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent, r.occurred_at, r.hlc, r.expires_at,
    r.ready_since, r.attrs, CASE WHEN pg_catalog.octet_length(r.body) <= $1::bigint / u.max THEN r.body END FROM (
    SELECT r.* FROM "waybill"."waybill_outbox" r
    WHERE r.route = u.route AND r.seq > u.lo AND r.seq <= u.hi AND r.due_at IS NULL AND r.settled_at IS NULL
      AND (u.slots >> r.slot::int) & '1' = 1 AND (r.key <> '' OR NOT u.keyed) AND r.seq NOT IN (SELECT pg_catalog.unnest($9::bigint[]))
    ORDER BY r.seq LIMIT u.max) r) c

-- statement outbox.read.upper
SELECT CASE WHEN (SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "waybill"."waybill_outbox_seq" se) > $1::bigint OR (SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "waybill"."waybill_outbox_notices_seq" se) > $2::bigint THEN pg_current_xact_id()::text::bigint ELSE 0 END

-- statement outbox.release.lockPartition
SELECT FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = $1 AND un.from_slot = $2 FOR NO KEY UPDATE

-- statement outbox.release.release
WITH un AS MATERIALIZED (
    SELECT un.slots FROM "waybill"."waybill_outbox_partitions" un
    WHERE un.route = $2 AND un.from_slot = $3 AND un.to_slot = $4 AND un.owner = $1 AND un.term = $10 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1)
), o AS MATERIALIZED (
    SELECT r.seq FROM un, unnest($6::text[], $7::bigint[], $8::text[], $9::bigint[]) AS u(route, seq, id, version)
    CROSS JOIN LATERAL (
        SELECT r.seq FROM "waybill"."waybill_outbox" r
        WHERE u.route = $2 AND r.route = $2 AND r.seq = u.seq AND r.id = u.id AND r.version = u.version AND r.settled_at IS NULL
          AND (un.slots >> r.slot::int) & '1' = 1 AND CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END IN (0, $1::bigint)
        LIMIT 1
    ) r
), wanted AS MATERIALIZED (
    SELECT o.seq, true AS out FROM o
    UNION ALL
    SELECT r.seq, false FROM un, "waybill"."waybill_outbox" r
    WHERE r.hold = $1 AND r.hold <> 0 AND (r.route = $2) IS TRUE AND (un.slots >> r.slot::int) & '1' = 1 AND r.seq NOT IN (SELECT o.seq FROM o)
), l AS MATERIALIZED (
    SELECT r.at, w.out FROM wanted w CROSS JOIN LATERAL (
        SELECT r.ctid AS at FROM "waybill"."waybill_outbox" r WHERE r.route = $2 AND r.seq = w.seq LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
    ) r
), can AS MATERIALIZED (
    SELECT FROM un WHERE (SELECT pg_catalog.count(*) FROM l) = (SELECT pg_catalog.count(*) FROM wanted)
), h AS (
    UPDATE "waybill"."waybill_outbox" r SET hold = CASE WHEN l.out THEN $1::bigint ELSE 0 END,
        held_since = CASE WHEN NOT l.out THEN NULL WHEN r.hold = $1 THEN r.held_since ELSE clock_timestamp() END
    FROM l WHERE r.ctid = l.at AND EXISTS (SELECT FROM can)
), g AS (
    UPDATE "waybill"."waybill_outbox_partitions" un SET owner = 0, term = un.term + 1, read_after = CASE WHEN $11::text IN ('', (SELECT pg_catalog.left(pg_catalog.pg_walfile_name(pg_current_wal_insert_lsn()), 8) || '/' || value::text FROM "waybill"."waybill_meta" WHERE name = 'waybill_outbox.epoch')) THEN $5 ELSE un.read_after END
    WHERE un.route = $2 AND un.from_slot = $3 AND un.owner = $1 AND EXISTS (SELECT FROM can)
)
SELECT CASE WHEN EXISTS (SELECT FROM can) THEN 1 WHEN EXISTS (SELECT FROM un) THEN 2
            WHEN coalesce((SELECT un.term FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = $2 AND un.from_slot = $3 AND un.to_slot = $4),
                          (SELECT ro.term FROM "waybill"."waybill_outbox_routes" ro WHERE ro.route = $2 AND ro.partitions = 0), 0) > $10 THEN 1
            ELSE 3 END

-- statement outbox.settle.deleteAll
DELETE FROM "waybill"."waybill_outbox" r USING unnest($2::text[], $3::bigint[], $4::text[]) AS u(route, seq, id)
WHERE r.route = u.route AND r.seq = u.seq AND r.id = u.id AND r.settled_at IS NULL AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1)

-- statement outbox.settle.deleteNear
DELETE FROM "waybill"."waybill_outbox" r
WHERE r.route = $2 AND r.seq BETWEEN $3 AND $4 AND r.settled_at IS NULL AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1)
  AND ((r.seq, r.id) IN (SELECT u.seq, u.id FROM unnest($5::bigint[], $6::text[]) AS u(seq, id))) IS TRUE

-- statement outbox.settle.noticeDone
WITH l AS MATERIALIZED (
    SELECT c.ctid AS at, c.kind,
        c.slots & ~coalesce((SELECT pg_catalog.bit_or(un.slots) FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = c.route AND un.owner = $1), 0) AS rest
    FROM "waybill"."waybill_outbox_notices" c WHERE c.number = ANY ($2::bigint[]) AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1) FOR UPDATE OF c SKIP LOCKED
), d AS (
    DELETE FROM "waybill"."waybill_outbox_notices" c USING l WHERE c.ctid = l.at AND (l.kind <> 3 OR l.rest = 0)
)
UPDATE "waybill"."waybill_outbox_notices" c SET slots = l.rest FROM l WHERE c.ctid = l.at AND l.kind = 3 AND l.rest <> 0

-- statement outbox.settle.quickLimits
SELECT pg_catalog.set_config('lock_timeout', '5ms', true), pg_catalog.set_config('statement_timeout', $1, true)

-- statement outbox.settle.settle
WITH u AS MATERIALIZED (
    SELECT * FROM unnest($2::int[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::smallint[], $8::int[], $9::text[],
                         $10::text[], $11::bigint[], $12::boolean[], $13::boolean[], $14::boolean[])
        AS u(n, route, seq, id, version, state, attempt, reason, error, wait, failed, blocks, unknown)
), l AS MATERIALIZED (
    SELECT u.*, r.at, u.state NOT IN (3, 5) AND NOT u.failed AND r.holder NOT IN (0, $1) AS others
    FROM u CROSS JOIN LATERAL (
        SELECT r.ctid AS at, CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM "waybill"."waybill_outbox_members" ho WHERE ho.session = r.hold), 0) END AS holder FROM "waybill"."waybill_outbox" r
        WHERE r.route = u.route AND r.seq = u.seq AND r.id = u.id AND r.settled_at IS NULL AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = $1)
          AND (u.state = 3 OR r.version = u.version AND (r.hold = $1 OR EXISTS (SELECT FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = r.route AND un.owner = $1 AND (un.slots >> r.slot::int) & '1' = 1)))
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) r
), d AS (
    DELETE FROM "waybill"."waybill_outbox" r USING l WHERE r.ctid = l.at AND l.state = 3 AND NOT $15::boolean RETURNING l.n
), w AS (
    UPDATE "waybill"."waybill_outbox" r
    SET state = l.state, version = r.version + 1, hold = 0, held_since = NULL,
        attempts = r.attempts + l.attempt, crashes = CASE WHEN l.failed THEN 0 ELSE r.crashes END,
        reason = l.reason, blocks = l.blocks AND r.key <> '', maybe_sent = r.maybe_sent OR l.unknown OR r.crashes > 0,
        settled_at = CASE WHEN l.state IN (3, 5) THEN clock_timestamp() END,
        retry = l.state NOT IN (3, 5) AND (l.failed OR r.retry),
        due_at = CASE WHEN l.state IN (3, 5) THEN NULL
                      WHEN l.failed OR r.retry AND r.hold = $1 THEN clock_timestamp() + l.wait::float8 * interval '1 microsecond'
                      ELSE r.due_at END,
        last_error = CASE WHEN l.error <> '' THEN l.error ELSE r.last_error END,
        last_error_at = CASE WHEN l.error <> '' THEN clock_timestamp() ELSE r.last_error_at END
    FROM l WHERE r.ctid = l.at AND (l.state <> 3 OR $15) AND NOT l.others
    RETURNING l.n
)
SELECT u.n, CASE WHEN u.n IN (SELECT d.n FROM d UNION ALL SELECT w.n FROM w UNION ALL SELECT l.n FROM l WHERE l.others) THEN 0 ELSE coalesce((
    SELECT CASE WHEN u.state = 3 AND r.state = 3 AND r.id = u.id THEN 0
                WHEN r.id <> u.id OR r.settled_at IS NOT NULL OR u.state <> 3 AND r.version <> u.version THEN 1
                WHEN u.state = 3 OR r.hold = $1 OR EXISTS (SELECT FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = r.route AND un.owner = $1 AND (un.slots >> r.slot::int) & '1' = 1) THEN 2
                ELSE 3 END
    FROM "waybill"."waybill_outbox" r WHERE r.route = u.route AND r.seq = u.seq), (u.state <> 3)::int) END
FROM u

-- statement outbox.settle.slowLimits
SELECT pg_catalog.set_config('lock_timeout', least($1::int, 2000)::text, true), pg_catalog.set_config('statement_timeout', $1::int::text, true)

-- statement sqlinbox.mark
INSERT INTO "waybill"."waybill_inbox" AS m (consumer, source, id, content_hash) SELECT $1, $2, $3, $5::bytea
WHERE CASE WHEN pg_catalog.set_config('waybill.lock_timeout', pg_catalog.current_setting('lock_timeout'), true) IS NOT NULL
           THEN pg_catalog.set_config('lock_timeout', $4, true) IS NOT NULL END
ON CONFLICT (id, source, consumer) DO UPDATE SET content_hash = m.content_hash WHERE m.content_hash <> excluded.content_hash
RETURNING pg_catalog.set_config('lock_timeout', pg_catalog.current_setting('waybill.lock_timeout'), true), m.content_hash IS NOT DISTINCT FROM $5::bytea

-- statement sqlinbox.markAll
WITH s AS MATERIALIZED (SELECT pg_catalog.current_setting('lock_timeout') AS before, pg_catalog.set_config('lock_timeout', $2, true) AS now
), k AS MATERIALIZED (SELECT v->>0 AS consumer, v->>1 AS source, v->>2 AS id, nullif(pg_catalog.decode(v->>3, 'hex'), '') AS content_hash, n
    FROM pg_catalog.json_array_elements($1::json) WITH ORDINALITY AS k (v, n)
), i AS (
    INSERT INTO "waybill"."waybill_inbox" AS m (consumer, source, id, content_hash) SELECT k.consumer, k.source, k.id, k.content_hash FROM s, k ORDER BY k.n
    ON CONFLICT (id, source, consumer) DO UPDATE SET content_hash = m.content_hash WHERE m.content_hash <> excluded.content_hash
    RETURNING consumer, source, id, content_hash
), n AS MATERIALIZED (SELECT pg_catalog.count(*) AS marked FROM i)
SELECT n.marked, pg_catalog.set_config('lock_timeout', CASE WHEN n.marked >= 0 THEN s.before END, true),
       (SELECT pg_catalog.json_agg(CASE WHEN i.content_hash IS NOT DISTINCT FROM k.content_hash THEN k.n ELSE -k.n END ORDER BY k.n)::text
        FROM k JOIN i USING (consumer, source, id))
FROM n, s

-- statement sqlinbox.purge
WITH s AS MATERIALIZED (
    SELECT i.ctid AS at, i.handled_at FROM "waybill"."waybill_inbox" i
    WHERE i.consumer = $1 AND i.handled_at < statement_timestamp() - $2::bigint::float8 * interval '1 microsecond'
      AND i.handled_at >= coalesce($4::timestamptz, '-infinity')
    ORDER BY i.handled_at LIMIT $3
), d AS (
    DELETE FROM "waybill"."waybill_inbox" WHERE ctid = ANY (ARRAY(SELECT s.at FROM s)) RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM d), pg_catalog.max(s.handled_at),
    CASE WHEN pg_catalog.count(*) < $3 THEN statement_timestamp() - $2::bigint::float8 * interval '1 microsecond' END FROM s

-- statement sqlinbox.purgeAll
WITH RECURSIVE c (consumer) AS (
    (SELECT consumer FROM "waybill"."waybill_inbox" ORDER BY consumer LIMIT 1)
    UNION ALL
    SELECT (SELECT i.consumer FROM "waybill"."waybill_inbox" i WHERE i.consumer > c.consumer ORDER BY i.consumer LIMIT 1)
    FROM c WHERE c.consumer IS NOT NULL
), x AS (
DELETE FROM "waybill"."waybill_inbox" WHERE ctid = ANY (ARRAY(
    SELECT d.ctid FROM c CROSS JOIN LATERAL (
        SELECT i.ctid FROM "waybill"."waybill_inbox" i
        WHERE i.consumer = c.consumer AND i.handled_at < statement_timestamp() - $1::bigint::float8 * interval '1 microsecond'
        ORDER BY i.handled_at LIMIT $2
    ) d LIMIT $2)) RETURNING 1
)
SELECT pg_catalog.count(*), NULL::timestamptz, NULL::timestamptz FROM x

-- statement stage.cancel
WITH k AS MATERIALIZED (
    SELECT k.*, k.id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7' AS made
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS k(route, id, topic, dedupe_key, n)
), i AS MATERIALIZED (
    SELECT k.n, o.route, o.seq, o.id, o.version, o.hold, o.slot, o.key, o.key <> '' AND (o.due_at IS NULL OR o.retry) AS tell, CASE WHEN (o.version = 1 AND o.hold = 0
        AND o.xmin = (pg_current_xact_id_if_assigned()::text::bigint & 4294967295)::text::xid) THEN 1
        WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 3
        WHEN ((o.due_at IS NULL OR o.retry) AND o.seq <= coalesce(
        (SELECT un.uncertain_up_to FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = o.route AND un.from_slot <= o.slot AND un.to_slot > o.slot LIMIT 1),
        (SELECT ro.uncertain_up_to FROM "waybill"."waybill_outbox_routes" ro WHERE ro.route = o.route), 0)) THEN 2
        WHEN o.due_at IS NULL AND NOT o.cancellable AND o.crashes = 0 THEN 3
        WHEN o.maybe_sent OR o.crashes > 0 OR o.hold <> 0 THEN 2
        ELSE 1 END AS status FROM k CROSS JOIN LATERAL (
        (SELECT o.route, o.seq, o.id, o.version, o.hold, o.slot, o.key, o.due_at, o.retry, o.cancellable, o.maybe_sent,
    o.crashes, o.xmin FROM "waybill"."waybill_outbox" o
         WHERE o.route = k.route AND o.id = k.id AND o.own_id AND o.settled_at IS NULL LIMIT 1)
        UNION ALL
        (SELECT o.route, o.seq, o.id, o.version, o.hold, o.slot, o.key, o.due_at, o.retry, o.cancellable, o.maybe_sent,
    o.crashes, o.xmin FROM "waybill"."waybill_outbox" o
         WHERE o.route = k.route AND o.id = k.id AND NOT o.own_id AND (o.cancellable OR o.hold <> 0 OR coalesce(o.due_at, o.settled_at) IS NOT NULL) AND o.settled_at IS NULL LIMIT 1)
        LIMIT 1
    ) o WHERE k.id <> ''
    UNION ALL
    SELECT r.n, o.route, o.seq, o.id, o.version, o.hold, o.slot, o.key, o.key <> '' AND (o.due_at IS NULL OR o.retry) AS tell, CASE WHEN (o.version = 1 AND o.hold = 0
        AND o.xmin = (pg_current_xact_id_if_assigned()::text::bigint & 4294967295)::text::xid) THEN 1
        WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 3
        WHEN ((o.due_at IS NULL OR o.retry) AND o.seq <= coalesce(
        (SELECT un.uncertain_up_to FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = o.route AND un.from_slot <= o.slot AND un.to_slot > o.slot LIMIT 1),
        (SELECT ro.uncertain_up_to FROM "waybill"."waybill_outbox_routes" ro WHERE ro.route = o.route), 0)) THEN 2
        WHEN o.due_at IS NULL AND NOT o.cancellable AND o.crashes = 0 THEN 3
        WHEN o.maybe_sent OR o.crashes > 0 OR o.hold <> 0 THEN 2
        ELSE 1 END AS status FROM k r CROSS JOIN LATERAL (SELECT o.route, o.seq, o.id, o.version, o.hold, o.slot, o.key, o.due_at, o.retry, o.cancellable, o.maybe_sent,
    o.crashes, o.xmin, o.source FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.topic = r.topic AND o.dedupe_key = r.dedupe_key AND o.dedupe_key <> '' AND o.settled_at IS NULL
        LIMIT 1
    ) o WHERE r.dedupe_key <> ''
), m AS MATERIALIZED (
    SELECT DISTINCT k.route FROM k WHERE k.made AND k.n NOT IN (SELECT i.n FROM i)
), f AS MATERIALIZED (
    SELECT i.* FROM i
    UNION ALL
    SELECT k.n, o.route, o.seq, o.id, o.version, o.hold, o.slot, o.key, o.key <> '' AND (o.due_at IS NULL OR o.retry) AS tell, CASE WHEN (o.version = 1 AND o.hold = 0
        AND o.xmin = (pg_current_xact_id_if_assigned()::text::bigint & 4294967295)::text::xid) THEN 1
        WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 3
        WHEN ((o.due_at IS NULL OR o.retry) AND o.seq <= coalesce(
        (SELECT un.uncertain_up_to FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = o.route AND un.from_slot <= o.slot AND un.to_slot > o.slot LIMIT 1),
        (SELECT ro.uncertain_up_to FROM "waybill"."waybill_outbox_routes" ro WHERE ro.route = o.route), 0)) THEN 2
        WHEN o.due_at IS NULL AND NOT o.cancellable AND o.crashes = 0 THEN 3
        WHEN o.maybe_sent OR o.crashes > 0 OR o.hold <> 0 THEN 2
        ELSE 1 END AS status
    FROM m CROSS JOIN LATERAL (
        SELECT o.route, o.seq, o.id, o.version, o.hold, o.slot, o.key, o.due_at, o.retry, o.cancellable, o.maybe_sent,
    o.crashes, o.xmin FROM "waybill"."waybill_outbox" o
        WHERE o.route = m.route AND o.seq > (SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "waybill"."waybill_outbox_seq" se) - 10000 AND o.due_at IS NULL AND o.settled_at IS NULL AND NOT o.own_id
        ORDER BY o.seq DESC LIMIT 10000
    ) o JOIN k ON k.route = o.route AND k.id = o.id AND k.made
), t AS MATERIALIZED (
    SELECT f.* FROM (
        SELECT DISTINCT f.route, f.seq, f.id, f.version, f.hold, f.slot, f.key, f.tell
        FROM f WHERE f.status <> 3 ORDER BY f.route, f.seq
    ) f CROSS JOIN LATERAL (
        SELECT FROM "waybill"."waybill_outbox" o
        WHERE o.route = f.route AND o.seq = f.seq AND o.version = f.version AND o.hold = f.hold AND o.settled_at IS NULL
        FOR UPDATE
    ) o
), x AS (
    DELETE FROM "waybill"."waybill_outbox" o USING t WHERE o.route = t.route AND o.seq = t.seq RETURNING 1
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    SELECT 1, t.route, t.slot, 1::bigint << t.slot::int, t.key, t.id, t.seq FROM t WHERE t.tell
)
SELECT f.n, CASE WHEN f.status = 3 OR t.seq IS NOT NULL THEN f.status END
FROM f LEFT JOIN t ON t.route = f.route AND t.seq = f.seq

-- statement stage.holders
SELECT r.n, o.id, o.source <> r.source
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS r(route, topic, dedupe_key, source, n) CROSS JOIN LATERAL (SELECT o.id, o.source FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.topic = r.topic AND o.dedupe_key = r.dedupe_key AND o.dedupe_key <> '' AND o.settled_at IS NULL
        LIMIT 1
    ) o

-- statement stage.inserts.{due:0 one:false fresh:false notify:false}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable)
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
       r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[])
     AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable)
ON CONFLICT (route, id) WHERE own_id DO NOTHING RETURNING route, id

-- statement stage.inserts.{due:0 one:false fresh:false notify:true}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, maybe_sent)
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
       r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable, CASE WHEN (SELECT w.last_value::float8 > pg_catalog.date_part('epoch', clock_timestamp()) * '1000' FROM "waybill"."waybill_outbox_wake" w) THEN pg_catalog.pg_notify('waybill_25c50bbafea3b626', r.route) IS NULL ELSE false END
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[])
     AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable)
ON CONFLICT (route, id) WHERE own_id DO NOTHING RETURNING route, id

-- statement stage.inserts.{due:0 one:false fresh:true notify:false}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, own_id)
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
       r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable, false
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[])
     AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable)

-- statement stage.inserts.{due:0 one:false fresh:true notify:true}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, own_id, maybe_sent)
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
       r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable, false, CASE WHEN (SELECT w.last_value::float8 > pg_catalog.date_part('epoch', clock_timestamp()) * '1000' FROM "waybill"."waybill_outbox_wake" w) THEN pg_catalog.pg_notify('waybill_25c50bbafea3b626', r.route) IS NULL ELSE false END
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[])
     AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable)

-- statement stage.inserts.{due:0 one:true fresh:false notify:false}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
        $10::timestamptz, $11::bigint, $12::timestamptz, $13::json, $14::bytea, $15::bigint, $16::boolean)
ON CONFLICT (route, id) WHERE own_id DO NOTHING RETURNING true

-- statement stage.inserts.{due:0 one:true fresh:false notify:true}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, maybe_sent)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
        $10::timestamptz, $11::bigint, $12::timestamptz, $13::json, $14::bytea, $15::bigint, $16::boolean, CASE WHEN (SELECT w.last_value::float8 > pg_catalog.date_part('epoch', clock_timestamp()) * '1000' FROM "waybill"."waybill_outbox_wake" w) THEN pg_catalog.pg_notify('waybill_25c50bbafea3b626', $1::text) IS NULL ELSE false END)
ON CONFLICT (route, id) WHERE own_id DO NOTHING RETURNING true

-- statement stage.inserts.{due:0 one:true fresh:true notify:false}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, own_id)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
        $10::timestamptz, $11::bigint, $12::timestamptz, $13::json, $14::bytea, $15::bigint, $16::boolean, false)

-- statement stage.inserts.{due:0 one:true fresh:true notify:true}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, own_id, maybe_sent)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
        $10::timestamptz, $11::bigint, $12::timestamptz, $13::json, $14::bytea, $15::bigint, $16::boolean, false, CASE WHEN (SELECT w.last_value::float8 > pg_catalog.date_part('epoch', clock_timestamp()) * '1000' FROM "waybill"."waybill_outbox_wake" w) THEN pg_catalog.pg_notify('waybill_25c50bbafea3b626', $1::text) IS NULL ELSE false END)

-- statement stage.inserts.{due:1 one:false fresh:false notify:false}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since)
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
       r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable, CASE WHEN d.at > clock_timestamp() THEN d.at END, greatest(d.at, clock_timestamp())
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[], $17::timestamptz[], $18::bigint[])
     AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, at, delay)
CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0)::float8 * interval '1 microsecond') AS at) d
ON CONFLICT (route, id) WHERE own_id DO NOTHING RETURNING route, id

-- statement stage.inserts.{due:1 one:false fresh:false notify:true}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since, maybe_sent)
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
       r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable, CASE WHEN d.at > clock_timestamp() THEN d.at END, greatest(d.at, clock_timestamp()), CASE WHEN coalesce(d.at < clock_timestamp() + interval '1 minute', true) AND (SELECT w.last_value::float8 > pg_catalog.date_part('epoch', clock_timestamp()) * '1000' FROM "waybill"."waybill_outbox_wake" w) THEN pg_catalog.pg_notify('waybill_25c50bbafea3b626', r.route) IS NULL ELSE false END
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[], $17::timestamptz[], $18::bigint[])
     AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, at, delay)
CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0)::float8 * interval '1 microsecond') AS at) d
ON CONFLICT (route, id) WHERE own_id DO NOTHING RETURNING route, id

-- statement stage.inserts.{due:1 one:false fresh:true notify:false}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since, own_id)
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
       r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable, CASE WHEN d.at > clock_timestamp() THEN d.at END, greatest(d.at, clock_timestamp()), false
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[], $17::timestamptz[], $18::bigint[])
     AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, at, delay)
CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0)::float8 * interval '1 microsecond') AS at) d

-- statement stage.inserts.{due:1 one:false fresh:true notify:true}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since, own_id, maybe_sent)
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
       r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable, CASE WHEN d.at > clock_timestamp() THEN d.at END, greatest(d.at, clock_timestamp()), false, CASE WHEN coalesce(d.at < clock_timestamp() + interval '1 minute', true) AND (SELECT w.last_value::float8 > pg_catalog.date_part('epoch', clock_timestamp()) * '1000' FROM "waybill"."waybill_outbox_wake" w) THEN pg_catalog.pg_notify('waybill_25c50bbafea3b626', r.route) IS NULL ELSE false END
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[], $17::timestamptz[], $18::bigint[])
     AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, at, delay)
CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0)::float8 * interval '1 microsecond') AS at) d

-- statement stage.inserts.{due:1 one:true fresh:false notify:false}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
        $10::timestamptz, $11::bigint, $12::timestamptz, $13::json, $14::bytea, $15::bigint, $16::boolean, clock_timestamp() + $17::bigint::float8 * interval '1 microsecond', clock_timestamp() + $17::bigint::float8 * interval '1 microsecond')
ON CONFLICT (route, id) WHERE own_id DO NOTHING RETURNING true

-- statement stage.inserts.{due:1 one:true fresh:false notify:true}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since, maybe_sent)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
        $10::timestamptz, $11::bigint, $12::timestamptz, $13::json, $14::bytea, $15::bigint, $16::boolean, clock_timestamp() + $17::bigint::float8 * interval '1 microsecond', clock_timestamp() + $17::bigint::float8 * interval '1 microsecond', CASE WHEN coalesce(clock_timestamp() + $17::bigint::float8 * interval '1 microsecond' < clock_timestamp() + interval '1 minute', true) AND (SELECT w.last_value::float8 > pg_catalog.date_part('epoch', clock_timestamp()) * '1000' FROM "waybill"."waybill_outbox_wake" w) THEN pg_catalog.pg_notify('waybill_25c50bbafea3b626', $1::text) IS NULL ELSE false END)
ON CONFLICT (route, id) WHERE own_id DO NOTHING RETURNING true

-- statement stage.inserts.{due:1 one:true fresh:true notify:false}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since, own_id)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
        $10::timestamptz, $11::bigint, $12::timestamptz, $13::json, $14::bytea, $15::bigint, $16::boolean, clock_timestamp() + $17::bigint::float8 * interval '1 microsecond', clock_timestamp() + $17::bigint::float8 * interval '1 microsecond', false)

-- statement stage.inserts.{due:1 one:true fresh:true notify:true}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since, own_id, maybe_sent)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
        $10::timestamptz, $11::bigint, $12::timestamptz, $13::json, $14::bytea, $15::bigint, $16::boolean, clock_timestamp() + $17::bigint::float8 * interval '1 microsecond', clock_timestamp() + $17::bigint::float8 * interval '1 microsecond', false, CASE WHEN coalesce(clock_timestamp() + $17::bigint::float8 * interval '1 microsecond' < clock_timestamp() + interval '1 minute', true) AND (SELECT w.last_value::float8 > pg_catalog.date_part('epoch', clock_timestamp()) * '1000' FROM "waybill"."waybill_outbox_wake" w) THEN pg_catalog.pg_notify('waybill_25c50bbafea3b626', $1::text) IS NULL ELSE false END)

-- statement stage.inserts.{due:2 one:false fresh:false notify:false}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since)
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
       r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable, CASE WHEN d.at > clock_timestamp() THEN d.at END, greatest(d.at, clock_timestamp())
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[], $17::timestamptz[], $18::bigint[])
     AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, at, delay)
CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0)::float8 * interval '1 microsecond') AS at) d
ON CONFLICT (route, id) WHERE own_id DO NOTHING RETURNING route, id

-- statement stage.inserts.{due:2 one:false fresh:false notify:true}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since, maybe_sent)
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
       r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable, CASE WHEN d.at > clock_timestamp() THEN d.at END, greatest(d.at, clock_timestamp()), CASE WHEN coalesce(d.at < clock_timestamp() + interval '1 minute', true) AND (SELECT w.last_value::float8 > pg_catalog.date_part('epoch', clock_timestamp()) * '1000' FROM "waybill"."waybill_outbox_wake" w) THEN pg_catalog.pg_notify('waybill_25c50bbafea3b626', r.route) IS NULL ELSE false END
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[], $17::timestamptz[], $18::bigint[])
     AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, at, delay)
CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0)::float8 * interval '1 microsecond') AS at) d
ON CONFLICT (route, id) WHERE own_id DO NOTHING RETURNING route, id

-- statement stage.inserts.{due:2 one:false fresh:true notify:false}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since, own_id)
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
       r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable, CASE WHEN d.at > clock_timestamp() THEN d.at END, greatest(d.at, clock_timestamp()), false
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[], $17::timestamptz[], $18::bigint[])
     AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, at, delay)
CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0)::float8 * interval '1 microsecond') AS at) d

-- statement stage.inserts.{due:2 one:false fresh:true notify:true}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since, own_id, maybe_sent)
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
       r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable, CASE WHEN d.at > clock_timestamp() THEN d.at END, greatest(d.at, clock_timestamp()), false, CASE WHEN coalesce(d.at < clock_timestamp() + interval '1 minute', true) AND (SELECT w.last_value::float8 > pg_catalog.date_part('epoch', clock_timestamp()) * '1000' FROM "waybill"."waybill_outbox_wake" w) THEN pg_catalog.pg_notify('waybill_25c50bbafea3b626', r.route) IS NULL ELSE false END
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[], $17::timestamptz[], $18::bigint[])
     AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, at, delay)
CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0)::float8 * interval '1 microsecond') AS at) d

-- statement stage.inserts.{due:2 one:true fresh:false notify:false}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
        $10::timestamptz, $11::bigint, $12::timestamptz, $13::json, $14::bytea, $15::bigint, $16::boolean, CASE WHEN $17::timestamptz > clock_timestamp() THEN $17::timestamptz END, greatest($17::timestamptz, clock_timestamp()))
ON CONFLICT (route, id) WHERE own_id DO NOTHING RETURNING true

-- statement stage.inserts.{due:2 one:true fresh:false notify:true}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since, maybe_sent)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
        $10::timestamptz, $11::bigint, $12::timestamptz, $13::json, $14::bytea, $15::bigint, $16::boolean, CASE WHEN $17::timestamptz > clock_timestamp() THEN $17::timestamptz END, greatest($17::timestamptz, clock_timestamp()), CASE WHEN coalesce($17::timestamptz < clock_timestamp() + interval '1 minute', true) AND (SELECT w.last_value::float8 > pg_catalog.date_part('epoch', clock_timestamp()) * '1000' FROM "waybill"."waybill_outbox_wake" w) THEN pg_catalog.pg_notify('waybill_25c50bbafea3b626', $1::text) IS NULL ELSE false END)
ON CONFLICT (route, id) WHERE own_id DO NOTHING RETURNING true

-- statement stage.inserts.{due:2 one:true fresh:true notify:false}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since, own_id)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
        $10::timestamptz, $11::bigint, $12::timestamptz, $13::json, $14::bytea, $15::bigint, $16::boolean, CASE WHEN $17::timestamptz > clock_timestamp() THEN $17::timestamptz END, greatest($17::timestamptz, clock_timestamp()), false)

-- statement stage.inserts.{due:2 one:true fresh:true notify:true}
INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since, own_id, maybe_sent)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
        $10::timestamptz, $11::bigint, $12::timestamptz, $13::json, $14::bytea, $15::bigint, $16::boolean, CASE WHEN $17::timestamptz > clock_timestamp() THEN $17::timestamptz END, greatest($17::timestamptz, clock_timestamp()), false, CASE WHEN coalesce($17::timestamptz < clock_timestamp() + interval '1 minute', true) AND (SELECT w.last_value::float8 > pg_catalog.date_part('epoch', clock_timestamp()) * '1000' FROM "waybill"."waybill_outbox_wake" w) THEN pg_catalog.pg_notify('waybill_25c50bbafea3b626', $1::text) IS NULL ELSE false END)

-- statement stage.keyed
WITH r AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
        $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[],
        $17::timestamptz[], $18::bigint[], $19::text[], $20::boolean[]) WITH ORDINALITY
        AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, at, delay, dedupe_key, replace, n)), i AS (
    INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since, dedupe_key, own_id, maybe_sent)
    SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
           r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable,
           CASE WHEN d.at > clock_timestamp() THEN d.at END, greatest(d.at, clock_timestamp()), r.dedupe_key, $21::boolean, CASE WHEN coalesce(d.at < clock_timestamp() + interval '1 minute', true) AND (SELECT w.last_value::float8 > pg_catalog.date_part('epoch', clock_timestamp()) * '1000' FROM "waybill"."waybill_outbox_wake" w) THEN pg_catalog.pg_notify('waybill_25c50bbafea3b626', r.route) IS NULL ELSE false END
    FROM r
    CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0)::float8 * interval '1 microsecond') AS at) d
    ON CONFLICT DO NOTHING
    RETURNING route, id
)
SELECT 0, 0::bigint, i.route, i.id, 0 FROM i
UNION ALL (
    WITH left_out AS MATERIALIZED (SELECT r.* FROM r WHERE (r.route, r.id) NOT IN (SELECT i.route, i.id FROM i))
    SELECT 1, r.n, '', '', (k.source <> r.source)::int FROM left_out r CROSS JOIN LATERAL (SELECT (SELECT o.source FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.id = r.id AND o.own_id LIMIT 1) AS source) k WHERE k.source IS NOT NULL
    UNION ALL
    SELECT 2 + (o.source <> r.source)::int, r.n, '', o.id, 0 FROM left_out r CROSS JOIN LATERAL (SELECT o.id, o.source FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.topic = r.topic AND o.dedupe_key = r.dedupe_key AND o.dedupe_key <> '' AND o.settled_at IS NULL
        LIMIT 1
    ) o WHERE r.dedupe_key <> ''
)

-- statement stage.raise
SELECT pg_catalog.setval('"waybill"."waybill_outbox_seq"', (SELECT pg_catalog.max(seq) FROM "waybill"."waybill_outbox"))

-- statement stage.replacing
WITH r AS MATERIALIZED (
    SELECT r.*, k.source AS known FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
        $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[],
        $17::timestamptz[], $18::bigint[], $19::text[], $20::boolean[]) WITH ORDINALITY
        AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, at, delay, dedupe_key, replace, n) CROSS JOIN LATERAL (SELECT (SELECT o.source FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.id = r.id AND o.own_id LIMIT 1) AS source) k
), f AS MATERIALIZED (
    SELECT r.n, o.source <> r.source AS other, r.replace AND r.known IS NULL AND o.source = r.source AS replace, o.route, o.seq, o.id, o.version, o.hold, o.slot, o.key, o.key <> '' AND (o.due_at IS NULL OR o.retry) AS tell, CASE WHEN (o.version = 1 AND o.hold = 0
        AND o.xmin = (pg_current_xact_id_if_assigned()::text::bigint & 4294967295)::text::xid) THEN 1
        WHEN (o.hold <> 0 AND EXISTS (SELECT FROM "waybill"."waybill_outbox_members" me WHERE me.session = o.hold)) THEN 3
        WHEN ((o.due_at IS NULL OR o.retry) AND o.seq <= coalesce(
        (SELECT un.uncertain_up_to FROM "waybill"."waybill_outbox_partitions" un WHERE un.route = o.route AND un.from_slot <= o.slot AND un.to_slot > o.slot LIMIT 1),
        (SELECT ro.uncertain_up_to FROM "waybill"."waybill_outbox_routes" ro WHERE ro.route = o.route), 0)) THEN 2
        WHEN o.due_at IS NULL AND NOT o.cancellable AND o.crashes = 0 THEN 3
        WHEN o.maybe_sent OR o.crashes > 0 OR o.hold <> 0 THEN 2
        ELSE 1 END AS status
    FROM r CROSS JOIN LATERAL (SELECT o.route, o.seq, o.id, o.version, o.hold, o.slot, o.key, o.due_at, o.retry, o.cancellable, o.maybe_sent,
    o.crashes, o.xmin, o.source FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.topic = r.topic AND o.dedupe_key = r.dedupe_key AND o.dedupe_key <> '' AND o.settled_at IS NULL
        LIMIT 1
    ) o WHERE r.dedupe_key <> ''
), l AS MATERIALIZED (
    SELECT f.* FROM (SELECT f.* FROM f WHERE f.replace ORDER BY f.route, f.seq) f CROSS JOIN LATERAL (
        SELECT FROM "waybill"."waybill_outbox" o
        WHERE o.route = f.route AND o.seq = f.seq AND o.version = f.version AND o.hold = f.hold AND o.settled_at IS NULL
        FOR UPDATE
    ) o
), t AS MATERIALIZED (
    SELECT l.* FROM l WHERE l.status <> 3
), x AS (
    DELETE FROM "waybill"."waybill_outbox" o USING t WHERE o.route = t.route AND o.seq = t.seq RETURNING 1
), c AS (
    INSERT INTO "waybill"."waybill_outbox_notices" (kind, route, slot, slots, key, id, seq)
    SELECT 1, t.route, t.slot, 1::bigint << t.slot::int, t.key, t.id, t.seq FROM t WHERE t.tell
), g AS (
    UPDATE "waybill"."waybill_outbox" o SET dedupe_key = '', version = o.version + (o.hold = 0)::int FROM l
    WHERE o.route = l.route AND o.seq = l.seq AND l.status = 3
    RETURNING 1
), i AS (
    INSERT INTO "waybill"."waybill_outbox" (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, slot, cancellable, due_at, ready_since, dedupe_key, own_id, maybe_sent)
    SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
           r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable,
           CASE WHEN d.at > clock_timestamp() THEN d.at END, greatest(d.at, clock_timestamp()), r.dedupe_key, $21::boolean, CASE WHEN coalesce(d.at < clock_timestamp() + interval '1 minute', true) AND (SELECT w.last_value::float8 > pg_catalog.date_part('epoch', clock_timestamp()) * '1000' FROM "waybill"."waybill_outbox_wake" w) THEN pg_catalog.pg_notify('waybill_25c50bbafea3b626', r.route) IS NULL ELSE false END
    FROM r
    CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0)::float8 * interval '1 microsecond') AS at) d
    WHERE r.known IS NULL AND (SELECT pg_catalog.count(*) FROM x) + (SELECT pg_catalog.count(*) FROM g) >= 0
    ON CONFLICT DO NOTHING
    RETURNING route, id
)
SELECT 0, 0::bigint, i.route, i.id, 0 FROM i
UNION ALL SELECT 1, r.n, '', '', (r.known <> r.source)::int FROM r WHERE r.known IS NOT NULL
UNION ALL SELECT 2 + f.other::int, f.n, '', f.id, coalesce(l.status, 0) FROM f LEFT JOIN l ON l.n = f.n

-- statement stage.seed
SELECT coalesce(pg_catalog.max(s.hlc) FILTER (WHERE s.hlc BETWEEN 0 AND b.at), 0), coalesce(pg_catalog.max(s.hlc), 0),
       (SELECT coalesce(pg_catalog.max(value), 0) FROM "waybill"."waybill_meta" WHERE name = 'waybill_outbox.compatible'), EXISTS (
    SELECT FROM pg_index x
    WHERE x.indrelid = '"waybill"."waybill_outbox"'::regclass AND x.indisunique AND x.indisvalid AND x.indnatts = 2
      AND trim('"' FROM coalesce(pg_catalog.pg_get_expr(x.indpred, x.indrelid), 'own_id')) = 'own_id'
      AND (SELECT pg_catalog.count(*) FROM pg_attribute a
           WHERE a.attrelid = x.indrelid AND a.attnum = ANY (x.indkey) AND a.attname IN ('route', 'id')) = 2)
FROM (SELECT ((pg_catalog.date_part('epoch', clock_timestamp() + interval '1 minute') * '1000')::bigint << 16 | '65535') AS at) b, (
    SELECT m.value AS hlc FROM "waybill"."waybill_meta" m WHERE m.name = 'waybill_outbox.hlc'
    UNION ALL
    SELECT n.hlc FROM (SELECT ro.route FROM "waybill"."waybill_outbox_routes" ro UNION SELECT pg_catalog.unnest($1::text[])) r
    CROSS JOIN LATERAL (
        SELECT o.hlc FROM "waybill"."waybill_outbox" o
        WHERE o.route = r.route AND o.seq > (SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "waybill"."waybill_outbox_seq" se) - 1000
        ORDER BY o.seq DESC LIMIT 1000
    ) n) s

-- statement stage.taken
SELECT ('waybill: id taken: ' || r.route || E'\x1f' || r.id || E'\x1f')::boolean
FROM unnest($1::text[], $2::text[], $3::text[]) AS r(route, id, source) CROSS JOIN LATERAL (
    SELECT o.source FROM "waybill"."waybill_outbox" o WHERE o.route = r.route AND o.id = r.id AND o.own_id LIMIT 1
) o WHERE o.source <> r.source LIMIT 1

-- statement stage.unstage
DELETE FROM "waybill"."waybill_outbox" o USING unnest($1::text[], $2::text[]) AS r(route, id)
WHERE o.route = r.route AND o.id = r.id AND o.own_id
RETURNING 1

