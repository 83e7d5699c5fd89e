package matrix_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/testenv"
	mongostore "github.com/waybill-go/waybill/store/mongo"
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
	{"mongo", func(t *testing.T) string {
		t.Helper()
		m := testenv.MongoDB(t)
		return m.URI + " " + m.Database
	}, openMongo},
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

// openMongo takes an address of a database: the server's, a space, and the name.
func openMongo(ctx context.Context, address string) (*database, error) {
	uri, name, _ := strings.Cut(address, " ")
	client, err := driver.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		return nil, err
	}
	db := client.Database(name)
	s, err := mongostore.New(db, mongostore.Options{Source: "/matrix"})
	if err != nil {
		return nil, err
	}
	box, errBox := inbox.New(s, "matrix", inbox.Options{})
	if err := errors.Join(s.Migrate(ctx), errBox); err != nil {
		return nil, err
	}
	effects := db.Collection("effects")
	return &database{
		outbox: s,
		stage: func(ctx context.Context, m waybill.Message) error {
			session, err := client.StartSession()
			if err != nil {
				return err
			}
			defer session.EndSession(context.WithoutCancel(ctx))
			_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
				return s.Stage(ctx, session, m)
			})
			return err
		},
		handler: inbox.Handler(box, orders, func(ctx context.Context, _ *driver.Session, n int) error {
			_, err := effects.InsertOne(ctx, bson.M{"n": n})
			return err
		}),
		effects: func(ctx context.Context) ([]int, error) {
			all, err := effects.Find(ctx, bson.M{})
			if err != nil {
				return nil, err
			}
			var docs []struct{ N int }
			err = all.All(ctx, &docs)
			out := make([]int, len(docs))
			for i, d := range docs {
				out[i] = d.N
			}
			return out, err
		},
		close: func() { _ = client.Disconnect(context.Background()) },
	}, nil
}
