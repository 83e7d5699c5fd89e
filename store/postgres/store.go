package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// Store is the outbox and the inbox of a database: all that most services need. It is safe for concurrent use. For
// another name of the inbox table, or another lock timeout, use [NewOutbox] and [NewInbox].
type Store struct {
	*Outbox
	inbox *Inbox
}

var (
	_ core.OutboxStore        = (*Store)(nil)
	_ core.BatchInbox[pgx.Tx] = (*Store)(nil)
	_ core.Inbox[pgx.Tx]      = (*Store)(nil)
	_ core.Marker[pgx.Tx]     = (*Store)(nil)
	_ core.InboxPurger        = (*Store)(nil)
	_ core.Checker            = (*Store)(nil)
	_ admin.Migrator          = (*Store)(nil)
	_ admin.DriftChecker      = (*Store)(nil)
)

// New returns the outbox and the inbox in the schema that opts name, over pool, which stays the caller's to close. It
// does not connect.
func New(pool *pgxpool.Pool, opts Options) (*Store, error) {
	outbox, err := NewOutbox(pool, opts)
	if err != nil {
		return nil, err
	}
	inbox, err := NewInbox(pool, InboxOptions{Schema: opts.Schema, AutoMigrate: opts.AutoMigrate})
	if err != nil {
		return nil, err
	}
	return &Store{outbox, inbox}, nil
}

// Migrate creates the tables of both, or brings them to the newest version; see [Migrations] for more.
func (s *Store) Migrate(ctx context.Context) error {
	return errors.Join(s.Outbox.Migrate(ctx), s.inbox.Migrate(ctx))
}

// Check returns nil if both can work; see [core.Checker].
func (s *Store) Check(ctx context.Context) error { return checkBoth(ctx, s.Outbox, s.inbox) }

// checkBoth checks the outbox and the inbox of one database. What both say is said once.
func checkBoth(ctx context.Context, outbox, inbox core.Checker) error {
	first := outbox.Check(ctx)
	if first != nil && !errors.Is(first, waybill.ErrMisconfigured) {
		return first // the inbox is in the same database
	}
	second := inbox.Check(ctx)
	if first != nil && second != nil && first.Error() == second.Error() {
		return first // such as a schema that is missing
	}
	if first != nil && second == nil {
		first = fmt.Errorf("%w (or, if the program only consumes: take NewInbox, for which the inbox alone will do)", first)
	}
	return errors.Join(first, second)
}

// Drift returns every difference of both tables; see [admin.DriftChecker].
func (s *Store) Drift(ctx context.Context) ([]admin.Difference, error) {
	return driftOf(ctx, s.Outbox, s.inbox)
}

// driftOf returns the differences of all parts, each once: all of them need the table of versions.
func driftOf(ctx context.Context, parts ...admin.DriftChecker) ([]admin.Difference, error) {
	var all []admin.Difference
	for _, p := range parts {
		found, err := p.Drift(ctx)
		if err != nil {
			return nil, err
		}
		for _, d := range found {
			if !slices.Contains(all, d) {
				all = append(all, d)
			}
		}
	}
	return all, nil
}

// Do is [Inbox.Do].
func (s *Store) Do(ctx context.Context, key core.InboxKey, fn func(ctx context.Context, tx pgx.Tx) error) (core.InboxStatus, error) {
	return s.inbox.Do(ctx, key, fn)
}

// DoBatch is [Inbox.DoBatch].
func (s *Store) DoBatch(
	ctx context.Context, keys []core.InboxKey, fn func(ctx context.Context, tx pgx.Tx, fresh []int) error,
) ([]core.InboxStatus, error) {
	return s.inbox.DoBatch(ctx, keys, fn)
}

// Mark is [Inbox.Mark].
func (s *Store) Mark(ctx context.Context, tx pgx.Tx, key core.InboxKey) (core.InboxStatus, error) {
	return s.inbox.Mark(ctx, tx, key)
}

// PurgeInbox is [Inbox.PurgeInbox].
func (s *Store) PurgeInbox(ctx context.Context, consumer string, age time.Duration, limit int) (int, error) {
	return s.inbox.PurgeInbox(ctx, consumer, age, limit)
}

var (
	_ core.OutboxStore         = (*SQLStore)(nil)
	_ core.BatchInbox[*sql.Tx] = (*SQLStore)(nil)
	_ core.Inbox[*sql.Tx]      = (*SQLStore)(nil)
	_ core.Checker             = (*SQLStore)(nil)
	_ admin.Migrator           = (*SQLStore)(nil)
	_ admin.DriftChecker       = (*SQLStore)(nil)
)

// SQLStore is [Store] over a *sql.DB; see [NewSQLOutbox] and [NewSQLInbox].
type SQLStore struct {
	*Outbox
	*SQLInbox
}

// NewSQL is [New] over db, for services whose one pool is a *sql.DB with pgx's driver, as GORM and ent open it. Stage
// with [Outbox.SQL]; handlers receive a *sql.Tx.
func NewSQL(db *sql.DB, opts Options) (*SQLStore, error) {
	outbox, err := NewSQLOutbox(db, opts)
	if err != nil {
		return nil, err
	}
	inbox, err := NewSQLInbox(db, InboxOptions{Schema: opts.Schema})
	if err != nil {
		return nil, err
	}
	return &SQLStore{outbox, inbox}, nil
}

// Migrate is [Store.Migrate].
func (s *SQLStore) Migrate(ctx context.Context) error {
	return errors.Join(s.Outbox.Migrate(ctx), s.SQLInbox.Migrate(ctx))
}

// Check is [Store.Check].
func (s *SQLStore) Check(ctx context.Context) error { return checkBoth(ctx, s.Outbox, s.SQLInbox) }

// Drift is [Store.Drift].
func (s *SQLStore) Drift(ctx context.Context) ([]admin.Difference, error) {
	return driftOf(ctx, s.Outbox, s.SQLInbox)
}
