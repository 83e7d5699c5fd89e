-- statement
DELETE FROM waybill_outbox AS r WHERE r.seq IN (
		SELECT seq FROM waybill_outbox INDEXED BY waybill_outbox_settled
		WHERE CASE WHEN reason IS NULL THEN 0 WHEN reason IN ('cancelled', 'replaced') THEN 2 ELSE 1 END = ?1
		AND settled_at IS NOT NULL AND settled_at <= ?2 AND state = ?3 ORDER BY settled_at LIMIT ?4) RETURNING seq, route, id, version, coalesce(slot, -1), key, state, hold, coalesce(due_at, 0), due_at IS NOT NULL,
		blocks, cancellable,
		maybe_sent, attempts, deliveries, crashes, coalesce(reason, '')

-- statement
DELETE FROM waybill_outbox WHERE seq = ?1

-- statement
DELETE FROM waybill_outbox WHERE settled_at IS NULL AND seq IN (
		SELECT r.seq
			FROM json_each(?1) j CROSS JOIN waybill_outbox r
			WHERE r.seq = j.value->>0 AND r.id = j.value->>1 AND r.route = j.value->>2)
		RETURNING seq, id

-- statement
DELETE FROM waybill_outbox_members WHERE session = ?1

-- statement
DELETE FROM waybill_outbox_notices WHERE number = ?1

-- statement
DELETE FROM waybill_outbox_notices WHERE number = ?1 AND route = ?2 AND (kind <> 3 OR slots & ~?3 = 0)

-- statement
DELETE FROM waybill_outbox_partitions WHERE route = ?1

-- statement
DELETE FROM waybill_outbox_routes WHERE route = ?1 RETURNING read_after, uncertain_up_to, term

-- statement
INSERT INTO waybill_inbox (consumer, source, id, handled_at, content_hash) SELECT ?1, ?2, ?3, ?4, ?5 WHERE NOT EXISTS (SELECT name FROM pragma_database_list WHERE name NOT IN ('main', 'temp')) ON CONFLICT DO NOTHING

-- statement
INSERT INTO waybill_outbox (route, id, topic, key, slot, due_at, ready_since, hlc, attrs, body,
		expires_at, cancellable, dedupe_key)
		SELECT * FROM (VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)) WHERE NOT EXISTS (SELECT name FROM pragma_database_list WHERE name NOT IN ('main', 'temp')) ON CONFLICT (route, id) DO NOTHING RETURNING route, id

-- statement
INSERT INTO waybill_outbox_members (session, heartbeats, lease, presence, capacity, free_capacity, suspected, name, routes,
		joined_at, renewed_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10)
		ON CONFLICT (session) DO UPDATE
			SET heartbeats = ?2, lease = ?3, presence = ?4, capacity = ?5, free_capacity = ?6, suspected = ?7, name = ?8, routes = ?9,
				renewed_at = ?10

-- statement
INSERT INTO waybill_outbox_notices (kind, route, slot, key, id, seq) VALUES (?1, ?2, ?3, ?4, ?5, ?6)

-- statement
INSERT INTO waybill_outbox_notices (kind, route, slot, key, id, seq, reason)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
		RETURNING number

-- statement
INSERT INTO waybill_outbox_partitions (route, from_slot, to_slot, owner, term, read_after, uncertain_up_to) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
		ON CONFLICT (route, from_slot) DO UPDATE
			SET owner = excluded.owner, term = excluded.term, read_after = excluded.read_after, uncertain_up_to = excluded.uncertain_up_to

-- statement
INSERT OR REPLACE INTO waybill_outbox_routes (route, read_after, uncertain_up_to, term) VALUES (?1, ?2, ?3, ?4)

-- statement
SELECT (SELECT value FROM waybill_meta WHERE name = 'database'), (SELECT value FROM waybill_meta WHERE name = 'epoch')

-- statement
SELECT 1
		FROM waybill_outbox
		WHERE route = ?1 AND topic = ?2 AND dedupe_key = ?3 AND dedupe_key IS NOT NULL AND settled_at IS NULL

-- statement
SELECT 1 FROM waybill_outbox WHERE route = ?1 AND id = ?2

-- statement
SELECT 1 FROM waybill_outbox_notices LIMIT 1

-- statement
SELECT 1 FROM waybill_outbox_notices WHERE number = ?1

