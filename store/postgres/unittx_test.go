package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/store/postgres"
)

// ST-03 DB-02: the BEGIN goes with the first statement, if that is one with arguments, or else with the COMMIT;
// otherwise on its own. A transaction that does nothing sends nothing.
func TestUnitOfWorkBegins(t *testing.T) {
	t.Parallel()
	statement := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO shops VALUES (1)")
		return err
	}
	row := func(want error, sql string, args ...any) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			var n int
			if err := tx.QueryRow(ctx, sql, args...).Scan(&n); !errors.Is(err, want) || want == nil && n != 8 {
				return errors.New("the row is wrong")
			}
			return nil
		}
	}
	rows := func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT $1::int", 8)
		if err != nil {
			return err
		}
		n, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
		if n != 8 {
			err = errors.Join(err, errors.New("the row is wrong"))
		}
		return err
	}
	cases := map[string]struct {
		fn   func(context.Context, pgx.Tx) error
		msgs []waybill.Message
		want int64 // round trips
	}{
		"nothing":                {nil, nil, 0},
		"only a message":         {nil, []waybill.Message{message()}, 1},
		"a statement":            {statement, nil, 3}, // without arguments it may be several
		"a row":                  {row(nil, "SELECT $1::int + 1", 7), []waybill.Message{message()}, 2},
		"no row":                 {row(pgx.ErrNoRows, "SELECT $1::int WHERE false", 7), nil, 2},
		"a row without argument": {row(nil, "SELECT 8"), nil, 3},
		"rows":                   {rows, nil, 3},
	}
	for _, mode := range queryExecModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			pool, sent := newSinglePool(t, "default_query_exec_mode="+mode)
			o := outboxOn(t, pool, postgres.Options{})
			exec(t, pool, "CREATE TABLE shops (id int)")
			unit := o.UnitOfWork()
			for name, tc := range cases {
				var trips int64
				for range 3 { // the first two prepare the statements
					before := sent.Load()
					err := unit.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
						if tc.fn != nil {
							if err := tc.fn(ctx, tx); err != nil {
								return err
							}
						}
						return unit.Stage(ctx, tc.msgs...)
					})
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
					trips = sent.Load() - before
				}
				if trips != tc.want {
					t.Errorf("%s: %d round trips, want %d", name, trips, tc.want)
				}
			}
		})
	}
}

// ST-03: a first statement that fails says so as any other does, and its transaction can only be rolled back.
func TestUnitOfWorkFirstStatementFails(t *testing.T) {
	t.Parallel()
	for _, mode := range queryExecModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			pool, _ := newSinglePool(t, "default_query_exec_mode="+mode)
			o := outboxOn(t, pool, postgres.Options{})
			exec(t, pool, "CREATE TABLE shops (id int PRIMARY KEY)")
			unit := o.UnitOfWork()
			for name, tc := range map[string]struct{ sql, state string }{
				"no such table":    {"INSERT INTO nowhere VALUES ($1)", "42P01"},
				"not a statement":  {"INSRT INTO shops VALUES ($1)", "42601"},
				"division by zero": {"INSERT INTO shops VALUES ($1::int / 0)", "22012"},
			} {
				for _, row := range []bool{false, true} {
					err := unit.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
						var err error
						if row {
							err = tx.QueryRow(ctx, tc.sql, 1).Scan()
						} else {
							_, err = tx.Exec(ctx, tc.sql, 1)
						}
						if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != tc.state || strings.Contains(err.Error(), "batch") {
							t.Errorf("%s, row %v: got %v, want %s", name, row, err, tc.state)
						}
						return unit.Stage(ctx, message())
					})
					if !errors.Is(err, pgx.ErrTxCommitRollback) {
						t.Errorf("%s, row %v: swallowed: %v", name, row, err)
					}
				}
			}
			if n := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox"); n != 0 {
				t.Errorf("%d messages", n)
			}
		})
	}
}

