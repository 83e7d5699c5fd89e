package nats_test

import (
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
)

// RM-08.
func TestRepairedMessageIsMarked(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	bus := dial(t, s.url(), nats.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"*"}})
	publish(t, bus, "a")
	sharedtest.RepairedIsMarked(t, bus, "q", r, func() *waybill.Delivery { return receive(t, r) })
}
