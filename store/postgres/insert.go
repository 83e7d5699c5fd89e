package postgres

import (
	"time"

	"github.com/waybill-go/waybill/core"
)

// insertForm is the form of a statement that writes rows without dedupe keys, all of a call in one. The properties that
// all of them share make it cheaper.
type insertForm struct {
	due    due
	one    bool // a single row, by values instead of arrays
	fresh  bool // all ids were made here, so that there can be no duplicates
	notify bool // a relay that sleeps must hear of them
}

// due is when messages are.
type due uint8

const (
	atOnce    due = iota
	delayed       // one row: so long from now by the database's clock
	scheduled     // at a time; of several rows, some are delayed or scheduled
)

const insertedSQL = "route, id, topic, key, type, source, content_type, correlation_id, trace_parent, " +
	"occurred_at, hlc, expires_at, attrs, body, slot, cancellable"

func (f insertForm) sql() string {
	if f.one {
		return f.oneSQL()
	}
	return f.manySQL()
}

func (f insertForm) oneSQL() string {
	columns, values, at := "", "", ""
	switch f.due {
	case delayed:
		at = "clock_timestamp() + $17::bigint::float8 * interval '1 microsecond'"
		columns, values = ", due_at, ready_since", ", "+at+", "+at
	case scheduled:
		at = "$17::timestamptz"
		columns, values = ", due_at, ready_since", ", "+dueSQL(at)
	case atOnce:
	}
	columns, values = f.more(columns, values, "$1::text", at)
	return `
INSERT INTO {outbox} (` + insertedSQL + columns + `)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text,
        $10::timestamptz, $11::bigint, $12::timestamptz, $13::json, $14::bytea, $15::bigint, $16::boolean` + values + `)` +
		f.duplicatesSQL("true")
}

func (f insertForm) manySQL() string {
	columns, values, at, arrays, names, from := "", "", "", "", "", ""
	if f.due != atOnce {
		at = "d.at"
		columns, values = ", due_at, ready_since", ", "+dueSQL(at)
		arrays, names = ", $17::timestamptz[], $18::bigint[]", ", at, delay"
		from = `
CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0)::float8 * interval '1 microsecond') AS at) d`
	}
	columns, values = f.more(columns, values, "r.route", at)
	return `
INSERT INTO {outbox} (` + insertedSQL + columns + `)
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent,
       r.occurred_at, r.hlc, r.expires_at, nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable` + values + `
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[]` + arrays + `)
     AS r(` + insertedSQL + names + `)` + from + f.duplicatesSQL("route, id")
}

// more adds columns and their values: an id that was made here need not be in the index of ids that may exist twice.
func (f insertForm) more(columns, values, route, at string) (c, v string) {
	if f.fresh {
		columns, values = columns+", own_id", values+", false"
	}
	if f.notify {
		columns, values = columns+", maybe_sent", values+", "+wakeSQL(route, at)
	}
	return columns, values
}

// duplicatesSQL makes duplicates no-ops, and returns columns of the rows that are new, in the order of the input.
func (f insertForm) duplicatesSQL(columns string) string {
	if f.fresh {
		return ""
	}
	return "\nON CONFLICT (route, id) WHERE own_id DO NOTHING RETURNING " + columns
}

// dueSQL are the values of due_at and ready_since of a message that is due at a time, null = at once.
func dueSQL(at string) string {
	return "CASE WHEN " + at + " > clock_timestamp() THEN " + at + " END, greatest(" + at + ", clock_timestamp())"
}

// wakeSQL is the value of maybe_sent of a new row: false. Finding that out notifies relays on the route, but only
// while one sleeps; a notification belongs to the transaction and its savepoints, so that a rollback wakes no relay.
// (In the RETURNING of an insert it would cost more.) at is when the row is due, "" = at once: a sleeping relay finds a
// row that is due in more than a minute by itself.
func wakeSQL(route, at string) string {
	soon := ""
	if at != "" { // first, since it is cheap
		soon = "coalesce(" + at + " < clock_timestamp() + interval '1 minute', true) AND "
	}
	return "CASE WHEN " + soon + "(SELECT w.last_value::float8 > date_part('epoch', clock_timestamp()) * '1000' FROM {wake} w) " +
		"THEN pg_notify({channel}, " + route + ") IS NULL ELSE false END"
}

