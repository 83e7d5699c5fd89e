package owned

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
)

var _ core.KeyKeeper = (*Store)(nil)

const (
	// headsText is what keeps later messages of a key waiting: a retry, or an abandoned message if the route blocks
	// then. A retry that somebody holds is being sent.
	headsText = `SELECT (SELECT min(r.seq) FROM waybill_records r INDEXED BY waybill_records_waiting_key
			WHERE r.route = ?1 AND r.key = ?2 AND r.key <> '' AND (r.state = 4 OR r.hold <> 0) AND r.state = 4 AND r.hold = 0),
		(SELECT min(r.seq) FROM waybill_records r INDEXED BY waybill_records_blocking_key WHERE r.route = ?1 AND r.key = ?2 AND r.blocks = 1)`
	// nextKeyText is the next key of which something waits or blocks.
	nextKeyText = `SELECT min(x) FROM (
			SELECT min(r.key) AS x FROM waybill_records r INDEXED BY waybill_records_waiting_key WHERE r.route = ?1 AND r.key > ?2 AND r.key <> '' AND (r.state = 4 OR r.hold <> 0)
			UNION ALL
			SELECT min(r.key) FROM waybill_records r INDEXED BY waybill_records_blocking_key WHERE r.route = ?1 AND r.key > ?2 AND r.blocks = 1)`
)

// BlockedKeys lists keys whose head waits; see [core.KeyKeeper]. Keys are in the order of their bytes. It goes from key
// to key of what waits, is held, or blocks, by index, in one snapshot. Since counts from the end of an abandoned
// head; of one that waits for a retry, from when it was first due.
func (s *Store) BlockedKeys(ctx context.Context, route string, blockAfterAbandon bool, after string, limit int) (keys []core.BlockedKey, more bool, err error) {
	limit, err = core.CheckBlockedKeys(route, limit)
	if err != nil {
		return nil, false, err
	}
	err = s.read(ctx, "blocked keys", func(w *work) error {
		for key := after; len(keys) <= limit; {
			var next sql.NullString
			if _, err := w.one(ctx, []any{&next}, nextKeyText, route, key); err != nil || !next.Valid {
				return err
			}
			key = next.String
			head, cause, err := w.head(ctx, route, key, blockAfterAbandon)
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
	if len(keys) > limit {
		return keys[:limit], true, nil
	}
	return keys, false, nil
}

// head returns what blocks a key and why, or nil.
func (w *work) head(ctx context.Context, route, key string, block bool) (head *stored, cause string, err error) { //nolint:revive // the route's option
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

func (w *work) blocked(head *stored, cause string) core.BlockedKey {
	w.s.decode(head)
	k := core.BlockedKey{Route: head.Route, Key: head.Envelope.Key, Head: head.Stored, Cause: cause, Since: max(head.Age, 0)}
	if head.State == core.StateAbandoned {
		k.Since = max(time.UnixMicro(w.now).Sub(head.SettledAt), 0)
	}
	return k
}

// DecideHead skips, parks or requeues the head of a blocked key; see [core.KeyKeeper]. It is one transaction with
// SQLite's write lock. The owner of the key is told by a control record.
func (s *Store) DecideHead(ctx context.Context, route, key, id string, action core.HeadAction) error {
	if err := core.CheckDecide(route, key, id, action); err != nil {
		return err
	}
	var answer error // not the database's
	err := s.write(ctx, "decide head", func(w *work) (changed bool, err error) {
		answer, err = w.decide(ctx, route, key, id, action)
		return err == nil && answer == nil, err
	})
	if err != nil {
		return err
	}
	s.Wake()
	return answer
}

func (w *work) decide(ctx context.Context, route, key, id string, action core.HeadAction) (answer, err error) {
	const op = "waybill/sqlite: decide head"
	var body sql.RawBytes
	r, err := w.lookup(ctx, []any{&body}, inspectText, route, id)
	switch {
	case err != nil:
		return nil, err
	case r == nil || r.Envelope.Key != key:
		return core.NotHead(op, route, key, id), nil
	case r.State == core.StateProcessing:
		return core.HeadInFlight(op, route, key, id), nil
	}
	var retry, gone sql.NullInt64
	if _, err := w.one(ctx, []any{&retry, &gone}, headsText, route, key); err != nil {
		return nil, err
	}
	// An abandoned one before a retry does not count: the route may go on after those.
	isRetry := retry.Valid && retry.Int64 == r.Seq
	isGone := gone.Valid && gone.Int64 == r.Seq && (!retry.Valid || r.Seq < retry.Int64)
	if !isRetry && !isGone {
		return core.NotHead(op, route, key, id), nil
	}
	w.s.decode(r)
	switch action {
	case core.HeadSkip:
		return nil, w.putAway(ctx, &r.row, core.ReasonSkipped)
	case core.HeadPark:
		return nil, w.putAway(ctx, &r.row, core.ReasonParked)
	case core.HeadRequeue:
	}
	if r.Envelope.Expired(time.UnixMicro(w.now)) {
		return core.HeadExpired(id, r.Envelope.Expires), nil
	}
	if taken, err := w.outlived(ctx, r); err != nil || taken {
		return core.HeadDuplicate(id), err
	}
	return nil, w.requeue(ctx, &r.row)
}

// putAway gives r, which nobody holds, up for a reason that does not block its key.
func (w *work) putAway(ctx context.Context, r *row, reason core.Reason) error {
	if _, err := w.exec(ctx, putAwayText, r.Seq, w.now, string(reason)); err != nil {
		return err
	}
	if r.key == "" {
		return nil
	}
	return w.tell(ctx, outbox.ControlKey, r)
}
