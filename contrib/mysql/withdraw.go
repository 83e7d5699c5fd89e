package waybillmysql

import (
	"context"
	"database/sql"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Cancel withdraws staged messages in tx; see [waybill.Canceller]. It withdraws messages that are scheduled, wait for a
// retry, or were staged as withdrawable. Keys that name the same message get the same answer. Under REPEATABLE READ it
// knows the messages of the transaction's snapshot; under READ COMMITTED all that are committed.
func (s *Store) Cancel(ctx context.Context, tx *sql.Tx, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error) {
	if tx == nil {
		return nil, waybill.Invalid("waybill/mysql: cancel", errNoTx.Error())
	}
	keys, err := core.CheckCancelKeys(ctx, keys)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	w := &work{s: s, q: tx}
	out := make([]waybill.CancelStatus, len(keys))
	seen := map[waybill.CancelKey]waybill.CancelStatus{}
	for i := range keys {
		if out[i], err = w.cancel(ctx, keys[i], seen); err != nil {
			return nil, classify("cancel", ended(ctx, err))
		}
	}
	return out, nil
}

func (w *work) cancel(ctx context.Context, key waybill.CancelKey, seen map[waybill.CancelKey]waybill.CancelStatus) (waybill.CancelStatus, error) {
	text, args := lightSQL+byIDSQL+`AND `+liveSQL, []any{key.ID, key.Route}
	if key.DedupeKey != "" {
		text, args = byKeySQL, []any{key.DedupeKey, key.Topic, key.Route, key.Route}
	} else {
		key.Topic = ""
	}
	// First without a lock: a locking read of what is not there locks a gap, and stagers wait for it.
	found, err := w.rows(ctx, text, args...)
	if err == nil && len(found) > 0 {
		found, err = w.rows(ctx, bySeqSQL+at(seqsOf(found))+` AND `+liveSQL+`FOR UPDATE`)
	}
	if err != nil || len(found) == 0 {
		return seen[key], err
	}
	r := found[0]
	if _, err := w.one(ctx, []any{&w.now}, `SELECT `+nowSQL); err != nil {
		return waybill.CancelNotFound, err
	}
	status, err := w.withdraw(ctx, r, waybill.ReasonCancelled)
	if status != waybill.CancelInFlight {
		seen[waybill.CancelKey{Route: r.Route, ID: r.ID}] = status
		seen[waybill.CancelKey{Route: r.Route, Topic: r.Envelope.Topic, DedupeKey: r.dedupe}] = status
	}
	return status, err
}

// withdraw takes a record away that is locked, if nobody can have it out.
func (w *work) withdraw(ctx context.Context, r *row, reason waybill.Reason) (waybill.CancelStatus, error) {
	careful, err := w.careful(ctx, r)
	if err != nil || r.Holder != 0 || r.ready() && !r.has(flagWithdrawable) && r.Crashes == 0 && !careful {
		return waybill.CancelInFlight, err
	}
	if core.RetentionWithdrawn.DroppedAtOnce(w.s.opts.Retention) {
		err = w.remove(ctx, []*row{r})
	} else {
		err = w.abandon(ctx, []*row{r}, reason, 0)
	}
	if err == nil && r.Envelope.Key != "" && !r.timer() {
		err = w.tell(ctx, core.ControlKey, r)
	}
	if r.has(flagMaybe) || r.Crashes > 0 || careful {
		return waybill.CancelMaybe, err
	}
	return waybill.CancelDone, err
}

// suspect notes of rows that a dead member can have had out that they may have arrived.
func (w *work) suspect(ctx context.Context, rows []*row) error {
	due := slices.DeleteFunc(slices.Clone(rows), (*row).timer)
	if len(due) == 0 {
		return nil
	}
	seqs, err := collect(ctx, w.q, func(rows *sql.Rows) (seq int64, err error) { return seq, rows.Scan(&seq) },
		`SELECT seq FROM waybill_outbox FORCE INDEX (PRIMARY) WHERE (`+at(seqsOf(due))+`) AND seq <= GREATEST(
			COALESCE((SELECT MAX(u.careful) FROM waybill_outbox_units u WHERE u.route = waybill_outbox.route
				AND u.from_slot <= waybill_outbox.slot AND u.to_slot > waybill_outbox.slot), 0),
			COALESCE((SELECT r.careful FROM waybill_outbox_routes r WHERE r.route = waybill_outbox.route), 0))`)
	if err != nil {
		return err
	}
	return w.set(ctx, seqs, `flags = flags | ?`, flagMaybe)
}

// careful reports whether a dead member can have had r out, and no crash window has passed it yet.
func (w *work) careful(ctx context.Context, r *row) (bool, error) {
	var careful int64
	_, err := w.one(ctx, []any{&careful}, `SELECT GREATEST(
		COALESCE((SELECT MAX(careful) FROM waybill_outbox_units WHERE route = ? AND from_slot <= ? AND to_slot > ?), 0),
		COALESCE((SELECT careful FROM waybill_outbox_routes WHERE route = ?), 0))`, r.Route, r.Slot, r.Slot, r.Route)
	return r.Seq <= careful && !r.timer(), err
}