// statement returns the form of the insert for rows without dedupe keys, and its arguments: one value a column, or
// one array.
func (s *stager) statement(rows []core.StagedRow) (insertForm, []any, error) {
	f := insertForm{one: len(rows) == 1, fresh: true, notify: s.notify}
	for i := range rows {
		f.fresh = f.fresh && rows[i].GeneratedID
	}
	if !f.one {
		args, timed, err := columns(rows)
		if err == nil && timed {
			at, delay := times(rows)
			f.due, args = scheduled, append(args, at, delay)
		}
		return f, args, err
	}
	r := &rows[0]
	args, err := values(r)
	switch {
	case !r.DeliverAt.IsZero():
		f.due, args = scheduled, append(args, r.DeliverAt)
	case r.Delay > 0:
		f.due, f.notify, args = delayed, s.notify && r.Delay < time.Minute, append(args, micros(r.Delay))
	}
	return f, args, err
}

// values returns the row's columns.
func values(r *core.StagedRow) ([]any, error) {
	e := &r.Envelope
	attrs, err := encodeAttrs(e)
	if err != nil {
		return nil, err
	}
	kind, body := e.Type, e.Body
	if kind == e.Topic {
		kind = ""
	}
	if body == nil {
		body = []byte{}
	}
	args := []any{
		r.Route, e.ID, e.Topic, e.Key, kind, e.Source, e.ContentType, e.CorrelationID, e.TraceParent,
		e.Time, int64(e.HLC), nil, nil, body, slotOf(r), r.Cancellable, nil,
	}
	if !e.Expires.IsZero() {
		args[11] = e.Expires
	}
	if attrs != "" {
		args[12] = attrs
	}
	return args[:16], nil // and room for one more
}

// columns returns one array a column, and whether any row is scheduled.
func columns(rows []core.StagedRow) (args []any, timed bool, err error) {
	n := len(rows)
	text := make([]string, 10*n) // one allocation for all text columns
	col := func(i int) []string { return text[i*n : (i+1)*n : (i+1)*n] }
	occurred, stamps, expires, bodies := make([]time.Time, n), make([]int64, n), make([]*time.Time, n), make([][]byte, n)
	slots, cancellable := make([]int64, n), make([]bool, n)
	for i := range rows {
		e := &rows[i].Envelope
		text[i], text[n+i], text[2*n+i], text[3*n+i] = rows[i].Route, e.ID, e.Topic, e.Key
		if e.Type != e.Topic {
			text[4*n+i] = e.Type
		}
		text[5*n+i], text[6*n+i], text[7*n+i], text[8*n+i] = e.Source, e.ContentType, e.CorrelationID, e.TraceParent
		attrs, err := encodeAttrs(e)
		if err != nil {
			return nil, false, err
		}
		text[9*n+i] = attrs
		occurred[i], stamps[i], bodies[i] = e.Time, int64(e.HLC), e.Body
		slots[i], cancellable[i] = slotOf(&rows[i]), rows[i].Cancellable
		if e.Body == nil {
			bodies[i] = []byte{}
		}
		if !e.Expires.IsZero() {
			expires[i] = &e.Expires
		}
		timed = timed || !rows[i].DeliverAt.IsZero() || rows[i].Delay > 0
	}
	return []any{
		col(0), col(1), col(2), col(3), col(4), col(5), col(6), col(7), col(8),
		occurred, stamps, expires, col(9), bodies, slots, cancellable,
	}, timed, nil
}

func slotOf(r *core.StagedRow) int64 {
	return int64(core.SlotOf(r.Route, r.Envelope.Key, r.Envelope.ID))
}

// times returns the columns of rows some of which are scheduled.
func times(rows []core.StagedRow) (at []*time.Time, delay []int64) {
	at, delay = make([]*time.Time, len(rows)), make([]int64, len(rows))
	for i := range rows {
		if !rows[i].DeliverAt.IsZero() {
			at[i] = &rows[i].DeliverAt
		}
		delay[i] = micros(rows[i].Delay)
	}
	return at, delay
}
