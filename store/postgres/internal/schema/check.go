package schema

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
)

// column is a column that the statements need, with its type as format_type writes it.
type column struct{ name, kind string }

var outboxColumns = []column{
	{"seq", "bigint"},
	{"hold", "bigint"},
	{"hlc", "bigint"},
	{"occurred_at", "timestamp with time zone"},
	{"ready_since", "timestamp with time zone"},
	{"version", "integer"},
	{"attempts", "integer"},
	{"deliveries", "integer"},
	{"crashes", "integer"},
	{"state", "smallint"},
	{"slot", "smallint"},
	{"own_id", "boolean"},
	{"cancellable", "boolean"},
	{"maybe_sent", "boolean"},
	{"retry", "boolean"},
	{"blocks", "boolean"},
	{"due_at", "timestamp with time zone"},
	{"settled_at", "timestamp with time zone"},
	{"expires_at", "timestamp with time zone"},
	{"held_since", "timestamp with time zone"},
	{"last_error_at", "timestamp with time zone"},
	{"route", "text"},
	{"key", "text"},
	{"id", "text"},
	{"topic", "text"},
	{"dedupe_key", "text"},
	{"reason", "text"},
	{"type", "text"},
	{"source", "text"},
	{"content_type", "text"},
	{"correlation_id", "text"},
	{"trace_parent", "text"},
	{"last_error", "text"},
	{"attrs", "json"},
	{"body", "bytea"},
}

var inboxColumns = []column{{"consumer", "text"}, {"source", "text"}, {"id", "text"}, {"handled_at", "timestamp with time zone"}, {"content_hash", "bytea"}}

// privilege is what a role needs on an object.
type privilege struct{ object, kind, names string }

// Asker asks for one row. Its arguments and the row's columns are texts, numbers and such: what every driver knows.
type Asker func(ctx context.Context, text string, args ...any) pgx.Row

// rower is what a *pgxpool.Pool, a *pgx.Conn and a transaction have.
type rower interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// AskPgx asks through a *pgxpool.Pool or *pgx.Conn. A check is made once a start, so no statement is prepared.
func AskPgx(db rower) Asker {
	return func(ctx context.Context, text string, args ...any) pgx.Row {
		return db.QueryRow(ctx, text, append([]any{pgx.QueryExecModeExec}, args...)...)
	}
}

// AskSQL asks through database/sql, with any driver.
func AskSQL(db *sql.DB) Asker {
	return func(ctx context.Context, text string, args ...any) pgx.Row {
		return db.QueryRowContext(ctx, text, args...)
	}
}

// CheckOutbox reports whether a relay can work on the outbox: an error that matches waybill.ErrMisconfigured names
// every table, column or permission that is missing and what to do, and an old schema version; a newer one is fine.
func (m *Migrations) CheckOutbox(ctx context.Context, ask Asker) error {
	in := func(suffix string) string { return pgx.Identifier{m.names.Schema, m.names.Outbox + suffix}.Sanitize() }
	needs := []privilege{
		{in(""), "table", "SELECT,UPDATE,DELETE"},
		{m.names.SQL("{meta}"), "table", "SELECT,UPDATE"},
		{in("_seq"), "sequence", "SELECT,USAGE"},
		{in("_notices_seq"), "sequence", "SELECT"},
		{in("_wake"), "sequence", "SELECT,UPDATE"},
	}
	for _, t := range tables {
		needs = append(needs, privilege{in("_" + t), "table", "SELECT,INSERT,UPDATE,DELETE"})
	}
	return m.check(ctx, ask, PartOutbox, in(""), outboxColumns, needs, (*answers).checkServer)
}

// CheckInbox reports whether the inbox can work, as CheckOutbox does.
func (m *Migrations) CheckInbox(ctx context.Context, ask Asker) error {
	table := m.names.SQL("{inbox}")
	return m.check(ctx, ask, PartInbox, table, inboxColumns, []privilege{
		{table, "table", "SELECT,INSERT"},
		{table, "any_column", "UPDATE"}, // of content_hash
		{m.names.SQL("{limits}"), "table", "SELECT,INSERT,UPDATE"},
		{m.names.SQL("{meta}"), "table", "SELECT"},
	}, nil)
}

// answers is the catalogs' view of the objects and rights that a program needs. The exported fields are in askSQL's
// JSON.
type answers struct {
	objects  []string // that hold privileges
	kinds    []string // what each is
	wanted   []string // the privilege of each that is asked for
	sequence string

	Role     string
	Usable   *bool             // whether the role may use the schema; nil = there is none
	Columns  map[string]string // of the table: the types by name
	Grants   []string          // each that is wanted exists and is granted: "granted", "denied" or "missing"
	Encoding string
	Client   string // client_encoding, as the role and the connection have it
	Commits  string // synchronous_commit, as the role and the connection have it
	Unsafe   string // the settings of the server that its operator has not allowed
	ReadOnly string // transaction_read_only, the same, and on for a standby
	Cache    *int64 // of the sequence
}

