package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Every repeated statement is served by an index.
// DB-20
func TestPlans(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Prefix: "other_"})
	checkPlans(t, s)
}

func checkPlans(t *testing.T, s *Store) {
	t.Helper()
	v := reflect.ValueOf(s.text)
	for i := range v.NumField() {
		name, text := v.Type().Field(i).Name, v.Field(i).String()
		switch name {
		case "insertRow", "insertEnd": // parts
			continue
		case "insert":
			text = s.insertText(2)
		}
		if strings.Contains(text, DefaultPrefix) && s.opts.Prefix != DefaultPrefix {
			t.Errorf("%s does not heed the prefix: %s", name, text)
		}
		args := make([]any, 0, 20)
		if strings.Contains(text, ":now") {
			for _, p := range []string{"route", "now", "ordered", "block", "first", "last", "limit", "suspect"} {
				args = append(args, sql.Named(p, 1))
			}
		} else {
			for range 20 {
				args = append(args, "1")
			}
		}
		rows, err := s.DB().QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+text, args...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for rows.Next() {
			var a, b, c int
			var detail string
			if err := rows.Scan(&a, &b, &c, &detail); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(detail, "TEMP B-TREE") && !strings.HasPrefix(name, "count") && name != "settle" {
				t.Errorf("%s sorts: %s", name, detail)
			}
			if !strings.HasPrefix(detail, "SCAN ") {
				continue
			}
			what := strings.Fields(detail)[1]
			switch {
			case what == "json_each", what == "r", what == "CONSTANT", strings.HasPrefix(what, "("), what == "sqlite_sequence", strings.HasSuffix(detail, "VALUES CLAUSE"):
			case name == "highWater" && strings.HasSuffix(what, "outbox"): // the newest 10,000
			case strings.Contains(detail, "COVERING INDEX") && name == "routes": // min() over an index is a seek
			default:
				t.Errorf("%s scans: %s", name, detail)
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil { //nolint:sqlclosecheck // in a loop, and read to the end
			t.Fatal(err)
		}
	}
}

// fill writes n rows with plain SQL.
func fill(tb testing.TB, s *Store, n int, columns, values string) {
	tb.Helper()
	if _, err := s.DB().ExecContext(tb.Context(), fmt.Sprintf(`WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < %d)
		INSERT INTO waybill_outbox (topic, id, %s) SELECT 'orders.placed', hex(randomblob(8)), %s FROM c`, n, columns, values)); err != nil {
		tb.Fatal(err)
	}
}

// A million rows that cannot be claimed (behind a blocked key, in the far future, leased, abandoned) do not slow down
// what is done over and over.
// DB-20
func TestMillionRows(t *testing.T) {
	if testing.Short() {
		t.Skip("writes a million rows")
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "big.db")+"?_txlock=immediate&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
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
	fill(t, s, 100_000, "key", "'blocked'")
	fill(t, s, 300_000, "key, hold, wake_at", fmt.Sprintf("'k' || n, 1, %d + n", later))
	fill(t, s, 300_000, "key, state, wake_at", "'k' || n, 5, NULL")
	fill(t, s, 100_000, "key, state, hold, wake_at, token", fmt.Sprintf("'l' || n, 2, 2, %d + n, 1", later))
	fill(t, s, 200_000, "key, state, hold, wake_at, token, crashes", fmt.Sprintf("'m' || n, 4, 2, %d + n, 1, 1", later))
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

// A key that waits hides neither messages behind more of its messages than a claim looks at, nor does it make claims go
// on for ever; when it goes on, it goes on in order.
// OR-02
func TestLongBlockedKey(t *testing.T) {
	t.Parallel()
	clk := newClock()
	s := open(t, Options{Now: clk.Now})
	stage(t, s, raw("head", "k"))
	c := claim(t, s, request(1))
	settle(t, s, core.Retry(&c.Records[0], errors.New("no"), time.Hour))
	var msgs []core.Message
	for i := range 2500 {
		msgs = append(msgs, raw(fmt.Sprint("tail", i), "k"))
	}
	stage(t, s, append(msgs, raw("free", "other"))...)
	got, rounds := "", 0
	for more := true; more && rounds < 20; rounds++ {
		c := claim(t, s, request(10))
		got, more = got+ids(c), c.More
		for i := range c.Records {
			settle(t, s, core.Published(&c.Records[i]))
		}
	}
	if got != "free " || rounds == 20 {
		t.Fatalf("claimed %q in %d rounds", got, rounds)
	}
	stage(t, s, raw("new", "third"))
	if c := claim(t, s, request(10)); ids(c) != "new " {
		t.Fatalf("claimed %q", ids(c))
	}
	// A message that was handed back lies before the place from where claims look at what is new: the next waits for it.
	for i := range 4 {
		key := fmt.Sprint("pair", i)
		stage(t, s, raw(key+"-1", key))
		first := claim(t, s, request(10))
		stage(t, s, raw(key+"-2", key))
		settle(t, s, core.Release(&first.Records[0], 0))
		got := ""
		for more, rounds := true, 0; more && rounds < 20; rounds++ {
			c := claim(t, s, request(10))
			got, more = got+ids(c), c.More
			for i := range c.Records {
				settle(t, s, core.Published(&c.Records[i]))
			}
			if i%2 == 1 && rounds == 0 { // the other turn
				claim(t, s, core.ClaimRequest{Routes: []core.RouteOrder{{Route: "none"}}, MaxRecords: 1, Lease: time.Second})
			}
		}
		if c := claim(t, s, request(10)); got+ids(c) != key+"-1 "+key+"-2 " {
			t.Fatalf("claimed %q and then %q", got, ids(c))
		} else if len(c.Records) > 0 {
			settle(t, s, core.Published(&c.Records[0]))
		}
	}
	clk.advance(2 * time.Hour) // the retry is due, and so is the lease of "new"
	want := []string{"head"}
	for i := range 2500 {
		want = append(want, fmt.Sprint("tail", i))
	}
	for at := 0; at < len(want); {
		c := claim(t, s, request(100))
		if len(c.Records) == 0 && !c.More {
			t.Fatalf("nothing to claim, %d are left", len(want)-at)
		}
		for i := range c.Records {
			r := &c.Records[i]
			if r.Envelope.Key == "k" {
				if r.Envelope.ID != want[at] {
					t.Fatalf("got %s, want %s", r.Envelope.ID, want[at])
				}
				at++
			}
			settle(t, s, core.Published(r))
		}
	}
}
