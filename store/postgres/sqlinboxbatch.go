package postgres

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
)

var (
	_ core.BatchInbox[*sql.Tx] = (*SQLInbox)(nil)
	_ core.Marker[*sql.Tx]     = (*SQLInbox)(nil)
	_ core.InboxPurger         = (*SQLInbox)(nil)
)

// As markBatchSQL; not every driver can send an array, so the keys come as JSON.
const markBatchJSON = `INSERT INTO {inbox} (consumer, source, id) SELECT k.v->>0, k.v->>1, k.v->>2
FROM json_array_elements($1::json) WITH ORDINALITY AS k (v, n) ORDER BY k.n
ON CONFLICT DO NOTHING RETURNING consumer, source, id`

// DoBatch is [Inbox.DoBatch] for database/sql.
func (i *SQLInbox) DoBatch(ctx context.Context, keys []core.InboxKey, fn func(ctx context.Context, tx *sql.Tx, fresh []int) error) ([]core.InboxStatus, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	b, err := newKeyBatch(keys)
	if err != nil {
		return nil, err
	}
	return restart(ctx, func() ([]core.InboxStatus, error) { return i.doBatch(ctx, b, fn) })
}

func (i *SQLInbox) doBatch(ctx context.Context, keys *keyBatch, fn func(ctx context.Context, tx *sql.Tx, fresh []int) error) ([]core.InboxStatus, error) {
	tx, err := i.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, failure("inbox: begin", err)
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if _, err := tx.ExecContext(ctx, lockTimeoutSQL, i.opts.lockTimeout()); err != nil {
		return nil, failure("inbox: set the lock timeout", err)
	}
	list := make([][3]string, len(keys.order))
	for n, k := range keys.order {
		list[n] = [3]string{keys.keys[k].Consumer, keys.keys[k].Source, keys.keys[k].ID}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, failure("inbox: mark", err)
	}
	statuses, fresh, err := i.markBatch(ctx, tx, keys, string(text))
	if err != nil {
		return nil, failure("inbox: mark", err)
	}
	if len(fresh) == 0 {
		return statuses, nil
	}
	if _, err := tx.ExecContext(ctx, restoreSQL); err != nil {
		return nil, failure("inbox: set the lock timeout", err)
	}
	if err := fn(ctx, tx, fresh); err != nil {
		return nil, handlerError(err)
	}
	if _, err := tx.ExecContext(ctx, "SELECT 1"); err != nil && sqlState(err) == "25P02" { // as in do
		return nil, commitError(pgx.ErrTxCommitRollback)
	}
	if err := tx.Commit(); err != nil {
		return nil, commitError(err)
	}
	return statuses, nil
}

func (i *SQLInbox) markBatch(ctx context.Context, tx *sql.Tx, keys *keyBatch, list string) ([]core.InboxStatus, []int, error) {
	rs, err := tx.QueryContext(ctx, i.markAll, list) //nolint:rowserrcheck // read does
	if err != nil {
		return nil, nil, err
	}
	defer rs.Close() //nolint:errcheck // read to the end, or failed already
	return keys.read(rs)
}

// Mark is [Inbox.Mark] for database/sql.
func (i *SQLInbox) Mark(ctx context.Context, tx *sql.Tx, key core.InboxKey) (core.InboxStatus, error) {
	if tx == nil {
		return core.InboxNone, core.Invalid("waybill/postgres: inbox: mark", "tx: is nil; pass the transaction of the handler's writes")
	}
	if err := checkKey(key); err != nil {
		return core.InboxNone, err
	}
	if _, err := tx.ExecContext(ctx, lockTimeoutSQL, i.opts.lockTimeout()); err != nil {
		return core.InboxNone, markError(err)
	}
	result, err := tx.ExecContext(ctx, i.mark, key.Consumer, key.Source, key.ID)
	if err != nil {
		return core.InboxNone, markError(err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return core.InboxNone, markError(err)
	}
	if _, err := tx.ExecContext(ctx, restoreSQL); err != nil {
		return core.InboxNone, markError(err)
	}
	if n == 0 {
		return core.InboxDuplicate, nil
	}
	return core.InboxProcessed, nil
}

// PurgeInbox is [Inbox.PurgeInbox] for database/sql.
func (i *SQLInbox) PurgeInbox(ctx context.Context, consumer string, age time.Duration, limit int) (int, error) {
	if err := checkPurge(age, limit); err != nil {
		return 0, err
	}
	text, args := purgeArgs(consumer, age, limit)
	result, err := i.db.ExecContext(ctx, i.names.sql(text), args...)
	if err != nil {
		return 0, failure("inbox: purge", err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return 0, failure("inbox: purge", err)
	}
	return int(n), nil
}
