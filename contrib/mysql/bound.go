package waybillmysql

import (
	"encoding/hex"
	"strings"
)

// staged are the columns that staging fills, and those of them that it reads.
const (
	stagedColumns = `route, id, topic, source, k, slot, due_at, ends_at, ready_since, flags, hlc, dedupe_key, attrs, body`
	lookedUp      = `id, route, source`
)

// BoundStager returns statements for a service that must not reach the messages of others in the outbox of a database:
// views of its own part in its own database, which has its own tables, too, and grants on them for the login
// 'service'@'%'. The service opens its own database, and can stage messages that are due at once, on these routes, with
// their lanes and sub-routes, and of these sources: all of them if there are none. It sees no row of others. Run the
// statements as the owner of the tables, after Migrate.
func BoundStager(outbox, service string, routes, sources []string) string {
	part := oneOf(`SUBSTRING_INDEX(SUBSTRING_INDEX(route, '/', 1), '#', 1)`, routes) + ` AND ` + oneOf(`source`, sources)
	return strings.NewReplacer("{outbox}", quoted(outbox), "{service}", quoted(service), "{part}", part).Replace(`
CREATE OR REPLACE SQL SECURITY DEFINER VIEW {service}.waybill_outbox AS
	SELECT seq, ` + stagedColumns + ` FROM {outbox}.waybill_outbox WHERE {part} WITH CASCADED CHECK OPTION;
CREATE OR REPLACE SQL SECURITY DEFINER VIEW {service}.waybill_outbox_marks AS SELECT g FROM {outbox}.waybill_outbox_marks;
GRANT SELECT (` + lookedUp + `), INSERT (` + stagedColumns + `) ON {service}.waybill_outbox TO 'service'@'%';
GRANT SELECT ON {service}.waybill_outbox_marks TO 'service'@'%';
`)
}

func quoted(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// oneOf is whether a value is one of all; of none it is true.
func oneOf(value string, all []string) string {
	if len(all) == 0 {
		return "TRUE"
	}
	texts := make([]string, len(all))
	for i, s := range all {
		texts[i] = "x'" + hex.EncodeToString([]byte(s)) + "'"
	}
	return value + " IN (" + strings.Join(texts, ", ") + ")"
}
