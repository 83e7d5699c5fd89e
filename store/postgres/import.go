package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin/importer"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

var _ importer.Importer = (*Outbox)(nil)

// foreign is the table of another system: its rows that move, their order, and the columns of the outbox as expressions
// of the old row.
type foreign struct {
	importer.System
	// number is the column by which a row is deleted; id if it is empty.
	number string
	where  string
	order  []string
	// beside follows "FROM old ": what several expressions share.
	beside  string
	columns []foreignColumn
}

// foreignColumn is a column of the outbox. Only names the column of the old table that the expression needs, if some
// versions of that table do not have it.
type foreignColumn struct{ name, expression, only string }

// messageNumber sorts the rows of one transaction of Protean: the numbers at the end of a message's id.
const messageNumber = `string_to_array(substring(message_id FROM '[0-9]+(?:[.][0-9]+)*$'), '.')::numeric[]`

// fastStream are the columns that a message and a dead letter of faststream-outbox share.
var fastStream = []foreignColumn{
	{name: "route", expression: "old.queue"},
	{name: "topic", expression: "old.queue"},
	{name: "source", expression: "{source}"},
	{name: "occurred_at", expression: "old.created_at"},
	{name: "body", expression: "old.payload"},
	{name: "content_type", expression: "coalesce(old.headers->>'content-type', 'application/octet-stream')"},
	{name: "correlation_id", expression: "coalesce(old.headers->>'correlation_id', '')"},
	{name: "attrs", expression: `json_build_object('headers', (SELECT coalesce(json_object_agg(h.key, h.value), '{}')
        FROM jsonb_each_text(old.headers) h WHERE h.key NOT IN ('content-type', 'correlation_id')))`},
	{name: "deliveries", expression: "old.deliveries_count"},
}

// bytesOf are the bytes of a column of any type: binary ones as they are, others as their text.
func bytesOf(column string) string {
	return "CASE WHEN pg_typeof(" + column + ") = 'bytea'::regtype THEN " + column + "::text::bytea\n        ELSE convert_to(" + column + "::text, 'UTF8') END"
}

// The states of a row of efureev/go-outbox that move.
const (
	theirPending = "0"
	theirLeased  = "1"
	theirFailed  = "3"
)

// watermill returns the move of a table of watermill-sql, whose payloads are the envelopes of Watermill's forwarder.
func watermill(name, schema, where string, order []string, columns ...foreignColumn) foreign {
	return foreign{
		System: importer.System{Name: name, Title: "the forwarder of Watermill, on the " + schema + " schema of watermill-sql", Table: "watermill_forwarder_topic"},
		number: `"offset"`, where: where, order: order,
		beside: "CROSS JOIN LATERAL (\n    SELECT convert_from(" + bytesOf("old.payload") + ", 'UTF8')::json AS message) m\n",
		columns: slices.Concat([]foreignColumn{
			{name: "id", expression: "coalesce(nullif(m.message->>'uuid', ''), old.uuid)"},
			{name: "topic", expression: "m.message->>'destination_topic'"},
			{name: "source", expression: "{source}"},
			{name: "body", expression: "coalesce(decode(m.message->>'payload', 'base64'), '')"},
			{name: "content_type", expression: "''"},
			{name: "correlation_id", expression: "coalesce(m.message->'metadata'->>'correlation_id', '')"},
			{name: "attrs", expression: `json_build_object('headers', (SELECT coalesce(json_object_agg(h.key, h.value), '{}')
        FROM jsonb_each_text(coalesce(nullif((m.message->'metadata')::jsonb, 'null'), '{}')) h
        WHERE h.key <> 'correlation_id'))`},
		}, columns),
	}
}

