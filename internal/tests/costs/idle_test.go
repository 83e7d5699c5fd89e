//go:build !race

package costs_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/sqlite"
)

// TestIdleSQLite: an idle relay without options runs 3,280 statements a minute. SQLite has no notifications: 3,000 of
// them ask for the number of the data's version 50 times a second, which reads no page. They find a message of another
// process within 20 ms. The others are those of 18 heartbeats, and looks that follow these.
//
// DB-10.
func TestIdleSQLite(t *testing.T) {
	for _, c := range []struct {
		name string
		poll time.Duration
		most int64
	}{{"without options", 0, 3400}, {"PollInterval = 1 s", time.Second, 400}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var done atomic.Int64
				budget := patience.BudgetOf(t)
				budget.Calls(400, "the schema is made in the first second")
				call := budget.Counter()
				db := sql.OpenDB(connector{
					"file:" + filepath.Join(t.TempDir(), "app.db") + "?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)", func(n int64) {
						done.Add(n)
						call("statement")
					},
				})
				s, err := sqlite.New(db, sqlite.Options{Source: "/costs", AutoMigrate: true, PollInterval: c.poll, Logger: quiet})
				must(t, err)
				r, err := relay.New(s, &sharedtest.Publisher{}, relay.Options{Logger: quiet})
				must(t, err)
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- r.Run(ctx) }()
				patience.Pass(t, 2*time.Minute)
				before := done.Load()
				patience.Pass(t, 3*time.Minute)
				n := (done.Load() - before) / 3
				t.Logf("%d statements a minute", n)
				if n > c.most {
					t.Errorf("%d statements a minute, want at most %d", n, c.most)
				}
				stop()
				must(t, <-ended)
				must(t, s.Close(context.WithoutCancel(t.Context())))
				must(t, db.Close())
			})
		})
	}
}
