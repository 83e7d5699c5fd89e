package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite" // the driver that Open uses

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// Defaults of Options.
const (
	DefaultPrefix       = "waybill_"
	DefaultBusyTimeout  = 5 * time.Second
	DefaultPollInterval = 5 * time.Millisecond
)

// maxClaim bounds ClaimRequest.MaxRecords.
const maxClaim = 10_000

// Options configures a Store. The zero value of every field but Source is its default.
type Options struct {
	// Source is the CloudEvents source of messages that name none, such as "/orders". Required.
	Source string
	// Prefix is what the names of tables and indexes begin with; default "waybill_". Stores with different prefixes in
	// one file do not meet. Letters, digits and underscores, not beginning with a digit, at most 40.
	Prefix string
	// AutoMigrate makes Open (with New: the first use) create or upgrade the tables. Off by default.
	AutoMigrate bool
	// BusyTimeout is how long to wait for another writer before reporting an outage; default 5 s, at least 10 ms. With
	// New it bounds the wait within the process only: set busy_timeout in the data source name as well.
	BusyTimeout time.Duration
	// PollInterval is how often a sleeping relay looks whether another connection committed; default 5 ms, at least 1 ms.
	PollInterval time.Duration
	// Retention says how long settled records are kept. Published ones are deleted by the settle itself unless it says
	// otherwise; the rest of it is [Store.Clean]'s. All programs that share the file should say the same.
	Retention core.Retention
	// Clock gives the HLC stamps; nil means a clock of its own.
	Clock *hlc.Clock
	// Limits bounds what can be staged.
	Limits core.Limits
	// TTL is the total time of messages that set neither TTL nor Expires; 0 = none.
	TTL time.Duration
	// Now is the store's clock and the producer's; nil means time.Now. Wait uses real timers whatever stands here. Safe
	// for concurrent use.
	Now func() time.Time
}

var prefixPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,39}$`)

// Validate reports all problems of o as one error that matches core.ErrInvalid.
func (o Options) Validate() error {
	var p []string
	if o.Source == "" {
		p = append(p, "Source: is empty; name the producing service, such as \"/orders\"")
	} else if s := core.CheckName(o.Source); s != "" {
		p = append(p, "Source: "+s)
	}
	if o.Prefix != "" && (!prefixPattern.MatchString(o.Prefix) || strings.HasPrefix(strings.ToLower(o.Prefix), "sqlite_")) {
		p = append(p, fmt.Sprintf("Prefix: %q is not a name of letters, digits and underscores, at most 40, or begins with sqlite_", o.Prefix))
	}
	if o.BusyTimeout != 0 && (o.BusyTimeout < 10*time.Millisecond || o.BusyTimeout > time.Hour) {
		p = append(p, fmt.Sprintf("BusyTimeout: %s is not between 10ms and 1h", o.BusyTimeout))
	}
	if o.PollInterval != 0 && (o.PollInterval < time.Millisecond || o.PollInterval > time.Minute) {
		p = append(p, fmt.Sprintf("PollInterval: %s is not between 1ms and 1m", o.PollInterval))
	}
	if o.TTL < 0 {
		p = append(p, fmt.Sprintf("TTL: %s is negative; 0 means none", o.TTL))
	}
	p = append(p, o.Limits.Validate("Limits")...)
	return core.Invalid("waybill/sqlite: options", p...)
}

func (o Options) withDefaults() Options {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.BusyTimeout == 0 {
		o.BusyTimeout = DefaultBusyTimeout
	}
	if o.PollInterval == 0 {
		o.PollInterval = DefaultPollInterval
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Store is an outbox and an inbox in an SQLite file. It is safe for concurrent use.
type Store struct {
	db      *sql.DB
	owned   bool
	opts    Options
	stamper *core.Stamper
	text    queries
	gate    chan struct{} // holds one token while this store writes
	hint    chan struct{}
	closed  atomic.Bool
	fit     atomic.Bool // this program knows the schema well enough

	migrated atomic.Bool

	mu    sync.Mutex // guards what follows
	stmts *statements

	scans scanState // used within the gate only
	watch watcher
}

var (
	_ core.OutboxStore           = (*Store)(nil)
	_ core.Stager[*sql.Tx]       = (*Store)(nil)
	_ core.Inbox[*sql.Tx]        = (*Store)(nil)
	_ core.Waiter                = (*Store)(nil)
	_ core.LeaseExtender         = (*Store)(nil)
	_ core.Checker               = (*Store)(nil)
	_ core.Migrator              = (*Store)(nil)
	_ core.ClockSeeder           = (*Store)(nil)
	_ core.Counter               = (*Store)(nil)
	_ interface{ Close() error } = (*Store)(nil)
)

// Open opens the file at path, or creates it, with WAL, synchronous=FULL, foreign keys on, and transactions that begin
// immediate. With Options.AutoMigrate the tables are there when it returns. The caller closes the store.
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
		err = s.begin(ctx)
	}
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return s, nil
}

// New returns a store in db, which must use the driver of modernc.org/sqlite. The application should open it with WAL,
// synchronous=FULL, a busy timeout and immediate transactions:
//
//	file:app.db?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)
//
// The store keeps one connection of db for itself while a relay waits, unless db is limited to one. It never closes db.
func New(db *sql.DB, opts Options) (*Store, error) {
	if db == nil {
		return nil, core.Invalid("waybill/sqlite: new", "db: is nil; pass an open *sql.DB, or use Open")
	}
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	stamper, err := core.NewStamper(core.StamperOptions{
		Source: opts.Source, Clock: opts.Clock, Limits: opts.Limits, TTL: opts.TTL, Now: opts.Now,
	})
	if err != nil {
		return nil, err
	}
	s := &Store{
		db: db, opts: opts, stamper: stamper, text: newQueries(opts.Prefix), gate: make(chan struct{}, 1), hint: make(chan struct{}, 1),
	}
	s.scans.laps = map[string]*lap{}
	s.watch.seen = map[string]int64{}
	s.watch.lock = make(chan struct{}, 1)
	return s, nil
}

// dataSource returns the driver's name for path.
func dataSource(path string, busy time.Duration) (string, error) {
	if path == "" || strings.Contains(path, ":memory:") || strings.HasPrefix(path, "file:") || strings.ContainsRune(path, 0) {
		return "", core.Invalid("waybill/sqlite: open",
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
		pragma("busy_timeout", strconv.FormatInt(busy.Milliseconds(), 10)) + pragma("synchronous", "FULL") + pragma("foreign_keys", "1"), nil
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
		if err := pause(ctx, 20*time.Millisecond); err != nil {
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

// Clock returns the clock that stamps what is staged.
func (s *Store) Clock() *hlc.Clock { return s.stamper.Clock() }

// Close releases what the store holds, and closes the database if Open opened it. It is idempotent.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
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

// Traits declares key order for claims by any number of relays and processes, and durability. With New, durability is
// what the application's settings make of it.
func (s *Store) Traits() core.StoreTraits {
	return core.StoreTraits{KeyOrder: true, Durable: true, SharedAcrossProcesses: true, MaxClaim: maxClaim}
}

// now returns the store's time in microseconds.
func (s *Store) now() int64 { return s.opts.Now().UnixMicro() }

// enter waits for this process's turn to write, so that its writers queue instead of polling for SQLite's lock.
func (s *Store) enter(ctx context.Context) (leave func(), err error) {
	select {
	case s.gate <- struct{}{}:
	default:
		t := time.NewTimer(s.opts.BusyTimeout)
		defer t.Stop()
		select {
		case s.gate <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-t.C:
			return nil, fmt.Errorf("another write of this process lasted longer than %s: keep transactions and inbox handlers short", s.opts.BusyTimeout)
		}
	}
	return func() { <-s.gate }, nil
}

// write runs fn in a transaction of the store's own and commits it if fn says so. The first statement of fn must be a
// write, so that the lock is taken at once, whatever the database's default.
func (s *Store) write(ctx context.Context, op string, fn func(tx *sql.Tx) (commit bool, err error)) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return outage(op, err)
	}
	defer leave()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return s.classify(op, err)
	}
	defer func() { _ = tx.Rollback() }() // nothing is left to roll back after a commit
	commit, err := fn(tx)
	if err != nil {
		return s.classify(op, err)
	}
	if !commit {
		return nil
	}
	if err := tx.Commit(); err != nil {
		return s.classify(op, err)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// statement is a *sql.Stmt that need not be closed.
type statement interface {
	ExecContext(ctx context.Context, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, args ...any) *sql.Row
}

// on returns stmt for use in tx. It lives until tx ends, which closes it.
func on(ctx context.Context, tx *sql.Tx, stmt *sql.Stmt) statement { return tx.StmtContext(ctx, stmt) }
