package dispatch

// How records without a key come back that a Hold has passed: one test for each way, without the sweep.

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// newPassing is a world of a queue whose member has passed the record a, which session 1 holds, and 10 others.
func newPassing(t *testing.T, maxPassed int) (w *small, a core.HoldResult) {
	t.Helper()
	w = newQueue(t, 20)
	w.d.noSweeps = true
	w.d.passSlack, w.d.maxPassed = 3, maxPassed
	w.stage("", "a")
	ts, err := w.st.Hold(t.Context(), 1, core.HoldRequest{KeylessSlots: core.RouteSlots{Route: "r", Slots: core.AllSlots}, KeylessLimit: 1})
	w.must(err)
	if len(ts) != 1 || ts[0].Record == nil {
		t.Fatal("a is not taken")
	}
	w.passTen("b")
	return w, ts[0]
}

// progress returns the member's memory of its Holds.
func (w *small) met() *progress { return &w.d.byName["r"].queue.progress }

// passTen stages ten records, which the member handles.
func (w *small) passTen(prefix string) {
	w.t.Helper()
	var ids []string
	for i := range 10 {
		ids = append(ids, fmt.Sprint(prefix, i))
	}
	w.stage("", ids...)
	w.handle(ids...)
}

// handle lets time pass until these were handed out, in any order, and nothing else.
func (w *small) handle(ids ...string) {
	w.t.Helper()
	var got []string
	w.d.Wake(w.now, "r")
	for i := range 700 {
		w.step()
		if i%100 == 0 {
			_, err := w.st.Heartbeat(w.t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 1, Heartbeats: w.now.UnixMilli(), Capacity: 5, Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1}}}})
			w.must(err)
		}
		for _, item := range w.d.HandOut(w.now, "r", 10) {
			got = append(got, item.Record.Envelope.ID)
			w.d.Conclude(w.now, item, core.Published(&item.Record))
		}
	}
	if slices.Sort(got); !slices.Equal(got, ids) {
		w.t.Fatalf("handled %v, want %v", got, ids)
	}
}

// TestPassedRecordOfAnother: a record that another member held when a Hold met it is taken when that one releases it,
// or dies.
func TestPassedRecordOfAnother(t *testing.T) { // TQ-04
	t.Parallel()
	w, a := newPassing(t, 100)
	if m := w.met(); m.front < 11 || len(m.passed) != 1 {
		t.Errorf("the next Take begins at %d and asks for %v, want from 11 on, and a", m.front, m.passed)
	}
	w.must(w.st.Settle(t.Context(), 1, []core.Outcome{core.Release(a.Record, 0, false)}).FirstErr())
	w.handle("a")
	if m := w.met(); len(m.passed) != 0 {
		t.Errorf("each Hold asks for %v, which is gone", m.passed)
	}

	w, _ = newPassing(t, 0) // at the bound: nothing is passed
	if m := w.met(); m.front != 0 || len(m.passed) != 0 {
		t.Errorf("the next Take begins at %d and asks for %v, want from the start and nothing", m.front, m.passed)
	}

	w, _ = newPassing(t, 100)
	w.met().passed = map[int64]bool{} // as if it had come back after the Hold
	_, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 100}, Evict: []core.Eviction{{Session: 1, Heartbeats: w.heartbeatsOf(1)}}})
	w.must(err)
	w.handle("a")
}

// heartbeatsOf returns the heartbeats of a member.
func (w *small) heartbeatsOf(session core.Session) int64 {
	r, err := w.st.Heartbeat(w.t.Context(), core.HeartbeatRequest{})
	w.must(err)
	for _, m := range r.Members {
		if m.Session == session {
			return m.Heartbeats
		}
	}
	w.t.Fatal("no member")
	return 0
}

