package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres"
)

// IN-05: a purge of all consumers takes bounded batches of every one, by the index, and leaves young ones.
func TestPurgeInboxOfAll(t *testing.T) {
	t.Parallel()
	in, pool := newInbox(t, postgres.InboxOptions{})
	exec(t, pool, `INSERT INTO waybill.waybill_inbox (consumer, source, id, handled_at)
SELECT 'c' || c, '/s', i::text, clock_timestamp() - i * interval '1 minute' FROM generate_series(1, 3) c, generate_series(1, 4000) i`)
	exec(t, pool, `ANALYZE waybill.waybill_inbox`)
	for _, want := range []int{5000, 2998, 0} { // of each the 1,334 that are younger than 1,335 min stay
		if n, err := in.PurgeInbox(t.Context(), "", 1334*time.Minute+30*time.Second, 5000); n != want || err != nil {
			t.Errorf("%d deleted, want %d; error %v", n, want, err)
		}
	}
	if n := queryInt(t, pool, `SELECT count(*) FROM waybill.waybill_inbox`); n != 3*1334 {
		t.Errorf("%d are left", n)
	}
}

// IN-08: a batch waits for another one no longer than the lock timeout, and the handler's own statements are not bound
// by it.
func TestInboxBatchLockTimeout(t *testing.T) {
	t.Parallel()
	in, pool := newInbox(t, postgres.InboxOptions{LockTimeout: 50 * time.Millisecond})
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	var timeout string
	for i, want := range []core.InboxStatus{core.InboxNew, core.InboxDuplicate} {
		before := fmt.Sprintf("%ds", 7+i)
		if _, err := tx.Exec(t.Context(), "SET LOCAL lock_timeout = '"+before+"'"); err != nil {
			t.Fatal(err)
		}
		if st, err := in.Mark(t.Context(), tx, key("2")); st != want || err != nil {
			t.Fatal(st, err)
		}
		if err := tx.QueryRow(t.Context(), "SHOW lock_timeout").Scan(&timeout); err != nil || timeout != before {
			t.Errorf("the caller's lock_timeout is %s, want %s (%v)", timeout, before, err)
		}
	}
	keys := []core.InboxKey{key("3"), key("2"), key("1")}
	_, err = in.DoBatch(t.Context(), keys, func(context.Context, pgx.Tx, []int) error { t.Error("ran"); return nil })
	if waybill.ClassOf(err) != waybill.ClassRejected {
		t.Errorf("%v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	st, err := in.DoBatch(t.Context(), keys, func(ctx context.Context, tx pgx.Tx, fresh []int) error {
		if err := tx.QueryRow(ctx, "SHOW lock_timeout").Scan(&timeout); err != nil || timeout != "0" {
			t.Errorf("the handler's lock_timeout is %s (%v)", timeout, err)
		}
		return nil
	})
	if err != nil || st[0] != core.InboxNew || st[1] != core.InboxDuplicate || st[2] != core.InboxNew {
		t.Error(st, err)
	}
	if _, err := in.Mark(t.Context(), tx, key("4")); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("in an ended transaction: %v", err)
	}
	if _, err := in.Mark(t.Context(), nil, key("4")); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("without a transaction: %v", err)
	}
	if _, err := in.DoBatch(t.Context(), make([]core.InboxKey, 100_001), nil); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("too many: %v", err)
	}
}

// IN-01: a batch handler that swallows a failed statement has failed.
func TestInboxBatchSwallowedFailure(t *testing.T) {
	t.Parallel()
	in, pool := newInbox(t, postgres.InboxOptions{})
	_, err := in.DoBatch(t.Context(), []core.InboxKey{key("1"), key("2")}, func(ctx context.Context, tx pgx.Tx, _ []int) error {
		_, _ = tx.Exec(ctx, `INSERT INTO effects VALUES (NULL)`)
		return nil
	})
	if waybill.ClassOf(err) != waybill.ClassRejected {
		t.Error(err)
	}
	if n := queryInt(t, pool, `SELECT count(*) FROM waybill.waybill_inbox`); n != 0 {
		t.Errorf("%d marks", n)
	}
}
