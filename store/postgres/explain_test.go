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

	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// plan is a node of EXPLAIN's JSON.
type plan struct {
	NodeType   string  `json:"Node Type"`
	Relation   string  `json:"Relation Name"`
	Index      string  `json:"Index Name"`
	Filter     string  `json:"Filter"`
	Rows       float64 `json:"Actual Rows"`
	Loops      float64 `json:"Actual Loops"`
	Removed    float64 `json:"Rows Removed by Filter"`
	SharedHit  int64   `json:"Shared Hit Blocks"`
	SharedRead int64   `json:"Shared Read Blocks"`
	Plans      []plan  `json:"Plans"`
}

// explain runs sql within our settings, with the plan for any arguments as in production, rolls it back, and returns
// its plan with the real counts.
func explain(tb testing.TB, pool *pgxpool.Pool, n schema.Names, sql string, args ...any) plan {
	tb.Helper()
	ctx := tb.Context()
	tx, err := pool.Begin(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, setSQL); err != nil {
		tb.Fatal(err)
	}
	var text string
	if _, err := tx.Exec(ctx, "PREPARE explained AS "+n.SQL(sql)); err != nil {
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
		// The ids ascend, as those of Waybill do. A row with a slot takes half the time: no trigger runs.
		exec(fmt.Sprintf(`INSERT INTO waybill.waybill_outbox (topic, body, id, slot, %s) SELECT 't', '', lpad(i::text, 9, '0'), i %% 64, %s FROM generate_series(%d, %d) i`,
			columns, values, inserted+1, inserted+n))
		inserted += n
	}
}

// indexed builds the outbox's indexes after fill, and writes no log: a large table is filled in a third of the time so.
// The planner knows as much about the table as if each row had been inserted into the indexes: nothing.
func indexed(t *testing.T, pool *pgxpool.Pool, fill func()) {
	t.Helper()
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`ALTER TABLE waybill.waybill_outbox SET UNLOGGED`)
	var drop, create, forget string
	err := pool.QueryRow(t.Context(), `SELECT string_agg(format('DROP INDEX %s', i.indexrelid::regclass), ';') FILTER (WHERE NOT indisprimary),
			string_agg(pg_get_indexdef(i.indexrelid), ';') FILTER (WHERE NOT indisprimary),
			string_agg(format('UPDATE pg_class SET relpages = %s, reltuples = %s WHERE oid = %L::regclass', relpages, reltuples, c.oid::regclass), ';')
		FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
		WHERE 'waybill.waybill_outbox'::regclass IN (c.oid, i.indrelid)`).Scan(&drop, &create, &forget)
	if err != nil {
		t.Fatal(err)
	}
	exec(drop)
	fill()
	exec(create)
	exec(forget)
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
	return o, pool
}
