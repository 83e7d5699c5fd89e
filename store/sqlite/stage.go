package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// rowsPerInsert bounds the rows of one INSERT: SQLite takes 32,766 variables a statement. SQLite runs in this process,
// so that further statements are no round trips.
const rowsPerInsert = 1000

// Stage writes msgs in tx, which must be a transaction in the file that the store uses, from whatever *sql.DB. It never
// begins, commits or rolls back. Delays count from now by the store's clock.
func (s *Store) Stage(ctx context.Context, tx *sql.Tx, msgs ...core.Message) (_ []core.Staged, err error) {
	if tx == nil {
		return nil, core.Invalid("waybill/sqlite: stage", "tx: is nil; begin a transaction, stage in it, commit it")
	}
	if len(msgs) == 0 {
		return nil, nil
	}
	ctx, span := s.stamper.Start(ctx, len(msgs))
	defer func() { core.EndSpan(span, err) }()
	rows, err := s.stamper.Stamp(ctx, msgs)
	if err != nil {
		return nil, err
	}
	if err := s.readyIn(ctx, tx); err != nil {
		return nil, s.classify("stage", ended("stage", err))
	}
	if anyKeyed(rows) {
		return s.stageKeyed(ctx, tx, rows)
	}
	now := s.now()
	fresh := make(map[[2]string]bool, len(rows))
	for part := rows; len(part) > 0; {
		n := min(len(part), rowsPerInsert)
		if err := s.insert(ctx, tx, part[:n], now, fresh, false); err != nil {
			return nil, s.classify("stage", err)
		}
		part = part[n:]
	}
	staged := make([]core.Staged, len(rows))
	for i := range rows {
		k := [2]string{rows[i].Route, rows[i].Envelope.ID}
		staged[i] = core.Staged{ID: k[1], Route: k[0], Duplicate: !fresh[k]}
		delete(fresh, k) // the same message again in this call is a duplicate
	}
	return staged, nil
}

// insert writes rows with one statement and adds those that were new to fresh. Dedupe keys are written if keyed.
func (s *Store) insert(ctx context.Context, tx *sql.Tx, rows []core.StagedRow, now int64, fresh map[[2]string]bool, keyed bool) error { //nolint:revive // a variant of one statement
	args := make([]any, 0, len(rows)*12)
	for i := range rows {
		r := &rows[i]
		due := now + r.Delay.Microseconds()
		if !r.DeliverAt.IsZero() {
			due = max(r.DeliverAt.UnixMicro(), now)
		}
		hold, wake := holdNone, int64(0)
		if due > now {
			hold, wake = holdScheduled, due
		}
		attrs, err := encodeAttrs(&r.Envelope)
		if err != nil {
			return err
		}
		body := r.Envelope.Body
		if body == nil {
			body = []byte{}
		}
		args = append(args, r.Route, r.Envelope.ID, r.Envelope.Topic, nullable(r.Envelope.Key), hold, wake, due, int64(r.Envelope.HLC), attrs, body, expiry(&r.Envelope))
		if keyed {
			args = append(args, nullable(r.DedupeKey))
		}
	}
	res, err := tx.QueryContext(ctx, s.insertText(len(rows), keyed), args...) //nolint:gosec // the text holds nothing foreign but Options.Prefix, which Validate has checked
	if err == sql.ErrTxDone {                                                 //nolint:errorlint // database/sql returns it as it is
		return fmt.Errorf("waybill/sqlite: stage: %w: the transaction has ended already; stage before its commit or rollback (%w)", core.ErrInvalid, err)
	}
	if err != nil {
		return err
	}
	defer func() { _ = res.Close() }()
	for res.Next() {
		var k [2]string
		if err := res.Scan(&k[0], &k[1]); err != nil {
			return err
		}
		fresh[k] = true
	}
	return res.Err()
}

func (s *Store) insertText(rows int, keyed bool) string { //nolint:revive // a variant of one statement
	begin, row, end := s.text.insert, s.text.insertRow, s.text.insertEnd
	if keyed {
		begin, row, end = s.text.insertKeyed, s.text.insertKeyedRow, s.text.insertKeyedEnd
	}
	if rows == 1 {
		return begin + row + end
	}
	var b strings.Builder
	b.Grow(len(begin) + rows*(len(row)+1) + len(end))
	b.WriteString(begin)
	for i := range rows {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(row)
	}
	b.WriteString(end)
	return b.String()
}

// The values of column hold.
const (
	holdNone      = 0 // claimable, or settled
	holdScheduled = 1 // staged for later, never claimed
	holdBlocks    = 2 // leased, or put back for later: the others of its key wait
)

// storedAttrs is the JSON of column attrs: CloudEvents attributes by name, headers, priority.
type storedAttrs struct {
	Attributes map[string]string `json:"a,omitempty"`
	Headers    map[string]string `json:"h,omitempty"`
	Priority   uint8             `json:"p,omitempty"`
}

// inColumns are the attributes that have columns of their own, or are implied.
var inColumns = map[string]bool{core.AttrSpecVersion: true, core.AttrID: true, core.AttrKey: true, core.AttrHLC: true}

func encodeAttrs(e *core.Envelope) (string, error) {
	list := e.AppendAttributes(make([]core.Attribute, 0, 16))
	a := storedAttrs{Attributes: make(map[string]string, len(list)), Headers: e.Headers, Priority: e.Priority}
	for _, at := range list {
		if !inColumns[at.Name] {
			a.Attributes[at.Name] = at.Value
		}
	}
	if e.ContentType != "" {
		a.Attributes[core.AttrContentType] = e.ContentType
	}
	b, err := json.Marshal(&a)
	return string(b), err
}

// decodeAttrs sets what encodeAttrs wrote. Whatever can be read is set, also if there is an error.
func decodeAttrs(e *core.Envelope, text string) error {
	var a storedAttrs
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return fmt.Errorf("column attrs holds %d bytes that are not the JSON that Stage writes", len(text))
	}
	var first error
	for name, value := range a.Attributes {
		if known, err := e.SetAttribute(name, value); err != nil && first == nil {
			first = fmt.Errorf("column attrs: %w", err)
		} else if !known && first == nil {
			first = fmt.Errorf("column attrs: attribute %q is unknown", core.ErrorText(errors.New(name)))
		}
	}
	e.Headers, e.Priority = a.Headers, a.Priority
	return first
}

// expiry returns when e expires as stored, or nil.
func expiry(e *core.Envelope) any {
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

// HighWater returns the highest stamp that was settled or stands in one of the newest 10,000 rows.
func (s *Store) HighWater(ctx context.Context) (hlc.Timestamp, error) {
	var ts int64
	if err := s.db.QueryRowContext(ctx, s.text.highWater).Scan(&ts); err != nil {
		return 0, s.classify("high water", err)
	}
	return hlc.Timestamp(ts), nil
}
