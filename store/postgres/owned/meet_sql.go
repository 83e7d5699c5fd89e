package owned

const (
	joinSQL = `
INSERT INTO {members} AS m (session, beat, lease, presence, handlers, free, name, routes, units, unable)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (session) DO UPDATE SET beat = excluded.beat, lease = excluded.lease, presence = excluded.presence, handlers = excluded.handlers, free = excluded.free,
    name = excluded.name, routes = excluded.routes, units = excluded.units, unable = excluded.unable, renewed_at = clock_timestamp(), ` + clearSQL + `
WHERE m.beat <= excluded.beat`

	// A renewal that comes late changes nothing.
	renewSQL = `
UPDATE {members} m SET beat = $2, lease = $3, presence = $4::bigint, handlers = $5, free = $6, name = $7, routes = $8, units = $9, unable = $10,
    renewed_at = clock_timestamp(), flag = m.flag AND ($4::bigint = 0 OR $4 = m.presence)
WHERE m.session = $1 AND m.beat <= $2`

	clearSQL = `flag = m.flag AND (excluded.presence = 0 OR excluded.presence = m.presence)`

	flagSQL = `
UPDATE {members} m SET flag = true
FROM (SELECT f.session FROM {members} f WHERE f.session = ANY ($2::bigint[]) AND ` + aliveSQL + ` ORDER BY f.session FOR NO KEY UPDATE SKIP LOCKED) f
WHERE m.session = f.session`

	routesSQL = `
INSERT INTO {routes} (route) SELECT x.route FROM unnest($2::text[]) AS x(route)
WHERE ` + aliveSQL + ` AND NOT EXISTS (SELECT FROM {routes} r WHERE r.route = x.route)
ON CONFLICT DO NOTHING`

	// unitsSQL makes the units of routes that have none, under the lock of the route's row: of two members that do so
	// one is first.
	unitsSQL = `
WITH n AS MATERIALIZED (
    SELECT r.route, r.low, r.careful FROM {routes} r WHERE r.route = ANY ($2::text[]) AND r.units = 0 AND ` + aliveSQL + ` ORDER BY r.route FOR UPDATE
), x AS MATERIALIZED (
    SELECT * FROM unnest($3::text[], $4::smallint[], $5::smallint[], $6::bigint[]) AS x(route, from_slot, to_slot, slots)
), i AS (
    INSERT INTO {units} (route, from_slot, to_slot, slots, low, careful)
    SELECT x.route, x.from_slot, x.to_slot, x.slots, n.low, n.careful FROM x JOIN n ON n.route = x.route
)
UPDATE {routes} r SET units = (SELECT count(*) FROM x WHERE x.route = r.route), low = 0 FROM n WHERE r.route = n.route`

	lockMemberSQL = `SELECT 1 FROM {members} WHERE session = $1 FOR UPDATE`

	// endedSQL is whether the session leaves ($3 = 0), or may be removed.
	endedSQL = `($3::int = 0 OR NOT EXISTS (SELECT FROM {members} me WHERE me.session = $1 AND me.beat <> $2))`

	endHoldsSQL = `
UPDATE {outbox} r SET hold = 0, held_since = NULL, maybe_sent = true, crashes = r.crashes + $3::int, version = r.version + $3::int
FROM (
    SELECT h.route, h.seq FROM {outbox} h WHERE h.hold = $1 AND h.hold <> 0 AND ` + endedSQL + `
    FOR NO KEY UPDATE SKIP LOCKED
) h
WHERE r.route = h.route AND r.seq = h.seq`

	endUnitsSQL = `
UPDATE {units} u SET owner = 0, careful = CASE WHEN $3::int = 0 THEN u.careful ELSE greatest(u.careful, ` + lastSQL + `) END
FROM (
    SELECT o.route, o.from_slot FROM {units} o WHERE o.owner = $1 AND o.owner <> 0 AND ` + endedSQL + `
    ORDER BY o.route, o.from_slot FOR NO KEY UPDATE
) o
WHERE u.route = o.route AND u.from_slot = o.from_slot`

	endSQL = `DELETE FROM {members} m WHERE m.session = $1 AND ($3::int = 0 OR m.beat = $2)`

	// tidySQL removes the units of routes that nobody serves. It keeps in the route what their next owners must know.
	tidySQL = `
WITH n AS MATERIALIZED (
    SELECT r.route FROM {routes} r
    WHERE r.units > 0 AND NOT EXISTS (SELECT FROM {members} m WHERE r.route = ANY (m.routes))
      AND NOT EXISTS (SELECT FROM {units} u WHERE u.route = r.route AND u.owner <> 0)
    ORDER BY r.route FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM {units} u USING n WHERE u.route = n.route RETURNING u.route, u.low, u.careful
)
UPDATE {routes} r SET units = 0, low = d.low, careful = d.careful
FROM (SELECT d.route, min(d.low) AS low, max(d.careful) AS careful FROM d GROUP BY d.route) d
WHERE r.route = d.route`

	// movesSQL makes moves. Units of another live member move only while no statement of its is under way; then it is
	// left out.
	movesSQL = `
WITH x AS MATERIALIZED (
    SELECT * FROM unnest($2::text[], $3::smallint[], $4::smallint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
        AS x(route, from_slot, to_slot, owner, next, low, careful)
), o AS MATERIALIZED (
    SELECT m.session FROM {members} m WHERE m.session IN (SELECT x.owner FROM x WHERE x.owner NOT IN (0, $1::bigint)) FOR UPDATE SKIP LOCKED
), l AS MATERIALIZED (
    SELECT x.* FROM x JOIN {units} u ON u.route = x.route AND u.from_slot = x.from_slot
    WHERE u.to_slot = x.to_slot AND u.owner = x.owner AND ` + aliveSQL + `
      AND (x.next = 0 OR EXISTS (SELECT FROM {members} m WHERE m.session = x.next))
      AND (x.owner IN (0, $1::bigint) OR x.owner IN (SELECT o.session FROM o) OR NOT EXISTS (SELECT FROM {members} m WHERE m.session = x.owner))
    ORDER BY x.route, x.from_slot FOR NO KEY UPDATE OF u
)
UPDATE {units} u SET owner = l.next, low = CASE WHEN l.next = l.owner THEN l.low ELSE u.low END, careful = CASE WHEN l.next = l.owner THEN l.careful ELSE u.careful END
FROM l WHERE u.route = l.route AND u.from_slot = l.from_slot AND u.owner = l.owner`

	rosterUnitsSQL = `SELECT route, from_slot, to_slot, owner, low, careful FROM {units} ORDER BY route, from_slot`

	rosterMembersSQL = `
SELECT session, name, beat, lease, handlers, free, presence, flag, routes, units, unable FROM {members} ORDER BY session`

	// rosterSQL looks for routes between those that have units, and so reads nothing of these.
	rosterSQL = `
WITH RECURSIVE k AS (
    SELECT k.route, coalesce(lead(k.route) OVER (ORDER BY k.route), U&'\+10FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT r.route FROM {routes} r WHERE r.units > 0) k
), f AS (
    SELECT (SELECT r.route FROM {outbox} r WHERE r.route > k.route AND r.route < k.next ORDER BY r.route LIMIT 1) AS route, k.next FROM k
    UNION ALL
    SELECT (SELECT r.route FROM {outbox} r WHERE r.route > f.route AND r.route < f.next ORDER BY r.route LIMIT 1), f.next FROM f WHERE f.route IS NOT NULL
)
SELECT ` + epochSQL + `, ARRAY(
    SELECT f.route FROM f
    WHERE EXISTS (SELECT FROM {outbox} r WHERE r.route = f.route AND r.due_at IS NULL AND r.settled_at IS NULL)
       OR EXISTS (SELECT FROM {outbox} r WHERE r.route = f.route AND r.due_at <= statement_timestamp() AND NOT r.retry AND r.settled_at IS NULL)
       OR EXISTS (SELECT FROM {outbox} r WHERE r.route = f.route AND r.due_at <= statement_timestamp() AND r.retry)
    LIMIT 100)`
)
