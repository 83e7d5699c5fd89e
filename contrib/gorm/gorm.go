package waybillgorm

import (
	"context"
	"database/sql"
	"fmt"

	"gorm.io/gorm"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Tx returns the transaction of tx. It is an error that matches [waybill.ErrInvalid] if tx is in none.
func Tx(tx *gorm.DB) (*sql.Tx, error) {
	if tx == nil || tx.Statement == nil {
		return nil, waybill.Invalid("waybill/gorm", "tx: is nil; pass the *gorm.DB of db.Transaction")
	}
	pool := tx.Statement.ConnPool
	if prepared, ok := pool.(*gorm.PreparedStmtTX); ok {
		pool = prepared.Tx
	}
	if t, ok := pool.(*sql.Tx); ok {
		return t, nil
	}
	return nil, waybill.Invalid("waybill/gorm", fmt.Sprintf("tx: %T is no transaction; stage inside db.Transaction", pool))
}

// Stager stages in the transaction of a *gorm.DB.
type Stager struct{ inner waybill.Stager[*sql.Tx] }

var _ waybill.Stager[*gorm.DB] = (*Stager)(nil)

// NewStager returns a stager over one of database/sql, such as postgres.Outbox.SQL or postgres.NewSQLStager.
func NewStager(inner waybill.Stager[*sql.Tx]) *Stager { return &Stager{inner} }

// Stage is [waybill.Stager.Stage]. A tx that is in no transaction is refused, and nothing is staged.
func (s *Stager) Stage(ctx context.Context, tx *gorm.DB, msgs ...waybill.Message) ([]waybill.Staged, error) {
	t, err := Tx(tx)
	if err != nil {
		return nil, err
	}
	return s.inner.Stage(ctx, t, msgs...)
}

// NewUnitOfWork returns a unit of work whose transactions are those of db: the function of Do receives their *gorm.DB.
func NewUnitOfWork(db *gorm.DB, stager waybill.Stager[*gorm.DB]) (*waybill.UnitOfWork[*gorm.DB], error) {
	if db == nil {
		return nil, waybill.Invalid("waybill/gorm: unit of work", "db: is nil; pass an open *gorm.DB")
	}
	return waybill.NewUnitOfWork(stager, func(ctx context.Context, fn func(ctx context.Context, tx *gorm.DB) error) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return fn(ctx, tx) })
	})
}

// NewInbox returns an inbox whose handlers receive a *gorm.DB with the settings of db, in a transaction of inner: one
// of database/sql, such as postgres.NewSQLInbox over db.DB(). It handles batches if inner does.
func NewInbox(db *gorm.DB, inner core.Inbox[*sql.Tx]) (core.Inbox[*gorm.DB], error) {
	var p []string
	if db == nil {
		p = append(p, "db: is nil; pass an open *gorm.DB")
	}
	if inner == nil {
		p = append(p, "inner: is nil; pass an inbox of database/sql, such as postgres.NewSQLInbox")
	}
	if err := waybill.Invalid("waybill/gorm: inbox", p...); err != nil {
		return nil, err
	}
	i := &inbox{db, inner}
	if batches, ok := core.As[core.BatchInbox[*sql.Tx]](inner); ok {
		return &batchInbox{i, batches}, nil
	}
	return i, nil
}

type inbox struct {
	db    *gorm.DB
	inner core.Inbox[*sql.Tx]
}

// Unwrap gives access to the other capabilities of the inbox: its check, its purging.
func (i *inbox) Unwrap() any { return i.inner }

func (i *inbox) Do(ctx context.Context, key core.InboxKey, fn func(ctx context.Context, tx *gorm.DB) error) (core.InboxStatus, error) {
	return i.inner.Do(ctx, key, func(ctx context.Context, tx *sql.Tx) error { return fn(ctx, i.in(ctx, tx)) })
}

// in returns a *gorm.DB of its own in tx. Session copies the statement only since it is given a context; without that,
// the statement would be the application's.
func (i *inbox) in(ctx context.Context, tx *sql.Tx) *gorm.DB {
	db := i.db.Session(&gorm.Session{NewDB: true, Context: ctx})
	db.Statement.ConnPool = tx
	return db
}

type batchInbox struct {
	*inbox
	batches core.BatchInbox[*sql.Tx]
}

func (b *batchInbox) DoBatch(
	ctx context.Context, keys []core.InboxKey, fn func(ctx context.Context, tx *gorm.DB, fresh []int) error,
) ([]core.InboxStatus, error) {
	return b.batches.DoBatch(ctx, keys, func(ctx context.Context, tx *sql.Tx, fresh []int) error { return fn(ctx, b.in(ctx, tx), fresh) })
}
