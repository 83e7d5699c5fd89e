package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
)

// All marks of a batch are one INSERT, in the order of their keys, so that two batches that share keys wait for each
// other instead of dying in a deadlock. Afterwards the batch has the handler's writes and the marks in one transaction:
// all or nothing.

var (
	_ core.BatchInbox[pgx.Tx] = (*Inbox)(nil)
	_ core.Marker[pgx.Tx]     = (*Inbox)(nil)
	_ core.InboxPurger        = (*Inbox)(nil)
)

const (
	// The keys come sorted and are marked in this order, so that two batches cannot deadlock. The lock timeout
	// holds for this statement only: each part needs the one before. If some were marked before, the numbers of the
	// others come back, negative for those that were marked for another content; see markInboxSQL.
	markBatchSQL = `
WITH s AS MATERIALIZED (SELECT current_setting('lock_timeout') AS before, set_config('lock_timeout', %s, true) AS now
), k AS MATERIALIZED (%s
), i AS (
    INSERT INTO {inbox} AS m (consumer, source, id, content_hash) SELECT k.consumer, k.source, k.id, k.content_hash FROM s, k ORDER BY k.n
    ON CONFLICT (id, source, consumer) DO UPDATE SET content_hash = m.content_hash WHERE m.content_hash <> excluded.content_hash
    RETURNING consumer, source, id, content_hash
), n AS MATERIALIZED (SELECT count(*) AS marked FROM i)
SELECT n.marked, set_config('lock_timeout', CASE WHEN n.marked >= 0 THEN s.before END, true),
       (SELECT json_agg(CASE WHEN i.content_hash IS NOT DISTINCT FROM k.content_hash THEN k.n ELSE -k.n END ORDER BY k.n)::text
        FROM k JOIN i USING (consumer, source, id))
FROM n, s`
	// The first consumer and the first source stand for the missing ones: unnest fills up with NULL.
	keysOfArrays = `SELECT coalesce(k.consumer, ($1::text[])[1]) AS consumer, coalesce(k.source, ($2::text[])[1]) AS source, k.id, k.content_hash, k.n
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[]) WITH ORDINALITY AS k (consumer, source, id, content_hash, n)`
	keysOfJSON = `SELECT v->>0 AS consumer, v->>1 AS source, v->>2 AS id, nullif(decode(v->>3, 'hex'), '') AS content_hash, n
    FROM json_array_elements($1::json) WITH ORDINALITY AS k (v, n)`

	// A stable time, so that the index ends the search. Two purges at a time take the same rows in the same order;
	// the second waits for the first and finds less. The answer has the time of the newest of these rows, and where
	// the search ended, if it found fewer than it may.
	purgeInboxSQL = `
WITH s AS MATERIALIZED (
    SELECT i.ctid AS at, i.handled_at FROM {inbox} i
    WHERE i.consumer = $1 AND i.handled_at < statement_timestamp() - $2::bigint::float8 * interval '1 microsecond'
      AND i.handled_at >= coalesce($4::timestamptz, '-infinity')
    ORDER BY i.handled_at LIMIT $3
), d AS (
    DELETE FROM {inbox} WHERE ctid = ANY (ARRAY(SELECT s.at FROM s)) RETURNING 1
)
SELECT (SELECT count(*) FROM d), max(s.handled_at),
    CASE WHEN count(*) < $3 THEN statement_timestamp() - $2::bigint::float8 * interval '1 microsecond' END FROM s`
	purgeInboxAllSQL = `
WITH RECURSIVE c (consumer) AS (
    (SELECT consumer FROM {inbox} ORDER BY consumer LIMIT 1)
    UNION ALL
    SELECT (SELECT i.consumer FROM {inbox} i WHERE i.consumer > c.consumer ORDER BY i.consumer LIMIT 1)
    FROM c WHERE c.consumer IS NOT NULL
), x AS (
DELETE FROM {inbox} WHERE ctid = ANY (ARRAY(
    SELECT d.ctid FROM c CROSS JOIN LATERAL (
        SELECT i.ctid FROM {inbox} i
        WHERE i.consumer = c.consumer AND i.handled_at < statement_timestamp() - $1::bigint::float8 * interval '1 microsecond'
        ORDER BY i.handled_at LIMIT $2
    ) d LIMIT $2)) RETURNING 1
)
SELECT count(*), NULL::timestamptz, NULL::timestamptz FROM x`
)

