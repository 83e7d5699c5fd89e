package postgres

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

var (
	_ admin.Inspector    = (*Outbox)(nil)
	_ admin.SeqInspector = (*Outbox)(nil)
)

// stateSQL is the state of a row o: a record that a member holds is being processed.
const stateSQL = `CASE WHEN ` + liveHoldSQL + ` THEN {processing} ELSE o.state END`

// storedSQL are the columns of a row o that people see.
const storedSQL = `
    o.seq, o.route, o.id, o.topic, o.key, o.type, o.source, o.content_type, o.correlation_id, o.trace_parent,
    o.occurred_at, o.hlc, o.expires_at, o.attrs,
    ` + stateSQL + `, o.reason, o.attempts, o.crashes, o.dedupe_key, o.last_error, o.last_error_at, o.settled_at,
    (extract(epoch FROM statement_timestamp() - o.ready_since) * '1000000')::bigint,
    CASE WHEN o.settled_at IS NULL AND o.due_at > statement_timestamp() AND NOT ` + liveHoldSQL + `
         THEN (extract(epoch FROM o.due_at - statement_timestamp()) * '1000000')::bigint ELSE 0 END,
    coalesce((SELECT me.name FROM {members} me WHERE me.session = o.hold AND o.hold <> 0), ''),
    coalesce((SELECT greatest(me.lease - (extract(epoch FROM statement_timestamp() - me.renewed_at) * '1000000')::bigint, 0)
              FROM {members} me WHERE me.session = o.hold AND o.hold <> 0), 0)`

// Ids that the program chose, and those of records that are not simply due, are in indexes. The others are found by a
// walk, which gives their sequence, $3.
const inspectSQL = `SELECT` + storedSQL + `, o.body FROM (
    SELECT o.* FROM {outbox} o WHERE o.route = $1 AND o.id = $2 AND o.own_id
    UNION ALL
    SELECT o.* FROM {outbox} o WHERE o.route = $1 AND o.id = $2 AND ` + inFoundSQL + `
    UNION ALL
    SELECT o.* FROM {outbox} o WHERE o.route = $1 AND o.id = $2 AND o.seq = $3
    LIMIT 1
) o`

// madeID is what ids look like that Waybill makes. Only they can be outside of the indexes of ids.
const madeID = `^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`

var isMadeID = regexp.MustCompile(madeID).MatchString

// matchSQL is a filter, whose fields are the parameters from $4 on; see filterArgs.
const matchSQL = `
    (cardinality($4::text[]) = 0 OR o.id = ANY ($4)) AND (cardinality($5::text[]) = 0 OR o.route = ANY ($5))
    AND (cardinality($6::smallint[]) = 0 OR ` + stateSQL + ` = ANY ($6))
    AND (cardinality($7::text[]) = 0 OR o.reason = ANY ($7))
    AND (cardinality($8::text[]) = 0 OR o.topic = ANY ($8))
    AND (cardinality($9::text[]) = 0 OR coalesce(o.attrs ->> 'tenant', '') = ANY ($9))
    AND (cardinality($10::text[]) = 0 OR o.key = ANY ($10))
    AND ($11::timestamptz IS NULL OR o.occurred_at >= $11) AND ($12::timestamptz IS NULL OR o.occurred_at < $12)`

// allRoutesSQL are the routes: those that are or were served, and between them any others. It reads one row of each of
// these.
const allRoutesSQL = `known AS MATERIALIZED (
    SELECT k.route, coalesce(lead(k.route) OVER (ORDER BY k.route), E'\U0010FFFF') AS next
    FROM (SELECT '' COLLATE "C" AS route UNION SELECT ro.route FROM {routes} ro) k
), others AS (
    SELECT (SELECT o.route FROM {outbox} o WHERE o.route > k.route AND o.route < k.next ORDER BY o.route LIMIT 1) AS route, k.next
    FROM known k
    UNION ALL
    SELECT (SELECT o.route FROM {outbox} o WHERE o.route > x.route AND o.route < x.next ORDER BY o.route LIMIT 1), x.next
    FROM others x WHERE x.route IS NOT NULL
), routes AS MATERIALIZED (
    SELECT k.route FROM known k WHERE k.route <> '' UNION ALL SELECT x.route FROM others x WHERE x.route IS NOT NULL
)`

