package dispatch

// Histories that random worlds find too rarely: the memory of groups that merge, of partitions that come and go, and of
// records that no member has settled, in one constructed case each.

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// membership is what the store says about the members and their partitions.
func (w *small) membership() core.Membership {
	w.t.Helper()
	r, err := w.st.Heartbeat(w.t.Context(), core.HeartbeatRequest{})
	w.must(err)
	return r
}

// able has session 1 join or renew as a member that takes partitions.
func (w *small) able(heartbeats int64) {
	w.t.Helper()
	_, err := w.st.Heartbeat(w.t.Context(), core.HeartbeatRequest{Join: true, Self: core.Member{Session: 1, Heartbeats: heartbeats, Lease: time.Minute, Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1}}}})
	w.must(err)
}

// TestMergedGroupsMissNothing: of two groups that merge, each may still miss records that the other has seen: behind
// its stable, and those of a transaction that it began to watch earlier. The group that stays reads from the lower
// place.
func TestMergedGroupsMissNothing(t *testing.T) { // DB-22
	t.Parallel()
	const long, other = 7, 8 // transactions
	for _, swapped := range []bool{false, true} {
		w := newSmall(t)
		w.start()
		rt := w.d.byName["r"]
		rt.groups = []*group{
			{route: rt, slots: 1, loaded: true, cursor: 30, stable: 20, late: 20, watch: map[int64]int64{long: 20}},
			{route: rt, slots: 2, loaded: true, cursor: 30, stable: 10, late: 10, watch: map[int64]int64{long: 10, other: 15}},
		}
		if swapped {
			slices.Reverse(rt.groups)
		}
		rt.merge(30)
		if len(rt.groups) != 1 || rt.groups[0].slots != 3 {
			t.Fatalf("%d groups are left", len(rt.groups))
		}
		g := rt.groups[0]
		if g.stable != 10 || g.late != 10 {
			t.Errorf("it is read again from %d and %d on, want 10", g.stable, g.late)
		}
		for id, want := range map[int64]int64{long: 10, other: 15} {
			g.walks = nil
			if rt.walkFor(id, true); len(g.walks) != 1 || g.walks[0].pos != want || g.walks[0].to != 30 {
				t.Errorf("transaction %d has ended, and the walks are %+v, want one from %d on", id, g.walks, want)
			}
		}
	}
}

// TestHintKeepsWhatItsTopicHolds: the hint of a partition that is released is below a record that was passed since its
// topic is paused: the next owner does not wait for a sweep.
func TestHintKeepsWhatItsTopicHolds(t *testing.T) { // DB-23
	t.Parallel()
	w := newSmall(t)
	w.start()
	w.d.noSweeps = true
	w.d.PauseTopic("r", "t", true)
	w.stage("", "a")
	if got := w.run(100 * time.Millisecond); len(got) != 0 || len(w.d.byName["r"].topics.passed) != 1 {
		t.Fatalf("handed out %v, passed %v", got, w.d.byName["r"].topics.passed)
	}
	w.able(1)
	w.d.SetAble("r", false)
	w.run(200 * time.Millisecond)
	if u := w.membership().Partitions[0]; u.Owner != 0 || u.ReadAfter >= w.state("a").Seq {
		t.Errorf("a partition of %d has the hint %d, and %d is ready", u.Owner, u.ReadAfter, w.state("a").Seq)
	}
}

// TestHintKeepsWhatAnotherHolds: the same of a record that a former owner has out.
func TestHintKeepsWhatAnotherHolds(t *testing.T) { // DB-23
	t.Parallel()
	w := newSmall(t)
	w.stage("", "a")
	rs := w.other()
	done, err := w.st.ReleasePartition(t.Context(), 1, core.PartitionState{Partition: whole, Term: w.membership().Partitions[0].Term}, []core.Ref{rs[0].Ref})
	w.must(err)
	if !done {
		t.Fatal("not given up")
	}
	w.keep(2)
	w.start()
	w.d.noSweeps = true
	if got := w.run(300 * time.Millisecond); len(got) != 0 || len(w.d.byName["r"].revisits.bySeq) != 1 {
		t.Fatalf("handed out %v; %d are to be read again", got, len(w.d.byName["r"].revisits.bySeq))
	}
	w.able(3)
	w.d.SetAble("r", false)
	w.run(200 * time.Millisecond)
	if u := w.membership().Partitions[0]; u.Owner != 0 || u.ReadAfter >= rs[0].Seq {
		t.Errorf("a partition of %d has the hint %d, and %d is out at the former owner", u.Owner, u.ReadAfter, rs[0].Seq)
	}
}

