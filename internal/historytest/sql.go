package historytest

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/checker"
)

// SQLStore is a store over database/sql.
type SQLStore interface {
	core.OutboxStore
	DB() *sql.DB
	Stage(ctx context.Context, tx *sql.Tx, msgs ...waybill.Message) ([]waybill.Staged, error)
	Do(ctx context.Context, key core.InboxKey, fn func(ctx context.Context, tx *sql.Tx) error) (core.InboxStatus, error)
}

// sqlSide is a database of one history, and queues in memory.
type sqlSide struct {
	store  SQLStore
	open   func(t *testing.T) (store SQLStore, end func(), err error)
	queues *Queues
}

// Rows are those of a driver. Their Err is for the caller.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
}

// Finals reads records: route, id, state, reason, attempts and crashes of each.
func Finals(rows Rows) (live int, final map[checker.Ref]checker.Final, err error) {
	final = map[checker.Ref]checker.Final{}
	for rows.Next() {
		var ref checker.Ref
		var f checker.Final
		var state int16
		if err := rows.Scan(&ref.Route, &ref.ID, &state, &f.Reason, &f.Attempts, &f.Crashes); err != nil {
			return 0, nil, err
		}
		if f.State = core.State(state); !f.State.Terminal() {
			live++
		}
		final[ref] = f
	}
	return live, final, nil
}

// Effects reads how many effects each message had: route, id and number.
func Effects(rows Rows) (map[checker.Ref]int, error) {
	out := map[checker.Ref]int{}
	for rows.Next() {
		var ref checker.Ref
		var n int
		if err := rows.Scan(&ref.Route, &ref.ID, &n); err != nil {
			return nil, err
		}
		out[ref] = n
	}
	return out, nil
}

// RunSQL runs n histories, some side by side. database returns a function that opens the store of one history, which
// has a database of its own with tables: for its producers and, as other processes would, for each relay.
func RunSQL(t *testing.T, n, workers int, opts checker.Options, database func(t *testing.T, i int) func(t *testing.T) (store SQLStore, end func(), err error)) {
	t.Helper()
	Run(t, n, workers, func(t *testing.T, seed uint64, i int) *World {
		t.Helper()
		s := &sqlSide{open: database(t, i)}
		store, end, err := s.open(t)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(end)
		s.store = store
		w := New(t, seed, "h"+strconv.Itoa(i), s, opts)
		s.queues = w.NewQueues()
		return w
	})
}

type sqlTx struct {
	*sql.Tx
	s *sqlSide
}

func (x sqlTx) Stage(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error) {
	return x.s.store.Stage(ctx, x.Tx, msgs...)
}

func (x sqlTx) Exec(ctx context.Context, text string) error {
	_, err := x.ExecContext(ctx, text)
	return err
}

func (x sqlTx) Commit(context.Context) error { return x.Tx.Commit() }

func (x sqlTx) Rollback() { _ = x.Tx.Rollback() }

func (s *sqlSide) Begin(ctx context.Context) (Tx, error) {
	x, err := s.store.DB().BeginTx(ctx, nil)
	return sqlTx{x, s}, err
}

func (s *sqlSide) Relay(w *World, n int) (*Runner, error) {
	store, end, err := s.open(w.T)
	if err != nil {
		return nil, err
	}
	return s.queues.Relay(n, store, end)
}

func (s *sqlSide) Harm(*World, *checker.Dice, bool) {}

func (s *sqlSide) Rows(ctx context.Context, _ []string) (int, map[checker.Ref]checker.Final, error) {
	rows, err := s.store.DB().QueryContext(ctx, "SELECT route, id, state, coalesce(reason, ''), attempts, crashes FROM waybill_outbox")
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = rows.Close() }()
	live, final, err := Finals(rows)
	return live, final, errors.Join(err, rows.Err())
}

func (s *sqlSide) Keeper() admin.BlockedKeys {
	k, _ := core.As[admin.BlockedKeys](s.store)
	return k
}

func (s *sqlSide) Drain(w *World) (map[checker.Ref]int, error) {
	ctx := w.T.Context()
	if _, err := s.store.DB().ExecContext(ctx, "CREATE TABLE effects (route varchar(100), id varchar(100))"); err != nil {
		return nil, err
	}
	if err := s.queues.Handle(func(key core.InboxKey) error {
		_, err := s.store.Do(ctx, key, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?, ?)", key.Consumer, key.ID)
			return err
		})
		return err
	}); err != nil {
		return nil, err
	}
	rows, err := s.store.DB().QueryContext(ctx, "SELECT route, id, count(*) FROM effects GROUP BY route, id")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	out, err := Effects(rows)
	return out, errors.Join(err, rows.Err())
}
