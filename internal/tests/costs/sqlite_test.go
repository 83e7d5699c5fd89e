//go:build !race

package costs_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	sqlitedriver "modernc.org/sqlite"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/store/sqlite"
)

// countedSQLite returns a store in a file of its own, and the number of its statements so far.
func countedSQLite(t *testing.T) (*sqlite.Store, *atomic.Int64) {
	t.Helper()
	done := new(atomic.Int64)
	db := sql.OpenDB(connector{
		"file:" + filepath.Join(t.TempDir(), "app.db") + "?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)", func(n int64) { done.Add(n) },
	})
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	t.Cleanup(func() { must(t, db.Close()) })
	s, err := sqlite.New(db, sqlite.Options{Source: "/costs", AutoMigrate: true, Logger: quiet})
	must(t, err)
	t.Cleanup(func() { s.Close(context.WithoutCancel(t.Context())) })
	return s, done
}

// TQ-07: what several members of a process have published is one transaction.
func TestGroupedSettlesOnSQLite(t *testing.T) {
	s, done := countedSQLite(t)
	together, alone := sharedtest.GroupedSettles(t, s, func(msgs ...waybill.Message) {
		tx, err := s.DB().BeginTx(t.Context(), nil)
		must(t, err)
		_, err = s.Stage(t.Context(), tx, msgs...)
		must(t, err)
		must(t, tx.Commit())
	}, done.Load)
	t.Logf("%d statements together, %d alone", together, alone)
	if together > 11 {
		t.Errorf("%d statements for five members together, want one for each member, and those of one settle", together)
	}
}

// TestSQLite: what Waybill asks of SQLite. Not parallel: allocations are those of the process.
func TestSQLite(t *testing.T) {
	s, done := countedSQLite(t)
	db := s.DB()
	meter := func() counts { return counts{statements: float64(done.Load())} }
	stage := func(n, each int) {
		msgs := messages(n)
		for i := 0; i < n; i += each {
			tx, err := db.BeginTx(t.Context(), nil)
			must(t, err)
			_, err = s.Stage(t.Context(), tx, msgs[i:i+each]...)
			must(t, err)
			must(t, tx.Commit())
		}
	}
	is := table{}
	row := func(name string, n int, fn func()) { is["sqlite: "+name] = count(t, n, meter, fn) }

	stage(10, 1)
	stage(200, 100)
	row("stage, one a transaction", some, func() { stage(some, 1) })
	row("stage, 100 a transaction", many, func() { stage(many, 100) })
	runRelay(t, s, 10+200+some+many)

	stage(4*many, 1000)
	is["sqlite: relay: read, publish and settle"] = relayed(t, 4*many, meter, s)

	self := join(t, s)
	stage(many, 1000)
	records := read(t, s, self, many)
	row("read", many, func() { read(t, s, self, many) })
	byHundreds := func(records []core.Record, fn func(some []core.Record)) {
		for some := range slices.Chunk(records, 100) {
			fn(some)
		}
	}
	row("take, 100 a call", some, func() {
		byHundreds(records[:some], func(some []core.Record) {
			refs := make([]core.Ref, len(some))
			for i := range some {
				refs[i] = some[i].Ref
			}
			_, err := s.Hold(t.Context(), self, core.HoldRequest{Refs: refs})
			must(t, err)
		})
	})
	row("retry, 100 a call", some, func() {
		byHundreds(records[:some], func(some []core.Record) {
			outcomes := make([]core.Outcome, len(some))
			for i := range some {
				outcomes[i] = core.Retry(&some[i], errors.New("no"), time.Hour+time.Duration(i)*time.Second)
			}
			must(t, s.Settle(t.Context(), self, outcomes).FirstErr())
		})
	})
	row("settle", many, func() { settle(t, s, self, records) })

	is["sqlite: consume one by one"], is["sqlite: consume in batches of 100"] = consumed[*sql.Tx](t, meter, s)
	check(t, "sqlite: ", is, "")
}

// connector opens connections of modernc.org/sqlite that count the statements they run.
type connector struct {
	dsn  string
	done func(n int64)
}

// Connect implements driver.Connector.
func (c connector) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.Driver().Open(c.dsn)
	if err != nil {
		return nil, err
	}
	return &liteConn{conn.(fullConn), c.done}, nil
}

// Driver implements driver.Connector.
func (connector) Driver() driver.Driver { return &sqlitedriver.Driver{} }

// fullConn is what a connection of modernc.org/sqlite can do.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	sqlitedriver.HookRegisterer
}

type liteConn struct {
	fullConn
	done func(n int64)
}

func (c *liteConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	c.done(2) // with its end
	return c.fullConn.BeginTx(ctx, opts)
}

func (c *liteConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.done(1)
	return c.fullConn.ExecContext(ctx, query, args)
}

func (c *liteConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.done(1)
	return c.fullConn.QueryContext(ctx, query, args)
}

func (c *liteConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	stmt, err := c.fullConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return &liteStmt{stmt.(fullStmt), c.done}, nil
}

// fullStmt is what a statement of modernc.org/sqlite can do.
type fullStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type liteStmt struct {
	fullStmt
	done func(n int64)
}

func (s *liteStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	s.done(1)
	return s.fullStmt.ExecContext(ctx, args)
}

func (s *liteStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	s.done(1)
	return s.fullStmt.QueryContext(ctx, args)
}
