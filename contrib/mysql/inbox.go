package waybillmysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// keysPerInsert bounds the marks of one statement.
const keysPerInsert = 1000

// Do runs fn once for key, as core.Inbox says. A panic of fn goes on to the caller after the rollback. fn must not end
// the transaction, and must run no statement that commits by itself, such as CREATE TABLE.
func (s *Store) Do(ctx context.Context, key core.InboxKey, fn func(ctx context.Context, tx *sql.Tx) error) (core.InboxStatus, error) {
	got, err := s.DoBatch(ctx, []core.InboxKey{key}, func(ctx context.Context, tx *sql.Tx, _ []int) error { return fn(ctx, tx) })
	if err != nil {
		return core.InboxNone, err
	}
	return got[0], nil
}

// DoBatch is Do for many keys; see [core.BatchInbox]. At most 100,000 keys. It runs fn again if the transaction lost
// against another one.
func (s *Store) DoBatch(
	ctx context.Context, keys []core.InboxKey, fn func(ctx context.Context, tx *sql.Tx, fresh []int) error,
) (out []core.InboxStatus, err error) {
	if err := core.CheckInboxKeys(keys...); err != nil || len(keys) == 0 {
		return nil, err
	}
	for try := 0; ; try++ {
		out, err = s.do(ctx, keys, fn)
		if try == 3 || !errors.Is(err, waybill.ErrRetryTx) || ctx.Err() != nil {
			return out, err
		}
	}
}

// do is one try. A deadlock ends the whole transaction, and with autocommit the server would commit what fn writes
// after it. So autocommit is off on the connection, and the commit needs the mark.
func (s *Store) do(
	ctx context.Context, keys []core.InboxKey, fn func(ctx context.Context, tx *sql.Tx, fresh []int) error,
) (out []core.InboxStatus, err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, classify("inbox", err)
	}
	clean := false
	defer func() {
		if clean {
			_, err := conn.ExecContext(context.WithoutCancel(ctx), `SET autocommit = 1`)
			clean = err == nil
		}
		if clean {
			_ = conn.Close()
		} else {
			_ = discard(conn, nil)
		}
	}()
	if _, err := conn.ExecContext(ctx, `SET autocommit = 0`); err != nil {
		return nil, classify("inbox", err)
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return nil, classify("inbox", err)
	}
	defer func() { clean = tx.Rollback() == nil || clean }()
	m := &marker{work: &work{s: s, q: tx}, number: rand.Int64()}
	out, fresh, err := m.mark(ctx, keys)
	if err != nil || len(fresh) == 0 {
		return out, classify("inbox", ended(ctx, err))
	}
	if err := fn(ctx, tx, fresh); err != nil {
		if kindOf(err) == kindOutage || kindOf(err) == kindRetry {
			err = classify("inbox", err) // it costs no attempt
		}
		return nil, err
	}
	if ours, err := m.ours(ctx, keys[fresh[0]:fresh[0]+1]); err != nil || len(ours) == 0 {
		if err == nil {
			err = fmt.Errorf("%w: the server had rolled it back, as after a deadlock, and the handler went on: return errors of the database", waybill.ErrRetryTx)
		}
		return nil, outage(ended(ctx, err))
	}
	if err := tx.Commit(); err != nil {
		return nil, classify("inbox: commit", ended(ctx, err))
	}
	clean = true
	return out, nil
}

// outage wraps the error of a transaction that is lost.
func outage(err error) error {
	return &waybill.Error{Op: "waybill/mysql: inbox", Class: waybill.ClassOutage, Err: err}
}

// marker writes marks in a transaction. Its number tells them from those of others.
type marker struct {
	*work
	number int64
}

// mark marks keys in their order, and returns the indexes of the new marks.
func (m *marker) mark(ctx context.Context, keys []core.InboxKey) (out []core.InboxStatus, fresh []int, err error) {
	isNew, kept := map[core.InboxKey]bool{}, map[core.InboxKey][]byte{}
	for from := 0; from < len(keys); from += keysPerInsert {
		part := keys[from:min(from+keysPerInsert, len(keys))]
		args := make([]any, 0, len(part)*5)
		for _, k := range part {
			args = append(args, k.Consumer, k.Source, k.ID, m.number, k.ContentHashBytes())
		}
		// The keys are valid and fit, so that IGNORE hides nothing but duplicates.
		n, err := m.exec(ctx, `INSERT IGNORE INTO waybill_inbox (consumer, source, id, mark, content_hash, handled_at) VALUES `+
			strings.Repeat(`, (?, ?, ?, ?, ?, `+nowSQL+`)`, len(part))[2:], args...)
		if err != nil {
			return nil, nil, err
		}
		if int(n) < len(part) {
			if err := m.kept(ctx, part, kept); err != nil {
				return nil, nil, err
			}
		}
		if n == 0 {
			continue // what an earlier part has marked stays new
		}
		if len(part) > 1 {
			if part, err = m.ours(ctx, part); err != nil {
				return nil, nil, err
			}
		}
		for _, k := range part {
			isNew[k.WithoutHash()] = true
		}
	}
	for i, k := range keys {
		bare := k.WithoutHash()
		out = append(out, k.StatusOfMarked(kept[bare]))
		if isNew[bare] {
			out[i], isNew[bare] = core.InboxNew, false
			fresh = append(fresh, i)
		}
	}
	return out, fresh, nil
}

