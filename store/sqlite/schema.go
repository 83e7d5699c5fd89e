package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/waybill-go/waybill"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations returns the migrations as files NNNN_name.up.sql and NNNN_name.down.sql with the default prefix, for
// goose, golang-migrate and readers.
func Migrations() fs.FS {
	sub, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return migrations
	}
	return sub
}

// migration is one version of the schema.
type migration struct {
	version  int
	up, down string
}

// steps returns the migrations in order. Their numbers are 1, 2, 3, …: a test looks.
func steps(prefix string) ([]migration, error) {
	names, err := fs.Glob(migrations, "migrations/*.up.sql")
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	out := make([]migration, 0, len(names))
	for i, name := range names {
		up, err := migrations.ReadFile(name)
		if err != nil {
			return nil, err
		}
		down, err := migrations.ReadFile(strings.TrimSuffix(name, ".up.sql") + ".down.sql")
		if err != nil {
			return nil, err
		}
		out = append(out, migration{
			version: i + 1, up: strings.ReplaceAll(string(up), DefaultPrefix, prefix), down: strings.ReplaceAll(string(down), DefaultPrefix, prefix),
		})
	}
	return out, nil
}

// newest returns the newest version of the schema that this package knows.
func newest() int {
	names, _ := fs.Glob(migrations, "migrations/*.up.sql")
	return len(names)
}

// Migrate brings the tables to the newest version, in one transaction that holds SQLite's write lock, so that several
// processes may do it at once. It changes nothing if they are newer.
func (s *Store) Migrate(ctx context.Context) error { return s.migrate(ctx, newest()) }

// MigrateTo brings the tables up or down to version; 0 removes them with all they hold.
func (s *Store) MigrateTo(ctx context.Context, version int) error {
	if version < 0 || version > newest() {
		return waybill.Invalid("waybill/sqlite: migrate", fmt.Sprintf("version: %d is not between 0 and %d", version, newest()))
	}
	have, err := s.version(ctx, s.db)
	if err != nil {
		return s.classify("migrate", err)
	}
	if have <= version {
		return s.migrate(ctx, version)
	}
	all, err := steps(s.opts.Prefix)
	if err != nil {
		return s.classify("migrate", err)
	}
	return s.ddl(ctx, func(tx *sql.Tx) error {
		have, err := s.version(ctx, tx)
		if err != nil {
			return err
		}
		if have > len(all) {
			return misconfigured("migrate", fmt.Errorf("the schema has version %d, this program knows %d: use the newer program to go back", have, len(all)))
		}
		for v := have; v > version; v-- {
			if _, err := tx.ExecContext(ctx, all[v-1].down); err != nil {
				return err
			}
			if v > 1 {
				if err := s.setVersion(ctx, tx, v-1); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func (s *Store) migrate(ctx context.Context, version int) error {
	have, err := s.version(ctx, s.db)
	if err != nil {
		return s.classify("migrate", err)
	}
	if have >= version {
		return nil // without taking the lock
	}
	return s.ddl(ctx, func(tx *sql.Tx) error { return s.up(ctx, tx, version) })
}

// up brings the tables up to version in tx.
func (s *Store) up(ctx context.Context, tx *sql.Tx, version int) error {
	all, err := steps(s.opts.Prefix)
	if err != nil {
		return err
	}
	have, err := s.version(ctx, tx) // another process may have been here
	if err != nil {
		return err
	}
	for v := have + 1; v <= version; v++ {
		if _, err := tx.ExecContext(ctx, all[v-1].up); err != nil {
			return fmt.Errorf("version %d: %w", v, err)
		}
		if err := s.setVersion(ctx, tx, v); err != nil {
			return err
		}
	}
	return nil
}

// readyIn does what AutoMigrate asks for in a transaction of the application, which may hold the write lock and the
// only connection: so it waits for nobody. A rollback undoes it, so that the next transaction looks again.
func (s *Store) readyIn(ctx context.Context, tx *sql.Tx) error {
	if s.opts.AutoMigrate && !s.owned && !s.migrated.Load() {
		if err := s.up(ctx, tx, newest()); err != nil {
			return err
		}
	}
	return s.fits(ctx, tx)
}

// ddl runs fn in a transaction that holds the write lock from its beginning.
func (s *Store) ddl(ctx context.Context, fn func(tx *sql.Tx) error) error {
	return s.alone(ctx, "migrate", func(tx *sql.Tx) (bool, error) {
		// A write that changes nothing: it takes the lock where transactions begin deferred.
		if _, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS "+s.opts.Prefix+"lock (x INTEGER); DROP TABLE "+s.opts.Prefix+"lock"); err != nil { //nolint:gosec // nothing foreign in the text but Options.Prefix, which Validate has checked
			return false, err
		}
		if err := fn(tx); err != nil {
			return false, err
		}
		return true, nil
	})
}

func (s *Store) setVersion(ctx context.Context, tx *sql.Tx, v int) error {
	_, err := tx.ExecContext(ctx, "UPDATE "+s.opts.Prefix+"meta SET value = ? WHERE name = 'version'", v) //nolint:gosec // the text holds nothing foreign but Options.Prefix, which Validate has checked
	return err
}

// querier is a *sql.DB or a *sql.Tx.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// version returns the version of the schema; 0 if there is none.
func (s *Store) version(ctx context.Context, q querier) (int, error) {
	var n int
	if err := q.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?", s.opts.Prefix+"meta").Scan(&n); err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, nil
	}
	var v int
	if err := q.QueryRowContext(ctx, s.sql(versionText)).Scan(&v); err != nil {
		return 0, misconfigured("schema", fmt.Errorf("table %smeta is not Waybill's or holds no version (%w): choose another Options.Prefix", s.opts.Prefix, err))
	}
	return v, nil
}
