package nats_test

import (
	"errors"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/core"
)

// An inbox does not take a message that an operator has repaired for another one: a header says what it was, also
// after a second repair. RM-08.
func TestRepairedMessageIsMarked(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	bus := dial(t, s.url(), nats.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"*"}})
	publish(t, bus, "a")
	mark := ""
	for round := range 3 {
		d := receive(t, r)
		if got := d.Envelope.Headers["repaired-from"]; round > 0 && (got == "" || mark != "" && got != mark) {
			t.Errorf("after repair %d the header is %q, and was %q", round, got, mark)
		}
		mark = d.Envelope.Headers["repaired-from"]
		if err := r.Settle(t.Context(), []core.Ack{core.AckReject(d, waybill.ReasonRejected, errors.New("no good"))}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		edit := func(p admin.Parked) ([]byte, error) { return append(p.Envelope.Body, '!'), nil }
		if n, err := bus.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true, Edit: edit}); n != 1 || err != nil {
			t.Fatalf("replayed %d, %v", n, err)
		}
	}
}