// foreigns are the tables that Import knows.
//
// A row with a time ahead waits for it: as a retry if it has failed, else as a schedule. A row whose time has come is
// simply due, so that no running relay can overlook it. A row that the old system may have sent counts as sent maybe. A
// row that the old system gave up stays given up.
var foreigns = []foreign{
	{
		System: importer.System{Name: "sqlalchemy", Title: "an outbox for SQLAlchemy and RabbitMQ (kbairak/outbox)", Table: "outbox_table"},
		where:  "sent_at IS NULL",
		order:  []string{"created_at", "id"},
		columns: []foreignColumn{
			{name: "id", expression: "old.tracking_ids->>-1"},
			{name: "topic", expression: "old.routing_key"},
			{name: "source", expression: "{source}"},
			{name: "occurred_at", expression: "old.created_at"},
			{name: "body", expression: "old.body"},
			{name: "attrs", expression: "json_build_object('lineage', old.tracking_ids::jsonb - -1)"},
			{name: "expires_at", expression: "greatest(old.send_after, now()) + old.expiration"},
			{name: "due_at", expression: "CASE WHEN old.send_after > now() THEN old.send_after END"},
			{name: "ready_since", expression: "old.send_after"},
		},
	},
	{
		System: importer.System{Name: "faststream", Title: "faststream-outbox, a table that is the queue", Table: "outbox"},
		where:  "(acquired_at IS NULL OR acquired_at < now() - interval '60 seconds')",
		order:  []string{"next_attempt_at", "id"},
		columns: slices.Concat(fastStream, []foreignColumn{
			{name: "id", expression: "old.id::text"},
			{name: "dedupe_key", expression: "coalesce(old.timer_id, '')"},
			{name: "cancellable", expression: "old.timer_id IS NOT NULL"},
			{name: "attempts", expression: "old.attempts_count"},
			{name: "last_error_at", expression: "old.last_attempt_at"},
			{name: "maybe_sent", expression: "old.acquired_at IS NOT NULL"},
			{name: "due_at", expression: "CASE WHEN old.next_attempt_at > now() THEN old.next_attempt_at END"},
			{name: "retry", expression: "old.next_attempt_at > now() AND old.attempts_count > 0"},
			{name: "state", expression: "CASE WHEN old.next_attempt_at > now() AND old.attempts_count > 0 THEN {failed} ELSE {pending} END"},
			{name: "ready_since", expression: "old.next_attempt_at"},
		}),
	},
	{
		System: importer.System{
			Name: "faststream-dlq", Title: "the dead letters of faststream-outbox", Table: "outbox_dlq",
		},
		where: "true",
		order: []string{"id"},
		columns: slices.Concat(fastStream, []foreignColumn{
			{name: "id", expression: "old.original_id::text"},
			{name: "state", expression: "{abandoned}"},
			{name: "settled_at", expression: "old.failed_at"},
			{name: "reason", expression: "CASE old.failure_reason WHEN {rejected} THEN {rejected} ELSE {attempts} END"},
			{name: "last_error", expression: "left(coalesce(old.last_exception, ''), 500)"},
			{name: "last_error_at", expression: "old.failed_at"},
			{name: "ready_since", expression: "old.created_at"},
		}),
	},
	{
		System: importer.System{Name: "forze", Title: "forze", Table: "app.outbox"},
		where:  "status <> 'published' AND payload->>'__fz_enc__' IS NULL",
		order:  []string{"hlc", "created_at", "id"},
		columns: []foreignColumn{
			{name: "route", expression: "old.outbox_route"},
			{name: "id", expression: "old.event_id::text"},
			{name: "topic", expression: "old.event_type"},
			{name: "key", expression: "coalesce(old.ordering_key, '')"},
			{name: "source", expression: "{source}"},
			{name: "occurred_at", expression: "old.occurred_at"},
			{name: "body", expression: "convert_to(old.payload::text, 'UTF8')"},
			{name: "correlation_id", expression: "coalesce(old.correlation_id::text, '')"},
			{name: "hlc", expression: "coalesce(old.hlc, 0)", only: "hlc"},
			{name: "trace_parent", expression: "coalesce(old.traceparent, '')", only: "traceparent"},
			{name: "attrs", expression: `json_strip_nulls(json_build_object('tenant', old.tenant_id, 'causation', old.causation_id,
        'run', old.execution_id))`},
			{name: "attempts", expression: "old.attempts"},
			{name: "maybe_sent", expression: "old.status = 'processing'"},
			{name: "due_at", expression: "CASE WHEN old.status <> 'failed' AND old.available_at > now() THEN old.available_at END"},
			{name: "retry", expression: "old.status <> 'failed' AND coalesce(old.available_at > now(), false) AND old.attempts > 0"},
			{name: "state", expression: `CASE WHEN old.status = 'failed' THEN {abandoned}
        WHEN old.available_at > now() AND old.attempts > 0 THEN {failed} ELSE {pending} END`},
			{name: "settled_at", expression: "CASE WHEN old.status = 'failed' THEN now() END"},
			{name: "reason", expression: "CASE WHEN old.status = 'failed' THEN {attempts} ELSE '' END"},
			{name: "last_error", expression: "left(coalesce(old.last_error, ''), 500)"},
			{name: "ready_since", expression: "old.created_at"},
		},
	},
	{
		System: importer.System{Name: "protean", Title: "Protean", Table: "outbox"},
		where:  "status <> 'published'",
		order:  []string{"created_at", messageNumber},
		columns: []foreignColumn{
			{name: "route", expression: "old.target_broker || CASE WHEN old.priority > 0 THEN '/high' WHEN old.priority < 0 THEN '/low' ELSE '' END"},
			{name: "id", expression: "old.message_id"},
			{name: "topic", expression: "old.type"},
			{name: "key", expression: "coalesce(old.partition_key, old.stream_name)"},
			{name: "source", expression: "{source}"},
			{name: "occurred_at", expression: "old.created_at AT TIME ZONE 'UTC'"},
			{name: "body", expression: "convert_to(old.data::text, 'UTF8')"},
			{name: "correlation_id", expression: "coalesce(old.correlation_id, '')"},
			{name: "attrs", expression: "json_strip_nulls(json_build_object('causation', old.causation_id))"},
			{name: "attempts", expression: "coalesce(old.retry_count, 0)"},
			{name: "maybe_sent", expression: "old.status = 'processing'"},
			{name: "due_at", expression: `CASE WHEN old.status <> 'abandoned' AND old.next_retry_at > now() AT TIME ZONE 'UTC'
        THEN old.next_retry_at AT TIME ZONE 'UTC' END`},
			{name: "retry", expression: "old.status <> 'abandoned' AND coalesce(old.next_retry_at > now() AT TIME ZONE 'UTC', false)"},
			{name: "state", expression: `CASE WHEN old.status = 'abandoned' THEN {abandoned}
        WHEN old.next_retry_at > now() AT TIME ZONE 'UTC' THEN {failed} ELSE {pending} END`},
			{name: "settled_at", expression: "CASE WHEN old.status = 'abandoned' THEN now() END"},
			{name: "reason", expression: "CASE WHEN old.status = 'abandoned' THEN {attempts} ELSE '' END"},
			{name: "last_error", expression: "left(coalesce(old.last_error->>'message', ''), 500)"},
			{name: "last_error_at", expression: "CASE WHEN old.last_error->>'message' <> '' THEN old.last_processed_at AT TIME ZONE 'UTC' END"},
			{name: "ready_since", expression: "old.created_at AT TIME ZONE 'UTC'"},
		},
	},
	watermill(
		"watermill", "default", `NOT EXISTS (SELECT FROM {offsets}
            WHERE consumer_group = '' AND (transaction_id, "offset") <= (last_processed_transaction_id, offset_acked))`,
		[]string{"transaction_id", `"offset"`},
		// The column has no time zone, and the database filled it in by the zone of the old session.
		foreignColumn{name: "occurred_at", expression: "old.created_at AT TIME ZONE (SELECT reset_val FROM pg_settings WHERE name = 'TimeZone')"},
		foreignColumn{name: "ready_since", expression: "old.created_at AT TIME ZONE (SELECT reset_val FROM pg_settings WHERE name = 'TimeZone')"},
	),
	watermill(
		"watermill-queue", "queue", "NOT acked", []string{`"offset"`},
		foreignColumn{name: "occurred_at", expression: "old.created_at"},
		foreignColumn{name: "ready_since", expression: "coalesce((old.metadata->>'_watermill_delayed_until')::timestamptz, old.created_at)"},
		foreignColumn{name: "due_at", expression: `CASE WHEN (old.metadata->>'_watermill_delayed_until')::timestamptz > now()
        THEN (old.metadata->>'_watermill_delayed_until')::timestamptz END`},
	),
	{
		System: importer.System{Name: "river", Title: "River", Table: "river_job"},
		where: `state IN ('available', 'scheduled', 'retryable', 'discarded')
            OR state = 'running' AND attempted_at < now() - interval '1 hour'`,
		order: []string{"priority", "scheduled_at", "id"},
		columns: []foreignColumn{
			{name: "route", expression: "old.queue || CASE WHEN old.priority > 1 THEN '/low' ELSE '' END"},
			{name: "id", expression: "old.id::text"},
			{name: "topic", expression: "old.kind"},
			{name: "source", expression: "{source}"},
			{name: "occurred_at", expression: "old.created_at"},
			{name: "body", expression: "convert_to(old.args::text, 'UTF8')"},
			{name: "attrs", expression: `json_build_object('headers', (SELECT coalesce(json_object_agg(h.key, h.value), '{}')
        FROM jsonb_each_text(old.metadata || CASE WHEN cardinality(old.tags) > 0
            THEN jsonb_build_object('tags', array_to_string(old.tags, ',')) ELSE '{}' END) h
        WHERE h.key NOT LIKE 'river:%'))`},
			{name: "attempts", expression: "old.attempt - CASE WHEN old.state = 'running' THEN 1 ELSE 0 END"},
			{name: "deliveries", expression: "old.attempt"},
			{name: "maybe_sent", expression: "old.state = 'running'"},
			{name: "due_at", expression: "CASE WHEN old.state IN ('scheduled', 'retryable') AND old.scheduled_at > now() THEN old.scheduled_at END"},
			{name: "retry", expression: "old.state = 'retryable' AND old.scheduled_at > now()"},
			{name: "state", expression: `CASE WHEN old.state = 'discarded' THEN {abandoned}
        WHEN old.state = 'retryable' AND old.scheduled_at > now() THEN {failed} ELSE {pending} END`},
			{name: "settled_at", expression: "CASE WHEN old.state = 'discarded' THEN old.finalized_at END"},
			{name: "reason", expression: "CASE WHEN old.state = 'discarded' THEN {attempts} ELSE '' END"},
			{name: "last_error", expression: "left(coalesce(old.errors[cardinality(old.errors)]->>'error', ''), 500)"},
			{name: "last_error_at", expression: "(old.errors[cardinality(old.errors)]->>'at')::timestamptz"},
			{name: "ready_since", expression: "old.scheduled_at"},
		},
	},
	{
		System: importer.System{Name: "go-outbox", Title: "efureev/go-outbox", Table: "outbox.messages"},
		where:  "status IN (" + theirPending + ", " + theirFailed + ") OR status = " + theirLeased + " AND lease_until < now()",
		order:  []string{"created_at", "id"},
		columns: []foreignColumn{
			{name: "route", expression: "old.stream"},
			{name: "id", expression: "old.id::text"},
			{name: "topic", expression: "coalesce(nullif(old.target->>'routing_key', ''), old.topic || coalesce('_v' || nullif(old.target->>'version', '0'), ''))"},
			{name: "key", expression: "coalesce(old.target->>'key', '')"},
			{name: "source", expression: "{source}"},
			{name: "occurred_at", expression: "old.created_at"},
			{name: "body", expression: "old.payload"},
			{name: "content_type", expression: `coalesce(old.headers->>'content-type', old.headers->>'Content-Type', old.headers->>'content_type',
        'application/octet-stream')`},
			{name: "trace_parent", expression: "coalesce(old.headers->>'traceparent', '')"},
			{name: "attrs", expression: `json_strip_nulls(json_build_object('tracestate', old.headers->'tracestate', 'headers', (
        SELECT coalesce(json_object_agg(h.key, h.value), '{}') FROM jsonb_each_text(old.headers) h
        WHERE lower(h.key) NOT IN ('content-type', 'content_type', 'traceparent', 'tracestate'))))`},
			{name: "attempts", expression: "old.attempts"},
			{name: "maybe_sent", expression: "old.status = " + theirLeased},
			{name: "due_at", expression: "CASE WHEN old.status = " + theirPending + " AND old.available_at > now() THEN old.available_at END"},
			{name: "retry", expression: "old.status = " + theirPending + " AND old.attempts > 0 AND old.available_at > now()"},
			{name: "state", expression: "CASE WHEN old.status = " + theirFailed + ` THEN {abandoned}
        WHEN old.status = ` + theirPending + ` AND old.attempts > 0 AND old.available_at > now() THEN {failed} ELSE {pending} END`},
			{name: "settled_at", expression: "CASE WHEN old.status = " + theirFailed + " THEN now() END"},
			{name: "reason", expression: "CASE WHEN old.status = " + theirFailed + " THEN {attempts} ELSE '' END"},
			{name: "last_error", expression: "left(coalesce(old.last_error, ''), 500)"},
			{name: "ready_since", expression: "old.available_at"},
		},
	},
	{
		System: importer.System{Name: "debezium", Title: "the table of Debezium's outbox event router", Table: "outboxevent"},
		where:  "true",
		order:  []string{`"timestamp"`, "ctid"},
		columns: []foreignColumn{
			{name: "id", expression: "old.id::text"},
			{name: "topic", expression: "'outbox.event.' || old.aggregatetype"},
			{name: "key", expression: "old.aggregateid"},
			{name: "source", expression: "{source}"},
			{name: "occurred_at", expression: `old."timestamp" AT TIME ZONE 'UTC'`, only: `"timestamp"`},
			{name: "ready_since", expression: `old."timestamp" AT TIME ZONE 'UTC'`, only: `"timestamp"`},
			{name: "body", expression: "coalesce(" + bytesOf("old.payload") + ", '')"},
			{name: "content_type", expression: "CASE WHEN pg_typeof(old.payload) IN ('json'::regtype, 'jsonb'::regtype) THEN 'application/json' ELSE '' END"},
			{name: "trace_parent", expression: `coalesce(substring(old.tracingspancontext FROM 'traceparent=([0-9a-f-]+)'), '')`, only: "tracingspancontext"},
			{name: "attrs", expression: "json_build_object('headers', json_build_object('eventType', old.type))"},
			{name: "maybe_sent", expression: "true"},
		},
	},
}

