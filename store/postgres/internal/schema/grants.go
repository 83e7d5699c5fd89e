package schema

import (
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Roles names the database roles that Grants grants to; an empty one is left out.
type Roles struct {
	Producer  string // stages
	Canceller string // stages, and withdraws what it or others staged: Cancel, and messages that replace others
	Relay     string // reads and settles
	Consumer  string // marks in the inbox, and keeps limits
	Operator  string // inspects, requeues, purges
}

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
			grant(role, "INSERT, SELECT (seq, hlc, route, id, topic, dedupe_key, settled_at, own_id) ON {outbox}")
			grant(role, "USAGE, SELECT ON SEQUENCE {sequence}")
			grant(role, "SELECT ON {wake}")
			grant(role, "SELECT ON {routes}")
		}
		grant(r.Canceller, "DELETE, SELECT (xmin, slot, key, version, hold, due_at, retry, withdrawable, maybe_sent, crashes), "+
			"UPDATE (state, reason, due_at, retry, hold, held_since, version, settled_at, dedupe_key) ON {outbox}")
		grant(r.Canceller, "SELECT (session) ON {members}")
		grant(r.Canceller, "SELECT ON {units}")
		grant(r.Canceller, "INSERT ON {control}")
		for _, role := range []string{r.Relay, r.Operator} {
			grant(role, "SELECT, UPDATE, DELETE ON {outbox}")
			grant(role, "USAGE, SELECT ON SEQUENCE {sequence}")
			grant(role, "SELECT ON {told}")
			grant(role, "SELECT, UPDATE ON {wake}")
			grant(role, "UPDATE ON {meta}")
			grant(role, "SELECT, INSERT, UPDATE, DELETE ON {members}, {routes}, {units}, {control}")
		}
	}
	if slices.Contains(m.parts, PartInbox) {
		grant(r.Consumer, "SELECT, INSERT, DELETE ON {inbox}") // it purges what its retention is over for
		grant(r.Consumer, "SELECT, INSERT, UPDATE ON {limits}")
		grant(r.Operator, "SELECT, DELETE ON {inbox}")
		grant(r.Operator, "SELECT, DELETE ON {limits}")
	}
	return b.String()
}
