package dispatch

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// small is a world of one dispatcher and a store, in which a test does everything else by hand.
type small struct {
	t   *testing.T
	now time.Time
	st  *memory.Store
	d   *Dispatcher
	// call makes a call of the dispatcher.
	call func(c *Call)
	// slowly is how long a Due takes that is lost.
	slowly time.Duration
}

func newSmall(t *testing.T) *small {
	t.Helper()
	w := &small{t: t, now: epochStart}
	w.st = newStore(func() time.Time { return w.now })
	w.call = func(c *Call) { c.Do(context.Background(), w.st) }
	return w
}

// start makes the dispatcher.
func (w *small) start() {
	w.d = New(Options{
		Routes: []Route{{Name: "r", Partitions: 1}}, Lease: time.Second, NewSession: func() core.Session { return 100 },
	})
}

// stage stages one message for each id, in one transaction.
func (w *small) stage(key string, ids ...string) {
	w.t.Helper()
	w.stageOn("r", key, ids...)
}

// stageOn stages a record on a route.
func (w *small) stageOn(route, key string, ids ...string) {
	w.t.Helper()
	tx := w.st.Begin()
	for _, id := range ids {
		if _, err := tx.Stage(core.StagedRow{Route: route, Envelope: waybill.Envelope{ID: id, Topic: "t", Key: key}}); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		w.t.Fatal(err)
	}
}

// run lets time pass, and returns the ids of the records that the dispatcher handed out.
func (w *small) run(d time.Duration) (ids []string) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(time.Millisecond) {
		for _, c := range w.d.Calls(w.now) {
			w.call(c)
			w.d.Done(w.now, c)
		}
		for _, item := range w.d.HandOut(w.now, "r", 10) {
			ids = append(ids, item.Record.Envelope.ID)
		}
	}
	return ids
}

// other makes session 1 a member that owns the partition, and returns the ready records.
func (w *small) other() []core.Record {
	w.t.Helper()
	partition := core.Partition{Route: "r", From: 0, To: 64}
	m := core.HeartbeatRequest{Self: core.Member{Session: 1, Heartbeats: 1, Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1, Unavailable: true}}}, Join: true, Transfers: []core.Transfer{{Partition: partition, To: 1}}}
	if _, err := w.st.Heartbeat(w.t.Context(), m); err != nil {
		w.t.Fatal(err)
	}
	result, err := w.st.Read(w.t.Context(), 1, core.ReadRequest{Ranges: []core.Range{{RouteSlots: core.RouteSlots{Route: "r", Slots: core.AllSlots}, UpToSeq: 1 << 60, Limit: 100}}})
	if err != nil {
		w.t.Fatal(err)
	}
	return result.Ranges[0].Records
}

func (w *small) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestTwoRetriesOfAKey: the first of two retries of a key holds the second, in either order of their due times.
func TestTwoRetriesOfAKey(t *testing.T) { // OR-02
	t.Parallel()
	w := newSmall(t)
	w.stage("k", "a", "b", "c")
	rs := w.other()
	no := errors.New("no")
	w.must(w.st.Settle(t.Context(), 1, []core.Outcome{core.Retry(&rs[0], no, 300*time.Millisecond), core.Retry(&rs[1], no, 100*time.Millisecond)}).FirstErr())
	_, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 1, Heartbeats: 2}, Leave: true})
	w.must(err)
	w.start()
	got := w.run(time.Second)
	if want := []string{"a"}; !slices.Equal(got, want) {
		t.Errorf("handed out %v, want %v: b and c wait for a", got, want)
	}
}

// TestPartitionThatIsAnothersIsDropped: nothing of a partition is handed out once the store says that it is another's,
// although no wake-up told the member.
func TestPartitionThatIsAnothersIsDropped(t *testing.T) { // DB-24
	t.Parallel()
	w := newSmall(t)
	w.start()
	if got := w.run(50 * time.Millisecond); len(got) != 0 {
		t.Fatal(got)
	}
	_, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{
		Self: core.Member{Session: 1, Heartbeats: 1, Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1}}}, Join: true,
		Transfers: []core.Transfer{{Partition: core.Partition{Route: "r", From: 0, To: 64}, From: 100, To: 1}},
	})
	w.must(err)
	w.stage("k", "a")
	w.d.Wake(w.now)
	if got := w.run(100 * time.Millisecond); len(got) != 0 {
		t.Errorf("handed out %v of another's partition", got)
	}
}

