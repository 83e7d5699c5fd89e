package sqlstores

import (
	"cmp"
	"context"
	"database/sql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/store/sqlite"
)

// SQLite are the settings of the kind sqlite, beside sqlite.Options.
type SQLite struct {
	// Path is the file of the database.
	Path string
	sqlite.Options
}

func openSQLite(ctx context.Context, s *SQLite, env cli.Env) (*cli.Store, error) {
	if s.Path == "" {
		return nil, waybill.Invalid("waybill: settings", "Path: is missing; name the file of the database")
	}
	opts := s.Options
	opts.Source = cmp.Or(opts.Source, "/waybill")
	opts.Logger, opts.TracerProvider = env.Logger, env.TracerProvider
	store, err := sqlite.Open(ctx, s.Path, opts)
	if err != nil {
		return nil, err
	}
	m, err := sqlite.NewMigrations(sqlite.MigrationOptions{Prefix: s.Prefix})
	if err != nil {
		_ = store.Close(ctx)
		return nil, err
	}
	return &cli.Store{
		Outbox: store, Inbox: store, Schema: &sqliteSchema{m, store.DB(), store},
		Producer: cli.NewProducer(store, transactions(store.DB())), Mark: cli.NewMark(store), Close: store.Close,
	}, nil
}

type sqliteSchema struct {
	m     *sqlite.Migrations
	db    *sql.DB
	store *sqlite.Store
}

func (s *sqliteSchema) Up(ctx context.Context) error { return s.m.Up(ctx, s.db) }

func (s *sqliteSchema) Down(ctx context.Context, version int) error {
	return s.m.Down(ctx, s.db, version)
}

func (s *sqliteSchema) Losses(ctx context.Context, version int) ([]admin.Loss, error) {
	return s.m.Losses(ctx, s.db, version)
}

func (s *sqliteSchema) Status(ctx context.Context) ([]cli.SchemaStatus, error) {
	v, err := s.m.Applied(ctx, s.db)
	if err != nil {
		return nil, err
	}
	return []cli.SchemaStatus{{Part: "all", Applied: v, Newest: s.m.Newest()}}, nil
}

func (s *sqliteSchema) Print() (string, error) { return s.m.SQL(), nil }

func (s *sqliteSchema) Drift(ctx context.Context) ([]admin.Difference, error) {
	return s.store.Drift(ctx)
}

// transactions runs functions in transactions of db.
func transactions(db *sql.DB) func(context.Context, func(context.Context, *sql.Tx) error) error {
	return func(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
		if err := fn(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	}
}
