package waybillmysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
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
	// Cancellable lists routes. Every message on them can be cancelled although it is due; see waybill.Message.
	Cancellable []string
	// Clock gives the HLC stamps; nil means a clock of its own.
	Clock *hlc.Clock
	// Limits bounds what can be staged. A message must fit in the server's max_allowed_packet.
	Limits waybill.Limits
	// TTL is the total time of messages that set neither TTL nor Expires; 0 = none. RouteTTL is TTL for the
	// messages on a route, instead of it; negative = none.
	TTL      time.Duration
	RouteTTL map[string]time.Duration
	// AllowUnsafeSettings lets Check accept a server that loses commits in a crash of its machine
	// (innodb_flush_log_at_trx_commit, sync_binlog): for tests, or where replicas have the commits by then.
	AllowUnsafeSettings bool
	// TracerProvider makes the stage spans; nil means the global one.
	TracerProvider core.TracerProvider
}

// Store is an outbox and an inbox in a MySQL or MariaDB database. It is safe for concurrent use.
type Store struct {
	db, own  *sql.DB // for business transactions, and for the store's own
	opened   bool
	opts     Options
	stamper  *core.Stamper
	horizon  horizon
	dueTurn  chan struct{} // holds one token while a Due works
	stamped  atomic.Int64  // a mark above the settled stamps, as stored
	server   atomic.Pointer[string]
	bodySize atomic.Int64 // mean size of the bodies that were read last
	lastSeq  atomic.Int64 // the last number that was drawn, as the latest page says
	// Where the latest looks for old rows ended: of records by class of retention, of expired records, of marks.
	cleaned [core.RetentionCancelled + 1]resume
	swept   resume
	purged  resumes
	// countLimits are smaller in a test.
	countLimits countLimits
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
	_ admin.Counter              = (*Store)(nil)
	_ admin.Migrator             = (*Store)(nil)
	_ admin.Inspector            = (*Store)(nil)
	_ admin.Redriver             = (*Store)(nil)
	_ admin.Explainer            = (*Store)(nil)
)

// idleSeconds is how long the server waits for the next statement of a connection of the store's own pool. Then it ends
// the connection, and the transaction that a frozen process left open. A statement waits a second for a lock.
const idleSeconds = 5

// noSelectLimit is the sql_select_limit, and the max_join_size, of a server that has none.
const noSelectLimit = "18446744073709551615"

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
	if cfg.Params == nil {
		cfg.Params = map[string]string{}
	}
	// The server's defaults can be others, and then single statements and finished transactions leave locks behind,
	// or a list ends early in silence.
	cfg.Params["autocommit"], cfg.Params["completion_type"] = "1", "0"
	cfg.Params["sql_select_limit"] = noSelectLimit
	speakUTF8(cfg.Params)
	own := cfg.Clone()
	own.Params["wait_timeout"] = strconv.Itoa(idleSeconds)
	own.Params["innodb_lock_wait_timeout"] = "1"
	own.Params["sql_safe_updates"], own.Params["max_join_size"] = "1", noSelectLimit
	own.Params["sql_mode"] = "'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'"
	own.Params["group_concat_max_len"] = "16777216"
	own.MultiStatements = true
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

// speakUTF8 has the server take texts for UTF-8, which the driver sends, and answer so. With another character set it
// stores keys and headers as other texts.
func speakUTF8(params map[string]string) {
	params["character_set_client"], params["character_set_results"] = "utf8mb4", "utf8mb4"
	if !strings.HasPrefix(strings.Trim(params["collation_connection"], "'"), "utf8mb4") {
		delete(params, "collation_connection")
		params["character_set_connection"] = "utf8mb4"
	}
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
		Cancellable: opts.Cancellable, TracerProvider: opts.TracerProvider,
	})
	if err != nil {
		return nil, err
	}
	return &Store{
		db: db, own: own, opts: opts, stamper: stamper, horizon: newHorizon(), dueTurn: make(chan struct{}, 1), swept: resume{cheap: lookCheap},
		countLimits: defaultCountLimits,
	}, nil
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

// list returns numbers as SQL, never empty: no record has the number -1.
func list(seqs []int64) string {
	var b strings.Builder
	b.WriteString("(-1")
	for _, n := range seqs {
		b.WriteString("," + strconv.FormatInt(n, 10))
	}
	return b.String() + ")"
}

// at returns a condition for rows by their numbers, all of which are there. Ranges cost much less than rows one by one.
// The server also locks the row behind a range, so the range ends before the last row that is meant.
func at(seqs []int64) string {
	seqs = slices.Clone(seqs)
	slices.Sort(seqs)
	seqs = slices.Compact(seqs)
	var parts []string
	var single []int64
	for from := 0; from < len(seqs); {
		to := from
		for to+1 < len(seqs) && seqs[to+1] == seqs[to]+1 {
			to++
		}
		if to-from >= 2 {
			parts = append(parts, fmt.Sprintf("seq BETWEEN %d AND %d", seqs[from], seqs[to-1]))
			from = to
		}
		single = append(single, seqs[from:to+1]...)
		from = to + 1
	}
	return "(" + strings.Join(append(parts, each(single)), " OR ") + ")"
}

// each is at for rows of which some may not be there. MariaDB makes a join of a list of 1,000, which locks others.
func each(seqs []int64) string {
	parts := []string{"seq = -1"}
	for part := range slices.Chunk(seqs, 500) {
		parts = append(parts, "seq IN "+list(part))
	}
	return "(" + strings.Join(parts, " OR ") + ")"
}

// places returns n placeholders, and at least NULL.
func places(n int) string { return "(NULL" + strings.Repeat(",?", n) + ")" }

// duration returns us microseconds; at most 292 years, which is the longest duration there is.
func duration(us int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(min(max(us, -most), most)) * time.Microsecond
}

// serverVersion returns the server's version, asked for once.
func (s *Store) serverVersion(ctx context.Context) (string, error) {
	if v := s.server.Load(); v != nil {
		return *v, nil
	}
	w, v := &work{s: s, q: s.own}, ""
	if _, err := w.one(ctx, []any{&v}, `SELECT VERSION()`); err != nil {
		return "", err
	}
	s.server.Store(&v)
	return v, nil
}
