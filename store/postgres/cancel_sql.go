package postgres

import "github.com/waybill-go/waybill"

// What Cancel, and messages that replace others, have in common. A record o can be cancelled unless it is in flight:
// without a hold, a record that waits for a time, one that was staged as cancellable and is therefore held before it
// is handed out, and one that the transaction has staged itself; besides, a record that has crashed, which is held
// first, too, and one that a takeover has not passed yet.
const (
	// liveHoldSQL is whether a member holds record o.
	liveHoldSQL = `(o.hold <> 0 AND EXISTS (SELECT FROM {members} me WHERE me.session = o.hold))`

	// carefulSQL is whether a member that died may have handed out record o.
	carefulSQL = `((o.due_at IS NULL OR o.retry) AND o.seq <= coalesce(
        (SELECT un.uncertain_up_to FROM {partitions} un WHERE un.route = o.route AND un.from_slot <= o.slot AND un.to_slot > o.slot LIMIT 1),
        (SELECT ro.uncertain_up_to FROM {routes} ro WHERE ro.route = o.route), 0))`

	// ownRowSQL is whether this transaction staged record o, outside of savepoints. One that it has only changed,
	// as a message does that was to replace one in flight, is held, or has another version since then.
	ownRowSQL = `(o.version = 1 AND o.hold = 0
        AND o.xmin = (pg_current_xact_id_if_assigned()::text::bigint & 4294967295)::text::xid)`

	// statusSQL is the waybill.CancelStatus of record o.
	statusSQL = `CASE WHEN ` + ownRowSQL + ` THEN {done}
        WHEN ` + liveHoldSQL + ` THEN {in_flight}
        WHEN ` + carefulSQL + ` THEN {maybe}
        WHEN o.due_at IS NULL AND NOT o.cancellable AND o.crashes = 0 THEN {in_flight}
        WHEN o.maybe_sent OR o.crashes > 0 OR o.hold <> 0 THEN {maybe}
        ELSE {done} END`

	// foundSQL are the columns of record o that lockFoundSQL and cancelRecordsSQL go by.
	foundSQL = `o.route, o.seq, o.id, o.version, o.hold, o.slot, o.key, o.key <> '' AND (o.due_at IS NULL OR o.retry) AS tell`

	// lockFoundSQL locks those of f that are still as they were found. A record that changed hands meanwhile is
	// left out: then the snapshot of this statement is too old to judge it.
	lockFoundSQL = `CROSS JOIN LATERAL (
        SELECT FROM {outbox} o
        WHERE o.route = f.route AND o.seq = f.seq AND o.version = f.version AND o.hold = f.hold AND o.settled_at IS NULL
        FOR UPDATE
    ) o`
)

// cancelRecordsSQL takes the records of t away, and tells the owners of their keys.
func cancelRecordsSQL(reason waybill.Reason, keep bool) string {
	x := `DELETE FROM {outbox} o USING t`
	if keep {
		x = `UPDATE {outbox} o
    SET state = {abandoned}, reason = {` + string(reason) + `}, due_at = NULL, retry = false, hold = 0, held_since = NULL,
        settled_at = clock_timestamp(), version = o.version + 1 FROM t`
	}
	return `x AS (
    ` + x + ` WHERE o.route = t.route AND o.seq = t.seq RETURNING 1
), c AS (
    INSERT INTO {notices} (kind, route, slot, slots, key, id, seq)
    SELECT {tell_key}, t.route, t.slot, 1::bigint << t.slot::int, t.key, t.id, t.seq FROM t WHERE t.tell
)`
}

// lookedUpSQL are the columns of a record o that the above needs.
const lookedUpSQL = `o.route, o.seq, o.id, o.version, o.hold, o.slot, o.key, o.due_at, o.retry, o.cancellable, o.maybe_sent,
    o.crashes, o.xmin`

// byIDSQL is the live record of a route and an id, if it is in an index of ids.
const byIDSQL = `(
        (SELECT ` + lookedUpSQL + ` FROM {outbox} o
         WHERE o.route = k.route AND o.id = k.id AND o.own_id AND o.settled_at IS NULL LIMIT 1)
        UNION ALL
        (SELECT ` + lookedUpSQL + ` FROM {outbox} o
         WHERE o.route = k.route AND o.id = k.id AND ` + inFoundSQL + ` AND o.settled_at IS NULL LIMIT 1)
        LIMIT 1
    )`

// inFoundSQL is the predicate of the index of ids that Waybill made.
const inFoundSQL = `NOT o.own_id AND (o.cancellable OR o.hold <> 0 OR coalesce(o.due_at, o.settled_at) IS NOT NULL)`