// plainName is a name that needs no quotes.
var plainName = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// quoteTable quotes the parts of a name that need it.
func quoteTable(name string) string {
	parts := strings.Split(name, ".")
	for i, part := range parts {
		if !plainName.MatchString(part) {
			parts[i] = pgx.Identifier{part}.Sanitize()
		}
	}
	return strings.Join(parts, ".")
}

// importSQL renders the statement for a request. Has reports whether the old table has a column. The statement moves
// one batch: it deletes old rows, in their order, and inserts them into the outbox in the same order. First the columns
// are put together: those of the system, without the ones that the old table lacks, with the expressions of the request
// in place of theirs or behind them.
func (f *foreign) importSQL(n schema.Names, req importer.Request, has func(column string) bool) string {
	columns := slices.DeleteFunc(slices.Clone(f.columns), func(c foreignColumn) bool { return c.only != "" && !has(c.only) })
	for i := range columns {
		if e, ok := req.Columns[columns[i].name]; ok {
			columns[i].expression = e
		}
	}
	for _, name := range slices.Sorted(maps.Keys(req.Columns)) {
		if !slices.ContainsFunc(columns, func(c foreignColumn) bool { return c.name == name }) {
			columns = append(columns, foreignColumn{name: name, expression: req.Columns[name]})
		}
	}
	var inner, outer []string
	returning := "*"
	for _, o := range f.order {
		if slices.ContainsFunc(f.columns, func(c foreignColumn) bool { return c.only == o && !has(o) }) {
			continue
		}
		inner = append(inner, o)
		switch {
		case o == "ctid": // not among the columns of the old row
			returning, o = "ctid AS place, *", "old.place"
		case strings.ContainsRune(o, '('):
			o = strings.Replace(o, "message_id", "old.message_id", 1)
		default:
			o = "old." + o
		}
		outer = append(outer, o)
	}
	table, number := quoteTable(req.Table), cmp.Or(f.number, "id")
	var b strings.Builder
	fmt.Fprintf(&b, "WITH old AS (\n    DELETE FROM %s WHERE %s = ANY (ARRAY (\n        SELECT %s FROM %s WHERE %s\n        ORDER BY %s\n        LIMIT %d FOR UPDATE))\n    RETURNING %s\n)\n",
		table, number, number, table, req.Where, strings.Join(inner, ", "), req.Limit, returning)
	line := "INSERT INTO {outbox} ("
	for i, c := range columns {
		name := c.name
		if !plainName.MatchString(name) {
			name = pgx.Identifier{name}.Sanitize()
		}
		if i < len(columns)-1 {
			name += ","
		} else {
			name += ")"
		}
		if len(line)+1+len(name) > 100 {
			b.WriteString(line + "\n")
			line = "    " + name
			continue
		}
		if i > 0 {
			line += " "
		}
		line += name
	}
	b.WriteString(line + "\nSELECT\n")
	for i, c := range columns {
		b.WriteString("    " + c.expression)
		if i < len(columns)-1 {
			b.WriteString(",")
		}
		b.WriteString(" -- " + c.name + "\n")
	}
	b.WriteString("FROM old " + f.beside + "ORDER BY " + strings.Join(outer, ", "))
	return n.With("{source}", schema.QuoteText(req.Source)).SQL(b.String())
}

