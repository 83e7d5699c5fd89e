package sqlite

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// told returns the notices for the owner of all, as kind, key and id.
func told(tb testing.TB, s *Store, self core.Session) string {
	tb.Helper()
	var out strings.Builder
	for _, c := range page(tb, s, self, route).Notices {
		fmt.Fprintf(&out, "%d%s:%s ", c.Kind, c.Key, c.ID)
		settle(tb, s, self, core.DeleteNotice(&c))
	}
	return out.String()
}

// OP-18 DB-12: the decisions of operators, and the notices that the owner of the key gets.
func TestHeads(t *testing.T) {
	t.Parallel()
	clk := newClock()
	s := open(t, Options{Now: clk.Now})
	self := join(t, s, route).Session
	stage(t, s, raw("a", "x"), raw("b", "y"), raw("c", "z"), raw("d", ""), raw("e", "x"), raw("f", "w"))
	settle(t, s, self, core.Retry(get(t, s, self, route, "a"), errNo, time.Hour),
		core.Abandon(get(t, s, self, route, "b"), waybill.ReasonRejected, errNo),
		core.Retry(get(t, s, self, route, "c"), errNo, 0), core.Retry(get(t, s, self, route, "d"), errNo,
			time.Hour), core.Abandon(get(t, s, self, route, "f"), waybill.ReasonSetAside, nil))
	blocked := func(block bool) string {
		var out strings.Builder
		keys, more, err := s.BlockedKeys(t.Context(), admin.BlockedKeysRequest{Route: route, BlockAfterAbandon: block, Limit: 10})
		if err != nil || more {
			t.Fatal(err, more)
		}
		for _, k := range keys {
			out.WriteString(k.Key + ":" + k.Head.Envelope.ID + ":" + k.Cause + " ")
		}
		return out.String()
	}
	if got, want := blocked(true), "x:a:retry y:b:abandoned z:c:retry "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := blocked(false), "x:a:retry z:c:retry "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if d := dueNow(t, s, self); ids(d.Retries) != "c " {
		t.Fatal(ids(d.Retries))
	}
	if got, want := blocked(false), "x:a:retry "; got != want { // c is out
		t.Errorf("%s, want %s", got, want)
	}
	for _, tc := range []struct {
		key, id string
		action  admin.HeadAction
		want    error
		told    string
	}{
		{"x", "e", admin.HeadSkip, waybill.ErrNotFound, ""},
		{"z", "c", admin.HeadSkip, waybill.ErrInFlight, ""},
		{"w", "f", admin.HeadSkip, waybill.ErrNotFound, ""},
		{"y", "b", admin.HeadSkip, nil, "1y:b "},
		{"x", "a", admin.HeadRequeue, nil, "1x:a "},
		{"x", "a", admin.HeadRequeue, waybill.ErrNotFound, ""},
	} {
		if err := s.DecideHead(t.Context(), route, tc.key, tc.id, tc.action); !errors.Is(err, tc.want) {
			t.Errorf("%s %s: %v", tc.key, tc.id, err)
		}
		if got := told(t, s, self); got != tc.told {
			t.Errorf("%s %s: told %q, want %q", tc.key, tc.id, got, tc.told)
		}
	}
	if got := ids(read(t, s, self, route)); got != "a e " {
		t.Errorf("ready: %s", got)
	}
	if a := get(t, s, self, route, "a"); a.Attempts != 0 || a.Failed || a.Version != 3 {
		t.Errorf("%+v", a)
	}
	st, err := s.Inspect(t.Context(), route, "c")
	if err != nil || st.State != core.StateProcessing || st.Owner != "tester" || st.LeaseIn != 10*time.Second || st.Attempts != 1 {
		t.Errorf("%+v %v", st, err)
	}
}

// DB-12: a redrive tells the owner of each record.
func TestRedriveTells(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	self := join(t, s, route).Session
	stage(t, s, raw("a", "x"), raw("b", ""), raw("c", "y"), raw("d", ""))
	settle(t, s, self, core.Abandon(get(t, s, self, route, "a"), waybill.ReasonAttempts, errNo),
		core.Abandon(get(t, s, self, route, "b"), waybill.ReasonAttempts, errNo),
		core.Retry(get(t, s, self, route, "c"), errNo, time.Hour), core.Retry(get(t, s, self, route, "d"), errNo, 0))
	dueNow(t, s, self) // holds d
	got, err := s.Redrive(t.Context(), admin.RedriveRequest{All: true, Force: true})
	if err != nil || got.Changed != 3 || got.Matched != 3 {
		t.Fatalf("%+v %v", got, err)
	}
	if got := told(t, s, self); got != "1x:a 2:b 1y:c " {
		t.Errorf("told %q", got)
	}
	if got := ids(read(t, s, self, route)); got != "a b c " {
		t.Errorf("ready: %s", got)
	}
}

