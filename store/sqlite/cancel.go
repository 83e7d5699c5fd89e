package sqlite

import (
	"cmp"
	"context"
	"database/sql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

var _ waybill.Canceller[*sql.Tx] = (*Store)(nil)

const (
	byIDText = `SELECT ` + rowSQL + `, r.topic, coalesce(r.dedupe_key, '')
		FROM waybill_outbox r
		WHERE r.route = ?1 AND r.id = ?2 AND r.settled_at IS NULL`
	byKeyText = `SELECT ` + rowSQL + `, r.topic, coalesce(r.dedupe_key, '') FROM waybill_outbox r
		WHERE r.route = ?1 AND r.topic = ?2 AND r.dedupe_key = ?3 AND r.dedupe_key IS NOT NULL AND r.settled_at IS NULL`
	stagedText = `SELECT 1 FROM waybill_outbox WHERE route = ?1 AND id = ?2`
	// takenText finds a message of another source with an id. A row that was put in by hand can have no source.
	takenText = `SELECT 1 FROM waybill_outbox
		WHERE route = ?1 AND id = ?2 AND CASE WHEN json_valid(attrs) THEN attrs ->> '$.a.source' <> ?3 END`
	deleteText = `DELETE FROM waybill_outbox WHERE seq = ?1`
	// abandonText abandons a record. ?4: it blocks its key. ?5: it can have been delivered.
	abandonText = `UPDATE waybill_outbox
		SET state = {abandoned}, due_at = NULL, version = version + 1, reason = ?2, settled_at = ?3, blocks = ?4, maybe_sent = ?5
		WHERE seq = ?1`
	dropDedupeKeyText = `UPDATE waybill_outbox SET dedupe_key = NULL WHERE seq = ?1`
	// holderText selects the live message with a dedupe key, and whether it is another source's, unless the id is
	// staged.
	holderText = `SELECT id, CASE WHEN json_valid(attrs) THEN coalesce(attrs ->> '$.a.source' <> ?5, 0) ELSE 0 END
		FROM waybill_outbox
		WHERE route = ?1 AND topic = ?2 AND dedupe_key = ?3 AND dedupe_key IS NOT NULL AND settled_at IS NULL
			AND NOT EXISTS (SELECT 1 FROM waybill_outbox WHERE route = ?1 AND id = ?4)`

	// partitionText selects the partition of a slot, or the facts that the next partitions of the route begin with.
	partitionText = `SELECT owner, uncertain_up_to FROM waybill_outbox_partitions WHERE route = ?1 AND from_slot <= ?2 AND to_slot > ?2
		UNION ALL SELECT 0, uncertain_up_to FROM waybill_outbox_routes WHERE route = ?1 LIMIT 1`

	tellText = `INSERT INTO waybill_outbox_notices (kind, route, slot, key, id, seq) VALUES (?1, ?2, ?3, ?4, ?5, ?6)`
)

// canceller cancels messages in a transaction of the application.
type canceller struct {
	work
	keep bool // cancelled records stay
}

func (s *Store) canceller(tx *sql.Tx) *canceller {
	return &canceller{work{s: s, tx: tx, now: s.now()}, !core.RetentionCancelled.DroppedAtOnce(s.opts.Retention)}
}

// target is a live message to cancel.
type target struct {
	row
	topic, dedupe string
}

// target finds a live message by id or by dedupe key; nil = there is none.
func (w *canceller) target(ctx context.Context, text string, args ...any) (*target, error) {
	var t *target
	err := w.each(ctx, func(rows *sql.Rows) (bool, error) {
		t = &target{}
		return false, t.scan(rows, &t.topic, &t.dedupe)
	}, text, args...)
	return t, err
}

// Cancel cancels staged messages in tx, by id or by dedupe key; see [waybill.Canceller]. It cancels messages that
// are scheduled, wait for a retry, or were staged as cancellable. Messages that a dead member can have had out are
// waybill.CancelUncertain. Messages that a member holds, and all other due ones, are waybill.CancelInFlight. Keys that
// name the same message get the same answer. Cancel takes the write lock.
func (s *Store) Cancel(ctx context.Context, tx *sql.Tx, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error) {
	if tx == nil {
		return nil, waybill.Invalid("waybill/sqlite: cancel", "tx: is nil; begin a transaction, cancel in it, commit it")
	}
	keys, err := core.CheckCancelKeys(ctx, keys)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	if err = s.readyIn(ctx, tx); err == nil {
		err = refuseAttached(ctx, tx)
	}
	if err != nil {
		return nil, s.classify("cancel", ended("cancel", err))
	}
	w := s.canceller(tx)
	if _, err := w.exec(ctx, lockText); err != nil {
		return nil, s.classify("cancel", ended("cancel", err))
	}
	out := make([]waybill.CancelStatus, len(keys))
	seen := map[waybill.CancelKey]waybill.CancelStatus{}
	for i := range keys {
		if out[i], err = w.cancel(ctx, &keys[i], seen); err != nil {
			return nil, s.classify("cancel", ended("cancel", err))
		}
	}
	return out, nil
}

func (w *canceller) cancel(
	ctx context.Context, key *waybill.CancelKey, seen map[waybill.CancelKey]waybill.CancelStatus,
) (waybill.CancelStatus, error) {
	var t *target
	var err error
	short := *key
	if key.DedupeKey != "" {
		t, err = w.target(ctx, byKeyText, key.Route, key.Topic, key.DedupeKey)
	} else {
		short.Topic = ""
		t, err = w.target(ctx, byIDText, key.Route, key.ID)
	}
	if err != nil {
		return waybill.CancelNotFound, err
	}
	if t == nil {
		return seen[short], nil
	}
	status, err := w.cancelRecord(ctx, t, waybill.ReasonCancelled)
	if err == nil && status != waybill.CancelInFlight {
		seen[waybill.CancelKey{Route: t.Route, ID: t.ID}] = status
		if t.dedupe != "" {
			seen[waybill.CancelKey{Route: t.Route, Topic: t.topic, DedupeKey: t.dedupe}] = status
		}
	}
	return status, err
}

// cancel takes a message away, if no process can have it out.
func (w *canceller) cancelRecord(ctx context.Context, t *target, reason waybill.Reason) (waybill.CancelStatus, error) {
	u, err := w.partition(ctx, &t.row)
	if err != nil {
		return waybill.CancelNotFound, err
	}
	status := rules.Cancellation(&t.Row, u)
	switch {
	case status == waybill.CancelInFlight:
		return status, nil
	case w.keep:
		err = w.abandon(ctx, &t.row, u, reason)
	default:
		_, err = w.exec(ctx, deleteText, t.Seq)
	}
	if err == nil && rules.Tells(&t.Row) {
		err = w.tell(ctx, core.NoticeKey, &t.row)
	}
	return status, err
}

// partition returns the facts about the partition of r that the rules need.
func (w *work) partition(ctx context.Context, r *row) (u rules.Partition, err error) {
	_, err = w.one(ctx, []any{(*int64)(&u.Owner), &u.MaybeOutUpTo}, partitionText, r.Route, int64(r.Slot))
	return u, err
}

// abandon ends r, which no session holds, for a caller other than its owner.
func (w *work) abandon(ctx context.Context, r *row, u rules.Partition, reason waybill.Reason) error {
	end := rules.End(&r.Row, u, reason)
	_, err := w.exec(ctx, abandonText, r.Seq, string(reason), w.now, end.Blocks, end.MaybeSent)
	return err
}

// tell writes a notice about r.
func (w *work) tell(ctx context.Context, kind core.NoticeKind, r *row) error {
	_, err := w.exec(ctx, tellText, int64(kind), r.Route, int64(r.Slot), r.key, r.ID, r.Seq)
	return err
}

// replace makes room for r, unless r is staged already. A message that a member holds gives up its dedupe key.
func (w *canceller) replace(ctx context.Context, r *core.StagedRow) (waybill.CancelStatus, error) {
	if _, err := w.exec(ctx, lockText); err != nil {
		return waybill.CancelNotFound, err
	}
	var one int
	if staged, err := w.one(ctx, []any{&one}, stagedText, r.Route, r.Envelope.ID); err != nil || staged {
		return waybill.CancelNotFound, err
	}
	if foreign, err := w.holder(ctx, r, new(string)); err != nil || foreign {
		return waybill.CancelNotFound, cmp.Or(err, r.DedupeKeyTakenError("waybill/sqlite: stage"))
	}
	t, err := w.target(ctx, byKeyText, r.Route, r.Envelope.Topic, r.DedupeKey)
	if err != nil || t == nil {
		return waybill.CancelNotFound, err
	}
	status, err := w.cancelRecord(ctx, t, waybill.ReasonReplaced)
	if err == nil && status == waybill.CancelInFlight {
		_, err = w.exec(ctx, dropDedupeKeyText, t.Seq)
	}
	return status, err
}

// holder sets id to that of the live message with the dedupe key of r, which has another id, and reports whether it is
// another source's.
func (w *canceller) holder(ctx context.Context, r *core.StagedRow, id *string) (foreign bool, err error) {
	_, err = w.one(ctx, []any{id, &foreign}, holderText, r.Route, r.Envelope.Topic, r.DedupeKey, r.Envelope.ID, r.Envelope.Source)
	return foreign, err
}
