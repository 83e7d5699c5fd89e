package schema_test

import (
	"context"
	"errors"
	"flag"
	"net/url"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

var update = flag.Bool("update", false, "write shape.txt anew from a migrated database")

// The description that Drift compares with is that of the newest migrations. After a change of them run
//
//	go test ./store/postgres/internal/schema -run TestShape -update
//
// DB-07
func TestShape(t *testing.T) {
	t.Parallel()
	m, pool := newDriftDatabase(t, schema.Options{Schema: `Odd "schema"`, Outbox: `Odd "table" 'x'`, Inbox: "in"})
	live, err := m.Live(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("shape.txt", []byte(live), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(schema.ShapeText, live); d != "" {
		t.Errorf("the migrations make another shape than shape.txt says; run this test with -update and look at the change (-was +is)\n%s", d)
	}
}

func newDriftDatabase(t *testing.T, opts schema.Options) (*schema.Migrations, *pgxpool.Pool) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testenv.Postgres(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	m, err := schema.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return m, pool
}

// DB-07
func TestDrift(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change string
		want   []admin.Difference
	}{
		"nothing":            {"SELECT 1", nil},
		"the owner's column": {"ALTER TABLE waybill.waybill_outbox ADD mine text, ADD also int NOT NULL DEFAULT 1", nil},
		"the owner's index":  {"CREATE INDEX mine ON waybill.waybill_outbox (topic); CREATE TABLE waybill.other (a int)", nil},
		"a column that staging cannot fill": {"ALTER TABLE waybill.waybill_outbox ADD mine text NOT NULL", []admin.Difference{
			{Object: "waybill_outbox.mine", Want: "a default, or nullable: Waybill does not fill it", Have: "text not null"},
		}},
		"no column": {"ALTER TABLE waybill.waybill_outbox DROP content_type", []admin.Difference{
			{Object: "waybill_outbox.content_type", Want: "text not null default 'application/json'::text", Have: "missing"},
		}},
		"type and default": {"ALTER TABLE waybill.waybill_outbox ALTER correlation_id TYPE varchar(20), ALTER correlation_id DROP DEFAULT", []admin.Difference{
			{Object: "waybill_outbox.correlation_id", Want: "text not null default ''::text", Have: "character varying(20) not null"},
		}},
		"nullability": {"ALTER TABLE waybill.waybill_outbox ALTER topic DROP NOT NULL", []admin.Difference{
			{Object: "waybill_outbox.topic", Want: `text collate "C" not null`, Have: `text collate "C"`},
		}},
		"collation": {`ALTER TABLE waybill.waybill_inbox ALTER id TYPE text COLLATE "default"`, []admin.Difference{
			{Object: "waybill_inbox.id", Want: `text collate "C" not null`, Have: "text not null"},
		}},
		"collation of an index": {`DROP INDEX waybill.waybill_outbox_id; CREATE UNIQUE INDEX waybill_outbox_id ON waybill.waybill_outbox (route, id COLLATE "default") WHERE own_id`, []admin.Difference{
			{Object: "waybill_outbox_id", Want: "unique index using btree (route, id) where own_id", Have: `unique index using btree (route, id collate "default") where own_id`},
		}},
		"sequence": {"ALTER SEQUENCE waybill.waybill_outbox_seq CACHE 32", []admin.Difference{{
			Object: "waybill_outbox_seq", Want: "sequence of bigint from 1 start 1 increment 1 cache 1",
			Have: "sequence of bigint from 1 start 1 increment 1 cache 32",
		}}},
		"default": {"ALTER TABLE waybill.waybill_outbox ALTER seq SET DEFAULT nextval('waybill.waybill_outbox_seq')", []admin.Difference{{
			Object: "waybill_outbox.seq",
			Want:   "bigint not null default (((pg_current_xact_id() IS NULL))::integer + nextval('\"waybill\".\"waybill_outbox_seq\"'::regclass))",
			Have:   `bigint not null default nextval('"waybill"."waybill_outbox_seq"'::regclass)`,
		}}},
		"no index": {"DROP INDEX waybill.waybill_outbox_expires", []admin.Difference{{
			Object: "waybill_outbox_expires", Want: "index using btree (route, ( CASE WHEN (due_at IS NULL) THEN 1 ELSE 0 END), expires_at) where ((expires_at IS NOT NULL) AND (settled_at IS NULL))", Have: "missing",
		}}},
		"an index of another name": {"ALTER INDEX waybill.waybill_outbox_expires RENAME TO mine", []admin.Difference{{
			Object: "waybill_outbox_expires", Want: "index using btree (route, ( CASE WHEN (due_at IS NULL) THEN 1 ELSE 0 END), expires_at) where ((expires_at IS NOT NULL) AND (settled_at IS NULL))",
			Have: "missing, but mine is the same: rename it",
		}}},
		"predicate, columns and order": {
			`DROP INDEX waybill.waybill_outbox_expires; CREATE INDEX waybill_outbox_expires ON waybill.waybill_outbox (due_at DESC, route) WHERE due_at IS NOT NULL`,
			[]admin.Difference{{
				Object: "waybill_outbox_expires", Want: "index using btree (route, ( CASE WHEN (due_at IS NULL) THEN 1 ELSE 0 END), expires_at) where ((expires_at IS NOT NULL) AND (settled_at IS NULL))",
				Have: "index using btree (due_at desc, route) where (due_at IS NOT NULL)",
			}},
		},
		"uniqueness": {`DROP INDEX waybill.waybill_outbox_id; CREATE INDEX waybill_outbox_id ON waybill.waybill_outbox (route, id) WHERE own_id`, []admin.Difference{
			{Object: "waybill_outbox_id", Want: "unique index using btree (route, id) where own_id", Have: "index using btree (route, id) where own_id"},
		}},
		"an index that was never built": {`UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'waybill.waybill_outbox_id'::regclass`, []admin.Difference{
			{Object: "waybill_outbox_id", Want: "unique index using btree (route, id) where own_id", Have: "unique index using btree (route, id) where own_id, invalid"},
		}},
		"no primary key": {"ALTER TABLE waybill.waybill_inbox DROP CONSTRAINT waybill_inbox_pkey", []admin.Difference{
			{Object: "waybill_inbox_pkey", Want: "primary key using btree (id, source, consumer)", Have: "missing"},
		}},
		"no wake sequence":  {"DROP SEQUENCE waybill.waybill_outbox_wake", []admin.Difference{{Object: "waybill_outbox_wake", Want: "sequence of bigint from 0 start 0 increment 1 cache 1", Have: "missing"}}},
		"a table is gone":   {"DROP TABLE waybill.waybill_inbox", []admin.Difference{{Object: "waybill_inbox", Want: "table", Have: "missing"}}},
		"an unlogged table": {"ALTER TABLE waybill.waybill_inbox SET UNLOGGED", []admin.Difference{{Object: "waybill_inbox", Want: "table", Have: "table, unlogged"}}},
		// looked at below
		"a view": {"ALTER TABLE waybill.waybill_inbox RENAME TO x; CREATE VIEW waybill.waybill_inbox AS SELECT * FROM waybill.x", nil},
		"storage": {"ALTER TABLE waybill.waybill_outbox SET (fillfactor = 100), RESET (autovacuum_vacuum_threshold)", []admin.Difference{
			{Object: "waybill_outbox storage option autovacuum_vacuum_threshold", Want: "5000 (for speed only)", Have: "missing"},
			{Object: "waybill_outbox storage option fillfactor", Want: "90 (for speed only)", Have: "100"},
		}},
		"a row of meta": {"DELETE FROM waybill.waybill_meta WHERE name LIKE '%.hlc'", []admin.Difference{
			{Object: "waybill_meta row waybill_outbox.hlc", Want: "a row", Have: "missing"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, pool := newDriftDatabase(t, schema.Options{})
			if _, err := pool.Exec(t.Context(), tc.change); err != nil {
				t.Fatal(err)
			}
			got, err := m.Drift(t.Context(), pool)
			if err != nil {
				t.Fatal(err)
			}
			if name == "a view" {
				if len(got) == 0 || got[0] != (admin.Difference{Object: "waybill_inbox", Want: "table", Have: "view"}) {
					t.Errorf("got %+v", got)
				}
				return
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("differences (-want +got)\n%s", d)
			}
		})
	}
}

// DB-07: the parts are apart, and a role that may do nothing but connect can ask.
func TestDriftAsLeastPrivilegedUser(t *testing.T) {
	t.Parallel()
	_, pool := newDriftDatabase(t, schema.Options{Schema: "S", Outbox: "o", Parts: []schema.Part{schema.PartOutbox}})
	if _, err := pool.Exec(t.Context(), `ALTER TABLE "S".o ALTER topic DROP NOT NULL`); err != nil {
		t.Fatal(err)
	}
	role := "drift " + pool.Config().ConnConfig.Database
	quoted := pgx.Identifier{role}.Sanitize()
	if _, err := pool.Exec(t.Context(), "CREATE ROLE "+quoted+" LOGIN PASSWORD 'secret'"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = pool.Exec(context.WithoutCancel(t.Context()), "DROP ROLE "+quoted) })
	u, err := url.Parse(pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "secret")
	mine, err := pgxpool.New(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	o, err := postgres.NewOutbox(mine, postgres.Options{Source: "/test", Schema: "S", Table: "o"})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Fatalf("the role may too much: %v", err)
	}
	checker, ok := core.As[admin.DriftChecker](o)
	if !ok {
		t.Fatal("the outbox is no admin.DriftChecker")
	}
	got, err := checker.Drift(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]admin.Difference{{Object: "o.topic", Want: `text collate "C" not null`, Have: `text collate "C"`}}, got); d != "" {
		t.Errorf("differences (-want +got)\n%s", d)
	}
}
