package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

var _ core.Inspector = (*Store)(nil)

// storedColumns are the columns that people see, of a row o.
const storedColumns = `o.seq, o.route, o.id, o.topic, coalesce(o.key, ''), o.state, o.wake_at, o.settled_at, o.due_at, o.attempts, o.crashes, o.hlc, coalesce(o.owner, ''),
	coalesce(o.reason, ''), coalesce(o.error, ''), o.error_at, coalesce(o.dedupe_key, ''), o.attrs`

const (
	inspectText  = `SELECT ` + storedColumns + `, o.body FROM waybill_outbox o WHERE o.route = ?1 AND o.id = ?2`
	storedText   = `SELECT ` + storedColumns + ` FROM waybill_outbox o WHERE o.seq = ?1`
	walkText     = `SELECT ` + storedColumns + ` FROM waybill_outbox o WHERE o.seq > ?1 ORDER BY o.seq LIMIT ?2`
	walkGoneText = `SELECT ` + storedColumns + ` FROM waybill_outbox o INDEXED BY waybill_outbox_gone WHERE o.seq > ?1 AND o.state = 5 ORDER BY o.seq LIMIT ?2`
)

// row is a stored record as it was read.
type row struct {
	core.Stored
	attrs string
}

// scanRow reads storedColumns, and what stands after them, but not yet the attributes.
func (s *Store) scanRow(scan func(...any) error, now int64, after ...any) (row, error) {
	var r row
	var wake, settled, failed sql.NullInt64
	var due, stamp int64
	var owner string
	e := &r.Envelope
	if err := scan(append([]any{
		&r.Seq, &r.Route, &e.ID, &e.Topic, &e.Key, &r.State, &wake, &settled, &due, &r.Attempts, &r.Crashes, &stamp, &owner,
		&r.Reason, &r.LastError, &failed, &r.DedupeKey, &r.attrs,
	}, after...)...); err != nil {
		return row{}, err
	}
	e.HLC = hlc.Timestamp(stamp)
	at := func(t sql.NullInt64) time.Time {
		if !t.Valid {
			return time.Time{}
		}
		return time.UnixMicro(t.Int64).UTC()
	}
	r.Age, r.LastErrorAt, r.SettledAt = time.Duration(now-due)*time.Microsecond, at(failed), at(settled)
	left := time.Duration(max(wake.Int64-now, 0)) * time.Microsecond
	switch {
	case r.State == core.StateProcessing && left > 0:
		r.Owner, r.LeaseIn = owner, left
	case r.State == core.StatePending || r.State == core.StateFailed:
		r.DueIn = left
	}
	return r, nil
}

// decode sets the attributes. What cannot be read is left out, and Err says so.
func (s *Store) decode(r *row) {
	e := &r.Envelope
	if err := decodeAttrs(e, r.attrs); err != nil {
		r.Err = fmt.Errorf("waybill/sqlite: row %d of %soutbox: %w", r.Seq, s.opts.Prefix, err)
	}
	if e.Type == "" { // a row that plain SQL inserted
		e.Type = e.Topic
	}
	if e.Source == "" {
		e.Source = s.opts.Source
	}
}

// Inspect returns the record of a message on a route, by the index on both.
func (s *Store) Inspect(ctx context.Context, route, id string) (core.Stored, error) {
	if _, err := s.prepared(ctx, "inspect"); err != nil { // migrates if that was asked for
		return core.Stored{}, err
	}
	var body []byte
	r, err := s.scanRow(s.db.QueryRowContext(ctx, s.text.inspect, route, id).Scan, s.now(), &body)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return core.Stored{}, core.NoRecord("waybill/sqlite: inspect", route, id)
	case err != nil:
		return core.Stored{}, s.classify("inspect", err)
	}
	s.decode(&r)
	r.Envelope.Body = body
	return r.Stored, nil
}

