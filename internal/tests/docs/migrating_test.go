package docs_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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

CREATE TABLE outbox_events (id int, event_type text, aggregate_id text, created_at timestamptz DEFAULT now(), payload jsonb, published_at timestamptz);
INSERT INTO outbox_events (id, event_type, aggregate_id, payload) SELECT i, 'orders.placed', 'order-1', '{}' FROM generate_series(1, 12) i;`

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
	page := read(t, filepath.Join(root, "docs", "migrating.md"))
	for _, m := range sqlBlock.FindAllStringSubmatch(statementOfMove.ReplaceAllString(page, ""), -1) {
		exec(m[1])
	}
	// old code goes on
	exec(`INSERT INTO outbox_events (id, event_type, aggregate_id, payload) VALUES (13, 'orders.placed', 'order-1', '{}')`)

	sent := sentTo{}
	r, err := relay.New(outbox, nil, relay.Options{Routes: []relay.Route{{Name: "default", Publisher: sent.of("default")}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, e := range sent["default"].Sent() {
		got = append(got, e.Key+" "+e.ID+" "+string(e.Body))
	}
	for id := 1; id <= 13; id++ {
		want = append(want, fmt.Sprintf("order-1 %d {}", id))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
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
	for id, want := range map[string]core.InboxStatus{"m-0": core.InboxDuplicate, "m-1": core.InboxDuplicate, "new": core.InboxNew} {
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
