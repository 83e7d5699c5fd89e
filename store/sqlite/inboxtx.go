package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"modernc.org/sqlite"
)

// inboxTx is a transaction of the inbox. SQLite can roll one back within a statement, as after INSERT OR ROLLBACK or a
// full disk. Then each later statement of the handler would commit alone, without a mark. So the connection refuses
// every commit but the inbox's own.
type inboxTx struct {
	*sql.Tx
	conn *sql.Conn
	may  atomic.Bool // commit
}

// beginInbox begins one. The caller must call end.
func (s *Store) beginInbox(ctx context.Context) (*inboxTx, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	t := &inboxTx{conn: conn}
	err = t.hook(func() int32 {
		if t.may.Load() {
			return 0
		}
		return 1
	})
	if err == nil {
		t.Tx, err = conn.BeginTx(ctx, nil)
	}
	if err != nil {
		return nil, errors.Join(err, t.hook(nil), conn.Close())
	}
	return t, nil
}

func (t *inboxTx) hook(fn sqlite.CommitHookFn) error {
	return t.conn.Raw(func(c any) error {
		h, ok := c.(sqlite.HookRegisterer)
		if !ok {
			return fmt.Errorf("waybill/sqlite: inbox: a connection of type %T has no commit hook; open the database with "+
				"the driver of modernc.org/sqlite", c)
		}
		h.RegisterCommitHook(fn)
		return nil
	})
}

// end rolls back what was not committed, and gives the connection back.
func (t *inboxTx) end() {
	_ = t.Rollback() // nothing is left to roll back after a commit
	_ = t.hook(nil)
	_ = t.conn.Close()
}

// commitInbox commits a handler's transaction.
func (s *Store) commitInbox(ctx context.Context, tx *inboxTx) error {
	tx.may.Store(true)
	err := tx.Commit()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil:
		return fmt.Errorf("waybill/sqlite: inbox: %w: the handler ended the transaction itself; it must leave that to the inbox", err)
	case ctx.Err() != nil:
		return outage("inbox", ctx.Err())
	}
	return s.classify("inbox: commit", err)
}