-- statement
SELECT 1, '', count(*), min(since), count(*) FILTER (WHERE due <= ?3), 0 FROM (SELECT ready_since AS since, due_at AS due
		FROM waybill_outbox INDEXED BY waybill_outbox_timer WHERE route = ?1 AND due_at IS NOT NULL AND state = 1 LIMIT ?2)

-- statement
SELECT 5, reason, count(*), min(since), 0, max(seq) FROM (SELECT coalesce(reason, '') AS reason, ready_since AS since, seq
		FROM waybill_outbox INDEXED BY waybill_outbox_abandoned WHERE route = ?1 AND state = 5 LIMIT ?2) GROUP BY reason

-- statement
SELECT CASE WHEN o.hold <> 0 AND (o.due_at IS NULL OR o.state = 4) THEN 2 ELSE o.state END, CASE WHEN o.state = 5 THEN coalesce(o.reason, '') ELSE '' END, count(*)
		FROM json_each(?2) w CROSS JOIN waybill_outbox o NOT INDEXED WHERE o.seq = w.value AND o.route = ?1 AND o.due_at IS NOT NULL AND o.state = 1 GROUP BY 1, 2

-- statement
SELECT CASE WHEN o.hold <> 0 AND (o.due_at IS NULL OR o.state = 4) THEN 2 ELSE o.state END, CASE WHEN o.state = 5 THEN coalesce(o.reason, '') ELSE '' END, count(*)
		FROM json_each(?2) w CROSS JOIN waybill_outbox o NOT INDEXED WHERE o.seq = w.value AND o.route = ?1 AND o.due_at IS NULL AND o.settled_at IS NULL GROUP BY 1, 2

-- statement
SELECT CASE WHEN o.hold <> 0 AND (o.due_at IS NULL OR o.state = 4) THEN 2 ELSE o.state END, CASE WHEN o.state = 5 THEN coalesce(o.reason, '') ELSE '' END, count(*)
		FROM json_each(?2) w CROSS JOIN waybill_outbox o NOT INDEXED WHERE o.seq = w.value AND o.route = ?1 AND o.state = 4 GROUP BY 1, 2

-- statement
SELECT CASE WHEN o.hold <> 0 AND (o.due_at IS NULL OR o.state = 4) THEN 2 ELSE o.state END, CASE WHEN o.state = 5 THEN coalesce(o.reason, '') ELSE '' END, count(*)
		FROM json_each(?2) w CROSS JOIN waybill_outbox o NOT INDEXED WHERE o.seq = w.value AND o.route = ?1 AND o.state = 5 GROUP BY 1, 2

-- statement
SELECT EXISTS (SELECT 1
			FROM waybill_outbox INDEXED BY waybill_outbox_ready
			WHERE route = ?1 AND due_at IS NULL AND settled_at IS NULL),
		(SELECT min(due_at)
			FROM waybill_outbox INDEXED BY waybill_outbox_timer
			WHERE route = ?1 AND due_at IS NOT NULL AND state = 1),
		(SELECT due_at
			FROM waybill_outbox INDEXED BY waybill_outbox_retry
			WHERE route = ?1 AND state = 4 AND hold = 0
			ORDER BY due_at LIMIT 1)

-- statement
SELECT EXISTS (SELECT 1
			FROM waybill_outbox INDEXED BY waybill_outbox_ready
			WHERE route = ?1 AND seq > ?2 AND due_at IS NULL AND settled_at IS NULL)
		OR EXISTS (SELECT 1 FROM waybill_outbox_notices INDEXED BY waybill_outbox_notices_route WHERE route = ?1 AND number > ?3)

-- statement
SELECT coalesce((SELECT max(seq) FROM sqlite_sequence WHERE name = 'waybill_outbox'), 0),
		coalesce((SELECT max(seq) FROM sqlite_sequence WHERE name = 'waybill_outbox_notices'), 0)

