package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres"
)

// IN-01: a handler that ends the transaction by SQL of its own has failed, and the error says so. Its later writes
// are stored by themselves, without a mark, so a success would hide that the message has its effect again.
func TestInboxTransactionEndedBySQL(t *testing.T) {
	t.Parallel()
	in, pool := newInbox(t, postgres.InboxOptions{})
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	overSQL, err := postgres.NewSQLInbox(db, postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{"ROLLBACK", "COMMIT"} {
		write := func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, end)
			return err
		}
		writeSQL := func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, end)
			return err
		}
		for name, do := range map[string]func(k core.InboxKey) error{
			"pgx": func(k core.InboxKey) error { _, err := in.Do(t.Context(), k, write); return err },
			"pgx, batch": func(k core.InboxKey) error {
				_, err := in.DoBatch(t.Context(), []core.InboxKey{k}, func(ctx context.Context, tx pgx.Tx, _ []int) error { return write(ctx, tx) })
				return err
			},
			"database/sql": func(k core.InboxKey) error { _, err := overSQL.Do(t.Context(), k, writeSQL); return err },
			"database/sql, batch": func(k core.InboxKey) error {
				_, err := overSQL.DoBatch(t.Context(), []core.InboxKey{k}, func(ctx context.Context, tx *sql.Tx, _ []int) error { return writeSQL(ctx, tx) })
				return err
			},
		} {
			err := do(key(end + name))
			if !errors.Is(err, pgx.ErrTxClosed) && !errors.Is(err, sql.ErrTxDone) || !strings.Contains(err.Error(), "ended the transaction itself") {
				t.Errorf("%s over %s: %v", end, name, err)
			}
		}
	}
}
