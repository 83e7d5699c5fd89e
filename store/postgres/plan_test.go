package postgres

import (
	"context"
	"encoding/json"
	"fmt"
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

// explain runs sql within a claim's settings, rolls it back, and returns its plan with what it really did.
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
	if err := tx.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+n.sql(sql), args...).Scan(&text); err != nil {
		tb.Fatalf("%v\n%s", err, sql)
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

func claimArgs(v *view) []any {
	return []any{v.routes, v.lo, v.hi, v.floor, v.keyed, v.block, v.window, v.skip, v.records, v.bytes, false, "test", int64(1), int64(60_000_000)}
}

func oneRoute(lo int64, window, records int) *view {
	v := &view{window: window, records: records, bytes: 1 << 40, skip: []string{}}
	v.add(&core.RouteOrder{Route: core.DefaultRoute}, lo, 1<<62, false)
	return v
}

func TestX(t *testing.T) {
	db := testenv.Postgres(t)
	pool, err := pgxpool.New(t.Context(), db.DSN)
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
	for _, key := range []string{"", "i % 1000"} {
		if key == "" {
			key = "''"
		}
		if _, err := pool.Exec(t.Context(), `TRUNCATE waybill.waybill_outbox`); err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(t.Context(), `INSERT INTO waybill.waybill_outbox (topic, key, body) SELECT 't.x', `+key+`, convert_to(repeat('x', 256), 'UTF8') FROM generate_series(1, 20000) i`); err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(t.Context(), `ANALYZE waybill.waybill_outbox`); err != nil {
			t.Fatal(err)
		}
		tx, _ := pool.Begin(t.Context())
		all := make([]int32, shards)
		for i := range all {
			all[i] = int32(i)
		}
		_, err := tx.Exec(t.Context(), setSQL)
		if err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(t.Context(), lockSQL, all, o.names.lockClass())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			tx.Exec(t.Context(), "SAVEPOINT a")
			rows, err := tx.Query(t.Context(), "EXPLAIN (ANALYZE, COSTS off, BUFFERS off) "+o.claims.claim, claimArgs(oneRoute(0, 1200, 500))...)
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			fmt.Println(strings.Join(lines, "\n"))
			tx.Exec(t.Context(), "ROLLBACK TO a")
		}
		tx.Rollback(t.Context())
	}
}
