package postgres_test

// An inbox over database/sql finds what keeps it from working before its consumer takes a message, as the one over pgx
// does, and with every driver.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/memory"
)

// plainDriver is pgx's driver without what only pgx's has: its connections, its arguments and its types.
type plainDriver struct{ driver.Connector }

func (d plainDriver) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := d.Connector.Connect(ctx)
	return struct{ driver.Conn }{c}, err
}

// sqlChecks returns the checks of what is made over database/sql, by name.
func sqlChecks(t *testing.T, dsn string) map[string]any {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	dbs := map[string]*sql.DB{"another driver": sql.OpenDB(plainDriver{stdlib.GetConnector(*cfg)})}
	t.Cleanup(func() { _ = dbs["another driver"].Close() })
	for _, mode := range queryExecModes {
		dbs[mode] = openDB(t, withParam(dsn, "default_query_exec_mode="+mode), 1)
	}
	checks := map[string]any{}
	for name, db := range dbs {
		in, err := postgres.NewSQLInbox(db, postgres.InboxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		checks[name] = in
	}
	return checks
}

// The texts are those of the inbox over pgx, whatever the driver and its mode.
func TestSQLInboxChecks(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	suffix := pool.Config().ConnConfig.Database // roles are the server's, not the database's
	role := pgx.Identifier{`checked & "quoted" ` + suffix}
	exec(t, pool, "CREATE ROLE "+role.Sanitize()+" LOGIN PASSWORD 'secret'")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, _ = pool.Exec(ctx, "DROP OWNED BY "+role.Sanitize())
		_, _ = pool.Exec(ctx, "DROP ROLE "+role.Sanitize())
	})
	u, err := url.Parse(pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role[0], "secret")
	overPgx, err := postgres.NewInbox(openPool(t, u.String()), postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checks := sqlChecks(t, u.String())
	m := newMigrations(t, postgres.MigrationOptions{})
	grants := m.Grants(postgres.Roles{Consumer: role[0]})
	for _, step := range []struct{ change, want string }{
		{"SELECT 1", `schema "waybill" is missing`},
		{"CREATE SCHEMA waybill", "GRANT USAGE ON SCHEMA"},
		{"DROP SCHEMA waybill; " + m.SQL(), "GRANT USAGE ON SCHEMA"},
		{grants, ""},
		{"REVOKE INSERT ON waybill.waybill_inbox FROM " + role.Sanitize(), `GRANT INSERT ON "waybill"."waybill_inbox" TO ` + role.Sanitize()},
		{grants + "; ALTER TABLE waybill.waybill_inbox ALTER content_hash TYPE text USING ''", "column content_hash is text, not bytea"},
		{"ALTER TABLE waybill.waybill_inbox ALTER content_hash TYPE bytea USING ''; UPDATE waybill.waybill_meta SET value = 0 WHERE name = 'waybill_inbox.version'", "has schema version 0"},
		{"UPDATE waybill.waybill_meta SET value = 99 WHERE name = 'waybill_inbox.version'", ""},
		{"DROP TABLE waybill.waybill_inbox_limits", `"waybill_inbox_limits" is missing`},
		{"DROP TABLE waybill.waybill_inbox", `"waybill_inbox" is missing`},
	} {
		exec(t, pool, step.change)
		want := overPgx.Check(t.Context())
		if (step.want == "") != (want == nil) || want != nil && !strings.Contains(want.Error(), step.want) {
			t.Fatalf("after %.60q the inbox over pgx says %v, want %q", step.change, want, step.want)
		}
		for name, of := range checks {
			c, ok := of.(core.Checker)
			if !ok {
				t.Fatalf("%T is no core.Checker", of)
			}
			err := c.Check(t.Context())
			if fmt.Sprint(err) != fmt.Sprint(want) || errors.Is(err, waybill.ErrMisconfigured) != (want != nil) {
				t.Errorf("after %.60q, %s: %v, want %v", step.change, name, err, want)
			}
		}
	}
}

// No option is needed: a consumer whose handlers use the inbox does not start on a server that forgets commits.
func TestSQLInboxIsCheckedAtStart(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	if err := newMigrations(t, postgres.MigrationOptions{}).Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	in, err := postgres.NewSQLInbox(openDB(t, withParam(pool.Config().ConnString(), "synchronous_commit=off"), 1), postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	box, err := inbox.New(in, "billing", inbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	bus, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Declare("q", "a"); err != nil {
		t.Fatal(err)
	}
	c, err := consumer.New(bus, consumer.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	handler := inbox.Handler(box, waybill.NewTopic("a", waybill.JSON[string]()), func(context.Context, *sql.Tx, string) error { return nil })
	if err := c.Handle(waybill.Subscription{Queue: "q"}, handler); err != nil {
		t.Fatal(err)
	}
	if _, err := c.RunOnce(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "synchronous_commit is off") {
		t.Errorf("the consumer ended with %v", err)
	}
}
