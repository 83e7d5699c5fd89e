package dispatch

// A Due looks only for what came due lately, until something else can have come back.

import (
	"errors"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// within lets time pass until the next Due, and returns how far back it looked. It is answered unless it is lost.
func (w *small) within(lost bool) (within time.Duration) {
	w.t.Helper()
	asked := false
	call := w.call
	defer func() { w.call = call }()
	w.call = func(c *Call) {
		if op, ok := c.op.(*dueOp); ok && !asked {
			asked, within = true, op.parts[0].DueWithin
			if lost {
				c.Lose(errLost)
				return
			}
		}
		call(c)
	}
	for range 5000 {
		if w.step(); asked {
			return within
		}
	}
	w.t.Fatal("no Due")
	return 0
}

// TestDueLooksForAll: after whatever can bring back something that was due before, a Due looks for all.
func TestDueLooksForAll(t *testing.T) { // RL-05
	t.Parallel()
	for what, happens := range map[string]func(w *small){
		"an answer is lost": func(w *small) { w.within(true) },
		"a long transaction ends": func(w *small) {
			tx := w.st.Begin()
			_, err := tx.Stage(core.StagedRow{Route: "r", Envelope: waybill.Envelope{ID: "late", Topic: "t"}, Delay: time.Millisecond})
			w.must(err)
			w.stage("", "b")
			w.d.Wake(w.now)
			w.run(3 * time.Second)
			w.must(tx.Commit())
			w.stage("", "c")
			w.d.Wake(w.now)
			w.run(200 * time.Millisecond)
		},
		"a member leaves": func(w *small) {
			for _, leave := range []bool{false, true} {
				self := core.Member{Session: 1, Beat: 1, Serves: []core.Serving{{Route: "r", Units: 1, Unable: true}}}
				_, err := w.st.Meet(w.t.Context(), core.Meeting{Self: self, Join: !leave, Leave: leave})
				w.must(err)
				w.run(300 * time.Millisecond)
			}
		},
		"an operator puts something back": func(w *small) {
			w.stage("k", "b")
			w.d.Wake(w.now)
			item := w.hand(1)[0]
			w.d.Conclude(w.now, item, core.Abandon(&item.Record, waybill.ReasonRejected, errors.New("no")))
			w.run(100 * time.Millisecond)
			tx := w.st.Begin()
			w.must(tx.Redrive("r", "b"))
			w.must(tx.Commit())
		},
		"a retry is forgotten": func(w *small) {
			w.stage("k", "b")
			w.d.Wake(w.now)
			item := w.hand(1)[0]
			w.d.Conclude(w.now, item, core.Retry(&item.Record, errors.New("no"), 0))
			w.d.remove(w.hand(1)[0])
		},
		"a unit comes": func(w *small) {
			rt := w.d.byName["r"]
			w.d.drop(rt, core.AllSlots)
		},
		"ten minutes": func(w *small) { w.run(dueSweep - 8*time.Second) },
	} {
		w := newSmall(t)
		w.start()
		w.run(2 * time.Second)
		w.within(false)
		if d := w.within(false); d <= 0 || d > dueMargin+2*time.Second {
			t.Fatalf("nothing has happened, and a Due looks back for %s", d)
		}
		happens(w)
		found := false
		for range 10 { // one that was under way may come first
			found = found || w.within(false) == 0
		}
		if !found {
			t.Errorf("%s: no Due looks for all", what)
		}
	}
}

// TestDueThatTakesTooLong: a Due for all that is not answered is followed by one that looks less far back.
func TestDueThatTakesTooLong(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.start()
	for i, want := range []time.Duration{0, 24 * time.Hour, time.Hour, dueMargin, dueMargin} {
		if d := w.within(true); d != want {
			t.Errorf("after %d that failed, a Due looks back for %s, want %s", i, d, want)
		}
	}
	if w.within(false); w.within(false) == 0 {
		t.Error("after one that was answered, the next one looks for all at once")
	}
}
