package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// rowsPerInsert bounds the rows of one INSERT: SQLite allows 32,766 variables a statement. SQLite runs in this process,
// so further statements are no round trips.
const rowsPerInsert = 1000

const (
	insertText = `INSERT INTO waybill_outbox (route, id, topic, key, slot, due_at, ready_since, hlc, attrs, body,
		expires_at, cancellable, dedupe_key)
		SELECT * FROM (VALUES `
	insertRow = `(?,?,?,?,?,?,?,?,?,?,?,?,?)`
	insertEnd = `)` + ifAlone + ` ON CONFLICT (route, id) DO NOTHING RETURNING route, id`
	// insertKeyedEnd is for statements with a row that has a dedupe key.
	insertKeyedEnd = `)` + ifAlone + ` ON CONFLICT DO NOTHING RETURNING route, id`

	highWaterText = `SELECT coalesce(max(hlc), 0) FROM (
		SELECT value AS hlc FROM waybill_meta WHERE name = 'hlc'
		UNION ALL SELECT hlc FROM (SELECT hlc FROM waybill_outbox ORDER BY seq DESC LIMIT 10000)) WHERE hlc BETWEEN 0 AND ?1`
)

// Stage writes msgs in tx, a transaction in the store's file, from any *sql.DB. It never begins, commits or rolls back.
// Delays count from now by the store's clock.
func (s *Store) Stage(ctx context.Context, tx *sql.Tx, msgs ...waybill.Message) (_ []waybill.Staged, err error) {
	if tx == nil {
		return nil, waybill.Invalid("waybill/sqlite: stage", "tx: is nil; begin a transaction, stage in it, commit it")
	}
	if len(msgs) == 0 {
		return nil, nil
	}
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
		return nil, waybill.Invalid("waybill/sqlite: stage", "tx: is nil; begin a transaction, stage in it, commit it")
	}
	if err := s.readyIn(ctx, tx); err != nil {
		return nil, s.classify("stage", ended("stage", err))
	}
	w := s.canceller(tx)
	staged := make([]waybill.Staged, len(rows))
	for from := 0; from < len(rows); {
		to := from + 1
		if !rows[from].Replace {
			to = runEnd(rows, from)
		}
		if err := w.stage(ctx, rows[from:to], staged[from:to]); err != nil {
			return nil, s.classify("stage", ended("stage", err))
		}
		from = to
	}
	return staged, nil
}

// runEnd returns the end of a run of rows that can be written together: it ends before a row that replaces, and before
// a row with an id that the run has already.
func runEnd(rows []core.StagedRow, from int) int {
	ids := make(map[[2]string]bool, min(len(rows)-from, rowsPerInsert))
	for i := from; i < len(rows); i++ {
		id := [2]string{rows[i].Route, rows[i].Envelope.ID}
		if rows[i].Replace || ids[id] || i-from == rowsPerInsert {
			return i
		}
		ids[id] = true
	}
	return len(rows)
}

// stage writes a run of rows, or one row that replaces.
func (w *canceller) stage(ctx context.Context, rows []core.StagedRow, staged []waybill.Staged) error {
	status := waybill.CancelNotFound
	if r := &rows[0]; r.Replace {
		var err error
		if status, err = w.replace(ctx, r); err != nil {
			return err
		}
	}
	fresh, err := w.insert(ctx, rows)
	if err == nil && len(fresh) < len(rows) {
		err = refuseAttached(ctx, w.tx)
	}
	if err != nil {
		return err
	}
	for i := range rows {
		r := &rows[i]
		staged[i] = waybill.Staged{
			ID: r.Envelope.ID, Route: r.Route, Duplicate: !fresh[[2]string{r.Route, r.Envelope.ID}], Replaced: status,
		}
		if !staged[i].Duplicate {
			continue
		}
		taken, err := w.one(ctx, []any{new(int)}, takenText, r.Route, r.Envelope.ID, r.Envelope.Source)
		switch {
		case err != nil:
			return err
		case taken:
			return r.IDTakenError("waybill/sqlite: stage")
		case r.DedupeKey == "":
			continue
		}
		// Is it a duplicate of its own id, or of the live message with its key?
		if foreign, err := w.holder(ctx, r, &staged[i].ID); err != nil || foreign {
			return cmp.Or(err, r.DedupeKeyTakenError("waybill/sqlite: stage"))
		}
	}
	return nil
}

// insert writes rows with one statement and returns the new ones.
func (w *work) insert(ctx context.Context, rows []core.StagedRow) (map[[2]string]bool, error) {
	args := make([]any, 0, len(rows)*13)
	keyed := false
	for i := range rows {
		r := &rows[i]
		e := &r.Envelope
		since := w.now + r.Delay.Microseconds()
		if !r.DeliverAt.IsZero() {
			since = max(r.DeliverAt.UnixMicro(), w.now)
		}
		var due any
		if since > w.now {
			due = since
		}
		attrs, err := encodeAttrs(e)
		if err != nil {
			return nil, err
		}
		body := e.Body
		if body == nil {
			body = []byte{}
		}
		keyed = keyed || r.DedupeKey != ""
		args = append(args, r.Route, e.ID, e.Topic, e.Key, int64(core.SlotOf(r.Route, e.Key, e.ID)),
			due, since, int64(e.HLC), attrs, body, expiry(e),
			r.Cancellable, nullable(r.DedupeKey))
	}
	end := insertEnd
	if keyed {
		end = insertKeyedEnd
	}
	fresh := make(map[[2]string]bool, len(rows))
	err := w.each(ctx, func(res *sql.Rows) (bool, error) {
		var k [2]string
		err := res.Scan(&k[0], &k[1])
		fresh[k] = true
		return true, err
	}, insertText+insertRow+strings.Repeat(","+insertRow, len(rows)-1)+end, args...)
	return fresh, err
}

// expiry returns when e expires as stored, or nil.
func expiry(e *waybill.Envelope) any {
	if e.Expires.IsZero() {
		return nil
	}
	return e.Expires.UnixMicro()
}

func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// HighWater returns the highest stamp among the settled records and the newest 10,000 rows. One that is further ahead
// of the store's clock than hlc.DefaultMaxDrift does not count.
func (s *Store) HighWater(ctx context.Context) (hlc.Timestamp, error) {
	var ts int64
	if err := s.db.QueryRowContext(ctx, s.sql(highWaterText), int64(hlc.MaxMark(s.opts.Now()))).Scan(&ts); err != nil {
		return 0, s.classify("high water", err)
	}
	return hlc.Timestamp(ts), nil
}
