//go:build linux && !race

package sqlite

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/tier"
)

// A million rows that cannot be handed out (of a blocked key, in the far future, held, abandoned) do not slow down the
// repeated work. Not parallel: the reads are those of the process.
//
// It runs without the race detector, which slows SQLite down thirtyfold.
//
// DB-20
func TestMillionRows(t *testing.T) {
	tier.Nightly(t, "writes a million rows: 15 s of a core")
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
	s := newStore(t, db, Options{Source: "/big", AutoMigrate: true, Retention: waybill.Retention{Abandoned: waybill.Forever}})
	other := join(t, s, "elsewhere")
	m := join(t, s, route)
	stage(t, s, raw("head", "blocked"))
	settle(t, s, m.Session, core.Retry(get(t, s, m.Session, route, "head"), errNo, time.Hour))
	later := time.Now().Add(time.Hour).UnixMicro()
	// 300 MB: with the usual 2 MB it takes half as long again
	big := openFile(file + "&_pragma=cache_size(-300000)")
	fill(t, big, 100_000, "key", "'blocked'")
	fill(t, big, 300_000, "key, due_at", fmt.Sprintf("'k' || (n + 1000000), %d + n", later))
	fill(t, big, 300_000, "key, state, settled_at, reason", "'k' || (n + 1000000), 5, n, 'rejected'")
	fill(t, big, 100_000, "key, hold, held_since", fmt.Sprintf("'l' || (n + 1000000), %d, n", other.Session))
	fill(t, big, 200_000, "key, state, due_at, attempts", fmt.Sprintf("'m' || (n + 1000000), 4, %d + n, 1", later))

	most := map[string]int{}
	counted := func(name string, fn func()) {
		before := reads(t)
		fn()
		most[name] = max(most[name], reads(t)-before)
	}
	look := func(l core.ReadRequest) (p core.ReadResult) {
		p, err := s.Read(t.Context(), m.Session, l)
		if err != nil || !p.IsMember {
			t.Fatal(p.IsMember, err)
		}
		return p
	}
	// An owner does not read again the rows that it has passed: it is at the front from then on.
	var front core.ReadResult
	from, pages := int64(0), 0
	for more := true; more; pages++ {
		counted("page of the backlog", func() {
			front = look(core.ReadRequest{Ranges: []core.Range{{
				RouteSlots: all(route), AfterSeq: from, UpToSeq: 1 << 62, Limit: 500,
				ExcludeKeys: []string{"blocked"},
			}}, Bytes: 1 << 20})
		})
		if rs := front.Ranges[0].Records; len(rs) > 0 {
			from = rs[len(rs)-1].Seq
		}
		more = front.Ranges[0].More
	}
	t.Logf("one pass over the backlog: %d pages", pages)
	last := front.LastSeq
	for i := range 50 {
		id, key := fmt.Sprint("new", i), fmt.Sprint("key", i)
		counted("stage", func() { stage(t, s, raw(id, key)) })
		var p core.ReadResult
		counted("read", func() {
			p = look(core.ReadRequest{
				KnownLastSeq: last, Slots: []core.RouteSlots{all(route)}, Ranges: []core.Range{{RouteSlots: all(route), AfterSeq: last, UpToSeq: 1 << 62, Limit: 500}},
				Keys: []core.KeyRange{{Route: route, Key: key, UpToSeq: 1 << 62, Limit: 100}}, BlockingRoutes: []string{route},
			})
		})
		rs := p.Ranges[0].Records
		if len(rs) != 1 || rs[0].ID != id || len(p.Keys[0].Records) != 1 {
			t.Fatalf("round %d: read %s", i, ids(rs))
		}
		last = p.LastSeq
		counted("hold", func() { hold(t, s, m.Session, &rs[0]) })
		counted("due", func() {
			if d := dueNow(t, s, m.Session); len(d.Retries)+d.TimersReady > 0 || d.NextIn <= 0 || d.NextIn > time.Hour {
				t.Fatalf("due: %+v", d)
			}
		})
		counted("settle", func() { settle(t, s, m.Session, core.Published(&rs[0])) })
		counted("renewal", func() {
			m.Heartbeats++
			heartbeat(t, s, core.HeartbeatRequest{Self: m})
		})
	}
	counted("fresh", func() {
		p := look(core.ReadRequest{NewlyOwned: []core.RouteSlots{all(route)}, BlockingLimit: 1000})
		if len(p.Blocking) != 1000 || !p.MoreBlocking || p.Blocking[0].ID != "head" {
			t.Errorf("%d wait, more %v", len(p.Blocking), p.MoreBlocking)
		}
	})
	counted("next without a key", func() {
		if taken, err := s.Hold(t.Context(), m.Session, core.HoldRequest{KeylessSlots: all(route), KeylessLimit: 10}); err != nil || len(taken) > 0 {
			t.Errorf("%v %v", taken, err)
		}
	})
	counted("wait", func() {
		if _, err := s.Wait(t.Context(), []string{route}, time.Millisecond); err != nil {
			t.Error(err)
		}
	})
	counted("release partition", func() {
		for _, u := range heartbeat(t, s, core.HeartbeatRequest{}).Partitions {
			if u.Owner != m.Session {
				continue
			}
			if ok, err := s.ReleasePartition(t.Context(), m.Session, u, nil); err != nil || !ok {
				t.Error(ok, err)
			}
		}
	})
	counted("clean", func() {
		if _, err := s.Clean(t.Context(), "cleaner", time.Second); err != nil {
			t.Error(err)
		}
	})
	counted("counts", func() {
		counts, err := s.Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		total := int64(0)
		for _, c := range counts {
			total += c.N
			if !c.Estimated {
				t.Errorf("count %+v", c)
			}
		}
		if len(counts) != 3 || total < 3*countLimit {
			t.Errorf("counts %+v", counts)
		}
	})
	counted("high water", func() {
		if ts, err := s.HighWater(t.Context()); err != nil || ts.IsZero() {
			t.Errorf("high water %v, %v", ts, err)
		}
	})
	// The tables have some 100,000 pages, of which the cache holds 500.
	const limit = 5000
	for name, n := range most {
		t.Logf("%-20s at most %d reads", name, n)
		if n > limit {
			t.Errorf("%s made %d reads, want at most %d", name, n, limit)
		}
	}
}
