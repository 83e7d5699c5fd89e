package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

var (
	_ admin.BlockedKeys = (*Store)(nil)
	_ admin.Explainer   = (*Store)(nil)
)

const (
	// headsText selects the record that keeps later messages of a key waiting: a retry, or an abandoned message if
	// the route blocks then. A held retry is being sent.
	headsText = `SELECT (SELECT min(r.seq) FROM waybill_outbox r INDEXED BY waybill_outbox_waiting_key
			WHERE r.route = ?1 AND r.key = ?2 AND r.key <> '' AND (r.state = {failed} OR r.hold <> 0)
				AND r.state = {failed} AND r.hold = 0),
		(SELECT min(r.seq) FROM waybill_outbox r INDEXED BY waybill_outbox_blocking_key WHERE r.route = ?1 AND r.key = ?2 AND r.blocks = 1)`
	// nextKeyText selects the next key with a row that waits or blocks.
	nextKeyText = `SELECT min(x) FROM (
			SELECT min(r.key) AS x
				FROM waybill_outbox r INDEXED BY waybill_outbox_waiting_key
				WHERE r.route = ?1 AND r.key > ?2 AND r.key <> '' AND (r.state = {failed} OR r.hold <> 0)
			UNION ALL
			SELECT min(r.key)
				FROM waybill_outbox r INDEXED BY waybill_outbox_blocking_key
				WHERE r.route = ?1 AND r.key > ?2 AND r.blocks = 1)`

	readyKeySQL   = `FROM waybill_outbox r INDEXED BY waybill_outbox_key WHERE r.route = ?1 AND r.key <> '' AND r.due_at IS NULL AND r.settled_at IS NULL`
	readyAfterSQL = readyKeySQL + ` AND r.key > ?2`
	readyOfSQL    = readyKeySQL + ` AND r.key = ?2`
	// nextDueKeyText selects the next key with a due row.
	nextDueKeyText = `SELECT min(r.key) ` + readyAfterSQL
	// firstDueText selects the first due row of a key, unless a row of the key is held.
	firstDueText = `SELECT min(r.seq) ` + readyOfSQL + ` AND NOT EXISTS (SELECT 1 FROM waybill_outbox h INDEXED BY waybill_outbox_waiting_key
			WHERE h.route = ?1 AND h.key = ?2 AND h.key <> '' AND (h.state = {failed} OR h.hold <> 0) AND h.hold <> 0)`
	// behindText counts the due rows of a key but one, up to a bound.
	behindText = `SELECT count(*) FROM (SELECT 1 ` + readyOfSQL + ` AND r.seq <> ?3 LIMIT ?4)`
	// trialsText selects the retries that are due soonest: those that try whether a queue is bound are among them.
	trialsText = `SELECT r.seq, r.topic, coalesce(r.error, '')
		FROM waybill_outbox r INDEXED BY waybill_outbox_retry
		WHERE r.route = ?1 AND r.state = {failed}
		ORDER BY r.due_at LIMIT ?2`
	// beforeText selects the first row that holds a key: a retry, one that is held, an abandoned one if ?4 is set;
	// and the first due one before row ?3.
	beforeText = `SELECT
		(SELECT min(r.seq) FROM waybill_outbox r INDEXED BY waybill_outbox_waiting_key
			WHERE r.route = ?1 AND r.key = ?2 AND r.key <> '' AND (r.state = {failed} OR r.hold <> 0) AND r.seq <> ?3),
		(SELECT min(r.seq) FROM waybill_outbox r INDEXED BY waybill_outbox_blocking_key
			WHERE ?4 AND r.route = ?1 AND r.key = ?2 AND r.blocks = 1 AND r.seq <> ?3),
		(SELECT min(r.seq) ` + readyOfSQL + ` AND r.seq < ?3)`
)

// maxTrials is how many retries are looked at for topics that no queue is bound for.
const maxTrials = 1000