// TestRetryThatIsOutAtAnother: a retry that the former owner has out blocks its key, although it is not among what is
// ready.
func TestRetryThatIsOutAtAnother(t *testing.T) { // OR-02
	t.Parallel()
	w := newSmall(t)
	w.stage("k", "a", "b")
	rs := w.other()
	w.must(w.st.Settle(t.Context(), 1, []core.Outcome{core.Retry(&rs[0], errors.New("no"), 0)}).FirstErr())
	part := []core.RouteSlots{{Route: "r", Slots: core.AllSlots}}
	due, err := w.st.Due(t.Context(), 1, part, 10)
	w.must(err)
	if len(due.Retries) != 1 {
		t.Fatal(due)
	}
	done, err := w.st.ReleasePartition(t.Context(), 1, core.PartitionState{Partition: core.Partition{Route: "r", From: 0, To: 64}, Term: 2}, []core.Ref{due.Retries[0].Ref})
	w.must(err)
	if !done {
		t.Fatal("not given up")
	}
	w.start()
	w.keep(1)
	got := w.run(900 * time.Millisecond)
	if len(got) != 0 {
		t.Errorf("handed out %v while another has a out", got)
	}
	w.must(w.st.Settle(t.Context(), 1, []core.Outcome{core.Published(&due.Retries[0])}).FirstErr())
	if got := w.run(1500 * time.Millisecond); !slices.Equal(got, []string{"b"}) {
		t.Errorf("after a was published: handed out %v, want b", got)
	}
}

// keep lets a session renew on, so that no member takes it for dead.
func (w *small) keep(s core.Session) {
	_, err := w.st.Heartbeat(w.t.Context(), core.HeartbeatRequest{Self: core.Member{Session: s, Heartbeats: w.now.UnixMilli(), Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1, Unavailable: true}}}})
	w.must(err)
}

// step makes the calls that are due.
func (w *small) step() {
	w.now = w.now.Add(time.Millisecond)
	for _, c := range w.d.Calls(w.now) {
		w.call(c)
		w.d.Done(w.now, c)
	}
}

// state returns the stored state of a record, nil if it is gone.
func (w *small) state(id string) *memory.State {
	for _, st := range w.st.States() {
		if st.ID == id {
			return &st
		}
	}
	return nil
}

// timeless is a store that does not mind in which term a partition is released.
type timeless struct{ *memory.Store }

func (s timeless) ReleasePartition(ctx context.Context, self core.Session, partition core.PartitionState, out []core.Ref) (bool, error) {
	r, err := s.Heartbeat(ctx, core.HeartbeatRequest{})
	if err != nil {
		return false, err
	}
	partition.Term = r.Partitions[0].Term
	return s.Store.ReleasePartition(ctx, self, partition, out)
}

// TestGiveUpThatIsLate: the answer to a release is lost, and the store carries it out late, after the member has taken
// the partition again. It must change nothing then.
func TestGiveUpThatIsLate(t *testing.T) { // DB-24
	t.Parallel()
	for _, minds := range []bool{true, false} {
		w := newSmall(t)
		w.start()
		var late *Call
		w.call = func(c *Call) {
			if c.Kind() == CallRelease && late == nil {
				again := *c
				late = &again
				c.Lose(errLost)
				return
			}
			c.Do(context.Background(), w.st)
		}
		able := func(heartbeats int64, able bool) {
			_, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 1, Heartbeats: heartbeats, Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1, Unavailable: !able}}}, Join: true})
			w.must(err)
			w.d.SetAble("r", !able)
		}
		owner := func() core.Session {
			r, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{})
			w.must(err)
			return r.Partitions[0].Owner
		}
		w.run(20 * time.Millisecond)
		able(1, true)
		if w.run(500 * time.Millisecond); late == nil || owner() != 0 {
			t.Fatalf("the partition is %d's", owner())
		}
		able(2, false)
		if w.run(50 * time.Millisecond); owner() != 100 {
			t.Fatalf("the partition is %d's", owner())
		}
		st := core.OutboxStore(w.st)
		if !minds {
			st = timeless{w.st}
		}
		if late.Do(t.Context(), st); minds != (owner() == 100) {
			t.Errorf("with terms: %t; the partition is %d's", minds, owner())
		}
	}
}

