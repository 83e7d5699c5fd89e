package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
)

// Roles names the database roles that Grants grants to; an empty one is left out.
type Roles struct {
	Producer  string // stages
	Canceller string // stages, and cancels what it or others staged: Cancel, and messages that replace others
	Relay     string // reads and settles
	Consumer  string // marks in the inbox, and keeps limits
	Operator  string // inspects, requeues, purges

	// Routes and Sources bind Producer and Canceller, by row-level security: to messages on these routes, with
	// their lanes and sub-routes, and of these sources. With Routes they see no rows of other routes. Empty = all.
	Routes, Sources []string
}

// stagedColumns are those that staging writes. The others are the relay's: with them a producer could stop a route, or
// the key of another service.
const stagedColumns = "route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, " +
	"expires_at, attrs, body, slot, cancellable, due_at, ready_since, own_id, maybe_sent, dedupe_key"

// auditColumns are those of a line of the audit record that its writer chooses: not its number, its time and the role.
const auditColumns = "act, phase, who, via, origin, action, target, filter, ids, before, after, result"

// Grants returns the SQL that gives each role what it needs and no more.
func (m *Migrations) Grants(r Roles) string {
	var b strings.Builder
	grant := func(role, what string) {
		if role != "" {
			b.WriteString(m.names.SQL("GRANT " + what + " TO " + pgx.Identifier{role}.Sanitize() + ";\n"))
		}
	}
	for _, role := range []string{r.Producer, r.Canceller, r.Relay, r.Consumer, r.Operator} {
		grant(role, "USAGE ON SCHEMA {schema}")
		grant(role, "SELECT ON {meta}")
	}
	if slices.Contains(m.parts, PartOutbox) {
		for _, role := range []string{r.Producer, r.Canceller} {
			grant(role, "INSERT ("+stagedColumns+"), SELECT (seq, hlc, route, id, source, topic, dedupe_key, settled_at, own_id) ON {outbox}")
			grant(role, "USAGE, SELECT ON SEQUENCE {sequence}")
			grant(role, "SELECT ON {wake}")
			grant(role, "SELECT ON {routes}")
		}
		grant(r.Canceller, "DELETE, SELECT (xmin, slot, key, version, hold, due_at, retry, cancellable, maybe_sent, crashes), "+
			"UPDATE (state, reason, due_at, retry, hold, held_since, version, settled_at, dedupe_key) ON {outbox}")
		grant(r.Canceller, "SELECT (session) ON {members}")
		grant(r.Canceller, "SELECT ON {partitions}")
		grant(r.Canceller, "INSERT ON {notices}")
		for _, role := range []string{r.Relay, r.Operator} {
			grant(role, "SELECT, UPDATE, DELETE ON {outbox}")
			grant(role, "USAGE, SELECT ON SEQUENCE {sequence}")
			grant(role, "SELECT ON {notices_seq}")
			grant(role, "SELECT, UPDATE ON {wake}")
			grant(role, "UPDATE ON {meta}")
			grant(role, "SELECT, INSERT, UPDATE, DELETE ON {members}, {routes}, {partitions}, {notices}")
			grant(role, "SELECT, INSERT ("+auditColumns+") ON {audit}") // added to, and never changed
		}
	}
	for _, role := range []string{r.Producer, r.Canceller} {
		if slices.Contains(m.parts, PartOutbox) && role != "" && len(r.Routes)+len(r.Sources) > 0 {
			sum := sha256.Sum256([]byte(role)) // a name can have as many bytes as a role
			of := hex.EncodeToString(sum[:8])
			b.WriteString(m.names.With("{role}", pgx.Identifier{role}.Sanitize(), "{role_changes}", "waybill_changes_"+of, "{role_deletes}", "waybill_deletes_"+of,
				"{key_kind}", strconv.Itoa(int(core.NoticeKey)),
				"{routes_only}", oneOf(baseRouteSQL, r.Routes), "{sources_only}", oneOf("source", r.Sources)).SQL(boundSQL))
		}
	}
	if slices.Contains(m.parts, PartInbox) {
		grant(r.Consumer, "SELECT, INSERT, DELETE ON {inbox}") // it purges what its retention is over for
		grant(r.Consumer, "UPDATE (content_hash) ON {inbox}")  // to itself, for a conflict to come back
		grant(r.Consumer, "SELECT, INSERT, UPDATE ON {limits}")
		grant(r.Operator, "SELECT, DELETE ON {inbox}")
		grant(r.Operator, "SELECT, DELETE ON {limits}")
	}
	return b.String()
}

// boundSQL binds a producer or a canceller to its routes and sources. The first policy lets every role have what it was
// granted. The others are restrictive, and so take from that. A role sees the rows of all sources on its routes, since
// staging looks for ids. A canceller tells owners of keys on its routes, and ends no record by their hands.
const boundSQL = `ALTER TABLE {outbox} ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS waybill_granted ON {outbox};
CREATE POLICY waybill_granted ON {outbox} USING (true) WITH CHECK (true);
DROP POLICY IF EXISTS {role} ON {outbox};
CREATE POLICY {role} ON {outbox} AS RESTRICTIVE TO {role} USING ({routes_only}) WITH CHECK ({routes_only} AND {sources_only});
DROP POLICY IF EXISTS {role_changes} ON {outbox};
CREATE POLICY {role_changes} ON {outbox} AS RESTRICTIVE FOR UPDATE TO {role} USING ({sources_only});
DROP POLICY IF EXISTS {role_deletes} ON {outbox};
CREATE POLICY {role_deletes} ON {outbox} AS RESTRICTIVE FOR DELETE TO {role} USING ({sources_only});
ALTER TABLE {notices} ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS waybill_granted ON {notices};
CREATE POLICY waybill_granted ON {notices} USING (true) WITH CHECK (true);
DROP POLICY IF EXISTS {role} ON {notices};
CREATE POLICY {role} ON {notices} AS RESTRICTIVE TO {role} USING (true) WITH CHECK ({routes_only} AND kind = {key_kind});
`

// baseRouteSQL is waybill.BaseRoute of a row: without its lane, and the number of a sub-route.
const baseRouteSQL = `regexp_replace(split_part(route, '/', 1), '#[0-9]+$', '')`

// oneOf is whether a value is one of all; of none it is true.
func oneOf(value string, all []string) string {
	if len(all) == 0 {
		return "true"
	}
	quoted := make([]string, len(all))
	for i, s := range all {
		quoted[i] = QuoteText(s)
	}
	return value + " IN (" + strings.Join(quoted, ", ") + ")"
}
