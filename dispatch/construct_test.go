package dispatch

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
	"github.com/waybill-go/waybill/store/memory/owned"
)

// small is a world of one dispatcher and a store, in which a test does everything else by hand.
type small struct {
	t   *testing.T
	now time.Time
	st  *owned.Store
	d   *Dispatcher
}

func newSmall(t *testing.T) *small {
	t.Helper()
	w := &small{t: t, now: epochStart}
	w.st = newStore(func() time.Time { return w.now })
	return w
}

// start makes the dispatcher.
func (w *small) start(off rule) {
	w.d = New(w.st.Traits(), Options{
		Routes: []Route{{Name: "r", Units: 1}}, Lease: time.Second, NewSession: func() outbox.Session { return 100 },
	})
	w.d.off = off
}

// stage stages one message for each id, in one transaction.
func (w *small) stage(key string, ids ...string) {
	w.t.Helper()
	tx := w.st.Begin()
	for _, id := range ids {
		if _, err := tx.Stage(owned.Row{StagedRow: core.StagedRow{Route: "r", Envelope: core.Envelope{ID: id, Topic: "t", Key: key}}}); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		w.t.Fatal(err)
	}
}

// run lets time pass, and returns the ids of what the dispatcher handed out.
func (w *small) run(d time.Duration) (ids []string) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(time.Millisecond) {
		for _, c := range w.d.Calls(w.now) {
			c.Do(context.Background(), w.st)
			w.d.Done(w.now, c)
		}
		for _, it := range w.d.Hand(w.now, "r", 10) {
			ids = append(ids, it.Record.Envelope.ID)
		}
	}
	return ids
}

// other makes session 1 a member that owns the unit, and returns what is ready.
func (w *small) other() []outbox.Record {
	w.t.Helper()
	unit := outbox.Unit{Route: "r", From: 0, To: 64}
	m := outbox.Meeting{Self: outbox.Member{Session: 1, Beat: 1, Serves: []outbox.Serving{{Route: "r", Units: 1, Unable: true}}}, Join: true, Moves: []outbox.Move{{Unit: unit, To: 1}}}
	if _, err := w.st.Meet(w.t.Context(), m); err != nil {
		w.t.Fatal(err)
	}
	page, err := w.st.Read(w.t.Context(), 1, outbox.Look{Ranges: []outbox.Range{{Part: outbox.Part{Route: "r", Slots: outbox.AllSlots}, To: 1 << 60, Limit: 100}}})
	if err != nil {
		w.t.Fatal(err)
	}
	return page.Ranges[0].Records
}

func (w *small) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestTwoRetriesOfAKey: the first of two retries of a key holds the second, whichever is due first.
func TestTwoRetriesOfAKey(t *testing.T) { // OR-02
	t.Parallel()
	for _, off := range []rule{0, ruleTwoRetries} {
		w := newSmall(t)
		w.stage("k", "a", "b", "c")
		rs := w.other()
		no := errors.New("no")
		w.must(w.st.Settle(t.Context(), 1, []outbox.Outcome{outbox.Retry(&rs[0], no, 300*time.Millisecond), outbox.Retry(&rs[1], no, 100*time.Millisecond)}).FirstErr())
		_, err := w.st.Meet(t.Context(), outbox.Meeting{Self: outbox.Member{Session: 1, Beat: 2}, Leave: true})
		w.must(err)
		w.start(off)
		got := w.run(time.Second)
		if want := []string{"a"}; off == 0 && !slices.Equal(got, want) {
			t.Errorf("handed out %v, want %v: b and c wait for a", got, want)
		} else if off != 0 && slices.Equal(got, want) {
			t.Error("the rule makes no difference")
		}
	}
}

// TestUnitThatIsAnothersIsDropped: nothing of a unit is handed out once the store says that it is another's, although
// nobody told the member.
func TestUnitThatIsAnothersIsDropped(t *testing.T) { // DB-24
	t.Parallel()
	for _, off := range []rule{0, ruleUnitFence} {
		w := newSmall(t)
		w.start(off)
		if got := w.run(50 * time.Millisecond); len(got) != 0 {
			t.Fatal(got)
		}
		_, err := w.st.Meet(t.Context(), outbox.Meeting{
			Self: outbox.Member{Session: 1, Beat: 1, Serves: []outbox.Serving{{Route: "r", Units: 1}}}, Join: true,
			Moves: []outbox.Move{{Unit: outbox.Unit{Route: "r", From: 0, To: 64}, From: 100, To: 1}},
		})
		w.must(err)
		w.stage("k", "a")
		w.d.Wake(w.now)
		switch got := w.run(100 * time.Millisecond); {
		case off == 0 && len(got) != 0:
			t.Errorf("handed out %v of another's unit", got)
		case off != 0 && len(got) == 0:
			t.Error("the rule makes no difference")
		}
	}
}

// TestRetryThatIsOutAtAnother: a retry that the former owner has out holds its key, although it is not among what is
// ready.
func TestRetryThatIsOutAtAnother(t *testing.T) { // OR-02
	t.Parallel()
	for _, off := range []rule{0, ruleLoadOut} {
		w := newSmall(t)
		w.stage("k", "a", "b")
		rs := w.other()
		w.must(w.st.Settle(t.Context(), 1, []outbox.Outcome{outbox.Retry(&rs[0], errors.New("no"), 0)}).FirstErr())
		part := []outbox.Part{{Route: "r", Slots: outbox.AllSlots}}
		due, err := w.st.Due(t.Context(), 1, part, 10)
		w.must(err)
		if len(due.Retries) != 1 {
			t.Fatal(due)
		}
		done, err := w.st.GiveUp(t.Context(), 1, outbox.Unit{Route: "r", From: 0, To: 64}, 0, []outbox.Ref{due.Retries[0].Ref})
		w.must(err)
		if !done {
			t.Fatal("not given up")
		}
		w.start(off)
		w.keep(1)
		got := w.run(900 * time.Millisecond)
		if off == 0 && len(got) != 0 {
			t.Errorf("handed out %v while another has a out", got)
		} else if off != 0 && len(got) == 0 {
			t.Error("the rule makes no difference")
		}
		if off != 0 {
			continue
		}
		w.must(w.st.Settle(t.Context(), 1, []outbox.Outcome{outbox.Published(&due.Retries[0])}).FirstErr())
		if got := w.run(1500 * time.Millisecond); !slices.Equal(got, []string{"b"}) {
			t.Errorf("after a was published: handed out %v, want b", got)
		}
	}
}

// keep lets a session beat on, so that nobody takes it for dead.
func (w *small) keep(s outbox.Session) {
	_, err := w.st.Meet(w.t.Context(), outbox.Meeting{Self: outbox.Member{Session: s, Beat: w.now.UnixMilli(), Serves: []outbox.Serving{{Route: "r", Units: 1, Unable: true}}}})
	w.must(err)
}
