package nats_test

import (
	"testing"

	natsgo "github.com/nats-io/nats.go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/core"
)

// CO-02: the broker's own message has what an envelope has no field for, and settles nothing.
func TestNative(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	bus := dial(t, s.url(), nats.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, "a")
	d := receive(t, r)
	m, ok := waybill.Native[*natsgo.Msg](d)
	if !ok || m.Subject == "" || m.Header.Get("ce-id") != d.Envelope.ID {
		t.Errorf("%t, %+v", ok, m)
	}
	if m.Reply != "" || m.Ack() == nil {
		t.Error("a handler can settle it")
	}
	done(t, r, d)
}
