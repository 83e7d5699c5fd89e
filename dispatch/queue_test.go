package dispatch

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// newQueue is a world of a table queue with so many handlers, beside a member that serves it, too.
func newQueue(t *testing.T, handlers int) *small {
	t.Helper()
	w := newSmall(t)
	w.start()
	w.d = New(Options{
		Routes: []Route{{Name: "r", Partitions: 1, Queue: true}}, Lease: time.Second, Handlers: handlers, NewSession: func() core.Session { return 100 },
	})
	w.d.SetFree(handlers)
	w.keepBusy(1)
	w.run(20 * time.Millisecond)
	return w
}

// keepBusy has session 1 join or renew, without a free handler.
func (w *small) keepBusy(heartbeats int64) {
	w.t.Helper()
	_, err := w.st.Heartbeat(w.t.Context(), core.HeartbeatRequest{Join: true, Self: core.Member{Session: 1, Heartbeats: heartbeats, Capacity: 5, Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1}}}})
	w.must(err)
}

// steps lets so many milliseconds pass. Nothing is handed out meanwhile.
func (w *small) steps(n int) {
	for range n {
		w.step()
	}
}

// until lets time pass until there is as much ready.
func (w *small) until(ready int) {
	w.t.Helper()
	for range 1000 {
		if w.d.Ready("r") == ready {
			return
		}
		w.step()
	}
	w.t.Fatalf("%d are ready, want %d", w.d.Ready("r"), ready)
}

// TestQueueGivesBackWhatItCannotHandle: a record that was taken while a handler was free, and is still there when none
// has been free for a while, goes to another member.
func TestQueueGivesBackWhatItCannotHandle(t *testing.T) {
	t.Parallel()
	w := newQueue(t, 2)
	w.stage("", "a", "b")
	w.until(2)
	w.d.SetFree(0)
	w.steps(200)
	if w.state("a").Holder != 100 {
		t.Error("given back although a handler may be free again at any moment")
	}
	w.keepBusy(2)
	w.steps(200)
	if a, b := w.state("a"), w.state("b"); a.Holder != 0 || b.Holder != 0 {
		t.Errorf("still held by %d and %d", a.Holder, b.Holder)
	}
}

// TestQueueTakesNothingTwice: the answer of a Hold may come before that of the settle that made its record free.
func TestQueueTakesNothingTwice(t *testing.T) {
	t.Parallel()
	w := newQueue(t, 2)
	w.stage("", "a")
	w.until(1)
	item := w.d.HandOut(w.now, "r", 1)[0]
	w.d.Conclude(w.now, item, core.Release(&item.Record, 0, false))
	w.now = w.now.Add(50 * time.Millisecond)
	w.d.Wake(w.now, "r")
	calls := w.d.Calls(w.now)
	ofKind := func(kind CallKind) *Call {
		i := slices.IndexFunc(calls, func(c *Call) bool { return c.kind == kind })
		if i < 0 {
			t.Fatalf("no %s", kind)
		}
		return calls[i]
	}
	settle, take := ofKind(CallSettle), ofKind(CallHold)
	w.call(settle)
	w.call(take)
	w.d.Done(w.now, take)
	if n := w.d.Ready("r"); n != 0 {
		t.Errorf("%d are ready while it is being settled", n)
	}
	w.d.Done(w.now, settle)
	if got := w.run(100 * time.Millisecond); !slices.Equal(got, []string{"a"}) {
		t.Errorf("handed out %v, want a once more", got)
	}
}

// TestQueueLooksAgainAfterNews: news that come while a Hold or a read is under way are not forgotten when that one,
// which may have missed them, ends: timers that came due, and staged records.
func TestQueueLooksAgainAfterNews(t *testing.T) { // TQ-04
	t.Parallel()
	w := newQueue(t, 2)
	w.d.Wake(w.now, "r")
	sent := w.d.Calls(w.now)
	for _, c := range sent {
		w.call(c) // before it is there
	}
	w.stage("", "a")
	w.d.Wake(w.now, "r")
	var kinds []CallKind
	for _, c := range sent {
		w.d.Done(w.now, c)
		kinds = append(kinds, c.kind)
	}
	if !slices.Contains(kinds, CallHold) || !slices.Contains(kinds, CallRead) {
		t.Fatalf("a wake-up led to %s, want a read and a hold", kinds)
	}
	take := func(c *Call) bool { return c.Kind() == CallHold }
	if calls := w.d.Calls(w.now); !slices.ContainsFunc(calls, take) {
		t.Error("no Take follows at once on one that came back empty, though there was news meanwhile")
	}

	w = newQueue(t, 2)
	w.d.Wake(w.now, "r")
	sent = w.d.Calls(w.now)
	w.d.dueDone(&core.DueResult{TimersReady: 1, NextIn: -1}, nil, &Call{})
	for _, c := range sent {
		w.call(c)
		w.d.Done(w.now, c)
	}
	calls := w.d.Calls(w.now)
	for _, kind := range []CallKind{CallRead, CallHold} {
		if !slices.ContainsFunc(calls, func(c *Call) bool { return c.kind == kind }) {
			t.Errorf("no %s follows at once on one during which a timer came due", kind)
		}
	}
}

