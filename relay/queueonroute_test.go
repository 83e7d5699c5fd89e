package relay_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
)

// TQ-01: a route that a relay and a table queue both serve divides its messages between them. The relay says so, as
// long as it is so.
func TestQueueOnARoute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		r := newRelay(t, s, newBus(), relay.Options{})
		stop := begin(t, r)
		route := func() (status waybill.HealthStatus, text string) {
			for _, c := range r.Health(t.Context()).Checks {
				if c.Name == "route default" {
					status, text = c.Status, c.Text
				}
			}
			return status, text
		}
		ok := func() bool { status, _ := route(); return status == waybill.HealthOK }
		within(t, time.Minute, "alone", ok)
		queue := core.Meeting{Join: true, Self: core.Member{
			Session: 7, Beat: 1, Name: "billing", Lease: time.Hour, Handlers: 10, Free: 10, Serves: []core.Serving{{Route: "other", Units: 1}},
		}}
		meet := func() {
			t.Helper()
			queue.Self.Beat++
			if _, err := s.Meet(t.Context(), queue); err != nil {
				t.Fatal(err)
			}
		}
		meet()
		stage(t, s, msg("a", ""))
		within(t, time.Minute, "a queue elsewhere", ok)
		queue.Self.Serves = append(queue.Self.Serves, core.Serving{Route: waybill.DefaultRoute, Units: 64})
		meet()
		within(t, time.Minute, "a queue on the route", func() bool {
			status, text := route()
			return status == waybill.HealthDegraded && strings.Contains(text, "consumer billing takes it for a queue")
		})
		queue.Leave, queue.Join = true, false
		meet()
		within(t, time.Minute, "alone again", ok)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
