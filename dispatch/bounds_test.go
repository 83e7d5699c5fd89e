package dispatch

// Facts about the bounds that the explored worlds cannot show.

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

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
	_, err := w.st.Meet(t.Context(), core.Meeting{Self: core.Member{Session: 1, Beat: 2}, Leave: true})
	w.must(err)
	w.start()
	w.d.opts.MaxKeys = 1 // x
	if got := w.run(time.Second); !slices.Equal(got, []string{"a"}) {
		t.Errorf("handed out %v, want a: b and c wait for it", got)
	}
}

// TestUnitBeginsBeforeAllIsKnown: a message goes while the records that wait in a new unit are still being read.
func TestUnitBeginsBeforeAllIsKnown(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	for _, k := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		w.stage(k, k)
	}
	rs := w.other()
	var retries []core.Outcome
	for i := range rs {
		retries = append(retries, core.Retry(&rs[i], errLost, time.Hour))
	}
	w.must(w.st.Settle(t.Context(), 1, retries).FirstErr())
	_, err := w.st.Meet(t.Context(), core.Meeting{Self: core.Member{Session: 1, Beat: 2}, Leave: true})
	w.must(err)
	w.stage("new", "new")
	w.start()
	w.d.waitingPage = 1
	reads := 0
	w.call = func(c *Call) {
		if c.Name() == "read" {
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
	_, err := w.st.Meet(t.Context(), core.Meeting{Self: core.Member{Session: 1, Beat: 2}, Leave: true})
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
			if low := rt.lowest(core.AllSlots); low >= 2 {
				t.Errorf("the hint is %d; y has the number 2 and was not handed out", low)
			}
			return
		}
		w.now = w.now.Add(time.Millisecond)
	}
	t.Error("the store is asked about no key")
}
