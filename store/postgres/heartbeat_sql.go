package postgres

import (
	"github.com/waybill-go/waybill/store/postgres/internal/listen"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

type heartbeatStatements struct {
	join, renew, suspect, routes, partitions string
	lockMember, lockMemberNow, reap          string
	endHolds, endPartitions, end, tidy       string
	transfer                                 string
	membershipPartitions, membershipMembers  string
	membership                               string
}

func newHeartbeatStatements(n schema.Names) heartbeatStatements {
	return heartbeatStatements{
		join: n.SQL(joinSQL), renew: n.SQL(renewSQL), suspect: n.SQL(suspectSQL), routes: n.SQL(routesSQL), partitions: n.SQL(partitionsSQL),
		lockMember: n.SQL(lockMemberSQL), lockMemberNow: n.SQL(lockMemberSQL + " NOWAIT"), reap: n.SQL(reapSQL),
		endHolds: n.SQL(endHoldsSQL), endPartitions: n.SQL(endPartitionsSQL), end: n.SQL(endSQL), tidy: n.SQL(tidySQL),
		transfer:             n.SQL(transferSQL),
		membershipPartitions: n.SQL(membershipPartitionsSQL), membershipMembers: n.SQL(membershipMembersSQL), membership: n.SQL(membershipSQL),
	}
}

// presenceLostSQL is whether no connection has the lock of a token. It does not wait: all that ask share the lock for
// an instant. To look it up in pg_locks would take every partition of the server's lock table. A server that was
// started after the member's latest renewal has lost all locks, and cannot tell.
const presenceLostSQL = `CASE WHEN presence <> 0 AND renewed_at >= pg_postmaster_start_time()
        THEN pg_try_advisory_xact_lock_shared(presence) ELSE false END`

const (
	joinSQL = `
INSERT INTO {members} AS m (session, heartbeats, lease, presence, capacity, free_capacity, name, routes, partitions, unavailable,
    handed_out, oldest_handed_out)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (session) DO UPDATE SET heartbeats = excluded.heartbeats, lease = excluded.lease, presence = excluded.presence,
    capacity = excluded.capacity, free_capacity = excluded.free_capacity, name = excluded.name,
    routes = excluded.routes, partitions = excluded.partitions, unavailable = excluded.unavailable, renewed_at = clock_timestamp(),
    handed_out = excluded.handed_out, oldest_handed_out = excluded.oldest_handed_out,
    suspected = m.suspected AND excluded.presence = m.presence
WHERE m.heartbeats < excluded.heartbeats`

	// A renewal that comes late changes nothing, and neither does a call that only reads: its number of heartbeats
	// is that of the latest renewal.
	renewSQL = `
UPDATE {members} m SET heartbeats = $2, lease = $3, presence = $4::bigint, capacity = $5, free_capacity = $6, name = $7,
    routes = $8, partitions = $9, unavailable = $10, handed_out = $11, oldest_handed_out = $12,
    renewed_at = clock_timestamp(), suspected = m.suspected AND $4::bigint = m.presence
WHERE m.session = $1 AND m.heartbeats < $2`

	suspectSQL = `
UPDATE {members} m SET suspected = true
FROM (
    SELECT f.session FROM unnest($2::bigint[], $3::bigint[]) AS x(session, presence) JOIN {members} f ON f.session = x.session
    WHERE f.presence = x.presence AND f.presence <> 0 AND ` + aliveSQL + ` ORDER BY f.session FOR NO KEY UPDATE OF f SKIP LOCKED
) f
WHERE m.session = f.session`

	routesSQL = `
INSERT INTO {routes} (route) SELECT DISTINCT x.route FROM unnest($2::text[]) AS x(route)
WHERE ` + aliveSQL + ` AND NOT EXISTS (SELECT FROM {routes} r WHERE r.route = x.route) ORDER BY x.route
ON CONFLICT DO NOTHING`

	// partitionsSQL makes the partitions of routes that have none, as core.SplitPartitions does, under the lock of
	// the route's row: of two members that do so one is first.
	partitionsSQL = `
WITH n AS MATERIALIZED (
    SELECT r.* FROM {routes} r WHERE r.route = ANY ($2::text[]) AND r.partitions = 0 AND ` + aliveSQL + ` ORDER BY r.route FOR UPDATE
), x AS MATERIALIZED (
    SELECT n.route, n.read_after, n.uncertain_up_to, n.term + 1 AS term, s.partitions, i * 64 / s.partitions AS from_slot, (i + 1) * 64 / s.partitions AS to_slot
    FROM n CROSS JOIN LATERAL (
        SELECT max(s.partitions) AS partitions FROM unnest($2::text[], $3::smallint[]) AS s(route, partitions) WHERE s.route = n.route
    ) s, generate_series(0, s.partitions - 1) i
), i AS (
    INSERT INTO {partitions} (route, from_slot, to_slot, slots, read_after, uncertain_up_to, term)
    SELECT x.route, x.from_slot, x.to_slot,
        (-1::bigint << x.from_slot::int) & ~CASE x.to_slot WHEN 64 THEN 0 ELSE -1::bigint << x.to_slot::int END,
        x.read_after, x.uncertain_up_to, x.term
    FROM x
)
UPDATE {routes} r SET partitions = x.partitions, read_after = 0 FROM x WHERE r.route = x.route`

	// A member's own transactions lock its row FOR KEY SHARE; see fenceSQL.
	lockMemberSQL = `SELECT 1 FROM {members} WHERE session = $1 FOR UPDATE`

	// reapSQL ends transactions that lock members' rows and wait for a client that sends nothing: a process that
	// was frozen, or cut off, while it sent a batch. No timeout of the server ends these before version 17.
	reapSQL = `
SELECT pg_terminate_backend(a.pid)
FROM (
    SELECT DISTINCT l.pid FROM pg_locks l
    WHERE l.relation = {members_text}::regclass AND l.mode = 'RowShareLock' AND l.granted
) l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid() AND a.wait_event_type = 'Client'
    AND a.state_change < clock_timestamp() - interval '1 second'`

	// endedSQL is whether the session leaves ($3 = 0), or may be removed.
	endedSQL = `($3::int = 0 OR NOT EXISTS (SELECT FROM {members} me WHERE me.session = $1 AND me.heartbeats <> $2))`

	endHoldsSQL = `
UPDATE {outbox} r
SET hold = 0, held_since = NULL, maybe_sent = true, crashes = r.crashes + $3::int, version = r.version + $3::int
FROM (
    SELECT h.route, h.seq FROM {outbox} h WHERE h.hold = $1 AND h.hold <> 0 AND ` + endedSQL + `
    FOR NO KEY UPDATE SKIP LOCKED
) h
WHERE r.route = h.route AND r.seq = h.seq`

	endPartitionsSQL = `
UPDATE {partitions} u
SET owner = 0, term = u.term + 1, uncertain_up_to = CASE WHEN $3::int = 0 THEN u.uncertain_up_to ELSE greatest(u.uncertain_up_to, {last}) END
FROM (
    SELECT o.route, o.from_slot FROM {partitions} o WHERE o.owner = $1 AND o.owner <> 0 AND ` + endedSQL + `
    ORDER BY o.route, o.from_slot FOR NO KEY UPDATE
) o
WHERE u.route = o.route AND u.from_slot = o.from_slot`

	endSQL = `DELETE FROM {members} m WHERE m.session = $1 AND ($3::int = 0 OR m.heartbeats = $2)`

	// tidySQL removes the partitions of routes that no member serves. It keeps the hints for their next owners in
	// the route.
	tidySQL = `
WITH n AS MATERIALIZED (
    SELECT r.route FROM {routes} r
    WHERE r.partitions > 0 AND NOT EXISTS (SELECT FROM {members} m WHERE r.route = ANY (m.routes))
      AND NOT EXISTS (SELECT FROM {partitions} u WHERE u.route = r.route AND u.owner <> 0)
    ORDER BY r.route FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM {partitions} u USING n WHERE u.route = n.route RETURNING u.route, u.read_after, u.uncertain_up_to, u.term
)
UPDATE {routes} r SET partitions = 0, read_after = d.read_after, uncertain_up_to = d.uncertain_up_to, term = d.term
FROM (SELECT d.route, min(d.read_after) AS read_after, max(d.uncertain_up_to) AS uncertain_up_to, max(d.term) AS term FROM d GROUP BY d.route) d
WHERE r.route = d.route`

	// transferSQL makes a transfer. A partition of another live member moves only while no statement of that member
	// is under way; else the transfer is skipped. So are hints that a member stores late, for a partition of
	// another, or for another life of the database.
	transferSQL = `
WITH o AS MATERIALIZED (
    SELECT FROM {members} m WHERE m.session = $5 AND $5::bigint NOT IN (0, $1::bigint) FOR UPDATE SKIP LOCKED
), l AS MATERIALIZED (
    SELECT FROM {partitions} u
    WHERE u.route = $2 AND u.from_slot = $3 AND u.to_slot = $4 AND u.owner = $5 AND ` + aliveSQL + `
      AND ($6::bigint = 0 OR EXISTS (SELECT FROM {members} m WHERE m.session = $6))
      AND ($6 <> $5 OR $6 = $1::bigint AND EXISTS (SELECT FROM {members} m WHERE m.session = $1 AND m.heartbeats <= $9) AND $10::text` + sameLifeSQL + `)
      AND ($5 IN (0, $1::bigint) OR EXISTS (SELECT FROM o) OR NOT EXISTS (SELECT FROM {members} m WHERE m.session = $5))
    FOR NO KEY UPDATE
)
UPDATE {partitions} u
SET owner = $6, term = u.term + ($6 <> $5)::int,
    read_after = CASE WHEN $6 = $5 THEN $7::bigint ELSE u.read_after END, uncertain_up_to = CASE WHEN $6 = $5 THEN $8::bigint ELSE u.uncertain_up_to END
FROM l WHERE u.route = $2 AND u.from_slot = $3 AND u.owner = $5`

	membershipPartitionsSQL = `SELECT route, from_slot, to_slot, owner, term, read_after, uncertain_up_to FROM {partitions} ORDER BY route, from_slot`

	membershipMembersSQL = `
SELECT session, name, heartbeats, lease, capacity, free_capacity, presence,
    ` + presenceLostSQL + `, suspected, routes, partitions, handed_out, oldest_handed_out, unavailable FROM {members} ORDER BY session`

	// The last columns of membershipSQL are those of a look of Wait. Two before them are for the floor of the
	// notices, which is $3, and no more than $2.
	membershipSQL = `
SELECT ` + epochSQL + `, coalesce((SELECT true FROM {notices} c WHERE c.route = ANY ($1::text[]) AND c.number > $2 ORDER BY c.number LIMIT 1), false),
    coalesce((SELECT c.number FROM {notices} c WHERE c.number > $3 ORDER BY c.number LIMIT 1), 0),
    coalesce(pg_current_xact_id_if_assigned()::text::bigint, 0), ` + listen.DrawnSQL
)
