package postgres

// Counts is what an operator watches while a backlog drains. It must be right without statistics of the planner, which
// come a minute later, and it must move.

import (
	"math"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// DB-11 OP-20: above 10,000 a count is within 5 % or a least number, without ANALYZE, for these patterns of other rows
// between those of a route. It follows a drain.
func TestCountsWithoutStatistics(t *testing.T) {
	t.Parallel()
	o, pool := counted(t)
	exec, insert := filler(t, pool)
	exec(`ALTER TABLE waybill.waybill_outbox SET (autovacuum_enabled = off)`)
	routes := 0
	exact := func(route, where string) (n int64) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM waybill.waybill_outbox WHERE route = $1 AND `+where, route).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const live = "settled_at IS NULL AND state = 1"
	all := func() []admin.Count {
		t.Helper()
		counts, err := o.Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return counts
	}
	check := func(counts []admin.Count, route string, state core.State, where string, vague bool) int64 {
		t.Helper()
		var n, due int64
		estimated, atLeast := false, false
		for _, c := range counts {
			if c.Route == route && c.State == state {
				due += c.Due
				n, estimated, atLeast = n+c.N, estimated || c.Estimated, atLeast || c.AtLeast
			}
		}
		want := exact(route, where)
		switch {
		case atLeast != vague, atLeast && (n > want || n < countExact), !estimated && n != want,
			!atLeast && math.Abs(float64(n-want)) > 0.05*float64(want):
			t.Errorf("%s %s: %d (estimated %t, at least %t), there are %d", route, state, n, estimated, atLeast, want)
		}
		if isDue := exact(route, where+" AND (due_at IS NULL OR due_at <= now()) AND state <> 5"); isDue == want && due != n || isDue == 0 && due != 0 {
			t.Errorf("%s %s: %d of %d are due; there are %d, of which %d are due", route, state, due, n, want, isDue)
		}
		return n
	}
	indexed(t, pool, func() { insert(60_000, "route, key", "'default', 'k' || i % 1000") })
	before := check(all(), "default", core.StatePending, live, false)
	for range 4 { // a drain in its order, but for keys that are blocked
		exec(`DELETE FROM waybill.waybill_outbox WHERE route = 'default' AND key NOT IN ('k1', 'k2') AND seq IN (
			SELECT seq FROM waybill.waybill_outbox WHERE route = 'default' AND key NOT IN ('k1', 'k2') ORDER BY seq LIMIT 10000)`)
		now := check(all(), "default", core.StatePending, live, false)
		if now >= before {
			t.Errorf("10,000 were settled, and the count went from %d to %d", before, now)
		}
		before = now
	}
	// The rows of other routes make no difference to the counts of a route, wherever they lie.
	indexed(t, pool, func() {
		insert(60_000, "route", "CASE WHEN i / 100 % 3 = 0 THEN 'a' ELSE 'b' END") // producers that take turns
		insert(50_000, "route", "CASE WHEN i % 1000 < 500 THEN 'even' ELSE 'odd' END")
		insert(30_000, "route, state, settled_at", "'kept', 3, now()")
		insert(30_000, "route", "'kept'")
		insert(20_000, "route, due_at", "'timers', now() + interval '1 day'")
		insert(20_000, "route, due_at", "'due timers', now() - interval '1 day'")
		insert(20_000, "route, due_at, retry, state", "'due retries', now() - interval '1 day', true, 4")
		insert(12_000, "route, state, reason, settled_at", "'timers', 5, 'rejected', now()")
		insert(30_000, "route", "'rare'")
		insert(22_000, "route, due_at, retry, state", "'rare', now() + interval '1 day', true, 4")
		insert(100_000, "route, state, settled_at", "'rare', 3, now()")
	})
	counts := all()
	check(counts, "a", core.StatePending, live, false)
	check(counts, "b", core.StatePending, live, false)
	check(counts, "even", core.StatePending, live, false)
	check(counts, "kept", core.StatePending, live, false)
	check(counts, "timers", core.StatePending, live, false)
	check(counts, "due timers", core.StatePending, live, false)
	check(counts, "due retries", core.StateFailed, "state = 4", false)
	check(counts, "timers", core.StateAbandoned, "state = 5", false)
	before = check(counts, "rare", core.StateFailed, "state = 4", true)
	exec(`DELETE FROM waybill.waybill_outbox WHERE route = 'rare' AND state = 4 AND seq % 4 = 0`)
	if now := check(all(), "rare", core.StateFailed, "state = 4", true); now >= before || now <= countExact {
		t.Errorf("5,500 of 22,000 were settled, and the count went from more than %d to more than %d", before, now)
	}

	if err := pool.QueryRow(t.Context(), `SELECT count(DISTINCT route) FROM waybill.waybill_outbox`).Scan(&routes); err != nil {
		t.Fatal(err)
	}
	p := explain(t, pool, schema.NewNames("", "", ""), o.sql.admin.count, countExact+1, rules.SampleSize, countWalk)
	p.walk(func(n *plan) {
		rows, most := n.Rows*n.Loops, countExact+1
		if n.Index == "waybill_outbox_pkey" && n.Loops <= float64(routes) {
			most = countWalk // it passes kept rows, too; a Subquery Scan above it answers the ready ones
		}
		if n.Relation == "waybill_outbox" {
			rows += n.Removed * n.Loops
		}
		if read := n.Relation == "waybill_outbox" || n.NodeType == "Subquery Scan"; read && (n.NodeType == "Seq Scan" || rows > float64(routes*most)) {
			t.Errorf("%s by %s: %.0f rows", n.NodeType, n.Index, rows)
		}
	})
}

// The arithmetic of counts is that of rules.Sample: its sequences, and each sum. TE-11 DB-11.
func TestCountsFollowTheRules(t *testing.T) {
	t.Parallel()
	_, pool := counted(t)
	spans := []int64{1, 7, rules.SampleSize - 1, rules.SampleSize, rules.SampleSize + 1, 12_345, 20_000, 1_000_007, 1 << 45}
	const low = 77
	for _, span := range spans {
		var got []int64
		err := pool.QueryRow(t.Context(), `SELECT coalesce(array_agg(seq ORDER BY seq), '{}') FROM (`+placesSQL+
			` FROM (SELECT 'r' AS route, $1::bigint AS low, $2::bigint AS span, least($2::bigint, $3) AS size)`+endPlacesSQL+`) x`,
			low, span, int64(rules.SampleSize)).Scan(&got)
		if err != nil {
			t.Fatal(err)
		}
		if want := rules.NewSample(low, low+span).Seqs(); !slices.Equal(got, want) {
			t.Errorf("the %d sequences of a sample of %d are not the %d of the rule", len(got), span, len(want))
		}
	}
	type row struct {
		n, hits int64
		behind  bool
	}
	rows := 0
	for _, span := range spans {
		var ns, hits []int64
		var behind []bool
		for _, n := range []int64{0, 1, 2, 9, countExact + 1, 1_000_000} {
			for _, h := range []int64{0, 1, 2, 3, 9, 40, 395, 396, 397, 1600, 5000} {
				for _, b := range []bool{false, true} {
					if h <= span && (n > 0 || h > 0) {
						ns, hits, behind = append(ns, n), append(hits, h), append(behind, b)
					}
				}
			}
		}
		size := min(span, rules.SampleSize)
		found, err := pool.Query(t.Context(), sumSQL+` (SELECT nullif(n, 0) AS n, hits, behind, $4::float8 AS width
			FROM unnest($1::bigint[], $2::bigint[], $3::bool[]) u (n, hits, behind))`+endSumSQL, ns, hits, behind, float64(span)/float64(max(size, 1)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = pgx.CollectRows(found, func(r pgx.CollectableRow) (row, error) {
			got, err := pgx.RowToMap(r)
			if err != nil {
				return row{}, err
			}
			n, _ := got["n"].(int64)
			is := row{n, got["hits"].(int64), got["behind"].(bool)}
			sum, vague := rules.NewSample(low, low+span).Count(is.n, is.hits, 0, is.behind)
			if rows++; got["sum"] != sum || got["vague"] != vague {
				t.Errorf("%+v in %d: %v, vague %v; want %d, vague %v", is, span, got["sum"], got["vague"], sum, vague)
			}
			return is, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if rows < 900 {
		t.Errorf("%d rows were compared", rows)
	}
}

// counted returns an outbox whose counts are tested, and its pool.
func counted(t *testing.T) (*Outbox, *pgxpool.Pool) {
	t.Helper()
	db := testenv.Postgres(t)
	pool, err := pgxpool.New(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	o, err := NewOutbox(pool, Options{Source: "/shop"})
	if err == nil {
		err = o.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return o, pool
}

// OP-20 OP-01: during a drain of a million, counts are within 5 % or least numbers, and move with each 5,000 that are
// settled: a relay that settles as many a second is seen to work. Some keys stay blocked.
func TestCountsDuringADrain(t *testing.T) {
	tier.Nightly(t, "a million rows: 40 s")
	t.Parallel()
	const million, step = 1_000_000, 5_000
	o, pool := counted(t)
	exec, insert := filler(t, pool)
	exec(`ALTER TABLE waybill.waybill_outbox SET (autovacuum_enabled = off)`)
	indexed(t, pool, func() { insert(million, "route, key", "'default', 'k' || i % 1000") })
	var first int64
	if err := pool.QueryRow(t.Context(), `SELECT min(seq) FROM waybill.waybill_outbox WHERE seq > 0`).Scan(&first); err != nil {
		t.Fatal(err)
	}
	left, before := int64(million), int64(math.MaxInt64)
	for at := first; at < first+million; at += step {
		counts, err := o.Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var now int64
		atLeast := false
		for _, c := range counts {
			now, atLeast = now+c.N, atLeast || c.AtLeast
		}
		switch off := math.Abs(float64(now - left)); {
		case atLeast && now > left, !atLeast && off > 0.05*float64(left):
			t.Errorf("%d are left, and the count says %d (at least %t)", left, now, atLeast)
		case now >= before:
			t.Errorf("%d were settled, %d are left, and the count went from %d to %d", step, left, before, now)
		}
		before = now
		tag, err := pool.Exec(t.Context(), `DELETE FROM waybill.waybill_outbox WHERE route = 'default' AND seq >= $1 AND seq < $2 AND key NOT IN ('k1', 'k2')`, at, at+step)
		if err != nil {
			t.Fatal(err)
		}
		left -= tag.RowsAffected()
	}
	if left != 2*million/1000 {
		t.Errorf("%d are left", left)
	}
}

// The first 10,000 rows of a part are not like the others: the held ones lie at the front, and reasons come in turns.
// The holds of a dead session are none.
//
// OP-20
func TestCountsOfUnlikeRows(t *testing.T) {
	t.Parallel()
	o, pool := counted(t)
	exec, insert := filler(t, pool)
	exec(`INSERT INTO waybill.waybill_outbox_members (session, heartbeats, lease, presence, capacity, free_capacity, name, routes, partitions, unavailable, handed_out, oldest_handed_out)
		VALUES (7, 1, 60000000, 0, 1, 1, 'm', '{}', '{}', '{}', '{}', '{}')`)
	indexed(t, pool, func() {
		insert(40_000, "route, hold", "'ready', CASE WHEN i <= 500 THEN 7 WHEN i <= 600 THEN 8 ELSE 0 END")
		insert(40_000, "route, due_at, retry, state, hold", "'retries', now() - interval '1 day' + i * interval '1 ms', true, 4, CASE WHEN i <= 40500 THEN 7 ELSE 0 END")
		insert(60_000, "route, state, settled_at, reason", "'gone', 5, now(), CASE WHEN i <= 89000 THEN 'rejected' WHEN i <= 89010 THEN 'expired' ELSE 'attempts' END")
		insert(40_000, "route, state, settled_at, reason", "'turned', 5, now(), CASE WHEN i <= 152000 THEN 'rejected' ELSE 'attempts' END")
		insert(10, "route, hold", "'few', CASE WHEN i % 2 = 0 THEN 7 ELSE 0 END")
	})
	sharedtest.Counts(t, o,
		sharedtest.Counted{Route: "ready", State: core.StateProcessing, N: 500, How: "exact"},
		sharedtest.Counted{Route: "ready", State: core.StatePending, N: 39_500, Due: 39_500, How: "estimated"},
		sharedtest.Counted{Route: "retries", State: core.StateProcessing, N: 500, How: "exact"},
		sharedtest.Counted{Route: "retries", State: core.StateFailed, N: 39_500, Due: 39_500, How: "estimated"},
		sharedtest.Counted{Route: "gone", State: core.StateAbandoned, Reason: "rejected", N: 9000, How: "estimated"},
		sharedtest.Counted{Route: "gone", State: core.StateAbandoned, Reason: "expired", N: 10, How: "at least"},
		sharedtest.Counted{Route: "gone", State: core.StateAbandoned, Reason: "attempts", N: 50_990, How: "estimated"},
		sharedtest.Counted{Route: "turned", State: core.StateAbandoned, Reason: "rejected", N: 12_000, How: "estimated"},
		sharedtest.Counted{Route: "turned", State: core.StateAbandoned, Reason: "attempts", N: 28_000, How: "estimated"},
		sharedtest.Counted{Route: "few", State: core.StateProcessing, N: 5, How: "exact"},
		sharedtest.Counted{Route: "few", State: core.StatePending, N: 5, Due: 5, How: "exact"},
	)
	// More than 10,000 are out: a sample tells of them, too.
	exec(`UPDATE waybill.waybill_outbox SET hold = 7 WHERE route = 'ready' AND seq % 2 = 0`)
	counts, err := o.Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	states := 0
	for _, c := range counts {
		if c.Route != "ready" {
			continue
		}
		if states++; !c.Estimated || math.Abs(float64(c.N)-20_000) > 1_300 {
			t.Errorf("%s: %d, estimated %t; want about 20,000", c.State, c.N, c.Estimated)
		}
	}
	if states != 2 {
		t.Errorf("%d states are counted, want pending and processing", states)
	}
}

// OP-20: kept rows of published records cost a count nothing if the owners of the route have stored that they are
// behind them, also beside a snapshot from before all of them were published. If a record that waits lies before them,
// and they are too many, the others are at least so many. Never is the route empty then.
func TestCountsBesideKeptRows(t *testing.T) {
	t.Parallel()
	const kept, few = 120_000, 30
	o, pool := counted(t)
	exec, insert := filler(t, pool)
	exec(`ALTER TABLE waybill.waybill_outbox SET (autovacuum_enabled = off)`)
	exec(`INSERT INTO waybill.waybill_outbox_routes (route, partitions) VALUES ('default', 1), ('other', 0)`)
	exec(`INSERT INTO waybill.waybill_outbox_partitions (route, slots, read_after, uncertain_up_to, term, from_slot, to_slot) VALUES ('default', -1, 0, 0, 1, 0, 64)`)
	indexed(t, pool, func() {
		insert(kept, "route, state, settled_at", "'default', 3, now()")
		insert(few, "route", "'default'")
	})
	count := func(what string, want admin.Count, buffers int64) {
		t.Helper()
		counts, err := o.Counts(t.Context())
		for i := range counts {
			counts[i].Oldest = 0
		}
		if len(counts) == 1 && want.AtLeast && counts[0].N <= few {
			counts[0].N, counts[0].Due = 0, 0
		}
		if want.Route, want.State = "default", core.StatePending; err != nil || !slices.Equal(counts, []admin.Count{want}) {
			t.Errorf("%s: %+v, %v; want %+v", what, counts, err, want)
		}
		p := explain(t, pool, schema.NewNames("", "", ""), o.sql.admin.count, countExact+1, rules.SampleSize, countWalk)
		p.check(t, what, buffers)
	}
	floor := func(seq int64) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), `UPDATE waybill.waybill_outbox_partitions SET read_after = (SELECT min(seq) FROM waybill.waybill_outbox) - 1 + $1`, seq); err != nil {
			t.Fatal(err)
		}
	}
	exact, vague := admin.Count{N: few, Due: few}, admin.Count{Estimated: true, AtLeast: true}
	floor(kept)
	count("behind the floor", exact, 500)
	exec(`INSERT INTO waybill.waybill_outbox_notices (kind, route, slots, seq) VALUES (3, 'default', -1, 1)`)
	count("to be read again", vague, 60_000)
	exec(`DELETE FROM waybill.waybill_outbox_notices`)
	floor(0)
	count("a floor before many", vague, 60_000)
	floor(kept - 50_000)
	count("a floor before some", exact, 5_000)

	// Held records of a queue lie behind the floor.
	exec(`UPDATE waybill.waybill_outbox SET hold = 1, held_since = now() WHERE settled_at IS NULL AND seq % 2 = 0`)
	floor(kept + few)
	count("held", admin.Count{N: few / 2, Due: few / 2}, 500)
	exec(`UPDATE waybill.waybill_outbox SET hold = 0, held_since = NULL WHERE hold = 1`)
	floor(kept)

	old, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err == nil {
		_, err = old.Exec(t.Context(), "SELECT count(*) FROM waybill.waybill_outbox_routes")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Rollback(t.Context()) }()
	exec(`DELETE FROM waybill.waybill_outbox WHERE settled_at IS NOT NULL`)
	count("beside an old snapshot", exact, 500)
}
