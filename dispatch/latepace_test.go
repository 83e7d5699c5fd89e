package dispatch

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
)

// TestLateScanOverWaitingRecordsRests: while a transaction is open, late scans meet the records again that wait behind
// an earlier one of their key. They are no news, and so the pauses between late scans grow; and they do not fill the
// batch, so that a scan is not a read for each of them.
func TestLateScanOverWaitingRecordsRests(t *testing.T) {
	t.Parallel()
	w, reads := newSmall(t), 0
	call := w.call
	w.call = func(c *Call) {
		if c.kind == CallRead {
			reads++
		}
		call(c)
	}
	w.d = New(Options{
		Routes: []Route{{Name: "r", Partitions: 1}}, Batch: 1, PollMin: 20 * time.Millisecond, PollMax: 10 * time.Second,
		NewSession: func() core.Session { return 100 },
	})
	tx := w.later("open", time.Millisecond)
	w.stage("k", "head", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l")
	head := w.hand(1)[0]
	w.d.Conclude(w.now, head, core.Retry(&head.Record, errLost, time.Hour))
	w.run(100 * time.Millisecond)
	reads = 0
	if got := w.run(time.Second); len(got) > 0 {
		t.Errorf("handed out %v behind a record that is retried", got)
	}
	if reads > 2*8 { // each of eleven records, beyond the batch of one
		t.Errorf("%d reads in a second, want at most eight late scans", reads)
	}
	w.must(tx.Commit())
}
