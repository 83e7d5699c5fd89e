package sqlite

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var (
	_ core.BatchInbox[*sql.Tx] = (*Store)(nil)
	_ core.Marker[*sql.Tx]     = (*Store)(nil)
	_ core.InboxPurger         = (*Store)(nil)
)

// The texts of the inbox's statements; table is Options.Prefix + "inbox". An OR IGNORE would hide other faults.
func markBatchSQL(table string) string {
	return "INSERT INTO " + table + " (consumer, source, id, handled_at, content_hash)" +
		" SELECT value->>0, value->>1, value->>2, ?2, nullif(unhex(value->>3), x'') FROM json_each(?1)" + ifAlone +
		" ON CONFLICT DO NOTHING RETURNING consumer, source, id"
}

func keptSQL(table string) string {
	return "SELECT consumer, source, id, content_hash FROM " + table +
		" WHERE (consumer, source, id) IN (SELECT value->>0, value->>1, value->>2 FROM json_each(?1))"
}

// listOf returns keys as the parameter of a statement.
func listOf(keys []core.InboxKey) (string, error) {
	list := make([][4]string, len(keys))
	for i := range keys {
		list[i] = [4]string{keys[i].Consumer, keys[i].Source, keys[i].ID, hex.EncodeToString(keys[i].ContentHashBytes())}
	}
	text, err := json.Marshal(list)
	return string(text), err
}

func purgeSQL(table string) string {
	return "DELETE FROM " + table + " WHERE (consumer, source, id) IN (SELECT consumer, source, id FROM " + table +
		" WHERE consumer = ?1 AND handled_at < ?2 ORDER BY handled_at LIMIT ?3)"
}

// DoBatch is Do for many keys: one transaction, one INSERT for all marks; see [core.BatchInbox]. At most 100,000 keys.
func (s *Store) DoBatch(
	ctx context.Context, keys []core.InboxKey, fn func(ctx context.Context, tx *sql.Tx, fresh []int) error,
) ([]core.InboxStatus, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	if err := core.CheckInboxKeys(keys...); err != nil {
		return nil, err
	}
	text, err := listOf(keys)
	if err != nil {
		return nil, s.classify("inbox", err)
	}
	if _, err := s.prepared(ctx, "inbox"); err != nil {
		return nil, err
	}
	exit, err := s.enter(ctx)
	if err != nil {
		return nil, outage("inbox", err)
	}
	defer exit()
	tx, err := s.beginInbox(ctx)
	if err != nil {
		return nil, s.classify("inbox", err)
	}
	defer tx.end()
	isNew, err := s.markBatch(ctx, tx.Tx, text)
	var kept map[core.InboxKey][]byte
	if err == nil && len(isNew) < len(keys) {
		kept, err = s.kept(ctx, tx.Tx, keys)
	}
	if err != nil {
		return nil, s.classify("inbox: mark", err)
	}
	statuses := make([]core.InboxStatus, len(keys))
	var fresh []int
	for i := range keys {
		key := keys[i].WithoutHash()
		if statuses[i] = keys[i].StatusOfMarked(kept[key]); isNew[key] {
			statuses[i] = core.InboxNew
			fresh = append(fresh, i)
			delete(isNew, key)
		}
	}
	if len(fresh) == 0 {
		return statuses, nil
	}
	if err := fn(ctx, tx.Tx, fresh); err != nil {
		return nil, handlerError(err)
	}
	if err := s.commitInbox(ctx, tx); err != nil {
		return nil, err
	}
	return statuses, nil
}

func (s *Store) markBatch(ctx context.Context, tx *sql.Tx, list string) (map[core.InboxKey]bool, error) {
	rows, err := tx.QueryContext(ctx, markBatchSQL(s.opts.Prefix+"inbox"), list, s.now())
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // read to the end, or failed already
	isNew := map[core.InboxKey]bool{}
	for rows.Next() {
		var k core.InboxKey
		if err := rows.Scan(&k.Consumer, &k.Source, &k.ID); err != nil {
			return nil, err
		}
		isNew[k] = true
	}
	return isNew, rows.Err()
}

// Mark marks key in tx, a transaction of the caller; see [core.Marker]. Begin it so that it takes the write lock at
// once (BEGIN IMMEDIATE, as [Store.DB] does). Otherwise a concurrent writer can make it fail as busy.
func (s *Store) Mark(ctx context.Context, tx *sql.Tx, key core.InboxKey) (core.InboxStatus, error) {
	if tx == nil {
		return core.InboxNone, waybill.Invalid("waybill/sqlite: mark", "tx: is nil; pass the transaction of the handler's writes")
	}
	if err := core.CheckInboxKeys(key); err != nil {
		return core.InboxNone, err
	}
	if err := s.readyIn(ctx, tx); err != nil {
		return core.InboxNone, s.classify("mark", ended("mark", err))
	}
	res, err := tx.ExecContext(ctx, s.sql(inboxText), key.Consumer, key.Source, key.ID, s.now(), key.ContentHashBytes())
	if err != nil {
		return core.InboxNone, s.classify("mark", ended("mark", err))
	}
	if n, err := res.RowsAffected(); err != nil {
		return core.InboxNone, s.classify("inbox: mark", err)
	} else if n == 0 {
		return s.again(ctx, tx, &key)
	}
	return core.InboxNew, nil
}

// PurgeInbox deletes old marks; see [core.InboxPurger]. At most 100,000 at a time. No other process can write
// meanwhile.
func (s *Store) PurgeInbox(ctx context.Context, consumer string, age time.Duration, limit int) (int, error) {
	if err := core.CheckPurge(age, limit); err != nil {
		return 0, err
	}
	if _, err := s.prepared(ctx, "inbox"); err != nil {
		return 0, err
	}
	table, before := s.opts.Prefix+"inbox", s.now()-age.Microseconds()
	consumers := []string{consumer}
	if consumer == "" {
		var err error
		if consumers, err = s.consumers(ctx, table); err != nil {
			return 0, s.classify("purge the inbox", err)
		}
	}
	total := 0
	for _, c := range consumers {
		err := s.alone(ctx, "purge the inbox", func(tx *sql.Tx) (bool, error) {
			res, err := tx.ExecContext(ctx, purgeSQL(table), c, before, limit-total)
			if err != nil {
				return false, err
			}
			n, err := res.RowsAffected()
			total += int(n)
			return n > 0, err
		})
		if err != nil {
			return 0, err
		}
		if total == limit {
			break
		}
	}
	return total, nil
}

// consumers lists the consumers that have marks, with one step in the index each.
func (s *Store) consumers(ctx context.Context, table string) ([]string, error) {
	rows, err := s.db.QueryContext(ctx, "WITH RECURSIVE c (consumer) AS (SELECT min(consumer) FROM "+table+ //nolint:gosec // nothing foreign but Options.Prefix, which Validate has checked
		" UNION ALL SELECT (SELECT min(i.consumer) FROM "+table+" i WHERE i.consumer > c.consumer) FROM c WHERE c.consumer IS NOT NULL)"+
		" SELECT consumer FROM c WHERE consumer IS NOT NULL")
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // read to the end, or failed already
	var all []string
	for rows.Next() {
		var c string
		if err := rows.Scan(&c); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, rows.Err()
}
