package sharedtest

import (
	"errors"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// RepairedIsMarked checks that a repaired message has a header with the mark of its former content, also after a second
// repair. Without it an inbox takes the message for another one with the same id. receive returns the next delivery of
// r, which receives from queue: at first the only message there.
func RepairedIsMarked(t *testing.T, bus admin.ParkedQueue, queue string, r core.Receiver, receive func() *waybill.Delivery) {
	t.Helper()
	mark := ""
	for round := range 3 {
		d := receive()
		if got := d.Envelope.Headers["repaired-from"]; round > 0 && (got == "" || mark != "" && got != mark) {
			t.Errorf("after repair %d the header is %q, and was %q", round, got, mark)
		}
		mark = d.Envelope.Headers["repaired-from"]
		if err := r.Settle(t.Context(), []core.Ack{core.AckReject(d, waybill.ReasonRejected, errors.New("no good"))}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		edit := func(p admin.Parked) ([]byte, error) { return append(p.Envelope.Body, '!'), nil }
		if n, err := bus.ReplayParked(t.Context(), admin.ParkedRequest{Queue: queue, All: true, Edit: edit}); n != 1 || err != nil {
			t.Fatalf("replayed %d, %v", n, err)
		}
	}
}
