package dispatch

// A Due looks only for records that came due lately and that are not held, until another one can have come back.

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// within lets time pass until the next Due, and returns how far back it looked. It is answered unless it is lost.
func (w *small) within(lost bool) time.Duration { return w.due(lost).MaxOverdue }

// due lets time pass until the next Due, and returns its scope. It is answered unless it is lost.
func (w *small) due(lost bool) (part core.RouteSlots) {
	w.t.Helper()
	asked := false
	call := w.call
	defer func() { w.call = call }()
	w.call = func(c *Call) {
		if op, ok := c.op.(*dueOp); ok && !asked {
			asked, part = true, op.parts[0]
			if lost {
				w.now = w.now.Add(w.slowly)
				c.Lose(errLost)
				return
			}
		}
		call(c)
	}
	for range 5000 {
		if w.step(); asked {
			return part
		}
	}
	w.t.Fatal("no Due")
	return part
}

// TestDueLooksForAll: after each event that can bring back a record that was due before, a Due looks for all.
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
				self := core.Member{Session: 1, Heartbeats: 1, Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1, Unavailable: true}}}
				_, err := w.st.Heartbeat(w.t.Context(), core.HeartbeatRequest{Self: self, Join: !leave, Leave: leave})
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
		"a partition comes": func(w *small) {
			rt := w.d.byName["r"]
			w.d.drop(rt, core.AllSlots)
		},
		"ten minutes": func(w *small) { w.run(dueSweep - 8*time.Second) },
	} {
		w := newSmall(t)
		w.start()
		w.d.dueLast = duePoll
		w.run(2 * time.Second)
		w.within(false)
		if d := w.due(false); d.MaxOverdue <= 0 || d.MaxOverdue > dueMargin+2*time.Second || !d.DueExcludeHeld {
			t.Fatalf("nothing has happened, and a Due looks back for %s, and repeats what is held: %t", d.MaxOverdue, !d.DueExcludeHeld)
		}
		happens(w)
		all, repeats := false, false
		for range 10 { // one that was under way may come first
			d := w.due(false)
			all, repeats = all || d.MaxOverdue == 0, repeats || !d.DueExcludeHeld
		}
		if !all || !repeats {
			t.Errorf("%s: a Due looks for all: %t; one repeats what is held: %t", what, all, repeats)
		}
	}
}

// TestDueThatTakesTooLong: a Due for all that takes too long is followed by one that looks less far back. When that was
// answered, another one looks farther back after a pause.
func TestDueThatTakesTooLong(t *testing.T) {
	t.Parallel()
	const took, rest = 400 * time.Millisecond, dueRest * 400 * time.Millisecond
	w := newSmall(t)
	w.start()
	w.slowly = took
	for i, want := range []time.Duration{0, 24 * time.Hour, time.Hour} {
		if d := w.within(true); d != want {
			t.Errorf("after %d that failed, a Due looks back for %s, want %s", i, d, want)
		}
	}
	w.slowly = 0
	if d := w.within(false); d != dueMargin {
		t.Errorf("after three that failed, a Due looks back for %s, want %s", d, dueMargin)
	}
	for _, want := range []time.Duration{time.Hour, 24 * time.Hour, 0} {
		answered := w.now
		for {
			d := w.within(false)
			if d > dueMargin && d < 2*dueMargin { // for what came due lately
				continue
			}
			if d != want || w.now.Before(answered.Add(rest)) || w.now.After(answered.Add(2*rest)) {
				t.Errorf("%s after a Due that was answered, one looks back for %s, want %s after %s", w.now.Sub(answered), d, want, rest)
			}
			break
		}
	}
}

// TestDueThatIsExecutedLate: a Due looks back from when it is executed, so not as far as was meant when it was sent.
func TestDueThatIsExecutedLate(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.start()
	w.within(false)
	call := w.call
	w.call = func(c *Call) {
		if c.kind == CallDue {
			w.now = w.now.Add(dueMargin)
		}
		call(c)
	}
	if w.within(false) == 0 {
		t.Fatal("nothing has happened, and a Due looks for all")
	}
	w.call = call
	if d := w.within(false); d != 0 {
		t.Errorf("after a Due that was executed late, one looks back for %s, want for all", d)
	}
}

