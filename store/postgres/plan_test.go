package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
)

// plan is a node of EXPLAIN's JSON.
type plan struct {
	NodeType   string  `json:"Node Type"`
	Relation   string  `json:"Relation Name"`
	Index      string  `json:"Index Name"`
	Rows       float64 `json:"Actual Rows"`
	Loops      float64 `json:"Actual Loops"`
	SharedHit  int64   `json:"Shared Hit Blocks"`
	SharedRead int64   `json:"Shared Read Blocks"`
	Plans      []plan  `json:"Plans"`
}

// explain runs sql within a claim's settings, with the plan for any arguments as in production, rolls it back, and
// returns its plan with what it really did.
func explain(tb testing.TB, pool *pgxpool.Pool, n names, sql string, args ...any) plan {
	tb.Helper()
	ctx := tb.Context()
	tx, err := pool.Begin(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	all := make([]int32, shards)
	for i := range all {
		all[i] = int32(i)
	}
	if _, err := tx.Exec(ctx, setSQL); err != nil {
		tb.Fatal(err)
	}
	if _, err := tx.Exec(ctx, lockSQL, all, n.lockClass()); err != nil {
		tb.Fatal(err)
	}
	var text string
	if _, err := tx.Exec(ctx, "PREPARE explained AS "+n.sql(sql)); err != nil {
		tb.Fatalf("%v\n%s", err, sql)
	}
	holes := make([]string, len(args))
	for i := range holes {
		holes[i] = "$" + strconv.Itoa(i+1)
	}
	list := ""
	if len(args) > 0 {
		list = "(" + strings.Join(holes, ", ") + ")"
	}
	args = append([]any{pgx.QueryExecModeSimpleProtocol}, args...)
	if err := tx.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE explained"+list, args...).Scan(&text); err != nil {
		tb.Fatalf("%v\n%s", err, sql)
	}
	if _, err := tx.Exec(ctx, "DEALLOCATE explained"); err != nil {
		tb.Fatal(err)
	}
	var out []struct{ Plan plan }
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		tb.Fatal(err)
	}
	return out[0].Plan
}

func (p *plan) walk(fn func(*plan)) {
	fn(p)
	for i := range p.Plans {
		p.Plans[i].walk(fn)
	}
}

// filler returns functions that run SQL, and that insert n rows with these columns; i counts all rows.
func filler(t *testing.T, pool *pgxpool.Pool) (exec func(sql string), insert func(n int, columns, values string)) {
	t.Helper()
	exec = func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	inserted := 0
	return exec, func(n int, columns, values string) {
		t.Helper()
		exec(fmt.Sprintf(`INSERT INTO waybill.waybill_outbox (topic, body, id, %s) SELECT 't', '', lpad(i::text, 9, '0'), %s FROM generate_series(%d, %d) i`,
			columns, values, inserted+1, inserted+n)) // the ids ascend, as those of Waybill do
		inserted += n
	}
}

// indexed builds the outbox's indexes after fill, and writes no log: a large table is filled in half the time so.
func indexed(t *testing.T, pool *pgxpool.Pool, fill func()) {
	t.Helper()
	var drop, create string
	err := pool.QueryRow(t.Context(), `SELECT string_agg(format('DROP INDEX waybill.%I', indexname), ';'), string_agg(indexdef, ';') FROM pg_indexes
		WHERE schemaname = 'waybill' AND tablename = 'waybill_outbox' AND indexname <> 'waybill_outbox_pkey'`).Scan(&drop, &create)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), drop+"; ALTER TABLE waybill.waybill_outbox SET UNLOGGED"); err != nil {
		t.Fatal(err)
	}
	fill()
	if _, err := pool.Exec(t.Context(), create); err != nil {
		t.Fatal(err)
	}
}

