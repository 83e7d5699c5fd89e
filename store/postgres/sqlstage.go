package postgres

import (
	"context"
	"database/sql"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/waybill-go/waybill"
)

// Staging has one set of statements. They take arrays, and drivers of database/sql differ in the arrays that they can
// send. So here each array is sent as its text, which Postgres reads from any driver.

// SQL returns the same outbox for transactions of database/sql, through any driver.
func (o *Outbox) SQL() waybill.Stager[*sql.Tx] { return &sqlStager{o.stager, o.ready} }

// NewSQLStager returns an outbox that only stages, for programs that have a database/sql connection and no pgx pool:
// GORM, sqlx, ent, bun and the like. Options.AutoMigrate is refused, since it has no connection of its own.
func NewSQLStager(opts Options) (waybill.Stager[*sql.Tx], error) {
	stamper, err := opts.stamper()
	if err != nil {
		return nil, err
	}
	if opts.AutoMigrate {
		return nil, waybill.Invalid("waybill/postgres: outbox options",
			"AutoMigrate: a stager has no connection of its own; use Migrations")
	}
	return &sqlStager{newStager(&opts, stamper, newNames(opts.Schema, opts.Table, "")), func(context.Context) error { return nil }}, nil
}

type sqlStager struct {
	*stager
	ready func(context.Context) error
}

// Stage is [Outbox.Stage] for database/sql.
func (s *sqlStager) Stage(ctx context.Context, tx *sql.Tx, msgs ...waybill.Message) ([]waybill.Staged, error) {
	if tx == nil {
		return nil, errNoTx("*sql.Tx")
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	query := sqlQuery(tx)
	return s.stage(ctx, msgs, query, query)
}

// sqlQuery runs a statement of the stager in a transaction of database/sql. It evens out the differences to pgx:
// arguments for the driver, arrays, and columns that are skipped.
func sqlQuery(tx *sql.Tx) queryFunc {
	return func(ctx context.Context, text string, args []any, each func(func(...any) error) error) error {
		if len(args) > 0 && args[0] == any(replan{}) {
			args = args[1:] // up to the driver
		}
		literals := make([]any, len(args))
		for i, a := range args {
			literals[i] = literal(a)
		}
		rows, err := tx.QueryContext(ctx, text, literals...)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			if err := each(func(dest ...any) error {
				for i := range dest {
					if dest[i] == nil { // pgx skips such a column; database/sql does not
						dest[i] = new(any)
					}
				}
				return rows.Scan(dest...)
			}); err != nil {
				return err
			}
		}
		return rows.Err()
	}
}

// literal returns an argument that every driver can send.
func literal(arg any) any {
	switch v := arg.(type) {
	case nil, string, int64, bool, []byte, time.Time:
		return v
	}
	return arrayLiteral(arg)
}

// arrayLiteral writes a slice as Postgres' text form of an array, which every driver can send.
func arrayLiteral(slice any) string {
	b := []byte{'{'}
	sep := func(i int) {
		if i > 0 {
			b = append(b, ',')
		}
	}
	stamp := func(t time.Time) {
		b = append(b, '"')
		b = t.UTC().AppendFormat(b, "2006-01-02T15:04:05.999999Z")
		b = append(b, '"')
	}
	switch s := slice.(type) {
	case []string:
		for i, v := range s {
			sep(i)
			b = appendQuoted(b, v)
		}
	case []int64:
		for i, v := range s {
			sep(i)
			b = strconv.AppendInt(b, v, 10)
		}
	case []bool:
		for i, v := range s {
			sep(i)
			b = strconv.AppendBool(b, v)
		}
	case []time.Time:
		for i, v := range s {
			sep(i)
			stamp(v)
		}
	case []*time.Time:
		for i, v := range s {
			sep(i)
			if v == nil {
				b = append(b, "NULL"...)
			} else {
				stamp(*v)
			}
		}
	case [][]byte:
		for i, v := range s {
			sep(i)
			b = append(b, `"\\x`...)
			b = hex.AppendEncode(b, v)
			b = append(b, '"')
		}
	}
	return string(append(b, '}'))
}

func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}
