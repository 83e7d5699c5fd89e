package postgres_test

import (
	"context"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/ratetest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres"
)

// OP-24: a relay and a consumer with an inbox that set no option are near the best settings, with the pool of the
// README. Not parallel: see ratetest.
func TestNearBest(t *testing.T) {
	tier.Nightly(t, "rounds end early beside other programs; each pair drains ten thousand messages and more")
	u, err := url.Parse(testenv.Postgres(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	link := ratetest.Link(t, u.Host)
	u.Host = link.Addr()
	poolOf := func(t *testing.T, conns int32) *pgxpool.Pool {
		t.Helper()
		cfg, err := pgxpool.ParseConfig(u.String())
		if err != nil {
			t.Fatal(err)
		}
		cfg.MaxConns = conns
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return pool
	}
	const readme, more = 20, 40
	outbox := func(conns int32) func(t *testing.T) (core.OutboxStore, ratetest.Stage) {
		return func(t *testing.T) (core.OutboxStore, ratetest.Stage) {
			t.Helper()
			pool := poolOf(t, conns)
			o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/rates"})
			if err == nil {
				err = o.Migrate(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = o.Close(context.WithoutCancel(t.Context())) })
			return o, func(t *testing.T, msgs []waybill.Message) {
				t.Helper()
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					_, err := o.Stage(t.Context(), tx, msgs...)
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	inbox := func(conns int32) func(t *testing.T) core.Inbox[pgx.Tx] {
		return func(t *testing.T) core.Inbox[pgx.Tx] {
			t.Helper()
			in, err := postgres.NewInbox(poolOf(t, conns), postgres.InboxOptions{})
			if err == nil {
				err = in.Migrate(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			return in
		}
	}
	t.Run("relay", func(t *testing.T) { ratetest.Drained(t, link, 20_000, outbox(readme), outbox(more)) })
	t.Run("inbox", func(t *testing.T) { ratetest.Marked(t, link, 500, inbox(readme), inbox(more)) })
}