// ST-03: a first statement whose context ends on the way says so, and costs the transaction.
func TestUnitOfWorkFirstStatementTimesOut(t *testing.T) {
	t.Parallel()
	pool, _ := newSinglePool(t, "")
	o := outboxOn(t, pool, postgres.Options{})
	unit := o.UnitOfWork()
	for name, first := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"Exec": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT pg_sleep($1)", 60)
			return err
		},
		"QueryRow": func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, "SELECT pg_sleep($1)", 60).Scan(nil)
		},
	} {
		err := unit.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			if err := first(short, tx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := tx.Exec(ctx, "SELECT $1::int", 1); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s: the next statement: %v", name, err)
			}
			return unit.Stage(ctx, message())
		})
		if err == nil {
			t.Errorf("%s: swallowed", name)
		}
	}
	if n := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox"); n != 0 {
		t.Errorf("%d messages", n)
	}
}

// ST-03: a connection that died in the pool is an outage at the first use, and everything after it in the transaction
// fails.
func TestUnitOfWorkDeadConnection(t *testing.T) {
	t.Parallel()
	pool, _ := newSinglePool(t, "")
	o := outboxOn(t, pool, postgres.Options{})
	exec(t, pool, "CREATE TABLE shops (id int)")
	unit := o.UnitOfWork()
	insert := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO shops VALUES ($1)", 1)
		return err
	}
	for name, fn := range map[string]func(context.Context, pgx.Tx) error{
		"a statement":         insert,
		"its error swallowed": func(ctx context.Context, tx pgx.Tx) error { _ = insert(ctx, tx); return nil },
		"only a message":      func(context.Context, pgx.Tx) error { return nil },
		"a row":               func(ctx context.Context, tx pgx.Tx) error { return tx.QueryRow(ctx, "SELECT $1::int", 1).Scan(nil) },
		"a savepoint":         func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Begin(ctx); return err },
		"its large objects": func(ctx context.Context, tx pgx.Tx) error {
			lo := tx.LargeObjects()
			_, err := lo.Create(ctx, 0)
			return err
		},
		"the connection itself": func(_ context.Context, tx pgx.Tx) error { tx.Conn(); return nil },
	} {
		exec(t, pool, "SELECT 1")
		// the pool does not notice
		err := pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error { return c.Conn().PgConn().Conn().Close() })
		if err != nil {
			t.Fatal(err)
		}
		err = unit.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(fn(ctx, tx), unit.Stage(ctx, message()))
		})
		if err == nil || waybill.ClassOf(err) != waybill.ClassOutage {
			t.Errorf("%s: class %v: %v", name, waybill.ClassOf(err), err)
		}
	}
	if n := queryInt(t, pool, "SELECT (SELECT count(*) FROM shops) + (SELECT count(*) FROM waybill.waybill_outbox)"); n != 0 {
		t.Errorf("%d rows", n)
	}
}

// ST-03: the BEGIN does not depend on the context of a statement, nor on its goroutine.
func TestUnitOfWorkBeginsForAll(t *testing.T) {
	t.Parallel()
	pool, _ := newSinglePool(t, "")
	o := outboxOn(t, pool, postgres.Options{})
	exec(t, pool, "CREATE TABLE shops (id int)")
	if err := o.Seed(t.Context()); err != nil { // otherwise the first Stage meets the goroutine's statement
		t.Fatal(err)
	}
	unit := o.UnitOfWork()
	insert := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO shops VALUES ($1)", 1)
		return err
	}
	err := unit.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		over, cancel := context.WithCancel(ctx)
		cancel()
		if err := insert(over, tx); !errors.Is(err, context.Canceled) {
			t.Errorf("a statement whose context had ended: %v", err)
		}
		return insert(ctx, tx)
	})
	if err != nil {
		t.Errorf("after a statement whose context had ended: %v", err)
	}
	stray := make(chan error, 1)
	err = unit.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		go func() { stray <- insert(ctx, tx) }()
		return unit.Stage(ctx, message())
	})
	if err != nil {
		t.Errorf("with a goroutine's first statement: %v", err)
	}
	want := int64(1)
	if <-stray == nil {
		want = 2
	}
	if n := queryInt(t, pool, "SELECT count(*) FROM shops"); n != want {
		t.Errorf("%d shops, want %d", n, want)
	}
}