-- statement
SELECT coalesce((SELECT min(r.seq) FROM waybill_outbox r INDEXED BY waybill_outbox_waiting_key
			WHERE r.route = ?1 AND r.key = ?2 AND r.key <> '' AND (r.state = 4 OR r.hold <> 0) AND r.seq <> ?3 AND r.state = 4 AND r.hold = 0), 0),
		coalesce((SELECT min(r.seq) FROM waybill_outbox r INDEXED BY waybill_outbox_blocking_key
			WHERE r.route = ?1 AND r.key = ?2 AND r.blocks = 1 AND r.seq <> ?3), 0),
		coalesce((SELECT min(r.seq) FROM waybill_outbox r INDEXED BY waybill_outbox_waiting_key
			WHERE r.route = ?1 AND r.key = ?2 AND r.key <> '' AND (r.state = 4 OR r.hold <> 0) AND r.seq <> ?3 AND r.hold <> 0), 0),
		coalesce((SELECT min(r.seq) FROM waybill_outbox r INDEXED BY waybill_outbox_key WHERE r.route = ?1 AND r.key <> '' AND r.due_at IS NULL AND r.settled_at IS NULL AND r.key = ?2 AND r.seq <> ?3), 0)

-- statement
SELECT coalesce((SELECT min(seq) FROM waybill_outbox), 1) - 1, coalesce((SELECT max(seq) FROM waybill_outbox), 0)

-- statement
SELECT coalesce(max(hlc), 0) FROM (
		SELECT value AS hlc FROM waybill_meta WHERE name = 'hlc'
		UNION ALL SELECT hlc FROM (SELECT hlc FROM waybill_outbox ORDER BY seq DESC LIMIT 10000)) WHERE hlc BETWEEN 0 AND ?1

-- statement
SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'waybill_outbox'

-- statement
SELECT count(*) FROM (SELECT 1 FROM waybill_outbox r INDEXED BY waybill_outbox_key WHERE r.route = ?1 AND r.key <> '' AND r.due_at IS NULL AND r.settled_at IS NULL AND r.key = ?2 AND r.seq <> ?3 LIMIT ?4)

-- statement
SELECT id, CASE WHEN json_valid(attrs) THEN coalesce(attrs ->> '$.a.source' <> ?5, 0) ELSE 0 END
		FROM waybill_outbox
		WHERE route = ?1 AND topic = ?2 AND dedupe_key = ?3 AND dedupe_key IS NOT NULL AND settled_at IS NULL
			AND NOT EXISTS (SELECT 1 FROM waybill_outbox WHERE route = ?1 AND id = ?4)

-- statement
SELECT min(r.key) FROM waybill_outbox r INDEXED BY waybill_outbox_key WHERE r.route = ?1 AND r.key <> '' AND r.due_at IS NULL AND r.settled_at IS NULL AND r.key > ?2

-- statement
SELECT min(x) FROM (
			SELECT min(r.key) AS x
				FROM waybill_outbox r INDEXED BY waybill_outbox_waiting_key
				WHERE r.route = ?1 AND r.key > ?2 AND r.key <> '' AND (r.state = 4 OR r.hold <> 0)
			UNION ALL
			SELECT min(r.key)
				FROM waybill_outbox r INDEXED BY waybill_outbox_blocking_key
				WHERE r.route = ?1 AND r.key > ?2 AND r.blocks = 1)

-- statement
SELECT number, kind, route, slot, key, id, seq, reason FROM waybill_outbox_notices
		WHERE route = ?1 AND CASE WHEN kind = 3 THEN slots ELSE 1 << slot END & ?2 <> 0 ORDER BY number LIMIT ?3

-- statement
SELECT owner, term FROM waybill_outbox_partitions WHERE route = ?1 AND from_slot = ?2 AND to_slot = ?3

