package relay_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
)

// ST-06: a message on two routes is a record on each, with one id. The one whose publisher refuses it is tried again
// and given up by itself; the other one is published at once, and once.
func TestOneMessageOnTwoRoutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, good, bad := newStore(t), newBus(), newBus()
		bad.answer = func(*waybill.Envelope, int) error { return errNo }
		opts := relay.Options{Routes: []relay.Route{
			{Name: "good"},
			{Name: "bad", Publisher: bad, Backoff: waybill.RetryDelays(time.Second, time.Second)},
		}}
		stop := begin(t, newRelay(t, s, good, opts))
		stage(t, s, msg("a", "k", waybill.Routes("good", "bad")), msg("b", "k", waybill.Routes("good")))
		within(t, 100*time.Millisecond, "the good route's messages, while the other route's retry waits", func() bool { return good.count() == 2 })
		patience.Pass(t, 5*time.Second)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if d := cmp.Diff([]string{"a", "b"}, slices.Sorted(slices.Values(good.ids()))); d != "" || good.tried["a"] != 1 || bad.tried["a"] != 3 {
			t.Errorf("the good route got %q, tried %d times; the bad one tried %d times, want 3", good.ids(), good.tried["a"], bad.tried["a"])
		}
		left := s.Records()
		if len(left) != 1 || left[0].Route != "bad" || left[0].Envelope.ID != "a" || left[0].State != core.StateAbandoned || left[0].Attempts != 3 {
			t.Errorf("left are %+v, want one record of the bad route alone, given up after 3 attempts", left)
		}
	})
}