// TestRetryAfterAnOutage: a retry that came due early in a long outage of the store comes as soon as that is over.
func TestRetryAfterAnOutage(t *testing.T) { // RL-05
	t.Parallel()
	w := newSmall(t)
	w.stage("", "a")
	w.start()
	item := w.hand(1)[0]
	w.d.Conclude(w.now, item, core.Retry(&item.Record, errors.New("no"), 3*time.Second))
	w.run(time.Second)
	call := w.call
	w.call = func(c *Call) { c.Lose(errLost) }
	w.run(5 * time.Minute)
	w.call = call
	if got := w.run(2 * time.Second); !slices.Equal(got, []string{"a"}) {
		t.Errorf("two seconds after the outage %v was handed out", got)
	}
}

// TestDueOvertakesASettle: a Due holds a retry that was just given back, and is answered before the settle is.
func TestDueOvertakesASettle(t *testing.T) {
	t.Parallel()
	for what, of := range map[string]func(r *core.Record) core.Outcome{
		"given back": func(r *core.Record) core.Outcome { return core.Release(r, 0, false) },
		"put off":    func(r *core.Record) core.Outcome { return core.Retry(r, errors.New("no"), 0) },
	} {
		w := newSmall(t)
		w.stage("", "a")
		w.start()
		item := w.hand(1)[0]
		w.d.Conclude(w.now, item, core.Retry(&item.Record, errors.New("no"), 0))
		item = w.hand(1)[0]
		w.run(1500 * time.Millisecond) // a Due was answered, and all that is held is in memory
		w.d.Conclude(w.now, item, of(&item.Record))
		var settle *Call
		for overtaken := false; !overtaken; w.now = w.now.Add(time.Millisecond) {
			for _, c := range w.d.Calls(w.now) {
				if w.call(c); c.kind == CallSettle && settle == nil {
					settle = c
					continue
				}
				if op, ok := c.op.(*dueOp); ok && settle != nil {
					overtaken = len(op.result.Retries) == 1
				}
				w.d.Done(w.now, c)
			}
		}
		w.d.Done(w.now, settle)
		if got := w.run(2 * time.Second); !slices.Equal(got, []string{"a"}) {
			t.Errorf("%s: two seconds later %v was handed out", what, got)
		}
	}
}

// TestSettleOvertakesADue: a Due under way still shows a record that was settled meanwhile, or already its next state.
func TestSettleOvertakesADue(t *testing.T) {
	t.Parallel()
	for _, later := range []bool{false, true} {
		w := newSmall(t)
		w.stage("", "a")
		w.start()
		item := w.hand(1)[0]
		w.d.Conclude(w.now, item, core.Retry(&item.Record, errors.New("no"), 0))
		item = w.hand(1)[0]
		w.d.byName["r"].overdue.all() // the next Due repeats what is held
		var due *Call
		for ; due == nil; w.now = w.now.Add(time.Millisecond) {
			for _, c := range w.d.Calls(w.now) {
				if c.kind == CallDue {
					due = c
					continue
				}
				w.call(c)
				w.d.Done(w.now, c)
			}
		}
		if !later {
			w.call(due)
		}
		w.d.Conclude(w.now, item, core.Retry(&item.Record, errors.New("no"), 0))
		w.step()
		if later {
			w.call(due)
		}
		if n := len(due.op.(*dueOp).result.Retries); n != 1 {
			t.Fatalf("the Due answered %d", n)
		}
		w.d.Done(w.now, due)
		got := w.d.HandOut(w.now, "r", 1)
		if (len(got) == 1) != later {
			t.Errorf("the answer is later than the settle: %t; %d were handed out", later, len(got))
		}
		if got = append(got, w.hand(1-len(got))...); got[0].Record.Attempts != 2 {
			t.Errorf("the answer is later than the settle: %t; what was handed out had %d attempts", later, got[0].Record.Attempts)
		}
	}
}

