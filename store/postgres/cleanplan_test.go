package postgres

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// DB-09 DB-20: the reads of cleaning do not grow with the records to keep, and one call does a bounded batch.
func TestCleanPlans(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("fills 200,000 rows")
	}
	o, pool := newPlanOutbox(t)
	exec, insert := filler(t, pool)
	indexed(t, pool, func() {
		insert(50_000, "state, settled_at, reason", "5, now() - interval '1 year', 'rejected'")
		insert(25_000, "state, settled_at", "3, now() + interval '1 day'")
		insert(75_000, "due_at, expires_at", "now(), now() + interval '1 day'")
		insert(45_000, "key", "'k' || i % 1000")
		insert(2_500, "state, settled_at, reason", "5, now(), CASE WHEN i % 2 = 0 THEN 'cancelled' ELSE 'replaced' END")
		insert(2_500, "state, settled_at", "3, now() - interval '1 hour'")
		insert(2_500, "due_at, expires_at", "now() + interval '1 day', now()")
		insert(20_000, "route, expires_at", "'owned', now()")
		insert(20_000, "route, expires_at", "'r' || i % 10, now() + interval '1 day'")
		insert(2_500, "route, expires_at", "'r' || i % 10, now()")
	})
	exec("INSERT INTO waybill.waybill_outbox_partitions (route, from_slot, to_slot, slots, owner, read_after, uncertain_up_to, term) VALUES ('owned', 0, 64, -1, 7, 0, 0, 1)")
	exec("ANALYZE")
	for _, tc := range []struct {
		name    string
		sql     string
		args    []any
		buffers int64
	}{
		{"elect", electSQL, []any{"me", int64(1), int64(1)}, 20},
		{"sweep", sweepSQL, []any{nil}, 40_000},
		{"purge published", purgeSQL(core.RetentionPublished), []any{int64(1), nil}, 20_000},
		{"purge cancelled", purgeSQL(core.RetentionCancelled), []any{int64(0), time.Now().Add(-24 * time.Hour)}, 20_000},
		{"purge abandoned: none is old enough", purgeSQL(core.RetentionAbandoned), []any{(5 * 365 * 24 * time.Hour).Microseconds(), nil}, 20},
	} {
		p := explain(t, pool, o.names, tc.sql, tc.args...)
		p.check(t, tc.name, tc.buffers)
	}
	o.opts.Retention.Published = time.Minute
	cancelled, published, expired, calls := 0, 0, 0, 0
	for more := true; more; calls++ {
		done, err := o.Clean(t.Context(), "me", time.Minute)
		if err != nil || !done.Leader {
			t.Fatal(done, err)
		}
		more = done.More
		one := done.Deleted[core.CleanedKind{State: core.StateAbandoned, Reason: waybill.ReasonCancelled}] +
			done.Deleted[core.CleanedKind{State: core.StateAbandoned, Reason: waybill.ReasonReplaced}]
		cancelled += one
		published += done.Deleted[core.CleanedKind{State: core.StatePublished}]
		expired += done.Expired
		if max(one, done.Expired, done.Deleted[core.CleanedKind{State: core.StatePublished}]) > cleanBatch {
			t.Errorf("one call did %+v", done)
		}
	}
	if cancelled != 2500 || published != 2500 || expired != 5000 || calls != 6 {
		t.Errorf("%d cancelled and %d published deleted, %d expired in %d calls, want 2,500, 2,500 and 5,000 in 6", cancelled, published, expired, calls)
	}
	exec("VACUUM waybill.waybill_outbox") // what was swept is not to be met again
	p := explain(t, pool, o.names, sweepSQL, nil)
	p.check(t, "sweep: what has expired has an owner", 200)
	var left int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM waybill.waybill_outbox").Scan(&left); err != nil || left != 240_000 {
		t.Errorf("%d rows are left, want 240,000 (%v)", left, err)
	}
}
