package waybillmysql_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
)

// toldConn tells of each write.
type toldConn struct {
	net.Conn
	tell func()
}

func (c toldConn) Write(b []byte) (int, error) {
	c.tell()
	return c.Conn.Write(b)
}

// DB-10: an idle relay without options takes 335 round trips a minute. MySQL has no notifications: 240 are those of
// four reads a second, which find a new message within a quarter of a second (relay.UnwokenPollMax). 54 are those of 18
// heartbeats, and 30 show presence. PollMax = 10 s leaves 105.
func TestIdleRelay(t *testing.T) { //nolint:tparallel // both register a dialer of the same name
	t.Parallel()
	dsn := newDatabase(t, func(database string) string { return dsnOf(t, database) })
	s := openAt(t, dsn, waybillmysql.Options{})
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The number that it draws is to be seen as settled.
	if err := stage(t.Context(), s, []waybill.Message{waybill.RawMessage("t", "", nil)}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		opts relay.Options
		most int64
	}{{"without options", relay.Options{}, 400}, {"PollMax = 10 s", relay.Options{PollMax: 10 * time.Second}, 150}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent atomic.Int64
				call := patience.BudgetOf(t).Counter()
				mysql.RegisterDialContext("idle", func(ctx context.Context, addr string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
					return toldConn{conn, func() { sent.Add(1); call("round trip") }}, err
				})
				r, err := relay.New(openAt(t, strings.Replace(dsn, "@tcp(", "@idle(", 1), waybillmysql.Options{}), &sharedtest.Publisher{}, c.opts)
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- r.Run(ctx) }()
				patience.Pass(t, 2*time.Minute)
				before := sent.Load()
				patience.Pass(t, 3*time.Minute)
				n := (sent.Load() - before) / 3
				t.Logf("%d round trips a minute", n)
				if n > c.most {
					t.Errorf("%d round trips a minute, want at most %d", n, c.most)
				}
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
