package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
)

var _ core.Redriver = (*Outbox)(nil)

// notBlocking are the reasons of abandoned rows that do not block their key; see core.Reason.Blocks.
const notBlocking = `('cancelled', 'replaced', 'skipped', 'parked')`

// requeueSQL puts a row back: due now, and holding back later ones of its key from now on. It becomes claimable by way
// of the index of timers, as a retry does: a claim promotes it, and then looks behind its position.
const requeueSQL = `
    state = 1, due_at = statement_timestamp(), holds = true, settled_at = NULL, lease_until = NULL, lease_token = 0, maybe_sent = o.maybe_sent OR o.crashes > 0,
    attempts = 0, crashes = 0, reason = '', last_error = '', last_error_at = NULL,
    expires_at = CASE WHEN o.expires_at <= statement_timestamp() THEN NULL ELSE o.expires_at END`

// notifySQL, with a condition behind it, wakes relays that sleep.
const notifySQL = `(SELECT count(pg_notify({channel}, x.route)) FROM (SELECT DISTINCT u.route FROM u) x WHERE `

// takesSQL are the rows that a redrive may select, $13: withdrawn ones too.
const takesSQL = `(o.state = 4 AND o.settled_at IS NULL AND o.lease_until IS NULL OR o.state = 5 AND ($13::boolean OR o.reason NOT IN ('cancelled', 'replaced')))`

// redriveSQL puts rows back that a walk finds. Unless it is a dry run it locks them in the order of sequences, and passes
// over those that somebody else holds at this moment.
//
//	l  the rows, as they are once they are locked, with why they are refused
//	v  the same; of several rows with one dedupe key only the first can live
//	u  the change
func redriveSQL(w walk, dry bool) string { //nolint:revive // a variant of one statement
	lock, u := `FOR UPDATE OF o SKIP LOCKED`, `UPDATE {outbox} o SET`+requeueSQL+` WHERE o.seq = ANY (ARRAY(SELECT v.seq FROM v WHERE v.cause = '')) AND `+takesSQL+` RETURNING o.seq, o.route`
	if dry {
		lock, u = ``, `SELECT v.seq, v.route FROM v WHERE false`
	}
	return w.sql(takesSQL+` AND `+matchSQL) + `, l AS MATERIALIZED (
    SELECT o.seq, o.route, o.topic, o.dedupe_key, CASE
        WHEN o.dedupe_key <> '' AND o.state = 5 AND EXISTS (SELECT FROM {outbox} d WHERE d.route = o.route AND d.topic = o.topic AND d.dedupe_key = o.dedupe_key
            AND d.dedupe_key <> '' AND d.settled_at IS NULL) THEN '` + core.RefusedDuplicate + `'
        WHEN $14::boolean THEN ''
        WHEN o.expires_at <= statement_timestamp() THEN '` + core.RefusedExpired + `'
        WHEN $15::bigint > 0 AND o.ready_since < statement_timestamp() - $15::bigint * interval '1 microsecond' THEN '` + core.RefusedHorizon + `'
        WHEN o.state = 5 AND o.key <> '' AND NOT ($16::boolean AND o.reason NOT IN ` + notBlocking + `)
            AND o.seq < (SELECT s.last_value FROM {outbox_sequence} s) THEN '` + core.RefusedOrder + `'
        ELSE '' END AS cause
    FROM {outbox} o WHERE o.seq = ANY (ARRAY(SELECT p.seq FROM p)) AND ` + takesSQL + `
    ORDER BY o.seq ` + lock + `
), v AS MATERIALIZED (
    SELECT l.seq, l.route, CASE WHEN l.cause = '' AND l.dedupe_key <> '' AND row_number() OVER (
        PARTITION BY l.cause, l.dedupe_key, l.topic, l.route ORDER BY l.seq) > 1 THEN '` + core.RefusedDuplicate + `' ELSE l.cause END AS cause FROM l
), u AS (` + u + `)
SELECT n.next, coalesce(v.cause, ''), count(v.seq), ` + notifySQL + `$17::boolean)
FROM (SELECT ` + nextSQL + ` AS next) n LEFT JOIN v ON true GROUP BY 1, 2`
}

// Redrive puts failed and abandoned records back, in one bounded step; see [core.Redriver]. It finds them as List does.
// It never touches what a relay holds, and passes over rows that another transaction has locked at this moment: run it
// again. Relays that sleep are woken, unless Options.NotifyOff.
func (o *Outbox) Redrive(ctx context.Context, req core.RedriveRequest) (core.Redriven, error) {
	req, err := core.CheckRedrive(req)
	if err != nil {
		return core.Redriven{}, err
	}
	if err := o.ready(ctx); err != nil {
		return core.Redriven{}, err
	}
	sql := o.names.sql(redriveSQL(walkOf(&req.Filter), req.DryRun))
	args := append(filterArgs(&req.Filter, req.Page), req.Takes(core.StateAbandoned, core.ReasonCancelled), req.Force, req.Horizon.Microseconds(),
		req.BlockAfterAbandon, !o.opts.NotifyOff && !req.DryRun)
	var out core.Redriven
	err = o.again(func() error {
		return o.transact(ctx, "redrive", func(b *pgx.Batch) {
			out = core.Redriven{}
			b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
				for rows.Next() {
					var cause string
					var n int
					if err := rows.Scan(&out.Next, &cause, &n, nil); err != nil {
						return err
					}
					for range n {
						out.Count(cause)
					}
				}
				return rows.Err()
			})
		})
	})
	if err == nil && out.Changed > 0 && !req.DryRun {
		o.stir()
	}
	return out, err
}

// again runs fn anew if a message was staged at the same moment with the dedupe key of one that is put back.
func (o *Outbox) again(fn func() error) error {
	for attempt := 1; ; attempt++ {
		err := fn()
		if sqlState(err) != "23505" || attempt == maxRestarts {
			return err
		}
	}
}

// stir makes this outbox's own relay look, also behind its position.
func (o *Outbox) stir() {
	o.claims.settled(nil, true)
	o.waiter.wake()
}
