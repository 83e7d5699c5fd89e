package dispatch

// Facts about the bounds that the explored worlds cannot show.

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// TestRetryOfAForgottenKeyAsksFirst: two records of a key wait, and the key is not remembered. When the second is due,
// the store is asked before it goes, and says that the first is before it.
func TestRetryOfAForgottenKeyAsksFirst(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.stage("x", "x")
	w.stage("k", "a", "b", "c")
	rs := w.other()
	w.must(w.st.Settle(t.Context(), 1, []core.Outcome{
		core.Retry(&rs[0], errLost, time.Hour), core.Retry(&rs[1], errLost, 300*time.Millisecond), core.Retry(&rs[2], errLost, 100*time.Millisecond),
	}).FirstErr())
	_, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 1, Heartbeats: 2}, Leave: true})
	w.must(err)
	w.start()
	w.d.opts.MaxKeys = 1 // x
	if got := w.run(time.Second); !slices.Equal(got, []string{"a"}) {
		t.Errorf("handed out %v, want a: b and c wait for it", got)
	}
}

// retryLater stages records of eight keys, each of which waits for a retry in an hour.
func (w *small) retryLater() {
	w.t.Helper()
	for _, k := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		w.stage(k, k)
	}
	rs := w.other()
	var retries []core.Outcome
	for i := range rs {
		retries = append(retries, core.Retry(&rs[i], errLost, time.Hour))
	}
	w.must(w.st.Settle(w.t.Context(), 1, retries).FirstErr())
	_, err := w.st.Heartbeat(w.t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 1, Heartbeats: 2}, Leave: true})
	w.must(err)
}

// TestPartitionBeginsBeforeAllIsKnown: a message goes while the records that wait in a new partition are still being
// read.
func TestPartitionBeginsBeforeAllIsKnown(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.retryLater()
	w.stage("new", "new")
	w.start()
	w.d.waitingPage = 1
	reads := 0
	w.call = func(c *Call) {
		if c.Kind() == CallRead {
			reads++
		}
		c.Do(context.Background(), w.st)
	}
	for range 1000 {
		if got := w.run(time.Millisecond); len(got) > 0 {
			if !slices.Equal(got, []string{"new"}) || reads > 5 {
				t.Errorf("handed out %v after %d reads; 8 keys wait, one a page", got, reads)
			}
			return
		}
	}
	t.Error("nothing was handed out")
}

// TestHintIsBelowWhatIsAskedAbout: a member that takes over begins in front of the records of a key that the store is
// being asked about.
func TestHintIsBelowWhatIsAskedAbout(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.stage("x", "x")
	rs := w.other()
	w.must(w.st.Settle(t.Context(), 1, []core.Outcome{core.Retry(&rs[0], errLost, time.Hour)}).FirstErr())
	_, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 1, Heartbeats: 2}, Leave: true})
	w.must(err)
	w.start()
	w.d.opts.MaxKeys = 0 // none is remembered
	w.run(100 * time.Millisecond)
	w.stage("y", "y")
	rt := w.d.byName["r"]
	for range 1000 { // a call at a time
		for _, c := range w.d.Calls(w.now) {
			w.call(c)
			w.d.Done(w.now, c)
			if rt.asking() == 0 {
				continue
			}
			rt.groups[0].floor = math.MaxInt64 // that of x
			if readAfter := rt.slotHints().of(core.AllSlots); readAfter >= 2 {
				t.Errorf("the hint is %d; y has the number 2 and was not handed out", readAfter)
			}
			return
		}
		w.now = w.now.Add(time.Millisecond)
	}
	t.Error("the store is asked about no key")
}