// TestRetriesAreAnsweredOnce: while many retries are due, each is answered once, although some are out all the time.
func TestRetriesAreAnsweredOnce(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.start()
	const n = 3000
	for i := range n {
		w.stage("", fmt.Sprint("m", i))
	}
	w.d.Wake(w.now)
	done := func(what string, out int, of func(item *Item) core.Outcome) {
		t.Helper()
		for range 5000 {
			for _, item := range w.d.HandOut(w.now, "r", 100) {
				w.d.Conclude(w.now, item, of(item))
				out--
			}
			if w.step(); out <= 0 {
				return
			}
		}
		t.Fatalf("%d are not %s", out, what)
	}
	done("put off", n, func(item *Item) core.Outcome { return core.Retry(&item.Record, errors.New("no"), 20*time.Second) })
	w.steps(10_000)
	answered, dues := 0, 0
	call := w.call
	w.call = func(c *Call) {
		call(c)
		if op, ok := c.op.(*dueOp); ok {
			answered += len(op.result.Retries)
			dues++
		}
	}
	w.steps(15_000)
	done("published", n, func(item *Item) core.Outcome { return core.Published(&item.Record) })
	if answered != n {
		t.Errorf("%d retries were answered %d times, by %d Dues", n, answered, dues)
	}
}

// TestManyDueAreRepeatedOnce: while many retries are due, Dues look for all because something has happened. The first
// one repeats what is held, and another one when no more are due. The others do not, although many are out.
func TestManyDueAreRepeatedOnce(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.start()
	const n, out = 300, 50
	for i := range n {
		w.stage("", fmt.Sprint("m", i))
	}
	w.d.Wake(w.now)
	for _, item := range w.hand(n) {
		w.d.Conclude(w.now, item, core.Retry(&item.Record, errors.New("no"), 10*time.Second))
	}
	w.steps(2000)
	w.d.dueLimit = 10
	w.d.byName["r"].overdue.all()
	w.now = w.now.Add(time.Minute)
	repeated, dues := 0, 0
	call := w.call
	w.call = func(c *Call) {
		call(c)
		if op, ok := c.op.(*dueOp); ok {
			if dues++; !op.parts[0].DueExcludeHeld {
				repeated++
			}
		}
	}
	var held []*Item
	for len(held) < n {
		w.step()
		held = append(held, w.d.HandOut(w.now, "r", n)...)
		if len(held) < n-out { // the last ones stay out
			continue
		}
		for _, item := range held[:max(len(held)-out, 0)] {
			if item.state == itemOut {
				w.d.Conclude(w.now, item, core.Published(&item.Record))
			}
		}
	}
	w.steps(2000)
	if dues < n/10 || repeated != 2 {
		t.Errorf("%d of %d Dues repeated what is held, want 2", repeated, dues)
	}
}

// newLarge returns a world, and its route with a bound of bytes, on which n messages were staged.
func newLarge(t *testing.T, bound int64, n int, message func(i int) waybill.Envelope) (*small, *route) {
	t.Helper()
	w := newSmall(t)
	w.d = New(Options{
		Routes: []Route{{Name: "r", Partitions: 1}}, Lease: time.Second, NewSession: func() core.Session { return 100 }, Bytes: bound,
	})
	tx := w.st.Begin()
	for i := range n {
		e := message(i)
		e.ID, e.Topic = fmt.Sprint("m", i), "t"
		_, err := tx.Stage(core.StagedRow{Route: "r", Envelope: e})
		w.must(err)
	}
	w.must(tx.Commit())
	w.d.Wake(w.now)
	return w, w.d.byName["r"]
}

// TestLargeRetries: retries with large bodies that come due together keep to the bound of bytes, and all come.
func TestLargeRetries(t *testing.T) {
	t.Parallel()
	const n, size, bound = 300, 1000, 40_000 // a first Due brings half of it
	w, rt := newLarge(t, bound, n, func(int) waybill.Envelope { return waybill.Envelope{Body: make([]byte, size)} })
	handOut := func(most int64, outcome func(item *Item) core.Outcome) {
		w.t.Helper()
		for came, steps := 0, 0; came < n; steps++ {
			if steps > 100*n {
				t.Fatalf("%d of %d records came", came, n)
			}
			w.step()
			if rt.load.bytes > most {
				t.Fatalf("%d bytes of bodies are in memory, want at most %d", rt.load.bytes, most)
			}
			for _, item := range w.d.HandOut(w.now, "r", 7) {
				w.d.Conclude(w.now, item, outcome(item))
				came++
			}
		}
	}
	handOut(bound+bound/4, func(item *Item) core.Outcome { return core.Retry(&item.Record, errors.New("no"), time.Minute) })
	w.steps(2000)
	w.now = w.now.Add(time.Hour)
	handOut(bound, func(item *Item) core.Outcome { return core.Published(&item.Record) })
}

