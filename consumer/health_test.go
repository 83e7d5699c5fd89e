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

	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
)

// RL-13: Health before, during and after a run.
func TestHealth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var brokerDown, handlerDown atomic.Bool
		outage := func(what string) error {
			return &core.Error{Op: "test", Class: core.ClassOutage, Err: errors.New(what)}
		}
		b.receive = func() error {
			if brokerDown.Load() {
				return outage("no broker")
			}
			return nil
		}
		c := newConsumer(t, b, consumer.Options{})
		expect := func(live, ready bool, name string, status core.HealthStatus, text string) {
			t.Helper()
			h := c.Health(t.Context())
			got, ok := h.Check(name)
			if h.Live != live || h.Ready != ready || !ok || got.Status != status || !strings.Contains(got.Text, text) {
				t.Errorf("want live %t, ready %t, %s: %s with %q in\n%s", live, ready, name, status, text, h)
			}
		}
		expect(true, false, "run", core.HealthFailed, "not running")
		err := c.Handle(core.Subscription{Queue: queue}, handle(func(context.Context, *core.Delivery) error {
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
		expect(true, true, "queue "+queue, core.HealthOK, "subscribed; 0 deliveries held")
		expect(true, true, "run", core.HealthOK, "running")

		handlerDown.Store(true)
		b.publish(t, 1)
		settle()
		expect(true, true, "queue "+queue, core.HealthDegraded, "no database")
		handlerDown.Store(false)
		time.Sleep(time.Minute)
		settle()
		expect(true, true, "queue "+queue, core.HealthOK, "subscribed")

		brokerDown.Store(true)
		b.publish(t, 1) // so that the receiver asks again
		time.Sleep(time.Minute)
		settle()
		expect(true, false, "queue "+queue, core.HealthFailed, "no broker")
		brokerDown.Store(false)
		time.Sleep(time.Minute)
		b.publish(t, 1)
		settle()
		expect(true, true, "queue "+queue, core.HealthOK, "subscribed")
		stop()
		expect(true, false, "run", core.HealthFailed, "not running")

		b.subscribe = func(core.Subscription) error { return fmt.Errorf("queue gone: %w", core.ErrMisconfigured) }
		if err := c.Run(t.Context()); err == nil {
			t.Error("no error")
		}
		expect(false, false, "run", core.HealthFailed, "queue gone")
	})
}