-- statement
SELECT owner, uncertain_up_to FROM waybill_outbox_partitions WHERE route = ?1 AND from_slot <= ?2 AND to_slot > ?2
		UNION ALL SELECT 0, uncertain_up_to FROM waybill_outbox_routes WHERE route = ?1 LIMIT 1

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes FROM json_each(?1) j CROSS JOIN waybill_outbox r WHERE r.seq = j.value

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes FROM waybill_outbox r INDEXED BY waybill_outbox_blocking
		WHERE r.route = ?1 AND r.seq > ?3 AND r.blocks = 1 AND ((?2 >> r.slot) & 1 = 1 OR r.slot IS NULL) ORDER BY r.seq

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes FROM waybill_outbox r INDEXED BY waybill_outbox_blocking_key
		WHERE r.route = ?1 AND r.key = ?2 AND r.blocks = 1 ORDER BY r.seq

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes FROM waybill_outbox r INDEXED BY waybill_outbox_expires
		WHERE r.expires_at IS NOT NULL AND r.settled_at IS NULL AND r.expires_at <= ?1 AND r.hold = 0
		AND (r.due_at IS NOT NULL
			OR NOT EXISTS (SELECT 1 FROM waybill_outbox_partitions u WHERE u.route = r.route AND u.owner <> 0
				AND (r.slot IS NULL OR u.from_slot <= r.slot AND u.to_slot > r.slot)))
		ORDER BY r.expires_at LIMIT ?2

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes FROM waybill_outbox r INDEXED BY waybill_outbox_hold
		WHERE r.hold = ?1 AND r.hold <> 0 AND r.state = 4 AND r.due_at <= ?2

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes FROM waybill_outbox r INDEXED BY waybill_outbox_hold WHERE r.hold = ?1 AND r.hold <> 0 ORDER BY r.seq

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes FROM waybill_outbox r INDEXED BY waybill_outbox_retry
		WHERE r.route = ?1 AND r.state = 4 AND r.due_at <= ?3 AND r.hold = 0 AND ((?2 >> r.slot) & 1 = 1 OR r.slot IS NULL) ORDER BY r.due_at, r.seq

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes FROM waybill_outbox r INDEXED BY waybill_outbox_retry
		WHERE r.route = ?1 AND r.state = 4 AND r.due_at > ?3 AND r.hold = 0 AND ((?2 >> r.slot) & 1 = 1 OR r.slot IS NULL) ORDER BY r.due_at

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes FROM waybill_outbox r INDEXED BY waybill_outbox_timer
		WHERE r.route = ?1 AND r.due_at IS NOT NULL AND r.state = 1 AND r.due_at <= ?3 AND ((?2 >> r.slot) & 1 = 1 OR r.slot IS NULL) ORDER BY r.due_at, r.seq

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes FROM waybill_outbox r INDEXED BY waybill_outbox_timer
		WHERE r.route = ?1 AND r.due_at IS NOT NULL AND r.state = 1 AND r.due_at > ?3 AND ((?2 >> r.slot) & 1 = 1 OR r.slot IS NULL) ORDER BY r.due_at

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes FROM waybill_outbox r INDEXED BY waybill_outbox_waiting
		WHERE r.route = ?1 AND r.seq > ?3 AND (r.state = 4 OR r.hold <> 0) AND ((?2 >> r.slot) & 1 = 1 OR r.slot IS NULL) ORDER BY r.seq

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes FROM waybill_outbox r INDEXED BY waybill_outbox_waiting_key
		WHERE r.route = ?1 AND r.key = ?2 AND r.key <> '' AND (r.state = 4 OR r.hold <> 0) ORDER BY r.seq

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes, coalesce(length(r.body), 0) FROM waybill_outbox r INDEXED BY waybill_outbox_free
		WHERE r.route = ?1 AND r.key = '' AND r.hold = 0 AND r.due_at IS NULL AND r.settled_at IS NULL AND ((?2 >> r.slot) & 1 = 1 OR r.slot IS NULL) ORDER BY r.seq

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes, r.topic, coalesce(r.dedupe_key, '')
		FROM waybill_outbox r
		WHERE r.route = ?1 AND r.id = ?2 AND r.settled_at IS NULL

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes, r.topic, coalesce(r.dedupe_key, '') FROM waybill_outbox r
		WHERE r.route = ?1 AND r.topic = ?2 AND r.dedupe_key = ?3 AND r.dedupe_key IS NOT NULL AND r.settled_at IS NULL

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes, r.topic, r.hlc, r.expires_at, r.ready_since, r.attrs, r.body FROM json_each(?1) j CROSS JOIN waybill_outbox r WHERE r.seq = j.value

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes, r.topic, r.hlc, r.expires_at, r.ready_since, r.attrs, r.body FROM waybill_outbox r INDEXED BY waybill_outbox_key
		WHERE r.route = ?1 AND r.key = ?2 AND r.key <> '' AND r.seq > ?3 AND r.seq <= ?4 AND r.due_at IS NULL
			AND r.settled_at IS NULL
		ORDER BY r.seq

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes, r.topic, r.hlc, r.expires_at, r.ready_since, r.attrs, r.body FROM waybill_outbox r INDEXED BY waybill_outbox_ready
		WHERE r.route = ?1 AND r.seq > ?3 AND r.seq <= ?4 AND r.due_at IS NULL AND r.settled_at IS NULL
			AND ((?2 >> r.slot) & 1 = 1 OR r.slot IS NULL) AND (r.key <> '' OR NOT ?5)
		AND r.seq NOT IN (SELECT value FROM json_each(?6)) AND (r.key = '' OR r.key NOT IN (SELECT value FROM json_each(?7)))
		ORDER BY r.seq

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes, r.topic, r.hlc, r.settled_at, r.ready_since, coalesce(r.reason, ''), coalesce(r.error, ''),
		r.error_at, coalesce(r.dedupe_key, ''), r.attrs,
		coalesce((SELECT m.name FROM waybill_outbox_members m WHERE m.session = r.hold), ''),
		coalesce((SELECT m.renewed_at + m.lease FROM waybill_outbox_members m WHERE m.session = r.hold), 0)
		FROM waybill_outbox r INDEXED BY waybill_outbox_gone
		WHERE r.seq > ?1 AND r.state = 5
		ORDER BY r.seq LIMIT ?2

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes, r.topic, r.hlc, r.settled_at, r.ready_since, coalesce(r.reason, ''), coalesce(r.error, ''),
		r.error_at, coalesce(r.dedupe_key, ''), r.attrs,
		coalesce((SELECT m.name FROM waybill_outbox_members m WHERE m.session = r.hold), ''),
		coalesce((SELECT m.renewed_at + m.lease FROM waybill_outbox_members m WHERE m.session = r.hold), 0) FROM waybill_outbox r WHERE r.seq = ?1

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes, r.topic, r.hlc, r.settled_at, r.ready_since, coalesce(r.reason, ''), coalesce(r.error, ''),
		r.error_at, coalesce(r.dedupe_key, ''), r.attrs,
		coalesce((SELECT m.name FROM waybill_outbox_members m WHERE m.session = r.hold), ''),
		coalesce((SELECT m.renewed_at + m.lease FROM waybill_outbox_members m WHERE m.session = r.hold), 0) FROM waybill_outbox r WHERE r.seq > ?1 ORDER BY r.seq LIMIT ?2

