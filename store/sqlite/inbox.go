package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"modernc.org/sqlite"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

const inboxText = `INSERT INTO waybill_inbox (consumer, source, id, handled_at, content_hash) SELECT ?1, ?2, ?3, ?4, ?5` + ifAlone + ` ON CONFLICT DO NOTHING`

// Do runs fn once for key, as core.Inbox says. The mark is the transaction's first statement, so that it holds the
// write lock from then on: a concurrent Do, of any key, waits. A panic of fn goes on to the caller after the
// rollback. fn must neither end the transaction nor write to the file by other means, which would wait for itself.
func (s *Store) Do(ctx context.Context, key core.InboxKey, fn func(ctx context.Context, tx *sql.Tx) error) (core.InboxStatus, error) {
	if err := core.CheckInboxKeys(key); err != nil {
		return core.InboxNone, err
	}
	st, err := s.prepared(ctx, "inbox")
	if err != nil {
		return core.InboxNone, err
	}
	exit, err := s.enter(ctx)
	if err != nil {
		return core.InboxNone, outage("inbox", err)
	}
	defer exit()
	tx, err := s.beginInbox(ctx)
	if err != nil {
		return core.InboxNone, s.classify("inbox", err)
	}
	defer tx.end()
	w := work{s: s, tx: tx.Tx, ready: st}
	if n, err := w.exec(ctx, inboxText, key.Consumer, key.Source, key.ID, s.now(), key.ContentHashBytes()); err != nil {
		return core.InboxNone, s.classify("inbox", err)
	} else if n == 0 {
		return s.again(ctx, tx.Tx, &key)
	}
	if err := fn(ctx, tx.Tx); err != nil {
		return core.InboxNone, handlerError(err)
	}
	if err := s.commitInbox(ctx, tx); err != nil {
		return core.InboxNone, err
	}
	return core.InboxNew, nil
}

// again is the answer when a key was not marked: it is a duplicate or a conflict, unless the connection has attached
// another file.
func (s *Store) again(ctx context.Context, tx *sql.Tx, key *core.InboxKey) (core.InboxStatus, error) {
	kept, err := s.kept(ctx, tx, []core.InboxKey{*key})
	if err != nil {
		return core.InboxNone, s.classify("inbox", err)
	}
	return key.StatusOfMarked(kept[key.WithoutHash()]), nil
}

// kept returns the hashes of marks that were there, by keys without hashes.
func (s *Store) kept(ctx context.Context, tx *sql.Tx, keys []core.InboxKey) (map[core.InboxKey][]byte, error) {
	if err := refuseAttached(ctx, tx); err != nil {
		return nil, err
	}
	list, err := listOf(keys)
	if err != nil {
		return nil, err
	}
	rows, err := tx.QueryContext(ctx, keptSQL(s.opts.Prefix+"inbox"), list)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // read to the end, or failed already
	kept := map[core.InboxKey][]byte{}
	for rows.Next() {
		var k core.InboxKey
		var hash []byte
		if err := rows.Scan(&k.Consumer, &k.Source, &k.ID, &hash); err != nil {
			return nil, err
		}
		kept[k] = hash
	}
	return kept, rows.Err()
}

// handlerError returns the handler's own error, unless SQLite reports that the file cannot be used now: that costs no
// attempt.
func handlerError(err error) error {
	var se *sqlite.Error
	if waybill.ClassOf(err) == waybill.ClassUnknown && errors.As(err, &se) && kindOf(se.Code()) == kindOutage {
		return outage("inbox", err)
	}
	return err
}
