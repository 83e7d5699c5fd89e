package postgres_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres"
)

// DB-20: with 100,000 rows in ten routes, many of them settled, scheduled, held, or waiting for a retry, no statement
// touches more rows than it answers: neither before the first statistics nor after.
func TestPlans(t *testing.T) {
	t.Parallel()
	s, pool := newOutbox(t, postgres.Options{})
	exec(t, pool, "ALTER TABLE waybill.waybill_outbox SET (autovacuum_enabled = off)") // the test says when
	self := join(t, s, "r3", 4)
	args := func(a ...any) []any { return a }
	mine := int64(self)
	const rows = 60_000
	const others = 40_000 // they come first
	near := int64(others + rows - 500)
	routes, parts, whole := []string{"r3"}, []int64{-1}, int64(math.MaxInt64)
	keys := []string{"k7"}
	tests := []struct {
		name, sql string
		args      []any
		reads     int64 // buffers
		rows      int64 // to write
	}{
		{"page near the end", postgres.RangesSQL, args(int64(1<<24), []int{0}, routes, parts, []int64{near}, []int64{whole}, []bool{false}, []int{100}), 150, 0},
		{"page at the beginning", postgres.RangesSQL, args(int64(1<<24), []int{0}, routes, parts, []int64{others}, []int64{whole}, []bool{false}, []int{100}), 150, 0},
		{"page of large bodies", postgres.BoundedRangesSQL, args(int64(1<<24), []int{0}, routes, parts, []int64{near}, []int64{whole}, []bool{false}, []int{100}), 150, 0},
		{"page of a key", postgres.KeysSQL, args(int64(1<<24), []int{0}, routes, keys, []int64{near - 10_000}, []int64{whole}, []int{10}), 60, 0},
		{"what holds a key", postgres.KeysWaitingSQL, args(mine, []int{0}, routes, keys, routes), 20, 0},
		{"what waits of a partition", postgres.FreshSQL, args(mine, routes, parts, int64(0), 100, routes), 20, 0},
		{"nothing due", postgres.NextDueSQL, args(mine, routes, parts, []int64{0}, []bool{true}), 30, 0},
		{"next of a queue", postgres.NextSQL, args(mine, "r4", int64(-1), 10, []int64{}, int64(1<<24), true, int64(-1), whole, []int64{}, 1), 80, 10},
		{"membership", postgres.MembershipSQL, args(routes, int64(0), int64(0)), 120, 0},
		{"page without records", postgres.PageSQL, args(mine, routes, parts, int64(0)), 60, 0},
		{"end of a session", postgres.EndHoldsSQL, args(int64(5), int64(1), 1), 30, 0},
		{"settle", postgres.DeleteAllSQL, args(mine, []string{"r3", "r4"}, []int64{others + 53, others + 54}, []string{"x", "x"}), 40, 2},
	}
	check := func(when string) {
		for _, tt := range tests {
			reads, writes := buffers(t, pool, postgres.SQL(s, tt.sql), tt.args...)
			if reads > tt.reads {
				t.Errorf("%s: %s touches %d buffers, want at most %d", when, tt.name, reads, tt.reads)
			}
			// The figure varies: a row may need a new page, and an entry of an index a new leaf.
			if writes > 20*tt.rows {
				t.Errorf("%s: %s touches %d buffers to write %d rows", when, tt.name, writes, tt.rows)
			}
		}
	}
	for _, odd := range []string{
		"state, settled_at, reason) SELECT 'r3', 't', 'k' || n % 100, '', false, n % 64, 5, now(), 'rejected'",
		"due_at) SELECT 'r3', 't', 'k' || n % 100, '', false, n % 64, now() + interval '1 day'",
		"due_at, retry, state, attempts) SELECT 'r3', 't', 'waits' || n, '', false, n % 64, now() + interval '1 day', true, 4, 1",
		"hold, held_since) SELECT 'r5', 't', 'held' || n, '', false, n % 64, 77, now()",
	} {
		exec(t, pool, "INSERT INTO waybill.waybill_outbox (route, topic, key, body, own_id, slot, "+odd+" FROM generate_series(1, 10000) n")
	}
	// Keyed rows in r0 to r3 and r5 to r9, keyless ones in r4.
	exec(t, pool, fmt.Sprintf(`INSERT INTO waybill.waybill_outbox (route, topic, key, body, own_id, slot)
		SELECT 'r' || n %% 10, 't', CASE WHEN n %% 10 <> 4 THEN 'k' || n / 10 %% 100 ELSE '' END, 'body', false, n %% 64 FROM generate_series(1, %d) n`, rows))
	check("before the first statistics")
	exec(t, pool, "VACUUM ANALYZE waybill.waybill_outbox")
	check("after")
	exec(t, pool, "DELETE FROM waybill.waybill_outbox WHERE seq < 90000")
	tests = tests[:1]
	check("after most was published")
}