// TestPassedRecordOfABusyMember: an operator has put a record back. The owner of its slot has heard of it, and has no
// free handler any more. The next owner of the partition takes the record.
func TestPassedRecordOfABusyMember(t *testing.T) { // TQ-04
	t.Parallel()
	w, a := newPassing(t, 100)
	w.now = w.now.Add(partitionSweepPause)
	w.passTen("c") // the walk for the partition that the member began with is over
	w.met().passed = map[int64]bool{}
	w.must(w.st.Settle(t.Context(), 1, []core.Outcome{core.Release(a.Record, 0, false)}).FirstErr())
	w.now = w.now.Add(partitionSweepPause)
	w.passTen("d")
	w.d.drop(w.d.byName["r"], core.AllSlots)
	w.handle("a")
	w.d.drop(w.d.byName["r"], core.AllSlots)
	w.passTen("e")
	if m := w.met(); !m.allAt.Equal(m.sweepAt.Add(partitionSweepPause - holdSweepEvery)) {
		t.Errorf("a partition came again: the next walk over all follows at %s, want a minute after the latest one", m.allAt)
	}
}

// TestPassedRecordsOfLateTransactions: a record that a transaction shows late, behind where a Hold has come, is taken,
// however long the transaction ran.
func TestPassedRecordsOfLateTransactions(t *testing.T) { // TQ-04
	t.Parallel()
	for _, long := range []bool{false, true} {
		w, _ := newPassing(t, 100)
		tx := w.st.Begin()
		_, err := tx.Stage(core.StagedRow{Route: "r", Envelope: waybill.Envelope{ID: "late", Topic: "t"}})
		w.must(err)
		w.stage("", "c")
		if w.d.Wake(w.now, "r"); long {
			w.handle("c")
			w.passTen("d")
			w.passTen("e")
			if m := w.met(); m.front < 20 {
				t.Fatalf("the next Take begins at %d, so that this shows nothing", m.front)
			}
		}
		if !long {
			w.until(1)
		}
		w.must(tx.Commit())
		if long {
			w.handle("late")
		} else {
			w.handle("c", "late")
		}
	}
}

// TestPassedRecordsThatComeBack: a record that the member gives back, or an operator puts back, is taken again.
func TestPassedRecordsThatComeBack(t *testing.T) { // TQ-04
	t.Parallel()
	w, _ := newPassing(t, 100)
	w.stage("", "c", "d")
	w.until(2)
	items := w.d.HandOut(w.now, "r", 10)
	w.passTen("e")
	w.d.Conclude(w.now, items[0], core.Release(&items[0].Record, 0, false))
	w.d.Conclude(w.now, items[1], core.Abandon(&items[1].Record, "rejected", errors.New("no")))
	w.handle("c")
	w.passTen("f")
	tx := w.st.Begin()
	w.must(tx.Redrive("r", "d"))
	w.must(tx.Commit())
	w.handle("d")

	w, _ = newPassing(t, 100)
	w.stage("", "c")
	for _, item := range w.hand(1) {
		w.d.Conclude(w.now, item, core.Abandon(&item.Record, "rejected", errors.New("no")))
	}
	w.passTen("e")
	_, err := w.st.Redrive(t.Context(), admin.RedriveRequest{All: true})
	w.must(err)
	w.handle("c")
}

// TestRecordsOfALostTake: a record held by a Hold whose answer was lost is handed out, also if the Hold is executed
// late.
func TestRecordsOfALostTake(t *testing.T) { // DB-24
	t.Parallel()
	for _, late := range []bool{false, true} {
		w, _ := newPassing(t, 100)
		w.stage("", "c")
		w.d.Wake(w.now, "r")
		w.now = w.now.Add(time.Millisecond)
		var lost *Call
		for _, c := range w.d.Calls(w.now) {
			if c.Kind() == CallHold {
				again := *c
				if lost = &again; !late {
					lost.Do(t.Context(), w.st)
				}
				c.Lose(errLost)
			} else {
				w.call(c)
			}
			w.d.Done(w.now, c)
		}
		if lost == nil {
			t.Fatal("no take")
		}
		if late {
			w.handle("c")
			w.stage("", "d")
			lost.Do(t.Context(), w.st)
			if w.state("d").Holder != 100 {
				t.Fatal("the late take holds nothing")
			}
			w.handle("d")
		} else {
			w.handle("c")
		}
	}
}

