package schema

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
)

// The owner of a table can have a trigger or a policy on it. Its code runs with the rights of the role that uses the
// table: of a superuser who migrates, or of a relay that serves other outboxes, too. So the owner has to be a role that
// has those rights anyway.

// TrustedSQL are the oids of the roles that could take the rights of the current one: superusers and the owner of the
// database, and that role itself. The parameter names more of them.
func TrustedSQL(param string) string {
	return `SELECT a.oid FROM pg_roles a
        WHERE a.rolsuper OR a.rolname IN ('pg_database_owner', current_user) OR a.rolname = ANY (` + param + `::text[])
           OR a.oid = (SELECT d.datdba FROM pg_database d WHERE d.datname = current_database())`
}

// strangerSQL is one of the relations $2 of the schema $1, or the schema itself if $2 has an empty name, whose owner is
// none of TrustedSQL; $3 are roles that are trusted, too.
var strangerSQL = `
SELECT pg_catalog.pg_get_userbyid(x.owner)::text, x.what
FROM (SELECT n.nspowner AS owner, 'the schema' AS what FROM pg_namespace n WHERE n.nspname = $1 AND '' = ANY ($2::text[])
      UNION ALL
      SELECT c.relowner, 'table ' || c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      WHERE n.nspname = $1 AND c.relname = ANY ($2::text[])) x
WHERE x.owner NOT IN (` + TrustedSQL("$3") + `)
LIMIT 1`

// Stranger returns an owner of the schema of an outbox, or of a table in it, that is not trusted, and the object; an
// empty owner means that there is none. The roles owners are trusted, too.
func (n Names) Stranger(ctx context.Context, db rower, owners []string) (owner, what string, err error) {
	return stranger(ctx, db, n.Schema, append(n.outboxTables(), ""), owners)
}

func stranger(ctx context.Context, db rower, schema string, tables, owners []string) (owner, what string, err error) {
	err = db.QueryRow(ctx, strangerSQL, schema, tables, owners).Scan(&owner, &what)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return owner, what, err
}

// outboxTables are the tables and sequences of the outbox, without the schema.
func (n Names) outboxTables() []string {
	all := []string{metaTable}
	for _, suffix := range outboxRelations {
		all = append(all, n.Outbox+suffix)
	}
	return all
}

// checkOwners refuses to change tables of a stranger. Of the schema it asks nothing: migrations create in it.
func (m *Migrations) checkOwners(ctx context.Context, tx pgx.Tx, op string) error {
	tables := slices.Concat(m.names.outboxTables(), []string{m.names.Inbox, m.names.Inbox + "_limits"})
	owner, what, err := stranger(ctx, tx, m.names.Schema, tables, []string{})
	if err != nil || owner == "" {
		return err
	}
	return dberr.Misconfigured(op, "role %s owns %s in schema %s, and its triggers would run with the rights of this role: "+
		"migrate as %s, or give it to this role first", owner, what, m.names.Schema, owner)
}
