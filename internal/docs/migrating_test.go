package docs_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
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
INSERT INTO jobs VALUES (21, 'mails', '{}', now(), NULL, NULL), (22, 'mails', '{}', now() + interval '1 day', 'once', NULL), (23, 'others', '{}', now(), NULL, NULL),
    (24, 'mails', '{}', now(), 'now', NULL);

CREATE TABLE outbox_messages (id int, topic text, partition_key text, created_at timestamptz DEFAULT now(), payload bytea, status text, error text);
INSERT INTO outbox_messages (id, topic, payload, status, error) VALUES (31, 'orders.placed', '{}', 'pending', NULL),
    (32, 'orders.placed', '{}', 'processing', NULL), (33, 'orders.placed', '{}', 'failed', 'x'), (34, 'orders.placed', '{}', 'abandoned', 'y'), (35, 'orders.placed', '{}', 'published', NULL)`

var sqlBlock = regexp.MustCompile("(?s)```sql\n(.*?)```")

// TestMovingOver runs the SQL of docs/migrating.md on old tables, and checks that a relay sends the rows as messages.
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
	for _, migrate := range []admin.Migrator{outbox, marks} {
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
	// old code goes on
	exec(`INSERT INTO outbox_events (id, event_type, aggregate_id, payload) VALUES (4, 'orders.placed', 'order-1', '{}')`)

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		status, err := outbox.Cancel(ctx, tx, waybill.CancelKey{Route: "mails", Topic: "mails.send", DedupeKey: "now"})
		if err == nil && status[0] != waybill.CancelDone {
			t.Errorf("cancelling a job that is due by its unique key: %s", status[0])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	sent := sentTo{}
	r, err := relay.New(outbox, nil, relay.Options{Routes: []relay.Route{
		{Name: "default", Publisher: sent.of("default")}, {Name: "mails", Publisher: sent.of("mails")},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	ids := map[string][]string{}
	var ofKey []string
	for route, p := range sent {
		for _, e := range p.Sent() {
			ids[route] = append(ids[route], e.ID)
			if e.Key == "order-1" {
				ofKey = append(ofKey, e.ID)
			}
			if e.ID == "11" && !cmp.Equal(e.Lineage, []string{"root"}) {
				t.Errorf("lineage %v", e.Lineage)
			}
		}
		slices.Sort(ids[route])
	}
	if diff := cmp.Diff(map[string][]string{"default": {"1", "11", "2", "3", "31", "32", "33", "4"}, "mails": {"21"}}, ids); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	if want := []string{"1", "2", "3", "4"}; !slices.Equal(ofKey, want) {
		t.Errorf("of the key %v were published, want %v", ofKey, want)
	}
	if job, err := outbox.Inspect(ctx, "mails", "22"); err != nil || job.DueIn < 23*time.Hour {
		t.Errorf("the scheduled job is due in %s, %v", job.DueIn, err)
	}
	done, err := outbox.Redrive(ctx, admin.RedriveRequest{All: true, DryRun: true})
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

// sentTo are the publishers of routes.
type sentTo map[string]*sharedtest.Publisher

func (s sentTo) of(route string) *sharedtest.Publisher {
	s[route] = &sharedtest.Publisher{}
	return s[route]
}
