package waybillmysql

import (
	"context"
	"database/sql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// Cancel cancels staged messages in tx; see [waybill.Canceller]. It cancels messages that are scheduled, wait for a
// retry, or were staged as cancellable. Keys that name the same message get the same answer. Under REPEATABLE READ it
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
	// First without a lock: a locking read of a missing row locks a gap, and stagers wait for it.
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
	status, err := w.cancelRecord(ctx, r, waybill.ReasonCancelled)
	if status != waybill.CancelInFlight {
		seen[waybill.CancelKey{Route: r.Route, ID: r.ID}] = status
		seen[waybill.CancelKey{Route: r.Route, Topic: r.Envelope.Topic, DedupeKey: r.dedupe}] = status
	}
	return status, err
}

// cancel takes away a locked record, if no process can have it out.
func (w *work) cancelRecord(ctx context.Context, r *row, reason waybill.Reason) (waybill.CancelStatus, error) {
	partitions, err := w.partitionsOf(ctx, []*row{r})
	if err != nil {
		return waybill.CancelNotFound, err
	}
	f := r.facts()
	status := rules.Cancellation(f, partitions(r))
	switch {
	case status == waybill.CancelInFlight:
		return status, nil
	case core.RetentionCancelled.DroppedAtOnce(w.s.opts.Retention):
		err = w.remove(ctx, []*row{r})
	default:
		err = w.abandon(ctx, []*row{r}, partitions, reason)
	}
	if err == nil && rules.Tells(f) {
		err = w.tell(ctx, core.NoticeKey, r)
	}
	return status, err
}
