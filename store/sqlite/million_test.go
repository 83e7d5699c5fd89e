//go:build !race

package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
)

// fill writes n rows with plain SQL. Their ids ascend, as those of Waybill do.
func fill(tb testing.TB, db *sql.DB, n int, columns, values string) {
	tb.Helper()
	if _, err := db.ExecContext(tb.Context(), fmt.Sprintf(`WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < %d)
		INSERT INTO waybill_outbox (topic, id, %s) SELECT 'orders.placed', printf('%%020d', n + (SELECT max(seq) FROM waybill_outbox)), %s FROM c`, n, columns, values)); err != nil {
		tb.Fatal(err)
	}
}

// A million rows that cannot be claimed (behind a blocked key, in the far future, leased, abandoned) do not slow down
// what is done over and over.
//
// Without the race detector, which slows SQLite down thirtyfold: make unit runs it beside the others.
//
// DB-20
func TestMillionRows(t *testing.T) {
	if testing.Short() {
		t.Skip("writes a million rows")
	}
	file := "file:" + filepath.Join(t.TempDir(), "big.db") + "?_txlock=immediate&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
	openFile := func(file string) *sql.DB {
		db, err := sql.Open("sqlite", file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		return db
	}
	db := openFile(file)
	s, err := New(db, Options{Source: "/big", AutoMigrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	stage(t, s, raw("head", "blocked"))
	c := claim(t, s, request(1))
	settle(t, s, core.Retry(&c.Records[0], errors.New("no"), time.Hour))
	began := time.Now()
	later := time.Now().Add(time.Hour).UnixMicro()
	big := openFile(file + "&_pragma=cache_size(-300000)") // 300 MB: with the usual 2 MB it takes half as long again
	fill(t, big, 100_000, "key", "'blocked'")
	fill(t, big, 300_000, "key, hold, wake_at", fmt.Sprintf("'k' || (n + 1000000), 1, %d + n", later))
	fill(t, big, 300_000, "key, state, wake_at", "'k' || (n + 1000000), 5, NULL")
	fill(t, big, 100_000, "key, state, hold, wake_at, token", fmt.Sprintf("'l' || (n + 1000000), 2, 2, %d + n, 1", later))
	fill(t, big, 200_000, "key, state, hold, wake_at, token, crashes", fmt.Sprintf("'m' || (n + 1000000), 4, 2, %d + n, 1, 1", later))
	t.Logf("filled in %s", time.Since(began))
	checkPlans(t, s)

	began, rounds := time.Now(), 0
	for c = claim(t, s, request(100)); len(c.Records) == 0 && c.More; c = claim(t, s, request(100)) {
		rounds++
	}
	t.Logf("one lap over the blocked ones: %d claims, %s", rounds, time.Since(began))
	if len(c.Records) > 0 || c.NextIn < 0 || rounds > 200 {
		t.Fatalf("claimed %d, next in %s, after %d rounds", len(c.Records), c.NextIn, rounds)
	}
	slowest := map[string]time.Duration{}
	timed := func(name string, fn func()) {
		began := time.Now()
		fn()
		slowest[name] = max(slowest[name], time.Since(began))
	}
	for i := range 50 {
		timed("stage", func() { stage(t, s, raw(fmt.Sprint("new", i), fmt.Sprint("key", i))) })
		timed("claim", func() { c = claim(t, s, request(100)) })
		if len(c.Records) != 1 {
			t.Fatalf("round %d: claimed %d records", i, len(c.Records))
		}
		timed("settle", func() { settle(t, s, core.Published(&c.Records[0])) })
		timed("empty claim", func() { c = claim(t, s, request(100)) })
	}
	timed("counts", func() {
		counts, err := s.Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		total := int64(0)
		for _, c := range counts {
			if total += c.N; !c.Estimated {
				t.Errorf("count %+v", c)
			}
		}
		if len(counts) != 4 || total < 3*countLimit {
			t.Errorf("counts %+v", counts)
		}
	})
	timed("high water", func() {
		if ts, err := s.HighWater(t.Context()); err != nil || ts.IsZero() {
			t.Errorf("high water %v, %v", ts, err)
		}
	})
	for name, d := range slowest {
		t.Logf("%-12s at most %s", name, d)
		if d > 2*time.Second {
			t.Errorf("%s took %s", name, d)
		}
	}
}
