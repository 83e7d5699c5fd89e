package sqlite

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
)

// release is the folder of the release that this code is. A release that is out stays as it is: the next one gets a
// folder of its own, and is tested beside this one.
const release = "testdata/v1/"

// statementMark begins each statement of a file.
const statementMark = "-- statement\n"

// DB-21: the schema and the statements of this release are kept as text, so that the next one can be tested beside it.
// UPDATE_GOLDEN=1 writes them.
func TestReleaseIsKept(t *testing.T) {
	t.Parallel()
	m, err := NewMigrations(MigrationOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sharedtest.Golden(t, release+"schema.sql", m.SQL(), "")
	s := openAt(t, filepath.Join(t.TempDir(), "app.db"), Options{})
	var all []string
	for _, text := range allTexts() {
		all = append(all, statementMark+strings.TrimSpace(s.sql(text))+"\n\n")
	}
	slices.Sort(all)
	sharedtest.Golden(t, release+"statements.sql", strings.Join(slices.Compact(all), ""), "")
}

// DB-21: today's code finds everything on a database of that release, and works: it stages, hands out, settles and
// marks. After today's migrations the database still takes every statement of that release.
func TestWorksOnTheRelease(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	tables, err := os.ReadFile(release + "schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), string(tables)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(release + "statements.sql")
	if err != nil {
		t.Fatal(err)
	}
	statements := strings.Split(string(text), statementMark)[1:]
	if len(statements) < 50 {
		t.Errorf("only %d statements", len(statements))
	}
	for _, upgraded := range []bool{false, true} {
		s, err := Open(t.Context(), path, Options{Source: "/release", AutoMigrate: upgraded, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		if diffs, err := s.Drift(t.Context()); err != nil || len(diffs) > 0 {
			t.Errorf("drift: %v, %v", diffs, err)
		}
		worksOn(t, s)
		for _, statement := range statements {
			if err := prepares(t.Context(), db, statement); err != nil {
				t.Errorf("upgraded %t: %v: %s", upgraded, err, statement)
			}
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// prepares reports whether the database takes a statement.
func prepares(ctx context.Context, db *sql.DB, statement string) error {
	stmt, err := db.PrepareContext(ctx, statement)
	if err != nil {
		return err
	}
	defer func() { _ = stmt.Close() }()
	return nil
}

// worksOn stages a message, publishes it, and marks it.
func worksOn(t *testing.T, s *Store) {
	t.Helper()
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	staged, err := s.Stage(t.Context(), tx, waybill.RawMessage("a.b", "text/plain", []byte("body"), waybill.Key("k")))
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	partition := core.Partition{Route: waybill.DefaultRoute, To: core.NumSlots}
	part := core.RouteSlots{Route: waybill.DefaultRoute, Slots: core.AllSlots}
	self := core.Member{Session: 7, Heartbeats: 1, Lease: 1e9, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}}}
	for _, step := range []core.HeartbeatRequest{{Self: self, Join: true}, {Self: self, Transfers: []core.Transfer{{Partition: partition, To: self.Session}}}} {
		if _, err := s.Heartbeat(t.Context(), step); err != nil {
			t.Fatal(err)
		}
	}
	result, err := s.Read(t.Context(), self.Session, core.ReadRequest{Ranges: []core.Range{{RouteSlots: part, UpToSeq: 1 << 60, Limit: 10}}, Bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if found := result.Ranges[0].Records; len(found) != 1 || found[0].ID != staged[0].ID {
		t.Fatalf("%d records, want %s", len(found), staged[0].ID)
	}
	if err := s.Settle(t.Context(), self.Session, []core.Outcome{core.Published(&result.Ranges[0].Records[0])}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: self, Leave: true}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []core.InboxStatus{core.InboxNew, core.InboxDuplicate} {
		got, err := s.Do(t.Context(), core.InboxKey{Consumer: "c", Source: "/s", ID: staged[0].ID}, func(context.Context, *sql.Tx) error { return nil })
		if err != nil || got != want {
			t.Errorf("inbox: %s, %v, want %s", got, err, want)
		}
	}
}