// check fails if a table of Waybill's was scanned, or more than so many buffers were read.
func (p *plan) check(t *testing.T, name string, buffers int64) {
	t.Helper()
	p.walk(func(n *plan) {
		if strings.HasPrefix(n.NodeType, "Seq Scan") && (n.Relation == "waybill_outbox" || n.Relation == "waybill_inbox") {
			t.Errorf("%s: sequential scan of %s", name, n.Relation)
		}
	})
	if b := p.SharedHit + p.SharedRead; b > buffers {
		t.Errorf("%s: %d buffers, more than %d", name, b, buffers)
	} else {
		t.Logf("%s: %d buffers", name, b)
	}
}

func claimArgs(v *view) []any {
	return []any{v.routes, v.lo, v.hi, v.floor, v.keyed, v.block, v.window, v.skip, v.records, v.bytes, false, "test", int64(1), int64(60_000_000), int64(1)}
}

func oneRoute(lo int64, window, records int) *view {
	v := &view{window: window, records: records, bytes: 1 << 40, skip: []string{}}
	v.add(&core.RouteOrder{Route: core.DefaultRoute}, lo, 1<<62, 0, frontRange)
	return v
}

func newPlanOutbox(t *testing.T) (*Outbox, *pgxpool.Pool) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testenv.Postgres(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	o, err := NewOutbox(pool, Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	in, err := NewInbox(pool, InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return o, pool
}

// DB-20: with a million rows every repeated statement goes by an index, and what it reads does not grow with settled,
// leased, scheduled or held rows.
func TestPlans(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("fills a million rows")
	}
	o, pool := newPlanOutbox(t)
	exec, insert := filler(t, pool)
	// The rows that a claim should take come last. A filler of bulk rows stands before them.
	indexed(t, pool, func() {
		insert(300_000, "state, settled_at, reason, key", "5, now(), 'rejected', 'a' || i % 1000")
		insert(400_000, "due_at, key", "now() + interval '1 day', 'k' || i % 1000")
		insert(100_000, "state, lease_until, lease_token, key", "2, now() + interval '1 hour', 1, 'l' || i")
		insert(1, "state, holds, due_at, attempts, key", "4, true, now() + interval '1 hour', 1, 'blocked'")
		insert(100_000, "key", "'blocked'")
		insert(100_000, "key", "CASE WHEN i % 2 = 0 THEN 'k' || i % 1000 ELSE '' END")
	})
	front := int64(900_001)
	exec("INSERT INTO waybill.waybill_inbox (consumer, source, id) SELECT 'c', 's', i::text FROM generate_series(1, 100000) i")
	exec("ANALYZE")

	seqs := make([]int64, 100)
	tokens := make([]int64, 100)
	for i := range seqs {
		seqs[i], tokens[i] = 700_001+int64(i), 1
	}
	names := []string{core.DefaultRoute}
	view := func(lo int64) []any { return claimArgs(oneRoute(lo, 850, 500)) }
	bare := func(s string) string { return pgx.Identifier{o.names.outbox + s}.Sanitize() }
	for _, tc := range []struct {
		name    string
		sql     string
		args    []any
		buffers int64
	}{
		{"claim at the front", claimKeyedSQL, view(front), 40_000},
		{"claim at the front, as if nothing had a key", claimUnkeyedSQL, view(front), 10_000},
		{"claim from the start: leased rows", claimKeyedSQL, view(0), 10_000},
		{"claim: a blocked key's tail", claimKeyedSQL, view(800_001), 10_000},
		{"claim all at the front: what is there", frontSQL, []any{core.DefaultRoute, front, 500, int64(1) << 40, false}, 1000},
		{"claim all at the front", strings.ReplaceAll(takeFrontSQL, frontEnd, "(1::bigint << 62)"), []any{core.DefaultRoute, front, 500, "test", int64(1), int64(60_000_000), false}, 10_000},
		{"claim all at the front, keys: what is there", frontKeyedSQL, []any{core.DefaultRoute, front, 500, int64(1) << 40, front - 1000, int64(1)}, 5000},
		{"claim all at the front, keys", strings.NewReplacer(frontEnd, "(1::bigint << 62)", frontRows, "concat(500, ' ', sum(e.seq))").Replace(takeFrontKeyedSQL), []any{core.DefaultRoute, front, 500, "test", int64(1), int64(60_000_000)}, 10_000},
		{"promote", promoteSQL, []any{names, promoteStep}, 100},
		{"settle published", settlePublishedSQL(someSQL, false), []any{seqs, int64(1), len(seqs)}, 2000},
		{"settle a whole claim", settlePublishedSQL(rangeSQL, false), []any{[]int64{seqs[0], seqs[len(seqs)-1]}, int64(1), len(seqs)}, 2000},
		{"extend", extendSQL, []any{seqs, tokens, int64(1000)}, 10_000},
		{"mark", markSQL, []any{int64(1)}, 20},
		{"high water", highWaterSQL, nil, 200},
		{"look", lookSQL, []any{int64(0)}, 20},
		{"count", countSQL, []any{countExact + 1, `"waybill".`, bare("_ready"), bare("_timer"), bare("_reason"), "waybill", "waybill_outbox"}, 30_000},
		{"list: a budget without a match", listSQL(walkAll), filterArgs(&core.Filter{Topics: []string{"u"}}, core.Page{After: 500_000, Limit: 100, Budget: 10_000}), 30_000},
		{"list: abandoned", listSQL(walkAbandoned), filterArgs(&core.Filter{Reasons: []core.Reason{"rejected"}}, core.Page{After: 100_000, Limit: 1000, Budget: 10_000}), 10_000},
		{"blocked keys", blockedSQL, []any{core.DefaultRoute, "a1", true, 100}, 5000},
		{"inbox", markInboxSQL, []any{"c", "s", "5", "5s"}, 20},
		{"stage", insertForm{one: true, notify: true}.sql(), stageArgs(t, o), 100},
	} {
		p := explain(t, pool, o.names, tc.sql, tc.args...)
		p.check(t, tc.name, tc.buffers)
	}
}

// DB-20: the plans do not depend on statistics. A table that grew since it was created, and was never analysed, is what
// the first backlog of a new service looks like.
func TestPlansWithoutStatistics(t *testing.T) {
	t.Parallel()
	o, pool := newPlanOutbox(t)
	for _, sql := range []string{
		"ALTER TABLE waybill.waybill_outbox SET (autovacuum_enabled = false)",
		"INSERT INTO waybill.waybill_outbox (topic, body, key) SELECT 't', 'x', 'k' || i % 1000 FROM generate_series(1, 50000) i",
		"INSERT INTO waybill.waybill_outbox (topic, body) SELECT 't', 'x' FROM generate_series(1, 50000) i",
		"INSERT INTO waybill.waybill_outbox (topic, body, key, due_at) SELECT 't', 'x', 'd' || i % 1000, now() FROM generate_series(1, 50000) i",
		"INSERT INTO waybill.waybill_outbox (topic, body, key) SELECT 't', 'x', 'd' || i % 1000 FROM generate_series(1, 1000) i",
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name    string
		sql     string
		lo      int64
		buffers int64
	}{
		{"keyed, from the start", claimKeyedSQL, 0, 12_000},
		{"keyed, in the middle", claimKeyedSQL, 25_000, 12_000},
		{"without keys", claimUnkeyedSQL, 50_000, 6_000},
		{"behind schedules that came due", claimKeyedSQL, 100_000, 12_000},
	} {
		p := explain(t, pool, o.names, tc.sql, claimArgs(oneRoute(tc.lo, 645, 500))...)
		p.walk(func(n *plan) {
			if n.Rows*n.Loops > 50_000 {
				t.Errorf("%s: %s went over %.0f rows", tc.name, n.NodeType, n.Rows*n.Loops)
			}
		})
		p.check(t, tc.name, tc.buffers)
	}
}

func stageArgs(t *testing.T, o *Outbox) []any {
	t.Helper()
	rows, err := o.stager.stamper.Stamp(t.Context(), []core.Message{core.RawMessage("t", "text/plain", nil, core.Key("k"))})
	if err != nil {
		t.Fatal(err)
	}
	_, args, err := o.stager.statement(rows)
	if err != nil {
		t.Fatal(err)
	}
	return args
}
