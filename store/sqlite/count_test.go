package sqlite

// An operator must know whether a count is exact, an estimate, or the least that there is.

import (
	"database/sql"
	"fmt"
	"slices"
	"testing"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// fill writes n rows with plain SQL. Their ids ascend, as those of Waybill do.
func fill(tb testing.TB, db *sql.DB, n int, columns, values string) {
	tb.Helper()
	run(tb, db, fmt.Sprintf(`WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < %d)
		INSERT INTO waybill_outbox (topic, id, slot, %s) SELECT 'orders.placed', printf('%%020d', n + (SELECT coalesce(max(seq), 0) FROM waybill_outbox)), 5, %s FROM c`, n, columns, values))
}

// DB-11: up to 10,000 records of a kind a count is exact. Above, that of ready ones is an estimate, and that of others
// the least that there is.
func TestCountsSayHowExactTheyAre(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	fill(t, s.DB(), countLimit+1, "route", "'ready'")
	fill(t, s.DB(), countLimit+100, "route, due_at", "'timers', 1 << 60")
	fill(t, s.DB(), countLimit, "route, due_at", "'timers up to the limit', 1 << 60")
	counts, err := s.Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range counts {
		counts[i].Oldest = 0
	}
	if want := []admin.Count{
		{Route: "ready", State: core.StatePending, N: countLimit + 1, Due: countLimit + 1, Estimated: true},
		{Route: "timers", State: core.StatePending, N: countLimit + 1, Estimated: true, AtLeast: true},
		{Route: "timers up to the limit", State: core.StatePending, N: countLimit},
	}; !slices.Equal(counts, want) {
		t.Errorf("counts %+v, want %+v", counts, want)
	}
}