// TestNewPartitionLoadsFirst: a partition that is new does not wait until all that waits in older ones is known.
func TestNewPartitionLoadsFirst(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.start()
	rt := w.d.byName["r"]
	loading := &group{route: rt, slots: 1, loaded: true, loads: true, newlyOwnedAfter: 7}
	rt.groups = []*group{loading, {route: rt, slots: 2, loads: true}, {route: rt, slots: 4, loads: true}}
	var r reading
	w.d.addNewlyOwned(&r)
	if !slices.Equal(r.newlyOwned, rt.groups[1:]) || r.request.NewlyOwnedAfter != 0 {
		t.Errorf("%d groups are read behind %d, want the two new ones, from the beginning", len(r.newlyOwned), r.request.NewlyOwnedAfter)
	}
	rt.groups, r = rt.groups[:1], reading{}
	w.d.addNewlyOwned(&r)
	if !slices.Equal(r.newlyOwned, rt.groups) || r.request.NewlyOwnedAfter != 7 {
		t.Errorf("%d groups are read behind %d, want the one that is being read, behind 7", len(r.newlyOwned), r.request.NewlyOwnedAfter)
	}
}

// TestLoadEndsWhenMemoryIsFull: of the waiting records of a partition no more are read than can be remembered.
func TestLoadEndsWhenMemoryIsFull(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.retryLater()
	w.start()
	w.d.waitingPage, w.d.opts.MaxKeys = 1, 2
	pages := 0
	w.call = func(c *Call) {
		if o, ok := c.op.(*readOp); ok && len(o.r.request.NewlyOwned) > 0 {
			pages++
		}
		c.Do(context.Background(), w.st)
	}
	w.run(5 * time.Second)
	if pages != 3 {
		t.Errorf("%d pages of one key were read, want 3: two keys can be remembered", pages)
	}
	w.stage("new", "new")
	if got := w.run(5 * time.Second); !slices.Equal(got, []string{"new"}) || w.d.AtBound("r") == "" {
		t.Errorf("handed out %v; at the bound: %q", got, w.d.AtBound("r"))
	}
}

// TestShortKeysShareARead: one read brings many keys of which few records are to be read, such as those that are asked
// about.
func TestShortKeysShareARead(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.stage("x", "x")
	rs := w.other()
	w.must(w.st.Settle(t.Context(), 1, []core.Outcome{core.Retry(&rs[0], errLost, time.Hour)}).FirstErr())
	_, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 1, Heartbeats: 2}, Leave: true})
	w.must(err)
	w.start()
	w.d.opts.MaxKeys = 0 // none is remembered
	w.run(100 * time.Millisecond)
	w.d.keyReads, w.d.keyDepth = 2, shortShare
	most := 0
	w.call = func(c *Call) {
		if o, ok := c.op.(*readOp); ok {
			most = max(most, len(o.r.request.Keys))
		}
		c.Do(context.Background(), w.st)
	}
	for i := range 40 {
		w.stage(fmt.Sprint("k", i), strconv.Itoa(i))
	}
	if got := w.run(5 * time.Second); len(got) != 40 || most != 2*shortShare {
		t.Errorf("%d of 40 were handed out; a read asked about %d keys at most, want %d", len(got), most, 2*shortShare)
	}
}

// TestDeepKeyIsNotShort: a key of which a page shows that there are more is read by large pages.
func TestDeepKeyIsNotShort(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.start()
	w.d.keyDepth = 10
	var limits []int
	w.call = func(c *Call) {
		if o, ok := c.op.(*readOp); ok && len(o.r.request.Keys) > 0 {
			limits = append(limits, o.r.request.Keys[0].Limit)
		}
		c.Do(context.Background(), w.st)
	}
	rt := w.d.byName["r"]
	for i := range 100 {
		w.stage("k", strconv.Itoa(i))
	}
	for end := w.now.Add(10 * time.Second); w.now.Before(end); w.now = w.now.Add(time.Millisecond) {
		for _, c := range w.d.Calls(w.now) {
			w.call(c)
			w.d.Done(w.now, c)
		}
		for _, item := range w.d.HandOut(w.now, "r", 10) {
			w.d.Conclude(w.now, item, core.Published(&item.Record))
		}
	}
	if len(rt.known) > 0 || len(limits) == 0 || slices.Contains(limits, 10/shortShare) {
		t.Errorf("%d records are left; the pages of the key had at most %v records, want 10", len(rt.known), limits)
	}
}

