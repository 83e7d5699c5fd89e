package waybillmysql

import (
	"context"
	"database/sql"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// The bounds of one INSERT: rows, and bytes, since the server refuses packets beyond max_allowed_packet.
const (
	rowsPerInsert  = 500
	bytesPerInsert = 4 << 20
)

const (
	insertSQL = `INSERT INTO waybill_outbox (route, id, topic, k, slot, due_at, ends_at, ready_since, flags, hlc, dedupe_key, attrs, body) VALUES `
	insertRow = `(?,?,?,?,?,?,?,?,?,?,?,?,?)`
	byKeySQL  = lightSQL + `WHERE dedupe_key = ? AND topic = ? AND route = ? AND live = 1 `
)

// Stage writes msgs in tx, a transaction in the store's database, of any pool. It never begins, commits or rolls back.
// Delays count from now by the server's clock. An error that matches waybill.ErrRetryTx ended the transaction.
func (s *Store) Stage(ctx context.Context, tx *sql.Tx, msgs ...waybill.Message) (_ []waybill.Staged, err error) {
	ctx, span := s.stamper.Start(ctx, len(msgs))
	defer func() { core.EndSpan(span, err) }()
	rows, err := s.stamper.Stamp(ctx, msgs)
	if err != nil {
		return nil, err
	}
	return s.StageRows(ctx, tx, rows...)
}

// StageRows is Stage for rows that are stamped already, with one answer a row.
func (s *Store) StageRows(ctx context.Context, tx *sql.Tx, rows ...core.StagedRow) ([]waybill.Staged, error) {
	if tx == nil {
		return nil, waybill.Invalid("waybill/mysql: stage", errNoTx.Error())
	}
	staged := make([]waybill.Staged, len(rows))
	if len(rows) == 0 {
		return staged, nil
	}
	w := &work{s: s, q: tx}
	if err := w.draw(ctx); err != nil {
		return nil, classify("stage", ended(ctx, err))
	}
	for from := 0; from < len(rows); {
		to, size := from+1, rows[from].Envelope.Size()
		for to < len(rows) && !rows[from].Replace && !rows[to].Replace && to-from < rowsPerInsert && size < bytesPerInsert {
			size += rows[to].Envelope.Size()
			to++
		}
		if err := w.stage(ctx, rows[from:to], staged[from:to]); err != nil {
			return nil, classify("stage", ended(ctx, err))
		}
		from = to
	}
	return staged, nil
}

// ended returns the error of the context that ended the transaction, if one did.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// stage writes rows with one statement, or one by one if there are duplicates among them.
func (w *work) stage(ctx context.Context, rows []core.StagedRow, staged []waybill.Staged) error {
	err := w.insert(ctx, rows)
	if len(rows) == 1 && number(err) == duplicateEntry {
		staged[0], err = w.again(ctx, &rows[0])
		return err
	}
	if number(err) != duplicateEntry {
		for i := range rows {
			staged[i] = waybill.Staged{ID: rows[i].Envelope.ID, Route: rows[i].Route}
		}
		return err
	}
	for i := range rows {
		if err := w.stage(ctx, rows[i:i+1], staged[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// again answers for a row that another one excludes: its own, or the live one with its dedupe key, which it can
// replace. Both are there and were waited for, so that locking them locks no gap.
func (w *work) again(ctx context.Context, r *core.StagedRow) (waybill.Staged, error) {
	out := waybill.Staged{ID: r.Envelope.ID, Route: r.Route, Duplicate: true}
	var n int
	staged, err := w.one(ctx, []any{&n}, `SELECT 1 FROM waybill_outbox WHERE route = ? AND id = ? LOCK IN SHARE MODE`, r.Route, r.Envelope.ID)
	if err != nil || staged {
		return out, err
	}
	live, err := w.rows(ctx, byKeySQL+`FOR UPDATE`, r.DedupeKey, r.Envelope.Topic, r.Route)
	if err != nil || len(live) > 0 && !r.Replace {
		if err == nil {
			out.ID = live[0].ID
		}
		return out, err
	}
	if len(live) > 0 {
		if out.Replaced, err = w.withdraw(ctx, live[0], waybill.ReasonReplaced); err != nil {
			return out, err
		}
		if out.Replaced == waybill.CancelInFlight {
			if err := w.set(ctx, seqsOf(live), `dedupe_key = NULL`); err != nil {
				return out, err
			}
		}
	}
	out.Duplicate = false
	return out, w.insert(ctx, []core.StagedRow{*r})
}

func (w *work) insert(ctx context.Context, rows []core.StagedRow) error {
	args := make([]any, 0, len(rows)*13)
	for i := range rows {
		r := &rows[i]
		e := &r.Envelope
		since, due, flags := max(w.now+r.Delay.Microseconds(), micros(r.DeliverAt)), int64(0), 0
		if since > w.now {
			due = since
		}
		if r.Withdrawable {
			flags = flagWithdrawable
		}
		attrs, err := encode(e)
		if err != nil {
			return err
		}
		dedupe, body := any(nil), e.Body
		if r.DedupeKey != "" {
			dedupe = r.DedupeKey
		}
		if body == nil {
			body = []byte{}
		}
		args = append(args, r.Route, e.ID, e.Topic, e.Key, core.SlotOf(r.Route, e.Key, e.ID), due, micros(e.Expires), since, flags,
			int64(e.HLC), dedupe, attrs, body)
	}
	_, err := w.exec(ctx, insertSQL+insertRow+strings.Repeat(","+insertRow, len(rows)-1), args...)
	return err
}

// HighWater returns a stamp above those of the settled records and of the newest 10,000 rows, by a second at most.
func (s *Store) HighWater(ctx context.Context) (hlc.Timestamp, error) {
	ts, err := collect(ctx, s.own, value[hlc.Timestamp], `SELECT GREATEST(
		COALESCE((SELECT MAX(value) FROM waybill_meta WHERE name LIKE 'hlc%'), 0),
		COALESCE((SELECT MAX(hlc) FROM (SELECT hlc FROM waybill_outbox ORDER BY seq DESC LIMIT 10000) newest), 0))`)
	if err != nil || len(ts) == 0 {
		return 0, classify("high water", err)
	}
	return ts[0], nil
}
