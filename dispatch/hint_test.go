package dispatch

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// whole is the only partition of route r.
var whole = core.Partition{Route: "r", From: 0, To: 64}

// member makes a dispatcher of a route that blocks; it is the one that w lets run.
func (w *small) member(session core.Session) {
	w.d = New(Options{
		Routes: []Route{{Name: "r", Partitions: 1, Blocks: true}}, Lease: time.Second, NewSession: func() core.Session { return session },
	})
}

// blocked makes a the abandoned head of its key, with b behind it, and a hint between them of a partition without an
// owner.
func (w *small) blocked() {
	w.t.Helper()
	w.stage("k", "a")
	rs := w.other()
	w.must(w.st.Settle(w.t.Context(), 1, []core.Outcome{core.Abandon(&rs[0], waybill.ReasonRejected, errLost)}).FirstErr())
	w.leave(rs[0].Seq)
	w.stage("k", "b")
}

// leave has session 1 store a hint and leave.
func (w *small) leave(readAfter int64) {
	w.t.Helper()
	self := core.Member{Session: 1, Heartbeats: 2}
	_, err := w.st.Heartbeat(w.t.Context(), core.HeartbeatRequest{Self: self, Transfers: []core.Transfer{{Partition: whole, From: 1, To: 1, ReadAfter: readAfter}}})
	w.must(err)
	_, err = w.st.Heartbeat(w.t.Context(), core.HeartbeatRequest{Self: self, Leave: true})
	w.must(err)
}

func (w *small) requeue(key, id string) {
	w.t.Helper()
	_, err := w.st.Decide("r", key, id, admin.HeadRequeue)
	w.must(err)
}

// slowSweep is a store whose sweeps have a long way to the records up to the hint.
type slowSweep struct{ *memory.Store }

func (s slowSweep) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	result, err := s.Store.Read(ctx, self, request)
	for i := range result.Ranges {
		if request.Ranges[i].AfterSeq == 0 && request.Ranges[i].UpToSeq == 1 {
			result.Ranges[i] = core.Records{More: true}
		}
	}
	return result, err
}

// heir lets another member take over from one that died, and returns the records that it hands out.
func (w *small) heir() []string {
	w.call = func(c *Call) { c.Do(w.t.Context(), slowSweep{w.st}) }
	w.member(200)
	return w.run(4 * time.Second)
}

// TestRequeuedBelowTheHint: whenever an owner dies that has heard of a requeued head, its successor hands out the head
// first, although the hint of the partition is above it.
func TestRequeuedBelowTheHint(t *testing.T) { // OR-04
	t.Parallel()
	for life := range 60 { // in ms, after the requeue
		w := newSmall(t)
		w.blocked()
		w.member(100)
		if got := w.run(50 * time.Millisecond); len(got) != 0 {
			t.Fatalf("handed out %v behind an abandoned head", got)
		}
		w.requeue("k", "a")
		w.d.Wake(w.now)
		w.run(time.Duration(life) * time.Millisecond)
		if got := w.heir(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("the owner died %d ms after the requeue, and its successor handed out %v, want a", life, got)
		}
	}
}

// TestHintsOfThisLife: the database goes back to where two records were out, as with a standby that lacked the latest
// commits. Their member still says how far it has come, as it leaves or releases. Its successor hands them out.
func TestHintsOfThisLife(t *testing.T) { // DB-25
	t.Parallel()
	w := newSmall(t)
	w.stage("", "a", "b")
	w.member(100)
	items := w.hand(2)
	img := w.st.Snapshot()
	for _, item := range items {
		w.d.Conclude(w.now, item, core.Published(&item.Record))
	}
	for w.state("a") != nil || w.state("b") != nil {
		w.step()
	}
	w.run(50 * time.Millisecond)
	w.st.Restore(img)
	w.d.Stop()
	for !w.d.Left() {
		w.step()
	}
	w.member(200)
	w.d.noSweeps = true
	if got := w.run(4 * time.Second); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the successor handed out %v, want a and b", got)
	}
	rt := w.d.byName["r"]
	w.d.releaseOne(rt)
	calls := w.d.releaseCalls()
	if len(calls) != 1 || calls[0].op.(*releaseOp).owned.StoreEpoch != w.d.db.epoch || w.d.db.epoch == "" {
		t.Fatalf("a release in epoch %q: %+v", w.d.db.epoch, calls[0].op)
	}
}

