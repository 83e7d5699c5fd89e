package rabbitmq

// A change of prefetch ends a consumer and begins another one. A busy broker takes its time for that, and no outage may
// be reported meanwhile.

import (
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	testpatience "github.com/waybill-go/waybill/internal/patience"
)

// A consumer that begins again on its open channel is no outage, though the broker takes longer than patience.
func TestSlowChangeIsNoOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		testpatience.BudgetOf(t)
		fresh := &session{ch: new(amqp.Channel)} // an open one
		r := &receiver{t: &Transport{opts: Options{ConnectTimeout: DefaultConnectTimeout}}, closing: make(chan struct{})}
		r.sess = &session{ch: fresh.ch, ended: true}
		o := &reopening{hidden: r.hiddenFor(r.sess), failed: make(chan struct{}), done: make(chan struct{})}
		r.reopening = o
		time.AfterFunc(10*patience, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.sess, r.reopening = fresh, nil
			close(o.done)
		})
		if s, err := r.session(t.Context()); s != fresh || err != nil {
			t.Errorf("while the broker answers slowly: %v", err)
		}
	})
}
