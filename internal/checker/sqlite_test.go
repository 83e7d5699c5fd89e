package checker_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/checker"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/sqlite"
)

// lite is a file of SQLite, and a queue in memory.
type lite struct {
	path   string
	store  *sqlite.Store
	queues map[string]*checker.Queue
	bus    checker.Faults

	mu  sync.Mutex
	got []delivery
}

func (s *lite) open(ctx context.Context) (*sqlite.Store, error) {
	return sqlite.Open(ctx, s.path, sqlite.Options{Source: "/checker", AutoMigrate: true})
}

type liteTx struct {
	*sql.Tx
	s *sqlite.Store
}

func (x liteTx) Stage(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error) {
	return x.s.Stage(ctx, x.Tx, msgs...)
}

func (x liteTx) Exec(ctx context.Context, sql string) error {
	_, err := x.ExecContext(ctx, sql)
	return err
}

func (x liteTx) Commit(context.Context) error { return x.Tx.Commit() }

func (x liteTx) Rollback() { _ = x.Tx.Rollback() }

func (s *lite) Begin(ctx context.Context) (tx, error) {
	x, err := s.store.DB().BeginTx(ctx, nil)
	return liteTx{x, s.store}, err
}

// Relay opens the file anew, as another process would.
func (s *lite) Relay(w *realWorld, n int) (*runner, error) {
	store, err := s.open(w.t.Context())
	if err != nil {
		return nil, err
	}
	return w.goRelay(n, store, func(p *checker.Process, route string, i int) core.Publisher {
		return checker.NewPublisher(s.queues[route], p, &s.bus, w.seed, uint64(n<<4+i))
	}, func() { _ = store.Close(context.WithoutCancel(w.t.Context())) })
}

func (s *lite) Harm(*realWorld, *checker.Dice, bool) {}

func (s *lite) Rows(ctx context.Context, routes []string) (int, map[checker.Ref]checker.Final, error) {
	rows, err := s.store.DB().QueryContext(ctx, "SELECT route, id, state, coalesce(reason, ''), attempts, crashes FROM waybill_outbox")
	if err != nil {
		return 0, nil, err
	}
	defer rows.Close()
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

func (s *lite) Keeper() admin.BlockedKeys {
	k, _ := core.As[admin.BlockedKeys](s.store)
	return k
}

func (s *lite) Drain(w *realWorld) (map[checker.Ref]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx := w.t.Context()
	if _, err := s.store.DB().ExecContext(ctx, "CREATE TABLE effects (route text, id text)"); err != nil {
		return nil, err
	}
	for _, x := range s.got {
		for range 1 + w.dice.N(2) { // the ack was lost
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
	defer rows.Close()
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

// P1 P2 P3 P4 P5 OR-02 OR-03 OR-04 DB-24: relays that open one file of SQLite each for itself.
func TestSQLiteHistories(t *testing.T) {
	t.Parallel()
	n := number("WAYBILL_CHECKER_SQLITE", histories(4, 24))
	dir, err := os.MkdirTemp(os.Getenv(testenv.Dir), "waybill-checker-") //nolint:usetesting // in memory, if the servers are
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	runReal(t, n, 2, func(t *testing.T, seed uint64, i int) *realWorld {
		t.Helper()
		s := &lite{path: filepath.Join(dir, strconv.Itoa(i)+".db"), queues: map[string]*checker.Queue{}}
		var err error
		if s.store, err = s.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.store.Close(context.WithoutCancel(t.Context())) })
		w := newRealWorld(t, seed, "h"+strconv.Itoa(i), s, false)
		rate := w.faults.Before
		s.bus = checker.Faults{Before: rate, After: rate, Late: rate, Partial: rate, Delay: rate, MaxDelay: time.Second, Reject: w.refuse}
		traits := core.PublisherTraits{Confirmed: true, DetectsUnroutable: true, KeyOrder: core.KeyOrderSerial}
		for _, r := range w.names {
			s.queues[r] = checker.NewQueue(w.l, r, traits, func(e waybill.Envelope) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.got = append(s.got, delivery{r, e})
			})
		}
		return w
	})
}
