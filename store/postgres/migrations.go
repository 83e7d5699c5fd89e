package postgres

import (
	"context"
	"database/sql"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/store/postgres/internal/conns"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// Part is what a migration is about.
type Part string

// The parts of the schema. PartBase is what the others share, and always comes with them.
const (
	PartBase   Part = Part(schema.PartBase)
	PartOutbox Part = Part(schema.PartOutbox)
	PartInbox  Part = Part(schema.PartInbox)
)

// MigrationOptions names what to migrate. Zero fields mean the defaults of Options and InboxOptions. No name may hold
// a NUL or {.
type MigrationOptions struct {
	Schema, Outbox, Inbox string
	// Source is the CloudEvents source of outbox rows that are inserted by hand without one, such as "/orders". If
	// it is empty, and the column has no default yet, the database refuses such a row. A default that is there
	// stays; its owner changes it with ALTER TABLE.
	Source string
	// Parts selects; empty means outbox and inbox.
	Parts []Part
}

// Migrations creates, upgrades and removes the schema: embedded files, numbered, applied in order under a lock, each
// version kept in the table waybill_meta by part.
type Migrations struct{ m *schema.Migrations }

// DB is what Migrations need: a *pgxpool.Pool, a *pgx.Conn, or [SQLDB] of a *sql.DB.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// SQLDB returns db as Migrations need it. Its driver must be pgx's; for another one print [Migrations.SQL], or give
// [Migrations.FS] to a tool.
func SQLDB(db *sql.DB) DB { return conns.SQL(db) }

// NewMigrations returns the migrations for opts.
func NewMigrations(opts MigrationOptions) (*Migrations, error) {
	parts := make([]schema.Part, len(opts.Parts))
	for i, p := range opts.Parts {
		parts[i] = schema.Part(p)
	}
	m, err := schema.New(schema.Options{Schema: opts.Schema, Outbox: opts.Outbox, Inbox: opts.Inbox, Source: opts.Source, Parts: parts})
	if err != nil {
		return nil, err
	}
	return &Migrations{m}, nil
}

// Newest returns the newest version of part.
func (m *Migrations) Newest(part Part) int { return m.m.Newest(schema.Part(part)) }

// Up applies what is missing, in one transaction under an advisory lock. It may be called by many processes at once,
// and again at any time.
func (m *Migrations) Up(ctx context.Context, db DB) error { return m.m.Up(ctx, db) }

// Down goes back to version: it undoes every later one of the selected parts, newest first, and the base when no part
// is left. The versions of all parts are one series, so a version before the one that made a table removes the table
// WITH ALL MESSAGES OR MARKS in it, as version 0 does with all. [Migrations.Losses] says which those are.
func (m *Migrations) Down(ctx context.Context, db DB, version int) error {
	return m.m.Down(ctx, db, version)
}

// Losses returns the tables with messages or marks that Down to version would drop, with their numbers of rows. The
// versions of all parts are one series: version 1 has the base alone, and so neither outbox nor inbox.
func (m *Migrations) Losses(ctx context.Context, db DB, version int) ([]admin.Loss, error) {
	return m.m.Losses(ctx, db, version)
}

// Applied returns the version of each part in the database; parts that are not there are left out.
func (m *Migrations) Applied(ctx context.Context, db DB) (map[Part]int, error) {
	applied, err := m.m.Applied(ctx, db)
	if err != nil {
		return nil, err
	}
	out := make(map[Part]int, len(applied))
	for part, version := range applied {
		out[Part(part)] = version
	}
	return out, nil
}

// Drift compares the live schema with that of this release, and returns every difference: tables, columns with type,
// nullability and default, indexes with their columns, uniqueness and predicates, sequences, storage options (which
// matter for speed only), triggers, and rows of waybill_meta. Objects that the owner added are ignored, but for columns
// that staging would have to fill. It reads the catalogs alone, so any role that may connect can ask; the rows of
// waybill_meta are looked at if the role may read them. It takes no locks that writers would wait for.
func (m *Migrations) Drift(ctx context.Context, db DB) ([]admin.Difference, error) {
	return m.m.Drift(ctx, db)
}

// SQL returns all up migrations as one script, for people who apply changes themselves.
func (m *Migrations) SQL() string { return m.m.SQL() }

// FS returns the migrations as files NNNN_part_name.up.sql and .down.sql with the names filled in, as golang-migrate
// reads them. For goose, which wants both directions in one file, use [Migrations.GooseFS]. Those tools keep the
// versions; the files keep waybill_meta in step, so that Check works.
func (m *Migrations) FS() fs.FS { return m.m.FS() }

// GooseFS returns the migrations as files NNNN_part_name.sql with goose's annotations.
func (m *Migrations) GooseFS() fs.FS { return m.m.GooseFS() }

// Roles names the database roles that Grants grants to; an empty one is left out.
type Roles struct {
	Producer  string // stages
	Canceller string // stages, and cancels what it or others staged: Cancel, and messages that replace others
	Relay     string // reads and settles
	Consumer  string // marks in the inbox, and keeps limits
	Operator  string // inspects, requeues, purges

	// Routes and Sources bind Producer and Canceller, by row-level security: to messages on these routes, with
	// their lanes and sub-routes, and of these sources. With Routes they see no rows of other routes. Empty = all.
	Routes, Sources []string
}

// Grants returns the SQL that gives each role what it needs and no more. It can run again. With Roles.Routes or
// Roles.Sources it enables row-level security, which concerns that producer and canceller alone: call Grants once
// for each.
func (m *Migrations) Grants(r Roles) string { return m.m.Grants(schema.Roles(r)) }

// outboxSchema returns the migrations of one outbox, with the source of rows that are inserted without one.
func outboxSchema(n schema.Names, source string) (*schema.Migrations, error) {
	return schema.New(schema.Options{Schema: n.Schema, Outbox: n.Outbox, Source: source, Parts: []schema.Part{schema.PartOutbox}})
}

// inboxSchema returns the migrations of one inbox.
func inboxSchema(n schema.Names) (*schema.Migrations, error) {
	return schema.New(schema.Options{Schema: n.Schema, Inbox: n.Inbox, Parts: []schema.Part{schema.PartInbox}})
}

// upAside migrates on a connection of its own, made like those of pool, whose connections may all be held by
// transactions that wait for it.
func upAside(ctx context.Context, pool *pgxpool.Pool, m *schema.Migrations) error {
	cfg := pool.Config()
	cfg.MaxConns, cfg.MinConns, cfg.MinIdleConns = 1, 0, 0
	aside, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return dberr.Failure("migrate up", err)
	}
	defer aside.Close()
	return m.Up(ctx, aside)
}