// askSQL asks all of it at once: a far database is asked at each start. The first object is the table. A role cannot
// look up a name in a schema that it may not use, and the planner looks up names that are constants. Lists go and come
// as JSON, since drivers of database/sql know no arrays. A server with quote_all_identifiers quotes the names of types.
const askSQL = `
WITH s AS (SELECT (SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = $1) AS usable),
o AS MATERIALIZED (SELECT w.n, w.v->>0 AS object, w.v->>1 AS kind, w.v->>2 AS name,
		CASE WHEN s.usable THEN to_regclass(w.v->>0)::oid END AS oid
	FROM s, json_array_elements($2::json) WITH ORDINALITY w (v, n)),
t AS (SELECT a.attname::text AS name, replace(format_type(a.atttypid, NULL), '"', '') AS kind FROM o JOIN pg_attribute a ON a.attrelid = o.oid
	WHERE o.n = 1 AND a.attnum > 0 AND NOT a.attisdropped),
p AS (SELECT o.n, CASE
		WHEN o.oid IS NULL THEN 'missing'
		WHEN CASE o.kind
			WHEN 'table' THEN has_table_privilege(o.oid, o.name)
			WHEN 'sequence' THEN has_sequence_privilege(o.oid, o.name)
			ELSE has_any_column_privilege(o.oid, o.name) END THEN 'granted'
		ELSE 'denied' END AS answer
	FROM o)
SELECT json_build_object('Role', current_user::text, 'Usable', s.usable, 'Columns', (SELECT json_object_agg(name, kind) FROM t),
	'Grants', ARRAY(SELECT answer FROM p ORDER BY n), 'Encoding', current_setting('server_encoding'), 'Client', current_setting('client_encoding'),
	'Commits', current_setting('synchronous_commit'), 'ReadOnly', current_setting('transaction_read_only'),
	'Unsafe', CASE WHEN current_setting('waybill.allow_unsafe_settings', true) IN ('on', 'true', 'yes', '1') THEN ''
		ELSE concat_ws(', ', CASE current_setting('fsync') WHEN 'off' THEN 'fsync' END,
			CASE current_setting('full_page_writes') WHEN 'off' THEN 'full_page_writes' END) END,
	'ReadOnly', current_setting('transaction_read_only'),
	'Cache', (SELECT q.seqcache FROM pg_sequence q JOIN o ON o.oid = q.seqrelid WHERE o.object = $3 LIMIT 1))::text
FROM s`

// ask asks for privileges, first of all on the table.
func (m *Migrations) ask(ctx context.Context, ask Asker, privileges []privilege) (*answers, error) {
	a := &answers{sequence: m.names.SQL("{sequence}")}
	var list [][3]string
	for _, p := range privileges {
		for name := range strings.SplitSeq(p.names, ",") {
			a.objects, a.kinds, a.wanted = append(a.objects, p.object), append(a.kinds, p.kind), append(a.wanted, name)
			list = append(list, [3]string{p.object, p.kind, name})
		}
	}
	wanted, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	var answer string
	if err := ask(ctx, Qualified(askSQL), m.names.Schema, string(wanted), a.sequence).Scan(&answer); err != nil {
		return nil, err
	}
	return a, json.Unmarshal([]byte(answer), a)
}

// check asks for everything and reports the first problem; more looks for others, unless it is nil.
func (m *Migrations) check(ctx context.Context, ask Asker, part Part, table string, columns []column, privileges []privilege, more func(*answers) error) error {
	return dberr.Failure("check", func() error {
		a, err := m.ask(ctx, ask, privileges)
		switch {
		case err != nil:
			return err
		case a.Usable == nil:
			return dberr.Misconfigured("check", "schema %q is missing: run the migrations (waybill migrate up, or Migrate), or correct schema in the settings (Options.Schema)",
				m.names.Schema)
		case !*a.Usable:
			return a.lacksPermission([]string{m.names.SQL("USAGE ON SCHEMA {schema}")})
		}
		if err := a.wrongColumns(table, columns); err != nil {
			return err
		}
		if err := a.missesPrivileges(); err != nil {
			return err
		}
		if err := a.checkCommits(); err != nil {
			return err
		}
		// With SQL_ASCII nothing is converted.
		if a.Client != "UTF8" && a.Client != "SQL_ASCII" {
			return dberr.Misconfigured("check", "client_encoding is %s, and the driver sends UTF-8: keys and headers would be stored as other texts, "+
				"or refused: ALTER ROLE %s SET client_encoding = 'UTF8', unless the connection string sets it, too", a.Client, pgx.Identifier{a.Role}.Sanitize())
		}
		if a.ReadOnly == "on" {
			return dberr.ReadOnly("check")
		}
		if err := m.checkVersion(ctx, ask, part, table); err != nil || more == nil {
			return err
		}
		return more(a)
	}())
}

