package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core/rules"
)

var (
	_ admin.BlockedKeys = (*Store)(nil)
	_ admin.Explainer   = (*Store)(nil)
)

const (
	// headsText selects the heads of a key without row ?3, as rules.KeyHeads has them.
	headsText = `SELECT coalesce((SELECT min(r.seq) ` + waitingOfSQL + ` AND r.state = {failed} AND r.hold = 0), 0),
		coalesce((SELECT min(r.seq) FROM waybill_outbox r INDEXED BY waybill_outbox_blocking_key
			WHERE r.route = ?1 AND r.key = ?2 AND r.blocks = 1 AND r.seq <> ?3), 0),
		coalesce((SELECT min(r.seq) ` + waitingOfSQL + ` AND r.hold <> 0), 0),
		coalesce((SELECT min(r.seq) ` + readyOfSQL + `), 0)`
	waitingOfSQL = `FROM waybill_outbox r INDEXED BY waybill_outbox_waiting_key
			WHERE r.route = ?1 AND r.key = ?2 AND r.key <> '' AND (r.state = {failed} OR r.hold <> 0) AND r.seq <> ?3`
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
	readyOfSQL    = readyKeySQL + ` AND r.key = ?2 AND r.seq <> ?3`
	// nextDueKeyText selects the next key with a due row.
	nextDueKeyText = `SELECT min(r.key) ` + readyAfterSQL
	// behindText counts the due rows of a key but one, up to a bound.
	behindText = `SELECT count(*) FROM (SELECT 1 ` + readyOfSQL + ` LIMIT ?4)`
	// trialsText selects the retries that are due soonest: those that try whether a queue is bound are among them.
	trialsText = `SELECT r.seq, r.topic, coalesce(r.error, '')
		FROM waybill_outbox r INDEXED BY waybill_outbox_retry
		WHERE r.route = ?1 AND r.state = {failed}
		ORDER BY r.due_at LIMIT ?2`
)

// BlockedKeys lists keys whose head waits; see [admin.BlockedKeys]. Keys are in the order of their bytes. It goes by
// index from key to key with a record that waits, is held, or blocks, in one snapshot; over all keys if no queue is
// bound for some topic.
func (s *Store) BlockedKeys(ctx context.Context, req admin.BlockedKeysRequest) (keys []admin.BlockedKey, more bool, err error) {
	req, err = admin.CheckBlockedKeys(req)
	if err != nil {
		return nil, false, err
	}
	err = s.read(ctx, "blocked keys", func(w *work) (err error) {
		keys, more, err = rules.BlockedKeys(ctx, (*heads)(w), req)
		return err
	})
	return keys, more, err
}

// Hindrances returns the reasons why a record is not handed out, by index; see [admin.Explainer]. No record is locked
// without the whole database.
func (s *Store) Hindrances(ctx context.Context, rec *admin.Stored, blockAfterAbandon bool) (in admin.Hindrances, err error) {
	err = s.read(ctx, "hindrances", func(w *work) (err error) {
		in, err = rules.Hindrances(ctx, (*heads)(w), rec, blockAfterAbandon)
		return err
	})
	return in, err
}

// heads is a work for the rules of heads.
type heads work

func (h *heads) Now() time.Time { return time.UnixMicro(h.now) }

func (h *heads) Retries(ctx context.Context, route string, limit int, fn func(seq int64, topic, lastError string)) error {
	return (*work)(h).each(ctx, func(rows *sql.Rows) (bool, error) {
		var seq int64
		var topic, text string
		err := rows.Scan(&seq, &topic, &text)
		fn(seq, topic, text)
		return true, err
	}, trialsText, route, limit)
}

func (h *heads) NextKey(ctx context.Context, route, after string, ready bool) (string, error) {
	var next, nextDue sql.NullString
	if _, err := (*work)(h).one(ctx, []any{&next}, nextKeyText, route, after); err != nil || !ready {
		return next.String, err
	}
	if _, err := (*work)(h).one(ctx, []any{&nextDue}, nextDueKeyText, route, after); err != nil {
		return "", err
	}
	if nextDue.Valid && (!next.Valid || nextDue.String < next.String) {
		next = nextDue
	}
	return next.String, nil
}

func (h *heads) Heads(ctx context.Context, route, key string, except int64, _ bool) (k rules.KeyHeads, err error) {
	_, err = (*work)(h).one(ctx, []any{&k.Retry, &k.Abandoned, &k.Held, &k.Ready}, headsText, route, key, except)
	return k, err
}

func (h *heads) Stored(ctx context.Context, _ string, seq int64) (*admin.Stored, error) {
	found, err := (*work)(h).lookup(ctx, nil, storedText, seq)
	if err != nil || found == nil {
		return nil, err
	}
	h.s.decode(found)
	return &found.Stored, nil
}

func (h *heads) Behind(ctx context.Context, route, key string, seq int64) (n int, err error) {
	_, err = (*work)(h).one(ctx, []any{&n}, behindText, route, key, seq, admin.MaxPageLimit)
	return n, err
}
