package schema

import (
	"context"
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
	{"withdrawable", "boolean"},
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

var inboxColumns = []column{{"consumer", "text"}, {"source", "text"}, {"id", "text"}, {"handled_at", "timestamp with time zone"}, {"print", "bytea"}}

// privilege is what a role needs on an object.
type privilege struct{ object, kind, names string }

// CheckOutbox reports whether a relay can work on the outbox: an error that matches waybill.ErrMisconfigured names
// every table, column or permission that is missing and what to do, and an old schema version; a newer one is fine.
func (m *Migrations) CheckOutbox(ctx context.Context, db DB) error {
	in := func(suffix string) string { return pgx.Identifier{m.names.Schema, m.names.Outbox + suffix}.Sanitize() }
	needs := []privilege{
		{in(""), "table", "SELECT,UPDATE,DELETE"},
		{m.names.SQL("{meta}"), "table", "SELECT,UPDATE"},
		{in("_seq"), "sequence", "SELECT,USAGE"},
		{in("_control_seq"), "sequence", "SELECT"},
		{in("_wake"), "sequence", "SELECT,UPDATE"},
	}
	for _, t := range tables {
		needs = append(needs, privilege{in("_" + t), "table", "SELECT,INSERT,UPDATE,DELETE"})
	}
	if err := m.check(ctx, db, PartOutbox, in(""), outboxColumns, needs); err != nil {
		return err
	}
	return m.read(ctx, db, "check", func(tx pgx.Tx) error { return m.checkServer(ctx, tx) })
}

// checkServer looks for what would make relays lose messages or their order without an error: numbers that processes
// keep for later, and another encoding, in which slots would not be those of package outbox.
func (m *Migrations) checkServer(ctx context.Context, tx pgx.Tx) error {
	var encoding string
	var cache int64
	err := tx.QueryRow(ctx, m.names.SQL(`
SELECT current_setting('server_encoding'),
       (SELECT s.seqcache FROM pg_sequence s WHERE s.seqrelid = {sequence_text}::regclass)`)).Scan(&encoding, &cache)
	switch {
	case err != nil:
		return err
	case encoding != "UTF8":
		return dberr.Misconfigured("check", "the database is encoded in %s: the slots of records are computed from UTF-8; "+
			"create the database with ENCODING 'UTF8'", encoding)
	case cache != 1:
		sequence := m.names.SQL("{sequence}")
		return dberr.Misconfigured("check", "sequence %s has CACHE %d, and records would be read in another order than staged, "+
			"or not at all: ALTER SEQUENCE %s CACHE 1", sequence, cache, sequence)
	}
	return nil
}

// CheckInbox reports whether the inbox can work, as CheckOutbox does.
func (m *Migrations) CheckInbox(ctx context.Context, db DB) error {
	table := m.names.SQL("{inbox}")
	return m.check(ctx, db, PartInbox, table, inboxColumns, []privilege{
		{table, "table", "SELECT,INSERT"},
		{table, "any_column", "UPDATE"}, // of print
		{m.names.SQL("{limits}"), "table", "SELECT,INSERT,UPDATE"},
	})
}

func (m *Migrations) check(ctx context.Context, db DB, part Part, table string, columns []column, privileges []privilege) error {
	return m.read(ctx, db, "check", func(tx pgx.Tx) error {
		var usable *bool
		const askUsage = "SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = $1"
		if err := tx.QueryRow(ctx, askUsage, m.names.Schema).Scan(&usable); err != nil {
			if err == pgx.ErrNoRows { //nolint:errorlint // QueryRow returns it as it is
				return dberr.Misconfigured("check", "schema %q is missing: run the migrations (waybill migrate up, or Migrate), or correct schema in the settings (Options.Schema)",
					m.names.Schema)
			}
			return err
		}
		if !*usable {
			return lacksPermission(ctx, tx, []string{m.names.SQL("USAGE ON SCHEMA {schema}")})
		}
		var lacks []string
		if err := wrongColumns(ctx, tx, table, columns); err != nil {
			return err
		}
		for _, p := range privileges {
			var kinds []string
			for kind := range strings.SplitSeq(p.names, ",") {
				var exists bool
				var granted *bool
				ask := "SELECT to_regclass($1) IS NOT NULL, has_" + p.kind + "_privilege(to_regclass($1), $2)"
				err := tx.QueryRow(ctx, ask, p.object, kind).Scan(&exists, &granted)
				switch {
				case err != nil:
					return err
				case !exists:
					return dberr.Misconfigured("check", "%s is missing: run the migrations (waybill migrate up, or Migrate)", p.object)
				case granted == nil || !*granted:
					kinds = append(kinds, kind)
				}
			}
			if kinds != nil {
				lacks = append(lacks, strings.Join(kinds, ", ")+" ON "+p.object)
			}
		}
		if lacks != nil {
			return lacksPermission(ctx, tx, lacks)
		}
		return m.checkVersion(ctx, tx, part, table)
	})
}

// lacksPermission says what to grant, each such as "SELECT, UPDATE ON table".
func lacksPermission(ctx context.Context, tx pgx.Tx, what []string) error {
	var role string
	if err := tx.QueryRow(ctx, "SELECT current_user::text").Scan(&role); err != nil {
		return err
	}
	to := " TO " + pgx.Identifier{role}.Sanitize()
	return dberr.Misconfigured("check", "the role %q lacks permissions: as an administrator, GRANT %s",
		role, strings.Join(what, to+"; GRANT ")+to)
}

// maxListed bounds the columns that one error lists.
const maxListed = 5

// wrongColumns says what table lacks. More columns than needed are fine.
func wrongColumns(ctx context.Context, tx pgx.Tx, table string, want []column) error {
	var exists bool
	if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", table).Scan(&exists); err != nil {
		return err
	}
	if !exists {
		return dberr.Misconfigured("check", "table %s is missing: run the migrations (waybill migrate up, or Migrate), or correct the name in the options", table)
	}
	rows, err := tx.Query(ctx, `SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute
		WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`, table)
	if err != nil {
		return err
	}
	defer rows.Close()
	have := map[string]string{}
	for rows.Next() {
		var name, kind string
		if err := rows.Scan(&name, &kind); err != nil {
			return err
		}
		have[name] = kind
	}
	if err := rows.Err(); err != nil {
		return err
	}
	var problems []string
	for _, c := range want {
		switch kind, ok := have[c.name]; {
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
