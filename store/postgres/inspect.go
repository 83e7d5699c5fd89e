package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

var _ core.Inspector = (*Outbox)(nil)

// storedSQL are the columns of a row o that people see.
const storedSQL = `
    o.seq, o.route, o.id, o.topic, o.key, o.type, o.source, o.content_type, o.correlation_id, o.trace_parent, ` + occurredSQL + `, o.hlc, ` + expiresSQL + `,
    o.attrs, o.state, o.reason, o.attempts, o.crashes, o.dedupe_key, o.last_error, o.last_error_at, o.settled_at,
    (extract(epoch FROM statement_timestamp() - ` + sinceSQL + `) * 1000000)::bigint,
    CASE WHEN o.settled_at IS NULL AND o.due_at = 'infinity' THEN 9223372036854775807
         WHEN o.settled_at IS NULL AND o.due_at > statement_timestamp() THEN (extract(epoch FROM o.due_at - statement_timestamp()) * 1000000)::bigint ELSE 0 END,
    CASE WHEN o.lease_until > statement_timestamp() THEN o.lease_owner ELSE '' END,
    CASE WHEN o.lease_until > statement_timestamp() THEN (extract(epoch FROM o.lease_until - statement_timestamp()) * 1000000)::bigint ELSE 0 END`

const inspectSQL = `SELECT` + storedSQL + `, o.body FROM {outbox} o WHERE o.route = $1 AND o.id = $2`

// matchSQL is a filter, whose fields are the parameters from $4 on; see filterArgs.
const matchSQL = `
    (cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (cardinality($6::smallint[]) = 0 OR o.state = ANY ($6)) AND (cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (cardinality($8::text[]) = 0 OR o.topic = ANY ($8)) AND (cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12)`

// walk is how a statement comes by the rows of a filter, in the order of sequences: after $1, at most $2 of them.
type walk uint8

const (
	walkAll       walk = iota // by the primary key
	walkAbandoned             // by the index of abandoned rows
	walkIDs                   // by route and id
)

func walkOf(f *core.Filter) walk {
	switch {
	case len(f.IDs) > 0:
		return walkIDs
	case f.OnlyAbandoned():
		return walkAbandoned
	}
	return walkAll
}

// sql returns the common tables of a statement: w, the rows that it looks at, with whether they match, and p, the first
// $3 of those that do. Nothing is computed of w beyond what p needs, unless the statement asks how far w goes. A LIMIT 1 in
// these statements keeps the planner, who thinks of a tenth of the table, from joining all of it.
func (w walk) sql(match string) string {
	from := `SELECT o.seq, ` + match + ` AS ok FROM {outbox} o WHERE o.seq > $1 ORDER BY o.seq LIMIT $2`
	recursive := ""
	switch w {
	case walkAbandoned: // on seq + 0, so that nobody takes the primary key instead
		from = `SELECT o.seq, ` + match + ` AS ok FROM {outbox} o WHERE o.seq + 0 > $1 AND o.reason <> '' ORDER BY o.seq + 0 LIMIT $2`
	case walkIDs: // on every route, if none is named
		recursive = `RECURSIVE routes AS (
    (SELECT o.route FROM {outbox} o WHERE cardinality($5::text[]) = 0 ORDER BY o.route LIMIT 1)
    UNION ALL
    SELECT (SELECT o.route FROM {outbox} o WHERE o.route > r.route ORDER BY o.route LIMIT 1) FROM routes r WHERE r.route IS NOT NULL
), `
		from = `SELECT o.seq, ` + match + ` AS ok
    FROM (SELECT r.route FROM routes r WHERE r.route IS NOT NULL UNION SELECT unnest($5::text[])) r
    CROSS JOIN (SELECT DISTINCT unnest($4::text[]) AS id) i
    CROSS JOIN LATERAL (SELECT o.* FROM {outbox} o WHERE o.route = r.route AND o.id = i.id LIMIT 1) o WHERE o.seq > $1 ORDER BY o.seq LIMIT $2`
	case walkAll:
	}
	return `
WITH ` + recursive + `w AS MATERIALIZED (
    ` + from + `
), p AS MATERIALIZED (
    SELECT w.seq FROM w WHERE w.ok LIMIT $3
)`
}

// nextSQL says where to go on after p: behind its last row if it is full, else behind the last row that was looked at if
// there may be more.
const nextSQL = `CASE WHEN (SELECT count(*) FROM p) >= $3 THEN (SELECT max(p.seq) FROM p) WHEN (SELECT count(*) FROM w) >= $2 THEN (SELECT max(w.seq) FROM w) ELSE 0 END`

