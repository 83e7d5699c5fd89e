package relay_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/relay"
)

// RL-07: a broker that has refused a message has answered: a later misconfiguration is tried again, and ends no run. So
// a relay that has met unroutable messages alone survives a password that was rotated.
func TestARefusalIsContact(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		refused := &waybill.Error{Op: "test", Class: waybill.ClassRejected, Err: waybill.ErrUnroutable}
		wrong := &waybill.Error{Op: "test", Class: waybill.ClassOutage, Err: waybill.ErrMisconfigured}
		var asked atomic.Bool
		b.answer = func(e *waybill.Envelope, nth int) error {
			switch {
			case e.ID == "a" && nth == 1:
				asked.Store(true)
				return refused
			case nth < 3:
				return wrong
			}
			return nil
		}
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		stage(t, s, msg("a", ""))
		within(t, time.Minute, "the first is refused", asked.Load)
		stage(t, s, msg("b", ""))
		within(t, time.Minute, "both are published", func() bool { return b.count() == 2 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
