package schema

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Part is what a migration is about.
type Part string

// The parts of the schema. PartBase is what the others share, and always comes with them.
const (
	PartBase   Part = "base"
	PartOutbox Part = "outbox"
	PartInbox  Part = "inbox"
)

// Options names what to migrate. Zero fields mean the defaults of Options and InboxOptions. No name may hold
// a NUL or {.
type Options struct {
	Schema, Outbox, Inbox string
	// Source is the source of outbox rows that are inserted without one; empty = such an insert is refused. A
	// default that is there stays.
	Source string
	// Parts selects; empty means outbox and inbox.
	Parts []Part
}

// Migrations creates, upgrades and removes the schema: embedded files, numbered, applied in order under a lock, each
// version kept in the table waybill_meta by part.
type Migrations struct {
	names  Names
	source string
	parts  []Part
	files  []migration
}

type migration struct {
	version  int
	part     Part
	name     string // without direction
	up, down string
	// compatible is the version that programs must know from this migration on; 0 = as before.
	compatible int
}

// DB is what Migrations need: a *pgxpool.Pool or *pgx.Conn.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// New returns the migrations for opts.
func New(opts Options) (*Migrations, error) {
	p := append(CheckNames(opts.Schema, "Outbox", opts.Outbox), CheckNames("", "Inbox", opts.Inbox)...)
	for i, part := range opts.Parts {
		if part != PartBase && part != PartOutbox && part != PartInbox {
			p = append(p, fmt.Sprintf("Parts[%d]: %q is unknown; choose base, outbox or inbox", i, part))
		}
	}
	if opts.Source != "" {
		if s := check.Source(opts.Source); s != "" {
			p = append(p, "Source: "+s)
		}
	}
	if err := waybill.Invalid("waybill/postgres: migration options", p...); err != nil {
		return nil, err
	}
	if len(opts.Parts) == 0 {
		opts.Parts = []Part{PartOutbox, PartInbox}
	}
	m := &Migrations{names: NewNames(opts.Schema, opts.Outbox, opts.Inbox), source: opts.Source, parts: append([]Part{PartBase}, opts.Parts...)}
	return m, m.load()
}

// embedded returns the migrations, in their order, as the names of the embedded files tell: NNNN_part_name.up.sql and
// .down.sql.
func embedded() []migration {
	entries, _ := migrationFiles.ReadDir("migrations") // sorted by name
	var all []migration
	for _, e := range entries {
		name, up := strings.CutSuffix(e.Name(), ".up.sql")
		number, rest, _ := strings.Cut(name, "_")
		part, _, _ := strings.Cut(rest, "_")
		version, err := strconv.Atoi(number) // a test looks at all names
		if up && err == nil {
			all = append(all, migration{version: version, part: Part(part), name: name})
		}
	}
	return all
}

// Newest returns the newest version of part.
func Newest(part Part) int { return newest(embedded(), part) }

func newest(files []migration, part Part) int {
	v := 0
	for i := range files {
		if files[i].part == part {
			v = max(v, files[i].version)
		}
	}
	return v
}

// load reads the files of the selected parts.
func (m *Migrations) load() error {
	for _, mig := range embedded() {
		if !slices.Contains(m.parts, mig.part) {
			continue
		}
		up, err1 := migrationFiles.ReadFile("migrations/" + mig.name + ".up.sql")
		down, err2 := migrationFiles.ReadFile("migrations/" + mig.name + ".down.sql")
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		var err error
		if mig.compatible, err = compatible(string(up)); err != nil {
			return fmt.Errorf("waybill/postgres: migration %s: %w", mig.name, err)
		}
		names := m.names.With("{default_source}", m.defaultSource())
		mig.up, mig.down = names.SQL(string(up)), names.SQL(string(down))
		m.files = append(m.files, mig)
	}
	return nil
}

func (m *Migrations) key(part Part) string {
	switch part {
	case PartOutbox:
		return m.names.Outbox + ".version"
	case PartInbox:
		return m.names.Inbox + ".version"
	case PartBase:
	}
	return "version"
}