// keyBatch is the distinct keys of a batch in the order in which they are marked.
type keyBatch struct {
	keys  []core.InboxKey
	order []int // indexes of keys, sorted; of equal keys the first only
}

func newKeyBatch(keys []core.InboxKey) (*keyBatch, error) {
	if err := core.CheckInboxKeys(keys...); err != nil {
		return nil, err
	}
	b := &keyBatch{keys: keys, order: make([]int, len(keys))}
	for i := range keys {
		b.order[i] = i
	}
	slices.SortStableFunc(b.order, func(x, y int) int { return compareKeys(&keys[x], &keys[y]) })
	b.order = slices.CompactFunc(b.order, func(x, y int) bool { return keys[x].WithoutHash() == keys[y].WithoutHash() })
	return b, nil
}

func compareKeys(a, b *core.InboxKey) int {
	return cmp.Or(cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.Source, b.Source), cmp.Compare(a.ID, b.ID))
}

// columns returns the keys to mark, one slice a column. A column with one value for all keys holds it once.
func (b *keyBatch) columns() (consumers, sources, ids []string, hashes [][]byte) {
	consumers = b.column(func(k *core.InboxKey) string { return k.Consumer })
	sources = b.column(func(k *core.InboxKey) string { return k.Source })
	ids, hashes = make([]string, len(b.order)), make([][]byte, len(b.order))
	for n, i := range b.order {
		ids[n], hashes[n] = b.keys[i].ID, b.keys[i].ContentHashBytes()
	}
	return consumers, sources, ids, hashes
}

func (b *keyBatch) column(of func(*core.InboxKey) string) []string {
	first := of(&b.keys[b.order[0]])
	if !slices.ContainsFunc(b.order, func(i int) bool { return of(&b.keys[i]) != first }) {
		return []string{first}
	}
	list := make([]string, len(b.order))
	for n, i := range b.order {
		list[n] = of(&b.keys[i])
	}
	return list
}

// read returns the status of every key and the indexes of those that are new, from a row of markBatchSQL: the numbers,
// from 1, of the keys that were marked, negative for those of another content. All others were marked before. A key
// that stands twice in the batch goes by its first place.
func (b *keyBatch) read(row scanner) (statuses []core.InboxStatus, fresh []int, err error) {
	var marked int
	var restored string
	var numbers *string
	if err := row.Scan(&marked, &restored, &numbers); err != nil {
		return nil, nil, err
	}
	var ns []int
	if numbers != nil {
		if err := json.Unmarshal([]byte(*numbers), &ns); err != nil {
			return nil, nil, err
		}
	}
	statuses = make([]core.InboxStatus, len(b.keys))
	for i := range statuses {
		statuses[i] = core.InboxDuplicate
	}
	for _, n := range ns {
		if n < 0 {
			statuses[b.order[-n-1]] = core.InboxConflict
			continue
		}
		fresh = append(fresh, b.order[n-1])
		statuses[b.order[n-1]] = core.InboxNew
	}
	slices.Sort(fresh)
	if len(b.order) < len(b.keys) {
		b.twice(statuses)
	}
	return statuses, fresh, nil
}

// twice completes the statuses of keys that stand behind an equal one.
func (b *keyBatch) twice(statuses []core.InboxStatus) {
	first := map[core.InboxKey]int{}
	for i := range b.keys {
		bare := b.keys[i].WithoutHash()
		at, again := first[bare]
		switch {
		case !again:
			first[bare] = i
		case statuses[at] == core.InboxConflict && b.keys[i].ContentHash == b.keys[at].ContentHash:
			statuses[i] = core.InboxConflict
		default:
			statuses[i] = b.keys[i].StatusOfMarked(b.keys[at].ContentHashBytes())
		}
	}
}