// BlockedKeys lists keys whose head waits; see [admin.BlockedKeys]. Keys are in the order of their bytes. It goes by
// index from key to key with a record that waits, is held, or blocks, in one snapshot; over all keys if no queue is
// bound for some topic. Since counts from the end of an abandoned head, and else from the first due time of the head.
func (s *Store) BlockedKeys(ctx context.Context, req admin.BlockedKeysRequest) (keys []admin.BlockedKey, more bool, err error) {
	req, err = admin.CheckBlockedKeys(req)
	if err != nil {
		return nil, false, err
	}
	err = s.read(ctx, "blocked keys", func(w *work) error {
		unbound, err := w.unbound(ctx, req.Route)
		if err != nil {
			return err
		}
		for key := req.After; len(keys) <= req.Limit; {
			var ok bool
			if key, ok, err = w.nextKey(ctx, req.Route, key, len(unbound) > 0); err != nil || !ok {
				return err
			}
			k, err := w.blockedKey(ctx, req, key, unbound)
			if err != nil {
				return err
			}
			if k != nil {
				keys = append(keys, *k)
			}
		}
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	if len(keys) > req.Limit {
		return keys[:req.Limit], true, nil
	}
	return keys, false, nil
}

// unbound returns, by topic that no queue is bound for, the number of a record that tries.
func (w *work) unbound(ctx context.Context, route string) (map[string]int64, error) {
	out := map[string]int64{}
	err := w.each(ctx, func(rows *sql.Rows) (bool, error) {
		var seq int64
		var topic, text string
		err := rows.Scan(&seq, &topic, &text)
		if _, known := out[topic]; !known && admin.Unbound(text) {
			out[topic] = seq
		}
		return true, err
	}, trialsText, route, maxTrials)
	return out, err
}

// nextKey returns the next key with a row that waits or blocks; with due also one with a row that is due.
func (w *work) nextKey(ctx context.Context, route, after string, due bool) (string, bool, error) {
	var next, nextDue sql.NullString
	if _, err := w.one(ctx, []any{&next}, nextKeyText, route, after); err != nil || !due {
		return next.String, next.Valid, err
	}
	if _, err := w.one(ctx, []any{&nextDue}, nextDueKeyText, route, after); err != nil {
		return "", false, err
	}
	if nextDue.Valid && (!next.Valid || nextDue.String < next.String) {
		next = nextDue
	}
	return next.String, next.Valid, nil
}

// blockedKey returns a key with its head if that blocks it, or nil.
func (w *work) blockedKey(ctx context.Context, req admin.BlockedKeysRequest, key string, unbound map[string]int64) (*admin.BlockedKey, error) {
	head, cause, err := w.head(ctx, req.Route, key, req.BlockAfterAbandon)
	if err != nil {
		return nil, err
	}
	if head == nil && len(unbound) > 0 {
		var first sql.NullInt64
		if _, err := w.one(ctx, []any{&first}, firstDueText, req.Route, key); err != nil || !first.Valid {
			return nil, err
		}
		if head, err = w.lookup(ctx, nil, storedText, first.Int64); err != nil || head == nil || unbound[head.Envelope.Topic] == 0 {
			return nil, err
		}
		cause = "topic"
	}
	if head == nil {
		return nil, nil //nolint:nilnil // no record blocks it
	}
	k := w.blocked(head, cause)
	if _, err := w.one(ctx, []any{&k.Behind}, behindText, req.Route, key, head.Seq, admin.MaxPageLimit); err != nil {
		return nil, err
	}
	if cause == "topic" && k.Behind == 0 {
		return nil, nil //nolint:nilnil // nothing waits for it
	}
	return &k, nil
}

// Hindrances returns the reasons why a record is not handed out, by index; see [admin.Explainer]. No record is locked
// without the whole database.
func (s *Store) Hindrances(ctx context.Context, rec *admin.Stored, blockAfterAbandon bool) (in admin.Hindrances, err error) {
	err = s.read(ctx, "hindrances", func(w *work) error {
		in = admin.Hindrances{}
		show := func(seq int64) (*admin.Stored, error) {
			found, err := w.lookup(ctx, nil, storedText, seq)
			if err != nil || found == nil {
				return nil, err
			}
			s.decode(found)
			return &found.Stored, nil
		}
		if rec.Envelope.Key != "" {
			var waits, gone, due sql.NullInt64
			if _, err := w.one(ctx, []any{&waits, &gone, &due}, beforeText, rec.Route, rec.Envelope.Key, rec.Seq, blockAfterAbandon); err != nil {
				return err
			}
			if !waits.Valid || gone.Valid && gone.Int64 < waits.Int64 {
				waits = gone
			}
			if !waits.Valid {
				waits = due
			}
			if waits.Valid {
				if in.Ahead, err = show(waits.Int64); err != nil {
					return err
				}
			}
		}
		unbound, err := w.unbound(ctx, rec.Route)
		if err != nil {
			return err
		}
		if trial := unbound[rec.Envelope.Topic]; trial != 0 && trial != rec.Seq {
			in.Trial, err = show(trial)
		}
		return err
	})
	return in, err
}

// head returns the record that blocks a key and the cause, or nil.
func (w *work) head(ctx context.Context, route, key string, block bool) (head *stored, cause string, err error) {
	var retry, gone sql.NullInt64
	if _, err := w.one(ctx, []any{&retry, &gone}, headsText, route, key); err != nil {
		return nil, "", err
	}
	seq, cause := retry, "retry"
	if block && gone.Valid && (!retry.Valid || gone.Int64 < retry.Int64) {
		seq, cause = gone, "abandoned"
	}
	if !seq.Valid {
		return nil, "", nil
	}
	head, err = w.lookup(ctx, nil, storedText, seq.Int64)
	return head, cause, err
}

func (w *work) blocked(head *stored, cause string) admin.BlockedKey {
	w.s.decode(head)
	k := admin.BlockedKey{Route: head.Route, Key: head.Envelope.Key, Head: head.Stored, Cause: cause, Since: max(head.Age, 0)}
	if head.State == core.StateAbandoned {
		k.Since = max(time.UnixMicro(w.now).Sub(head.SettledAt), 0)
	}
	return k
}
