package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// MigrationOptions names what to migrate.
type MigrationOptions struct {
	// Prefix is that of Options; default "waybill_".
	Prefix string
}

// Migrations creates, upgrades and removes the tables. They are embedded files, numbered, and applied in order in one
// transaction that holds SQLite's write lock. The row "version" of the meta table keeps the version.
type Migrations struct {
	prefix string
	files  []migration
}

// migration is one version of the schema.
type migration struct {
	version  int
	name     string // without direction
	up, down string
}

// NewMigrations returns the migrations for opts.
func NewMigrations(opts MigrationOptions) (*Migrations, error) {
	if err := waybill.Invalid("waybill/sqlite: migration options", checkPrefix(opts.Prefix)...); err != nil {
		return nil, err
	}
	opts.Prefix = cmp.Or(opts.Prefix, DefaultPrefix)
	m := &Migrations{prefix: opts.Prefix}
	return m, m.load()
}

// load reads the embedded files. Their numbers are 1, 2, 3, …; a test checks that.
func (m *Migrations) load() error {
	paths, err := fs.Glob(migrationFiles, "migrations/*.up.sql")
	if err != nil {
		return err
	}
	slices.Sort(paths)
	for i, path := range paths {
		base := strings.TrimSuffix(path, ".up.sql")
		up, err1 := migrationFiles.ReadFile(path)
		down, err2 := migrationFiles.ReadFile(base + ".down.sql")
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		m.files = append(m.files, migration{
			version: i + 1, name: strings.TrimPrefix(base, "migrations/"),
			up: m.text(up), down: m.text(down),
		})
	}
	return nil
}

// text returns a file with the prefix filled in.
func (m *Migrations) text(file []byte) string {
	return strings.ReplaceAll(string(file), DefaultPrefix, m.prefix)
}

// Newest returns the newest version.
func (m *Migrations) Newest() int { return len(m.files) }

// Up applies what is missing. Many processes can call it at once, and again at any time. It changes nothing if the
// tables are newer.
func (m *Migrations) Up(ctx context.Context, db *sql.DB) error {
	have, err := m.applied(ctx, db)
	if err != nil {
		return classify("migrate up", err)
	}
	if have >= m.Newest() {
		return nil // without taking the lock
	}
	return m.run(ctx, db, "migrate up", func(tx *sql.Tx) error { return m.up(ctx, tx) })
}

// up applies what is missing in tx.
func (m *Migrations) up(ctx context.Context, tx *sql.Tx) error {
	have, err := m.applied(ctx, tx) // another process may have been here
	if err != nil {
		return err
	}
	for v := have + 1; v <= m.Newest(); v++ {
		//nolint:gosec // embedded files, and a number
		if _, err := tx.ExecContext(ctx, m.files[v-1].up+m.record(v)); err != nil {
			return fmt.Errorf("version %d: %w", v, err)
		}
	}
	return nil
}

// Down goes back to version: it undoes every later one, newest first. Version 0 removes the tables WITH ALL MESSAGES
// AND MARKS in them.
func (m *Migrations) Down(ctx context.Context, db *sql.DB, version int) error {
	if version < 0 || version > m.Newest() {
		return waybill.Invalid("waybill/sqlite: migrate down",
			fmt.Sprintf("version: %d is not between 0 and %d", version, m.Newest()))
	}
	return m.run(ctx, db, "migrate down", func(tx *sql.Tx) error {
		have, err := m.applied(ctx, tx)
		if err != nil {
			return err
		}
		if have > m.Newest() {
			return misconfigured("migrate down", fmt.Errorf("the schema has version %d, this release knows %d: "+
				"go back with the newer release", have, m.Newest()))
		}
		for v := have; v > version; v-- {
			text := m.files[v-1].down
			if v > 1 {
				text += m.record(v - 1)
			}
			if _, err := tx.ExecContext(ctx, text); err != nil {
				return fmt.Errorf("version %d: %w", v, err)
			}
		}
		return nil
	})
}

// Losses returns the tables with messages or marks that Down to version would drop, with their numbers of rows.
func (m *Migrations) Losses(ctx context.Context, db *sql.DB, version int) ([]admin.Loss, error) {
	const op = "count what migrate down would drop"
	have, err := m.applied(ctx, db)
	if err != nil || have == 0 || version > 0 {
		return nil, classify(op, err)
	}
	losses := []admin.Loss{{Table: m.prefix + "outbox", Holds: "message"}, {Table: m.prefix + "inbox", Holds: "mark"}}
	for i := range losses {
		l := &losses[i]
		ask := "SELECT count(*) FROM (SELECT 1 FROM " + l.Table + " LIMIT ?)"
		if err := db.QueryRowContext(ctx, ask, admin.LossBound+1).Scan(&l.Rows); err != nil {
			return nil, classify(op, err)
		}
		l.Rows, l.More = min(l.Rows, admin.LossBound), l.Rows > admin.LossBound
	}
	return losses, nil
}

