package checker_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/waybill-go/waybill/internal/checker"
	"github.com/waybill-go/waybill/internal/historytest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/sqlite"
)

// P1 P2 P3 P4 P5 OR-02 OR-03 OR-04 DB-24: relays that open one file of SQLite each for itself.
func TestSQLiteHistories(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp(os.Getenv(testenv.Dir), "waybill-checker-") //nolint:usetesting // in memory, if the servers are
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	historytest.RunSQL(t, number("WAYBILL_CHECKER_SQLITE", histories(4, 24)), 2, checker.Options{}, func(_ *testing.T, i int) func(*testing.T) (historytest.SQLStore, func(), error) {
		return func(t *testing.T) (historytest.SQLStore, func(), error) {
			t.Helper()
			s, err := sqlite.Open(t.Context(), filepath.Join(dir, strconv.Itoa(i)+".db"), sqlite.Options{Source: "/checker", AutoMigrate: true})
			return s, func() { _ = s.Close(context.WithoutCancel(t.Context())) }, err
		}
	})
}