// TestUrgentOutcomeIsStored: an outcome that a caller waits for does not wait for one whose record is locked.
func TestUrgentOutcomeIsStored(t *testing.T) { // DB-25
	t.Parallel()
	w := newSmall(t)
	w.stage("", "a", "b")
	w.start()
	items := w.hand(2)
	tx := w.st.Begin()
	w.must(tx.Lock("r", "a"))
	w.d.Conclude(w.now, items[0], core.Published(&items[0].Record))
	w.run(900 * time.Millisecond) // tried again less and less often
	w.d.Conclude(w.now, items[1], core.Retry(&items[1].Record, errLost, time.Hour))
	if w.run(10 * time.Millisecond); w.state("b").State != core.StateFailed {
		t.Error("the retry is not stored")
	}
	tx.Rollback()
	if w.run(2 * time.Second); w.state("a") != nil {
		t.Error("a is not stored when its lock is gone")
	}
}

// hand lets time pass until n records are handed out.
func (w *small) hand(n int) (items []*Item) {
	w.t.Helper()
	for range 1000 {
		w.step()
		if items = append(items, w.d.HandOut(w.now, "r", n-len(items))...); len(items) == n {
			return items
		}
	}
	w.t.Fatalf("%d records were handed out, want %d", len(items), n)
	return nil
}

// oneOut returns a world in which the record a of the key k is out.
func oneOut(t *testing.T) (w *small, item *Item) {
	t.Helper()
	w = newSmall(t)
	w.stage("k", "a")
	w.start()
	return w, w.hand(1)[0]
}

// TestWhatFollowsAFailedOneComesBack: with several records of a key out at once, a ready record behind a failed one
// waits for it.
func TestWhatFollowsAFailedOneComesBack(t *testing.T) { // OR-02
	t.Parallel()
	w := newSmall(t)
	w.stage("k", "a", "b", "c", "d")
	w.start()
	w.d.byName["r"].Pipelined = 4
	items := w.hand(2)
	for w.d.Ready("r") < 2 {
		w.step()
	}
	w.d.Conclude(w.now, items[1], core.Release(&items[1].Record, 0, false))
	w.d.Conclude(w.now, items[0], core.Retry(&items[0].Record, errLost, 50*time.Millisecond))
	if got := w.run(40 * time.Millisecond); len(got) != 0 {
		t.Errorf("handed out %v before a", got)
	}
	if got := w.run(500 * time.Millisecond); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
		t.Errorf("handed out %v", got)
	}
}

// TestWhatFollowsOneThatMayHaveArrivedWaits: a record that may have arrived is told to the store when its partition
// begins to leave. If the partition stays after all, a ready record behind it does not pass it.
func TestWhatFollowsOneThatMayHaveArrivedWaits(t *testing.T) { // OR-02
	t.Parallel()
	w := newSmall(t)
	w.stage("k", "a", "b", "c")
	w.start()
	rt := w.d.byName["r"]
	rt.Pipelined = 4
	item := w.hand(1)[0]
	w.d.Conclude(w.now, item, core.Release(&item.Record, 0, true))
	if n := w.d.Ready("r"); n != 3 {
		t.Fatalf("%d are ready", n)
	}
	down := true
	w.call = func(c *Call) {
		if down && c.Kind() == CallSettle {
			c.Lose(errLost)
			return
		}
		c.Do(context.Background(), w.st)
	}
	w.d.releaseOne(rt)
	if got := w.run(900 * time.Millisecond); len(got) != 0 || rt.releasing != 0 {
		t.Errorf("handed out %v before a; %v leave", got, rt.releasing)
	}
	down = false
	if got := w.run(2 * time.Second); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("handed out %v", got)
	}
}

// TestWindowsAreHalved: each crash of a suspect halves the window that it begins, down to itself alone. Records that
// have not crashed go in windows that grow.
func TestWindowsAreHalved(t *testing.T) { // DB-24
	t.Parallel()
	size := func(crashes, windows int, queue bool) int {
		item := &Item{route: &route{Route: Route{Queue: queue}}}
		item.Record.Crashes = crashes
		return (&suspects{env: &env{bounds: usual}, crashWindows: windows}).sizeFor(item)
	}
	for crashes, want := range []int{100, 50, 25, 12, 6, 3, 1, 1, 1, 1} {
		if n := size(crashes, 0, false); n != want {
			t.Errorf("%d go at once after %d crashes, want %d", n, crashes, want)
		}
	}
	if a, b, c := size(0, 10, false), size(0, 1000, false), size(1, 1000, false); a != 200 || b != 1600 || c != 50 {
		t.Errorf("after many windows %d, then %d go at once; %d with one that crashed", a, b, c)
	}
	if n := size(2, 100, true); n != 1 {
		t.Errorf("%d of a queue go at once", n)
	}
}