// ST-11 DB-09: the cleaner abandons records that expired while they wait, or on unserved routes, and leaves the rest to
// owners.
func TestClean(t *testing.T) {
	t.Parallel()
	clk := newClock()
	s := open(t, Options{Now: clk.Now, Retention: waybill.Retention{Abandoned: time.Hour}})
	self := join(t, s, route).Session
	ttl := waybill.TTL(time.Minute)
	stage(t, s, raw("ready", "", ttl), raw("retry", "x", ttl), raw("unserved", "y", ttl, waybill.Routes("other")),
		raw("later", "x"), raw("held", "z", ttl))
	settle(t, s, self, core.Retry(get(t, s, self, route, "retry"), errNo, time.Hour), core.Retry(get(t, s, self, route, "held"), errNo, 0))
	clk.advance(time.Second)
	dueNow(t, s, self)
	clk.advance(2 * time.Minute)
	got, err := s.Clean(t.Context(), "cleaner", time.Second)
	if err != nil || !got.Leader || got.Expired != 2 || got.More {
		t.Fatalf("%+v %v", got, err)
	}
	for id, want := range map[string]core.State{"ready": core.StatePending, "retry": core.StateAbandoned, "held": core.StateProcessing} {
		if st, err := s.Inspect(t.Context(), route, id); err != nil || st.State != want {
			t.Errorf("%s: %s %v", id, st.State, err)
		}
	}
	if got := told(t, s, self); got != "1x:retry " {
		t.Errorf("told %q", got)
	}
	if w := page(t, s, self, route).Blocking; len(w) != 2 || w[0].Why != core.BlockedByAbandoned || w[0].ID != "retry" {
		t.Errorf("%+v", w)
	}
	clk.advance(2 * time.Hour)
	if got, err = s.Clean(t.Context(), "cleaner", time.Second); err != nil ||
		got.Deleted[core.CleanedKind{State: core.StateAbandoned, Reason: waybill.ReasonExpired}] != 2 {
		t.Fatalf("%+v %v", got, err)
	}
	if got := told(t, s, self); got != "1x:retry " {
		t.Errorf("told %q", got)
	}
	counts, err := s.Counts(t.Context())
	if err != nil || len(counts) != 2 || counts[0].N != 2 || counts[1].State != core.StateProcessing || counts[1].N != 1 {
		t.Errorf("%+v %v", counts, err)
	}
}

// DB-09: a cleaner's lease that a wrong clock left in the far future does not stop the next cleaner.
func TestCleanAfterAWrongClock(t *testing.T) {
	t.Parallel()
	clk := newClock()
	s := open(t, Options{Now: clk.Now})
	elected := func(owner string, want bool) {
		t.Helper()
		if got, err := s.Clean(t.Context(), owner, time.Minute); err != nil || got.Leader != want {
			t.Errorf("%s: %+v %v", owner, got, err)
		}
	}
	elected("one", true)
	elected("two", false)
	clk.advance(-48 * time.Hour)
	elected("two", true)
	elected("one", false)
}

// DB-09: one call of Clean deletes 1,000 records of a kind, and says that there are more.
func TestCleanSaysThatThereIsMore(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Retention: waybill.Retention{Abandoned: time.Hour}})
	msgs := make([]waybill.Message, cleanBatch+1)
	for i := range msgs {
		msgs[i] = raw(strconv.Itoa(i), "")
	}
	stage(t, s, msgs...)
	run(t, s.DB(), `UPDATE waybill_outbox SET state = ?, reason = ?, settled_at = 1`, core.StateAbandoned, waybill.ReasonRejected)
	for _, want := range []int{cleanBatch, 1, 0} {
		got, err := s.Clean(t.Context(), "cleaner", time.Second)
		if n := got.Deleted[core.CleanedKind{State: core.StateAbandoned, Reason: waybill.ReasonRejected}]; err != nil ||
			n != want || got.More != (want == cleanBatch) {
			t.Errorf("%+v %v, want %d deleted", got, err, want)
		}
	}
}
