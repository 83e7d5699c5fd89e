package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

var _ admin.KeyKeeper = (*Store)(nil)

const (
	// headsText selects the record that keeps later messages of a key waiting: a retry, or an abandoned message if
	// the route blocks then. A retry that somebody holds is being sent.
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
)

// BlockedKeys lists keys whose head waits; see [admin.KeyKeeper]. Keys are in the order of their bytes. It goes by
// index from key to key with a record that waits, is held, or blocks, in one snapshot. Since counts from the end of an
// abandoned head, and from the first due time of a head that waits for a retry.
func (s *Store) BlockedKeys(ctx context.Context, req admin.BlockedKeysRequest) (keys []admin.BlockedKey, more bool, err error) {
	req, err = admin.CheckBlockedKeys(req)
	if err != nil {
		return nil, false, err
	}
	err = s.read(ctx, "blocked keys", func(w *work) error {
		for key := req.After; len(keys) <= req.Limit; {
			var next sql.NullString
			if _, err := w.one(ctx, []any{&next}, nextKeyText, req.Route, key); err != nil || !next.Valid {
				return err
			}
			key = next.String
			head, cause, err := w.head(ctx, req.Route, key, req.BlockAfterAbandon)
			if err != nil {
				return err
			}
			if head != nil {
				keys = append(keys, w.blocked(head, cause))
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