// TestRedrivenWithoutKeyBelowTheHint: the same of a record without a key: it does not wait for a sweep.
func TestRedrivenWithoutKeyBelowTheHint(t *testing.T) { // DB-12
	t.Parallel()
	w := newSmall(t)
	w.stage("", "a")
	rs := w.other()
	w.must(w.st.Settle(t.Context(), 1, []core.Outcome{core.Abandon(&rs[0], waybill.ReasonRejected, errLost)}).FirstErr())
	w.leave(rs[0].Seq)
	w.member(100)
	w.run(50 * time.Millisecond)
	tx := w.st.Begin()
	w.must(tx.Redrive("r", "a"))
	w.must(tx.Commit())
	w.d.Wake(w.now)
	w.run(50 * time.Millisecond)
	r, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{})
	w.must(err)
	result, err := w.st.Read(t.Context(), 100, core.ReadRequest{Slots: []core.RouteSlots{{Route: "r", Slots: core.AllSlots}}})
	w.must(err)
	if len(result.Notices) > 0 {
		t.Fatalf("not heeded: %v", result.Notices)
	}
	if readAfter := r.Partitions[0].ReadAfter; readAfter >= rs[0].Seq {
		t.Errorf("the hint is %d, and %d is ready", readAfter, rs[0].Seq)
	}
}

// TestRequeuedBeforeAllThatWaitsIsKnown: a head that was put back is read although what waits in its partition takes
// several pages.
func TestRequeuedBeforeAllThatWaitsIsKnown(t *testing.T) { // OR-04
	t.Parallel()
	w := newSmall(t)
	w.stage("k", "a")
	w.manyBlocked(waitingPage + 1) // one more than a page has
	w.requeue("k", "a")
	w.member(100)
	w.d.noSweeps = true
	if got := w.run(time.Second); !slices.Equal(got, []string{"a"}) {
		t.Errorf("handed out %v, want a", got)
	}
}

// TestRequeuedBehindManyNoticeRecords: a head that was put back goes first although its notice does not come
// with the first page.
func TestRequeuedBehindManyNoticeRecords(t *testing.T) { // OR-04
	t.Parallel()
	w := newSmall(t)
	w.manyBlocked(noticeLimit + 1)
	for i := range noticeLimit + 1 {
		w.requeue("k"+strconv.Itoa(i), "b"+strconv.Itoa(i))
	}
	key := "k" + strconv.Itoa(noticeLimit)
	w.stage(key, "z")
	w.member(100)
	w.d.noSweeps = true
	got := w.run(time.Second)
	if !slices.Contains(got, "b"+strconv.Itoa(noticeLimit)) || slices.Contains(got, "z") { // nothing is concluded
		t.Errorf("handed out %d records, %v at the end, want all heads and not z", len(got), got[max(len(got)-3, 0):])
	}
}

// manyBlocked makes all that is staged, and n more records of a key each, abandoned heads below the hint of a partition
// without an owner.
func (w *small) manyBlocked(n int) {
	w.t.Helper()
	for i := range n {
		w.stage("k"+strconv.Itoa(i), "b"+strconv.Itoa(i))
	}
	w.other()
	all := core.Range{RouteSlots: core.RouteSlots{Route: "r", Slots: core.AllSlots}, UpToSeq: 1 << 60, Limit: n + 1}
	result, err := w.st.Read(w.t.Context(), 1, core.ReadRequest{Ranges: []core.Range{all}})
	w.must(err)
	var os []core.Outcome
	for i := range result.Ranges[0].Records {
		os = append(os, core.Abandon(&result.Ranges[0].Records[i], waybill.ReasonRejected, errLost))
	}
	w.must(w.st.Settle(w.t.Context(), 1, os).FirstErr())
	w.leave(result.Ranges[0].Records[len(os)-1].Seq)
}

