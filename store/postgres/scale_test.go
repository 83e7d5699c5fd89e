package postgres_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres"
)

const (
	small = 10_000
	// grown is how much more a call may touch in a large table than in a small one.
	grown = 1.3
)

// large is how many records a large table has: 1,000,000, in the gate a tenth of it, or what WAYBILL_SCALE says; make
// nightly says 10,000,000. A call that goes through the table touches ten times as much in the gate, too, far beyond
// grown; only the nightly run shows a growth that is small beside the rest of a call, or a plan for large tables.
func large(t *testing.T) int {
	t.Helper()
	text := os.Getenv("WAYBILL_SCALE")
	switch {
	case text == "" && tier.IsNightly():
		return 1_000_000
	case text == "":
		return 10 * small
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 10*small {
		t.Fatalf("WAYBILL_SCALE is %q, not a number from %d on", text, 10*small)
	}
	return n
}

// scaled is a server that counts blocks by statement.
type scaled struct {
	server *testenv.PostgresServer
	side   *pgx.Conn
}

func newScaled(t *testing.T) *scaled {
	t.Helper()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{Settings: map[string]string{
		"shared_preload_libraries": "pg_stat_statements", "autovacuum": "off", "fsync": "off", "waybill.allow_unsafe_settings": "on", "max_wal_size": "4GB", "maintenance_work_mem": "512MB",
		"shared_buffers": "256MB",
	}})
	side, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { side.Close(context.WithoutCancel(t.Context())) })
	if _, err := side.Exec(t.Context(), "CREATE EXTENSION pg_stat_statements"); err != nil {
		t.Fatal(err)
	}
	return &scaled{server, side}
}

// outbox returns an outbox in a database of its own. fill ends the INSERT of its rows, after the first columns.
func (s *scaled) outbox(t *testing.T, name, fill string) *postgres.Outbox {
	t.Helper()
	if _, err := s.side.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	pool := openPool(t, s.server.DSN(name))
	o := outboxOn(t, pool, postgres.Options{})
	postgres.Indexed(t, pool, func() {
		exec(t, pool, "INSERT INTO waybill.waybill_outbox (topic, key, body, own_id, "+fill)
	})
	exec(t, pool, "VACUUM ANALYZE waybill.waybill_outbox")
	return o
}

