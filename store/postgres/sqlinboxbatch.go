package postgres

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
)

// database/sql has no pipeline, so the marks of a batch are one statement that takes all keys as JSON: two round trips
// for any number of messages, BEGIN and COMMIT apart. The rest is as in the inbox for pgx.

var (
	_ core.BatchInbox[*sql.Tx] = (*SQLInbox)(nil)
	_ core.Marker[*sql.Tx]     = (*SQLInbox)(nil)
	_ core.InboxPurger         = (*SQLInbox)(nil)
)

// DoBatch is [Inbox.DoBatch] for database/sql.
func (i *SQLInbox) DoBatch(
	ctx context.Context, keys []core.InboxKey, fn func(ctx context.Context, tx *sql.Tx, fresh []int) error,
) ([]core.InboxStatus, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	b, err := newKeyBatch(keys)
	if err != nil {
		return nil, err
	}
	return restart(ctx, func() ([]core.InboxStatus, error) { return i.doBatch(ctx, b, fn) })
}

func (i *SQLInbox) doBatch(
	ctx context.Context, keys *keyBatch, fn func(ctx context.Context, tx *sql.Tx, fresh []int) error,
) ([]core.InboxStatus, error) {
	tx, err := i.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, dberr.Failure("inbox: begin", err)
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	list := make([][4]string, len(keys.order))
	for n, k := range keys.order {
		key := &keys.keys[k]
		list[n] = [4]string{key.Consumer, key.Source, key.ID, hex.EncodeToString(key.ContentHashBytes())}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, dberr.Failure("inbox: mark", err)
	}
	statuses, fresh, err := keys.read(tx.QueryRowContext(ctx, i.sql.markAll, string(text), i.wait))
	if err != nil {
		return nil, dberr.Failure("inbox: mark", err)
	}
	if len(fresh) == 0 {
		return statuses, nil
	}
	if err := fn(ctx, tx, fresh); err != nil {
		return nil, handlerError(err)
	}
	if err := commitMarked(ctx, tx); err != nil {
		return nil, err
	}
	return statuses, nil
}

// Mark is [Inbox.Mark] for database/sql.
func (i *SQLInbox) Mark(ctx context.Context, tx *sql.Tx, key core.InboxKey) (core.InboxStatus, error) {
	if tx == nil {
		return core.InboxNone, waybill.Invalid("waybill/postgres: inbox: mark", "tx: is nil; pass the transaction of the handler's writes")
	}
	if err := core.CheckInboxKeys(key); err != nil {
		return core.InboxNone, err
	}
	status, err := readMark(tx.QueryRowContext(ctx, i.sql.mark, key.Consumer, key.Source, key.ID, i.wait, key.ContentHashBytes()))
	if status == core.InboxDuplicate {
		_, err = tx.ExecContext(ctx, restoreSQL)
	}
	if err != nil {
		return core.InboxNone, markError(err)
	}
	return status, nil
}

// PurgeInbox is [Inbox.PurgeInbox] for database/sql.
func (i *SQLInbox) PurgeInbox(ctx context.Context, consumer string, age time.Duration, limit int) (int, error) {
	if err := core.CheckPurge(age, limit); err != nil {
		return 0, err
	}
	n, err := i.purged.purge(consumer, limit, func(limit int, from *time.Time) (n int, newest, end *time.Time, err error) {
		text, args := i.sql.purgeArgs(consumer, age, limit, from)
		tx, err := i.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return 0, nil, nil, err
		}
		defer func() { _ = tx.Rollback() }() // after a commit it does nothing
		if err := tx.QueryRowContext(ctx, text, args...).Scan(&n, &newest, &end); err != nil {
			return 0, nil, nil, err
		}
		return n, newest, end, tx.Commit()
	})
	return n, dberr.Failure("inbox: purge", err)
}
