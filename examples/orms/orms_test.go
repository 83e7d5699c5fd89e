package orms_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/examples/orms"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// place is one of the Place functions with its library set up over db.
type place func(ctx context.Context, outbox orms.Outbox, o orms.Order, check func() error) error

var libraries = map[string]func(t *testing.T, db *sql.DB) place{
	"gorm": func(t *testing.T, db *sql.DB) place { t.Helper(); return placeWithGORM(t, db, gorm.Config{}) },
	"gorm prepared": func(t *testing.T, db *sql.DB) place {
		t.Helper()
		return placeWithGORM(t, db, gorm.Config{PrepareStmt: true})
	},
	"sqlx": func(_ *testing.T, db *sql.DB) place {
		x := sqlx.NewDb(db, "pgx")
		return func(ctx context.Context, outbox orms.Outbox, o orms.Order, check func() error) error {
			return orms.PlaceWithSQLX(ctx, x, outbox, o, check)
		}
	},
	"bun": func(_ *testing.T, db *sql.DB) place {
		b := bun.NewDB(db, pgdialect.New())
		return func(ctx context.Context, outbox orms.Outbox, o orms.Order, check func() error) error {
			return orms.PlaceWithBun(ctx, b, outbox, o, check)
		}
	},
	"ent": func(_ *testing.T, db *sql.DB) place {
		return func(ctx context.Context, outbox orms.Outbox, o orms.Order, check func() error) error {
			return orms.PlaceWithEnt(ctx, db, outbox, o, check)
		}
	},
	"ent driver": func(_ *testing.T, db *sql.DB) place {
		driver := entsql.OpenDB(dialect.Postgres, db)
		return func(ctx context.Context, outbox orms.Outbox, o orms.Order, check func() error) error {
			return orms.PlaceWithEntDriver(ctx, driver, outbox, o, check)
		}
	},
}

func placeWithGORM(t *testing.T, db *sql.DB, config gorm.Config) place {
	t.Helper()
	config.Logger = logger.Discard
	g, err := gorm.Open(gormpostgres.New(gormpostgres.Config{Conn: db}), &config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := orms.GORMTx(g); err == nil {
		t.Error("gorm: a connection was taken for a transaction")
	}
	return func(ctx context.Context, outbox orms.Outbox, o orms.Order, check func() error) error {
		return orms.PlaceWithGORM(ctx, g, outbox, o, check)
	}
}

// DB-14.
func TestStageInTheTransactionOf(t *testing.T) {
	t.Parallel()
	for name, open := range libraries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			pg := testenv.Postgres(t)
			pool, err := pgxpool.New(ctx, pg.DSN)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			relayed, err := postgres.NewOutbox(pool, postgres.Options{Source: "/orders"})
			if err != nil {
				t.Fatal(err)
			}
			if err := relayed.Migrate(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := pool.Exec(ctx, "CREATE TABLE orders (id text PRIMARY KEY, total bigint NOT NULL)"); err != nil {
				t.Fatal(err)
			}

			db, err := sql.Open("pgx", pg.DSN)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			outbox, err := postgres.NewSQLStager(postgres.Options{Source: "/orders"})
			if err != nil {
				t.Fatal(err)
			}
			place := open(t, db)

			refused := errors.New("refused")
			staged := func() error { return refused } // called after Stage
			if err := place(ctx, outbox, orms.Order{ID: "o-1", Total: 100}, staged); !errors.Is(err, refused) {
				t.Fatalf("got %v", err)
			}
			compare(t, pool, relayed, "after a rollback")

			o := orms.Order{ID: "o-2", Total: 200}
			if err := place(ctx, outbox, o, func() error { return nil }); err != nil {
				t.Fatal(err)
			}
			compare(t, pool, relayed, "after a commit", o)

			// A row that cannot be written takes the message with it.
			if err := place(ctx, outbox, orms.Order{ID: "o-2", Total: 300}, func() error { return nil }); err == nil {
				t.Fatal("the same order was written twice")
			}
			compare(t, pool, relayed, "after a failed insert", o)
		})
	}
}

// compare looks whether exactly want is in the business table, and exactly its messages in the outbox.
func compare(t *testing.T, pool *pgxpool.Pool, outbox *postgres.Outbox, when string, want ...orms.Order) {
	t.Helper()
	ctx := t.Context()
	rows := map[string]int64{}
	r, err := pool.Query(ctx, "SELECT id, total FROM orders")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for r.Next() {
		var (
			id    string
			total int64
		)
		if err := r.Scan(&id, &total); err != nil {
			t.Fatal(err)
		}
		rows[id] = total
	}
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	list, err := outbox.List(ctx, admin.Filter{}, admin.PageRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != len(want) || len(list.Records) != len(want) {
		t.Fatalf("%s: %d rows and %d messages, want %d of each", when, len(rows), len(list.Records), len(want))
	}
	for i, o := range want {
		rec, err := outbox.Inspect(ctx, waybill.DefaultRoute, list.Records[i].Envelope.ID)
		if err != nil {
			t.Fatal(err)
		}
		if rows[o.ID] != o.Total || rec.Envelope.Key != o.ID || rec.Envelope.Topic != orms.OrderPlaced.Name() {
			t.Errorf("%s: row %v, message %s with key %s", when, rows, rec.Envelope.Topic, rec.Envelope.Key)
		}
		if got, err := orms.OrderPlaced.Decode(&rec.Envelope); err != nil || got != o {
			t.Errorf("%s: the message says %+v, %v", when, got, err)
		}
	}
}

func TestEntTxOfSomethingElse(t *testing.T) {
	t.Parallel()
	if _, err := orms.EntTx(dialect.NopTx(nil)); err == nil {
		t.Error("a transaction was found where there is none")
	}
}