// TestQueueHandsOutNothingOfAPartitionThatGoes: a release under way ends the holds of records that it does not name. So
// may one whose answer was lost, until a later one is answered.
func TestQueueHandsOutNothingOfAPartitionThatGoes(t *testing.T) { // DB-24
	t.Parallel()
	w := newQueue(t, 2)
	w.stage("k", "a")
	w.until(1)
	w.d.releaseOne(w.d.byName["r"])
	w.now = w.now.Add(time.Millisecond)
	calls := w.d.releaseCalls()
	if len(calls) != 1 {
		t.Fatal("nothing is given up")
	}
	give := calls[0]
	give.gen = w.d.session
	if got := w.d.HandOut(w.now, "r", 1); len(got) != 0 {
		t.Error("handed out while its partition is released")
	}
	give.Lose(errLost)
	w.d.Done(w.now, give)
	if got := w.d.HandOut(w.now, "r", 1); len(got) != 0 {
		t.Error("handed out while the release may still be carried out")
	}
}

// TestQueueOfLargeBodies: a Hold that its bytes cut is followed by the next one at once, for any sum of the bodies.
func TestQueueOfLargeBodies(t *testing.T) {
	t.Parallel()
	const handlers, limit = 30, 1000 // bytes of a Hold
	for _, size := range []int{limit / 3, limit * 3 / 5, limit, 2 * limit} {
		w := newSmall(t)
		w.d = New(Options{
			Routes: []Route{{Name: "r", Partitions: 1, Queue: true}}, Lease: time.Minute, PollMin: time.Hour, PollMax: time.Hour, Bytes: 4 * limit,
			Handlers: handlers, NewSession: func() core.Session { return 100 },
		})
		w.d.SetFree(handlers)
		w.run(100 * time.Millisecond)
		tx := w.st.Begin()
		for i := range 20 {
			_, err := tx.Stage(core.StagedRow{Route: "r", Envelope: waybill.Envelope{ID: strconv.Itoa(i), Topic: "t", Body: make([]byte, size)}})
			w.must(err)
		}
		w.must(tx.Commit())
		w.d.Wake(w.now)
		if got := w.run(100 * time.Millisecond); len(got) != 20 {
			t.Errorf("bodies of %d: %d of 20 were handed out", size, len(got))
		}
	}
}

// TestLongPauses: a pause is doubled up to its bound, however long it is and however often nothing was found.
func TestLongPauses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ least, most time.Duration }{
		{time.Millisecond, time.Second},
		{24 * time.Hour, 24 * time.Hour},
		{time.Millisecond, 1000 * time.Hour},
		{1000 * time.Hour, 5000 * time.Hour},
	} {
		want := tc.least
		for n := range 21 {
			if got := doubled(tc.least, tc.most, n); got != want {
				t.Errorf("%s doubled %d times is %s, want %s", tc.least, n, got, want)
			}
			want = min(2*want, tc.most)
		}
	}
}

// TestTimersGoOnceTheyAreInLine: a timer that the store has put in line does not wait for the poll.
func TestTimersGoOnceTheyAreInLine(t *testing.T) {
	t.Parallel()
	for _, queue := range []bool{false, true} {
		w := newSmall(t)
		w.d = New(Options{
			Routes: []Route{{Name: "r", Partitions: 1, Queue: queue}}, Lease: time.Second, PollMin: time.Hour, PollMax: time.Hour,
			Handlers: 1, NewSession: func() core.Session { return 100 },
		})
		w.d.SetFree(1)
		if got := w.run(100 * time.Millisecond); len(got) != 0 {
			t.Fatal(got)
		}
		tx := w.st.Begin()
		_, err := tx.Stage(core.StagedRow{Route: "r", Envelope: waybill.Envelope{ID: "a", Topic: "t"}, Delay: 200 * time.Millisecond})
		w.must(err)
		w.must(tx.Commit())
		if got := w.run(2 * time.Second); !slices.Equal(got, []string{"a"}) {
			t.Errorf("queue: %v: handed out %v, want a", queue, got)
		}
	}
}
