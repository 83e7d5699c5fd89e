package docs_test

import (
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

const oldTables = `
CREATE TABLE processed_messages (message_id text, processed_at timestamptz);
INSERT INTO processed_messages VALUES ('m-0', now()), ('ancient', now() - interval '1 year');

CREATE TABLE outbox_events (id int, event_type text, aggregate_id text, created_at timestamptz DEFAULT clock_timestamp(), payload jsonb, published_at timestamptz);
INSERT INTO outbox_events (id, event_type, aggregate_id, payload) SELECT i, 'orders.placed', 'order-1', '{}' FROM generate_series(1, 3) i;

CREATE TABLE outbox_table (id int, routing_key text, body jsonb, tracking_ids json, created_at timestamptz DEFAULT now(), send_after timestamptz, expires_at timestamptz, sent_at timestamptz);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids) VALUES (11, 'orders.placed', '{}', '["root"]');

CREATE TABLE jobs (id int, queue text, payload jsonb, run_at timestamptz, unique_key text, done_at timestamptz);
INSERT INTO jobs VALUES (21, 'mails', '{}', now(), NULL, NULL), (22, 'mails', '{}', now() + interval '1 day', 'once', NULL), (23, 'others', '{}', now(), NULL, NULL);

CREATE TABLE outbox_messages (id int, topic text, partition_key text, created_at timestamptz DEFAULT now(), payload bytea, status text, error text);
INSERT INTO outbox_messages (id, topic, payload, status, error) VALUES (31, 'orders.placed', '{}', 'pending', NULL),
    (32, 'orders.placed', '{}', 'processing', NULL), (33, 'orders.placed', '{}', 'failed', 'x'), (34, 'orders.placed', '{}', 'abandoned', 'y'), (35, 'orders.placed', '{}', 'published', NULL)`

var sqlBlock = regexp.MustCompile("(?s)```sql\n(.*?)```")

// TestMovingOver runs the SQL of docs/migrating.md on old tables, and looks at what a relay makes of the rows.
//
// OP-12
func TestMovingOver(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool, err := pgxpool.New(ctx, testenv.Postgres(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	outbox, err := postgres.NewOutbox(pool, postgres.Options{Source: "/orders"})
	if err != nil {
		t.Fatal(err)
	}
	marks, err := postgres.NewInbox(pool, postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, migrate := range []core.Migrator{outbox, marks} {
		if err := migrate.Migrate(ctx); err != nil {
			t.Fatal(err)
		}
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%v, in:\n%s", err, sql)
		}
	}
	exec(oldTables)
	for _, m := range sqlBlock.FindAllStringSubmatch(read(t, filepath.Join(root, "docs", "migrating.md")), -1) {
		exec(m[1])
	}
	exec(`INSERT INTO outbox_events (id, event_type, aggregate_id, payload) VALUES (4, 'orders.placed', 'order-1', '{}')`) // old code goes on

	claim, err := outbox.Claim(ctx, core.ClaimRequest{Owner: "test", Routes: []core.RouteOrder{{Route: "default"}, {Route: "mails"}}, MaxRecords: 100, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string][]string{}
	for i := range claim.Records {
		r := &claim.Records[i]
		if r.Err != nil {
			t.Error(r.Err)
		}
		ids[r.Route] = append(ids[r.Route], r.Envelope.ID)
		if r.Envelope.ID == "11" && !cmp.Equal(r.Envelope.Lineage, []string{"root"}) {
			t.Errorf("lineage %v", r.Envelope.Lineage)
		}
	}
	if diff := cmp.Diff(map[string][]string{"default": {"1", "2", "3", "11", "31", "32", "33", "4"}, "mails": {"21"}}, ids); diff != "" {
		t.Errorf("claimed (-want +got):\n%s", diff)
	}
	if claim.NextIn < 23*time.Hour {
		t.Errorf("the scheduled job is due in %s", claim.NextIn)
	}
	done, err := outbox.Redrive(ctx, core.RedriveRequest{All: true, DryRun: true})
	if err != nil || done.Changed != 1 {
		t.Errorf("the abandoned message: %+v, %v", done, err)
	}
	seen := func(id string) core.InboxStatus {
		var s core.InboxStatus
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
			s, err = marks.Mark(ctx, tx, core.InboxKey{Consumer: "billing", Source: "/orders", ID: id})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for id, want := range map[string]core.InboxStatus{"m-0": core.InboxDuplicate, "m-1": core.InboxDuplicate, "new": core.InboxProcessed} {
		if got := seen(id); got != want {
			t.Errorf("mark of %s: %v, want %v", id, got, want)
		}
	}
}
