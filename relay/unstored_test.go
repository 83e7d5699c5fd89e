package relay_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
)

// OR-02 OR-04: a key goes on after an abandoned message only when the store knows that it is abandoned. Otherwise a
// relay that dies between would leave it to another one, which might send it after what follows it.
func TestAbandonedIsStoredBeforeItsKeyGoesOn(t *testing.T) {
	t.Parallel()
	for _, pipelined := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			mem, b := newStore(t), newBus()
			if pipelined {
				b.traits.KeyOrder = core.KeyOrderPipelinedPrefix
			}
			b.answer = func(e *waybill.Envelope, nth int) error {
				if e.ID == "m00000" && nth == 1 {
					return &waybill.Error{Class: waybill.ClassPermanent, Err: errors.New("no")}
				}
				return nil
			}
			s := &faulty{OutboxStore: mem}
			s.settle = func(o []core.Outcome, next func() core.Results) core.Results {
				if len(s.settls) == 1 { // the relay cannot tell anybody, and dies
					time.Sleep(time.Hour)
				}
				return next()
			}
			stage(t, mem, msgs(3, func(int) string { return "k" })...)
			o := relay.Options{Lease: 2 * time.Second, PublishTimeout: time.Second, PollMax: time.Second, DrainTimeout: -1}
			ctx, kill := context.WithCancel(t.Context())
			first := newRelay(t, s, b, o)
			go func() { _ = first.Run(ctx) }()
			time.Sleep(time.Second / 2)
			kill()
			if b.count() > 0 {
				t.Errorf("%q arrived before it was stored that m00000 is abandoned", b.ids())
			}
			patience.Pass(t, 10*time.Second)
			stop := begin(t, newRelay(t, mem, b, o))
			within(t, time.Minute, "published", func() bool { return b.count() == 3 })
			if err := stop(); err != nil {
				t.Error(err)
			}
			if d := cmp.Diff([]string{"m00000", "m00001", "m00002"}, b.ids()); d != "" {
				t.Error(d)
			}
			patience.Pass(t, 2*time.Hour)
		})
	}
}

// A run of messages that are given up unsent does not stop its key.
func TestARunOfExpiredMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		list := msgs(200, func(int) string { return "k" })
		for i := range list[:199] {
			list[i].TTL = time.Second
		}
		stage(t, mem, list...)
		patience.Pass(t, 2*time.Second)
		stop := begin(t, newRelay(t, mem, b, relay.Options{}))
		within(t, 10*time.Second, "published", func() bool { return b.count() == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		if n := states(mem)[core.StateAbandoned]; n != 199 {
			t.Errorf("%d abandoned", n)
		}
	})
}
