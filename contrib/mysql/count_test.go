package waybillmysql_test

// An operator must know whether a count is exact, an estimate, or the least that there is, and sees it move. However
// many records there are, to count them costs the same.

import (
	"fmt"
	"slices"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/core"
)

// DB-11 DB-20 OP-20.
func TestCountsSayHowExactTheyAre(t *testing.T) {
	t.Parallel()
	s := open(t, waybillmysql.Options{})
	const rows, entries = 500, 2000 // with the real limits a hundred thousand rows must be written
	s.SetCountLimits(rows, entries)
	exec := func(text string, args ...any) {
		t.Helper()
		if _, err := s.DB().ExecContext(t.Context(), text, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE TABLE digits (d INT PRIMARY KEY)`)
	exec(`INSERT INTO digits VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)`)
	filled := 0
	fill := func(n int, columns, values string) {
		t.Helper()
		filled++
		exec(fmt.Sprintf(`INSERT INTO waybill_outbox (topic, id, k, slot, attrs, body, %s)
			SELECT 't', CONCAT('%d/', n), IF(n %% 9, CONCAT('k', n %% 100), ''), 5, '', '', %s
			FROM (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * d.d + 10000 * e.d AS n FROM digits a, digits b, digits c, digits d, digits e) n
			WHERE n < %d ORDER BY n`, columns, filled, values, n))
		exec(`INSERT INTO waybill_outbox_aside (seq, route, k, slot, state, due_at, ends_at, hold, flags)
			SELECT seq, route, k, slot, state, due_at, ends_at, hold, flags FROM waybill_outbox WHERE id LIKE ? AND (state <> 1 OR due_at > 0 OR hold > 0)`, fmt.Sprint(filled, "/%"))
	}
	empty := func() {
		t.Helper()
		for _, table := range []string{"waybill_outbox", "waybill_outbox_aside"} {
			exec(`TRUNCATE TABLE ` + table)
		}
	}
	check := func(route string, state core.State, where, how string, due bool) int64 {
		t.Helper()
		if err := s.EndLines(t.Context(), route); err != nil { // as if a relay served it
			t.Fatal(err)
		}
		counts, err := s.Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var n, isDue, want int64
		got := "none"
		for _, c := range counts {
			if c.Route == route && c.State == state {
				n, isDue, got = c.N, c.Due, "exact"
				switch {
				case c.AtLeast:
					got = "at least"
				case c.Estimated:
					got = "estimated"
				}
			}
		}
		if err := s.DB().QueryRowContext(t.Context(), `SELECT COUNT(*) FROM waybill_outbox WHERE route = ? AND `+where, route).Scan(&want); err != nil {
			t.Fatal(err)
		}
		most := map[string]int64{"estimated": want / 20, "at least": want}[got]
		off := max(n-want, want-n)
		if got != how || off > most || got == "at least" && n > 0 && n >= want || due && isDue != n || !due && isDue != 0 {
			t.Errorf("%s %s: %d (%s), %d are due; there are %d, want it %s", route, state, n, got, isDue, want, how)
		}
		return n
	}
	const (
		ready   = "state = 1 AND due_at = 0 AND hold = 0"
		ever    = "1 << 60"
		pending = core.StatePending
	)
	fill(rows, "route", "'few'")
	check("few", pending, ready, "exact", true)
	fill(entries-500, "route", "'some'")
	fill(200, "route, hold", "'some', 7")
	fill(300, "route, state, due_at", "'some', 4, "+ever)
	check("some", pending, ready, "exact", true)
	check("some", core.StateProcessing, "hold > 0", "exact", false)
	check("some", core.StateFailed, "state = 4", "exact", false)

	fill(12_000, "route", "'drained'")
	fill(100, "route, hold", "'drained', 7")
	check("drained", core.StateProcessing, "hold > 0", "exact", false)
	before := check("drained", pending, ready, "estimated", true)
	for range 3 {
		exec(`DELETE FROM waybill_outbox WHERE route = 'drained' AND hold = 0 ORDER BY seq LIMIT 2000`)
		now := check("drained", pending, ready, "estimated", true)
		if now >= before {
			t.Errorf("2,000 were settled, and the count went from %d to %d", before, now)
		}
		before = now
	}
	empty()
	fill(21_000, "route", "CASE WHEN n DIV 100 % 3 = 0 THEN 'a' ELSE 'b' END") // producers that take turns
	check("a", pending, ready, "estimated", true)
	check("b", pending, ready, "estimated", true)
	empty()
	fill(12_000, "route, due_at", "'timers', "+ever)
	check("timers", pending, "due_at > 0", "estimated", false)
	fill(12_000, "route, due_at", "'due timers', 5")
	check("due timers", pending, "due_at > 0", "estimated", true)
	fill(12_000, "route, state, due_at", "'retries', 4, 5")
	check("retries", core.StateFailed, "state = 4", "estimated", true)
	empty()
	fill(1000, "route, state, reason", "'rejected early', 5, 'rejected'")
	check("rejected early", core.StateAbandoned, "state = 5", "estimated", false)
	fill(rows+1, "route, state, reason", "'rejected', 5, 'rejected'")
	fill(12*entries, "route, state", "'kept', 3")
	check("rejected", core.StateAbandoned, "state = 5", "at least", false)
	check("kept", pending, ready, "at least", true) // nobody knows without a look at each of them
	fill(10, "route", "'kept'")
	check("kept", pending, ready, "at least", true)

	fill(600, "route, state, reason", "'turned', 5, 'rejected'")
	fill(3*entries, "route, state, reason", "'turned', 5, 'attempts'")
	counts, err := s.Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range counts { // the first rows have one reason, the others another one
		there := map[waybill.Reason]int64{"rejected": 600, "attempts": 3 * entries}[c.Reason]
		if off := max(c.N-there, there-c.N); c.Route == "turned" && c.State == core.StateAbandoned && (!c.Estimated || c.AtLeast && c.N >= there || !c.AtLeast && off*20 > there) {
			t.Errorf("%+v, there are %d", c, there)
		}
	}
	if !slices.ContainsFunc(counts, func(c admin.Count) bool { return c.Route == "turned" && c.Reason == "attempts" }) {
		t.Errorf("a reason that only later rows have is missing: %+v", counts)
	}

	reads := func() int64 {
		t.Helper()
		n, err := s.CountReads(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	fill(10_000, "route", "'many'")
	was := reads()
	fill(30_000, "route", "'many'")
	if now := reads(); now > was+was/20 {
		t.Errorf("the server read %d rows to count, and %d with 30,000 records more", was, now)
	}
}
