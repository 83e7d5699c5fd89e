package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
)

// Each call of an engine is one transaction, sent as one batch: BEGIN, the settings, the fence, the statements, COMMIT.
// It takes one round trip, and a frozen process leaves nothing open. The fence is the lock of the member's row: while
// it is held the member cannot be removed, and a removed member has no row to lock.

const (
	// writeSQL begins transactions whose statements each see the commits before they began, and so those before
	// their locks.
	writeSQL = "BEGIN ISOLATION LEVEL READ COMMITTED"
	// readSQL begins transactions whose statements share one snapshot.
	readSQL = "BEGIN ISOLATION LEVEL REPEATABLE READ"

	// setSQL holds for the transaction only. The plans must use the indexes also while the table is small: a cached
	// plan outlives the moment it was made for. Planning anew takes a millisecond, and compiling more than that.
	// Apart from its own member's short transactions, a statement can wait only for locks of an application's
	// triggers: these must not keep the member's row locked for long. Times and bodies come as text in some modes.
	setSQL = `
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('jit', 'off', true), set_config('datestyle', 'ISO', true), set_config('timezone', 'UTC', true), set_config('bytea_output', 'hex', true),
       set_config('lock_timeout', '2s', true), set_config('statement_timeout', '10s', true)`

	// fenceSQL keeps the member from being removed until the transaction ends. The statements after it look for the
	// row themselves.
	fenceSQL = `SELECT clock_timestamp() FROM {members} WHERE session = $1 FOR KEY SHARE`
	// aliveSQL is what they ask.
	aliveSQL = `EXISTS (SELECT FROM {members} me WHERE me.session = $1)`
	// ownsSQL is whether the session owns the slot of record r.
	ownsSQL = `EXISTS (SELECT FROM {partitions} un WHERE un.route = r.route AND un.owner = $1 AND (un.slots >> r.slot::int) & '1' = 1)`
	// holderSQL is the live session that holds record r, or 0.
	holderSQL = `CASE WHEN r.hold = 0 THEN 0 ELSE coalesce((SELECT ho.session FROM {members} ho WHERE ho.session = r.hold), 0) END`

	// maxRestarts bounds how often a transaction that the database sacrificed for another one is run again.
	maxRestarts = 10
	// rollbackTime is how long a rollback may take. Then the connection is closed, which is one too.
	rollbackTime = 5 * time.Second
)

// transact runs the statements that queue puts into a batch as one transaction in one round trip, and again if the
// database rolled it back for the sake of another one. Queue is called anew for each run: it must reset what its rows
// fill in. After an error the server skips the rest of the batch, the COMMIT included; a transaction that is still open
// then is rolled back, so that the connection can be used again.
func (o *Outbox) transact(ctx context.Context, op, begin string, queue func(b *batch)) error {
	if err := o.ready(ctx); err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		err := o.conns.Use(ctx, func(c *pgx.Conn) error {
			b := batch{sql: o.sql}
			b.Queue(begin)
			b.Queue(setSQL)
			queue(&b)
			b.Queue("COMMIT")
			err := c.SendBatch(ctx, &b.Batch).Close()
			if err == nil && b.committed != nil {
				b.committed()
			}
			if err != nil && !c.IsClosed() && c.PgConn().TxStatus() != 'I' {
				return errors.Join(err, rollback(ctx, func(ctx context.Context) error {
					_, err := c.Exec(ctx, "ROLLBACK")
					return err
				}))
			}
			return err
		})
		if err == nil {
			return nil
		}
		if !dberr.Again(err) || attempt == maxRestarts || ctx.Err() != nil {
			return dberr.Failure(op, err)
		}
	}
}

// rollback runs roll although ctx has ended, but not for ever: a frozen server never answers.
func rollback(ctx context.Context, roll func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTime)
	defer cancel()
	return roll(ctx)
}

// batch is a batch of these statements.
type batch struct {
	pgx.Batch
	sql       *statements
	committed func() // what to do after the commit, or nil
}

// fence queues the lock of self's row. Now is set to the database's time, and stays zero if self is not a member.
func (b *batch) fence(self core.Session, now *time.Time) {
	*now = time.Time{}
	b.Queue(b.sql.fence, int64(self)).QueryRow(func(row pgx.Row) error {
		if err := row.Scan(now); !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		return nil
	})
}

// each queues a statement and calls fn for each of its rows.
func (b *batch) each(fn func(rows pgx.Rows) error, sql string, args ...any) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := fn(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}
