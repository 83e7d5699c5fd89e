package relay_test

// What an idle relay asks of its store, all day.

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
)

// TestIdleCalls: an hour of an idle relay takes 1,080 renewals of its lease, and a read a minute and two questions for
// due records beside them.
//
// DB-10
func TestIdleCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &faulty{OutboxStore: newStore(t)}
		stop := begin(t, newRelay(t, s, newBus(), relay.Options{}))
		patience.Pass(t, 10*time.Minute)
		counts := func() (c [3]int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return [...]int{len(s.heartbeats), len(s.looks), s.dues}
		}
		before := counts()
		patience.Pass(t, time.Hour)
		after := counts()
		for i, want := range [...]struct {
			call string
			most int
		}{{"heartbeat", 1081}, {"read", 61}, {"due", 121}} {
			if n := after[i] - before[i]; n > want.most {
				t.Errorf("%d calls of %s in an hour, want at most %d", n, want.call, want.most)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