func listSQL(w walk) string {
	return w.sql(matchSQL) + `
SELECT n.next, s.* FROM (SELECT ` + nextSQL + ` AS next) n
LEFT JOIN (SELECT` + storedSQL + ` FROM p CROSS JOIN LATERAL (SELECT o.* FROM {outbox} o WHERE o.seq = p.seq LIMIT 1) o) s ON true ORDER BY s.seq`
}

// filterArgs are the parameters of a walk and a filter.
func filterArgs(f *core.Filter, page core.Page) []any {
	text := func(list []string) []string { return append(make([]string, 0, len(list)), list...) }
	states := make([]int16, len(f.States))
	for i, s := range f.States {
		states[i] = int16(s)
	}
	reasons := make([]string, len(f.Reasons))
	for i, r := range f.Reasons {
		reasons[i] = string(r)
	}
	at := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		return &t
	}
	return []any{
		page.After, page.Budget, page.Limit, text(f.IDs), text(f.Routes), states, reasons, text(f.Topics), text(f.Tenants), text(f.Keys),
		at(f.Since), at(f.Until),
	}
}

// Inspect returns the record of a message on a route, by the index on both.
func (o *Outbox) Inspect(ctx context.Context, route, id string) (core.Stored, error) {
	if err := o.ready(ctx); err != nil {
		return core.Stored{}, err
	}
	var st core.Stored
	found := false
	err := o.transact(ctx, "inspect", func(b *pgx.Batch) {
		b.Queue(o.names.sql(inspectSQL), route, id).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				found = true
				var body []byte
				var err error
				if st, err = scanStored(rows, o.opts.Source, nil, []any{&body}); err != nil {
					return err
				}
				st.Envelope.Body = body
			}
			return rows.Err()
		})
	})
	if err == nil && !found {
		err = core.NoRecord("waybill/postgres: inspect", route, id)
	}
	return st, err
}

// List returns a page of the records that f selects, without bodies. It finds ids by their index, and abandoned records
// (f names reasons, or only that state) by theirs; anything else it looks for by sequence, at most page.Budget rows.
func (o *Outbox) List(ctx context.Context, f core.Filter, page core.Page) (core.Listing, error) {
	page, err := core.CheckList(&f, page)
	if err != nil {
		return core.Listing{}, err
	}
	if err := o.ready(ctx); err != nil {
		return core.Listing{}, err
	}
	var out core.Listing
	err = o.transact(ctx, "list", func(b *pgx.Batch) {
		out = core.Listing{}
		b.Queue(o.names.sql(listSQL(walkOf(&f))), filterArgs(&f, page)...).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				if rows.RawValues()[1] == nil { // nothing matches
					if err := rows.Scan(append([]any{&out.Next}, make([]any, len(rows.FieldDescriptions())-1)...)...); err != nil {
						return err
					}
					continue
				}
				st, err := scanStored(rows, o.opts.Source, []any{&out.Next}, nil)
				if err != nil {
					return err
				}
				out.Records = append(out.Records, st)
			}
			return rows.Err()
		})
	})
	return out, err
}

// scanStored reads storedSQL, between what stands before and after. What the row holds may be unreadable; then it says so.
func scanStored(row pgx.Row, source string, before, after []any) (core.Stored, error) {
	var (
		st                  core.Stored
		stamp               int64
		state               int16
		age, due, lease     int64
		expires, failed, at *time.Time
		attrs               []byte
	)
	e := &st.Envelope
	dest := slices.Concat(before, []any{
		&st.Seq, &st.Route, &e.ID, &e.Topic, &e.Key, &e.Type, &e.Source, &e.ContentType, &e.CorrelationID, &e.TraceParent, &e.Time, &stamp, &expires,
		&attrs, &state, &st.Reason, &st.Attempts, &st.Crashes, &st.DedupeKey, &st.LastError, &failed, &at, &age, &due, &st.Owner, &lease,
	}, after)
	if err := row.Scan(dest...); err != nil {
		return core.Stored{}, err
	}
	if e.Type == "" {
		e.Type = e.Topic
	}
	if e.Source == "" {
		e.Source = source
	}
	utc := func(to, t *time.Time) {
		if t != nil {
			*to = t.UTC()
		}
	}
	e.Time, e.HLC = e.Time.UTC(), hlc.Timestamp(stamp)
	utc(&e.Expires, expires)
	utc(&st.LastErrorAt, failed)
	utc(&st.SettledAt, at)
	st.State, st.Age, st.DueIn, st.LeaseIn = core.State(state), microsDuration(age), microsDuration(due), microsDuration(lease)
	st.Err = decodeAttrs(e, attrs)
	if st.Err == nil && stamp < 0 {
		st.Err = &core.Error{Op: "waybill/postgres: column hlc", Class: core.ClassPermanent, Reason: core.ReasonUndecodable, Err: hlc.ErrInvalid}
	}
	return st, nil
}
