package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

var _ admin.Inspector = (*Store)(nil)

const (
	// storedSQL are the columns of record r for operators. A hold lasts until its holder's lease ends, if that is
	// not renewed.
	storedSQL = rowSQL + `, r.topic, r.hlc, r.settled_at, r.ready_since, coalesce(r.reason, ''), coalesce(r.error, ''),
		r.error_at, coalesce(r.dedupe_key, ''), r.attrs,
		coalesce((SELECT m.name FROM waybill_outbox_members m WHERE m.session = r.hold), ''),
		coalesce((SELECT m.renewed_at + m.lease FROM waybill_outbox_members m WHERE m.session = r.hold), 0)`

	inspectText  = `SELECT ` + storedSQL + `, r.body FROM waybill_outbox r WHERE r.route = ?1 AND r.id = ?2`
	storedText   = `SELECT ` + storedSQL + ` FROM waybill_outbox r WHERE r.seq = ?1`
	walkText     = `SELECT ` + storedSQL + ` FROM waybill_outbox r WHERE r.seq > ?1 ORDER BY r.seq LIMIT ?2`
	walkGoneText = `SELECT ` + storedSQL + `
		FROM waybill_outbox r INDEXED BY waybill_outbox_gone
		WHERE r.seq > ?1 AND r.state = {abandoned}
		ORDER BY r.seq LIMIT ?2`

	// routesText goes from route to route.
	routesText = `WITH RECURSIVE n(route) AS (
			SELECT min(route) FROM waybill_outbox INDEXED BY waybill_outbox_id
			UNION ALL
				SELECT (SELECT min(r.route) FROM waybill_outbox r INDEXED BY waybill_outbox_id WHERE r.route > n.route)
				FROM n
				WHERE n.route IS NOT NULL)
		SELECT route FROM n WHERE route IS NOT NULL LIMIT 10000`
)

// stored is a record as operators see it.
type stored struct {
	admin.Stored
	row    row
	attrs  string
	dedupe string // as stored
}

// stored reads storedSQL and the columns after it, but not yet the attributes.
func (w *work) stored(rows *sql.Rows, after ...any) (*stored, error) {
	var r stored
	var settled, failed sql.NullInt64
	var since, stamp, leased int64
	var holder string
	e := &r.Envelope
	if err := r.row.scan(rows, append([]any{
		&e.Topic, &stamp, &settled, &since, &r.Reason, &r.LastError, &failed, &r.dedupe, &r.attrs, &holder, &leased,
	}, after...)...); err != nil {
		return nil, err
	}
	at := func(t sql.NullInt64) time.Time {
		if !t.Valid {
			return time.Time{}
		}
		return time.UnixMicro(t.Int64).UTC()
	}
	r.Seq, r.Route, r.State, r.Attempts, r.Crashes = r.row.Seq, r.row.Route, r.row.Shown(), r.row.Attempts, r.row.Crashes
	e.ID, e.Key, e.HLC = r.row.ID, r.row.key, hlc.Timestamp(stamp)
	r.row.Reason = r.Reason
	r.SetDedupeKey(r.dedupe)
	r.Age, r.LastErrorAt, r.SettledAt = duration(w.now-since), at(failed), at(settled)
	switch {
	case r.row.Holder != 0:
		r.Owner, r.LeaseIn = holder, duration(max(leased-w.now, 0))
	case r.row.Waits:
		r.DueIn = duration(max(r.row.due-w.now, 0))
	}
	return &r, nil
}

// decode sets the attributes. It leaves out unreadable ones and reports them in Err.
func (s *Store) decode(r *stored) {
	if err := decodeAttrs(&r.Envelope, r.attrs); err != nil {
		r.Err = fmt.Errorf("waybill/sqlite: row %d of %soutbox: %w", r.Seq, s.opts.Prefix, err)
	}
	s.complete(&r.Envelope)
}

// lookup returns the record that text selects, or nil. The columns after storedSQL go to after.
func (w *work) lookup(ctx context.Context, after []any, text string, args ...any) (r *stored, err error) {
	err = w.each(ctx, func(rows *sql.Rows) (bool, error) {
		r, err = w.stored(rows, after...)
		return false, err
	}, text, args...)
	return r, err
}

