package sqlite

// An operator must know whether a count is exact, an estimate, or the least that there is.

import (
	"database/sql"
	"fmt"
	"testing"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
)

// fill writes n rows with plain SQL. Their ids ascend, as those of Waybill do.
func fill(tb testing.TB, db *sql.DB, n int, columns, values string) {
	tb.Helper()
	run(tb, db, fmt.Sprintf(`WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < %d)
		INSERT INTO waybill_outbox (topic, id, slot, %s) SELECT 'orders.placed', printf('%%020d', n + (SELECT coalesce(max(seq), 0) FROM waybill_outbox)), 5, %s FROM c`, n, columns, values))
}

// DB-11 OP-20: up to 10,000 records of a kind a count is exact. Above it is within 5 % or a least number, for these
// patterns of other rows between those of a route. It follows a drain.
func TestCountsSayHowExactTheyAre(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	check := func(route string, state core.State, where, how string) int64 {
		t.Helper()
		counts, err := s.Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var c admin.Count
		for i := range counts {
			if counts[i].Route == route && counts[i].State == state {
				c = counts[i]
			}
		}
		var want int64
		if err := s.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM waybill_outbox WHERE route = ? AND `+where, route).Scan(&want); err != nil {
			t.Fatal(err)
		}
		got := "exact"
		switch {
		case c.AtLeast:
			got = "at least"
		case c.Estimated:
			got = "estimated"
		}
		most := map[string]int64{"exact": 0, "estimated": want / 20, "at least": want - countLimit}[got]
		if off := c.N - want; got != how || max(off, -off) > most || c.AtLeast && c.N >= want || state == core.StatePending && where == ready && c.Due != c.N {
			t.Errorf("%s %s: %d (%s), %d are due; there are %d, want it %s", route, state, c.N, got, c.Due, want, how)
		}
		return c.N
	}
	fill(t, s.DB(), countLimit, "route", "'to the limit'")
	check("to the limit", core.StatePending, ready, "exact")
	fill(t, s.DB(), countLimit, "route, due_at", "'timers to the limit', 1 << 60")
	check("timers to the limit", core.StatePending, "due_at > 0", "exact")
	fill(t, s.DB(), 30_000, "route", "'drained'")
	before := check("drained", core.StatePending, ready, "estimated")
	for range 3 {
		run(t, s.DB(), `DELETE FROM waybill_outbox WHERE seq IN (SELECT seq FROM waybill_outbox WHERE route = 'drained' ORDER BY seq LIMIT 5000)`)
		now := check("drained", core.StatePending, ready, "estimated")
		if now >= before {
			t.Errorf("5,000 were settled, and the count went from %d to %d", before, now)
		}
		before = now
	}
	fill(t, s.DB(), 35_000, "route", "CASE WHEN n / 100 % 3 = 0 THEN 'a' ELSE 'b' END") // producers that take turns
	check("a", core.StatePending, ready, "estimated")
	check("b", core.StatePending, ready, "estimated")
	fill(t, s.DB(), 30_000, "route, due_at", "'timers', 1 << 60")
	check("timers", core.StatePending, "due_at > 0", "estimated")
	fill(t, s.DB(), countLimit+1, "route, state, due_at", "'rare', 4, 1 << 60")
	check("rare", core.StateFailed, "state = 4", "at least")
	fill(t, s.DB(), 50_000, "route", "'drained'")
	fill(t, s.DB(), 22_000, "route, state, due_at", "'scarce', 4, 5")
	before = check("scarce", core.StateFailed, "state = 4", "at least")
	run(t, s.DB(), `DELETE FROM waybill_outbox WHERE route = 'scarce' AND seq % 4 = 0`)
	if now := check("scarce", core.StateFailed, "state = 4", "at least"); now >= before || now <= countLimit {
		t.Errorf("5,500 of 22,000 were settled, and the count went from more than %d to more than %d", before, now)
	}
}

// The first 10,000 rows of a part are not like the others: the held ones lie at the front, and reasons come in turns.
//
// OP-20
func TestCountsOfUnlikeRows(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	fill(t, s.DB(), 40_000, "route, hold", "'ready', CASE WHEN n <= 500 THEN 7 ELSE 0 END")
	fill(t, s.DB(), 40_000, "route, state, due_at, hold", "'retries', 4, n, CASE WHEN n <= 500 THEN 7 ELSE 0 END")
	fill(t, s.DB(), 60_000, "route, state, settled_at, reason", `'gone', 5, n, CASE WHEN n <= 9000 THEN 'rejected' WHEN n <= 9010 THEN 'expired' ELSE 'attempts' END`)
	fill(t, s.DB(), 40_000, "route, state, settled_at, reason", `'turned', 5, n, CASE WHEN n <= 12000 THEN 'rejected' ELSE 'attempts' END`)
	sharedtest.Counts(t, s,
		sharedtest.Counted{Route: "ready", State: core.StateProcessing, N: 500, How: "exact"},
		sharedtest.Counted{Route: "ready", State: core.StatePending, N: 39_500, Due: 39_500, How: "estimated"},
		sharedtest.Counted{Route: "retries", State: core.StateProcessing, N: 500, How: "exact"},
		sharedtest.Counted{Route: "retries", State: core.StateFailed, N: 39_500, Due: 39_500, How: "estimated"},
		sharedtest.Counted{Route: "gone", State: core.StateAbandoned, Reason: "rejected", N: 9000, How: "estimated"},
		sharedtest.Counted{Route: "gone", State: core.StateAbandoned, Reason: "expired", N: 10, How: "at least"},
		sharedtest.Counted{Route: "gone", State: core.StateAbandoned, Reason: "attempts", N: 50_990, How: "estimated"},
		sharedtest.Counted{Route: "turned", State: core.StateAbandoned, Reason: "rejected", N: 12_000, How: "estimated"},
		sharedtest.Counted{Route: "turned", State: core.StateAbandoned, Reason: "attempts", N: 28_000, How: "estimated"},
	)
}

// ready is the condition of rows that are in line.
const ready = "due_at IS NULL AND settled_at IS NULL"