// missesPrivileges reports the missing objects, or the rights that the role lacks.
func (a *answers) missesPrivileges() error {
	var lacks []string
	for i := 0; i < len(a.objects); {
		object, kind := a.objects[i], a.kinds[i]
		var denied []string
		for ; i < len(a.objects) && a.objects[i] == object && a.kinds[i] == kind; i++ {
			switch a.Grants[i] {
			case "missing":
				return dberr.Misconfigured("check", "%s is missing: run the migrations (waybill migrate up, or Migrate)", object)
			case "denied":
				denied = append(denied, a.wanted[i])
			}
		}
		if denied != nil {
			lacks = append(lacks, strings.Join(denied, ", ")+" ON "+object)
		}
	}
	if lacks == nil {
		return nil
	}
	return a.lacksPermission(lacks)
}

// lacksPermission says what to grant, each such as "SELECT, UPDATE ON table".
func (a *answers) lacksPermission(what []string) error {
	to := " TO " + pgx.Identifier{a.Role}.Sanitize()
	return dberr.Misconfigured("check", "the role %q lacks permissions: as an administrator, GRANT %s",
		a.Role, strings.Join(what, to+"; GRANT ")+to)
}

// checkCommits refuses commits that a crash of the server or of its machine forgets. Other connections see such a
// commit before it is on disk, so its message may be out, or acknowledged, and its rows are gone.
func (a *answers) checkCommits() error {
	if a.Unsafe != "" {
		return dberr.Misconfigured("check", "the server runs with %s = off: a crash of its machine loses business rows whose messages were published, "+
			"and effects whose messages were acknowledged, or the whole database: set it to on in postgresql.conf; or, for tests, "+
			"or where the disk needs none of it, say so there with waybill.allow_unsafe_settings = on", a.Unsafe)
	}
	if a.Commits != "off" {
		return nil
	}
	return dberr.Misconfigured("check", "synchronous_commit is off: a crash of the server loses business rows whose messages were published, "+
		"and effects whose messages were acknowledged: ALTER ROLE %s SET synchronous_commit = on, unless "+
		"the connection string sets it, too", pgx.Identifier{a.Role}.Sanitize())
}

// checkServer looks for settings that would make relays lose messages or their order without an error: numbers that
// processes keep for later, and another encoding, in which slots would not be those of package outbox.
func (a *answers) checkServer() error {
	switch {
	case a.Encoding != "UTF8":
		return dberr.Misconfigured("check", "the database is encoded in %s: the slots of records are computed from UTF-8; "+
			"create the database with ENCODING 'UTF8'", a.Encoding)
	case a.Cache != nil && *a.Cache != 1:
		return dberr.Misconfigured("check", "sequence %s has CACHE %d, and records would be read in another order than staged, "+
			"or not at all: ALTER SEQUENCE %s CACHE 1", a.sequence, *a.Cache, a.sequence)
	}
	return nil
}

// maxListed bounds the columns that one error lists.
const maxListed = 5

// wrongColumns says what table lacks. More columns than needed are fine.
func (a *answers) wrongColumns(table string, want []column) error {
	if len(a.Columns) == 0 {
		return dberr.Misconfigured("check", "table %s is missing: run the migrations (waybill migrate up, or Migrate), or correct the name in the options", table)
	}
	var problems []string
	for _, c := range want {
		switch kind, ok := a.Columns[c.name]; {
		case !ok:
			problems = append(problems, fmt.Sprintf("it has no column %s %s", c.name, c.kind))
		case kind != c.kind:
			problems = append(problems, fmt.Sprintf("its column %s is %s, not %s", c.name, kind, c.kind))
		}
	}
	if problems == nil {
		return nil
	}
	if n := len(problems) - maxListed; n > 0 {
		problems = append(problems[:maxListed], fmt.Sprintf("and %d more", n))
	}
	return dberr.Misconfigured("check", "table %s has another shape: %s: if it is Waybill's, run the migrations (waybill migrate up, or Migrate), "+
		"else correct the name in the options", table, strings.Join(problems, ", "))
}