-- statement
SELECT r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes, r.topic, r.hlc, r.settled_at, r.ready_since, coalesce(r.reason, ''), coalesce(r.error, ''),
		r.error_at, coalesce(r.dedupe_key, ''), r.attrs,
		coalesce((SELECT m.name FROM waybill_outbox_members m WHERE m.session = r.hold), ''),
		coalesce((SELECT m.renewed_at + m.lease FROM waybill_outbox_members m WHERE m.session = r.hold), 0), r.body FROM waybill_outbox r WHERE r.route = ?1 AND r.id = ?2

-- statement
SELECT r.seq, r.topic, coalesce(r.error, '')
		FROM waybill_outbox r INDEXED BY waybill_outbox_retry
		WHERE r.route = ?1 AND r.state = 4
		ORDER BY r.due_at LIMIT ?2

-- statement
SELECT read_after, uncertain_up_to, term FROM waybill_outbox_routes WHERE route = ?1

-- statement
SELECT route, from_slot, to_slot FROM waybill_outbox_partitions WHERE owner = ?1

-- statement
SELECT route, from_slot, to_slot, owner, term, read_after, uncertain_up_to FROM waybill_outbox_partitions ORDER BY route, from_slot

-- statement
SELECT route, retry, count(*), min(since) FROM (SELECT route, state = 4 AS retry, ready_since AS since
		FROM waybill_outbox INDEXED BY waybill_outbox_hold WHERE hold <> 0 LIMIT ?1) GROUP BY 1, 2

-- statement
SELECT session, name, heartbeats, lease, capacity, free_capacity, presence, suspected, routes FROM waybill_outbox_members ORDER BY session

-- statement
SELECT state, '', count(*), min(since), CASE WHEN state = 2 THEN 0 ELSE count(*) END, max(seq)
		FROM (SELECT CASE WHEN hold <> 0 THEN 2 ELSE state END AS state, ready_since AS since, seq
			FROM waybill_outbox INDEXED BY waybill_outbox_ready
			WHERE route = ?1 AND due_at IS NULL AND settled_at IS NULL
			LIMIT ?2)
		GROUP BY state

-- statement
SELECT state, '', count(*), min(since), count(*) FILTER (WHERE due <= ?3 AND state <> 2), 0
		FROM (SELECT CASE WHEN hold <> 0 THEN 2 ELSE state END AS state, ready_since AS since, due_at AS due
		FROM waybill_outbox INDEXED BY waybill_outbox_retry WHERE route = ?1 AND state = 4 LIMIT ?2) GROUP BY state

