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
		queue := core.HeartbeatRequest{Join: true, Self: core.Member{
			Session: 7, Heartbeats: 1, Name: "billing", Lease: time.Hour, Capacity: 10, FreeCapacity: 10, Routes: []core.ServedRoute{{Route: "other", InitialPartitions: 1}},
		}}
		heartbeat := func() {
			t.Helper()
			queue.Self.Heartbeats++
			if _, err := s.Heartbeat(t.Context(), queue); err != nil {
				t.Fatal(err)
			}
		}
		heartbeat()
		stage(t, s, msg("a", ""))
		within(t, time.Minute, "a queue elsewhere", ok)
		queue.Self.Routes = append(queue.Self.Routes, core.ServedRoute{Route: waybill.DefaultRoute, InitialPartitions: 64})
		heartbeat()
		within(t, time.Minute, "a queue on the route", func() bool {
			status, text := route()
			return status == waybill.HealthDegraded && strings.Contains(text, "consumer billing takes it for a queue")
		})
		queue.Leave, queue.Join = true, false
		heartbeat()
		within(t, time.Minute, "alone again", ok)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
