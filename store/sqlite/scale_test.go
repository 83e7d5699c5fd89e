package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
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
		case "insertRow", "insertEnd", "insertKeyedRow", "insertKeyedEnd": // parts
			continue
		case "insert":
			text = s.insertText(2, false)
		case "insertKeyed":
			text = s.insertText(2, true)
		}
		if strings.Contains(text, DefaultPrefix) && s.opts.Prefix != DefaultPrefix {
			t.Errorf("%s does not heed the prefix: %s", name, text)
		}
		args := make([]any, 0, 40)
		if strings.Contains(text, ":now") {
			for _, p := range []string{"route", "now", "ordered", "block", "first", "last", "limit", "suspect"} {
				args = append(args, sql.Named(p, 1))
			}
		} else {
			for range 40 {
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
	next := func() (c core.Claim) { // a claim may see nothing but what waits
		c.More = true
		for rounds := 0; c.More && len(c.Records) == 0 && rounds < 20; rounds++ {
			c = claim(t, s, request(10))
		}
		return c
	}
	if c := next(); ids(c) != "new " {
		t.Fatalf("claimed %q", ids(c))
	}
	// A message that was handed back lies before the place from where claims look at what is new: the next waits for it.
	for i := range 4 {
		key := fmt.Sprint("pair", i)
		stage(t, s, raw(key+"-1", key))
		first := next()
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
		out := make([]core.Outcome, len(c.Records))
		for i := range c.Records {
			r := &c.Records[i]
			if r.Envelope.Key == "k" {
				if r.Envelope.ID != want[at] {
					t.Fatalf("got %s, want %s", r.Envelope.ID, want[at])
				}
				at++
			}
			out[i] = core.Published(r)
		}
		settle(t, s, out...)
	}
}
