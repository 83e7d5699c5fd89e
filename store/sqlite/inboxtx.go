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
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if t.Tx, err = conn.BeginTx(ctx, nil); err != nil {
		return nil, errors.Join(err, t.hook(nil), conn.Close())
	}
	return t, nil
}

func (t *inboxTx) hook(fn sqlite.CommitHookFn) error {
	return t.conn.Raw(func(c any) error {
		h, err := hooksOf("inbox", c)
		if err == nil {
			h.RegisterCommitHook(fn)
		}
		return err
	})
}

// hooksOf returns the hooks of a driver's connection.
func hooksOf(op string, conn any) (sqlite.HookRegisterer, error) {
	h, ok := conn.(sqlite.HookRegisterer)
	if !ok {
		return nil, misconfigured(op, fmt.Errorf("a connection of type %T has no commit hook, which the inbox needs: give New a database "+
			"that is opened with the driver of modernc.org/sqlite itself, not with one that wraps it and hides its hooks", conn))
	}
	return h, nil
}

// checkDriver refuses a driver without hooks, such as one that wraps SQLite's.
func (s *Store) checkDriver(ctx context.Context) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	err = conn.Raw(func(c any) error {
		_, err := hooksOf("check", c)
		return err
	})
	return errors.Join(err, conn.Close())
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
