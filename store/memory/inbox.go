package memory

import (
	"context"

	"github.com/waybill-go/waybill/core"
)

// Do runs fn once for key, as core.Inbox says. A panic of fn goes on to the caller after the rollback. fn must not end
// the transaction itself.
func (s *Store) Do(ctx context.Context, key core.InboxKey, fn func(ctx context.Context, tx *Tx) error) (core.InboxStatus, error) {
	if err := core.CheckInboxKeys(key); err != nil {
		return core.InboxNone, err
	}
	tx := s.Begin()
	defer tx.Rollback() // nothing is left to roll back after a commit
	if st, err := s.markKey(ctx, tx, key); err != nil || st != core.InboxNew {
		return st, err
	}
	if err := fn(ctx, tx); err != nil {
		return core.InboxNone, err
	}
	if err := ctx.Err(); err != nil {
		return core.InboxNone, outage("inbox", err)
	}
	if err := tx.Commit(); err != nil {
		return core.InboxNone, err
	}
	return core.InboxNew, nil
}
