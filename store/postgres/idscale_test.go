package postgres_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// calls returns how many statements on the outbox ran in a database.
func (s *scaled) calls(t *testing.T, database string) (n int) {
	t.Helper()
	err := s.side.QueryRow(t.Context(), `SELECT coalesce(sum(calls), 0)::int FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
		WHERE d.datname = $1 AND s.query LIKE '%waybill_outbox%'`, database).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// DB-11 DB-20: a record is found by an id that Waybill made, behind any number of waiting records. A page of such a
// list touches as much among 2,000,000 records as among 20,000, half of them scheduled, and so does each statement of
// Inspect. Other ids are in indexes: an unknown one costs nothing.
func TestIDsScale(t *testing.T) {
	t.Parallel()
	s := newScaled(t)
	cost := func(n int) map[string]float64 {
		name := fmt.Sprintf("ids_%d", n)
		o := s.outbox(t, name, fmt.Sprintf(`slot, due_at) SELECT 't.x', 'k' || i %% 1000, 'body', false, i %% 64, CASE WHEN i <= %d THEN now() + interval '1 day' END
			FROM generate_series(1, %d) i`, n/2, n))
		pool := openPool(t, s.server.DSN(name))
		var ids []string // in the order of their sequences
		if err := pool.QueryRow(t.Context(), "SELECT array_agg(id ORDER BY seq) FROM waybill.waybill_outbox WHERE seq = ANY ($1)",
			[]int{1, n/2 + 1, n}).Scan(&ids); err != nil || len(ids) != 3 {
			t.Fatal(ids, err)
		}
		out := map[string]float64{}
		most := func(what string, fn func()) { out[what] = max(out[what], s.blocks(t, name, fn)) }

		f, page := admin.Filter{IDs: append([]string{"none", waybill.NewID()}, ids...)}, admin.PageRequest{}
		var found []string
		for pages := 1; ; pages++ {
			var l admin.Listing
			most("a page of ids", func() {
				var err error
				if l, err = o.List(t.Context(), f, page); err != nil {
					t.Fatal(err)
				}
			})
			for i := range l.Records {
				found = append(found, l.Records[i].Envelope.ID)
			}
			if page.After = l.Next; l.Next == 0 {
				if want := n/admin.DefaultPageBudget + 1; pages > want {
					t.Errorf("%d pages for %d records, want at most %d", pages, n, want)
				}
				break
			}
		}
		if !slices.Equal(found, ids) {
			t.Errorf("among %d records the list found %q, want %q", n, found, ids)
		}
		f.IDs = append([]string{"none"}, ids[0])
		most("ids of the indexes", func() {
			if l, err := o.List(t.Context(), f, admin.PageRequest{}); err != nil || len(l.Records) != 1 || l.Next != 0 {
				t.Errorf("%d records, next %d, %v", len(l.Records), l.Next, err)
			}
		})
		inspect := func(what, id string, want error) {
			calls := s.calls(t, name)
			most(what, func() {
				if st, err := o.Inspect(t.Context(), waybill.DefaultRoute, id); !errors.Is(err, want) || err == nil && st.Envelope.ID != id {
					t.Errorf("inspect of %s among %d records: id %q, error %v", what, n, st.Envelope.ID, err)
				}
			})
			calls = s.calls(t, name) - calls
			if most := n/admin.DefaultPageBudget + 3; calls < 1 || calls > most {
				t.Errorf("inspect of %s: %d statements, want at most %d", what, calls, most)
			}
			out[what] /= float64(calls)
		}
		inspect("a scheduled one", ids[0], nil)
		inspect("the last one", ids[2], nil)
		inspect("none like those that Waybill makes", waybill.NewID(), waybill.ErrNotFound)
		inspect("none", "none", waybill.ErrNotFound)
		return out
	}
	few, many := cost(2*small), cost(2*large(t))
	for what, n := range few {
		t.Logf("%s: %.0f blocks a statement among %d records, %.0f among %d", what, n, 2*small, many[what], 2*large(t))
		if walks := what == "the last one" || what == "none like those that Waybill makes"; walks {
			n = few["a page of ids"] // by the same steps; the first and the last statement do less
		}
		if most := n*grown + 2; many[what] > most { // an index of many has a level more
			t.Errorf("%s: %.0f blocks a statement, want at most %.0f", what, many[what], most)
		}
	}
}