// TestWhoGoesAloneIsHeldAlone: a record of one route that kills every member costs a record of another route no crash
// any more, once it goes alone. The order in which the two are held does not matter.
func TestWhoGoesAloneIsHeldAlone(t *testing.T) { // DB-24 RL-16
	t.Parallel()
	for _, v := range []struct{ younger, second bool }{{}, {younger: true}, {younger: true, second: true}} {
		w := newSmall(t)
		w.stageOn("r", "", "poison")
		if !v.younger {
			w.stageOn("q", "", "innocent")
		}
		ends := map[string]int{} // by id: the crashes with which it goes to its end
		for life := core.Session(1); life < 20 && len(ends) < 2; life++ {
			w.liveAndDie(life, v.second, ends)
			if v.younger && life == 1 { // then it has one crash less, and is in a larger window
				w.stageOn("q", "", "innocent")
			}
		}
		shared := 0 // how many crashes it takes until a record goes alone
		for usual.firstCrashWindow>>shared > 1 {
			shared++
		}
		want := map[string]int{"poison": core.MaxCrashes, "innocent": shared}
		if v.younger {
			want["innocent"]--
		}
		if !maps.Equal(ends, want) {
			t.Errorf("%+v: the crashes of each at its end: %v, want %v", v, ends, want)
		}
	}
}

// liveAndDie lets a member live until it sends the poison of route r. Route r is opened late if the poison is to be
// held second. The member hands out only from time to time.
func (w *small) liveAndDie(session core.Session, late bool, ends map[string]int) {
	w.d = New(Options{
		Routes: []Route{{Name: "r", Partitions: 1}, {Name: "q", Partitions: 1}}, Lease: time.Second, NewSession: func() core.Session { return session },
	})
	w.d.SetHandingOut("r", !late)
	for n := 1; n < 5000 && !w.d.Left(); n++ {
		w.step()
		if n == 20 {
			w.d.SetHandingOut("r", true)
		}
		if n%40 != 0 {
			continue
		}
		for _, item := range append(w.d.HandOut(w.now, "r", 10), w.d.HandOut(w.now, "q", 10)...) {
			switch r := &item.Record; {
			case r.Crashes >= core.MaxCrashes:
				ends[r.Envelope.ID] = r.Crashes
				w.d.Conclude(w.now, item, core.Abandon(r, waybill.ReasonCrashed, nil))
			case r.Envelope.ID == "poison":
				w.d.Quit() // as if it had died
			case !w.d.self.quitting:
				ends[r.Envelope.ID] = r.Crashes
				w.d.Conclude(w.now, item, core.Published(r))
			}
		}
	}
}

// TestExpiredOfAKeyAreStoredTogether: giving up what has expired takes few calls, also of one key.
func TestExpiredOfAKeyAreStoredTogether(t *testing.T) { // ST-11
	t.Parallel()
	w := newSmall(t)
	var ids []string
	for i := range 100 {
		ids = append(ids, string(rune('a'+i/10))+string(rune('0'+i%10)))
	}
	w.stage("k", ids...)
	w.start()
	settles := 0
	w.call = func(c *Call) {
		if c.Kind() == CallSettle {
			settles++
		}
		c.Do(context.Background(), w.st)
	}
	for n := 0; n < len(ids); {
		w.step()
		for _, item := range w.d.HandOut(w.now, "r", 10) {
			n++
			w.d.Conclude(w.now, item, core.Abandon(&item.Record, waybill.ReasonExpired, nil))
		}
	}
	w.run(100 * time.Millisecond)
	if st := w.state("j9"); st == nil || st.Reason != waybill.ReasonExpired || settles > 30 {
		t.Errorf("%d settles; the last one: %+v", settles, st)
	}
}

// TestTopicStaysPaused: a member that joins anew still knows its paused topics.
func TestTopicStaysPaused(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.start()
	w.d.PauseTopic("r", "t", true)
	w.run(20 * time.Millisecond)
	w.stage("", "a")
	w.d.rejoin()
	w.d.session = 0
	if got := w.run(100 * time.Millisecond); len(got) != 0 {
		t.Errorf("handed out %v of a paused topic", got)
	}
	w.d.PauseTopic("r", "t", false)
	if got := w.run(100 * time.Millisecond); !slices.Equal(got, []string{"a"}) {
		t.Errorf("handed out %v, want a", got)
	}
}

