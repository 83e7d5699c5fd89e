package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// RL-13: Health before, during and after a run.
func TestHealth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var brokerDown, handlerDown atomic.Bool
		outage := func(what string) error {
			return &waybill.Error{Op: "test", Class: waybill.ClassOutage, Err: errors.New(what)}
		}
		b.receive = func() error {
			if brokerDown.Load() {
				return outage("no broker")
			}
			return nil
		}
		c := newConsumer(t, b, consumer.Options{})
		expect := func(live, ready bool, name string, status waybill.HealthStatus, text string) {
			t.Helper()
			h := c.Health(t.Context())
			got, ok := h.Check(name)
			if h.Live != live || h.Ready != ready || !ok || got.Status != status || !strings.Contains(got.Text, text) {
				t.Errorf("want live %t, ready %t, %s: %s with %q in\n%s", live, ready, name, status, text, h)
			}
		}
		expect(true, false, "run", waybill.HealthFailed, "not running")
		err := c.Handle(waybill.Subscription{Queue: queue}, handle(func(context.Context, *waybill.Delivery) error {
			if handlerDown.Load() {
				return outage("no database")
			}
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		stop := run(t, c)
		settle()
		expect(true, true, "queue "+queue, waybill.HealthOK, "subscribed; 0 deliveries held")
		expect(true, true, "run", waybill.HealthOK, "running")

		handlerDown.Store(true)
		b.publish(t, 1)
		settle()
		expect(true, true, "queue "+queue, waybill.HealthDegraded, "no database")
		handlerDown.Store(false)
		patience.Pass(t, time.Minute)
		settle()
		expect(true, true, "queue "+queue, waybill.HealthOK, "subscribed")

		brokerDown.Store(true)
		b.publish(t, 1) // so that the receiver asks again
		patience.Pass(t, time.Minute)
		settle()
		expect(true, false, "queue "+queue, waybill.HealthFailed, "no broker")
		brokerDown.Store(false)
		patience.Pass(t, time.Minute)
		b.publish(t, 1)
		settle()
		expect(true, true, "queue "+queue, waybill.HealthOK, "subscribed")
		stop()
		expect(true, false, "run", waybill.HealthFailed, "not running")

		b.subscribe = func(core.Subscription) error { return fmt.Errorf("queue gone: %w", waybill.ErrMisconfigured) }
		if err := c.Run(t.Context()); err == nil {
			t.Error("no error")
		}
		expect(false, false, "run", waybill.HealthFailed, "queue gone")
	})
}