// record notes in the table of versions that mig was applied. The clock's mark, the epoch and the cleaner's lease are
// made here, so that a relay needs no right to insert them.
func (m *Migrations) record(mig *migration) string {
	value := QuoteText(m.key(mig.part)) + ", " + strconv.Itoa(mig.version)
	s := "INSERT INTO {meta} (name, value) VALUES (" + value + ") ON CONFLICT (name) DO UPDATE SET value = excluded.value;\n"
	if mig.part == PartOutbox {
		s += "INSERT INTO {meta} (name, value) VALUES ({hlc_name}, 0), ({epoch}, 1), ({cleaner}, 0) ON CONFLICT (name) DO NOTHING;\n"
	}
	s = m.names.SQL(s)
	if mig.compatible > 0 {
		s += m.declare([]migration{*mig}, mig.part)
	}
	return s
}

// forget notes that file i was undone.
func (m *Migrations) forget(i int) string {
	mig, before := &m.files[i], m.before(i)
	undeclare := ""
	if mig.compatible > 0 {
		undeclare = m.declare(m.files[:i], mig.part)
	}
	switch {
	case mig.part == PartBase && before == 0:
		return "" // its table is gone
	case before > 0:
		return m.names.SQL(fmt.Sprintf("UPDATE {meta} SET value = %d WHERE name = %s;\n", before, QuoteText(m.key(mig.part)))) + undeclare
	case mig.part == PartOutbox:
		return m.names.SQL("DELETE FROM {meta} "+
			"WHERE name IN ("+QuoteText(m.key(mig.part))+", {hlc_name}, {epoch}, {cleaner});\n") + undeclare
	}
	return m.names.SQL("DELETE FROM {meta} WHERE name = "+QuoteText(m.key(mig.part))+";\n") + undeclare
}

// Newest returns the newest version of part.
func (m *Migrations) Newest(part Part) int { return newest(m.files, part) }

// Up applies what is missing, in one transaction under an advisory lock. It may be called by many processes at once,
// and again at any time.
func (m *Migrations) Up(ctx context.Context, db DB) error {
	const op = "migrate up"
	return m.run(ctx, db, op, func(tx pgx.Tx) error {
		applied, err := m.applied(ctx, tx)
		if err != nil {
			return err
		}
		owned := sync.OnceValue(func() error { return m.checkOwners(ctx, tx, op) })
		for i := range m.files {
			mig := &m.files[i]
			if mig.version <= applied[mig.part] {
				continue
			}
			if err := owned(); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, mig.up+m.record(mig)); err != nil {
				return fmt.Errorf("%s: %w", mig.name, err)
			}
		}
		return m.setSource(ctx, tx)
	})
}

// defaultSource is the default of the column source, as a column definition has it.
func (m *Migrations) defaultSource() string {
	if m.source == "" {
		return ""
	}
	return " DEFAULT " + QuoteText(m.source)
}

// setSource gives the column source of the outbox a default if it has none, and the user may.
func (m *Migrations) setSource(ctx context.Context, tx pgx.Tx) error {
	if m.source == "" || !slices.Contains(m.parts, PartOutbox) {
		return nil
	}
	var lacks bool
	err := tx.QueryRow(ctx, `
SELECT NOT a.atthasdef AND pg_catalog.pg_has_role(c.relowner, 'USAGE')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
WHERE n.nspname = $1 AND c.relname = $2 AND a.attname = 'source'`, m.names.Schema, m.names.Outbox).Scan(&lacks)
	if err != nil || !lacks {
		return err
	}
	_, err = tx.Exec(ctx, m.names.SQL("ALTER TABLE {outbox} ALTER COLUMN source SET"+m.defaultSource()))
	return err
}

// Down goes back to version: it undoes every later one of the selected parts, newest first, and the base when no part
// is left. Version 0 removes the tables WITH ALL MESSAGES AND MARKS in them.
func (m *Migrations) Down(ctx context.Context, db DB, version int) error {
	const op = "migrate down"
	return m.run(ctx, db, op, func(tx pgx.Tx) error {
		applied, err := m.applied(ctx, tx)
		if err != nil {
			return err
		}
		for _, part := range m.parts {
			if newest := m.Newest(part); applied[part] > newest {
				return dberr.Misconfigured(op, "the schema of %q has version %d, this release knows %d: "+
					"go back with the newer release", m.key(part), applied[part], newest)
			}
		}
		owned := sync.OnceValue(func() error { return m.checkOwners(ctx, tx, op) })
		for i := len(m.files) - 1; i >= 0; i-- {
			mig := &m.files[i]
			if mig.version > applied[mig.part] || mig.version <= version {
				continue
			}
			if err := owned(); err != nil {
				return err
			}
			if mig.part == PartBase {
				var used bool
				ask := m.names.SQL(`SELECT EXISTS (SELECT FROM {meta} WHERE name LIKE '%.version')`)
				if err := tx.QueryRow(ctx, ask).Scan(&used); err != nil {
					return err
				}
				if used {
					continue
				}
			}
			if _, err := tx.Exec(ctx, mig.down+m.forget(i)); err != nil {
				return fmt.Errorf("%s: %w", mig.name, err)
			}
		}
		return nil
	})
}

