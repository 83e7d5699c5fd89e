package postgres

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/core"
)

// Outbox is an outbox in a PostgreSQL database: it stages in the caller's transactions, and a relay claims and settles
// through it. It is safe for concurrent use. It has nothing to close but what Wait opens; see [Outbox.Wait].
type Outbox struct {
	pool   *pgxpool.Pool
	opts   Options
	names  names
	stager *stager
	claims claimer
	waiter waiter
	marked atomic.Int64 // wall clock in ns of the latest mark
	once   once         // AutoMigrate
	unit   *core.UnitOfWork[pgx.Tx]

	settleSome, settleRange, settleOthers, extend, mark string
}

var (
	_ core.OutboxStore    = (*Outbox)(nil)
	_ core.Stager[pgx.Tx] = (*Outbox)(nil)
	_ core.Waiter         = (*Outbox)(nil)
	_ core.LeaseExtender  = (*Outbox)(nil)
	_ core.Checker        = (*Outbox)(nil)
	_ core.Migrator       = (*Outbox)(nil)
	_ core.Counter        = (*Outbox)(nil)
)

// NewOutbox returns the outbox that opts names, over pool, which stays the caller's to close. It does not connect: use
// [Outbox.Check] to see whether it can work.
func NewOutbox(pool *pgxpool.Pool, opts Options) (*Outbox, error) {
	if pool == nil {
		return nil, core.Invalid("waybill/postgres: outbox", "pool: is nil; pass an open *pgxpool.Pool")
	}
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	n := newNames(opts.Schema, opts.Table, "")
	s, err := newStager(&opts, n)
	if err != nil {
		return nil, err
	}
	keep := opts.Retention.Of(core.StatePublished, core.ReasonNone) != 0
	o := &Outbox{
		pool: pool, opts: opts, names: n, stager: s,
		settleSome: n.sql(settlePublishedSQL(someSQL, keep)), settleRange: n.sql(settlePublishedSQL(rangeSQL, keep)), settleOthers: n.sql(settleOthersSQL),
		extend: n.sql(extendSQL), mark: n.sql(markSQL),
	}
	o.claims.init(n)
	o.waiter.init(n)
	if o.unit, err = core.NewUnitOfWork(unit{o}, unit{o}.run); err != nil {
		return nil, err
	}
	return o, nil
}

// Traits declares what the outbox promises. HLC order is not offered: order within a store is its sequence.
func (o *Outbox) Traits() core.StoreTraits {
	return core.StoreTraits{KeyOrder: true, Durable: true, SharedAcrossProcesses: true, MaxClaim: maxClaim}
}

// ready does what AutoMigrate asks for, once.
func (o *Outbox) ready(ctx context.Context) error {
	if !o.opts.AutoMigrate {
		return nil
	}
	return o.once.do(func() error {
		m, err := o.migrations()
		if err != nil {
			return err
		}
		return m.upAside(ctx, o.pool)
	})
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

// maxRestarts bounds how often a transaction that the database sacrificed for another one is run again.
const maxRestarts = 10

const beginSQL = "BEGIN ISOLATION LEVEL READ COMMITTED"

// transact runs the statements that queue puts into a batch as one READ COMMITTED transaction in one round trip, and
// again if the database rolled it back for the sake of another one. It keeps nothing in the session, so that it works
// through poolers that share connections by transaction. Queue is called anew for each run.
func (o *Outbox) transact(ctx context.Context, op string, queue func(b *pgx.Batch)) error {
	return o.transactWith(ctx, op, setSQL, queue)
}

// transactWith is transact with other settings than setSQL.
func (o *Outbox) transactWith(ctx context.Context, op, set string, queue func(b *pgx.Batch)) error {
	for attempt := 1; ; attempt++ {
		err := o.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
			var b pgx.Batch
			b.Queue(beginSQL)
			b.Queue(set)
			queue(&b)
			b.Queue("COMMIT")
			err := c.SendBatch(ctx, &b).Close()
			if err != nil && !c.Conn().IsClosed() && c.Conn().PgConn().TxStatus() != 'I' {
				return errors.Join(err, rollback(ctx, func(ctx context.Context) error { _, err := c.Exec(ctx, "ROLLBACK"); return err }))
			}
			return err
		})
		if err == nil {
			return nil
		}
		if !again(err) || attempt == maxRestarts || ctx.Err() != nil {
			return failure(op, err)
		}
	}
}

// rollbackTime is how long a rollback may take. Then the connection is closed, which is one too.
const rollbackTime = 5 * time.Second

// rollback runs roll although ctx has ended, but not for ever: a server that is frozen answers nobody.
func rollback(ctx context.Context, roll func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTime)
	defer cancel()
	return roll(ctx)
}

// micros returns d in microseconds, at least one: what the statements take for an interval.
func micros(d time.Duration) int64 { return max(d.Microseconds(), 1) }
