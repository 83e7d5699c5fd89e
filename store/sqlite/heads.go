package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/waybill-go/waybill/core"
)

var _ core.KeyKeeper = (*Store)(nil)

// keySteps is how many keys one statement of BlockedKeys looks at.
const keySteps = 1000

// What keeps later messages of a key waiting: a retry, or an abandoned message if the route blocks then. See
// core.Reason.Blocks.
const (
	retryHeadText = `SELECT min(e.seq) FROM waybill_outbox e INDEXED BY waybill_outbox_key
		WHERE e.route = ?1 AND e.key = KEY AND e.wake_at IS NOT NULL AND e.hold = 2 AND e.wake_at > ?3 AND e.state <> 2`
	goneHeadText = `SELECT e.seq FROM waybill_outbox e INDEXED BY waybill_outbox_abandoned
		WHERE e.route = ?1 AND e.key = KEY AND e.state = 5 AND e.reason NOT IN ('cancelled', 'replaced', 'skipped', 'parked') ORDER BY e.seq LIMIT 1`
	nextKeyText = `SELECT min(x) FROM (
			SELECT min(e.key) AS x FROM waybill_outbox e INDEXED BY waybill_outbox_key WHERE e.route = ?1 AND e.key > KEY AND e.wake_at IS NOT NULL
			UNION ALL
			SELECT min(e.key) FROM waybill_outbox e INDEXED BY waybill_outbox_abandoned WHERE e.route = ?1 AND e.key > KEY AND e.state = 5)`
)

// BlockedKeys lists keys whose head waits; see [core.KeyKeeper]. Keys are in the order of their bytes. It goes from key
// to key of the route's live and abandoned messages, by index. Since counts from the end of an abandoned head; of one
// that waits for a retry, from when it was first due.
func (s *Store) BlockedKeys(ctx context.Context, route string, blockAfterAbandon bool, after string, limit int) (keys []core.BlockedKey, more bool, err error) {
	limit, err = core.CheckBlockedKeys(route, limit)
	if err != nil {
		return nil, false, err
	}
	if _, err := s.prepared(ctx, "blocked keys"); err != nil {
		return nil, false, err
	}
	for next := true; next && len(keys) <= limit; {
		err := s.read(ctx, "blocked keys", func(tx *sql.Tx) error {
			b := blocked{store: s, tx: tx, route: route, block: blockAfterAbandon, now: s.now()}
			if err := b.step(ctx, after); err != nil {
				return err
			}
			keys, after, next = append(keys, b.keys...), b.last, b.more
			return nil
		})
		if err != nil {
			return nil, false, err
		}
	}
	if len(keys) > limit {
		return keys[:limit], true, nil
	}
	return keys, false, nil
}

// blocked is one step of BlockedKeys.
type blocked struct {
	store *Store
	tx    *sql.Tx
	route string
	block bool
	now   int64
	keys  []core.BlockedKey
	last  string
	more  bool
}

func (b *blocked) step(ctx context.Context, after string) error {
	type head struct {
		key         string
		retry, gone sql.NullInt64
	}
	var heads []head
	rows, err := b.tx.QueryContext(ctx, b.store.text.blocked, b.route, after, b.now, keySteps, b.block)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	steps := 0
	for rows.Next() {
		var h head
		if err := rows.Scan(&h.key, &h.retry, &h.gone); err != nil {
			return err
		}
		steps++
		b.last = h.key
		if h.retry.Valid || h.gone.Valid {
			heads = append(heads, h)
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	b.more = steps == keySteps
	for _, h := range heads {
		seq, cause := h.retry.Int64, "retry"
		if h.gone.Valid && (!h.retry.Valid || h.gone.Int64 < seq) {
			seq, cause = h.gone.Int64, "abandoned"
		}
		r, err := b.store.reread(ctx, b.tx, seq, b.now)
		if err != nil {
			return err
		}
		if r == nil {
			continue
		}
		b.store.decode(r)
		k := core.BlockedKey{Route: b.route, Key: h.key, Head: r.Stored, Cause: cause, Since: max(r.Age, 0)}
		if r.State == core.StateAbandoned {
			k.Since = max(time.UnixMicro(b.now).Sub(r.SettledAt), 0)
		}
		b.keys = append(b.keys, k)
	}
	return nil
}

// DecideHead skips, parks or requeues the head of a blocked key; see [core.KeyKeeper]. It is one transaction with
// SQLite's write lock.
func (s *Store) DecideHead(ctx context.Context, route, key, id string, action core.HeadAction) error {
	if err := core.CheckDecide(route, key, id, action); err != nil {
		return err
	}
	if _, err := s.prepared(ctx, "decide head"); err != nil {
		return err
	}
	var answer error // not the database's
	err := s.operate(ctx, "decide head", func(tx *sql.Tx) (bool, error) {
		d := decision{store: s, tx: tx, now: s.now(), route: route, key: key, id: id}
		var err error
		answer, err = d.make(ctx, action)
		return err == nil && answer == nil, err
	})
	if err != nil {
		return err
	}
	return answer
}

// decision is one call of DecideHead in its transaction.
type decision struct {
	store          *Store
	tx             *sql.Tx
	now            int64
	route, key, id string
}

func (d *decision) make(ctx context.Context, action core.HeadAction) (answer, err error) {
	const op = "waybill/sqlite: decide head"
	var body sql.RawBytes
	r, err := d.store.scanID(ctx, d.tx, d.route, d.id, d.now, &body)
	switch {
	case err != nil:
		return nil, err
	case r == nil || r.Envelope.Key != d.key:
		return core.NotHead(op, d.route, d.key, d.id), nil
	case r.State == core.StateProcessing:
		return core.HeadInFlight(op, d.route, d.key, d.id), nil
	}
	var retry, gone sql.NullInt64
	err = d.tx.QueryRowContext(ctx, d.store.text.heads, d.route, d.key, d.now).Scan(&retry, &gone)
	if err != nil {
		return nil, err
	}
	// An abandoned one before a retry does not count: the route may go on after those.
	isRetry := retry.Valid && retry.Int64 == r.Seq
	isGone := gone.Valid && gone.Int64 == r.Seq && (!retry.Valid || r.Seq < retry.Int64)
	if !isRetry && !isGone {
		return core.NotHead(op, d.route, d.key, d.id), nil
	}
	d.store.decode(r)
	text, args := d.store.text.giveUp, []any{r.Seq, d.now}
	switch action {
	case core.HeadSkip:
		args = append(args, string(core.ReasonSkipped))
	case core.HeadPark:
		args = append(args, string(core.ReasonParked))
	case core.HeadRequeue:
		if r.Envelope.Expired(time.UnixMicro(d.now)) {
			return core.HeadExpired(d.id, r.Envelope.Expires), nil
		}
		if taken, err := d.store.outlived(ctx, d.tx, r); err != nil || taken {
			return core.HeadDuplicate(d.id), err
		}
		text = d.store.text.requeue
	}
	_, err = d.tx.ExecContext(ctx, text, args...)
	return nil, err
}
