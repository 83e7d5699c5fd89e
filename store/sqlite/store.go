package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite" // the driver that Open uses

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/internal/sleep"
	"github.com/waybill-go/waybill/internal/sqltext"
)

// Store is an outbox and an inbox in an SQLite file. It is safe for concurrent use.
type Store struct {
	db      *sql.DB
	owned   bool
	opts    Options
	stamper *core.Stamper
	gate    chan struct{} // holds one token while this store writes
	hint    chan struct{}
	closed  atomic.Bool
	fit     atomic.Bool // this program knows the schema well enough

	migrations *Migrations
	migrated   atomic.Bool

	words *strings.Replacer // what stands in the places of statements
	texts sync.Map          // statements with it, by statement

	mu    sync.Mutex // guards what follows
	stmts statements

	watch watcher
}

var (
	_ core.OutboxStore        = (*Store)(nil)
	_ waybill.Stager[*sql.Tx] = (*Store)(nil)
	_ core.Checker            = (*Store)(nil)
	_ admin.Migrator          = (*Store)(nil)
	_ core.ClockSeeder        = (*Store)(nil)
)

// Open opens or creates the file at path, with WAL, synchronous=FULL, foreign keys on, and transactions that begin
// immediate. Only the owner may read a file that it creates (mode 0600). With Options.AutoMigrate it creates the
// tables. The caller closes the store.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	dsn, err := dataSource(path, opts.withDefaults().BusyTimeout)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, classify("open", err)
	}
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	s, err := New(db, opts)
	if err == nil {
		s.owned = true
		err = s.private(ctx, path)
	}
	if err == nil {
		err = s.begin(ctx)
	}
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return s, nil
}

// New returns a store in db, which must use the driver of modernc.org/sqlite itself: Check refuses one that wraps it
// and hides its hooks, as drivers for tracing do. The application should open it with WAL, synchronous=FULL, a busy
// timeout and immediate transactions:
//
//	file:app.db?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)
//
// The store keeps one connection of db for itself while a relay waits, unless db is limited to one. It never closes db.
func New(db *sql.DB, opts Options) (*Store, error) {
	if db == nil {
		return nil, waybill.Invalid("waybill/sqlite: new", "db: is nil; pass an open *sql.DB, or use Open")
	}
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	stamper, err := core.NewStamper(core.StamperOptions{
		Source: opts.Source, Clock: opts.Clock, Limits: opts.Limits, TTL: opts.TTL, RouteTTL: opts.RouteTTL, Now: opts.Now,
		TracerProvider: opts.TracerProvider, Cancellable: opts.Cancellable,
	})
	if err != nil {
		return nil, err
	}
	migrations, err := NewMigrations(MigrationOptions{Prefix: opts.Prefix})
	if err != nil {
		return nil, err
	}
	s := &Store{
		db: db, opts: opts, stamper: stamper, migrations: migrations,
		gate: make(chan struct{}, 1), hint: make(chan struct{}, 1),
	}
	s.words = strings.NewReplacer(append(sqltext.Words(), DefaultPrefix, opts.Prefix)...)
	s.watch.seen = map[string]sight{}
	s.watch.lock = make(chan struct{}, 1)
	return s, nil
}

// dataSource returns the driver's name for path.
func dataSource(path string, busy time.Duration) (string, error) {
	if path == "" || strings.Contains(path, ":memory:") || strings.HasPrefix(path, "file:") || strings.ContainsRune(path, 0) {
		return "", waybill.Invalid("waybill/sqlite: open",
			"path: must be the name of a file, not a URI or :memory:; use New for your own data source, or package store/memory")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("waybill/sqlite: open: %w", err)
	}
	if info, err := os.Stat(filepath.Dir(abs)); err != nil || !info.IsDir() { //nolint:gosec // the application names its file
		return "", misconfigured("open", fmt.Errorf("the directory of %q does not exist: create it", path))
	}
	if info, err := os.Stat(abs); err == nil && info.IsDir() { //nolint:gosec // the application names its file
		return "", misconfigured("open", fmt.Errorf("%q is a directory: name a file in it", path))
	}
	abs = filepath.ToSlash(abs)
	if runtime.GOOS == "windows" {
		abs = "/" + abs
	}
	pragma := func(name, value string) string { return "&_pragma=" + url.QueryEscape(name+"("+value+")") }
	return "file:" + (&url.URL{Path: abs}).EscapedPath() + "?_txlock=immediate&_error_rc=1" +
		pragma("busy_timeout", strconv.FormatInt(busy.Milliseconds(), 10)) +
		pragma("synchronous", "FULL") + pragma("foreign_keys", "1"), nil
}

// begin brings a file that Open opened into WAL mode and migrates it if asked to. Changing the mode does not wait for
// other processes that do the same, so it is tried again for the busy timeout.
func (s *Store) begin(ctx context.Context) error {
	deadline := time.Now().Add(s.opts.BusyTimeout)
	for {
		var mode string
		err := s.db.QueryRowContext(ctx, "PRAGMA journal_mode=WAL").Scan(&mode)
		if err == nil && mode != "wal" {
			return misconfigured("open", fmt.Errorf("the file stays in journal mode %q instead of WAL: it must be on a local disk", mode))
		}
		if err == nil {
			break
		}
		if !busy(err) || time.Now().After(deadline) {
			return classify("open", err)
		}
		if err := sleep.For(ctx, 20*time.Millisecond); err != nil {
			return classify("open", err)
		}
	}
	if s.opts.AutoMigrate {
		return s.Migrate(ctx)
	}
	return nil
}

// DB returns the database, for business transactions. Do not close it.
func (s *Store) DB() *sql.DB { return s.db }

// Clock returns the clock of the stamps.
func (s *Store) Clock() *hlc.Clock { return s.stamper.Clock() }

func (s *Store) logger() *slog.Logger {
	if s.opts.Logger == nil {
		return slog.Default()
	}
	return s.opts.Logger
}

// Close releases the statements and the connection of the store, and closes the database if Open opened it. Running
// queries end first. If ctx ends before that, Close returns an error, and the release goes on without it. A second call
// does nothing.
func (s *Store) Close(ctx context.Context) error {
	if s.closed.Swap(true) {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- s.release() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return outage("close", ctx.Err())
	}
}

// release does the work of Close.
func (s *Store) release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stmts.close()
	s.stmts = nil
	s.watch.close()
	if s.owned {
		if err := s.db.Close(); err != nil {
			return classify("close", err)
		}
	}
	return nil
}

// Traits declares exact transaction ids, a fence by session, and durability. With New, durability depends on the
// settings of the application.
func (s *Store) Traits() core.StoreTraits {
	return core.StoreTraits{SessionFence: true, Durable: true, SharedAcrossProcesses: true}
}

// now returns the store's time in microseconds.
func (s *Store) now() int64 { return s.opts.Now().UnixMicro() }

// private creates the file at path, unless it is there, so that only its owner can read the messages. SQLite gives the
// files beside it the same mode. It tells of a file that others can read: it may be the application's own.
func (s *Store) private(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the user names it
	if err == nil {
		return f.Close()
	}
	info, err := os.Stat(path) //nolint:gosec // the application names its file
	if err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		s.logger().WarnContext(ctx, "waybill/sqlite: other users of this machine can read the file: chmod 600, with the files -wal and -shm beside it",
			"event", "sqlite.readable", "path", path, "mode", info.Mode().Perm().String())
	}
	return nil // what else is wrong the driver finds
}