-- statement
SELECT suspected FROM waybill_outbox_members WHERE session = ?1

-- statement
UPDATE sqlite_sequence SET seq = ?1 WHERE name = 'waybill_outbox'

-- statement
UPDATE waybill_meta
		SET owner = ?1, value = ?2 + ?3
		WHERE name = 'cleaner' AND (owner = ?1 OR value NOT BETWEEN ?2 AND ?2 + ?4)

-- statement
UPDATE waybill_meta SET value = ?1 WHERE name = 'hlc' AND (value < ?1 OR value > ?2)

-- statement
UPDATE waybill_meta SET value = value WHERE name = 'version'

-- statement
UPDATE waybill_outbox
		SET hold = 0, held_since = NULL, maybe_sent = 1, crashes = crashes + ?2, version = version + ?2
		WHERE hold = ?1 AND hold <> 0

-- statement
UPDATE waybill_outbox
		SET state = 3, version = version + 1, due_at = NULL, settled_at = ?2, hold = 0, held_since = NULL WHERE settled_at IS NULL AND seq IN (
		SELECT r.seq
			FROM json_each(?1) j CROSS JOIN waybill_outbox r
			WHERE r.seq = j.value->>0 AND r.id = j.value->>1 AND r.route = j.value->>2)
		RETURNING seq, id

-- statement
UPDATE waybill_outbox
		SET state = 5, due_at = NULL, version = version + 1, reason = ?2, settled_at = ?3, blocks = ?4, maybe_sent = ?5
		WHERE seq = ?1

-- statement
UPDATE waybill_outbox
		SET state = ?3, version = ?4, blocks = ?5, maybe_sent = ?6, attempts = ?7, crashes = ?8, deliveries = ?9, reason = ?10,
		due_at = NULL, settled_at = NULL, error = NULL, error_at = NULL,
		expires_at = CASE WHEN expires_at > ?2 THEN expires_at END,
		attrs = CASE WHEN expires_at <= ?2 AND json_valid(attrs) THEN json_remove(attrs, '$.a.expirytime') ELSE attrs END
		WHERE seq = ?1 AND hold = 0

-- statement
UPDATE waybill_outbox
		SET state = j.state, version = j.version, due_at = j.due, settled_at = j.settled, hold = 0, held_since = NULL,
			attempts = j.attempts, crashes = j.crashes, reason = j.reason, blocks = j.blocks, maybe_sent = j.maybe,
			error = coalesce(j.error, waybill_outbox.error), error_at = CASE WHEN j.error IS NULL THEN error_at ELSE ?2 END
		FROM (SELECT value->>0 AS seq, value->>1 AS state, value->>2 AS version, value->>3 AS due, value->>4 AS settled, value->>5 AS attempts,
			value->>6 AS crashes, value->>7 AS reason, value->>8 AS blocks, value->>9 AS maybe, value->>10 AS error FROM json_each(?1)) j
		WHERE waybill_outbox.seq = j.seq

-- statement
UPDATE waybill_outbox SET dedupe_key = NULL WHERE seq = ?1

-- statement
UPDATE waybill_outbox SET hold = 0, held_since = NULL WHERE seq IN (SELECT value FROM json_each(?1))

-- statement
UPDATE waybill_outbox SET hold = ?2, held_since = ?3, deliveries = deliveries + ?4 WHERE seq IN (SELECT value FROM json_each(?1))

-- statement
UPDATE waybill_outbox SET seq = ?2, due_at = NULL, version = version + 1 WHERE seq = ?1

-- statement
UPDATE waybill_outbox_members SET suspected = 1 WHERE session = ?1

-- statement
UPDATE waybill_outbox_notices SET slots = slots & ~?3 WHERE number = ?1 AND route = ?2 AND kind = 3

-- statement
UPDATE waybill_outbox_partitions SET owner = 0, term = term + 1, read_after = iif(?4, ?3, read_after) WHERE route = ?1 AND from_slot = ?2

-- statement
WITH RECURSIVE n(route) AS (
			SELECT min(route) FROM waybill_outbox INDEXED BY waybill_outbox_id
			UNION ALL
				SELECT (SELECT min(r.route) FROM waybill_outbox r INDEXED BY waybill_outbox_id WHERE r.route > n.route)
				FROM n
				WHERE n.route IS NOT NULL)
		SELECT route FROM n WHERE route IS NOT NULL LIMIT 10000

