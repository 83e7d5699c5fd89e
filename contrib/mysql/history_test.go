package waybillmysql_test

import (
	"os"
	"strconv"
	"testing"

	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/internal/checker"
	"github.com/waybill-go/waybill/internal/historytest"
	"github.com/waybill-go/waybill/internal/tier"
)

// P1 P2 P3 P4 P5 OR-02 OR-03 OR-04 DB-24: random histories of relays that have a pool each, and of producers whose
// transactions are short and long. WAYBILL_CHECKER_MYSQL is their number.
func TestHistories(t *testing.T) {
	t.Parallel()
	n := 4
	if tier.IsNightly() {
		n = 60
	}
	if given, err := strconv.Atoi(os.Getenv("WAYBILL_CHECKER_MYSQL")); err == nil {
		n = given
	}
	historytest.RunSQL(t, n, 4, checker.Options{TimersStay: true}, func(t *testing.T, _ int) func(*testing.T) (historytest.SQLStore, func(), error) {
		t.Helper()
		dsn := newDatabase(t, func(database string) string { return dsnOf(t, database) })
		if err := openAt(t, dsn, waybillmysql.Options{}).Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		return func(*testing.T) (historytest.SQLStore, func(), error) {
			s, err := waybillmysql.Open(dsn, waybillmysql.Options{Source: "/checker"})
			return s, func() { _ = s.Close() }, err
		}
	})
}
