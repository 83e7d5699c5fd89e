package schema

import (
	"context"
	"strconv"
	"strings"

	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
)

// A schema may be newer than the program, so that a rolling upgrade is possible: migrate first, then replace the
// programs one by one. Every migration is one that programs of the earlier versions work beside, unless its first line
// says "-- compatible: N": then programs must know version N of its part at least. That number is kept in waybill_meta
// as NAME.compatible, where programs look before their first work.
const compatibleLine = "-- compatible: "

// compatible reads the version in the first line of a migration; 0 = none.
func compatible(up string) (int, error) {
	first, _, _ := strings.Cut(up, "\n")
	n, ok := strings.CutPrefix(first, compatibleLine)
	if !ok {
		return 0, nil
	}
	return strconv.Atoi(strings.TrimSpace(n))
}

// compatibleKey is the name of the row that says which version a program must know.
func (m *Migrations) compatibleKey(part Part) string {
	return strings.TrimSuffix(m.key(part), "version") + "compatible"
}

// declare notes in waybill_meta what the files up to mig say; with none of them it forgets what was noted.
func (m *Migrations) declare(files []migration, part Part) string {
	value := 0
	for i := range files {
		if files[i].part == part && files[i].compatible > 0 {
			value = files[i].compatible
		}
	}
	name := QuoteText(m.compatibleKey(part))
	if value == 0 {
		return m.names.SQL("DELETE FROM {meta} WHERE name = " + name + ";\n")
	}
	return m.names.SQL("INSERT INTO {meta} (name, value) VALUES (" + name + ", " + strconv.Itoa(value) + ") " +
		"ON CONFLICT (name) DO UPDATE SET value = excluded.value;\n")
}

// checkVersion reports a schema that is too old for this program, or for which this program is too old.
func (m *Migrations) checkVersion(ctx context.Context, ask Asker, part Part, table string) error {
	var has, least int
	text := m.names.SQL("SELECT coalesce(max(value) FILTER (WHERE name = $1), 0), coalesce(max(value) FILTER (WHERE name = $2), 0) FROM {meta}")
	if err := ask(ctx, text, m.key(part), m.compatibleKey(part)).Scan(&has, &least); err != nil {
		return err
	}
	newest := m.Newest(part)
	if has < newest {
		return dberr.Misconfigured("check", "%s has schema version %d, this release needs %d: run the migrations (waybill migrate up, or Migrate)",
			table, has, newest)
	}
	return TooOld(table, least, newest)
}

// TooOld returns an error if a schema needs programs that know version least, and this one knows newest.
func TooOld(table string, least, newest int) error {
	if least <= newest {
		return nil
	}
	return dberr.Misconfigured("check", "%s has a schema that only programs which know version %d of it may use, this release knows %d: "+
		"use a newer release, or take the schema back with one (Migrations.Down)", table, least, newest)
}