// TestGiveUpThatMayStillCome: the answer to a release was lost, and the next one says that nothing was released. The
// first may still be carried out: nothing of the partition is handed out.
func TestGiveUpThatMayStillCome(t *testing.T) { // DB-24
	t.Parallel()
	w := newSmall(t)
	w.stage("a", "a")
	w.start()
	w.hand(1)
	tx := w.st.Begin()
	w.must(tx.Lock("r", "a"))
	w.able(1)
	tries := 0
	w.call = func(c *Call) {
		if c.Kind() == CallRelease {
			if tries++; tries == 1 {
				c.Lose(errLost)
				return
			}
		}
		c.Do(t.Context(), w.st)
	}
	w.d.SetAble("r", false)
	for tries < 2 {
		w.step()
	}
	if u := w.membership().Partitions[0]; u.Owner != 100 {
		t.Fatalf("the partition is %d's", u.Owner)
	}
	w.stage("b", "b")
	w.d.Wake(w.now)
	if got := w.run(90 * time.Millisecond); len(got) != 0 { // less than until the next try
		t.Errorf("handed out %v of a partition that may be given up at any moment", got)
	}
	tx.Rollback()
}

// TestPartitionThatWasAway: a partition was another's for a while, between two reads of its member. Nothing of it is
// handed out that the other one has published meanwhile.
func TestPartitionThatWasAway(t *testing.T) { // DB-24
	t.Parallel()
	w := newSmall(t)
	w.stage("", "a")
	w.start()
	for w.d.Ready("r") < 1 {
		w.step()
	}
	move := func(heartbeats int64, from, to core.Session) {
		w.t.Helper()
		_, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{
			Self: core.Member{Session: 1, Heartbeats: heartbeats, Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1}}}, Join: true,
			Transfers: []core.Transfer{{Partition: whole, From: from, To: to}},
		})
		w.must(err)
	}
	move(1, 100, 1)
	result, err := w.st.Read(t.Context(), 1, core.ReadRequest{Ranges: []core.Range{{RouteSlots: core.RouteSlots{Route: "r", Slots: core.AllSlots}, UpToSeq: 1 << 60, Limit: 100}}})
	w.must(err)
	w.must(w.st.Settle(t.Context(), 1, []core.Outcome{core.Published(&result.Ranges[0].Records[0])}).FirstErr())
	move(2, 1, 100)
	w.d.peers.heartbeatAt = w.now
	w.step()
	if got := w.run(200 * time.Millisecond); len(got) != 0 {
		t.Errorf("handed out %v once more", got)
	}
}

// TestMembershipOlderThanAGiveUp: a membership that was asked for before a partition was released does not bring it
// back.
func TestMembershipOlderThanAGiveUp(t *testing.T) { // DB-24
	t.Parallel()
	w := newSmall(t)
	w.start()
	w.run(20 * time.Millisecond)
	w.able(1)
	w.d.SetAble("r", false)
	rt := w.d.byName["r"]
	var old *Call
	for gave := false; !gave; w.now = w.now.Add(time.Millisecond) {
		w.d.self.renewNow = w.d.self.renewNow || rt.releasing != 0 && old == nil
		for _, c := range w.d.Calls(w.now) {
			if w.call(c); c.Kind() == CallHeartbeat && rt.releasing != 0 {
				old = c // its answer comes late
				continue
			}
			w.d.Done(w.now, c)
			gave = gave || c.Kind() == CallRelease
		}
	}
	if old == nil || w.membership().Partitions[0].Owner == 100 || len(rt.partitions) != 0 {
		t.Fatalf("a membership is on its way: %t; the partition is %d's; %d here", old != nil, w.membership().Partitions[0].Owner, len(rt.partitions))
	}
	if w.d.Done(w.now, old); len(rt.partitions) != 0 {
		t.Error("an old membership brought the partition back")
	}
}