// TestLockedRecordStopsNoHandOver: a partition with a locked record stays for the time being, and its records are still
// handed out. Other partitions are released meanwhile.
func TestLockedRecordStopsNoHandOver(t *testing.T) { // DB-25 DB-24
	t.Parallel()
	w := newSmall(t)
	var ids []string
	slots := map[uint8]string{} // one record for each quarter
	for i := 0; len(slots) < 4; i++ {
		id := string(rune('a' + i))
		if quarter := core.SlotOf("r", "", id) / 16; slots[quarter] == "" {
			slots[quarter] = id
			ids = append(ids, id)
		}
	}
	w.stage("", ids...)
	w.d = New(Options{Routes: []Route{{Name: "r", Partitions: 4}}, Lease: 3 * time.Second, NewSession: func() core.Session { return 100 }})
	items := w.hand(4)
	tx := w.st.Begin()
	for _, item := range items {
		if item.Record.ID != slots[0] {
			w.must(tx.Lock("r", item.Record.ID))
		}
		w.d.Conclude(w.now, item, core.Published(&item.Record))
	}
	_, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 1, Heartbeats: 1, Lease: time.Minute, Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 4}}}, Join: true})
	w.must(err)
	w.run(3 * time.Second)
	r, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{})
	w.must(err)
	if free := slices.IndexFunc(r.Partitions, func(o core.PartitionState) bool { return o.Owner == 0 }); free < 0 {
		t.Error("no partition was released")
	}
	w.stage("", "later-1", "later-2", "later-3", "later-4", "later-5", "later-6", "later-7", "later-8")
	w.d.Wake(w.now)
	want := 0
	for i := range 8 {
		slot := core.SlotOf("r", "", "later-"+string(rune('1'+i)))
		if slices.ContainsFunc(r.Partitions, func(o core.PartitionState) bool { return o.Owner == 100 && o.Partition.Slots().Has(slot) }) {
			want++
		}
	}
	if got := w.run(time.Second); len(got) != want || want == 0 {
		t.Errorf("handed out %v, want %d", got, want)
	}
}

// TestLockedRecordIsLeftAlone: a record that was locked a short while ago is met again. The member does not ask for it
// before its time has come. It goes when it is free.
func TestLockedRecordIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.d = New(Options{Routes: []Route{{Name: "r", Partitions: 1, Hold: true}}, Lease: time.Second, NewSession: func() core.Session { return 100 }})
	w.d.PauseTopic("r", "paused", true)
	tx := w.st.Begin()
	for _, m := range []waybill.Envelope{{ID: "before", Topic: "paused"}, {ID: "locked", Topic: "t"}} {
		_, err := tx.Stage(core.StagedRow{Route: "r", Envelope: m})
		w.must(err)
	}
	w.must(tx.Commit())
	other := w.st.Begin()
	w.must(other.Lock("r", "locked"))
	asked := 0
	w.call = func(c *Call) {
		if op, ok := c.op.(*holdOp); ok && slices.ContainsFunc(op.items, func(item *Item) bool { return item.Record.ID == "locked" }) {
			asked++
		}
		c.Do(context.Background(), w.st)
	}
	w.run(20 * time.Millisecond)
	w.d.PauseTopic("r", "paused", false) // what stands behind is read again
	if got := w.run(50 * time.Millisecond); !slices.Equal(got, []string{"before"}) || asked != 1 {
		t.Errorf("handed out %v; asked %d times for the locked one", got, asked)
	}
	other.Rollback()
	if got := w.run(time.Second); !slices.Equal(got, []string{"locked"}) {
		t.Errorf("handed out %v once it was free", got)
	}
}