// walk is how a statement comes by the rows of a filter, in the order of sequences: after $1, at most $2 of them.
type walk uint8

const (
	walkAll       walk = iota // route by route
	walkAbandoned             // the same by the index of abandoned rows
	walkIDs                   // by route and id
)

func walkOf(f *admin.Filter) walk {
	switch {
	case len(f.IDs) > 0:
		return walkIDs
	case f.OnlyAbandoned():
		return walkAbandoned
	}
	return walkAll
}

// filteredRoutesSQL are the routes of a filter.
const filteredRoutesSQL = `asked AS MATERIALIZED (
    SELECT r.route FROM routes r WHERE cardinality($5::text[]) = 0 UNION SELECT unnest($5::text[])
)`

// oneRow stands in a dry run where the statement that changes something locks: each row is looked up then too. Without
// either the planner may go over the whole table instead.
const oneRow = `LIMIT 1`

// sql returns the common tables of a statement: w, the rows that it looks at, with whether they match, e, the last row
// looked at if there are more, and p, the first $3 of w that match.
func (w walk) sql(match string, others bool) string {
	from := `
WITH RECURSIVE ` + allRoutesSQL + `, ` + filteredRoutesSQL
	if w == walkIDs {
		return from + idsSQL(match, others) + matchedSQL
	}
	only := ""
	if w == walkAbandoned {
		only = ` AND o.reason <> ''`
	}
	return from + stepSQL(`asked`, match, only) + `, w AS MATERIALIZED (
    SELECT a.* FROM a CROSS JOIN e WHERE e.seq IS NULL OR a.seq <= e.seq
)` + matchedSQL
}

// stepSQL is a step of a walk over some routes: a, as many rows of each route after $1 as are its share of $2, and e,
// the end of what all routes have.
func stepSQL(routes, match, only string) string {
	return `, share AS MATERIALIZED (
    SELECT greatest($2::int / greatest(count(*), 1), 1) AS n FROM ` + routes + `
), a AS MATERIALIZED (
    SELECT r.route, o.seq, o.ok FROM ` + routes + ` r CROSS JOIN LATERAL (
        SELECT o.seq, ` + match + ` AS ok FROM {outbox} o
        WHERE o.route = r.route AND o.seq > $1` + only + `
        ORDER BY o.seq LIMIT (SELECT n FROM share)
    ) o
), e AS MATERIALIZED (
    SELECT min(x.seq) AS seq
    FROM (SELECT max(a.seq) AS seq FROM a GROUP BY a.route HAVING count(*) >= (SELECT n FROM share)) x
)`
}

// idsSQL finds ids by their indexes, byid. Those that no index has, of records that are simply due, it looks for in a
// step of a walk over the routes that lack one, unless only other records are asked for, such as abandoned ones.
func idsSQL(match string, others bool) string {
	step, due := `, e AS MATERIALIZED (
    SELECT (SELECT x.seq FROM byid x WHERE x.seq > $1 ORDER BY x.seq OFFSET $2::int - 1 LIMIT 1) AS seq
)`, ``
	if !others {
		step = `, lacking AS MATERIALIZED (
    SELECT r.route FROM asked r LEFT JOIN (SELECT x.route, count(DISTINCT x.id) AS n FROM byid x WHERE x.made GROUP BY x.route) f USING (route)
    WHERE coalesce(f.n, 0) < (SELECT count(*) FROM ids i WHERE i.made)
      AND cardinality($7::text[]) = 0 AND (cardinality($6::smallint[]) = 0 OR {pending} = ANY ($6))
)` + stepSQL(`lacking`, `(o.id = ANY ($4) AND o.due_at IS NULL AND o.settled_at IS NULL
            AND NOT o.own_id AND NOT o.cancellable AND o.hold = 0)`, ``)
		due = ` UNION ALL SELECT a.route, a.seq FROM a WHERE a.ok`
	}
	return `, ids AS MATERIALIZED (
    SELECT DISTINCT u.id, u.id ~ '` + madeID + `' AS made FROM unnest($4::text[]) u (id)
), byid AS MATERIALIZED (
    SELECT r.route, i.id, i.made, o.seq FROM asked r CROSS JOIN ids i CROSS JOIN LATERAL (
        (SELECT o.seq FROM {outbox} o WHERE o.route = r.route AND o.id = i.id AND o.own_id LIMIT 1)
        UNION ALL
        (SELECT o.seq FROM {outbox} o WHERE o.route = r.route AND o.id = i.id AND ` + inFoundSQL + ` LIMIT 1)
    ) o
)` + step + `, w AS MATERIALIZED (
    SELECT o.route, o.seq, ` + match + ` AS ok
    FROM (SELECT x.route, x.seq FROM byid x` + due + `) y CROSS JOIN e CROSS JOIN LATERAL (
        SELECT o.* FROM {outbox} o WHERE o.route = y.route AND o.seq = y.seq LIMIT 1
    ) o WHERE y.seq > $1 AND (e.seq IS NULL OR y.seq <= e.seq)
)`
}

