package waybillmysql

import (
	"context"
	"database/sql"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// The bounds of one INSERT of several messages: rows, and bytes, since the server refuses packets beyond
// max_allowed_packet. A driver that interpolates can send twice as many bytes. So messages that fit by themselves fit
// together, too, with any limit of a mebibyte and more.
const (
	rowsPerInsert  = 500
	bytesPerInsert = 256 << 10
)

const (
	insertSQL = `INSERT INTO waybill_outbox (route, id, topic, source, k, slot, due_at, ends_at, ready_since, flags, hlc, dedupe_key, attrs, body) VALUES `
	insertRow = `(?,?,?,?,?,?,?,?,?,?,?,?,?,?)`
	asideInto = `INSERT INTO waybill_outbox_aside (seq, route, k, slot, state, due_at, ends_at, hold, flags) VALUES `
	asideRow  = `(?,?,?,?,1,?,?,0,?)`
	dedupeSQL = `INSERT INTO waybill_outbox_dedupe (dedupe_key, topic, route, id) VALUES `
	dedupeRow = `(?,?,?,?)`
	holderSQL = `SELECT id FROM waybill_outbox_dedupe WHERE dedupe_key = ? AND topic = ? AND route = ? `
	byKeySQL  = lightSQL + `WHERE id = (` + holderSQL + `) AND route = ? AND ` + liveSQL
)

// Stage writes msgs in tx, a transaction in the store's database, of any pool. It never begins, commits or rolls back.
// Delays count from now by the server's clock. An error that matches waybill.ErrRetryTx ended the transaction.
func (s *Store) Stage(ctx context.Context, tx *sql.Tx, msgs ...waybill.Message) (_ []waybill.Staged, err error) {
	ctx, span := s.stamper.StartSpan(ctx, len(msgs))
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
		for to < len(rows) && !rows[from].Replace && !rows[to].Replace && to-from < rowsPerInsert {
			if size += rows[to].Envelope.Size(); size > bytesPerInsert {
				break
			}
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

// stage writes rows with one statement for each table, or one by one if there are duplicates among them.
func (w *work) stage(ctx context.Context, rows []core.StagedRow, staged []waybill.Staged) error {
	first, err := w.insert(ctx, rows)
	if number(err) == duplicateEntry && len(rows) == 1 {
		e := &rows[0].Envelope
		if err := w.untaken(ctx, &rows[0]); err != nil {
			return err
		}
		staged[0] = waybill.Staged{ID: e.ID, Route: rows[0].Route, Duplicate: true}
		return nil
	}
	if number(err) == duplicateEntry {
		for i := range rows {
			if err := w.stage(ctx, rows[i:i+1], staged[i:i+1]); err != nil {
				return err
			}
		}
		return nil
	}
	if err != nil {
		return err
	}
	var keyed []int
	for i := range rows {
		staged[i] = waybill.Staged{ID: rows[i].Envelope.ID, Route: rows[i].Route}
		if rows[i].DedupeKey != "" {
			keyed = append(keyed, i)
		}
	}
	if err := w.writeDedupeKeys(ctx, first, rows, staged, keyed); err != nil {
		return err
	}
	return w.setAside(ctx, first, rows, staged)
}

// untaken fails if what has the id of a row on its route is of another source.
func (w *work) untaken(ctx context.Context, r *core.StagedRow) error {
	const locked = `LOCK IN SHARE MODE`
	// The server has locked the entry of the index only. Lock the record, so that others see that.
	if _, err := w.one(ctx, []any{new(int)}, `SELECT 1 FROM waybill_outbox `+byIDSQL+locked, r.Envelope.ID, r.Route); err != nil {
		return err
	}
	// The source is in no index. A lock on the row itself can end in a deadlock with a relay that deletes it. It is
	// for a row that the snapshot of the transaction does not have.
	for _, lock := range []string{``, locked} {
		var source string
		found, err := w.one(ctx, []any{&source}, `SELECT source FROM waybill_outbox `+byIDSQL+lock, r.Envelope.ID, r.Route)
		if err == nil && found && source != r.Envelope.Source {
			return r.IDTakenError("waybill/mysql: stage")
		}
		if err != nil || found {
			return err
		}
	}
	return nil
}

// writeDedupeKeys writes the dedupe keys of rows that are there, and takes those back whose key another message has.
func (w *work) writeDedupeKeys(ctx context.Context, first int64, rows []core.StagedRow, staged []waybill.Staged, keyed []int) error {
	if len(keyed) == 0 {
		return nil
	}
	var args []any
	for _, i := range keyed {
		args = append(args, rows[i].DedupeKey, rows[i].Envelope.Topic, rows[i].Route, rows[i].Envelope.ID)
	}
	_, err := w.exec(ctx, dedupeSQL+dedupeRow+strings.Repeat(","+dedupeRow, len(keyed)-1), args...)
	if number(err) != duplicateEntry {
		return err
	}
	if len(keyed) == 1 {
		return w.excluded(ctx, first+int64(keyed[0]), &rows[keyed[0]], &staged[keyed[0]])
	}
	for i := range keyed {
		if err := w.writeDedupeKeys(ctx, first, rows, staged, keyed[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// excluded answers for a row, staged as seq, whose dedupe key another message has, which it can replace. The key's row
// is there and was waited for, so that locking it locks no gap.
func (w *work) excluded(ctx context.Context, seq int64, r *core.StagedRow, out *waybill.Staged) error {
	lock, key := `LOCK IN SHARE MODE`, []any{r.DedupeKey, r.Envelope.Topic, r.Route}
	if r.Replace {
		lock = `FOR UPDATE`
	}
	var id string
	if _, err := w.one(ctx, []any{&id}, holderSQL+lock, key...); err != nil {
		return err
	}
	live, err := w.rows(ctx, lightSQL+byIDSQL+`AND `+liveSQL+lock, id, r.Route)
	switch {
	case err != nil:
		return err
	case len(live) > 0 && live[0].Envelope.Source != r.Envelope.Source:
		return r.DedupeKeyTakenError("waybill/mysql: stage")
	case !r.Replace && len(live) > 0:
		out.ID, out.Duplicate = id, true
		return w.deleteFrom(ctx, "waybill_outbox", `seq = ?`, seq)
	case len(live) > 0:
		if out.Replaced, err = w.cancelRecord(ctx, live[0], waybill.ReasonReplaced); err == nil && out.Replaced == waybill.CancelInFlight {
			err = w.set(ctx, seqsOf(live), `dedupe_key = ''`)
		}
	}
	if err == nil {
		_, err = w.exec(ctx, dedupeSQL+dedupeRow+` ON DUPLICATE KEY UPDATE id = VALUES(id)`, append(key, r.Envelope.ID)...)
	}
	return err
}

// insert writes rows, and returns the number of the first one. The rows of one INSERT are numbered in turn.
func (w *work) insert(ctx context.Context, rows []core.StagedRow) (first int64, err error) {
	args := make([]any, 0, len(rows)*14)
	for i := range rows {
		r := &rows[i]
		e := &r.Envelope
		due, since := w.dueAt(r)
		body := e.Body
		if body == nil {
			body = []byte{}
		}
		args = append(args, r.Route, e.ID, e.Topic, e.Source, e.Key, core.SlotOf(r.Route, e.Key, e.ID), due, micros(e.Expires), since, flagsOf(r),
			int64(e.HLC), r.DedupeKey, encode(e), body)
	}
	res, err := w.q.ExecContext(ctx, insertSQL+insertRow+strings.Repeat(","+insertRow, len(rows)-1), args...)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

// dueAt returns when a row is due, 0 = at once, and since when it counts as ready.
func (w *work) dueAt(r *core.StagedRow) (due, since int64) {
	if since = max(w.now+r.Delay.Microseconds(), micros(r.DeliverAt)); since > w.now {
		due = since
	}
	return due, since
}

func flagsOf(r *core.StagedRow) int {
	if r.Cancellable {
		return flagCancellable
	}
	return 0
}

// setAside copies rows that wait for a time, or expire. It has their values: under REPEATABLE READ an INSERT that
// selects locks the gap behind them.
func (w *work) setAside(ctx context.Context, first int64, rows []core.StagedRow, staged []waybill.Staged) error {
	var args []any
	for i := range rows {
		r := &rows[i]
		due, _ := w.dueAt(r)
		if ends := micros(r.Envelope.Expires); (due != 0 || ends != 0) && !staged[i].Duplicate {
			args = append(args, first+int64(i), r.Route, r.Envelope.Key, core.SlotOf(r.Route, r.Envelope.Key, r.Envelope.ID), due, ends, flagsOf(r))
		}
	}
	if len(args) == 0 {
		return nil
	}
	_, err := w.exec(ctx, asideInto+asideRow+strings.Repeat(","+asideRow, len(args)/7-1), args...)
	return err
}

// HighWater returns a stamp above those of the settled records and of the newest 10,000 rows, by a second at most. One
// that is further ahead of the server's clock than hlc.DefaultMaxDrift does not count.
func (s *Store) HighWater(ctx context.Context) (hlc.Timestamp, error) {
	const counts = ` BETWEEN 0 AND (` + nowSQL + ` DIV 1000 + 60000) * 65536 + 65535`
	ts, err := collect(ctx, s.own, value[hlc.Timestamp], `SELECT GREATEST(
		COALESCE((SELECT MAX(value) FROM waybill_meta WHERE name LIKE 'hlc%' AND value`+counts+`), 0),
		COALESCE((SELECT MAX(hlc) FROM (SELECT hlc FROM waybill_outbox ORDER BY seq DESC LIMIT 10000) newest WHERE hlc`+counts+`), 0))`)
	if err != nil || len(ts) == 0 {
		return 0, classify("high water", err)
	}
	return ts[0], nil
}