// List returns a page of the records that f selects, without bodies. It finds ids by their index, and abandoned records
// (f names reasons, or only that state) by theirs; anything else it looks for by sequence, at most page.Budget rows.
func (s *Store) List(ctx context.Context, f core.Filter, page core.Page) (core.Listing, error) {
	page, err := core.CheckList(&f, page)
	if err != nil {
		return core.Listing{}, err
	}
	if _, err := s.prepared(ctx, "list"); err != nil {
		return core.Listing{}, err
	}
	out, err := s.list(ctx, &f, page, func(core.State, core.Reason) bool { return true })
	if err != nil {
		return core.Listing{}, s.classify("list", err)
	}
	return out, nil
}

// list returns a page of what f and takes select.
func (s *Store) list(ctx context.Context, f *core.Filter, page core.Page, takes func(core.State, core.Reason) bool) (core.Listing, error) {
	if len(f.IDs) > 0 {
		return s.listIDs(ctx, f, page, takes)
	}
	text := s.text.walk
	if f.OnlyAbandoned() {
		text = s.text.walkGone
	}
	var out core.Listing
	rows, err := s.db.QueryContext(ctx, text, page.After, page.Budget)
	if err != nil {
		return out, err
	}
	defer func() { _ = rows.Close() }()
	now, looked := s.now(), 0
	for rows.Next() {
		r, err := s.scanRow(rows.Scan, now)
		if err != nil {
			return out, err
		}
		looked++
		if s.matches(f, &r) && takes(r.State, r.Reason) {
			out.Records = append(out.Records, r.Stored)
		}
		if len(out.Records) == page.Limit || looked == page.Budget {
			out.Next = r.Seq
			break
		}
	}
	return out, rows.Err()
}

// listIDs looks for f.IDs on f.Routes, or on every route.
func (s *Store) listIDs(ctx context.Context, f *core.Filter, page core.Page, takes func(core.State, core.Reason) bool) (core.Listing, error) {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true}) // one snapshot
	if err != nil {
		return core.Listing{}, err
	}
	defer func() { _ = tx.Rollback() }()
	routes := f.Routes
	if len(routes) == 0 {
		if routes, err = s.routes(ctx, tx); err != nil {
			return core.Listing{}, err
		}
	}
	var out core.Listing
	var body sql.RawBytes
	now, seen := s.now(), map[int64]bool{}
	for _, route := range routes {
		for _, id := range f.IDs {
			if err := ctx.Err(); err != nil {
				return out, err
			}
			r, err := s.scanID(ctx, tx, route, id, now, &body)
			if err != nil {
				return out, err
			}
			if r == nil || r.Seq <= page.After || seen[r.Seq] || !s.matches(f, r) || !takes(r.State, r.Reason) {
				continue
			}
			seen[r.Seq] = true
			out.Records = append(out.Records, r.Stored)
		}
	}
	slices.SortFunc(out.Records, func(a, b core.Stored) int { return int(a.Seq - b.Seq) })
	if len(out.Records) > page.Limit {
		out.Records = out.Records[:page.Limit]
		out.Next = out.Records[page.Limit-1].Seq
	}
	return out, nil
}

func (s *Store) scanID(ctx context.Context, tx *sql.Tx, route, id string, now int64, body *sql.RawBytes) (*row, error) {
	rows, err := tx.QueryContext(ctx, s.text.inspect, route, id)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	if !rows.Next() {
		return nil, rows.Err()
	}
	r, err := s.scanRow(rows.Scan, now, body)
	return &r, err
}

// matches reports whether f selects r, and decodes r if it may.
func (s *Store) matches(f *core.Filter, r *row) bool {
	columns := core.Filter{IDs: f.IDs, Routes: f.Routes, States: f.States, Reasons: f.Reasons, Topics: f.Topics, Keys: f.Keys}
	if !columns.Matches(&r.Stored) {
		return false
	}
	s.decode(r)
	return f.Matches(&r.Stored)
}
