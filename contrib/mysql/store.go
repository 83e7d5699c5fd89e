package waybillmysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// Options configures a Store. The zero value of every field but Source is its default.
type Options struct {
	// Source is the CloudEvents source of messages that name none, such as "/orders". Required.
	Source string
	// Retention says how long settled records are kept. All programs that share the database should use the same.
	Retention waybill.Retention
	// Withdrawable lists routes. Every message on them can be cancelled although it is due; see waybill.Message.
	Withdrawable []string
	// Clock gives the HLC stamps; nil means a clock of its own.
	Clock *hlc.Clock
	// Limits bounds what can be staged. A message must fit in the server's max_allowed_packet.
	Limits waybill.Limits
	// TTL is the total time of messages that set neither TTL nor Expires; 0 = none. RouteTTL is TTL for the
	// messages on a route, instead of it; negative = none.
	TTL      time.Duration
	RouteTTL map[string]time.Duration
	// TracerProvider makes the stage spans; nil means the global one.
	TracerProvider core.TracerProvider
}

// Store is an outbox and an inbox in a MySQL or MariaDB database. It is safe for concurrent use.
type Store struct {
	db, own *sql.DB // for business transactions, and for the store's own
	opened  bool
	opts    Options
	stamper *core.Stamper
	horizon horizon
	stamped atomic.Int64 // a mark above the settled stamps, as stored
	server  atomic.Pointer[string]
}

var (
	_ core.OutboxStore           = (*Store)(nil)
	_ core.Presence              = (*Store)(nil)
	_ core.Checker               = (*Store)(nil)
	_ core.ClockSeeder           = (*Store)(nil)
	_ core.Cleaner               = (*Store)(nil)
	_ waybill.Stager[*sql.Tx]    = (*Store)(nil)
	_ waybill.Canceller[*sql.Tx] = (*Store)(nil)
	_ core.Inbox[*sql.Tx]        = (*Store)(nil)
	_ core.BatchInbox[*sql.Tx]   = (*Store)(nil)
	_ core.Marker[*sql.Tx]       = (*Store)(nil)
	_ core.InboxPurger           = (*Store)(nil)
	_ admin.Migrator             = (*Store)(nil)
	_ admin.Inspector            = (*Store)(nil)
	_ admin.Redriver             = (*Store)(nil)
)

// idleSeconds is how long the server waits for the next statement of a connection of the store's own pool. Then it ends
// the connection, and the transaction that a frozen process left open. A statement waits a second for a lock.
const idleSeconds = 5

// Open returns a store with two pools: [Store.DB] for the application's transactions and for inbox handlers, and one
// for the store's own. dsn is the driver's data source name, such as "user:password@tcp(db:3306)/shop". Open connects
// to nothing; [Store.Check] does. The caller closes the store.
func Open(dsn string, opts Options) (*Store, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil || cfg.DBName == "" {
		return nil, waybill.Invalid("waybill/mysql: open",
			"dsn: is no data source name with a database; write it as user:password@tcp(host:3306)/database")
	}
	cfg.InterpolateParams, cfg.ClientFoundRows, cfg.Logger = true, false, &mysql.NopLogger{}
	own := cfg.Clone()
	if own.Params == nil {
		own.Params = map[string]string{}
	}
	own.Params["wait_timeout"] = strconv.Itoa(idleSeconds)
	own.Params["innodb_lock_wait_timeout"] = "1"
	own.Params["sql_safe_updates"] = "1"
	dbs := [2]*sql.DB{}
	for i, c := range [...]*mysql.Config{cfg, own} {
		connector, err := mysql.NewConnector(c)
		if err != nil {
			return nil, classify("open", err)
		}
		dbs[i] = sql.OpenDB(connector)
		dbs[i].SetMaxIdleConns(16)
		dbs[i].SetConnMaxIdleTime(idleSeconds * time.Second / 2)
	}
	s, err := newStore(dbs[0], dbs[1], opts)
	if err != nil {
		return nil, errors.Join(err, dbs[0].Close(), dbs[1].Close())
	}
	s.opened = true
	return s, nil
}

// New returns a store in db, which the application has opened with the driver github.com/go-sql-driver/mysql. With
// interpolateParams=true in its data source name it is faster. The store never closes db.
func New(db *sql.DB, opts Options) (*Store, error) {
	if db == nil {
		return nil, waybill.Invalid("waybill/mysql: new", "db: is nil; pass an open *sql.DB, or use Open")
	}
	return newStore(db, db, opts)
}

