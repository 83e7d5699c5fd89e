package historytest

import (
	"context"
	"database/sql"
	"strconv"
	"sync"
	"testing"
	"time"

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

// sqlSide is a database of one history, and a queue in memory.
type sqlSide struct {
	store  SQLStore
	open   func(t *testing.T) (store SQLStore, end func(), err error)
	queues map[string]*checker.Queue
	bus    checker.Faults

	mu  sync.Mutex
	got []arrival
}

// arrival is what came to the queue of a route.
type arrival struct {
	route string
	env   waybill.Envelope
}

// RunSQL runs n histories, some side by side. database returns a function that opens the store of one history, which
// has a database of its own with tables: for its producers and, as other processes would, for each relay.
func RunSQL(t *testing.T, n, workers int, opts checker.Options, database func(t *testing.T, i int) func(t *testing.T) (store SQLStore, end func(), err error)) {
	t.Helper()
	Run(t, n, workers, func(t *testing.T, seed uint64, i int) *World {
		t.Helper()
		s := &sqlSide{open: database(t, i), queues: map[string]*checker.Queue{}}
		store, end, err := s.open(t)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(end)
		s.store = store
		w := New(t, seed, "h"+strconv.Itoa(i), s, opts)
		rate := w.Faults.Before
		s.bus = checker.Faults{Before: rate, After: rate, Late: rate, Partial: rate, Delay: rate, MaxDelay: time.Second, Reject: w.Refuse}
		traits := core.PublisherTraits{Confirmed: true, DetectsUnroutable: true, KeyOrder: core.KeyOrderSerial}
		for _, r := range w.Names {
			s.queues[r] = checker.NewQueue(w.Ledger, r, traits, func(e waybill.Envelope) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.got = append(s.got, arrival{r, e})
			})
		}
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
	return w.Relay(n, store, func(p *checker.Process, route string, i int) core.Publisher {
		return checker.NewPublisher(s.queues[route], p, &s.bus, w.Seed, uint64(n<<4+i))
	}, end)
}

func (s *sqlSide) Harm(*World, *checker.Dice, bool) {}

func (s *sqlSide) Rows(ctx context.Context, _ []string) (int, map[checker.Ref]checker.Final, error) {
	rows, err := s.store.DB().QueryContext(ctx, "SELECT route, id, state, coalesce(reason, ''), attempts, crashes FROM waybill_outbox")
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = rows.Close() }()
	live, final := 0, map[checker.Ref]checker.Final{}
	for rows.Next() {
		var ref checker.Ref
		var f checker.Final
		if err := rows.Scan(&ref.Route, &ref.ID, &f.State, &f.Reason, &f.Attempts, &f.Crashes); err != nil {
			return 0, nil, err
		}
		if !f.State.Terminal() {
			live++
		}
		final[ref] = f
	}
	return live, final, rows.Err()
}

func (s *sqlSide) Keeper() admin.BlockedKeys {
	k, _ := core.As[admin.BlockedKeys](s.store)
	return k
}

func (s *sqlSide) Drain(w *World) (map[checker.Ref]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx := w.T.Context()
	if _, err := s.store.DB().ExecContext(ctx, "CREATE TABLE effects (route varchar(100), id varchar(100))"); err != nil {
		return nil, err
	}
	for _, x := range s.got {
		for range 1 + w.Dice.N(2) { // the ack was lost
			if _, err := s.store.Do(ctx, core.InboxKey{Consumer: x.route, Source: x.env.Source, ID: x.env.ID}, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?, ?)", x.route, x.env.ID)
				return err
			}); err != nil {
				return nil, err
			}
		}
	}
	rows, err := s.store.DB().QueryContext(ctx, "SELECT route, id, count(*) FROM effects GROUP BY route, id")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	out := map[checker.Ref]int{}
	for rows.Next() {
		var ref checker.Ref
		var n int
		if err := rows.Scan(&ref.Route, &ref.ID, &n); err != nil {
			return nil, err
		}
		out[ref] = n
	}
	return out, rows.Err()
}
