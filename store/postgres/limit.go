package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

var (
	_ core.Limiter = (*Inbox)(nil)
	_ core.Limiter = (*SQLInbox)(nil)
	_ core.Limiter = (*Store)(nil)
	_ core.Limiter = (*SQLStore)(nil)
)

// A change compares the version that it read. So no lock is held between two statements, and a process that freezes in
// between holds up no other. A version is never used again, also after the row was deleted.
const (
	readLimitSQL = `
SELECT coalesce(l.state, ''), coalesce(l.version, 0), clock_timestamp()
FROM (SELECT 1) one LEFT JOIN {limits} l ON l.name = $1`
	firstLimitSQL = `
INSERT INTO {limits} (name, state, version) VALUES ($1, $2, (extract(epoch FROM clock_timestamp()) * '1000000')::bigint)
ON CONFLICT DO NOTHING`
	writeLimitSQL = `
UPDATE {limits} SET state = $2, version = version + 1, changed_at = clock_timestamp() WHERE name = $1 AND version = $3`
)

const (
	// maxLimitTries bounds how often a change is tried that others come before.
	maxLimitTries = 20
	// limitTryGap is how long it waits at most before it tries again, times the number of tries.
	limitTryGap = 2 * time.Millisecond
)

// limitStatements are the texts for limits. They are rendered once.
type limitStatements struct{ read, first, write string }

func newLimitStatements(n schema.Names) limitStatements {
	return limitStatements{read: n.SQL(readLimitSQL), first: n.SQL(firstLimitSQL), write: n.SQL(writeLimitSQL)}
}

// limitRow is a limit as it was read; version 0 = there is none.
type limitRow struct {
	state   string
	version int64
	now     time.Time
}

func (r *limitRow) scan(row interface{ Scan(dest ...any) error }) error {
	return row.Scan(&r.state, &r.version, &r.now)
}

// limitWriter runs one statement that changes a limit and returns how many rows it changed.
type limitWriter func(text string, args ...any) (rows int64, err error)

// updateLimit changes a limit, again and again while others come before. It reads the state with its version and the
// database's time, lets change make another state of it, and writes that only if the version is still the same. A try
// that came too late is followed by another one after a random pause, which grows with each.
func updateLimit(
	ctx context.Context, s *limitStatements, name string, change func(state string, now time.Time) string,
	read func(row *limitRow) error, write limitWriter,
) error {
	const op = "limit"
	if err := core.CheckLimit(name, ""); err != nil {
		return err
	}
	for try := 1; ; try++ {
		var row limitRow
		var rows int64
		err := read(&row)
		if err == nil {
			state := change(row.state, row.now)
			if err := core.CheckLimit(name, state); err != nil {
				return err
			}
			switch {
			case state == row.state:
				return nil
			case row.version == 0:
				rows, err = write(s.first, name, state)
			default:
				rows, err = write(s.write, name, state, row.version)
			}
		}
		switch {
		case err != nil && !dberr.Again(err):
			return dberr.Failure(op, err)
		case rows > 0:
			return nil
		case try == maxLimitTries:
			return &waybill.Error{Op: "waybill/postgres: " + op, Class: waybill.ClassOutage, Err: errors.New("too many processes change it at once")}
		}
		timer := time.NewTimer(rand.N(limitTryGap * time.Duration(try)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return dberr.Failure(op, ctx.Err())
		}
	}
}

// UpdateLimit keeps the state of a limit in a table beside the inbox; see [core.Limiter]. It takes two short statements
// and holds no lock between them; one if nothing changes. The clock is the database's.
func (i *Inbox) UpdateLimit(ctx context.Context, name string, change func(state string, now time.Time) string) error {
	if err := i.ready(ctx); err != nil {
		return err
	}
	read := func(row *limitRow) error { return row.scan(i.pool.QueryRow(ctx, i.limits.read, name)) }
	return updateLimit(ctx, &i.limits, name, change, read, func(text string, args ...any) (int64, error) {
		tag, err := i.pool.Exec(ctx, text, args...)
		return tag.RowsAffected(), err
	})
}

// UpdateLimit is [Inbox.UpdateLimit] for database/sql.
func (i *SQLInbox) UpdateLimit(ctx context.Context, name string, change func(state string, now time.Time) string) error {
	read := func(row *limitRow) error { return row.scan(i.db.QueryRowContext(ctx, i.limits.read, name)) }
	return updateLimit(ctx, &i.limits, name, change, read, func(text string, args ...any) (int64, error) {
		result, err := i.db.ExecContext(ctx, text, args...)
		if err != nil {
			return 0, err
		}
		return result.RowsAffected()
	})
}

// UpdateLimit is [Inbox.UpdateLimit].
func (s *Store) UpdateLimit(ctx context.Context, name string, change func(state string, now time.Time) string) error {
	return s.inbox.UpdateLimit(ctx, name, change)
}
