package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

var _ admin.Explainer = (*Outbox)(nil)

// These find the hindrances of row $2 of route $1.
var (
	// aheadSQL finds the row that blocks the key $3, else the first one of it that is ready. With $4 an abandoned
	// one blocks it, too.
	aheadSQL = `
SELECT` + storedSQL + ` FROM (
    (SELECT 1 AS turn, e.seq FROM {outbox} e
     WHERE e.route = $1 AND e.key = $3 AND e.key <> '' AND (e.retry OR e.hold <> 0) AND e.seq <> $2 AND (e.retry OR ` + heldWaits + `)
     ORDER BY e.seq LIMIT 1)
    UNION ALL
    (SELECT 1, e.seq FROM {outbox} e WHERE $4 AND e.route = $1 AND e.key = $3 AND e.key <> '' AND e.seq <> $2 AND ` + abandonedWaits + `
     ORDER BY e.seq LIMIT 1)
    UNION ALL
    (SELECT 2, e.seq FROM {outbox} e WHERE e.route = $1 AND e.key = $3 AND ` + readyOfKey + ` AND e.seq < $2 ORDER BY e.seq LIMIT 1)
    ORDER BY turn, seq LIMIT 1
) w JOIN {outbox} o ON o.route = $1 AND o.seq = w.seq`

	// trialSQL finds the row that tries whether a queue is bound for the topic $3.
	trialSQL = `
WITH ` + unboundSQL("$4") + `
SELECT` + storedSQL + ` FROM unbound u JOIN {outbox} o ON o.route = $1 AND o.seq = u.seq
WHERE u.topic = $3 AND u.seq <> $2 LIMIT 1`

	// lockSQL finds the transaction that has changed or locked the row and is open. It asks the table of locks for
	// the id that the row has, and not for the row: no transaction waits for it, and nothing is locked. It does not
	// find transactions that share a lock.
	lockSQL = `
SELECT concat_ws(', ', 'process ' || l.pid::text, nullif(a.application_name, ''), 'of role ' || a.usename::text,
    'open for ' || date_trunc('second', statement_timestamp() - a.xact_start)::text)
FROM {outbox} o JOIN pg_catalog.pg_locks l ON l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.transactionid = o.xmax
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE o.route = $1 AND o.seq = $2`
)

// Hindrances returns the hindrances of a record, by index; see [admin.Explainer]. The process of a lock is named as far
// as the role may see it: its program and role always, since when it is open for members of pg_read_all_stats and of
// its own role.
func (o *Outbox) Hindrances(ctx context.Context, rec *admin.Stored, blockAfterAbandon bool) (in admin.Hindrances, err error) {
	err = o.transact(ctx, "hindrances", readSQL, func(b *batch) {
		in = admin.Hindrances{}
		one := func(to **admin.Stored) func(rows pgx.Rows) error {
			return func(rows pgx.Rows) error {
				st, err := scanStored(rows, nil, nil)
				*to = &st
				return err
			}
		}
		if key := rec.Envelope.Key; key != "" {
			b.each(one(&in.Ahead), b.sql.admin.ahead, rec.Route, rec.Seq, key, blockAfterAbandon)
		}
		b.each(one(&in.Trial), b.sql.admin.trial, rec.Route, rec.Seq, rec.Envelope.Topic, waybill.ErrUnroutable.Error())
		b.each(func(rows pgx.Rows) error {
			var name string
			err := rows.Scan(&name)
			in.Locked, in.LockedBy = true, append(in.LockedBy, name)
			return err
		}, b.sql.admin.lock, rec.Route, rec.Seq)
	})
	return in, err
}