// Losses returns the tables with messages or marks that Down to version would drop.
func (m *Migrations) Losses(ctx context.Context, db DB, version int) ([]admin.Loss, error) {
	var losses []admin.Loss
	err := m.read(ctx, db, "count what migrate down would drop", func(tx pgx.Tx) error {
		applied, err := m.applied(ctx, tx)
		if err != nil {
			return err
		}
		losses = nil
		for _, l := range []struct {
			part        Part
			name, holds string
		}{{PartOutbox, "{outbox}", "message"}, {PartInbox, "{inbox}", "mark"}} {
			if applied[l.part] == 0 || m.first(l.part) <= version || !slices.Contains(m.parts, l.part) {
				continue
			}
			var n int
			ask := m.names.SQL("SELECT count(*) FROM (SELECT FROM " + l.name + " LIMIT $1) x")
			if err := tx.QueryRow(ctx, ask, admin.LossBound+1).Scan(&n); err != nil {
				return err
			}
			losses = append(losses, admin.Loss{
				Table: m.names.SQL(l.name), Holds: l.holds, Rows: min(n, admin.LossBound), More: n > admin.LossBound,
			})
		}
		return nil
	})
	return losses, err
}

// first returns the version that makes the table of a part.
func (m *Migrations) first(part Part) int {
	return m.files[slices.IndexFunc(m.files, func(f migration) bool { return f.part == part })].version
}

// Applied returns the version of each part in the database; parts that are not there are left out.
func (m *Migrations) Applied(ctx context.Context, db DB) (map[Part]int, error) {
	var applied map[Part]int
	err := m.read(ctx, db, "read the schema version", func(tx pgx.Tx) (err error) {
		applied, err = m.applied(ctx, tx)
		return err
	})
	return applied, err
}

func (m *Migrations) applied(ctx context.Context, tx pgx.Tx) (map[Part]int, error) {
	applied := map[Part]int{}
	var exists bool
	if err := tx.QueryRow(ctx, "SELECT pg_catalog.to_regclass($1) IS NOT NULL", m.names.SQL("{meta}")).Scan(&exists); err != nil || !exists {
		return applied, err
	}
	for _, part := range m.parts {
		var v int
		err := tx.QueryRow(ctx, m.names.SQL("SELECT value FROM {meta} WHERE name = $1"), m.key(part)).Scan(&v)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return nil, err
		}
		if v > 0 {
			applied[part] = v
		}
	}
	return applied, nil
}

// migrationLock is the advisory lock of migrations, for the transaction.
const migrationLock = 0x77617962_696c6c00

// beginner is a DB that is not itself a transaction.
type beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// readCommitted begins transactions that see, once they have the lock, the changes of the one before them.
type readCommitted struct{ beginner }

func (db readCommitted) Begin(ctx context.Context) (pgx.Tx, error) {
	return db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
}

// read is run without the lock.
func (m *Migrations) read(ctx context.Context, db DB, op string, fn func(tx pgx.Tx) error) error {
	return dberr.Failure(op, pgx.BeginFunc(ctx, db, fn))
}

func (m *Migrations) run(ctx context.Context, db DB, op string, fn func(tx pgx.Tx) error) error {
	if b, ok := db.(beginner); ok {
		db = readCommitted{b}
	}
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_catalog.pg_advisory_xact_lock($1)", int64(migrationLock)); err != nil {
			return err
		}
		return fn(tx)
	})
	if dberr.SQLState(err) == "42501" {
		return dberr.Misconfigured(op, "the role may not create schemas and tables: "+
			"run the migrations as the owner of the database, or grant the role CREATE on it (%w)", err)
	}
	return dberr.Failure(op, err)
}

// before returns the version of the same part before that of file i.
func (m *Migrations) before(i int) int {
	for j := i - 1; j >= 0; j-- {
		if m.files[j].part == m.files[i].part {
			return m.files[j].version
		}
	}
	return 0
}
