package postgres

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
)

// release is the folder of the release that this code is. A release that is out stays as it is: the next one gets a
// folder of its own, and is tested beside this one.
const release = "testdata/v1/"

// statementMark begins each statement of a file, before its name.
const statementMark = "-- statement "

// releaseStatements are all texts of relays, stagers and inboxes.
func releaseStatements() map[string]string {
	n, opts := newNames("", "", ""), &Options{}
	all := named("outbox", newStatements(n))
	maps.Copy(all, named("stage", newStageStatements(n, opts)))
	maps.Copy(all, named("inbox", newInboxStatements(n, "$4", keysOfArrays)))
	maps.Copy(all, named("sqlinbox", newInboxStatements(n, "$2", keysOfJSON)))
	maps.Copy(all, named("limit", newLimitStatements(n)))
	return all
}

// DB-21: the schema and the statements of this release are kept as text, so that the next one can be tested beside it.
// UPDATE_GOLDEN=1 writes them.
func TestReleaseIsKept(t *testing.T) {
	t.Parallel()
	m, err := NewMigrations(MigrationOptions{Source: "/release"})
	if err != nil {
		t.Fatal(err)
	}
	sharedtest.Golden(t, release+"schema.sql", m.SQL(), "")
	var file strings.Builder
	all := releaseStatements()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		file.WriteString(statementMark + name + "\n" + strings.TrimSpace(all[name]) + "\n\n")
	}
	sharedtest.Golden(t, release+"statements.sql", file.String(), "")
}

// released returns a database made from the kept schema alone, and the kept statements by name.
func released(t *testing.T) (*pgxpool.Pool, map[string]string) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testenv.Postgres(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	tables, err := os.ReadFile(release + "schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), string(tables)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(release + "statements.sql")
	if err != nil {
		t.Fatal(err)
	}
	statements := map[string]string{}
	for part := range strings.SplitSeq(string(text), statementMark) {
		if name, statement, ok := strings.Cut(part, "\n"); ok {
			statements[name] = statement
		}
	}
	return pool, statements
}

// DB-21: on a database of that release today's code finds all tables and columns that it needs, and works: it stages,
// hands out, settles and marks. After today's migrations the database still takes every statement of that release.
func TestWorksOnTheRelease(t *testing.T) {
	t.Parallel()
	pool, statements := released(t)
	o, err := NewOutbox(pool, Options{Source: "/release"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close(context.WithoutCancel(t.Context())) })
	for _, upgraded := range []bool{false, true} {
		if upgraded {
			m, err := NewMigrations(MigrationOptions{Source: "/release"})
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Up(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			if diffs, err := m.Drift(t.Context(), pool); err != nil || len(diffs) > 0 {
				t.Errorf("drift: %v, %v", diffs, err)
			}
		}
		if err := o.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		worksOn(t, pool, o)
		conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range statements {
			if _, err := conn.Prepare(t.Context(), name, text); err != nil {
				t.Errorf("upgraded %t: statement %s: %v", upgraded, name, err)
			}
		}
		if len(statements) < 50 {
			t.Errorf("only %d statements", len(statements))
		}
		_ = conn.Close(t.Context())
	}
}

// worksOn stages a message, publishes it, and marks it.
func worksOn(t *testing.T, pool *pgxpool.Pool, o *Outbox) {
	t.Helper()
	var id string
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		staged, err := o.Stage(t.Context(), tx, waybill.RawMessage("a.b", "text/plain", []byte("body"), waybill.Key("k")))
		if err == nil {
			id = staged[0].ID
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	partition := core.Partition{Route: waybill.DefaultRoute, To: core.NumSlots}
	part := core.RouteSlots{Route: waybill.DefaultRoute, Slots: core.AllSlots}
	self := core.Member{Session: 7, Heartbeats: 1, Lease: 1e9, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}}}
	for _, step := range []core.HeartbeatRequest{{Self: self, Join: true}, {Self: self, Transfers: []core.Transfer{{Partition: partition, To: self.Session}}}} {
		if _, err := o.Heartbeat(t.Context(), step); err != nil {
			t.Fatal(err)
		}
	}
	result, err := o.Read(t.Context(), self.Session, core.ReadRequest{Ranges: []core.Range{{RouteSlots: part, UpToSeq: 1 << 60, Limit: 10}}, Bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if found := result.Ranges[0].Records; len(found) != 1 || found[0].ID != id {
		t.Fatalf("%d records, want %s", len(found), id)
	}
	if err := o.Settle(t.Context(), self.Session, []core.Outcome{core.Published(&result.Ranges[0].Records[0])}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{Self: self, Leave: true}); err != nil {
		t.Fatal(err)
	}
	box, err := NewInbox(pool, InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []core.InboxStatus{core.InboxNew, core.InboxDuplicate} {
		got, err := box.Do(t.Context(), core.InboxKey{Consumer: "c", Source: "/s", ID: id}, func(context.Context, pgx.Tx) error { return nil })
		if err != nil || got != want {
			t.Errorf("inbox: %s, %v, want %s", got, err, want)
		}
	}
}
