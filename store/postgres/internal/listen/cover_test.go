package listen

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// DB-10: a Wait needs no look while each transaction notifies that its routes' latest reads have missed. Each of these
// conditions is needed.
func TestCover(t *testing.T) {
	t.Parallel()
	const r = "r"
	read := func(w *Waiter, began time.Time, xmax int64, running ...int64) {
		rg := []core.Range{{RouteSlots: core.RouteSlots{Route: r}, UpToSeq: 1 << 62}}
		w.Read(began, &core.ReadRequest{Ranges: rg}, &core.ReadResult{SnapshotXmax: xmax, RunningTxs: running, Ranges: []core.Records{{}}})
	}
	said := func(w *Waiter) { w.saidFor(time.Now(), tellFor*safetyPoll) }
	for _, tc := range []struct {
		name  string
		after time.Duration
		with  func(w *Waiter)
		want  bool
	}{
		{"all is well", 0, func(*Waiter) {}, true},
		{"nothing was said", 0, func(w *Waiter) { w.cover = cover{}; read(w, time.Now(), 20) }, false},
		{"no read since", 0, func(w *Waiter) { clear(w.seen) }, false},
		{"the read began before", 0, func(w *Waiter) { read(w, time.Now().Add(-time.Minute), 20) }, false},
		{"the read began after what is said", tellFor * safetyPoll, func(w *Waiter) {
			read(w, time.Now(), 20)
			w.looked, w.cover.until = time.Now(), time.Now().Add(time.Second)
		}, false},
		{"a transaction is open that may have staged before", 0, func(w *Waiter) { read(w, time.Now(), 20, 9) }, false},
		{"it has ended", 0, func(w *Waiter) { read(w, time.Now(), 20, 9); read(w, time.Now(), 20) }, true},
		{"one is open that began since", 0, func(w *Waiter) { read(w, time.Now(), 20, 10) }, true},
		{"it is said again", safetyPoll, func(w *Waiter) { said(w) }, true},
		{"it is said again too late", tellFor * safetyPoll, func(w *Waiter) { said(w) }, false},
		{"nobody had said it until then", 0, func(w *Waiter) { w.lapsed = true; said(w) }, false},
		{"the time for a look has come", safetyPoll, func(*Waiter) {}, false},
		{"it is not said for longer", 0, func(w *Waiter) { w.cover.until = time.Now() }, false},
		{"a Wait has ended", 0, func(w *Waiter) { w.enter([]string{r}); w.ended() }, false},
		{"a Wait for another route has ended", 0, func(w *Waiter) { w.enter([]string{"other"}); w.ended() }, true},
		{"a notification came for it", 0, func(w *Waiter) { w.listener.take(r, []string{"other"}) }, false},
		{"a notification came for another route", 0, func(w *Waiter) { w.listener.take("other", nil) }, true},
		{"a notification came for all", 0, func(w *Waiter) { w.listener.take("", []string{"other"}) }, false},
		{"the connection is another one", 0, func(w *Waiter) { w.listener.conn = &pgx.Conn{} }, false},
		{"another connection said it", 0, func(w *Waiter) { w.listener.conn = &pgx.Conn{}; said(w) }, false},
		{"there is no connection", 0, func(w *Waiter) { w.listener.conn = nil }, false},
		{"no notification has arrived yet", 0, func(w *Waiter) { w.listener.self = selfPrefix }, false},
		{"there is much to do", 0, func(w *Waiter) { w.gap, w.worked = 0, time.Now() }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t)
				w := New(Options{})
				w.listener.conn, w.gap = &pgx.Conn{}, busyGap
				said(w)
				patience.Pass(t, time.Millisecond)
				read(w, time.Now(), 10)
				patience.Pass(t, tc.after+time.Millisecond)
				tc.with(w)
				if d := w.coveredFor([]string{r}); d > 0 != tc.want {
					t.Errorf("it needs no look for %s", d)
				}
			})
		})
	}
}