var (
	_ admin.DriftChecker = (*Outbox)(nil)
	_ admin.DriftChecker = (*Inbox)(nil)
	_ admin.DriftChecker = (*SQLInbox)(nil)
	_ admin.Migrator     = (*SQLInbox)(nil)
	_ admin.Migrator     = (*Inbox)(nil)
	_ admin.Migrator     = (*Outbox)(nil)
)

// Migrate creates the outbox's tables or brings them to the newest version; see [Migrations] for more. Options.Source
// becomes the source of rows that are inserted by hand without one, if the column has no default yet.
func (o *Outbox) Migrate(ctx context.Context) error {
	m, err := outboxSchema(o.names, o.opts.Source)
	if err != nil {
		return err
	}
	return m.Up(ctx, o.conns)
}

// Drift returns how the outbox's schema differs from that of this release; see [Migrations.Drift].
func (o *Outbox) Drift(ctx context.Context) ([]admin.Difference, error) {
	m, err := outboxSchema(o.names, o.opts.Source)
	if err != nil {
		return nil, err
	}
	return m.Drift(ctx, o.conns)
}

// Check reports whether a relay can work on the outbox: an error that matches waybill.ErrMisconfigured names every
// table, column or permission that is missing and what to do, and an old schema version; a newer one is fine. A
// producer needs less than a relay, and learns at its first Stage.
func (o *Outbox) Check(ctx context.Context) error {
	if err := o.ready(ctx); err != nil {
		return err
	}
	m, err := outboxSchema(o.names, o.opts.Source)
	if err != nil {
		return err
	}
	return dberr.Failure("check", o.conns.Use(ctx, func(conn *pgx.Conn) error { return m.CheckOutbox(ctx, schema.AskPgx(conn)) }))
}

// Migrate creates the inbox table or brings it to the newest version; see [Migrations] for more.
func (i *Inbox) Migrate(ctx context.Context) error {
	m, err := inboxSchema(i.names)
	if err != nil {
		return err
	}
	return m.Up(ctx, i.pool)
}

// Drift returns how the inbox's schema differs from that of this release; see [Migrations.Drift].
func (i *Inbox) Drift(ctx context.Context) ([]admin.Difference, error) {
	m, err := inboxSchema(i.names)
	if err != nil {
		return nil, err
	}
	return m.Drift(ctx, i.pool)
}

// Check reports whether the inbox can work, as [Outbox.Check] does.
func (i *Inbox) Check(ctx context.Context) error {
	if err := i.ready(ctx); err != nil {
		return err
	}
	m, err := inboxSchema(i.names)
	if err != nil {
		return err
	}
	return m.CheckInbox(ctx, schema.AskPgx(i.pool))
}

// Migrate creates the inbox table or brings it to the newest version. Of the database's driver it needs that it is
// pgx's; see [SQLDB].
func (i *SQLInbox) Migrate(ctx context.Context) error {
	m, err := inboxSchema(i.names)
	if err != nil {
		return err
	}
	return m.Up(ctx, SQLDB(i.db))
}

// Drift returns how the inbox's schema differs from that of this release; see [Migrations.Drift]. It needs pgx's
// driver.
func (i *SQLInbox) Drift(ctx context.Context) ([]admin.Difference, error) {
	m, err := inboxSchema(i.names)
	if err != nil {
		return nil, err
	}
	return m.Drift(ctx, SQLDB(i.db))
}

// Check is [Inbox.Check]. It works with any driver.
func (i *SQLInbox) Check(ctx context.Context) error {
	m, err := inboxSchema(i.names)
	if err != nil {
		return err
	}
	return m.CheckInbox(ctx, schema.AskSQL(i.db))
}
