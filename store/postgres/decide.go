package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// DecideHead changes a key's head in one transaction, if that head cannot be out. If it can, since it is due and its
// partition has an owner, the transaction leaves a notice instead, and DecideHead waits for the owner. Locks keep the
// answer true until the commit: that of the row, and that of the partition, which no member takes or leaves meanwhile.

// headSQL is the message $2 of key $3, if it waits, is abandoned, is held, or is the first of its key that is due.
const headSQL = `(
        SELECT o.* FROM {outbox} o WHERE o.route = $1 AND o.id = $2 AND o.key = $3 AND o.own_id
        UNION ALL
        SELECT o.* FROM {outbox} o WHERE o.route = $1 AND o.id = $2 AND o.key = $3 AND ` + inFoundSQL + `
        UNION ALL
        SELECT o.* FROM (
            SELECT o.* FROM {outbox} o
            WHERE o.route = $1 AND o.key = $3 AND o.key <> '' AND o.due_at IS NULL AND o.settled_at IS NULL
            ORDER BY o.seq LIMIT 1
        ) o WHERE o.id = $2 AND NOT o.own_id AND NOT (o.cancellable OR o.hold <> 0)
    )`

const (
	// lockHeadSQL waits for the transaction that is about to change the row, so that decideSQL sees the changed
	// row: a statement does not see commits after it began.
	lockHeadSQL = `SELECT FROM {outbox} o JOIN ` + headSQL + ` h ON h.seq = o.seq WHERE o.route = $1 FOR NO KEY UPDATE OF o`

	// These keep the row's partition, or that there is none, as it is until the transaction ends: no member takes
	// it meanwhile. A transaction that has locked these rows waits for no record.
	keepUnservedSQL = `
INSERT INTO {routes} (route) SELECT $1::text FROM ` + headSQL + ` h WHERE NOT EXISTS (SELECT FROM {routes} ro WHERE ro.route = $1)
ON CONFLICT DO NOTHING`
	keepRouteSQL     = `SELECT FROM {routes} ro WHERE ro.route = $1 FOR SHARE`
	keepPartitionSQL = `SELECT FROM {partitions} un, ` + headSQL + ` h WHERE un.route = $1 AND (un.slots >> h.slot::int) & '1' = 1 FOR SHARE OF un`
)

// decideSQL changes the row if it is the head of its key, or tells its owner to, and returns the state that it found.
//
//	h  the row. It is the head if nothing before it waits; an abandoned one before it does not count if it waits
//	   for a retry: the route may go on after those. It is due if it is the first that is, and nothing holds the
//	   key
//	u  the change: a row that is due may be out at the owner of its partition
//	d  what was decided about it before is void
//	c  what the key's owner is told
func decideSQL(requeue bool) string {
	set, can := `
    state = {abandoned}, reason = $4::text, due_at = NULL, retry = false, blocks = false, settled_at = statement_timestamp(),
    hold = 0, held_since = NULL, version = o.version + 1, maybe_sent = o.maybe_sent OR o.hold <> 0 OR `+carefulSQL,
		`(h.head OR h.due AND NOT h.owned)`
	if requeue {
		set, can = requeueSQL, `h.head AND h.expired IS NULL AND NOT h.duplicate AND $4::text = ''`
	}
	return `
WITH h AS MATERIALIZED (
    SELECT e.seq, e.slot, ` + heldWaits + ` AS held,
        CASE WHEN e.expires_at <= statement_timestamp() THEN greatest(e.expires_at, 'epoch') END AS expired,
        e.dedupe_key <> '' AND e.settled_at IS NOT NULL AND EXISTS (SELECT FROM {outbox} d WHERE d.route = e.route AND d.topic = e.topic
            AND d.dedupe_key = e.dedupe_key AND d.dedupe_key <> '' AND d.settled_at IS NULL) AS duplicate,
        (` + retryWaits + ` OR ` + abandonedWaits + `) IS TRUE
        AND NOT EXISTS (SELECT FROM {outbox} e WHERE e.route = $1 AND e.key = $3 AND e.seq < h.seq AND ` + retryWaits + `)
        AND (h.settled_at IS NULL
            OR NOT EXISTS (SELECT FROM {outbox} e WHERE e.route = $1 AND e.key = $3 AND e.seq < h.seq AND ` + abandonedWaits + `)) AS head,
        h.due_at IS NULL AND h.settled_at IS NULL
        AND NOT EXISTS (SELECT FROM {outbox} e
            WHERE e.route = $1 AND e.key = $3 AND e.key <> '' AND e.due_at IS NULL AND e.settled_at IS NULL AND e.seq < h.seq)
        AND NOT EXISTS (SELECT FROM {outbox} e
            WHERE e.route = $1 AND e.key = $3 AND e.key <> '' AND (e.retry OR e.hold <> 0) AND (e.retry OR ` + heldWaits + `)) AS due,
        EXISTS (SELECT FROM {partitions} un WHERE un.route = $1 AND (un.slots >> e.slot::int) & '1' = 1 AND un.owner <> 0) AS owned
    FROM ` + headSQL + ` h CROSS JOIN LATERAL (SELECT h.*) e
), u AS (
    UPDATE {outbox} o SET` + set + ` FROM h WHERE o.route = $1 AND o.seq = h.seq AND NOT h.held AND ` + can + ` RETURNING o.route, o.seq, o.id
), d AS (
    ` + undecideSQL + `
), c AS (
    INSERT INTO {notices} (kind, route, slot, slots, key, id, seq, reason)
    SELECT CASE WHEN u.seq IS NULL THEN {tell_decide} ELSE {tell_key} END, $1, h.slot, 1::bigint << h.slot::int, $3, $2, h.seq,
        CASE WHEN u.seq IS NULL THEN $4::text ELSE '' END
    FROM h LEFT JOIN u ON true WHERE u.seq IS NOT NULL OR h.due AND h.owned AND NOT h.held AND $4::text <> ''
    RETURNING number, kind, route
)
SELECT h.held, h.head, h.expired, h.duplicate, EXISTS (SELECT FROM u),
    coalesce((SELECT c.number FROM c WHERE c.kind = {tell_decide}), 0), h.seq,
    (SELECT count(pg_notify({channel}, c.route)) FROM c WHERE $5::boolean) FROM h`
}

