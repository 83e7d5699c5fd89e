package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/internal/patience"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// Subscription.Foreign completes a message before Sources, handlers and what they stage see it. The runner
// parks a message that it refuses, or panics at.
func TestForeignIsCompleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		b := declared(t)
		var handled seen[string]
		h := waybill.Handler{Name: "orders.placed", Handle: func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			handled.add(d.Envelope.ID + " " + strings.Join(waybill.ScopeFrom(ctx).Lineage, " "))
			return waybill.HandlerProcessed, nil
		}}
		sub := waybill.Subscription{
			Sources: map[string][]string{"/old": {"orders.*"}},
			Foreign: func(e *waybill.Envelope) error {
				switch id := e.Headers["old-id"]; id {
				case "":
				case "bad":
					return errors.New("header old-id is bad")
				case "worse":
					panic("secret")
				default:
					e.ID, e.Source, e.Topic, e.Lineage = id, "/old", "orders.placed", []string{"root"}
				}
				return nil
			},
		}
		stop := start(t, b, consumer.Options{Concurrency: 1}, sub, h)
		for _, id := range []string{"one", "two", "bad", "worse"} {
			b.send(t, waybill.Envelope{ID: "random " + id, Topic: "old", Headers: map[string]string{"old-id": id}})
		}
		b.send(t, waybill.Envelope{ID: "three", Source: "/old", Topic: "orders.placed"})
		queued(t, b, memtransport.Depth{Parked: 2})
		stop()
		wantParked(t, b, waybill.ReasonUndecodable, 2)
		got := handled.all()
		slices.Sort(got)
		if diff := cmp.Diff([]string{"one root one", "three three", "two root two"}, got); diff != "" {
			t.Error(diff)
		}
		for _, p := range b.Parked(queue) {
			if !strings.Contains(p.Err, "Subscription.Foreign") || strings.Contains(p.Err, "secret") || p.Envelope.Headers["old-id"] == "" {
				t.Errorf("%s: %s", p.Envelope.ID, p.Err)
			}
		}
	})
}
