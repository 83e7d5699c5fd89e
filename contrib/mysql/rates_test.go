package waybillmysql_test

import (
	"database/sql"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/ratetest"
	"github.com/waybill-go/waybill/internal/tier"
)

// OP-24: a relay and a consumer with an inbox that set no option are near the best settings. Not parallel: see
// ratetest.
func TestNearBest(t *testing.T) {
	tier.Nightly(t, "rounds end early beside other programs; each pair drains ten thousand messages and more")
	cfg, err := mysql.ParseDSN(dsnOf(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	link := ratetest.Link(t, cfg.Addr)
	cfg.Addr = link.Addr()
	store := func(t *testing.T) *waybillmysql.Store {
		t.Helper()
		s := openAt(t, newDatabase(t, func(database string) string {
			c := cfg.Clone()
			c.DBName = database
			return c.FormatDSN()
		}), waybillmysql.Options{})
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s
	}
	outbox := func(t *testing.T) (core.OutboxStore, ratetest.Stage) {
		t.Helper()
		s := store(t)
		return s, func(t *testing.T, msgs []waybill.Message) {
			t.Helper()
			if err := stage(t.Context(), s, msgs); err != nil {
				t.Fatal(err)
			}
		}
	}
	inbox := func(t *testing.T) core.Inbox[*sql.Tx] {
		t.Helper()
		return store(t)
	}
	t.Run("relay", func(t *testing.T) { ratetest.Drained(t, link, 20_000, outbox, outbox) })
	t.Run("inbox", func(t *testing.T) { ratetest.Marked(t, link, 500, inbox, inbox) })
}
