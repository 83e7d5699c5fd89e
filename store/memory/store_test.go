package memory_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/core"
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

func stage(tb testing.TB, s *memory.Store, msgs ...core.Message) []core.Staged {
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

func claim(tb testing.TB, s *memory.Store, limit int) core.Claim {
	tb.Helper()
	c, err := s.Claim(tb.Context(), core.ClaimRequest{
		Owner: "test", Routes: []core.RouteOrder{{Route: core.DefaultRoute}}, MaxRecords: limit, Lease: time.Minute,
	})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func TestBusinessWriteAndMessageCommitTogether(t *testing.T) { // ST-01
	t.Parallel()
	s := newStore(t)
	for _, commit := range []bool{false, true} {
		tx := s.Begin()
		tx.Put("order", "1")
		if _, err := s.Stage(t.Context(), tx, core.RawMessage("orders.placed", "text/plain", []byte("1"))); err != nil {
			t.Fatal(err)
		}
		if v, _ := tx.Get("order"); v != "1" {
			t.Errorf("the transaction does not see its own write")
		}
		if _, ok := s.Get("order"); ok || len(claim(t, s, 10).Records) > 0 {
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
	if v, _ := s.Get("order"); v != "1" || len(claim(t, s, 10).Records) != 1 {
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
	if _, err := s.Stage(t.Context(), tx, core.RawMessage("a", "", nil)); err == nil {
		t.Error("stage in an ended transaction succeeded")
	}
	if _, err := s.Stage(t.Context(), nil, core.RawMessage("a", "", nil)); err == nil {
		t.Error("stage without a transaction succeeded")
	}
	if _, err := s.Stage(t.Context(), newStore(t).Begin(), core.RawMessage("a", "", nil)); err == nil {
		t.Error("stage in another store's transaction succeeded")
	}
}

func TestWaitSleepsUntilScheduledMessage(t *testing.T) { // DB-10
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		start := time.Now()
		claim(t, s, 1)
		go func() {
			time.Sleep(time.Second)
			stage(t, s, core.RawMessage("a", "", nil, core.Delay(time.Hour)))
		}()
		cause, err := s.Wait(t.Context(), []string{core.DefaultRoute}, 24*time.Hour)
		if d := time.Since(start); err != nil || cause != core.WakeTimer || d != time.Hour+time.Second {
			t.Errorf("woke by %q (%v) after %s, want by timer after 1h1s", cause, err, d)
		}
		if n := len(claim(t, s, 1).Records); n != 1 {
			t.Errorf("claimed %d records, want 1", n)
		}
	})
}

func TestDeadlockIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		a, b := s.Begin(), s.Begin()
		put := func(tx *memory.Tx, id string) error {
			_, err := s.Stage(t.Context(), tx, core.RawMessage("t", "", nil, core.ID(id)))
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
		if err := put(b, "1"); core.ClassOf(err) != core.ClassOutage {
			t.Errorf("got %v, want an outage", err)
		}
		b.Rollback()
		if err := <-done; err != nil {
			t.Error(err)
		}
		a.Rollback()
	})
}

func TestLargeBacklogWithBlockedKey(t *testing.T) { // DB-17
	t.Parallel()
	s := newStore(t)
	for range 10 {
		var msgs []core.Message
		for range 10_000 {
			msgs = append(msgs, core.RawMessage("t", "", nil, core.Key("blocked")))
		}
		stage(t, s, msgs...)
	}
	claim(t, s, 1)
	stage(t, s, core.RawMessage("t", "", nil, core.Key("free")))
	start := time.Now()
	for range 1000 {
		claim(t, s, 100)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("1000 claims beside a blocked key with 100,000 records took %s", d)
	}
}

func BenchmarkDrain100k(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		s := newStore(b)
		for i := range 10 {
			msgs := make([]core.Message, 10_000)
			for j := range msgs {
				msgs[j] = core.RawMessage("t", "", nil, core.Key(strconv.Itoa((i*10_000+j)%5000)))
			}
			stage(b, s, msgs...)
		}
		b.StartTimer()
		for n := 0; n < 100_000; {
			c := claim(b, s, 500)
			if len(c.Records) == 0 {
				b.Fatal("claimed nothing")
			}
			out := make([]core.Outcome, len(c.Records))
			for i := range c.Records {
				out[i] = core.Published(&c.Records[i])
			}
			if err := s.Settle(context.WithoutCancel(b.Context()), out).FirstErr(); err != nil {
				b.Fatal(err)
			}
			n += len(c.Records)
		}
	}
}