type decideStatements struct {
	lockHead, keepUnserved, keepRoute, keepPartition string
	end, requeue                                     string
}

func newDecideStatements(n schema.Names) decideStatements {
	return decideStatements{
		lockHead: n.SQL(lockHeadSQL), keepUnserved: n.SQL(keepUnservedSQL), keepRoute: n.SQL(keepRouteSQL), keepPartition: n.SQL(keepPartitionSQL),
		end: n.SQL(decideSQL(false)), requeue: n.SQL(decideSQL(true)),
	}
}

const decideOp = "waybill/postgres: decide head"

// DecideHead skips, sets aside or requeues the head of a blocked key; see [admin.BlockedKeys]. It compares and sets:
// either a relay has the head at that moment, or the decision holds. It waits for a transaction that cancels the head,
// for at most two seconds.
//
// The first message of a key that is due can be skipped and set aside too. If a relay owns the key, that relay does it
// as soon as it is not sending the message. DecideHead waits for it, for at most ten seconds; then its error says that
// the decision stands.
func (o *Outbox) DecideHead(ctx context.Context, route, key, id string, action admin.HeadAction) error {
	if err := admin.CheckDecide(route, key, id, action); err != nil {
		return err
	}
	told := core.Notice{Kind: core.NoticeDecide, Route: route, Key: key, ID: id}
	told.Reason = map[admin.HeadAction]waybill.Reason{
		admin.HeadSkip: waybill.ReasonSkipped, admin.HeadSetAside: waybill.ReasonSetAside,
	}[action]
	decide := o.sql.decide.end
	if action == admin.HeadRequeue {
		decide = o.sql.decide.requeue
	}
	var held, head, duplicate, done bool
	var expired *time.Time
	err := o.again(func() error {
		return o.transact(ctx, "decide head", writeSQL, func(b *batch) {
			held, head, duplicate, done, expired, told.Number = false, false, false, false, nil, 0
			// 1. A transaction that changes the head ends first.
			b.Queue(b.sql.decide.lockHead, route, id, key)
			// 2. The owner of the head's partition, or that there is none, stays until the commit.
			if told.Reason != waybill.ReasonNone {
				b.Queue(b.sql.decide.keepUnserved, route, id, key)
				b.Queue(b.sql.decide.keepRoute, route)
				b.Queue(b.sql.decide.keepPartition, route, id, key)
			}
			// 3. The row is changed, or a notice tells the owner to.
			b.each(func(rows pgx.Rows) error {
				return rows.Scan(&held, &head, &expired, &duplicate, &done, &told.Number, &told.Seq, nil)
			}, decide, route, id, key, string(told.Reason), !o.opts.DisableNotify)
		})
	})
	switch {
	case err != nil:
		return err
	case done:
		o.waiter.Wake()
		return nil
	case held:
		return admin.HeadInFlight(decideOp, route, key, id)
	case told.Number != 0:
		o.waiter.Wake()
		return admin.AwaitHead(ctx, decideOp, o, &told)
	case head && expired != nil:
		return admin.HeadExpired(id, *expired)
	case head && duplicate:
		return admin.HeadDuplicate(id)
	}
	return admin.NotHead(decideOp, route, key, id)
}
