package relay_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
)

// TestBoundIsSaid: while transactions that stay open have locked so many published messages that each record is held
// before it is sent, health says so, and names the cost; the log says once that it begins, and that it ends. Other
// messages go on.
func TestBoundIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		var buf sharedtest.Log
		r := newRelay(t, s, b, relay.Options{Logger: slog.New(slog.NewTextHandler(&buf, nil)), BatchSize: 4, Window: 1})
		stage(t, s, msgs(6, noKey)...)
		tx := s.Begin()
		for i := range 6 {
			if err := tx.Lock(waybill.DefaultRoute, msgs(6, noKey)[i].ID); err != nil {
				t.Fatal(err)
			}
		}
		stop := begin(t, r)
		for i := range 20 {
			stage(t, s, msg(fmt.Sprint("more ", i), ""))
		}
		within(t, 10*time.Second, "others are published", func() bool { return strings.Contains(strings.Join(b.ids(), ","), "more 19") })
		h := r.Health(t.Context())
		expect(t, h, "route default", waybill.HealthDegraded, "locked by other transactions; half of the window waits for locks")
		if !h.Ready {
			t.Errorf("not ready: %s", h)
		}
		tx.Rollback()
		within(t, 10*time.Second, "all are published, and health is well", func() bool {
			return b.count() == 26 && !strings.Contains(r.Health(t.Context()).String(), "half of the window")
		})
		if err := stop(); err != nil {
			t.Error(err)
		}
		if l := buf.Take(); strings.Count(l, "event=relay.at_bound") != 1 || strings.Count(l, "event=relay.bound_left") != 1 {
			t.Errorf("want one line at the beginning and one at the end:\n%s", l)
		}
	})
}
