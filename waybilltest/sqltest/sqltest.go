// Package sqltest tests handlers and producers over *sql.Tx without a server: outbox, inbox and the application's own
// tables are in an SQLite database in memory.
//
// [New] makes an [Env]. Create your tables in its DB, and give its Store to inbox.New and to your producers. The
// handlers are those of production. [Env.Do] commits a transaction and runs the handlers of its messages before it
// returns. Code that begins and commits its own transactions works, too: call Drain after it.
//
// # Guarantees
//
// Store is that of package store/sqlite, which passes the conformance suites of the stores for production. An effect
// and the inbox's mark are one transaction: a duplicate has no second effect, and a handler that fails leaves nothing.
// The clock and the order are those of a waybilltest.Flow.
//
// # Concurrency
//
// An Env belongs to the test's goroutine. SQLite has one writer at a time: while a transaction of DB is open, a second
// one waits for five seconds, and fails.
//
// # Ownership
//
// New registers a cleanup with the test that closes the database.
//
// # Limits
//
// SQLite must understand the application's SQL: it knows the $1, ON CONFLICT and RETURNING of Postgres, but not its
// types, arrays and locks. Handlers over pgx.Tx cannot run here, since pgx has no connection without a server: give
// waybilltest.Deliver a handler over the inbox of your test database, or write the handler against an interface that
// both transactions satisfy. A waybilltest.Recorder is a stager for producers over pgx.Tx.
package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/sqlite"
	"github.com/waybill-go/waybill/waybilltest"
)

// TB is what this package needs of a *testing.T, *testing.B or *testing.F.
type TB interface {
	waybilltest.TB
	Cleanup(f func())
}

// Env is an application's surroundings in an SQLite database in memory. Make it with [New].
type Env struct {
	*waybilltest.Flow
	// DB is the database: create the application's tables in it.
	DB *sql.DB
	// Store is the outbox and the inbox in DB: a waybill.Stager, waybill.Canceller and core.Inbox of *sql.Tx. After
	// a Commit of your own call Env.Drain.
	Store *sqlite.Store

	tb TB
}

// databases counts the databases of this process, for their names.
var databases atomic.Int64

// New returns an environment whose messages are handled by handlers, if any. More can be given to Env.Handle.
func New(tb TB, opts waybilltest.Options, handlers ...waybill.Handler) *Env {
	tb.Helper()
	e := &Env{tb: tb}
	e.Flow = waybilltest.NewFlow(tb, opts, e.open, handlers...)
	return e
}

// open makes the database. SQLite's memdb shares it between the connections of its name.
func (e *Env) open(source string, now func() time.Time) (_ waybilltest.FlowStore, err error) {
	name := fmt.Sprintf("file:/waybilltest-%d?vfs=memdb&_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=foreign_keys(1)", databases.Add(1))
	if e.DB, err = sql.Open("sqlite", name); err != nil {
		return nil, err
	}
	e.Store, err = sqlite.New(e.DB, sqlite.Options{Source: source, Now: now, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	keep, err := e.DB.Conn(e.tb.Context()) // the database is gone with its last connection
	if err != nil {
		return nil, err
	}
	e.tb.Cleanup(func() {
		err := errors.Join(e.Store.Close(context.WithoutCancel(e.tb.Context())), keep.Close(), e.DB.Close())
		if err != nil {
			e.tb.Errorf("sqltest: close the database: %v", err)
		}
	})
	return e.Store, e.Store.Migrate(e.tb.Context())
}

// Do runs fn in a transaction, commits it, and handles the staged messages, and those that their handlers stage in
// turn. It returns fn's error (then nothing was committed), the commit's, or those of handlers.
func (e *Env) Do(fn func(ctx context.Context, tx *sql.Tx) error) error {
	tx, err := e.DB.BeginTx(e.tb.Context(), nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	if err := fn(e.tb.Context(), tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	return e.Drain()
}

// Stage stages msgs in a transaction of their own, handles them, and fails the test if anything goes wrong.
func (e *Env) Stage(msgs ...waybill.Message) (staged []waybill.Staged) {
	e.tb.Helper()
	err := e.Do(func(ctx context.Context, tx *sql.Tx) (err error) {
		staged, err = e.Store.Stage(ctx, tx, msgs...)
		return err
	})
	if err != nil {
		e.tb.Fatalf("sqltest: stage: %v", err)
	}
	return staged
}

// Waiting returns the messages that were committed and not sent, without bodies: scheduled ones and retries, with
// KeepScheduled. DueIn says for how long.
func (e *Env) Waiting() []admin.Stored {
	e.tb.Helper()
	return e.list(func(r admin.Stored) bool { return !r.State.Terminal() })
}

// Parked returns the messages that were given up, without bodies, with Reason and LastError.
func (e *Env) Parked() []admin.Stored {
	e.tb.Helper()
	return e.list(func(r admin.Stored) bool { return r.State == core.StateAbandoned })
}

func (e *Env) list(wanted func(admin.Stored) bool) (all []admin.Stored) {
	e.tb.Helper()
	page := admin.PageRequest{Limit: admin.MaxPageLimit}
	for {
		l, err := e.Store.List(e.tb.Context(), admin.Filter{}, page)
		if err != nil {
			e.tb.Fatalf("sqltest: %v", err)
		}
		all = append(all, slices.DeleteFunc(l.Records, func(r admin.Stored) bool { return !wanted(r) })...)
		if page.After = l.Next; page.After == 0 {
			return all
		}
	}
}