// lateHint is a store that answers nothing to the first call that stores a hint, and keeps it.
type lateHint struct {
	*memory.Store
	late *core.HeartbeatRequest
}

func (s *lateHint) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	stores := func(v core.Transfer) bool { return v.From == v.To }
	if s.late == nil && slices.ContainsFunc(m.Transfers, stores) {
		s.late = &m
		return core.Membership{}, errLost
	}
	return s.Store.Heartbeat(ctx, m)
}

// TestHintThatIsLate: the answer to a hint is lost, and another call lowers the hint. If the first is carried out after
// that, it changes nothing.
func TestHintThatIsLate(t *testing.T) { // OR-04
	t.Parallel()
	for _, minds := range []bool{true, false} {
		w := newSmall(t)
		w.stage("k", "a")
		rs := w.other()
		w.must(w.st.Settle(t.Context(), 1, []core.Outcome{core.Abandon(&rs[0], waybill.ReasonRejected, errLost)}).FirstErr())
		st := &lateHint{Store: w.st}
		w.call = func(c *Call) { c.Do(t.Context(), st) }
		w.member(100)
		// it takes over from a dead one, and has seen all that this one had
		if w.run(3 * time.Second); st.late == nil {
			t.Fatal("no hint was stored")
		}
		w.stage("k", "b")
		w.requeue("k", "a")
		w.d.Wake(w.now)
		w.run(50 * time.Millisecond)
		if !minds {
			st.late.Self.Heartbeats = w.d.self.heartbeats
		}
		_, err := w.st.Heartbeat(t.Context(), *st.late)
		w.must(err)
		if got := w.heir(); slices.Equal(got, []string{"a"}) != minds {
			t.Errorf("with renewals: %t; handed out %v", minds, got)
		}
	}
}

// TestNoticeOfAPartitionThatGoes: a release whose answer was lost may still be carried out, and then stores the hint
// that it was sent with. So what comes back meanwhile is left to the next owner.
func TestNoticeOfAPartitionThatGoes(t *testing.T) { // OR-04
	t.Parallel()
	w := newSmall(t)
	w.blocked()
	var late *Call
	w.call = func(c *Call) {
		if c.Kind() == CallRelease {
			if late == nil {
				again := *c
				late = &again
			}
			c.Lose(errLost)
			return
		}
		c.Do(t.Context(), w.st)
	}
	w.member(100)
	w.run(50 * time.Millisecond)
	able := core.Member{Session: 1, Heartbeats: 4, Lease: time.Minute, Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1}}}
	_, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{Self: able, Join: true})
	w.must(err)
	w.d.SetAble("r", false)
	if w.run(100 * time.Millisecond); late == nil {
		t.Fatal("the partition is not given up")
	}
	w.requeue("k", "a")
	w.d.Wake(w.now)
	w.run(100 * time.Millisecond)
	late.Do(t.Context(), w.st)
	_, err = w.st.Heartbeat(t.Context(), core.HeartbeatRequest{Self: able, Leave: true})
	w.must(err)
	if got := w.heir(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("handed out %v, want a", got)
	}
}

// TestPartitionThatComesWhileANoticeRecordGoes: a notice about many records is deleted for all partitions that the
// member owns by then. One that came after it was read is read from there on, too.
func TestPartitionThatComesWhileANoticeRecordGoes(t *testing.T) { // DB-23
	t.Parallel()
	w := newSmall(t)
	w.member(100)
	w.run(50 * time.Millisecond)
	w.d.notices.open[1] = &core.Notice{Number: 1, Kind: core.NoticeReread, Route: "r", Seq: 5}
	w.d.notices.open[2] = &core.Notice{Number: 2, Kind: core.NoticeReread, Route: "another", Seq: 3}
	w.d.notices.open[3] = &core.Notice{Number: 3, Kind: core.NoticeKey, Route: "r", Seq: 2, Key: "k"}
	rt := w.d.byName["r"]
	w.d.addSlots(rt, 1, 100)
	if g := rt.groups[len(rt.groups)-1]; g.stable != 4 || g.cursor != 4 {
		t.Errorf("it is read from %d on", g.stable)
	}
}