// DB-20: the page of a key does not touch the records of others, however few of many are left, and with any statistics
// of the planner. An old snapshot keeps the dead ones, and the indexes keep their size.
func TestPlansBesideDeadRows(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	const n, of = 20_000, 20
	table := "waybill.waybill_outbox"
	insert := func(columns, values string, n int) {
		exec(t, pool, fmt.Sprintf("INSERT INTO %s (route, topic, body, own_id, slot, key%s) SELECT 'r', 't', '', false, i %% 64, 'k' || i%s FROM generate_series(1, %d) i", table, columns, values, n))
	}
	var at, limits []int
	var routes, keys []string
	var from, to []int64
	for i := range of {
		at, routes, keys = append(at, i), append(routes, "r"), append(keys, fmt.Sprint("k", n-i))
		from, to, limits = append(from, 0), append(to, 10*n), append(limits, 25)
	}
	insert("", "", n) // they have passed long ago
	exec(t, pool, "DELETE FROM "+table)
	exec(t, pool, "VACUUM "+table)
	insert(", due_at, retry, state, attempts", ", now(), true, 4, 1", n)
	snapshot(t, pool)
	insert("", "", 30)
	for _, left := range []int{n / 2, n / 10, n / 100, 10} {
		exec(t, pool, fmt.Sprintf("DELETE FROM %s WHERE retry AND seq <= %d", table, 2*n-left))
		exec(t, pool, "ANALYZE "+table)
		page, _ := buffers(t, pool, postgres.SQL(o, postgres.KeysSQL), int64(1<<24), at, routes, keys, from, to, limits)
		waiting, _ := buffers(t, pool, postgres.SQL(o, postgres.KeysWaitingSQL), int64(1), at, routes, keys, routes[:1])
		t.Logf("%d retries left: %d buffers for pages of %d keys, %d for those that wait", left, page, of, waiting)
		if page > 10*of || waiting > 20*of {
			t.Errorf("%d retries left: pages of %d keys touch %d buffers, and %d for those that wait", left, of, page, waiting)
		}
	}
}

// DB-20: a key's look, and each step of the list of blocked keys, do not touch the dead holds of other keys, also with
// statistics from a time without holds.
func TestKeysBesideDeadHolds(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	const n, of = 20_000, 20
	table := "waybill.waybill_outbox"
	key := "'k' || i || repeat('x', 100)" // so that the index by key is higher than that by number
	exec(t, pool, fmt.Sprintf("INSERT INTO %s (route, topic, body, own_id, slot, key) SELECT 'r', 't', '', false, i %% 64, %s FROM generate_series(1, %d) i", table, key, n))
	exec(t, pool, "VACUUM ANALYZE "+table)
	snapshot(t, pool)
	exec(t, pool, "UPDATE "+table+" SET hold = 77, held_since = now()")
	exec(t, pool, "UPDATE "+table+" SET hold = 0, held_since = NULL")
	retries := func(n int) {
		exec(t, pool, fmt.Sprintf("INSERT INTO %s (route, topic, body, own_id, slot, key, due_at, retry, state, attempts, last_error) "+
			"SELECT 'r', 't', '', false, 1, 'z' || i, now(), true, 4, 1, 'unroutable' FROM generate_series(1, %d) i", table, n))
	}
	retries(1) // behind all other keys
	var at []int
	var routes, keys []string
	for i := range of {
		at, routes, keys = append(at, i), append(routes, "r"), append(keys, fmt.Sprint("k", n-i, strings.Repeat("x", 100)))
	}
	for _, when := range []string{"before the first statistics of it", "beside more retries", "after the retries"} {
		switch when {
		case "beside more retries":
			retries(500)
			exec(t, pool, "ANALYZE "+table)
		case "after the retries":
			exec(t, pool, "DELETE FROM "+table+" WHERE retry")
			exec(t, pool, "ANALYZE "+table)
		}
		waiting, _ := buffers(t, pool, postgres.SQL(o, postgres.KeysWaitingSQL), int64(1), at, routes, keys, routes[:1])
		one, _ := buffers(t, pool, postgres.SQL(o, postgres.BlockedSQL), "r", "", false, 1, "unroutable")
		all, _ := buffers(t, pool, postgres.SQL(o, postgres.BlockedSQL), "r", "", false, of, "unroutable")
		t.Logf("%s: %d buffers for %d keys that wait, %d for a list of one, %d for one of %d", when, waiting, of, one, all, of)
		if waiting > 20*of || all-one > 40*of {
			t.Errorf("%s: %d keys touch %d buffers, and a list of them %d more than a list of one", when, of, waiting, all-one)
		}
	}
}