// ImportSystems lists the systems whose tables Import knows.
func (o *Outbox) ImportSystems() []importer.System {
	out := make([]importer.System, len(foreigns))
	for i := range foreigns {
		out[i] = foreigns[i].System
	}
	return out
}

// foreign returns the checked request and its table.
func (o *Outbox) foreign(req importer.Request) (importer.Request, *foreign, error) {
	req, err := importer.Check(req, o.ImportSystems())
	if err != nil {
		return req, nil, err
	}
	i := slices.IndexFunc(foreigns, func(f foreign) bool { return f.Name == req.From })
	// Watermill's table of offsets is named after the table of messages.
	offsets := quoteTable(strings.Replace(req.Table, "watermill_", "watermill_offsets_", 1))
	req.Where = cmp.Or(req.Where, strings.ReplaceAll(foreigns[i].where, "{offsets}", offsets))
	return req, &foreigns[i], nil
}

// ImportSQL returns the statement that Import runs; see [importer.Importer].
func (o *Outbox) ImportSQL(req importer.Request) (string, error) {
	req, f, err := o.foreign(req)
	if err != nil {
		return "", err
	}
	return f.importSQL(o.names, req, func(string) bool { return true }), nil
}

// importTime bounds one batch: the old table may have no index that helps.
const importTime = "SELECT set_config('statement_timeout', '10min', true), set_config('lock_timeout', '30s', true), set_config('enable_seqscan', 'on', true)"