// TestTakeInSteps: a Hold that is to go over many numbers goes over some at a time, and over fewer after one that was
// not answered. New records do not wait for a walk.
func TestTakeInSteps(t *testing.T) { // TQ-04
	t.Parallel()
	w, _ := newPassing(t, 100)
	rt := w.d.byName["r"]
	rt.holdStep = 4
	w.met().back(0)
	var froms []string
	for range 8 {
		var s core.HoldRequest
		rt.holdScope(&s)
		froms = append(froms, fmt.Sprint(s.AfterSeq, "-", min(s.UpToSeq, 99)))
		rt.noteProgress(&s, nil, false)
	}
	if got := strings.Join(froms, " "); got != "0-4 11-99 4-8 11-99 8-11 11-99 11-99 11-99" {
		t.Errorf("Takes went over %s", got)
	}
	w.met().back(0)
	var s core.HoldRequest
	rt.holdScope(&s)
	w.met().missed()
	rt.holdScope(&s)
	if rt.holdScope(&s); s.UpToSeq != 2 {
		t.Errorf("after a failure it goes up to %d, want 2", s.UpToSeq)
	}

	w, _ = newPassing(t, 3) // one is passed
	m, rt := w.met(), w.d.byName["r"]
	m.stuck, m.visible = true, 99
	held := func(seqs ...int64) (ts []core.HoldResult) {
		for _, seq := range seqs {
			ts = append(ts, core.HoldResult{Ref: core.Ref{Seq: seq}, Status: core.HoldSkipped})
		}
		return ts
	}
	rt.holdScope(&s)
	m.back(13) // while that Hold is under way
	if rt.noteProgress(&s, held(1, 12, 15), false); m.front != 15 || len(m.passed) != 3 || m.walk != (span{13, 15}) {
		t.Errorf("at the bound of those that are passed the front is at %d with %v, and a walk goes over %v, want 15 with three and (13, 15]",
			m.front, m.passed, m.walk)
	}
}

// TestTakeThatIsFull: a Hold that had no room for more has come as far as the first record that it left, although it
// took a later one: one of passed, or one that a Hold without an answer had held.
func TestTakeThatIsFull(t *testing.T) { // TQ-04
	t.Parallel()
	w := newQueue(t, 20)
	w.d.noSweeps = true
	rt, m := w.d.byName["r"], w.met()
	rt.holdStep = 50
	m.front, m.visible = 100, 100
	m.back(0)
	take := func(later, first, left int64) {
		m.walks, m.stuck = false, false
		want := core.HoldRequest{KeylessLimit: 2}
		rt.holdScope(&want)
		rt.noteProgress(&want, []core.HoldResult{
			{Ref: core.Ref{Seq: later}, Record: &core.Record{}},
			{Ref: core.Ref{Seq: first}, Record: &core.Record{}},
			{Ref: core.Ref{Seq: left}, Status: core.HoldSkipped},
		}, true)
	}
	m.pass(99)
	if take(99, 1, 2); m.walk.from != 1 {
		t.Errorf("the walk goes on behind %d, want 1", m.walk.from)
	}
	if take(40, 2, 3); m.walk.from != 2 {
		t.Errorf("with a record that was held before, the walk goes on behind %d, want 2", m.walk.from)
	}
	m.pass(99)
	want := core.HoldRequest{KeylessLimit: 1}
	m.walks, m.stuck = false, false
	rt.holdScope(&want)
	if rt.noteProgress(&want, []core.HoldResult{{Ref: core.Ref{Seq: 99}, Record: &core.Record{}}}, true); m.walk.from > want.UpToSeq {
		t.Errorf("a Hold up to %d has come to %d", want.UpToSeq, m.walk.from)
	}
}
