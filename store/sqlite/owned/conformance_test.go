package owned

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxtest"
)

func newHarness(tb testing.TB, opts Options) *harness {
	tb.Helper()
	dir := tb.TempDir()
	path := filepath.Join(dir, "test.db")
	return &harness{openAt(tb, path, opts), openAt(tb, path, opts), dir}
}

// The members use two stores on one file, as two processes do.
func TestConformance(t *testing.T) {
	t.Parallel()
	h := newHarness(t, Options{})
	outboxtest.Run(t, func(*testing.T) outboxtest.Harness { return h })
}

// The same with published records that are kept, and with another prefix.
func TestConformanceKeeps(t *testing.T) {
	t.Parallel()
	h := newHarness(t, Options{Prefix: "own_", Retention: core.Retention{Published: core.Forever}})
	outboxtest.Run(t, func(*testing.T) outboxtest.Harness { return h })
}

// The same on a database of the application's own, with deferred transactions and a rollback journal.
func TestConformanceOnOwnDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "own.db")+"?_pragma=busy_timeout(5000)&_pragma=synchronous(OFF)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s, err := New(db, Options{Source: "/own", AutoMigrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	h := &harness{s, s, dir}
	outboxtest.Run(t, func(*testing.T) outboxtest.Harness { return h })
}