// Applied returns the version of the tables in db; 0 if there are none.
func (m *Migrations) Applied(ctx context.Context, db *sql.DB) (int, error) {
	v, err := m.applied(ctx, db)
	return v, classify("read the schema version", err)
}

// SQL returns all up migrations as one script, for people who apply changes themselves.
func (m *Migrations) SQL() string {
	var b strings.Builder
	for i := range m.files {
		fmt.Fprintf(&b, "-- %s\n%s%s\n", m.files[i].name, m.files[i].up, m.record(m.files[i].version))
	}
	return b.String()
}

// FS returns the migrations as files NNNN_name.up.sql and NNNN_name.down.sql, for golang-migrate and for readers. They
// have the default prefix, with any MigrationOptions.Prefix.
func (m *Migrations) FS() fs.FS {
	sub, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return migrationFiles
	}
	return sub
}

// record notes the version in the meta table.
func (m *Migrations) record(version int) string {
	return fmt.Sprintf("UPDATE %smeta SET value = %d WHERE name = 'version';\n", m.prefix, version)
}

// run runs fn in a transaction that holds the write lock from its beginning.
func (m *Migrations) run(ctx context.Context, db *sql.DB, op string, fn func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return classify(op, err)
	}
	defer func() { _ = tx.Rollback() }() // nothing is left to roll back after a commit
	if err := m.lock(ctx, tx); err != nil {
		return classify(op, err)
	}
	if err := fn(tx); err != nil {
		return classify(op, err)
	}
	return classify(op, tx.Commit())
}

// lock takes the write lock, also where transactions begin deferred: it writes, but changes nothing.
func (m *Migrations) lock(ctx context.Context, tx *sql.Tx) error {
	table := m.prefix + "lock"
	//nolint:gosec // nothing foreign in the text but the prefix, which was checked
	_, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS "+table+" (x INTEGER); DROP TABLE "+table)
	return err
}

// querier is a *sql.DB or a *sql.Tx.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// applied returns the version of the tables; 0 if there are none.
func (m *Migrations) applied(ctx context.Context, q querier) (int, error) {
	const tables = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?"
	meta := m.prefix + "meta"
	var n, v int
	if err := q.QueryRowContext(ctx, tables, meta).Scan(&n); err != nil || n == 0 {
		return 0, err
	}
	if err := q.QueryRowContext(ctx, "SELECT value FROM "+meta+" WHERE name = 'version'").Scan(&v); err != nil {
		if ctx.Err() != nil {
			return 0, err // it says nothing about the table
		}
		return 0, misconfigured("schema", fmt.Errorf("table %s is not Waybill's or holds no version (%w): "+
			"choose another Options.Prefix", meta, err))
	}
	return v, nil
}

// Migrate brings the tables to the newest version, as [Migrations.Up] does, in this process's turn to write.
func (s *Store) Migrate(ctx context.Context) error {
	have, err := s.migrations.applied(ctx, s.db)
	if err != nil {
		return s.classify("migrate", err)
	}
	if have >= s.migrations.Newest() {
		return nil // without taking the lock
	}
	err = s.alone(ctx, "migrate", func(tx *sql.Tx) (bool, error) {
		if err := s.migrations.lock(ctx, tx); err != nil {
			return false, err
		}
		return true, s.migrations.up(ctx, tx)
	})
	if err != nil {
		return err
	}
	s.logger().InfoContext(ctx, "waybill/sqlite: tables created or upgraded", "prefix", s.opts.Prefix,
		"from_version", have, "to_version", s.migrations.Newest())
	return nil
}

// readyIn migrates in tx, a transaction of the application, if AutoMigrate is set. The application can hold the write
// lock and the only connection, so readyIn does not wait. After a rollback the next transaction migrates again.
func (s *Store) readyIn(ctx context.Context, tx *sql.Tx) error {
	if s.opts.AutoMigrate && !s.owned && !s.migrated.Load() {
		if err := s.migrations.up(ctx, tx); err != nil {
			return err
		}
	}
	return s.fits(ctx, tx)
}

// A connection that has attached another file is refused. SQLite commits files with a WAL one after the other: a
// process that ends in between leaves a message without its rows, or a mark without its effects. So an INSERT of
// messages or marks writes nothing there. When it wrote less than it was given, refuseAttached says whether that is the
// reason: a look at each transaction would cost a statement more.
const (
	attachedText = `SELECT name FROM pragma_database_list WHERE name NOT IN ('main', 'temp')`
	ifAlone      = ` WHERE NOT EXISTS (` + attachedText + `)`
)

// refuseAttached refuses a connection that has attached another file.
func refuseAttached(ctx context.Context, q querier) error {
	var name string
	err := q.QueryRowContext(ctx, attachedText+" LIMIT 1").Scan(&name)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	} else if err != nil {
		return err
	}
	return misconfigured("transaction", fmt.Errorf("the connection has attached another file as %q, and a transaction over several files is not atomic: "+
		"keep the tables of the application in the store's file, and attach nothing to its connections", name))
}