// TestTwoDecisions: of two decisions about a record none stays: the next owner of the key would carry it out, although
// the record was put back meanwhile.
func TestTwoDecisions(t *testing.T) { // OP-18
	t.Parallel()
	w, item := oneOut(t)
	for range 2 {
		lastNotice, err := w.st.Decide("r", "k", "a", admin.HeadSkip)
		w.must(err)
		if lastNotice == nil {
			t.Fatal("the owner is not asked")
		}
		w.d.Wake(w.now)
		w.run(20 * time.Millisecond)
	}
	w.d.Conclude(w.now, item, core.Release(&item.Record, 0, false))
	w.run(time.Second)
	if st := w.state("a"); st.Reason != waybill.ReasonSkipped {
		t.Errorf("a is %s %s", st.State, st.Reason)
	}
	result, err := w.st.Read(t.Context(), 100, core.ReadRequest{Slots: []core.RouteSlots{{Route: "r", Slots: core.AllSlots}}})
	w.must(err)
	if len(result.Notices) > 0 {
		t.Errorf("left: %v", result.Notices)
	}
}

// TestNeverCalledUnsent: a record that may have been out at a dead member is not called unsent, although it was refused
// for the next owner.
func TestNeverCalledUnsent(t *testing.T) { // ST-09
	t.Parallel()
	w := newSmall(t)
	w.stage("", "old")
	w.other()
	w.start()
	for range 1100 { // until session 1 is dead
		w.step()
	}
	items := w.hand(1)
	w.stage("", "new")
	w.d.Wake(w.now)
	items = append(items, w.hand(1)...)
	for _, item := range items {
		w.d.Conclude(w.now, item, core.Retry(&item.Record, errLost, time.Hour))
	}
	w.run(2 * time.Second) // the partition is not uncertain any more
	for id, want := range map[string]waybill.CancelStatus{"old": waybill.CancelUncertain, "new": waybill.CancelDone} {
		tx := w.st.Begin()
		got, err := tx.Cancel("r", id)
		w.must(err)
		tx.Rollback()
		if got != want {
			t.Errorf("%s: cancelling says %s, want %s", id, got, want)
		}
	}
}

// TestHandedBackDuringAGiveUp: a record that is out is handed back while its partition is released. The call writes a
// hold for it, whether its answer arrives or not, and whether the record was sent or not; the hold ends all the same,
// so that the next owner goes on.
func TestHandedBackDuringAGiveUp(t *testing.T) { // DB-23
	t.Parallel()
	for i := range 4 {
		answered, sent := i%2 == 0, i/2 == 0
		w, item := oneOut(t)
		able := core.Member{Session: 1, Heartbeats: 1, Lease: time.Minute, Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1}}}
		_, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{Self: able, Join: true})
		w.must(err)
		gave := false
		w.call = func(c *Call) {
			c.Do(t.Context(), w.st)
			if c.Kind() == CallRelease && !gave {
				gave = true
				w.d.Conclude(w.now, item, core.Release(&item.Record, 0, sent))
				if !answered {
					c.Lose(errLost)
				}
			}
		}
		w.d.SetAble("r", false)
		w.run(800 * time.Millisecond)
		if st := w.state("a"); !gave || st == nil || st.Holder != 0 {
			t.Errorf("answered: %t; sent: %t; given up: %t; it is stored as %+v", answered, sent, gave, st)
		}
	}
}

// TestMaybeSentOutlivesTheMember: a record that was out without a result, and was put back, is not called unsent after
// its member has left, although it was refused for the next owner. The result can be known before the member stops, or
// only then.
func TestMaybeSentOutlivesTheMember(t *testing.T) { // ST-09
	t.Parallel()
	for _, early := range []bool{true, false} {
		w := newSmall(t)
		w.stage("", "a")
		w.stage("k", "b", "c")
		w.start()
		items := w.hand(2)
		release := func() {
			for _, item := range items {
				w.d.Conclude(w.now, item, core.Release(&item.Record, 0, true))
			}
		}
		if early {
			release()
			w.d.Stop()
		} else {
			w.d.Stop()
			release()
		}
		w.run(time.Second)
		if !w.d.Left() {
			t.Fatal("the member has not left")
		}
		rs := w.other()
		if len(rs) != 3 {
			t.Fatalf("early: %v: %d records are ready", early, len(rs))
		}
		for i := range rs {
			w.must(w.st.Settle(t.Context(), 1, []core.Outcome{core.Retry(&rs[i], errLost, time.Hour)}).FirstErr())
		}
		for id, want := range map[string]waybill.CancelStatus{"a": waybill.CancelUncertain, "b": waybill.CancelUncertain, "c": waybill.CancelDone} {
			tx := w.st.Begin()
			got, err := tx.Cancel("r", id)
			w.must(err)
			tx.Rollback()
			if got != want {
				t.Errorf("early: %v: cancelling %s says %s, want %s", early, id, got, want)
			}
		}
	}
}
