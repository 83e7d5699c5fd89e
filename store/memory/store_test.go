package memory_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/memory"
)

func newStore(tb testing.TB) *memory.Store {
	tb.Helper()
	s, err := memory.New(memory.Options{Source: "/test"})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func stage(tb testing.TB, s *memory.Store, msgs ...waybill.Message) []waybill.Staged {
	tb.Helper()
	tx := s.Begin()
	defer tx.Rollback()
	staged, err := s.Stage(tb.Context(), tx, msgs...)
	if err != nil {
		tb.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		tb.Fatal(err)
	}
	return staged
}

// pending returns how many records are stored.
func pending(s *memory.Store) int { return len(s.Records()) }

func TestBusinessWriteAndMessageCommitTogether(t *testing.T) { // ST-01
	t.Parallel()
	s := newStore(t)
	for _, commit := range []bool{false, true} {
		tx := s.Begin()
		tx.Put("order", "1")
		if _, err := s.Stage(t.Context(), tx, waybill.RawMessage("orders.placed", "text/plain", []byte("1"))); err != nil {
			t.Fatal(err)
		}
		if v, _ := tx.Get("order"); v != "1" {
			t.Errorf("the transaction does not see its own write")
		}
		if _, ok := s.Get("order"); ok || pending(s) > 0 {
			t.Error("an uncommitted write is visible")
		}
		if !commit {
			tx.Rollback()
			continue
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	if v, _ := s.Get("order"); v != "1" || pending(s) != 1 {
		t.Error("a committed write is missing")
	}
}

func TestFailedStatementSpoilsTransaction(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	tx := s.Begin()
	tx.Put("k", "v")
	tx.Fail(errors.New("statement failed"))
	if err := tx.Commit(); err == nil {
		t.Error("commit after a failed statement succeeded")
	}
	if _, ok := s.Get("k"); ok {
		t.Error("a rolled back write is visible")
	}
	if err := tx.Commit(); err == nil {
		t.Error("a second commit succeeded")
	}
	if _, err := s.Stage(t.Context(), tx, waybill.RawMessage("a", "", nil)); err == nil {
		t.Error("stage in an ended transaction succeeded")
	}
	if _, err := s.Stage(t.Context(), nil, waybill.RawMessage("a", "", nil)); err == nil {
		t.Error("stage without a transaction succeeded")
	}
	if _, err := s.Stage(t.Context(), newStore(t).Begin(), waybill.RawMessage("a", "", nil)); err == nil {
		t.Error("stage in another store's transaction succeeded")
	}
}

func TestDeadlockIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		s := newStore(t)
		a, b := s.Begin(), s.Begin()
		put := func(tx *memory.Tx, id string) error {
			_, err := s.Stage(t.Context(), tx, waybill.RawMessage("t", "", nil, waybill.ID(id)))
			return err
		}
		if err := put(a, "1"); err != nil {
			t.Fatal(err)
		}
		if err := put(b, "2"); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- put(a, "2") }()
		synctest.Wait()
		if err := put(b, "1"); waybill.ClassOf(err) != waybill.ClassOutage {
			t.Errorf("got %v, want an outage", err)
		}
		b.Rollback()
		if err := <-done; err != nil {
			t.Error(err)
		}
		a.Rollback()
	})
}

func TestHighWater(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	stage(t, s, waybill.RawMessage("a", "", nil), waybill.RawMessage("b", "", nil))
	if stamp, err := s.HighWater(t.Context()); err != nil || stamp != s.Records()[1].Envelope.HLC {
		t.Errorf("the highest stamp is %v (%v), want that of the second message", stamp, err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	if _, err := memory.New(memory.Options{TTL: -1}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("a store without a source and with a negative TTL: %v", err)
	}
}
