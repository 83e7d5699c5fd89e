package dispatch

// Which notices a read may leave out: those that are gone. One test for each way in which one of them can be
// missed, without the sweep.

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// newTold is a world of a relay that has heeded a notice. The records a and b are abandoned.
func newTold(t *testing.T) *small {
	t.Helper()
	w := newSmall(t)
	w.start()
	w.d.noSweeps = true
	w.stage("", "a", "b", "c")
	for _, item := range w.hand(3) {
		w.d.Conclude(w.now, item, core.Abandon(&item.Record, waybill.ReasonRejected, errors.New("no")))
	}
	w.run(time.Second)
	w.putBack("c")
	return w
}

// putBack redrives a record, which the member hands out.
func (w *small) putBack(id string) {
	w.t.Helper()
	tx := w.st.Begin()
	w.must(tx.Redrive("r", id))
	w.must(tx.Commit())
	w.d.Wake(w.now, "r")
	for _, item := range w.hand(1) {
		if item.Record.Envelope.ID != id {
			w.t.Errorf("%s is handed out, want %s", item.Record.Envelope.ID, id)
		}
		w.d.Conclude(w.now, item, core.Published(&item.Record))
	}
	w.run(time.Second)
}

// TestNoticesOfLateTransactions: a read leaves out notices that are gone, and none that a transaction shows
// late, however long it ran.
func TestNoticesOfLateTransactions(t *testing.T) { // OR-05
	t.Parallel()
	for _, long := range []bool{false, true} {
		w := newTold(t)
		before := w.d.notices.after
		if before != 1 {
			t.Errorf("reads begin behind number %d, want 1", before)
		}
		tx := w.st.Begin()
		w.must(tx.Redrive("r", "a"))
		if w.putBack("b"); long {
			w.run(5 * time.Second)
		}
		after, bound := w.d.notices.after, w.d.notices.bound()
		if bound != before || after > before != long {
			t.Errorf("long %v: reads begin behind %d and memberships behind %d, want more than %d if it is long, and %d", long, after, bound, before, before)
		}
		w.must(tx.Commit())
		w.d.Wake(w.now, "r")
		if ids := fmt.Sprint(w.run(5 * time.Second)); ids != "[a]" {
			t.Errorf("long %v: handed out are %s, want a", long, ids)
		}
	}
}

// TestNoticesThatStay: a read leaves out none that are still there, and none of a new partition.
func TestNoticesThatStay(t *testing.T) { // OR-05
	t.Parallel()
	w := newTold(t)
	cs := &w.d.notices
	cs.visible = 9
	if cs.seen(&core.ReadResult{Notices: []core.Notice{{Number: 5}, {Number: 7}}}); cs.after != 4 {
		t.Errorf("reads begin behind %d, want 4: there is number 5", cs.after)
	}
	w.d.addSlots(w.d.byName["r"], 0, 0)
	if cs.seen(&core.ReadResult{}); cs.ask() != 0 {
		t.Error("notices of a new partition are left out")
	}
	if cs.seen(&core.ReadResult{}); cs.ask() != 9 {
		t.Error("after a page of all, reads do not begin behind what is visible")
	}
}

// TestBulkRedriveOfAQueue: records without a key that an operator puts back together are taken again, although Holds
// begin behind them.
func TestBulkRedriveOfAQueue(t *testing.T) { // TQ-04
	t.Parallel()
	w, _ := newPassing(t, 100)
	ids := []string{"c1", "c2", "c3", "c4", "c5"}
	w.stage("", ids...)
	for _, item := range w.hand(len(ids)) {
		w.d.Conclude(w.now, item, core.Abandon(&item.Record, waybill.ReasonRejected, errors.New("no")))
	}
	w.passTen("e")
	_, err := w.st.Redrive(t.Context(), admin.RedriveRequest{All: true})
	w.must(err)
	w.handle(ids...)
}