// DB-20: a page of a key begins where it is asked for, however many records the key has.
func TestPageOfALongKey(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	const n = 20_000
	exec(t, pool, fmt.Sprintf("INSERT INTO waybill.waybill_outbox (route, topic, key, body, own_id, slot) SELECT 'r', 't', 'k', '', false, 7 FROM generate_series(1, %d)", n))
	for _, from := range []int64{0, n / 2, n - 100} {
		page, _ := buffers(t, pool, postgres.SQL(o, postgres.KeysSQL), int64(1<<24), []int{0}, []string{"r"}, []string{"k"}, []int64{from}, []int64{from + 50}, []int{100})
		if page > 80 {
			t.Errorf("a page of 50 records behind %d touches %d buffers", from, page)
		}
	}
}

// TestRoomOfShortKeys: the answer about a key has room for the records that the key has, not for a full page.
func TestRoomOfShortKeys(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	exec(t, pool, "INSERT INTO waybill.waybill_outbox (topic, key, body, own_id) SELECT 't', 'k' || i % 3, '', false FROM generate_series(1, 4) i")
	request := core.ReadRequest{Slots: []core.RouteSlots{all(waybill.DefaultRoute)}}
	for i := range 3 {
		request.Keys = append(request.Keys, core.KeyRange{Route: waybill.DefaultRoute, Key: fmt.Sprint("k", i), UpToSeq: 1 << 62, Limit: 25})
	}
	result, err := o.Read(t.Context(), join(t, o, waybill.DefaultRoute, 1), request)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 2, 1} {
		if rs := result.Keys[i].Records; len(rs) != want || want == 1 && cap(rs) != 1 {
			t.Errorf("%d records of k%d, with room for %d; want %d", len(rs), i, cap(rs), want)
		}
	}
}

// buffers returns how many buffers a statement touches to find rows, and to write them, in a transaction that is rolled
// back.
func buffers(tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) (reads, writes int64) {
	tb.Helper()
	tx, err := pool.Begin(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = tx.Rollback(tb.Context()) }()
	if _, err := tx.Exec(tb.Context(), postgres.SetSQL); err != nil {
		tb.Fatal(err)
	}
	var text []byte
	if err := tx.QueryRow(tb.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+sql, args...).Scan(&text); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	var plan []struct{ Plan node }
	if err := json.Unmarshal(text, &plan); err != nil {
		tb.Fatal(err)
	}
	writes = plan[0].Plan.writes()
	return plan[0].Plan.buffers() - writes, writes
}

// node is a node of a plan. Its buffers are those of its plans, too.
type node struct {
	Type  string `json:"Node Type"`
	Hit   int64  `json:"Shared Hit Blocks"`
	Read  int64  `json:"Shared Read Blocks"`
	Plans []node
}

func (n node) buffers() int64 { return n.Hit + n.Read }

// writes returns how many buffers were touched to write rows and their entries in indexes.
func (n node) writes() (sum int64) {
	own := n.buffers()
	for _, p := range n.Plans {
		own -= p.buffers()
		sum += p.writes()
	}
	if n.Type == "ModifyTable" {
		sum += max(own, 0)
	}
	return sum
}