// TestTopicOpensInOrder: the keys that wait for a paused topic are read in the order in which their heads were staged,
// whatever their names are. Records that are read and settled together are then near each other in the store.
func TestTopicOpensInOrder(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.start()
	w.d.PauseTopic("r", "t", true)
	var want []string
	for i := range 300 {
		id := strconv.Itoa(i)
		w.stage(strconv.Itoa(1000-i), id)
		want = append(want, id)
	}
	w.d.Wake(w.now)
	w.run(time.Second)
	w.d.PauseTopic("r", "t", false)
	if got := w.run(time.Second); !slices.Equal(got, want) {
		t.Errorf("staged %v, went %v", want, got)
	}
}

// TestPausedBacklogStopsNobody: a member starts beside many records of a paused topic. Records of another topic go
// after a few reads, also while a transaction is open that can show records before them. All go when the topic opens,
// those of a key in order.
func TestPausedBacklogStopsNobody(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{false, true} {
		testPausedBacklog(t, open)
	}
}

func testPausedBacklog(t *testing.T, open bool) {
	t.Helper()
	w := newSmall(t)
	const n, few = 3000, tailPages + 6
	topic := "paused"
	stage := func(key, id string) {
		tx := w.st.Begin()
		_, err := tx.Stage(core.StagedRow{Route: "r", Envelope: waybill.Envelope{ID: id, Topic: topic, Key: key}})
		w.must(err)
		w.must(tx.Commit())
	}
	late := w.st.Begin()
	if open {
		_, err := late.Stage(core.StagedRow{Route: "r", Envelope: waybill.Envelope{ID: "late", Topic: "t", Key: "k7"}})
		w.must(err)
	}
	for i := range n {
		stage("k"+strconv.Itoa(i), strconv.Itoa(i))
	}
	topic = "t"
	stage("k5", "behind") // the head of its key is paused
	w.start()
	w.d.opts.Batch = 50
	w.d.PauseTopic("r", "paused", true)
	reads := 0
	w.call = func(c *Call) {
		if c.Kind() == CallRead {
			reads++
		}
		c.Do(context.Background(), w.st)
	}
	fresh := func(when string) {
		t.Helper()
		stage("new "+when, "keyed "+when)
		stage("", "keyless "+when)
		before := reads
		w.d.Wake(w.now, "r")
		for _, item := range w.hand(2) {
			if !strings.HasSuffix(item.Record.ID, when) {
				t.Errorf("%s: %s was handed out", when, item.Record.ID)
			}
			w.d.Conclude(w.now, item, core.Published(&item.Record))
		}
		if reads -= before; reads > few {
			t.Errorf("%s: two messages went after %d reads, want at most %d; the backlog takes %d", when, reads, few, n/50)
		}
	}
	fresh("first")
	fresh("meanwhile")
	w.steps(500)
	fresh("later")
	want := n + 1
	if open {
		w.must(late.Commit())
		want++
	}
	w.d.PauseTopic("r", "paused", false)
	var got []string
	for range 20_000 {
		w.step()
		for _, item := range w.d.HandOut(w.now, "r", 100) {
			got = append(got, item.Record.ID)
			w.d.Conclude(w.now, item, core.Published(&item.Record))
		}
		if len(got) == want {
			break
		}
	}
	if open && slices.Index(got, "7") < slices.Index(got, "late") {
		t.Errorf("the first of a key, of a transaction that was open, was number %d, and the next one number %d", slices.Index(got, "late"), slices.Index(got, "7"))
	}
	if len(got) != want || slices.Index(got, "behind") < slices.Index(got, "5") {
		t.Errorf("%d went, want %d; the head of a key was number %d, and the one behind it number %d", len(got), want, slices.Index(got, "5"), slices.Index(got, "behind"))
	}
}
