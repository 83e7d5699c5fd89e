package postgres

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/conns"
	"github.com/waybill-go/waybill/store/postgres/internal/listen"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// Outbox is an outbox in a PostgreSQL database: it stages in the caller's transactions, and the engine of a relay reads
// and settles through it. It is safe for concurrent use. It has nothing to close but the connection that Wait opens;
// see [Outbox.Wait].
type Outbox struct {
	conns  conns.Source
	opts   Options
	names  schema.Names
	sql    *statements
	keep   bool // published records are kept; see Options.Retention
	stager *stager
	waiter *listen.Waiter
	marked atomic.Int64                    // time in ms of the clock's mark, as far as known
	large  atomic.Int64                    // for how many more reads the bytes of bodies are added up; see Read
	auto   func(ctx context.Context) error // AutoMigrate; nil = not asked for
	once   once
	unit   *waybill.UnitOfWork[pgx.Tx]

	cleaned [core.RetentionCancelled + 1]resume // by class of retention: where the latest purge ended
	swept   resume                              // expired records
	floor   noticeFloor
}

var (
	_ core.OutboxStore       = (*Outbox)(nil)
	_ waybill.Stager[pgx.Tx] = (*Outbox)(nil)
	_ core.Waiter            = (*Outbox)(nil)
	_ core.Checker           = (*Outbox)(nil)
	_ admin.Counter          = (*Outbox)(nil)
)

// NewOutbox returns the outbox that opts names, over pool, which stays the caller's to close. It does not connect: use
// [Outbox.Check] to see whether it can work.
func NewOutbox(pool *pgxpool.Pool, opts Options) (*Outbox, error) {
	if pool == nil {
		return nil, waybill.Invalid("waybill/postgres: outbox", "pool: is nil; pass an open *pgxpool.Pool")
	}
	o, err := newOutbox(conns.Pool(pool), opts)
	if err != nil {
		return nil, err
	}
	if opts.AutoMigrate {
		o.auto = func(ctx context.Context) error {
			m, err := outboxSchema(o.names, o.opts.Source)
			if err != nil {
				return err
			}
			return upAside(ctx, pool, m)
		}
	}
	return o, nil
}

// NewSQLOutbox is [NewOutbox] over db, for services whose one pool is a *sql.DB, such as with GORM, sqlx, ent and bun:
// with [Outbox.SQL] they stage in its transactions, and a relay or a table queue takes its connections from it too. The
// driver must be pgx's: sql.Open("pgx", …), stdlib.OpenDB or stdlib.OpenDBFromPool. The first use says so if it is not.
// To stage with another driver, use [NewSQLStager].
//
// A relay or a table queue holds two connections of db for as long as it runs: one listens, and one shows that it is
// there. It takes others for moments. If SetMaxOpenConns bounds db, leave room for five beside the service's own
// transactions. With fewer it waits for these, and its lease may run out meanwhile. Options.DisableNotify spares the
// two. With pgx's hook OnNotification set the relay polls. Options.AutoMigrate is refused, since there is no connection
// beside db: call [Outbox.Migrate].
func NewSQLOutbox(db *sql.DB, opts Options) (*Outbox, error) {
	if db == nil {
		return nil, waybill.Invalid("waybill/postgres: outbox", "db: is nil; pass an open *sql.DB")
	}
	if opts.AutoMigrate {
		return nil, waybill.Invalid("waybill/postgres: outbox options", "AutoMigrate: is offered only over a pgx pool; call Migrate")
	}
	return newOutbox(conns.SQL(db), opts)
}

func newOutbox(source conns.Source, opts Options) (*Outbox, error) {
	stamper, err := opts.stamper()
	if err != nil {
		return nil, err
	}
	n := newNames(opts.Schema, opts.Table, "")
	o := &Outbox{
		conns: source, opts: opts, names: n, sql: newStatements(n), stager: newStager(&opts, stamper, n),
		keep: !core.RetentionPublished.DroppedAtOnce(opts.Retention), swept: resume{cheap: lookCheap},
	}
	o.waiter = listen.New(listen.Options{Conns: source, Names: n, Off: opts.DisableNotify, Logger: o.opts.logger})
	if o.unit, err = waybill.NewUnitOfWork(unit{o}, unit{o}.run); err != nil {
		return nil, err
	}
	return o, nil
}

// Traits declares what the outbox promises.
func (o *Outbox) Traits() core.StoreTraits {
	return core.StoreTraits{SessionFence: true, Durable: true, SharedAcrossProcesses: true}
}

// ready does what AutoMigrate asks for, once.
func (o *Outbox) ready(ctx context.Context) error {
	if o.auto == nil {
		return nil
	}
	return o.once.do(func() error { return o.auto(ctx) })
}

// once runs a function until it succeeded once. It is safe for concurrent use.
type once struct {
	done atomic.Bool
	mu   sync.Mutex
}

func (o *once) do(fn func() error) error {
	if o.done.Load() {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done.Load() {
		return nil
	}
	if err := fn(); err != nil {
		return err
	}
	o.done.Store(true)
	return nil
}
