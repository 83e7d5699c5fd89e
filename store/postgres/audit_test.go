package postgres_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin/audit"
	"github.com/waybill-go/waybill/store/postgres"
)

// The roles that act add lines to the audit record, and can neither change nor delete one, nor choose its time, its
// number or its role.
// DB-06
func TestAuditIsOnlyAddedTo(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	m := newMigrations(t, postgres.MigrationOptions{})
	if err := m.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	suffix := pool.Config().ConnConfig.Database // roles are the server's, not the database's
	roles := postgres.Roles{Producer: "p " + suffix, Relay: "r " + suffix, Operator: "o " + suffix}
	for _, role := range []string{roles.Producer, roles.Relay, roles.Operator} {
		quoted := pgx.Identifier{role}.Sanitize()
		exec(t, pool, "CREATE ROLE "+quoted+" LOGIN PASSWORD 'secret'")
		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			_, _ = pool.Exec(ctx, "DROP OWNED BY "+quoted)
			_, _ = pool.Exec(ctx, "DROP ROLE "+quoted)
		})
	}
	exec(t, pool, m.Grants(roles))
	var number int64
	for role, may := range map[string]bool{roles.Operator: true, roles.Relay: true, roles.Producer: false} {
		u, err := url.Parse(pool.Config().ConnString())
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(role, "secret")
		own := openPool(t, u.String())
		o, err := postgres.NewOutbox(own, postgres.Options{Source: "/test"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = o.Close(context.WithoutCancel(t.Context())) })
		line := audit.Entry{
			Act: "1", Phase: "begin", User: "ada\x00\xff", Via: "command", From: "host", Action: "redrive", Target: "x",
			Filter: strings.Repeat("é", 4096), IDs: []string{"a", "b"},
		}
		line.Body([]byte("old"), []byte("new"))
		err = o.AppendAudit(t.Context(), line)
		if (err == nil) != may {
			t.Fatalf("%s: %v", role, err)
		}
		if !may {
			continue
		}
		list, err := o.ListAudit(t.Context(), 0, 10)
		if err != nil || len(list) == 0 {
			t.Fatalf("%s: %d lines: %v", role, len(list), err)
		}
		got := list[0]
		if got.Number <= number || got.Role != role || got.User != "ada\ufffd\ufffd" || len(got.Filter) != 4096 || len(got.IDs) != 2 || got.Before == got.After ||
			time.Since(got.At).Abs() > time.Hour {
			t.Errorf("%s: the line %+v", role, got)
		}
		if number = got.Number; number > 1 {
			if older, err := o.ListAudit(t.Context(), number, 10); err != nil || len(older) != 1 || older[0].Number >= number {
				t.Errorf("%s: the lines before: %+v: %v", role, older, err)
			}
		}
		for _, attack := range []string{
			"UPDATE waybill.waybill_outbox_audit SET result = 'nothing'", "DELETE FROM waybill.waybill_outbox_audit", "TRUNCATE waybill.waybill_outbox_audit",
			"INSERT INTO waybill.waybill_outbox_audit (at, act, phase, who, via, origin, action, target, filter, ids, before, after, result) VALUES ('2020-01-01', '1', 'end', '', '', '', '', '', '', '{}', '', '', '')",
			"INSERT INTO waybill.waybill_outbox_audit (role, act, phase, who, via, origin, action, target, filter, ids, before, after, result) VALUES ('eve', '1', 'end', '', '', '', '', '', '', '{}', '', '', '')",
			"INSERT INTO waybill.waybill_outbox_audit (number, act, phase, who, via, origin, action, target, filter, ids, before, after, result) OVERRIDING SYSTEM VALUE VALUES (9, '1', 'end', '', '', '', '', '', '', '{}', '', '', '')",
		} {
			if _, err := own.Exec(t.Context(), attack); err == nil || !strings.Contains(err.Error(), "42501") {
				t.Errorf("%s: %s: %v", role, attack, err)
			}
		}
	}
}