// DoBatch is [Inbox.Do] for many keys: one transaction, one INSERT for all marks; see [core.BatchInbox]. At most
// 100,000 keys.
func (i *Inbox) DoBatch(
	ctx context.Context, keys []core.InboxKey, fn func(ctx context.Context, tx pgx.Tx, fresh []int) error,
) ([]core.InboxStatus, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	b, err := newKeyBatch(keys)
	if err != nil {
		return nil, err
	}
	if err := i.ready(ctx); err != nil {
		return nil, err
	}
	return restart(ctx, func() ([]core.InboxStatus, error) { return i.doBatch(ctx, b, fn) })
}

func (i *Inbox) doBatch(
	ctx context.Context, keys *keyBatch, fn func(ctx context.Context, tx pgx.Tx, fresh []int) error,
) ([]core.InboxStatus, error) {
	var statuses []core.InboxStatus
	var fresh []int
	consumers, sources, ids, hashes := keys.columns()
	begin := newMarkBatch()
	begin.Queue(i.sql.markAll, consumers, sources, ids, hashes, i.wait).QueryRow(func(row pgx.Row) (err error) {
		statuses, fresh, err = keys.read(row)
		return err
	})
	handle := func(ctx context.Context, tx pgx.Tx) error { return fn(ctx, tx, fresh) }
	if err := i.inTx(ctx, begin, func() bool { return len(fresh) > 0 }, handle); err != nil {
		return nil, err
	}
	return statuses, nil
}

// Mark marks key in tx, a transaction of the caller's own; see [core.Marker]. It waits for a concurrent transaction
// that marks the same key, up to LockTimeout. If it fails, tx can only be rolled back. In a transaction that is not
// READ COMMITTED a mark that was committed meanwhile is a serialisation failure: roll back and begin again.
func (i *Inbox) Mark(ctx context.Context, tx pgx.Tx, key core.InboxKey) (core.InboxStatus, error) {
	if check.Nil(tx) {
		return core.InboxNone, waybill.Invalid("waybill/postgres: inbox: mark", "tx: is nil; pass the transaction of the handler's writes")
	}
	if err := core.CheckInboxKeys(key); err != nil {
		return core.InboxNone, err
	}
	if err := i.ready(ctx); err != nil {
		return core.InboxNone, err
	}
	status, err := readMark(tx.QueryRow(ctx, i.sql.mark, key.Consumer, key.Source, key.ID, i.wait, key.ContentHashBytes()))
	if status == core.InboxDuplicate {
		_, err = tx.Exec(ctx, restoreSQL)
	}
	if err != nil {
		return core.InboxNone, markError(err)
	}
	return status, nil
}

func markError(err error) error {
	if bad := dberr.NotOpen("inbox: mark", err); bad != nil {
		return bad
	}
	return dberr.Failure("inbox: mark", err)
}

// PurgeInbox deletes old marks; see [core.InboxPurger]. At most 100,000 at a time. The index on (consumer, handled_at)
// leads to them.
func (i *Inbox) PurgeInbox(ctx context.Context, consumer string, age time.Duration, limit int) (int, error) {
	if err := core.CheckPurge(age, limit); err != nil {
		return 0, err
	}
	if err := i.ready(ctx); err != nil {
		return 0, err
	}
	n, err := i.purged.purge(consumer, limit, func(limit int, from *time.Time) (n int, newest, end *time.Time, err error) {
		text, args := i.sql.purgeArgs(consumer, age, limit, from)
		err = pgx.BeginTxFunc(ctx, i.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, text, args...).Scan(&n, &newest, &end)
		})
		return n, newest, end, err
	})
	return n, dberr.Failure("inbox: purge", err)
}

func (s *inboxStatements) purgeArgs(consumer string, age time.Duration, limit int, from *time.Time) (text string, args []any) {
	if consumer == "" {
		return s.purgeAll, []any{age.Microseconds(), limit}
	}
	return s.purge, []any{consumer, age.Microseconds(), limit, from}
}

// ready migrates first, if Options say so.
func (i *Inbox) ready(ctx context.Context) error {
	if !i.opts.AutoMigrate {
		return nil
	}
	return i.once.do(func() error {
		m, err := inboxSchema(i.names)
		if err != nil {
			return err
		}
		return upAside(ctx, i.pool, m)
	})
}
