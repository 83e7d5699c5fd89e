package matrix_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/store/sqlite"
)

// database is a store as one process has opened it.
type database struct {
	outbox core.OutboxStore
	// stage stages a message in a transaction of its own.
	stage func(ctx context.Context, m waybill.Message) error
	// handler notes an effect for the order that it handles, through the inbox.
	handler waybill.Handler
	// effects returns the order of every effect.
	effects func(ctx context.Context) ([]int, error)
	close   func()
}

// store is a row of the matrix.
type store struct {
	name string
	// start returns the address of a new database.
	start func(t *testing.T) string
	// open opens it, and makes what is missing.
	open func(ctx context.Context, address string) (*database, error)
}

var stores = []store{
	{"postgres", func(t *testing.T) string { t.Helper(); return testenv.Postgres(t).DSN }, openPostgres},
	{"sqlite", func(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "shop.db") }, openSQLite},
}

func openPostgres(ctx context.Context, address string) (*database, error) {
	pool, err := pgxpool.New(ctx, address)
	if err != nil {
		return nil, err
	}
	s, err := postgres.New(pool, postgres.Options{Source: "/matrix", AutoMigrate: true})
	if err != nil {
		return nil, err
	}
	if err := s.Check(ctx); err != nil { // migrates
		return nil, err
	}
	_, err = pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS effects (n int)`)
	box, errBox := inbox.New(s, "matrix", inbox.Options{})
	if err := errors.Join(err, errBox); err != nil {
		return nil, err
	}
	return &database{
		outbox: s,
		stage: func(ctx context.Context, m waybill.Message) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := s.Stage(ctx, tx, m)
				return err
			})
		},
		handler: inbox.Handler(box, orders, func(ctx context.Context, tx pgx.Tx, n int) error {
			_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, n)
			return err
		}),
		effects: func(ctx context.Context) ([]int, error) {
			rows, err := pool.Query(ctx, `SELECT n FROM effects`)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, pgx.RowTo[int])
		},
		close: pool.Close,
	}, nil
}

func openSQLite(ctx context.Context, address string) (*database, error) {
	s, err := sqlite.Open(ctx, address, sqlite.Options{Source: "/matrix", AutoMigrate: true})
	if err != nil {
		return nil, err
	}
	_, err = s.DB().ExecContext(ctx, `CREATE TABLE IF NOT EXISTS effects (n int)`)
	box, errBox := inbox.New(s, "matrix", inbox.Options{})
	if err := errors.Join(err, errBox); err != nil {
		return nil, err
	}
	return &database{
		outbox: s,
		stage: func(ctx context.Context, m waybill.Message) error {
			tx, err := s.DB().BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			if _, err := s.Stage(ctx, tx, m); err != nil {
				return err
			}
			return tx.Commit()
		},
		handler: inbox.Handler(box, orders, func(ctx context.Context, tx *sql.Tx, n int) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES (?)`, n)
			return err
		}),
		effects: func(ctx context.Context) (out []int, err error) {
			rows, err := s.DB().QueryContext(ctx, `SELECT n FROM effects`)
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, rows.Close()) }()
			for rows.Next() {
				var n int
				if err := rows.Scan(&n); err != nil {
					return nil, err
				}
				out = append(out, n)
			}
			return out, rows.Err()
		},
		close: func() { _ = s.Close(context.Background()) },
	}, nil
}
