package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
)

// ST-08 ST-09 ST-10 DB-20: the statements are served by indexes.
func TestWithdrawPlans(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Prefix: "other_"})
	for _, text := range []string{
		deleteText + byIDText + unleasedText, deleteText + byKeyText + unleasedText, withdrawText + byKeyText + notStaged + unleasedText,
		withdrawText + byIDText + unleasedText, giveUpKeyText, holderText,
	} {
		rows, err := s.DB().QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+s.withPrefix(text), "1", "1", "1", "1", "1", "1")
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for rows.Next() {
			var a, b, c int
			var detail string
			if err := rows.Scan(&a, &b, &c, &detail); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(detail, "SCAN ") && !strings.HasPrefix(detail, "SCAN CONSTANT") {
				t.Errorf("%s: %s", text, detail)
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil { //nolint:sqlclosecheck // in a loop, and read to the end
			t.Fatal(err)
		}
	}
}

// ST-09 ST-10 DB-09: with a retention, what was withdrawn stays with its reason, and is neither live nor in the way.
func TestWithdrawnAreKeptOnRequest(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Retention: core.Retention{Withdrawn: time.Hour}})
	message := func(opts ...core.MessageOption) core.Message {
		return core.RawMessage("t.x", "text/plain", []byte("body"), opts...)
	}
	in := func(fn func(ctx context.Context, tx *sql.Tx) error) {
		t.Helper()
		tx, err := s.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		if err := fn(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	in(func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.Stage(ctx, tx, message(core.ID("a"), core.DedupeKey("k"), core.Key("o")), message(core.ID("b"), core.Key("o")), message(core.ID("c"), core.Key("o")))
		return err
	})
	in(func(ctx context.Context, tx *sql.Tx) error {
		staged, err := s.Stage(ctx, tx, message(core.ID("d"), core.Replace("k")))
		if err == nil && staged[0].Replaced != core.CancelDone {
			t.Errorf("%+v", staged)
		}
		return err
	})
	in(func(ctx context.Context, tx *sql.Tx) error {
		got, err := s.Cancel(ctx, tx, core.CancelKey{ID: "b"}, core.CancelKey{ID: "a"})
		if err == nil && (got[0] != core.CancelDone || got[1] != core.CancelNotFound) {
			t.Errorf("%q", got)
		}
		return err
	})
	var n int
	if err := s.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM waybill_outbox WHERE (id, reason) IN (VALUES ('a', 'replaced'), ('b', 'cancelled')) AND state = 5
		AND settled_at > 0 AND wake_at IS NULL`).Scan(&n); err != nil || n != 2 {
		t.Errorf("%d of 2 withdrawn messages are kept as they should be (%v)", n, err)
	}
	c, err := s.Claim(t.Context(), core.ClaimRequest{
		Owner: "test", Routes: []core.RouteOrder{{Route: core.DefaultRoute, BlockAfterAbandon: true}}, MaxRecords: 10, Lease: time.Minute,
	})
	if err != nil || len(c.Records) != 2 || c.Records[0].Envelope.ID != "c" || c.Records[1].Envelope.ID != "d" {
		t.Errorf("claimed %d records: withdrawn ones must block no key (%v)", len(c.Records), err)
	}
	in(func(ctx context.Context, tx *sql.Tx) error {
		staged, err := s.Stage(ctx, tx, message(core.ID("b")))
		if err == nil && !staged[0].Duplicate {
			t.Error("the id of a cancelled message that is kept is no duplicate")
		}
		return err
	})
}

// ST-09: a transaction that is none is refused with what to do.
func TestCancelNeedsTransaction(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	if _, err := s.Cancel(t.Context(), nil, core.CancelKey{ID: "x"}); !errors.Is(err, core.ErrInvalid) {
		t.Errorf("without a transaction: %v", err)
	}
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = tx.Rollback()
	if _, err := s.Cancel(t.Context(), tx, core.CancelKey{ID: "x"}); !errors.Is(err, core.ErrInvalid) {
		t.Errorf("in an ended transaction: %v", err)
	}
	if _, err := s.Stage(t.Context(), tx, core.RawMessage("t", "", nil, core.Replace("k"))); !errors.Is(err, core.ErrInvalid) {
		t.Errorf("stage in an ended transaction: %v", err)
	}
}

// ST-11: the store's default time to live, and what a message says instead.
func TestDefaultTTL(t *testing.T) {
	t.Parallel()
	s := open(t, Options{TTL: time.Hour})
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	m := func(opts ...core.MessageOption) core.Message { return core.RawMessage("t", "", nil, opts...) }
	if _, err := s.Stage(t.Context(), tx, m(), m(core.TTL(time.Minute)), m(core.TTL(-1))); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	c, err := s.Claim(t.Context(), core.ClaimRequest{Owner: "test", Routes: []core.RouteOrder{{Route: core.DefaultRoute}}, MaxRecords: 10, Lease: time.Minute})
	if err != nil || len(c.Records) != 3 {
		t.Fatalf("claimed %d records (%v)", len(c.Records), err)
	}
	for i, want := range []time.Duration{time.Hour, time.Minute, 0} {
		at := c.Records[i].Envelope.Expires
		if want == 0 && !at.IsZero() || want > 0 && time.Until(at).Round(time.Minute) != want {
			t.Errorf("message %d expires at %s, want in %s", i, at, want)
		}
	}
}