// blocks returns how many blocks the statements in a database touch while fn runs.
func (s *scaled) blocks(t *testing.T, database string, fn func()) float64 {
	t.Helper()
	sum := func() (n float64) {
		err := s.side.QueryRow(t.Context(), `SELECT coalesce(sum(shared_blks_hit + shared_blks_read), 0)::float8
			FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = $1`, database).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := sum()
	fn()
	return sum() - before
}

// DB-20: reading and settling touch as much in a table of 1,000,000 records, half of them scheduled, as in one of
// 10,000.
func TestReadAndSettleScale(t *testing.T) {
	t.Parallel()
	s := newScaled(t)
	cost := func(n int) map[string]float64 {
		name := fmt.Sprintf("waiting_%d", n)
		o := s.outbox(t, name, fmt.Sprintf(`slot, due_at) SELECT 't.x', 'k' || i / 2 %% 1000, 'body', false, i %% 64, CASE WHEN i %% 2 = 0 THEN now() + interval '1 day' END
			FROM generate_series(1, %d) i`, n))
		self := join(t, o, waybill.DefaultRoute, 1)
		part, from := all(waybill.DefaultRoute), int64(0)
		page := func() (rs []core.Record) {
			p, err := o.Read(t.Context(), self, core.ReadRequest{Slots: []core.RouteSlots{part}, Ranges: []core.Range{{RouteSlots: part, AfterSeq: from, UpToSeq: 1 << 62, Limit: 500}}, Bytes: 1 << 24})
			if err != nil || len(p.Ranges[0].Records) != 500 {
				t.Fatal(err, len(p.Ranges))
			}
			rs = p.Ranges[0].Records
			from = rs[len(rs)-1].Seq
			return rs
		}
		out := map[string]float64{}
		for range 5 {
			var rs []core.Record
			out["read"] += s.blocks(t, name, func() { rs = page() })
			outcomes := make([]core.Outcome, len(rs))
			for i := range rs {
				outcomes[i] = core.Published(&rs[i])
			}
			out["settle"] += s.blocks(t, name, func() { settleBy(t, o, self, outcomes...) })
			out["due"] += s.blocks(t, name, func() {
				if d, err := o.Due(t.Context(), self, []core.RouteSlots{part}, 500); err != nil || d.NextIn <= 0 {
					t.Fatal(d.NextIn, err)
				}
			})
		}
		return out
	}
	few, many := cost(small), cost(large(t))
	for what, n := range few {
		t.Logf("%s: %.0f blocks among %d records, %.0f among %d", what, n, small, many[what], large(t))
		if many[what] > n*grown {
			t.Errorf("%s: %.0f blocks instead of %.0f: more than %.1f times as many", what, many[what], n, grown)
		}
	}
}

// DB-11 DB-12 DB-20: a page of a list, a redrive or a purge touches as much among 1,000,000 abandoned records as the
// first page among 10,000, wherever it begins. With a filter that is its budget.
func TestAbandonedScale(t *testing.T) {
	t.Parallel()
	s := newScaled(t)
	abandoned := []core.State{core.StateAbandoned}
	filters := []struct {
		name   string
		filter admin.Filter
	}{
		{"all", admin.Filter{}},
		{"abandoned", admin.Filter{States: abandoned}},
		{"rejected", admin.Filter{Reasons: []waybill.Reason{waybill.ReasonRejected}}},
		{"a key", admin.Filter{States: abandoned, Keys: []string{"k7"}}},
		{"no match", admin.Filter{Topics: []string{"none"}}},
		{"abandoned, no match", admin.Filter{States: abandoned, Topics: []string{"none"}}},
		{"ids", admin.Filter{States: abandoned, IDs: []string{"none", "nor this"}}},
	}
	calls := []struct {
		name string
		do   func(o *postgres.Outbox, f admin.Filter, page admin.PageRequest) error
	}{
		{"list", func(o *postgres.Outbox, f admin.Filter, page admin.PageRequest) error {
			_, err := o.List(t.Context(), f, page)
			return err
		}},
		{"dry redrive", func(o *postgres.Outbox, f admin.Filter, page admin.PageRequest) error {
			_, err := o.Redrive(t.Context(), admin.RedriveRequest{Filter: f, All: true, Force: true, DryRun: true, Page: page})
			return err
		}},
		{"dry purge", func(o *postgres.Outbox, f admin.Filter, page admin.PageRequest) error {
			_, err := o.PurgeRecords(t.Context(), admin.PurgeRequest{Filter: f, All: true, DryRun: true, Page: page})
			return err
		}},
		// they change the table: last
		{"redrive", func(o *postgres.Outbox, f admin.Filter, page admin.PageRequest) error {
			_, err := o.Redrive(t.Context(), admin.RedriveRequest{Filter: f, All: true, Force: true, Page: page})
			return err
		}},
		{"purge", func(o *postgres.Outbox, f admin.Filter, page admin.PageRequest) error {
			_, err := o.PurgeRecords(t.Context(), admin.PurgeRequest{Filter: f, All: true, Page: page})
			return err
		}},
	}
	// cost returns the blocks of each call: of its first page, of one in the middle, and of the last.
	cost := func(n int) map[string][]float64 {
		name := fmt.Sprintf("abandoned_%d", n)
		o := s.outbox(t, name, fmt.Sprintf(`slot, state, settled_at, reason) SELECT 't.x', 'k' || i %% 1000, 'body', false, i %% 64, 5, now(), 'rejected'
			FROM generate_series(1, %d) i`, n))
		out := map[string][]float64{}
		for _, call := range calls {
			for _, f := range filters {
				pages := make([]float64, 3)
				for i, after := range [...]int64{0, int64(n / 2), int64(n - 150)} {
					pages[i] = s.blocks(t, name, func() {
						if err := call.do(o, f.filter, admin.PageRequest{After: after}); err != nil {
							t.Fatal(err)
						}
					})
				}
				out[call.name+": "+f.name] = pages
			}
		}
		return out
	}
	few, many := cost(small), cost(large(t))
	for _, what := range slices.Sorted(maps.Keys(few)) {
		t.Logf("%-35s %4.0f blocks among %d records, %4.0f among %d", what, few[what], small, many[what], large(t))
		if most := slices.Max(many[what]); most > few[what][0]*grown {
			t.Errorf("%s: a page touches %.0f blocks instead of %.0f: more than %.1f times as many", what, most, few[what][0], grown)
		}
	}
}
