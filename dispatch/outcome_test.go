package dispatch

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// TestRetryDoesNotWaitForOthers: an outcome that blocks a key is stored at once, although more are likely to come.
func TestRetryDoesNotWaitForOthers(t *testing.T) { // DB-23
	t.Parallel()
	w := newSmall(t)
	w.stage("", "a", "b")
	w.start()
	items := w.hand(2)
	w.d.Conclude(w.now, items[0], core.Retry(&items[0].Record, errLost, time.Hour))
	if w.run(2 * time.Millisecond); w.state("a").State != core.StateFailed {
		t.Error("the retry is not stored")
	}
}

// TestChangedIsReadAgain: a record that changed while it was out, so that its outcome is void, is handed out again.
func TestChangedIsReadAgain(t *testing.T) { // DB-23
	t.Parallel()
	w, item := oneOut(t)
	// it has a new version then
	w.must(w.st.Settle(t.Context(), 100, []core.Outcome{core.Release(&item.Record, 0, false)}).FirstErr())
	w.d.Conclude(w.now, item, core.Retry(&item.Record, errLost, time.Hour))
	if got := w.run(time.Second); !slices.Equal(got, []string{"a"}) {
		t.Errorf("handed out %v, want a", got)
	}
}

// TestLateHoldAndRelease: a record that is out for longer than a third of the lease is held in the store. After a
// release its next outcome is still one of the record as it is stored.
func TestLateHoldAndRelease(t *testing.T) { // DB-23
	t.Parallel()
	w := newSmall(t)
	w.stage("k", "a")
	w.start()
	var lastNotice []error
	w.d.opts.Settled = func(_ *Item, err error) { lastNotice = append(lastNotice, err) }
	item := w.hand(1)[0]
	if w.run(900 * time.Millisecond); w.state("a").Holder != 100 {
		t.Fatal("no hold is stored")
	}
	w.d.Conclude(w.now, item, core.Release(&item.Record, 0, false))
	item = w.hand(1)[0]
	w.d.Conclude(w.now, item, core.Abandon(&item.Record, waybill.ReasonRejected, errLost))
	w.run(100 * time.Millisecond)
	if !slices.Equal(lastNotice, []error{nil, nil}) || w.state("a").State != core.StateAbandoned {
		t.Errorf("told %v; stored %+v", lastNotice, w.state("a"))
	}
}

// silent is a store that answers a settle with no results.
type silent struct{ core.OutboxStore }

func (silent) Settle(context.Context, core.Session, []core.Outcome) core.Results { return nil }

// TestMissingResults: outcomes that a store did not answer are sent again.
func TestMissingResults(t *testing.T) { // DB-23
	t.Parallel()
	w := newSmall(t)
	w.stage("", "a")
	w.start()
	settles := 0
	w.call = func(c *Call) {
		if c.Kind() == CallSettle {
			if settles++; settles == 1 {
				c.Do(context.Background(), silent{w.st})
				return
			}
		}
		c.Do(context.Background(), w.st)
	}
	item := w.hand(1)[0]
	w.d.Conclude(w.now, item, core.Published(&item.Record))
	if w.run(3 * time.Second); w.state("a") != nil {
		t.Errorf("a is still there after %d settles", settles)
	}
}

// TestKeyOfAPausedTopicGoesOn: a key whose head had a paused topic goes on when that is allowed again.
func TestKeyOfAPausedTopicGoesOn(t *testing.T) { // DB-23
	t.Parallel()
	w := newSmall(t)
	w.start()
	w.d.PauseTopic("r", "t", true)
	w.stage("k", "a", "b")
	if got := w.run(100 * time.Millisecond); len(got) != 0 {
		t.Errorf("handed out %v of a paused topic", got)
	}
	w.d.PauseTopic("r", "t", false)
	if got := w.run(100 * time.Millisecond); !slices.Equal(got, []string{"a"}) {
		t.Errorf("handed out %v, want a", got)
	}
}

// Best effort by HLC hands out what one read found in the order of the stamps. The next read comes after it, with an
// earlier stamp, too: so its name promises no order.
// OR-10.
func TestBestEffortByHLC(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	tx := w.st.Begin()
	for _, m := range []struct {
		id    string
		stamp hlc.Timestamp
	}{{"c", 4 << 20}, {"a", 2 << 20}, {"b", 3 << 20}, {"earliest", 1 << 20}} {
		_, err := tx.Stage(core.StagedRow{Route: "r", Envelope: waybill.Envelope{ID: m.id, Topic: "t", HLC: m.stamp}})
		w.must(err)
	}
	w.must(tx.Commit())
	w.d = New(Options{
		Routes: []Route{{Name: "r", Partitions: 1, Order: waybill.OrderBestEffortHLC}}, Batch: 3, Lease: time.Second,
		NewSession: func() core.Session { return 100 },
	})
	if got := w.run(100 * time.Millisecond); !slices.Equal(got, []string{"a", "b", "c", "earliest"}) {
		t.Errorf("handed out %v", got)
	}
	if name := waybill.OrderBestEffortHLC.String(); !strings.HasPrefix(name, waybill.OrderBestEffort.String()) {
		t.Errorf("it is called %q, as if it kept an order", name)
	}
}
