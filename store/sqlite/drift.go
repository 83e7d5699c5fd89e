package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/admin"
)

// metaRows are the rows of the meta table that the store needs.
var metaRows = []string{"cleaner", "database", "epoch", "hlc", "version"}

// object is something in a schema: its table (empty for a table), its name and its definition.
type object struct {
	table, name, definition string
	alien                   bool // a column that must be filled: in a foreign one staging would fail
}

// shape describes the tables with prefix, with their columns and indexes.
func shape(ctx context.Context, q querier, prefix string) ([]object, error) {
	var all []object
	read := func(query, table string, scan func(rows *sql.Rows) (object, error)) error {
		rows, err := q.QueryContext(ctx, query, table)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			o, err := scan(rows)
			if err != nil {
				return err
			}
			all = append(all, o)
		}
		return rows.Err()
	}
	for _, t := range needed {
		table := prefix + t.table
		err := read(`SELECT l.type || CASE WHEN l.strict THEN ', strict' ELSE '' END || CASE WHEN l.wr THEN ', without rowid' ELSE '' END
			|| CASE WHEN s.sql LIKE '%AUTOINCREMENT%' THEN ', autoincrement' ELSE '' END
			FROM pragma_table_list(?1) l JOIN sqlite_schema s ON s.name = l.name
				WHERE l.schema = 'main'`, table, func(rows *sql.Rows) (o object, err error) {
			o.name = table
			return o, rows.Scan(&o.definition)
		})
		if err != nil {
			return nil, err
		}
		err = read(`SELECT name,
			type || CASE WHEN pk > 0 THEN ' primary key ' || pk ELSE '' END || CASE WHEN "notnull" THEN ' not null' ELSE '' END
			|| CASE WHEN hidden > 0 THEN ' generated' ELSE '' END || coalesce(' default ' || dflt_value, ''),
			"notnull" AND dflt_value IS NULL AND pk = 0 FROM pragma_table_xinfo(?1)`, table, func(rows *sql.Rows) (object, error) {
			o := object{table: table}
			err := rows.Scan(&o.name, &o.definition, &o.alien)
			o.name = table + "." + o.name
			return o, err
		})
		if err != nil {
			return nil, err
		}
		err = read(`SELECT i.name, CASE WHEN i."unique" THEN 'unique index ' ELSE 'index ' END, s.sql
			FROM pragma_index_list(?1) i JOIN sqlite_schema s ON s.type = 'index' AND s.name = i.name
				WHERE i.origin = 'c'`, table, func(rows *sql.Rows) (object, error) {
			o := object{table: table}
			var text string
			err := rows.Scan(&o.name, &o.definition, &text)
			// the columns and the predicate, however they were written
			if i := strings.Index(text, "("); i >= 0 {
				text = text[i:]
			}
			text = strings.Join(strings.Fields(strings.NewReplacer("(", " ( ", ")", " ) ", ",", " , ").Replace(text)), " ")
			o.definition += strings.NewReplacer("( ", "(", " )", ")", " ,", ",").Replace(text)
			return o, err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(all, func(a, b object) int {
		return cmp.Or(strings.Compare(a.table, b.table), strings.Compare(a.name, b.name))
	})
	return all, nil
}

// wantedShape returns the shape that the migrations make, in a database of its own in memory.
func wantedShape(ctx context.Context, m *Migrations) ([]object, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1) // each connection would have a database of its own
	if err := m.Up(ctx, db); err != nil {
		return nil, err
	}
	return shape(ctx, db, m.prefix)
}

var _ admin.DriftChecker = (*Store)(nil)

// Drift compares the tables with the schema of this release, and returns every difference: tables, columns with type,
// nullability and default, indexes with their columns, uniqueness and predicates, and rows of the meta table. It
// ignores additions of the owner, except columns that staging would have to fill. It changes nothing and takes no write
// lock.
func (s *Store) Drift(ctx context.Context) ([]admin.Difference, error) {
	diffs, err := s.drift(ctx)
	if err != nil {
		return nil, s.classify("drift", err)
	}
	return diffs, nil
}

func (s *Store) drift(ctx context.Context) ([]admin.Difference, error) {
	if s.closed.Load() {
		return nil, sql.ErrConnDone
	}
	want, err := wantedShape(ctx, s.migrations)
	if err != nil {
		return nil, err
	}
	have, err := shape(ctx, s.db, s.opts.Prefix)
	if err != nil {
		return nil, err
	}
	live, wanted := make(map[string]*object, len(have)), make(map[string]bool, len(want))
	for i := range have {
		live[have[i].name] = &have[i]
	}
	var diffs []admin.Difference
	for _, o := range want {
		wanted[o.name] = true
		switch h := live[o.name]; {
		case o.table != "" && live[o.table] == nil: // that is said once
		case h == nil:
			diffs = append(diffs, admin.Difference{Object: o.name, Want: o.definition, Have: "missing"})
		case h.definition != o.definition:
			diffs = append(diffs, admin.Difference{Object: o.name, Want: o.definition, Have: h.definition})
		}
	}
	for _, o := range have {
		if o.alien && !wanted[o.name] {
			diffs = append(diffs, admin.Difference{
				Object: o.name, Want: "a default, or nullable: Waybill does not fill it", Have: o.definition,
			})
		}
	}
	meta := s.opts.Prefix + "meta"
	if h := live[meta+".name"]; h == nil {
		return diffs, nil
	}
	missing, err := s.missing(ctx, "SELECT name FROM "+meta+" WHERE ?1 = ?1", meta, metaRows)
	for _, name := range missing {
		diffs = append(diffs, admin.Difference{Object: meta + " row " + name, Want: "a row", Have: "missing"})
	}
	return diffs, err
}

// fits refuses a schema that requires programs to know a newer version than this one does. It asks once. If the query
// fails, the statement that follows reports the problem.
func (s *Store) fits(ctx context.Context, q querier) error {
	if s.fit.Load() {
		return nil
	}
	var least int
	err := q.QueryRowContext(ctx, "SELECT coalesce(max(value), 0) FROM "+s.opts.Prefix+"meta WHERE name = 'compatible'").Scan(&least)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	if known := s.migrations.Newest(); least > known {
		return misconfigured("check", fmt.Errorf("the schema of %soutbox requires programs that know version %d of it, "+
			"this one knows %d: use a newer release, or take the schema back with one", s.opts.Prefix, least, known))
	}
	s.fit.Store(true)
	return nil
}
