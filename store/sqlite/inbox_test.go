package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/inboxtest"
)

// IN-01 IN-02 IN-03 IN-04 IN-07
func TestInboxOnce(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	if _, err := s.DB().ExecContext(t.Context(), "CREATE TABLE effects (id TEXT)"); err != nil {
		t.Fatal(err)
	}
	key := core.InboxKey{Consumer: "c", Source: "/s", ID: "1"}
	var runs atomic.Int32
	effect := func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES ('1')"); err != nil {
			return err
		}
		if runs.Add(1) == 1 {
			return errors.New("first run fails")
		}
		return nil
	}
	var wg sync.WaitGroup
	var processed, duplicate, failed atomic.Int32
	for range 8 {
		wg.Go(func() {
			switch st, err := s.Do(t.Context(), key, effect); {
			case err != nil:
				failed.Add(1)
			case st == core.InboxNew:
				processed.Add(1)
			case st == core.InboxDuplicate:
				duplicate.Add(1)
			}
		})
	}
	wg.Wait()
	if processed.Load() != 1 || failed.Load() != 1 || duplicate.Load() != 6 {
		t.Fatalf("processed %d failed %d duplicates %d", processed.Load(), failed.Load(), duplicate.Load())
	}
	var n int
	if err := s.DB().QueryRowContext(t.Context(), "SELECT count(*) FROM effects").Scan(&n); err != nil || n != 1 {
		t.Fatalf("%d effects, %v", n, err)
	}
}

type inboxHarness struct{ store *Store }

func newInboxHarness(tb testing.TB) inboxHarness {
	tb.Helper()
	s := open(tb, Options{})
	if _, err := s.DB().ExecContext(tb.Context(), "CREATE TABLE effects (name TEXT NOT NULL)"); err != nil {
		tb.Fatal(err)
	}
	return inboxHarness{s}
}

func (h inboxHarness) Inbox() core.Inbox[*sql.Tx] { return h.store }

func (h inboxHarness) Effect(ctx context.Context, tx *sql.Tx, name string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?)", name)
	return err
}

func (h inboxHarness) Effects(ctx context.Context, name string) (n int, err error) {
	err = h.store.DB().QueryRowContext(ctx, "SELECT count(*) FROM effects WHERE name = ?", name).Scan(&n)
	return n, err
}

// Break runs a statement that makes SQLite roll the transaction back. After others, such as a plain violated
// constraint, a transaction goes on and commits the rest, which is SQLite's own way.
func (h inboxHarness) Break(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, "INSERT OR ROLLBACK INTO effects VALUES (NULL)")
	return err
}

func (h inboxHarness) Begin(ctx context.Context) (*sql.Tx, func(context.Context, bool) error, error) {
	tx, err := h.store.DB().BeginTx(ctx, nil)
	return tx, func(_ context.Context, commit bool) error {
		if commit {
			return tx.Commit()
		}
		return tx.Rollback()
	}, err
}

func (h inboxHarness) Disposable() bool { return true }

// IN-01 IN-02 IN-03 IN-04 IN-05 IN-07 IN-08 IN-09
func TestInbox(t *testing.T) {
	t.Parallel()
	h := newInboxHarness(t)
	inboxtest.Run(t, func(*testing.T) inboxtest.Harness[*sql.Tx] { return h })
}

// IN-09: a purge of all consumers keeps to its limit over all of them.
func TestPurgeOfAllKeepsToItsLimit(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	for _, consumer := range []string{"a", "b", "c"} {
		for _, id := range []string{"1", "2", "3"} {
			key := core.InboxKey{Consumer: consumer, Source: "/s", ID: id}
			if _, err := s.Do(t.Context(), key, func(context.Context, *sql.Tx) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	run(t, s.DB(), "UPDATE waybill_inbox SET handled_at = 0")
	for _, want := range []int{4, 4, 1, 0} {
		if n, err := s.PurgeInbox(t.Context(), "", time.Hour, 4); n != want || err != nil {
			t.Errorf("purged %d, want %d: %v", n, want, err)
		}
	}
}