// TestCareUpToTheLast: the last record that a dead member may have had out is a suspect like those before it: care ends
// with its outcome, and no sooner.
func TestCareUpToTheLast(t *testing.T) { // DB-24
	t.Parallel()
	w := newSmall(t)
	w.stage("", "a", "b")
	w.other()
	w.start()
	w.steps(1100) // until session 1 is dead
	items := w.hand(2)
	last := w.state("b").Seq
	if care := w.membership().Partitions[0].MaybeOutUpTo; care != last {
		t.Fatalf("care ends at %d, the last record is %d", care, last)
	}
	publish := func(id string) {
		for _, item := range items {
			if item.Record.ID == id {
				w.d.Conclude(w.now, item, core.Published(&item.Record))
			}
		}
		w.steps(800) // more than two renewals
	}
	if publish("a"); w.membership().Partitions[0].MaybeOutUpTo == 0 {
		t.Error("care has ended before the last record")
	}
	if publish("b"); w.membership().Partitions[0].MaybeOutUpTo != 0 {
		t.Error("care does not end")
	}
}

// TestDecisionAboutAPartitionThatComesBack: a decision that its owner has seen, and not carried out when the partition
// left, is carried out when the partition comes back.
func TestDecisionAboutAPartitionThatComesBack(t *testing.T) { // OP-18
	t.Parallel()
	w := newSmall(t)
	w.start()
	w.steps(50)
	rt := w.d.byName["r"]
	w.stage("k", "a")
	_, err := w.st.Decide("r", "k", "a", admin.HeadSkip)
	w.must(err)
	w.d.Wake(w.now)
	seen := func() bool {
		for _, v := range rt.revisits.bySeq {
			if v.decision != nil {
				return true
			}
		}
		return false
	}
	for !seen() {
		w.step()
	}
	w.d.drop(rt, core.AllSlots)
	w.now = w.now.Add(time.Millisecond)
	w.d.peers.heartbeatAt = w.now
	w.steps(500)
	if st := w.state("a"); st == nil || st.Reason != waybill.ReasonSkipped {
		t.Errorf("a is stored as %+v", st)
	}
}

// TestRedriveVoidsADecision: a record that was put back after a decision about it is handed out, although its owner has
// read the decision, or is carrying it out.
func TestRedriveVoidsADecision(t *testing.T) { // OP-18
	t.Parallel()
	for i := range 4 {
		key, known := []string{"", "k"}[i%2], i/2 == 0
		w := newSmall(t)
		w.start()
		w.d.noSweeps = true
		w.steps(50)
		rt := w.d.byName["r"]
		w.stage(key, "a")
		if known {
			w.d.Wake(w.now)
			for w.d.Ready("r") < 1 {
				w.step()
			}
		}
		seq := w.state("a").Seq
		_, err := w.st.DecideRecords(t.Context(), admin.DecideRequest{Reason: waybill.ReasonSkipped, Decisions: []admin.Decision{{Route: "r", Seq: seq, ID: "a"}}})
		w.must(err)
		w.d.Wake(w.now)
		redriven := false
		redrive := func() { // when it has ended
			result, err := w.st.Read(t.Context(), 100, core.ReadRequest{Ranges: []core.Range{{RouteSlots: core.RouteSlots{Route: "r", Slots: core.AllSlots}, UpToSeq: 1 << 60, Limit: 100}}})
			w.must(err)
			w.must(w.st.Settle(t.Context(), 100, []core.Outcome{core.Abandon(&result.Ranges[0].Records[0], waybill.ReasonRejected, errLost)}).FirstErr())
			tx := w.st.Begin()
			w.must(tx.Redrive("r", "a"))
			w.must(tx.Commit())
			redriven = true
		}
		w.call = func(c *Call) {
			if known && !redriven && c.Kind() == CallSettle {
				redrive()
			}
			c.Do(t.Context(), w.st)
		}
		for !redriven {
			w.step()
			if v := rt.revisits.bySeq[seq]; !known && v != nil && v.decision != nil {
				redrive()
			}
		}
		w.d.Wake(w.now)
		if got := w.run(200 * time.Millisecond); !slices.Equal(got, []string{"a"}) {
			t.Errorf("key %q; known: %t: handed out %v, want a; it is stored as %+v", key, known, got, w.state("a"))
		}
	}
}