// TestLargeKeys: records with large bodies behind the heads of many keys keep to the bound of bytes, and all come.
func TestLargeKeys(t *testing.T) {
	t.Parallel()
	const keys, depth, size, bound = 200, 5, 1000, 40_000
	w, rt := newLarge(t, bound, keys*depth, func(i int) waybill.Envelope {
		return waybill.Envelope{Key: fmt.Sprint("k", i%keys), Body: make([]byte, size)}
	})
	failed, came, peak := 0, 0, int64(0)
	for steps := 0; came < keys*depth; steps++ {
		if steps > 20*keys*depth {
			t.Fatalf("%d of %d records came", came, keys*depth)
		}
		w.step()
		peak = max(peak, rt.load.bytes)
		for _, item := range w.d.HandOut(w.now, "r", 7) {
			if item.Record.Attempts == 0 && failed < keys {
				w.d.Conclude(w.now, item, core.Retry(&item.Record, errors.New("no"), time.Minute))
				if failed++; failed == keys {
					w.steps(1000)
					w.now = w.now.Add(time.Hour)
				}
				continue
			}
			w.d.Conclude(w.now, item, core.Published(&item.Record))
			came++
		}
	}
	if most := int64(bound + bound/2); peak > most {
		t.Errorf("%d bytes of bodies were in memory, want at most %d", peak, most)
	}
}

// TestForgottenAmongManyDue: while many retries are due, those that are held and were forgotten come back before them,
// although a Due brings few.
func TestForgottenAmongManyDue(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.start()
	var forgotten []string
	for i := range 40 {
		w.stage("", fmt.Sprint("m", i))
	}
	w.d.Wake(w.now)
	for _, item := range w.hand(40) {
		w.d.Conclude(w.now, item, core.Retry(&item.Record, errors.New("no"), 0))
	}
	w.d.dueLimit = 5
	w.until(5)
	for _, item := range slices.Clone(w.d.byName["r"].ready) {
		forgotten = append(forgotten, item.Record.ID)
		w.d.remove(item)
	}
	w.d.dueLimit = 2
	var came []string
	call := w.call
	w.call = func(c *Call) {
		call(c)
		if op, ok := c.op.(*dueOp); ok {
			for i := range op.result.Retries {
				came = append(came, op.result.Retries[i].ID)
			}
		}
	}
	for range 20_000 {
		if w.step(); len(came) > 3*len(forgotten) {
			break
		}
	}
	for _, id := range forgotten {
		if !slices.Contains(came, id) {
			t.Errorf("%s was forgotten, and did not come among the first %d", id, len(came))
		}
	}
}

// TestLateDue: a Due without an answer holds retries after others were answered. They are found.
func TestLateDue(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.start()
	w.stage("", "a")
	w.d.Wake(w.now)
	item := w.hand(1)[0]
	w.d.Conclude(w.now, item, core.Retry(&item.Record, errors.New("no"), 3*time.Second))
	w.steps(100)
	call := w.call
	var late *Call
	w.call = func(c *Call) {
		if _, ok := c.op.(*dueOp); ok && late == nil {
			late = c
			c.Lose(errLost)
			return
		}
		call(c)
	}
	for range 4000 {
		if w.now = w.now.Add(time.Millisecond); late != nil {
			w.must(late.op.do(t.Context(), w.st))
			if len(late.op.(*dueOp).result.Retries) > 0 {
				break
			}
		}
		w.step()
	}
	w.steps(1500)
	if got := w.hand(1); len(got) != 1 || got[0].Record.ID != "a" {
		t.Errorf("handed out: %v", got)
	}
}

// TestHeldBeyondTheLimit: more retries are held and not in memory than a Due answers. All of them come.
func TestHeldBeyondTheLimit(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.start()
	w.stage("", "a", "b", "c", "d", "e")
	w.d.Wake(w.now)
	for _, item := range w.hand(5) {
		w.d.Conclude(w.now, item, core.Retry(&item.Record, errors.New("no"), 0))
	}
	w.until(5)
	w.d.dueLimit = 2
	for _, item := range slices.Clone(w.d.byName["r"].ready) {
		w.d.remove(item)
	}
	w.steps(1000) // until the next Due
	w.until(5)
}