// matchedSQL are the first rows of a walk that match.
const matchedSQL = `, p AS MATERIALIZED (
    SELECT w.route, w.seq FROM w WHERE w.ok ORDER BY w.seq LIMIT $3
)`

// onSQL says where to go on after p: behind its last row if it is full, else behind the last row that was looked at if
// there may be more.
const onSQL = `coalesce(
    CASE WHEN (SELECT count(*) FROM p) >= $3 THEN (SELECT max(p.seq) FROM p) ELSE (SELECT e.seq FROM e) END, 0)`

func listSQL(w walk) string {
	return w.sql(matchSQL, false) + `
SELECT n.next, s.* FROM (SELECT ` + onSQL + ` AS next) n
LEFT JOIN (
    SELECT` + storedSQL + `
    FROM p CROSS JOIN LATERAL (SELECT o.* FROM {outbox} o WHERE o.route = p.route AND o.seq = p.seq LIMIT 1) o
) s ON true ORDER BY s.seq`
}

// adminStatements are those of looking, putting back and deleting, by walk.
type adminStatements struct {
	inspect, blocked, count string
	ahead, trial, lock      string
	audit, auditLog         string
	list                    [walkIDs + 1]string
	redrive, dryRun         [walkIDs + 1]string
	purge, dryPurge         [walkIDs + 1]string
}

func newAdminStatements(n schema.Names) adminStatements {
	s := adminStatements{inspect: n.SQL(inspectSQL), blocked: n.SQL(blockedSQL), count: n.SQL(countSQL)}
	s.audit, s.auditLog = n.SQL(auditSQL), n.SQL(auditLogSQL)
	s.ahead, s.trial, s.lock = n.SQL(aheadSQL), n.SQL(trialSQL), n.SQL(lockSQL)
	for i := range s.list {
		w := walk(i)
		s.list[w], s.redrive[w], s.dryRun[w] = n.SQL(listSQL(w)), n.SQL(redriveSQL(w, false)), n.SQL(redriveSQL(w, true))
		s.purge[w], s.dryPurge[w] = n.SQL(purgeRecordsSQL(w, false)), n.SQL(purgeRecordsSQL(w, true))
	}
	return s
}

