package postgres_test

import (
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// DB-06: the first use may be in transactions that hold all the connections of the pool.
func TestAutoMigrateWithoutFreeConnections(t *testing.T) {
	t.Parallel()
	const conns = 2
	pool := openPoolWith(t, testenv.Postgres(t).DSN, func(cfg *pgxpool.Config) { cfg.MaxConns = conns })
	o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/test", AutoMigrate: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, moved := patience.Context(t.Context(), patience.Limit)
	var all, begun sync.WaitGroup
	begun.Add(conns)
	for range conns {
		all.Go(func() {
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				begun.Done()
				begun.Wait()
				_, err := o.Stage(ctx, tx, message())
				moved()
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if c := holdNext(t, o, want(10)); len(c.Records) != conns {
		t.Errorf("%d messages held", len(c.Records))
	}
}