// Inspect returns the record of a message on a route, by the index on both. A held record is processing.
func (s *Store) Inspect(ctx context.Context, route, id string) (admin.Stored, error) {
	var body []byte
	var r *stored
	err := s.read(ctx, "inspect", func(w *work) (err error) {
		r, err = w.lookup(ctx, []any{&body}, inspectText, route, id)
		return err
	})
	switch {
	case err != nil:
		return admin.Stored{}, err
	case r == nil:
		return admin.Stored{}, admin.NoRecord("waybill/sqlite: inspect", route, id)
	}
	s.decode(r)
	r.Envelope.Body = body
	return r.Stored, nil
}

// List returns a page of the records that f selects, without bodies. It finds ids by their index, and abandoned records
// (f names reasons, or only that state) by theirs. It looks for all others by sequence, at most page.Budget rows.
func (s *Store) List(ctx context.Context, f admin.Filter, page admin.PageRequest) (admin.Listing, error) {
	page, err := admin.CheckList(&f, page)
	if err != nil {
		return admin.Listing{}, err
	}
	return s.list(ctx, "list", &f, page, func(core.State, waybill.Reason) bool { return true })
}

// list returns a page of the records that f and takes select.
func (s *Store) list(
	ctx context.Context, op string, f *admin.Filter, page admin.PageRequest, takes func(core.State, waybill.Reason) bool,
) (out admin.Listing, err error) {
	err = s.read(ctx, op, func(w *work) (err error) {
		if len(f.IDs) > 0 {
			out, err = w.listIDs(ctx, f, page, takes)
		} else {
			out, err = w.walk(ctx, f, page, takes)
		}
		return err
	})
	if err != nil {
		return admin.Listing{}, err
	}
	return out, nil
}

// walk goes from record to record.
func (w *work) walk(
	ctx context.Context, f *admin.Filter, page admin.PageRequest, takes func(core.State, waybill.Reason) bool,
) (out admin.Listing, err error) {
	text := walkText
	if f.OnlyAbandoned() {
		text = walkGoneText
	}
	looked := 0
	err = w.each(ctx, func(rows *sql.Rows) (bool, error) {
		r, err := w.stored(rows)
		if err != nil {
			return false, err
		}
		looked++
		if w.s.matches(f, r) && takes(r.State, r.Reason) {
			out.Records = append(out.Records, r.Stored)
		}
		if len(out.Records) == page.Limit || looked == page.Budget {
			out.Next = r.Seq
			return false, nil
		}
		return true, nil
	}, text, page.After, page.Budget)
	return out, err
}

// listIDs looks for f.IDs on f.Routes, or on every route.
func (w *work) listIDs(
	ctx context.Context, f *admin.Filter, page admin.PageRequest, takes func(core.State, waybill.Reason) bool,
) (out admin.Listing, err error) {
	routes := f.Routes
	if len(routes) == 0 {
		if routes, err = w.routes(ctx); err != nil {
			return out, err
		}
	}
	var body sql.RawBytes
	seen := map[int64]bool{}
	for _, route := range routes {
		for _, id := range f.IDs {
			if err := ctx.Err(); err != nil {
				return out, err
			}
			r, err := w.lookup(ctx, []any{&body}, inspectText, route, id)
			if err != nil {
				return out, err
			}
			if r == nil || r.Seq <= page.After || seen[r.Seq] || !w.s.matches(f, r) || !takes(r.State, r.Reason) {
				continue
			}
			seen[r.Seq] = true
			out.Records = append(out.Records, r.Stored)
		}
	}
	slices.SortFunc(out.Records, func(a, b admin.Stored) int { return int(a.Seq - b.Seq) })
	if len(out.Records) > page.Limit {
		out.Records = out.Records[:page.Limit]
		out.Next = out.Records[page.Limit-1].Seq
	}
	return out, nil
}

// routes returns the routes that have records.
func (w *work) routes(ctx context.Context) (routes []string, err error) {
	err = w.each(ctx, func(rows *sql.Rows) (bool, error) {
		var r string
		err := rows.Scan(&r)
		routes = append(routes, r)
		return true, err
	}, routesText)
	return routes, err
}

// matches reports whether f selects r, and decodes r if it can.
func (s *Store) matches(f *admin.Filter, r *stored) bool {
	columns := admin.Filter{IDs: f.IDs, Routes: f.Routes, States: f.States, Reasons: f.Reasons, Topics: f.Topics, Keys: f.Keys}
	if !columns.Matches(&r.Stored) {
		return false
	}
	s.decode(r)
	return f.Matches(&r.Stored)
}