// filterArgs are the parameters of a walk and a filter.
func filterArgs(f *admin.Filter, page admin.PageRequest) []any {
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

// Inspect returns the record of a message on a route. It finds it by an index, unless the message is simply due and
// Waybill made its id: then it goes through the route in steps of [admin.DefaultPageBudget] rows, each a short
// transaction of its own. So it does for an id of that form that is not there; ctx can end it.
func (o *Outbox) Inspect(ctx context.Context, route, id string) (admin.Stored, error) {
	st, err := o.inspect(ctx, route, id, 0)
	f := admin.Filter{IDs: []string{id}, Routes: []string{route}}
	page := admin.PageRequest{Limit: 1, Budget: admin.DefaultPageBudget}
	for errors.Is(err, waybill.ErrNotFound) && isMadeID(id) {
		l, errList := o.list(ctx, "inspect", &f, page)
		switch page.After = l.Next; {
		case errList != nil:
			return admin.Stored{}, errList
		case len(l.Records) > 0:
			return o.inspect(ctx, route, id, l.Records[0].Seq)
		case l.Next == 0:
			return admin.Stored{}, err
		}
	}
	return st, err
}

// InspectAt returns the record of a message on a route whose id is in an index, or whose sequence is seq. It makes one
// round trip, for any backlog.
func (o *Outbox) InspectAt(ctx context.Context, route, id string, seq int64) (admin.Stored, error) {
	return o.inspect(ctx, route, id, seq)
}

// inspect returns a record that an index of ids has, or that has the sequence seq.
func (o *Outbox) inspect(ctx context.Context, route, id string, seq int64) (admin.Stored, error) {
	var st admin.Stored
	found := false
	err := o.transact(ctx, "inspect", readSQL, func(b *batch) {
		found = false
		b.each(func(rows pgx.Rows) (err error) {
			found = true
			var body []byte
			st, err = scanStored(rows, nil, []any{&body})
			st.Envelope.Body = body
			return err
		}, b.sql.admin.inspect, route, id, seq)
	})
	if err == nil && !found {
		err = admin.NoRecord("waybill/postgres: inspect", route, id)
	}
	return st, err
}

// List returns a page of the records that f selects, without bodies. It finds abandoned records (f names reasons, or
// only that state) by their index, and ids by theirs, except those that Waybill made, of records that are simply due.
// These and anything else it looks for by sequence, at most page.Budget rows.
func (o *Outbox) List(ctx context.Context, f admin.Filter, page admin.PageRequest) (admin.Listing, error) {
	page, err := admin.CheckList(&f, page)
	if err != nil {
		return admin.Listing{}, err
	}
	return o.list(ctx, "list", &f, page)
}

func (o *Outbox) list(ctx context.Context, op string, f *admin.Filter, page admin.PageRequest) (out admin.Listing, err error) {
	err = o.transact(ctx, op, readSQL, func(b *batch) {
		out = admin.Listing{}
		b.each(func(rows pgx.Rows) error {
			if rows.RawValues()[1] == nil { // nothing matches
				return rows.Scan(append([]any{&out.Next}, make([]any, len(rows.FieldDescriptions())-1)...)...)
			}
			st, err := scanStored(rows, []any{&out.Next}, nil)
			out.Records = append(out.Records, st)
			return err
		}, b.sql.admin.list[walkOf(f)], filterArgs(f, page)...)
	})
	return out, err
}

// scanStored reads storedSQL, between the columns before and after. If the row's content is unreadable, the error of
// the result names the reason.
func scanStored(row pgx.Row, before, after []any) (admin.Stored, error) {
	var (
		st                  admin.Stored
		stamp               int64
		state               int16
		age, due, lease     int64
		expires, failed, at *time.Time
		attrs               []byte
	)
	e := &st.Envelope
	dest := slices.Concat(before, []any{
		&st.Seq, &st.Route, &e.ID, &e.Topic, &e.Key, &e.Type, &e.Source, &e.ContentType, &e.CorrelationID, &e.TraceParent,
		&e.Time, &stamp, &expires, &attrs,
		&state, &st.Reason, &st.Attempts, &st.Crashes, &st.DedupeKey, &st.LastError, &failed, &at, &age, &due, &st.Owner, &lease,
	}, after)
	if err := row.Scan(dest...); err != nil {
		return admin.Stored{}, err
	}
	if e.Type == "" {
		e.Type = e.Topic
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
	micro := time.Microsecond
	st.State, st.Age = core.State(state), time.Duration(age)*micro
	st.DueIn, st.LeaseIn = time.Duration(due)*micro, time.Duration(lease)*micro
	st.SetDedupeKey(st.DedupeKey)
	st.Err = decodeAttrs(e, attrs)
	if st.Err == nil && stamp < 0 {
		st.Err = undecodable("column hlc", hlc.ErrInvalid)
	}
	return st, nil
}
