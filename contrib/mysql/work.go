package waybillmysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// querier is a *sql.DB, a *sql.Conn, a *sql.Tx or a *transaction.
type querier interface {
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error)
}

// work is a transaction, or some statements outside of one.
type work struct {
	s    *Store
	q    querier
	self core.Session
	now  int64
	own  map[string]core.Slots
	// saved: a Heartbeat has stored partitions
	saved bool
	safe  bool // the connection is one of Open's own: it has sql_safe_updates, and takes several statements at once
	alone bool // each statement goes alone, so that it is known which one failed
}

// The statements that begin a transaction.
const (
	beginRead  = `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION READ ONLY; `
	beginWrite = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION; `
)

// transaction is a transaction of the store. It begins with its first statement, in the same round trip.
type transaction struct {
	conn    *sql.Conn
	pending string // statements that go with the next one, each with a semicolon behind it
	args    []any  // of those
	ended   bool   // committed with its last statement
}

// with returns a statement behind the pending ones.
func (t *transaction) with(text string, args []any) (string, []any) {
	text, args = t.pending+text, slices.Concat(t.args, args)
	t.pending, t.args = "", nil
	return text, args
}

func (t *transaction) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	text, args = t.with(text, args)
	return t.conn.QueryContext(ctx, text, args...)
}

func (t *transaction) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	text, args = t.with(text, args)
	return t.conn.ExecContext(ctx, text, args...)
}

// write runs fn in a transaction of the store, and again if another transaction made it fail.
func (s *Store) write(ctx context.Context, op string, fn func(w *work) error) error {
	for try := 0; ; try++ {
		err := s.transact(ctx, beginWrite, fn)
		if err = classify(op, err); try == 3 || !errors.Is(err, waybill.ErrRetryTx) || ctx.Err() != nil {
			return err
		}
	}
}

// read runs fn in a transaction that reads one snapshot.
func (s *Store) read(ctx context.Context, op string, fn func(w *work) error) error {
	return classify(op, s.transact(ctx, beginRead, fn))
}

// transact runs fn again if the driver finds that the server had ended an idle connection.
func (s *Store) transact(ctx context.Context, begin string, fn func(w *work) error) (err error) {
	for range 3 {
		if err = s.transactOnce(ctx, begin, fn); !errors.Is(err, driver.ErrBadConn) {
			break
		}
	}
	return err
}

func (s *Store) transactOnce(ctx context.Context, begin string, fn func(w *work) error) error {
	conn, err := s.own.Conn(ctx)
	if err != nil {
		return err
	}
	t := &transaction{conn: conn}
	if s.opened {
		t.pending = begin
	} else {
		for text := range strings.SplitSeq(strings.TrimSuffix(begin, "; "), "; ") {
			if _, err := conn.ExecContext(ctx, text); err != nil {
				return discard(conn, err)
			}
		}
	}
	clean := false
	defer func() {
		if clean {
			_ = conn.Close()
		} else {
			_ = discard(conn, nil) // and the server rolls back
		}
	}()
	if err = fn(&work{s: s, q: t, safe: s.opened}); err == nil {
		if clean = t.ended; clean {
			return nil
		}
		if _, err = t.ExecContext(ctx, `COMMIT`); err == nil || number(err) == 0 {
			clean = err == nil
			return err
		}
	}
	_, e := conn.ExecContext(ctx, `ROLLBACK`)
	clean = e == nil
	return err
}

// fenced is write for a member: its session cannot be removed meanwhile.
func (s *Store) fenced(ctx context.Context, op string, self core.Session, fn func(w *work) error) error {
	return s.fencedWith(ctx, op, []core.Session{self}, func(*work) []query { return nil }, fn)
}

// fencedWith is fenced for members of this process. The statements of first go in the round trip of the fences; without
// a fence they are rolled back. Statements that need a session take the first one.
func (s *Store) fencedWith(ctx context.Context, op string, selves []core.Session, first func(w *work) []query, fn func(w *work) error) error {
	return s.write(ctx, op, func(w *work) error {
		w.self = selves[0]
		known := map[core.Session]bool{}
		fences := make([]query, 0, len(selves))
		for _, self := range selves { // one by one: a statement for several may lock others
			fences = append(fences, query{`SELECT ` + nowSQL + ` FROM waybill_outbox_fence WHERE session = ? LOCK IN SHARE MODE`, []any{self}, func(rows *sql.Rows) error {
				known[self] = true
				return rows.Scan(&w.now)
			}})
		}
		if err := w.ask(ctx, append(fences, first(w)...)...); err != nil {
			return err
		}
		for _, self := range selves {
			if !known[self] {
				return core.NewFencedError("waybill/mysql: "+op, self)
			}
		}
		return fn(w)
	})
}

// query is a statement, and a function for each of its rows; nil if it has none.
type query struct {
	text string
	args []any
	scan func(rows *sql.Rows) error
}

// ask runs statements, in one round trip if the connection can do that.
func (w *work) ask(ctx context.Context, queries ...query) error {
	if !w.safe && len(queries) > 1 {
		for i := range queries {
			if err := w.ask(ctx, queries[i]); err != nil {
				return err
			}
		}
		return nil
	}
	var texts []string
	var args []any
	for _, q := range queries {
		texts, args = append(texts, q.text), append(args, q.args...)
	}
	rows, err := w.q.QueryContext(ctx, strings.Join(texts, "; "), args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // read to the end, or failed already
	first := true
	for i, q := range queries {
		if q.scan == nil {
			continue
		}
		if !first && !rows.NextResultSet() {
			return errors.Join(rows.Err(), fmt.Errorf("the server answered %d of %d statements", i, len(queries)))
		}
		first = false
		for rows.Next() {
			if err := q.scan(rows); err != nil {
				return err
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
	}
	rows.NextResultSet() // there is none, but what came behind can have failed
	return rows.Err()
}

// askLast is ask for the last statements of a transaction. It commits in the same round trip if the connection can.
func (w *work) askLast(ctx context.Context, queries ...query) error {
	t, ok := w.q.(*transaction)
	if !ok || !w.safe {
		return w.ask(ctx, queries...)
	}
	queries = slices.Clone(queries)
	queries[len(queries)-1].text += `; COMMIT`
	err := w.ask(ctx, queries...)
	t.ended = err == nil
	return err
}

// sure is an expression that is an error unless the condition is true: the statement then fails with [notSure], and
// those behind it do not run. So a transaction can end in the round trip that it begins with.
func sure(condition string) string { return `18446744073709551615 + IF(` + condition + `, 0, 1)` }

// collect returns what scan makes of each row.
func collect[T any](ctx context.Context, q querier, scan func(rows *sql.Rows) (T, error), text string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // read to the end, or failed already
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

// value scans a row of one column.
func value[T any](rows *sql.Rows) (v T, err error) { return v, rows.Scan(&v) }

// one scans the first row, and reports whether there is one.
func (w *work) one(ctx context.Context, dest []any, text string, args ...any) (bool, error) {
	got, err := collect(ctx, w.q, func(rows *sql.Rows) (bool, error) { return true, rows.Scan(dest...) }, text, args...)
	return len(got) > 0, err
}

// exec returns the number of rows that were changed.
func (w *work) exec(ctx context.Context, text string, args ...any) (int64, error) {
	res, err := w.q.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// pendingBytes bounds the statements that wait for the next one, far below any max_allowed_packet.
const pendingBytes = 1 << 16

// put is exec for a statement whose result is not asked for: it goes in the round trip of the next statement, or of the
// commit, if the connection can do that. Its error is that of the one that it went with.
func (w *work) put(ctx context.Context, text string, args ...any) error {
	t, ok := w.q.(*transaction)
	if !ok || !w.safe || w.alone {
		_, err := w.exec(ctx, text, args...)
		return err
	}
	t.pending, t.args = t.pending+text+"; ", append(t.args, args...)
	size := len(t.pending)
	for _, arg := range t.args {
		switch arg := arg.(type) {
		case string:
			size += len(arg)
		case []byte:
			size += len(arg)
		}
	}
	if size < pendingBytes {
		return nil
	}
	_, err := w.exec(ctx, `DO 0`)
	return err
}
