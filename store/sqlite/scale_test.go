//go:build linux && !race

package sqlite

import (
	"database/sql"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/tier"
)

// reads returns how many reads the process has made. A store with an empty cache makes one for each page of its file.
func reads(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	var key string
	if _, err := fmt.Sscanf(string(text), "%s %d\n%s %d\n%s %d", &key, new(int), &key, new(int), &key, &n); err != nil || key != "syscr:" {
		t.Fatalf("%s: %v", text, err)
	}
	return n
}

// Among 1,000,000 records (in the gate a tenth of it), half of them scheduled or abandoned, calls touch as many pages
// of the file as among 10,000: reading, settling, and any page of a list or of a redrive. Not parallel: the reads are
// those of the process.
//
// DB-11 DB-12 DB-20
func TestMillionRowsPages(t *testing.T) {
	const small = 10_000
	large := 10 * small
	if tier.IsNightly() { // 25 s of a core
		large = 1_000_000
	}
	cost := func(n int) map[string]int {
		path := filepath.Join(t.TempDir(), "scale.db")
		self := join(t, openAt(t, path, Options{}), route).Session
		big, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_pragma=cache_size(-300000)")
		if err != nil {
			t.Fatal(err)
		}
		run(t, big, `INSERT INTO waybill_outbox (topic, id, slot) VALUES ('orders.placed', '0', 5)`)
		fill(t, big, n/4, "key", "'k' || (n % 1000)")
		fill(t, big, n/2, "key, due_at", fmt.Sprintf("'k' || (n %% 1000), %d", time.Now().Add(time.Hour).UnixMicro()))
		fill(t, big, n/4, "key", "'k' || (n % 1000)")
		fill(t, big, n, "key, state, settled_at, reason", "'k' || (n % 1000), 5, n, 'rejected'")
		run(t, big, "PRAGMA wal_checkpoint(TRUNCATE)")
		if err := big.Close(); err != nil {
			t.Fatal(err)
		}
		out := map[string]int{}
		call := func(name string, fn func(s *Store) error) {
			s := openAt(t, path, Options{})
			// prepares the statements
			if _, err := s.Read(t.Context(), self, core.ReadRequest{}); err != nil {
				t.Fatal(err)
			}
			before := reads(t)
			if err := fn(s); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			out[name] = reads(t) - before
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		var records []core.Record
		for _, from := range []int64{0, int64(n / 8)} {
			call(fmt.Sprintf("read, at the front %t", from == 0), func(s *Store) error {
				p, err := s.Read(t.Context(), self, core.ReadRequest{Slots: []core.RouteSlots{all(route)}, Ranges: []core.Range{{RouteSlots: all(route), AfterSeq: from, UpToSeq: 1 << 62, Limit: 500}}})
				records = p.Ranges[0].Records
				if len(records) != 500 {
					t.Errorf("%d records from %d on", len(records), from)
				}
				return err
			})
		}
		call("settle", func(s *Store) error {
			outcomes := make([]core.Outcome, len(records))
			for i := range records {
				outcomes[i] = core.Published(&records[i])
			}
			return s.Settle(t.Context(), self, outcomes).FirstErr()
		})
		for where, after := range map[string]int64{"the first page": int64(n), "a page in the middle": int64(n + n/2), "the last page": int64(2*n - 50)} {
			for name, f := range map[string]admin.Filter{
				"abandoned": {Reasons: []waybill.Reason{waybill.ReasonRejected}},
				"no match":  {States: []core.State{core.StateAbandoned}, Topics: []string{"none"}},
			} {
				call("list "+name+", "+where, func(s *Store) error {
					_, err := s.List(t.Context(), f, admin.PageRequest{After: after, Budget: small / 2})
					return err
				})
				call("redrive "+name+", "+where, func(s *Store) error {
					_, err := s.Redrive(t.Context(), admin.RedriveRequest{Filter: f, Force: true, DryRun: true, Page: admin.PageRequest{After: after, Budget: small / 2}})
					return err
				})
			}
		}
		return out
	}
	few, many := cost(small), cost(large)
	for _, what := range slices.Sorted(maps.Keys(few)) {
		t.Logf("%s: %d pages among %d records, %d among %d", what, few[what], small, many[what], large)
		most := few[what]*13/10 + 20 // each index may have two levels more
		if what == "settle" {
			most += 500 // among few records those of several keys share a page of the index of keys
		}
		if many[what] > most {
			t.Errorf("%s: %d pages instead of %d: more than %d", what, many[what], few[what], most)
		}
	}
}
