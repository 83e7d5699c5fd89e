package waybillmysql

// Answers why a record waits. InnoDB shows no locks of rows on MariaDB, so the store tries the lock for one statement,
// and names the transactions that can have it.

import (
	"context"
	"database/sql"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

const (
	trialsSQL = lightAside + `(waybill_outbox_line) WHERE route = ? AND state = 4 ORDER BY due_at LIMIT ?` + endAsideSQL + `ORDER BY due_at, seq`

	// headsSQL selects the heads of a key but one record, as rules.KeyHeads has them.
	headsSQL = `SELECT COALESCE(MIN(CASE WHEN state = 4 AND hold = 0 THEN seq END), 0),
		COALESCE(MIN(CASE WHEN state = 5 AND flags & 1 = 1 THEN seq END), 0),
		COALESCE(MIN(CASE WHEN state IN (1, 4) AND hold <> 0 THEN seq END), 0)
		FROM waybill_outbox_aside FORCE INDEX (waybill_outbox_waits)
		WHERE route = ? AND k = ? AND seq <> ?`
	readySQL = `SELECT seq FROM waybill_outbox FORCE INDEX (waybill_outbox_key)
		WHERE route = ? AND k = ? AND state = 1 AND due_at = 0 AND seq <> ? ORDER BY seq LIMIT 1`

	// lockersSQL selects the open transactions that have locked rows, the oldest first. A role needs PROCESS to see
	// them.
	lockersSQL = `SELECT CONCAT_WS(', ', CONCAT('process ', t.trx_mysql_thread_id), CONCAT('of user ', p.USER),
			CONCAT('open for ', TIMESTAMPDIFF(SECOND, t.trx_started, NOW()), 's'))
		FROM information_schema.INNODB_TRX t LEFT JOIN information_schema.PROCESSLIST p ON p.ID = t.trx_mysql_thread_id
		WHERE t.trx_rows_locked > 0 AND t.trx_mysql_thread_id <> CONNECTION_ID() ORDER BY t.trx_started, t.trx_id`
)

// Hindrances returns the reasons why a record is not handed out, by index; see [admin.Explainer]. A lock is found by
// trying it for one statement. If several open transactions have locked rows, "one of" them has it. Without the
// privilege PROCESS none is named.
func (s *Store) Hindrances(ctx context.Context, rec *admin.Stored, blockAfterAbandon bool) (in admin.Hindrances, err error) {
	err = s.read(ctx, "hindrances", func(w *work) error {
		members, err := w.bySession(ctx)
		if err == nil {
			in, err = rules.Hindrances(ctx, &heads{w, members}, rec, blockAfterAbandon)
		}
		return err
	})
	if err != nil {
		return in, err
	}
	w := &work{s: s, q: s.own} // the lock ends with its statement
	_, busy, err := w.lock(ctx, []int64{rec.Seq})
	if err != nil {
		return in, classify("hindrances", err)
	}
	if r := busy[rec.Seq]; r != nil && r.ID == rec.Envelope.ID && r.Route == rec.Route {
		in.Locked = true
		in.LockedBy, err = w.lockers(ctx)
	}
	return in, classify("hindrances", err)
}

// lockers names the transactions that can have locked a record.
func (w *work) lockers(ctx context.Context) ([]string, error) {
	out, err := collect(ctx, w.q, value[string], lockersSQL)
	if err != nil && kindOf(err) == kindMisconfigured { // the role has not the privilege
		return nil, nil
	}
	if len(out) > 1 {
		out[0] = "one of " + out[0]
	}
	return out, err
}

// heads is a work for the rules of hindrances.
type heads struct {
	*work
	members map[core.Session]holder
}

func (h *heads) Retries(ctx context.Context, route string, limit int, fn func(seq int64, topic, lastError string)) error {
	rows, err := h.rows(ctx, trialsSQL, route, limit)
	for _, r := range rows {
		fn(r.Seq, r.Envelope.Topic, r.lastError)
	}
	return err
}

func (h *heads) Heads(ctx context.Context, route, key string, except int64, _ bool) (k rules.KeyHeads, err error) {
	return k, h.ask(ctx,
		query{headsSQL, []any{route, key, except}, func(rows *sql.Rows) error { return rows.Scan(&k.Retry, &k.Abandoned, &k.Held) }},
		query{readySQL, []any{route, key, except}, func(rows *sql.Rows) error { return rows.Scan(&k.Ready) }})
}

func (h *heads) Stored(ctx context.Context, route string, seq int64) (*admin.Stored, error) {
	rows, err := h.rows(ctx, attrsSQL+`WHERE seq = ? AND route = ?`, seq, route)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	st := h.stored(rows[0], h.members)
	return &st, nil
}
