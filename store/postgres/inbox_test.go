package postgres_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/inboxtest"
	"github.com/waybill-go/waybill/store/postgres"
)

func newInbox(tb testing.TB, opts postgres.InboxOptions) (*postgres.Inbox, *pgxpool.Pool) {
	tb.Helper()
	pool := newPool(tb)
	in, err := postgres.NewInbox(pool, opts)
	if err != nil {
		tb.Fatal(err)
	}
	if err := in.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	exec(tb, pool, `CREATE TABLE effects (name text NOT NULL)`)
	return in, pool
}

type inboxHarness struct {
	pool  *pgxpool.Pool
	inbox *postgres.Inbox
}

func (h *inboxHarness) Inbox() core.Inbox[pgx.Tx] { return h.inbox }

func (h *inboxHarness) Effect(ctx context.Context, tx pgx.Tx, name string) error {
	_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, name)
	return err
}

func (h *inboxHarness) Effects(ctx context.Context, name string) (n int, err error) {
	return n, h.pool.QueryRow(ctx, `SELECT count(*) FROM effects WHERE name = $1`, name).Scan(&n)
}

func (h *inboxHarness) Break(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `INSERT INTO effects VALUES (NULL)`)
	return err
}

type sqlInboxHarness struct {
	inboxHarness
	inbox *postgres.SQLInbox
}

func (h *sqlInboxHarness) Inbox() core.Inbox[*sql.Tx] { return h.inbox }

func (h *sqlInboxHarness) Effect(ctx context.Context, tx *sql.Tx, name string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, name)
	return err
}

func (h *sqlInboxHarness) Break(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES (NULL)`)
	return err
}

func TestInboxConformance(t *testing.T) {
	t.Parallel()
	in, pool := newInbox(t, postgres.InboxOptions{})
	inboxtest.Run(t, func(*testing.T) inboxtest.Harness[pgx.Tx] { return &inboxHarness{pool, in} })
}

// DB-14
func TestInboxConformanceSQL(t *testing.T) {
	t.Parallel()
	_, pool := newInbox(t, postgres.InboxOptions{})
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	in, err := postgres.NewSQLInbox(db, postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	inboxtest.Run(t, func(*testing.T) inboxtest.Harness[*sql.Tx] { return &sqlInboxHarness{inboxHarness{pool, nil}, in} })
}