// kept adds the hashes of the marks of keys to hashes. Some are of transactions that ended after this one began, so it
// reads with a lock.
func (m *marker) kept(ctx context.Context, keys []core.InboxKey, hashes map[core.InboxKey][]byte) error {
	args := make([]any, 0, 3*len(keys))
	for _, k := range keys {
		args = append(args, k.Consumer, k.Source, k.ID)
	}
	type mark struct {
		key  core.InboxKey
		hash []byte
	}
	marks, err := collect(ctx, m.q, func(rows *sql.Rows) (k mark, err error) {
		return k, rows.Scan(&k.key.Consumer, &k.key.Source, &k.key.ID, &k.hash)
	}, `SELECT consumer, source, id, content_hash FROM waybill_inbox WHERE (consumer, source, id) IN (`+
		strings.Repeat(`, (?, ?, ?)`, len(keys))[2:]+`) LOCK IN SHARE MODE`, args...)
	for _, k := range marks {
		hashes[k.key] = k.hash
	}
	return err
}

// ours returns those of keys that this transaction has marked.
func (m *marker) ours(ctx context.Context, keys []core.InboxKey) ([]core.InboxKey, error) {
	args := []any{m.number}
	for _, k := range keys {
		args = append(args, k.Consumer, k.Source, k.ID)
	}
	return collect(ctx, m.q, func(rows *sql.Rows) (k core.InboxKey, err error) { return k, rows.Scan(&k.Consumer, &k.Source, &k.ID) },
		`SELECT consumer, source, id FROM waybill_inbox WHERE mark = ? AND (consumer, source, id) IN (`+
			strings.Repeat(`, (?, ?, ?)`, len(keys))[2:]+`)`, args...)
}

// Mark marks key in tx, a transaction of the caller; see [core.Marker]. If a statement of tx fails with a deadlock,
// roll back: the server has ended the transaction, and commits each later statement by itself.
func (s *Store) Mark(ctx context.Context, tx *sql.Tx, key core.InboxKey) (core.InboxStatus, error) {
	if tx == nil {
		return core.InboxNone, waybill.Invalid("waybill/mysql: mark", errNoTx.Error())
	}
	if err := core.CheckInboxKeys(key); err != nil {
		return core.InboxNone, err
	}
	out, _, err := (&marker{work: &work{s: s, q: tx}, number: rand.Int64()}).mark(ctx, []core.InboxKey{key})
	if err != nil {
		return core.InboxNone, classify("mark", ended(ctx, err))
	}
	return out[0], nil
}

// PurgeInbox deletes old marks; see [core.InboxPurger]. It looks for those of one consumer from where the latest look
// ended, and leaves out marks that were committed late, until it begins anew.
func (s *Store) PurgeInbox(ctx context.Context, consumer string, age time.Duration, limit int) (total int, err error) {
	if err := core.CheckPurge(age, limit); err != nil {
		return 0, err
	}
	at := &resume{}
	if consumer != "" {
		at = s.purged.get(consumer)
	}
	began := time.Now()
	from := at.start(began)
	var newest, end int64
	err = s.write(ctx, "purge the inbox", func(w *work) (err error) {
		total = 0
		consumers := []string{consumer}
		if consumer == "" {
			if consumers, err = collect(ctx, w.q, value[string], `SELECT DISTINCT consumer FROM waybill_inbox`); err != nil {
				return err
			}
		}
		for _, c := range consumers {
			var n int
			if n, newest, end, err = w.purgeMarks(ctx, c, from, age, limit-total); err != nil {
				return err
			}
			total += n
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	at.done(from, began, time.Now(), newest, end)
	return total, nil
}

// purgeMarks deletes the oldest marks of a consumer, from a time on. It returns the time of the newest of them, and the
// end of the look if it left none behind it. A DELETE of a range would lock all its entries that are gone, and the
// server may choose the primary key for it, and go over all that are gone of the consumer. So the marks are looked for
// without locks, and deleted by name.
func (w *work) purgeMarks(ctx context.Context, consumer string, from int64, age time.Duration, limit int) (n int, newest, end int64, err error) {
	if _, err := w.one(ctx, []any{&end}, `SELECT `+nowSQL+` - 1 - ?`, age.Microseconds()); err != nil {
		return 0, 0, 0, err
	}
	marks, err := collect(ctx, w.q, func(rows *sql.Rows) (name [2]any, err error) {
		var source, id string
		err = rows.Scan(&newest, &source, &id)
		return [2]any{source, id}, err
	}, `SELECT handled_at, source, id FROM waybill_inbox FORCE INDEX (waybill_inbox_handled)
		WHERE consumer = ? AND handled_at BETWEEN ? AND ? ORDER BY handled_at LIMIT ?`, consumer, from, end, limit)
	if err != nil {
		return 0, 0, 0, err
	}
	if len(marks) >= limit {
		end = 0
	}
	for some := range slices.Chunk(marks, keysPerInsert) {
		args := []any{consumer}
		for _, name := range some {
			args = append(args, name[:]...)
		}
		got, e := w.exec(ctx, `DELETE FROM waybill_inbox WHERE consumer = ? AND (`+strings.Repeat(` OR source = ? AND id = ?`, len(some))[4:]+`)`, args...)
		if n += int(got); e != nil {
			return n, 0, 0, e
		}
	}
	return n, newest, end, nil
}