// TestEndedButMaybeDelivered: a record that an operator ends is marked as maybe delivered if it was out without a
// result, and not otherwise. The decision can come while the record is out, or later.
func TestEndedButMaybeDelivered(t *testing.T) { // ST-09
	t.Parallel()
	for i := range 4 {
		during, unknown := i%2 == 0, i/2 == 0
		w, item := oneOut(t)
		decide := func() {
			_, err := w.st.Decide("r", "k", "a", admin.HeadSkip)
			w.must(err)
			w.d.Wake(w.now)
			w.steps(50)
		}
		if during {
			decide()
		}
		w.d.Conclude(w.now, item, core.Release(&item.Record, 0, unknown))
		if !during {
			decide()
		}
		w.steps(50)
		if st := w.state("a"); st.Reason != waybill.ReasonSkipped || st.Maybe != unknown {
			t.Errorf("ended while it was out: %t; without a result: %t; it is stored as %+v", during, unknown, st)
		}
	}
}

// TestManyAreRedriven: records without a key that are put back in one go are read again at once, although the member
// has passed them, and not by its next sweep.
func TestManyAreRedriven(t *testing.T) { // DB-12
	t.Parallel()
	w := newSmall(t)
	ids := []string{"a", "b", "c", "d", "e", "f"}
	w.stage("", ids...)
	w.start()
	w.d.noSweeps = true
	for _, item := range w.hand(len(ids)) {
		w.d.Conclude(w.now, item, core.Abandon(&item.Record, waybill.ReasonRejected, errLost))
	}
	w.steps(100)
	got, err := w.st.Redrive(t.Context(), admin.RedriveRequest{All: true})
	w.must(err)
	result, err := w.st.Read(t.Context(), 100, core.ReadRequest{Slots: []core.RouteSlots{{Route: "r", Slots: core.AllSlots}}})
	w.must(err)
	if got.Changed != len(ids) || len(result.Notices) != 1 || result.Notices[0].Kind != core.NoticeReread {
		t.Fatalf("%d are put back, and the owner is told %+v", got.Changed, result.Notices)
	}
	w.d.Wake(w.now)
	again := w.run(100 * time.Millisecond)
	if slices.Sort(again); !slices.Equal(again, ids) {
		t.Errorf("handed out %v, want %v", again, ids)
	}
	result, err = w.st.Read(t.Context(), 100, core.ReadRequest{Slots: []core.RouteSlots{{Route: "r", Slots: core.AllSlots}}})
	w.must(err)
	if len(result.Notices) != 0 {
		t.Errorf("%+v is left", result.Notices)
	}
}

// late is a store that asks which transactions run before it takes a snapshot: the one that was open has ended in
// between, once.
type late struct {
	*memory.Store
	open  int64 // the transaction; 0 = it is not known
	ended int   // results that show its records, though it counts as running
}

func (s *late) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	result, err := s.Store.Read(ctx, self, request)
	switch {
	case len(result.RunningTxs) == 1:
		s.open = result.RunningTxs[0]
	case s.open > 0 && s.ended == 0 && len(request.Ranges) > 0:
		s.ended++
		result.RunningTxs, result.MaybeEndedTxs = []int64{s.open}, []int64{s.open}
	}
	return result, err
}

// TestTransactionThatMayHaveEnded: a result shows a record behind a watched transaction that counts as running, and
// that has ended before the snapshot was taken. The transaction's own record of the key goes first; here it stays out.
func TestTransactionThatMayHaveEnded(t *testing.T) { // OR-02
	t.Parallel()
	w := newSmall(t)
	st := &late{Store: w.st}
	w.call = func(c *Call) { c.Do(t.Context(), st) }
	long := w.st.Begin()
	_, err := long.Stage(core.StagedRow{Route: "r", Envelope: waybill.Envelope{ID: "a", Topic: "t", Key: "k"}})
	w.must(err)
	w.stage("x", "b")
	w.start()
	got := w.run(3 * time.Second)
	w.must(long.Commit())
	w.stage("k", "c")
	w.d.Wake(w.now)
	got = append(got, w.run(time.Second)...)
	if want := []string{"b", "a"}; !slices.Equal(got, want) || st.ended != 1 {
		t.Errorf("handed out %v, want %v; %d results were late", got, want, st.ended)
	}
}