func newStore(db, own *sql.DB, opts Options) (*Store, error) {
	stamper, err := core.NewStamper(core.StamperOptions{
		Source: opts.Source, Clock: opts.Clock, Limits: opts.Limits, TTL: opts.TTL, RouteTTL: opts.RouteTTL,
		Withdrawable: opts.Withdrawable, TracerProvider: opts.TracerProvider,
	})
	if err != nil {
		return nil, err
	}
	return &Store{db: db, own: own, opts: opts, stamper: stamper, horizon: newHorizon()}, nil
}

// DB returns the database, for business transactions. Do not close it.
func (s *Store) DB() *sql.DB { return s.db }

// Clock returns the clock of the stamps.
func (s *Store) Clock() *hlc.Clock { return s.stamper.Clock() }

// Close closes what Open opened; running queries end first. After New it does nothing. A second call does nothing.
func (s *Store) Close() error {
	if !s.opened {
		return nil
	}
	return errors.Join(s.own.Close(), s.db.Close())
}

// Traits declares exact transaction ids, a fence by session, and durability, which depends on the server's settings.
func (s *Store) Traits() core.StoreTraits {
	return core.StoreTraits{SessionFence: true, Durable: true, SharedAcrossProcesses: true}
}

// nowSQL is the server's time. It does not depend on the time zone, and is the same throughout a statement.
const nowSQL = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`

// querier is a *sql.DB, a *sql.Conn or a *sql.Tx.
type querier interface {
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error)
}

// work is a transaction, or some statements outside of one.
type work struct {
	s    *Store
	q    querier
	self core.Session
	now  int64
	own  map[string]core.Slots
	safe bool // sql_safe_updates is on
}

// write runs fn in a transaction of the store, and again if another transaction made it fail.
func (s *Store) write(ctx context.Context, op string, fn func(w *work) error) error {
	for try := 0; ; try++ {
		err := s.transact(ctx, sql.TxOptions{Isolation: sql.LevelReadCommitted}, fn)
		if err = classify(op, err); try == 3 || !errors.Is(err, waybill.ErrRetryTx) || ctx.Err() != nil {
			return err
		}
	}
}

// read runs fn in a transaction that reads one snapshot.
func (s *Store) read(ctx context.Context, op string, fn func(w *work) error) error {
	return classify(op, s.transact(ctx, sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}, fn))
}

func (s *Store) transact(ctx context.Context, opts sql.TxOptions, fn func(w *work) error) error {
	tx, err := s.own.BeginTx(ctx, &opts)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // nothing is left to roll back after a commit
	if err := fn(&work{s: s, q: tx, safe: s.opened}); err != nil {
		return err
	}
	return tx.Commit()
}

// fenced is write for a member: its session cannot be removed meanwhile.
func (s *Store) fenced(ctx context.Context, op string, self core.Session, fn func(w *work) error) error {
	return s.write(ctx, op, func(w *work) error {
		w.self = self
		known, err := w.one(ctx, []any{&w.now}, `SELECT `+nowSQL+` FROM waybill_outbox_fence WHERE session = ? LOCK IN SHARE MODE`, self)
		if err == nil && !known {
			err = core.Fenced("waybill/mysql: "+op, self)
		}
		if err != nil {
			return err
		}
		return fn(w)
	})
}

// collect returns what scan makes of each row.
func collect[T any](ctx context.Context, q querier, scan func(rows *sql.Rows) (T, error), text string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // read to the end, or failed already
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

// value scans a row of one column.
func value[T any](rows *sql.Rows) (v T, err error) { return v, rows.Scan(&v) }

// one scans the first row, and reports whether there is one.
func (w *work) one(ctx context.Context, dest []any, text string, args ...any) (bool, error) {
	got, err := collect(ctx, w.q, func(rows *sql.Rows) (bool, error) { return true, rows.Scan(dest...) }, text, args...)
	return len(got) > 0, err
}

// exec returns the number of rows that were changed.
func (w *work) exec(ctx context.Context, text string, args ...any) (int64, error) {
	res, err := w.q.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// list returns numbers as SQL, never empty: no record has the number -1.
func list(seqs []int64) string {
	var b strings.Builder
	b.WriteString("(-1")
	for _, n := range seqs {
		b.WriteString("," + strconv.FormatInt(n, 10))
	}
	return b.String() + ")"
}

// places returns n placeholders, and at least NULL.
func places(n int) string { return "(NULL" + strings.Repeat(",?", n) + ")" }

func duration(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// serverVersion returns the server's version, asked for once.
func (s *Store) serverVersion(ctx context.Context) (string, error) {
	if v := s.server.Load(); v != nil {
		return *v, nil
	}
	v, err := collect(ctx, s.own, value[string], `SELECT VERSION()`)
	if err != nil || len(v) != 1 {
		return "", errors.Join(err, fmt.Errorf("the server answered VERSION() with %d rows", len(v)))
	}
	s.server.Store(&v[0])
	return v[0], nil
}