// Import moves one batch of another system's rows into the outbox; see [importer.Importer]. The role must own Waybill's
// tables, and have SELECT, UPDATE (for the locks of the rows) and DELETE on the old one. Relays find the new rows by
// their poll. A dry run counts the old rows, runs the statement, and rolls back.
func (o *Outbox) Import(ctx context.Context, req importer.Request) (importer.Result, error) {
	req, f, err := o.foreign(req)
	if err != nil {
		return importer.Result{}, err
	}
	table := quoteTable(req.Table)
	columns := map[string]bool{}
	if err := o.transact(ctx, "import", readSQL, func(b *batch) {
		clear(columns)
		b.each(func(rows pgx.Rows) error {
			var name string
			err := rows.Scan(&name)
			columns[name] = true
			return err
		}, `SELECT attname FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`, table)
	}); err != nil {
		return importer.Result{}, err
	}
	if len(columns) == 0 {
		return importer.Result{}, waybill.Invalid("waybill/postgres: import",
			"Table: there is no table "+strconv.Quote(req.Table)+" in the search path: write schema.table, and grant the role the use of it")
	}
	sql := f.importSQL(o.names, req, func(column string) bool { return columns[strings.Trim(column, `"`)] })
	var out importer.Result
	err = o.transact(ctx, "import", writeSQL, func(b *batch) {
		out = importer.Result{}
		b.Queue(importTime)
		if req.DryRun {
			b.Queue(`SELECT count(*) FROM ` + table + ` WHERE ` + req.Where).QueryRow(func(row pgx.Row) error { return row.Scan(&out.Left) })
		}
		b.Queue(sql).Exec(func(tag pgconn.CommandTag) error {
			out.Moved = tag.RowsAffected()
			return nil
		})
		if req.DryRun {
			b.Queue("ROLLBACK")
		}
	})
	return out, importFailure(table, err)
}

// importFailure says what to do if the database refuses the statement of a move itself: the usual cures are for
// Waybill's own statements and tables.
func importFailure(table string, err error) error {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok || !strings.HasPrefix(refused.Code, "42"):
		return err
	case refused.Code == "42P01": // the old table is there, so one of Waybill's is not
		return err
	case refused.Code == "42501":
		return dberr.Misconfigured("import", "run it as a role that owns Waybill's tables and has SELECT, UPDATE and DELETE on %s: the statement locks the old rows and "+
			"deletes them (%w)", table, refused)
	}
	return dberr.Misconfigured("import", "the statement does not fit %s: print it, and correct the condition, the expressions of the columns or the table (%w)", table, refused)
}
